//! What a job can do to its node, to the agent, and to other jobs.
//!
//! The attacks are run twice: as allocs with user ids of their own, where each must fail, and unisolated, where each must succeed.
//! So an attack that fails for another reason is noticed.

use crate::common::{TestNode, copy_program, is_alive, order};
use model::wire::AllocOrder;
use model::{ClientStatus, EndCause, Needs};
use nodekeeper_agent::isolation::TaskIsolation;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// Skips the test without root.
macro_rules! needs_root {
    () => {
        if !nix::unistd::geteuid().is_root() {
            return eprintln!("skipped: only root can give jobs user ids of their own");
        }
    };
}

/// Ranges of ids that no other test uses at the same time.
struct Ids {
    jobs: String,
    /// The first user id that a job gets.
    first: u32,
}

fn ids() -> Ids {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let of_process = std::process::id() % 20_000;
    let base = 1_500_000_000 + of_process * 10_000 + NEXT.fetch_add(20, Ordering::Relaxed);
    Ids { jobs: format!("{base}-{}", base + 9), first: base + 1 }
}

impl Ids {
    fn args(&self) -> [&str; 3] {
        ["--job-uids", &self.jobs, "--allow-metadata"]
    }
}

fn text(path: impl AsRef<Path>) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

async fn output(node: &TestNode, copy: u32) -> String {
    node.end_of(copy).await.run.log_tail.unwrap_or_default()
}

/// The attacks of a rogue job. Each script prints GOT if it succeeds.
const ATTACKS: [(&str, &str); 25] = [
    ("reads the node's token", "grep -q secret-token $NODE && echo GOT"),
    ("reads the agent's state", "grep -q alloc $DATA/state.json && echo GOT"),
    ("writes beside the agent's state", "touch $DATA/forged && echo GOT"),
    ("replaces the agent's program", "test -w $AGENT_PROGRAM && echo GOT"),
    ("lists the other jobs", "ls $DATA/allocs && echo GOT"),
    ("lists the caches", "ls $DATA/caches && echo GOT"),
    ("reads another job's order, with its secrets", "grep -q s3cret $VICTIM/task.json && echo GOT"),
    ("reads another job's files", "cat $VICTIM_FILE && echo GOT"),
    ("reads another job's output", "cat $VICTIM/output && echo GOT"),
    ("reads another job's environment", "tr '\\0' '\\n' < /proc/$VICTIM_PID/environ | grep -q s3cret && echo GOT"),
    ("sees another job's command line", "test -e /proc/$VICTIM_PID/cmdline && echo GOT"),
    ("sees the agent's process", "test -e /proc/$AGENT/stat && echo GOT"),
    ("reads what another job left in /tmp", "cat /tmp/$MARK && echo GOT"),
    ("reads what another job left in /var/tmp", "cat /var/tmp/$MARK && echo GOT"),
    ("reads what another job left in /dev/shm", "cat /dev/shm/$MARK && echo GOT"),
    ("writes to a cache that it does not name", "touch $DATA/caches/private/files/x && echo GOT"),
    ("gives a cache another label", "touch $DATA/cache-labels/forged && echo GOT"),
    ("forges another job's end", "touch $VICTIM/forged && echo GOT"),
    ("forges its own end", "touch ../forged && echo GOT"),
    ("makes a link to another job's order", "ln $VICTIM/task.json linked && cat linked > /dev/null && echo GOT"),
    ("signals the agent", "kill -0 $AGENT && echo GOT"),
    ("signals its supervisor", "kill -0 $PPID && echo GOT"),
    ("signals another job", "kill -0 $VICTIM_PID && echo GOT"),
    (
        "keeps a key in the kernel, whose keyrings outlive it",
        "n=248; test $(uname -m) = aarch64 && n=217; \
         perl -e \"my (\\$t, \\$d, \\$p) = qw(user nodekeeper-test x); exit(syscall($n, \\$t, \\$d, \\$p, 1, -2) < 0)\" \
         && echo GOT",
    ),
    ("becomes root by a set-user-id program", "./../../../../setuid-id -u | grep -qx 0 && echo GOT"),
];

/// The attacks that need the namespaces of the kernel.
const MORE_ATTACKS: [(&str, &str); 3] = [
    ("opens another job's GPU", "cat $GPU && echo GOT"),
    ("becomes root in a user namespace", "unshare -Ur grep -q secret-token $NODE && echo GOT"),
    ("makes mounts", "unshare -m true && echo GOT"),
];

/// Runs every attack against a victim on the same node. Returns those that succeeded.
async fn attack(isolation: &[&str]) -> Vec<&'static str> {
    let mut node = TestNode::new().await;
    let mark = format!("nodekeeper-test-{}", std::process::id());
    let setuid = node.dir.path().join("setuid-id");
    copy_program("/usr/bin/id", &setuid);
    std::fs::set_permissions(&setuid, PermissionsExt::from_mode(0o4755)).unwrap();
    let gpu = node.dir.path().canonicalize().unwrap().join("gpu");
    std::fs::write(&gpu, "a GPU\n").unwrap();
    let listed = node.dir.path().join("gpus.json");
    std::fs::write(&listed, serde_json::json!([{"uuid": "GPU-0", "device": gpu}]).to_string()).unwrap();
    let script = format!(
        "cat {} || exit 1; echo x > /tmp/{mark}; echo x > /var/tmp/{mark}; echo x > /dev/shm/{mark}; echo x > secret; \
                          echo $$ > pid; exec sleep 1000",
        gpu.display()
    );
    let mut victim = order(0, &script);
    victim.env.insert("SECRET".into(), "s3cret".into());
    victim.work.caches = vec!["private".into()];
    victim.needs.gpus = 1;
    node.with(|p| p.order(vec![victim.clone()]));
    node.start(&[isolation, &["--gpus-from", listed.to_str().unwrap()]].concat());
    let victim_pid = node.line_of(0, "pid").await;
    let attacks: Vec<_> = ATTACKS.into_iter().chain(MORE_ATTACKS).collect();
    let victim_dir = node.alloc_dir(0).canonicalize().unwrap();
    let env = [
        ("NODE", node.dir.path().join("node.json").display().to_string()),
        ("DATA", node.data().canonicalize().unwrap().display().to_string()),
        ("AGENT", node.agent.as_ref().unwrap().id().to_string()),
        ("AGENT_PROGRAM", env!("CARGO_BIN_EXE_nodekeeper-agent").to_owned()),
        ("VICTIM", victim_dir.display().to_string()),
        ("VICTIM_FILE", victim_dir.join("work").join("secret").display().to_string()),
        ("VICTIM_PID", victim_pid.clone()),
        ("MARK", mark.clone()),
        ("GPU", gpu.display().to_string()),
    ];
    let orders = attacks.iter().zip(1..).map(|((_, script), copy)| {
        let mut attacker = order(copy, script);
        attacker.env = env.clone().map(|(name, value)| (name.to_owned(), value)).into();
        attacker
    });
    // A few at a time, as many as there are user ids.
    let orders: Vec<AllocOrder> = orders.collect();
    let mut succeeded = Vec::new();
    for some in orders.chunks(5) {
        node.with(|p| p.order([std::slice::from_ref(&victim), some].concat()));
        for order in some {
            let copy = order.alloc_id.copy;
            if output(&node, copy).await.lines().any(|line| line == "GOT") {
                succeeded.push(attacks[copy as usize - 1].0);
            }
        }
        node.with(|p| p.destroy = some.iter().map(|o| o.alloc_id.to_string()).collect());
        let gone = |n: &TestNode| some.iter().all(|o| !n.alloc_dir(o.alloc_id.copy).exists()).then_some(());
        node.until("the attackers are swept", gone).await;
    }
    assert!(is_alive(&victim_pid), "the victim still runs");
    for dir in ["/tmp", "/var/tmp", "/dev/shm"] {
        let _may_be_private = std::fs::remove_file(format!("{dir}/{mark}"));
    }
    succeeded
}

#[tokio::test]
async fn no_attack_of_a_job_succeeds() {
    needs_root!();
    let nothing: [&str; 0] = [];
    assert_eq!(attack(&ids().args()).await, nothing);
}

#[tokio::test]
async fn every_attack_succeeds_without_isolation() {
    needs_root!();
    let all: Vec<_> = ATTACKS.iter().chain(&MORE_ATTACKS).map(|(name, _)| *name).collect();
    assert_eq!(attack(&["--unisolated"]).await, all);
}

#[tokio::test]
async fn a_job_has_a_user_id_and_no_other_rights() {
    needs_root!();
    let (mut node, ids) = (TestNode::new().await, ids());
    let script = "id -u; id -G; id -un; umask; pwd; echo $HOME; ls -A; grep -e NoNewPrivs -e ^Cap /proc/self/status; \
                  cat /proc/self/oom_score_adj; echo to tmp > /tmp/x && cat /tmp/x; \
                  ls /proc | grep -c '^[0-9]'";
    node.with(|p| p.order(vec![order(0, script)]));
    node.start(&ids.args());
    let output = output(&node, 0).await;
    let work = node.alloc_dir(0).join("work").canonicalize().unwrap().display().to_string();
    let mut lines: Vec<_> = output.lines().map(|l| l.replace('\t', " ")).collect();
    let processes: u32 = lines.pop().unwrap().parse().unwrap();
    assert!(processes < 10, "/proc shows the job's own processes: {output}");
    let uid = ids.first.to_string();
    let want = [
        &uid,
        &uid,
        "job",
        "0022",
        &work,
        &work,
        "CapInh: 0000000000000000",
        "CapPrm: 0000000000000000",
        "CapEff: 0000000000000000",
        "CapBnd:",
        "CapAmb: 0000000000000000",
        "NoNewPrivs: 1",
        "500",
        "to tmp",
    ];
    for (line, want) in lines.iter().zip(want) {
        assert!(line.starts_with(want), "{want} in {output}");
    }
    assert_eq!(lines.len(), want.len(), "{output}");
}

/// The pipes of its output belong to the supervisor, which runs as another user.
#[tokio::test]
async fn a_job_opens_its_own_output_again_and_loses_nothing() {
    needs_root!();
    let (mut node, ids) = (TestNode::new().await, ids());
    let script = "echo one; echo two > /dev/stderr; echo three > /dev/stdout; echo four > /proc/self/fd/2; cat";
    let order = order(0, script);
    let env = [("NODEKEEPER_STDIN".to_owned(), "Zml2ZQo=".to_owned())].into();
    node.with(|p| p.order(vec![model::wire::AllocOrder { env, ..order }]));
    node.start(&ids.args());
    let end = node.end_of(0).await;
    let mut lines: Vec<&str> = end.run.log_tail.as_deref().unwrap_or_default().lines().collect();
    lines.sort_unstable();
    assert_eq!((lines, end.cause), (vec!["five", "four", "one", "three", "two"], Some(EndCause::Exited { code: 0 })));
    assert!(!end.run.tail_switches.is_empty(), "two of them are standard error");
}

#[tokio::test]
async fn what_left_its_process_group_and_its_parents_ends_with_the_alloc() {
    needs_root!();
    let (mut node, ids) = (TestNode::new().await, ids());
    // A daemon, and a chain of processes in which each starts the next one and ends at once.
    let script = "setsid sh -c 'sleep 1000 & sleep 1000' & \
                  echo 'setsid sh ./chain & exit' > chain; setsid sh ./chain & sleep 0.3; echo done";
    node.with(|p| p.order(vec![order(0, script)]));
    node.start(&ids.args());
    assert_eq!(output(&node, 0).await, "done\n");
    assert_eq!(process_table::of_user(ids.first), [] as [i32; 0]);
}

/// A machine without control groups. The chain of processes forks without end, and each of them ignores TERM.
#[tokio::test]
async fn everything_of_a_user_ends_without_a_control_group_too() {
    needs_root!();
    let ids = ids();
    let (uid, reaper) = (ids.first, ids.first + 1);
    let dir = tempfile::tempdir_in("/tmp").unwrap();
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::write(dir.path().join("chain"), "trap '' TERM; setsid sh ./chain & exit").unwrap();
    let mut user = Command::new("setpriv");
    user.args(["--reuid", &uid.to_string(), "--regid", &uid.to_string(), "--clear-groups"]).current_dir(dir.path());
    let mut begun = user.args(["sh", "-c", "setsid sh ./chain & exec sleep 1000"]).spawn().unwrap();
    while process_table::of_user(uid).len() < 2 {
        tokio::task::yield_now().await;
    }
    let program = Path::new(env!("CARGO_BIN_EXE_nodekeeper-agent"));
    let isolation =
        TaskIsolation { uid, reaper, max_tasks: 100, private_mounts: true, closed: Vec::new(), cgroup: None };
    isolation.end(program, dir.path(), true).await;
    assert_eq!(process_table::of_user(uid), [] as [i32; 0]);
    begun.wait().unwrap();
}

#[tokio::test]
async fn an_alloc_whose_supervisor_is_killed_leaves_nothing_running() {
    needs_root!();
    let (mut node, ids) = (TestNode::new().await, ids());
    node.with(|p| p.order(vec![order(0, "setsid sleep 1000 & echo $PPID > supervisor; exec sleep 1000")]));
    node.start(&ids.args());
    let supervisor: i32 = node.line_of(0, "supervisor").await.parse().unwrap();
    node.running(0).await;
    assert!(process_table::of_user(ids.first).len() >= 2);
    process_table::send(supervisor, nix::sys::signal::Signal::SIGKILL);
    let end = node.end_of(0).await;
    assert_eq!((end.client, crate::common::code(&end)), (ClientStatus::Lost, None));
    assert_eq!(process_table::of_user(ids.first), [] as [i32; 0]);
    assert_eq!(std::fs::metadata(node.alloc_dir(0).join("work")).unwrap().uid(), 0, "its files were taken away");
}

#[tokio::test]
async fn a_user_id_is_used_again_only_after_its_files_are_closed() {
    needs_root!();
    let (mut node, ids) = (TestNode::new().await, ids());
    let count = 12;
    node.start(&ids.args());
    let mut orders = Vec::new();
    for copy in 0..count {
        orders.push(order(copy, "id -u; echo x > mine; echo x > /tmp/left"));
        node.with(|p| p.order(orders.clone()));
        let uid: u32 = output(&node, copy).await.trim().parse().unwrap();
        assert_eq!(uid, ids.first + copy % 8, "in turn; the first and the last id of the range are no job's");
        let dir = node.alloc_dir(copy);
        for file in ["work", "tmp", "output"] {
            let file = std::fs::metadata(dir.join(file)).unwrap();
            assert_eq!((file.uid(), file.mode() & 0o077), (0, 0));
        }
    }
}

#[tokio::test]
async fn what_a_job_leaves_in_a_shared_place_is_gone_when_it_has_ended() {
    needs_root!();
    let (mut node, ids) = (TestNode::new().await, ids());
    // A job shares the temporary directory that contains its own files, and no other one.
    let dir = tempfile::tempdir_in("/tmp").unwrap();
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::copy(node.dir.path().join("node.json"), dir.path().join("node.json")).unwrap();
    node.dir = dir;
    let left = Path::new("/tmp").join(format!("nodekeeper-left-{}", ids.first));
    let script = format!("echo x > {}; echo > wrote; while ! test -e end; do sleep 0.05; done", left.display());
    node.with(|p| p.order(vec![order(0, &script)]));
    node.start(&ids.args());
    node.line_of(0, "wrote").await;
    assert!(left.exists());
    std::fs::write(node.alloc_dir(0).join("work/end"), "").unwrap();
    node.end_of(0).await;
    assert!(!left.exists());
}

#[tokio::test]
async fn a_job_inherits_no_open_file_of_whoever_starts_the_agent() {
    let mut node = TestNode::new().await;
    let secret = node.dir.path().join("secret");
    std::fs::write(&secret, "GOT\n").unwrap();
    node.prelude = format!("exec 8< {}", secret.display());
    node.with(|p| p.order(vec![order(0, "cat <&8; echo ran")]));
    node.start(&[]);
    let output = output(&node, 0).await;
    // The shell prints its own message on standard error, so it may come before or after.
    assert!(output.contains("ran\n") && !output.contains("GOT"), "{output}");
}

#[tokio::test]
async fn a_process_whose_main_thread_has_ended_is_ended_with_its_alloc() {
    let mut node = TestNode::new().await;
    let script = "n=60; test $(uname -m) = aarch64 && n=93; echo $PPID > supervisor; echo $$ > pid; \
                  exec perl -Mthreads -e \"threads->create(sub { sleep 1000 }); syscall($n, 0)\"";
    node.with(|p| p.order(vec![order(0, script)]));
    node.start(&[]);
    let pid: i32 = node.line_of(0, "pid").await.parse().unwrap();
    let main_thread_ended = |_: &TestNode| text(format!("/proc/{pid}/stat")).contains(") Z ").then_some(());
    node.until("its main thread ends", main_thread_ended).await;
    node.running(0).await;
    let supervisor = node.line_of(0, "supervisor").await.parse().unwrap();
    process_table::send(supervisor, nix::sys::signal::Signal::SIGKILL);
    assert_eq!(node.end_of(0).await.client, ClientStatus::Lost);
    node.until("it ends too", |_| (!is_alive(&pid.to_string())).then_some(())).await;
}

#[tokio::test]
async fn what_a_job_keeps_in_dev_shm_counts_as_its_memory() {
    needs_root!();
    let (mut node, ids) = (TestNode::new().await, ids());
    let fills = "head -c 100000000 /dev/zero > /dev/shm/x; sleep 1000";
    node.with(|p| {
        p.order(vec![AllocOrder { needs: Needs { memory_mib: 64, ..order(0, fills).needs }, ..order(0, fills) }])
    });
    node.start(&ids.args());
    let message = crate::common::cause(&node.end_of(0).await);
    assert!(message.starts_with("out of memory: it used ") && message.contains("64 MiB"), "{message}");
}

#[tokio::test]
async fn with_all_user_ids_in_use_an_alloc_waits() {
    needs_root!();
    let (mut node, ids) = (TestNode::new().await, ids());
    let range = format!("{}-{}", ids.first - 1, ids.first + 1);
    node.with(|p| p.order(vec![order(0, "while ! test -e end; do sleep 0.05; done"), order(1, "echo ran")]));
    node.start(&["--job-uids", &range, "--allow-metadata"]);
    let log = node.dir.path().join("agent.log");
    node.until("one alloc waits", |_| text(&log).contains("all user ids of jobs are in use").then_some(())).await;
    let runs = if node.alloc_dir(0).exists() { 0 } else { 1 };
    assert_eq!(runs, 0, "the first order is started first");
    std::fs::write(node.alloc_dir(0).join("work/end"), "").unwrap();
    assert_eq!(output(&node, 1).await, "ran\n");
}

fn with_cache(mut order: AllocOrder) -> AllocOrder {
    order.work.caches = vec!["m2".into()];
    order
}

/// What pip and many others do in a cache: a file that only its owner may read, and its rename.
#[tokio::test]
async fn allocs_that_name_a_cache_are_its_owner_one_after_the_other() {
    needs_root!();
    let (mut node, ids) = (TestNode::new().await, ids());
    let first = with_cache(order(
        0,
        "cd $NODEKEEPER_CACHE_M2 && f=$(mktemp -p .) && echo blob > $f && mv $f model.bin && mkdir -m 755 dir \
         && echo 1 > dir/file && chmod 644 dir/file && git init -q repo; id -u; id -G",
    ));
    node.with(|p| p.order(vec![first.clone()]));
    node.start(&ids.args());
    assert_eq!(output(&node, 0).await, format!("{0}\n{0}\n", ids.first));
    let other = order(1, "id -u; cat $DATA/caches/m2/files/model.bin 2> /dev/null || echo closed");
    let other = AllocOrder { env: [("DATA".into(), node.data().display().to_string())].into(), ..other };
    let script = "cd $NODEKEEPER_CACHE_M2 && cat model.bin dir/file && echo 2 > dir/file && rm dir/file && rmdir dir \
                  && git -C repo status --short && id -u";
    node.with(|p| p.order(vec![first, other, with_cache(order(2, script))]));
    assert_eq!(output(&node, 1).await, format!("{}\nclosed\n", ids.first + 1));
    assert_eq!(output(&node, 2).await, format!("blob\n1\n{}\n", ids.first));
}

#[tokio::test]
async fn of_allocs_that_share_a_cache_the_end_of_one_ends_no_other() {
    needs_root!();
    let (mut node, ids) = (TestNode::new().await, ids());
    let stays = with_cache(order(0, "id -u > uid; exec sleep 1000"));
    node.with(|p| p.order(vec![stays.clone(), with_cache(order(1, "setsid sleep 1000 & id -u"))]));
    node.start(&ids.args());
    let uid = node.line_of(0, "uid").await;
    assert_eq!(output(&node, 1).await, format!("{uid}\n"), "at the same time");
    assert_eq!(process_table::of_user(ids.first).len(), 1, "the other one goes on, and nothing else");
    node.with(|p| p.order(vec![AllocOrder { desired: model::Desired::Stop, ..stays }]));
    node.end_of(0).await;
    assert_eq!(process_table::of_user(ids.first), [] as [i32; 0]);
}

#[tokio::test]
async fn a_job_that_starts_too_many_processes_is_limited_and_its_node_is_not() {
    needs_root!();
    let (mut node, ids) = (TestNode::new().await, ids());
    let script = "n=0; while [ $n -lt 60 ]; do sleep 1000 & n=$((n+1)); done; echo not limited";
    node.with(|p| p.order(vec![order(0, script)]));
    node.start(&[&ids.args()[..], &["--max-tasks", "30"]].concat());
    let output = output(&node, 0).await;
    assert!(!output.contains("not limited"), "{output}");
    assert_eq!(process_table::of_user(ids.first), [] as [i32; 0]);
}

#[tokio::test]
async fn the_agents_files_are_closed_to_others() {
    needs_root!();
    let (mut node, ids) = (TestNode::new().await, ids());
    let config = node.dir.path().join("node.json");
    std::fs::set_permissions(&config, PermissionsExt::from_mode(0o644)).unwrap();
    node.with(|p| p.order(vec![order(0, "sleep 1000")]));
    node.start(&ids.args());
    node.running(0).await;
    let mode = |path: &Path| std::fs::metadata(path).unwrap().mode() & 0o7777;
    assert_eq!(mode(&config), 0o600);
    let data = node.data();
    let mut files: Vec<_> = ["lock", "state.json", "state.spare"].iter().map(|name| data.join(name)).collect();
    let alloc = node.alloc_dir(0);
    files.extend(["label", "task.json", "started", "supervisor.log", "output", "reserve"].map(|name| alloc.join(name)));
    for file in files {
        assert_eq!(mode(&file) & 0o077, 0, "{}", file.display());
    }
    assert_eq!((mode(&alloc), mode(&alloc.join("work")), mode(&alloc.join("tmp"))), (0o710, 0o700, 0o700));
    assert_eq!((mode(&data), mode(&data.join("allocs")), mode(&data.join("caches"))), (0o711, 0o711, 0o711));
}

/// Runs the agent with these options until it ends, and returns what it prints.
fn refusal(node: &TestNode, as_nobody: bool, args: &[&str]) -> String {
    let program = env!("CARGO_BIN_EXE_nodekeeper-agent");
    let mut command = Command::new(if as_nobody { "setpriv" } else { program });
    if as_nobody {
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--", program]);
    }
    command.arg("--config").arg(node.dir.path().join("node.json")).arg("--data-dir").arg(node.data());
    let output = command.args(["--no-imds", "--instance-id", "i-1"]).args(args).output().unwrap();
    assert!(!output.status.success());
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[tokio::test]
async fn an_ordinary_user_runs_jobs_only_if_told_that_they_are_not_isolated() {
    needs_root!();
    let mut node = TestNode::new().await;
    let said = refusal(&node, true, &[]);
    assert!(said.contains("only root can isolate jobs: start the agent as root, or give --unisolated"), "{said}");
    // With `--unisolated`, an agent without root runs jobs as itself.
    std::fs::create_dir(node.data()).unwrap();
    nix::unistd::chown(&node.data(), Some(65_534.into()), None).unwrap();
    nix::unistd::chown(&node.dir.path().join("node.json"), Some(65_534.into()), None).unwrap();
    node.with(|p| p.order(vec![order(0, "id -u")]));
    let log = std::fs::File::create(node.dir.path().join("agent.log")).unwrap();
    let mut agent = Command::new("setpriv");
    agent.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--", env!("CARGO_BIN_EXE_nodekeeper-agent")]);
    agent.arg("--config").arg(node.dir.path().join("node.json")).arg("--data-dir").arg(node.data());
    agent.args(["--no-imds", "--instance-id", "i-1", "--on-gone", "true", "--unisolated"]).stderr(log);
    node.agent = Some(agent.spawn().unwrap());
    assert_eq!(output(&node, 0).await, "65534\n");
}

#[tokio::test]
async fn wrong_options_are_refused_before_anything_starts() {
    needs_root!();
    let node = TestNode::new().await;
    let said = refusal(&node, false, &["--job-uids", "0-10"]);
    assert!(said.contains("must lie between"), "{said}");
    // Jobs could not reach their own directories.
    std::fs::set_permissions(node.dir.path(), PermissionsExt::from_mode(0o700)).unwrap();
    let ids = ids();
    let said = refusal(&node, false, &ids.args());
    assert!(said.contains("jobs cannot enter") && said.contains("chmod o+x"), "{said}");
}

#[tokio::test]
async fn a_node_whose_jobs_reach_the_metadata_takes_no_work_and_says_so() {
    needs_root!();
    let (mut node, ids) = (TestNode::new().await, ids());
    let metadata = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", metadata.local_addr().unwrap());
    node.with(|p| p.order(vec![order(0, "touch ran")]));
    node.start(&["--job-uids", &ids.jobs, "--imds-url", &url]);
    let beat = node.until("it is told", |n| n.with(|p| p.beats.first().cloned())).await;
    let refuses = beat.health.refuses.unwrap();
    assert!(refuses.starts_with("jobs reach the instance metadata at 127.0.0.1"), "{refuses}");
    let end = node.end_of(0).await;
    assert_eq!(end.client, ClientStatus::Lost);
    assert!(crate::common::cause(&end).contains("jobs reach the instance metadata"), "it is given back: {end:?}");
    assert!(!node.alloc_dir(0).join("work/ran").exists());
}
