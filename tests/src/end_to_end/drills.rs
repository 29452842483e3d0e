//! What operators do with a running cluster, on real agents: rotation of the key, and the end of a cluster.

use super::{Local, json, program, text, until};
use crate::second_opinions::{Emulator, root};
use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// A directory in which jobs of every user may write.
fn shared(local: &Local) -> PathBuf {
    let shared = local.path().join("shared");
    std::fs::create_dir_all(&shared).unwrap();
    std::fs::set_permissions(&shared, PermissionsExt::from_mode(0o1777)).unwrap();
    shared
}

/// A job that runs until the file exists.
fn until_file(local: &Local, name: &str) -> (String, PathBuf) {
    let file = shared(local).join(name);
    let script = format!("touch {0}.started; until [ -e {0} ]; do sleep 0.1; done", file.display());
    let submitted = local.nodekeeper(&["submit", "--", "sh", "-c", &script]);
    assert!(submitted.status.success(), "{}", text(&submitted));
    let started = file.with_extension("started");
    until("the job's start", 60, || started.exists().then_some(()));
    let id = text(&submitted).trim().to_owned();
    // The cluster knows it too: what it does not know to run is started again after a restore.
    let is_running = || (json(local, &["job", &id, "--json"])["all_allocs"][0]["client"] == "running").then_some(());
    until("the report of the start", 60, is_running);
    (id, file)
}

/// The key version of each node, by node id.
fn key_versions(local: &Local) -> BTreeMap<String, u64> {
    let nodes = json(local, &["nodes", "--json"]);
    let up = nodes.as_array().unwrap().iter().filter(|n| n["node_id"].is_string());
    let records = up.map(|n| json(local, &["node", &n["slot"].to_string(), "--json"])["record"].take());
    let records = records.filter(|record| record["node_id"].is_string());
    records.map(|n| (n["node_id"].as_str().unwrap().to_owned(), n["key_version"].as_u64().unwrap())).collect()
}

/// Two nodes work through three rotations: none goes away, none restarts, and no job is lost. A fourth rotation is refused
/// while a node still uses the key that it would remove.
#[test]
fn nightly_the_key_is_rotated_three_times_under_working_nodes() {
    let mut local = Local::start(&["--tick-s", "1"]);
    let (first, first_end) = until_file(&local, "first");
    let nodes: Vec<String> = key_versions(&local).into_keys().collect();
    for version in 2..=4_u64 {
        // Not before no function can launch with the key before the current one.
        let rotated = until("a rotation", 60, || {
            let rotated = local.nodekeeper(&["key", "rotate"]);
            rotated.status.success().then_some(rotated)
        });
        assert!(text(&rotated).starts_with(&format!("stored as version {version};")), "{}", text(&rotated));
        // The node has not called yet, so its token is of the version before.
        let refused = local.nodekeeper(&["key", "rotate"]);
        assert!(text(&refused).contains("nothing was stored"), "{}", text(&refused));
        until("the nodes' new tokens", 60, || {
            (json(&local, &["key", "show", "--json"])["older"] == serde_json::json!([])).then_some(())
        });
        assert!(nodes.iter().all(|id| key_versions(&local)[id] == version), "the same nodes have the new key");
    }
    // A node that is launched now gets a token of the newest key.
    let (second, second_end) = until_file(&local, "second");
    std::fs::write(first_end, "").unwrap();
    std::fs::write(second_end, "").unwrap();
    for job in [&first, &second] {
        let ended = until("the job's end", 60, || {
            let job = json(&local, &["job", job, "--json"]);
            (job["state"] != "placed").then_some(job)
        });
        assert_eq!(
            (&ended["state"], &ended["lost_count"], &ended["failed_count"]),
            (&"complete".into(), &0.into(), &0.into())
        );
        assert_eq!(ended["all_allocs"].as_array().unwrap().len(), 1);
    }
    let history = text(&local.nodekeeper(&["history", "cluster"]));
    assert_eq!(history.matches("key_rotated").count(), 3, "{history}");
    let history = text(&local.nodekeeper(&["history", "0"]));
    assert!(history.contains("ready") && !history.contains("mark_down"), "{history}");
    assert_eq!(local.stop(), Some(0));
}

/// The same command against another implementation of Secrets Manager.
#[test]
fn nightly_a_rotation_is_understood_by_moto() {
    let moto = Emulator::moto();
    let run = |args: &[&str]| {
        Command::new(super::program("nodekeeper"))
            .args(args)
            .env("NODEKEEPER_CLUSTER", "demo")
            .env("NODEKEEPER_NODE_KEY_SECRET", "demo-key")
            .env("AWS_ENDPOINT_URL", &moto.url)
            .envs([("AWS_REGION", "eu-west-1"), ("AWS_ACCESS_KEY_ID", "x"), ("AWS_SECRET_ACCESS_KEY", "x")])
            .output()
            .unwrap()
    };
    assert!(run(&["init"]).status.success());
    let missing = text(&run(&["key", "show"]));
    assert!(missing.contains("there is no such secret"), "{missing}");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let made = runtime.block_on(async {
        let call = reqwest::Client::new().post(&moto.url).header("x-amz-target", "secretsmanager.CreateSecret");
        let call = call
            .header("authorization", "AWS4-HMAC-SHA256 Credential=x/20260101/eu-west-1/secretsmanager/aws4_request");
        let body = serde_json::json!({"Name": "demo-key", "SecretString": "0f".repeat(32)});
        call.header("content-type", "application/x-amz-json-1.1").body(body.to_string()).send().await.unwrap().status()
    });
    assert_eq!(made.as_u16(), 200);
    for version in 1..=3 {
        assert!(text(&run(&["key", "show"])).contains(&format!("has version {version}\n")));
        let refused = text(&run(&["key", "rotate"]));
        assert!(refused.contains("nothing was stored: version"), "it was stored a moment ago: {refused}");
        let rotated = run(&["key", "rotate", "--force"]);
        assert!(rotated.status.success(), "{}", text(&rotated));
    }
}

/// Jobs wait and run, then the cluster is torn down. Nothing is left, and EC2 itself says so.
#[test]
fn a_teardown_leaves_no_instance() {
    let mut local = Local::start(&["--tick-s", "1"]);
    let (running, _) = until_file(&local, "never");
    let teardown = local.nodekeeper(&["teardown", "local", "--cancel-jobs", "--prove-s", "5", "--timeout-s", "120"]);
    let said = text(&teardown);
    assert!(teardown.status.success(), "{said}");
    assert!(
        said.ends_with("node records: none; instances: none\nno instance is left: EC2 listed none for 5 s\n"),
        "{said}"
    );
    assert_eq!(json(&local, &["job", &running, "--json"])["state"], "cancelled");
    // A job that is submitted now starts nothing.
    let waits = local.nodekeeper(&["submit", "--", "true"]);
    assert!(waits.status.success(), "{}", text(&waits));
    let again = local.nodekeeper(&["teardown", "local", "--prove-s", "5", "--timeout-s", "60"]);
    assert!(
        again.status.success() && text(&again).starts_with("node records: none; instances: none\n"),
        "{}",
        text(&again)
    );
    assert_eq!(local.stop(), Some(0));
}

/// The function processes of the local system that the schedule starts.
fn scheduled_functions(local: &Local) -> Vec<i32> {
    let of_local =
        std::fs::read_dir("/proc").unwrap().filter_map(|e| e.ok()?.file_name().to_str()?.parse::<i32>().ok());
    of_local
        .filter(|pid| {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            let line = |name: &str| {
                let line = status.lines().find_map(|l| l.strip_prefix(name)).unwrap_or_default();
                line.trim().to_owned()
            };
            // The kernel keeps 15 bytes of a name.
            let ours = ["poll-and-scale", "clean-stale-rec", "sweep-dispatch"].contains(&line("Name:").as_str());
            ours && line("PPid:") == local.process.id().to_string()
        })
        .collect()
}

/// Rows of tables, by table.
type Backup = Vec<(&'static str, Vec<std::collections::HashMap<String, aws_sdk_dynamodb::types::AttributeValue>>)>;

const TABLES: [(&str, &[&str]); 6] = [
    ("nodes", &["slot"]),
    ("jobs", &["job_id"]),
    ("allocs", &["alloc_id"]),
    ("handles", &["node_id", "handle"]),
    ("control", &["key"]),
    ("events", &["subject", "id"]),
];

async fn backup(client: &aws_sdk_dynamodb::Client) -> Backup {
    let mut all = Vec::new();
    for (table, _) in TABLES {
        let page = client.scan().table_name(format!("local-{table}")).send().await.unwrap();
        assert!(page.last_evaluated_key.is_none());
        all.push((table, page.items.unwrap()));
    }
    all
}

/// Puts the tables back to the moment of the backup.
async fn restore(client: &aws_sdk_dynamodb::Client, backup: &Backup) {
    let now = self::backup(client).await;
    for ((table, key), (_, rows)) in TABLES.iter().zip(now) {
        for row in rows {
            let key = row.into_iter().filter(|(name, _)| key.contains(&name.as_str())).collect();
            client.delete_item().table_name(format!("local-{table}")).set_key(Some(key)).send().await.unwrap();
        }
    }
    for (table, rows) in backup {
        for row in rows {
            client.put_item().table_name(format!("local-{table}")).set_item(Some(row.clone())).send().await.unwrap();
        }
    }
}

/// The tables go back in time while a job runs: the job goes on where it is, its node stays, and later jobs run.
#[test]
fn nightly_restored_tables_end_no_work_that_they_know() {
    use nix::sys::signal::{Signal, kill};
    use nix::unistd::Pid;
    let mut local = Local::start(&["--tick-s", "1"]);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let client = crate::world::dynamo_client(&local.env()["AWS_ENDPOINT_URL_DYNAMODB"]);
    let (known, known_end) = until_file(&local, "known");
    let node_of = |local: &Local| key_versions(local).into_keys().collect::<Vec<_>>();
    let (before, moment) = (node_of(&local), runtime.block_on(backup(&client)));
    let (later, later_end) = until_file(&local, "later");

    let clock = scheduled_functions(&local);
    assert!(!clock.is_empty());
    clock.iter().for_each(|pid| kill(Pid::from_raw(*pid), Signal::SIGSTOP).unwrap());
    runtime.block_on(restore(&client, &moment));
    clock.iter().for_each(|pid| kill(Pid::from_raw(*pid), Signal::SIGCONT).unwrap());

    // What was submitted after the backup is not known any more.
    let lost = text(&local.nodekeeper(&["job", &later]));
    assert!(lost.contains("there is no job"), "{lost}");
    // A job that is submitted now runs, also if the restored tables do not know the node that the later job had.
    let submitted = local.nodekeeper(&["submit", "--wait", "--", "echo", "after the restore"]);
    assert!(submitted.status.success(), "{}", text(&submitted));
    assert!(before.iter().all(|node| node_of(&local).contains(node)), "the node of the known job stays");
    std::fs::write(known_end, "").unwrap();
    std::fs::write(later_end, "").unwrap();
    let ended = until("the known job's end", 60, || {
        let job = json(&local, &["job", &known, "--json"]);
        (job["state"] != "placed").then_some(job)
    });
    assert_eq!((&ended["state"], &ended["lost_count"]), (&"complete".into(), &0.into()), "{ended:#}");
    assert_eq!(ended["all_allocs"].as_array().unwrap().len(), 1, "it ran once");
    let teardown = local.nodekeeper(&["teardown", "local", "--cancel-jobs", "--prove-s", "5", "--timeout-s", "120"]);
    assert!(teardown.status.success(), "{}", text(&teardown));
    assert_eq!(local.stop(), Some(0));
}

/// A job prints more than its row keeps: its lines come as it prints them, and all of them also after its directory was
/// destroyed.
#[test]
fn the_output_of_a_job_is_printed_as_it_comes_and_whole_afterwards() {
    use std::io::BufRead;
    // The node stays up.
    let policy = std::fs::read_to_string(root().join("cli/src/local/policy.toml")).unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), policy.replace("timeout_s = 5\n", "timeout_s = 600\n")).unwrap();
    let mut local = Local::start(&["--tick-s", "1", "--policy", file.path().to_str().unwrap()]);
    let go = shared(&local).join("go");
    let script = format!("seq 1 50000; echo begun; until [ -e {} ]; do sleep 0.1; done; echo last", go.display());
    let mut run = Command::new(program("nodekeeper"))
        .args(["run", "--name", "prints", "--", "sh", "-c", &script])
        .envs(local.env())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = std::io::BufReader::new(run.stdout.take().unwrap()).lines().map(Result::unwrap);
    let expected: String = (1..=50_000).map(|n| format!("{n}\n")).collect();
    let begun: String = lines.by_ref().take_while(|line| line != "begun").map(|line| line + "\n").collect();
    assert!(begun == expected, "{} bytes", begun.len());
    // Another reader joins while the job runs.
    let now = local.nodekeeper(&["logs", "prints", "--tail", "2"]);
    assert_eq!(String::from_utf8_lossy(&now.stdout), "50000\nbegun\n", "{}", text(&now));
    std::fs::write(&go, "").unwrap();
    assert_eq!(lines.collect::<Vec<_>>(), ["last"]);
    assert!(run.wait().unwrap().success());
    let alloc = json(&local, &["job", "prints", "--json"])["all_allocs"][0]["alloc_id"].as_str().unwrap().to_owned();
    let find =
        || Command::new("find").arg(local.path()).args(["-path", &format!("*/allocs/{alloc}")]).output().unwrap();
    until("its directory is destroyed", 60, || find().stdout.is_empty().then_some(()));
    let whole = local.nodekeeper(&["logs", "prints"]);
    let said = String::from_utf8_lossy(&whole.stderr);
    assert!(String::from_utf8_lossy(&whole.stdout) == expected + "begun\nlast\n", "{said}");
    assert_eq!(local.stop(), Some(0));
}
