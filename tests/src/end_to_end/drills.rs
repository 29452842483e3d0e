//! Drills of operators with a running cluster and real agents: restored tables, and the end of a cluster.

use super::{Local, json, program, text, until};
use crate::second_opinions::root;
use std::collections::BTreeSet;
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
    // The cluster knows it too. After a restore, the cluster starts a job again if it does not know that the job runs.
    let is_running = || (json(local, &["job", &id, "--json"])["all_allocs"][0]["client"] == "running").then_some(());
    until("the report of the start", 60, is_running);
    (id, file)
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
    // A job that is submitted now starts no node.
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

type Backup = Vec<(&'static str, Vec<std::collections::HashMap<String, aws_sdk_dynamodb::types::AttributeValue>>)>;

const TABLES: [(&str, &[&str]); 6] = [
    ("nodes", &["slot"]),
    ("jobs", &["job_id"]),
    ("allocs", &["alloc_id"]),
    ("handles", &["node_id", "handle"]),
    ("control", &["key"]),
    ("events", &["subject", "id"]),
];

/// The tables of the local system, with its credentials.
fn client(local: &Local) -> aws_sdk_dynamodb::Client {
    use aws_sdk_dynamodb::config::{BehaviorVersion, Builder, Credentials, Region};
    let env = local.env();
    let [id, secret] = ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"].map(|name| env[name].as_str());
    let config =
        Builder::new().behavior_version(BehaviorVersion::latest()).region(Region::new(env["AWS_REGION"].clone()));
    let config = config
        .http_client(store::http_client())
        .credentials_provider(Credentials::new(id, secret, None, None, "local"));
    aws_sdk_dynamodb::Client::from_conf(config.endpoint_url(&env["AWS_ENDPOINT_URL_DYNAMODB"]).build())
}

async fn backup(client: &aws_sdk_dynamodb::Client) -> Backup {
    let mut all = Vec::new();
    for (table, _) in TABLES {
        let page = client.scan().table_name(format!("local-{table}")).send().await.unwrap();
        assert!(page.last_evaluated_key.is_none());
        all.push((table, page.items.unwrap()));
    }
    all
}

/// Replaces the policy by one that cannot be read, so that no run does anything. The restore puts the policy back last,
/// after all other rows that decisions use.
async fn stop_the_clock(client: &aws_sdk_dynamodb::Client) {
    use aws_sdk_dynamodb::types::AttributeValue::{N, S};
    let row = [("key", S("policy".into())), ("version", N("0".into())), ("document", S("none".into()))];
    let row = row.map(|(name, value)| (name.to_owned(), value)).into();
    client.put_item().table_name("local-control").set_item(Some(row)).send().await.unwrap();
}

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

/// The tables go back in time while a job runs. The job goes on where it is, its node stays, and later jobs run.
#[test]
fn nightly_restored_tables_end_no_work_that_they_know() {
    let mut local = Local::start(&["--tick-s", "1"]);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let client = client(&local);
    let (known, known_end) = until_file(&local, "known");
    let node_of = |local: &Local| {
        let nodes = json(local, &["nodes", "--json"]);
        let ids = nodes.as_array().unwrap().iter().filter_map(|n| n["node_id"].as_str().map(str::to_owned));
        ids.collect::<BTreeSet<_>>()
    };
    let (before, moment) = (node_of(&local), runtime.block_on(backup(&client)));
    let (later, later_end) = until_file(&local, "later");

    runtime.block_on(async {
        stop_the_clock(&client).await;
        restore(&client, &moment).await;
    });

    // The restored tables do not know a job that was submitted after the backup.
    let lost = text(&local.nodekeeper(&["job", &later]));
    assert!(lost.contains("there is no job"), "{lost}");
    // A job that is submitted now runs, even if the restored tables do not know the node of the later job.
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

/// A job prints more than its row keeps. Its lines arrive soon after it has printed them, and all of them can be read after its
/// directory was destroyed.
#[test]
fn the_output_of_a_job_is_printed_as_it_comes_and_whole_afterwards() {
    use std::io::BufRead;
    // The node stays up.
    let policy = std::fs::read_to_string(root().join("local/system/policy.toml")).unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), policy.replace("timeout_s = 5\n", "timeout_s = 600\n")).unwrap();
    let mut local = Local::start(&["--tick-s", "1", "--policy", file.path().to_str().unwrap()]);
    let go = shared(&local).join("go");
    let line = |n: u32| format!("until [ -e {}{n} ]; do sleep 0.05; done; echo line {n}; ", go.display());
    let script = format!("seq 1 50000; echo begun; {}{}{}", line(1), line(2), line(3));
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
    for n in 1..=3 {
        std::fs::write(format!("{}{n}", go.display()), "").unwrap();
        let printed_at = std::time::Instant::now();
        assert_eq!(lines.next(), Some(format!("line {n}")));
        // It takes two seconds at most on a machine that does nothing else. Without a follow it would take half a minute.
        assert!(printed_at.elapsed().as_secs() < 6, "{n}: {:?}", printed_at.elapsed());
    }
    assert_eq!(lines.next(), None);
    assert!(run.wait().unwrap().success());
    let alloc = json(&local, &["job", "prints", "--json"])["all_allocs"][0]["alloc_id"].as_str().unwrap().to_owned();
    let find =
        || Command::new("find").arg(local.path()).args(["-path", &format!("*/allocs/{alloc}")]).output().unwrap();
    until("its directory is destroyed", 60, || find().stdout.is_empty().then_some(()));
    let whole = local.nodekeeper(&["logs", "prints"]);
    let said = String::from_utf8_lossy(&whole.stderr);
    assert!(String::from_utf8_lossy(&whole.stdout) == expected + "begun\nline 1\nline 2\nline 3\n", "{said}");
    assert_eq!(local.stop(), Some(0));
}
