//! A real agent with real processes: how allocs start, stop and end.

use crate::common::{TestNode, alloc_id, is_alive, order};
use model::wire::{AllocOrder, MAX_LOG_TAIL_BYTES};
use model::{ClientStatus, Desired, EndCause, FailurePolicy, Needs, Work};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

#[tokio::test]
async fn an_alloc_that_writes_more_than_its_scratch_space_is_stopped_with_that_cause() {
    let mut node = TestNode::new().await;
    // Space that a file reserves counts as used, as for the file system, and costs no time.
    let mut fills = order(0, "fallocate -l 1100M big; exec sleep 1000");
    let mut keeps = order(1, "fallocate -l 100M small; while ! [ -e go ]; do sleep 0.05; done");
    let unlimited = order(2, "fallocate -l 1100M big; while ! [ -e go ]; do sleep 0.05; done");
    (fills.needs.scratch_gib, keeps.needs.scratch_gib) = (1, 1);
    node.with(|p| p.order(vec![fills, keeps, unlimited]));
    node.start(&[]);
    let end = node.end_of(0).await;
    assert!(matches!(end.cause, Some(EndCause::OverScratch { allowed_gib: 1, used_mib: 1025.. })), "{end:?}");
    assert_eq!((end.client, crate::common::code(&end)), (ClientStatus::Failed, Some(137)));
    for copy in [1, 2] {
        std::fs::write(node.alloc_dir(copy).join("work/go"), "").unwrap();
        assert_eq!(node.end_of(copy).await.client, ClientStatus::Complete);
    }
}

#[tokio::test]
async fn a_job_runs_and_its_end_and_output_are_reported() {
    let mut node = TestNode::new().await;
    let mut hello = order(0, "echo $GREETING $NODEKEEPER_MEMBER $NODEKEEPER_HOSTS; pwd; exit 3");
    hello.env.insert("GREETING".into(), "hello".into());
    hello.work.caches = vec!["m2".into()];
    node.with(|p| p.order(vec![hello]));
    node.start(&[]);
    let end = node.end_of(0).await;
    assert_eq!((end.client, crate::common::code(&end)), (ClientStatus::Failed, Some(3)));
    let tail = end.run.log_tail.unwrap();
    assert!(tail.starts_with("hello 0 127.0.0.1\n"), "{tail}");
    assert!(tail.trim_end().ends_with("/work"), "{tail}");
    assert!(node.data().join("caches/m2").is_dir());
}

#[tokio::test]
async fn the_tail_of_a_long_output_is_sent() {
    let mut node = TestNode::new().await;
    node.with(|p| p.order(vec![order(0, "seq 1 20000; echo the end")]));
    node.start(&[]);
    let end = node.end_of(0).await;
    assert_eq!(end.client, ClientStatus::Complete);
    let tail = end.run.log_tail.unwrap();
    assert!(tail.ends_with("20000\nthe end\n"));
    assert!((MAX_LOG_TAIL_BYTES - 4..=MAX_LOG_TAIL_BYTES).contains(&tail.len()), "{}", tail.len());
}

#[tokio::test]
async fn a_node_whose_alloc_ended_asks_for_work_soon_and_then_ever_more_rarely() {
    let mut node = TestNode::new().await;
    node.with(|p| p.order(vec![order(0, "until [ -e go ]; do sleep 0.05; done")]));
    node.start(&[]);
    node.running(0).await;
    // From now on the control plane wants a call each ten minutes, and one soon after an end.
    node.with(|p| (p.next_heartbeat_s, p.soon_s) = (600.0, Some(0.2)));
    node.beats(1).await;
    std::fs::write(node.alloc_dir(0).join("work/go"), "").unwrap();
    node.end_of(0).await;
    let first = node.with(|p| p.beats.len());
    node.until("it asks again and again", |n| n.with(|p| (p.beats.len() >= first + 4).then_some(()))).await;
    node.with(|p| p.order(vec![order(1, "echo second")]));
    assert_eq!(node.end_of(1).await.run.log_tail.as_deref(), Some("second\n"));
}

#[tokio::test]
async fn an_end_is_heard_and_the_order_in_the_answer_to_its_report_starts_without_a_heartbeat() {
    let mut node = TestNode::new().await;
    node.with(|p| {
        (p.next_heartbeat_s, p.soon_s, p.orders_with_reports) = (600.0, Some(0.2), true);
        p.order(vec![order(0, "echo first")]);
        p.next_orders = (1..20).rev().map(|n| order(n, "true")).collect();
        p.next_orders.insert(0, order(20, "exec sleep 1000"));
    });
    node.start(&[]);
    node.end_of(0).await;
    let began = Instant::now();
    node.end_of(19).await;
    // An end that is not heard takes half a second.
    assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
    node.running(20).await;
    // No early question follows an answer that brought work.
    tokio::time::sleep(Duration::from_millis(400)).await;
    assert_eq!(node.with(|p| p.beats.len()), 1);
}

#[tokio::test]
async fn a_stop_sends_term_first() {
    let mut node = TestNode::new().await;
    let script = "trap 'echo bye; exit 0' TERM; echo $$ > pid; while :; do sleep 0.1; done";
    node.with(|p| p.order(vec![order(0, script)]));
    node.start(&[]);
    node.line_of(0, "pid").await;
    node.running(0).await;
    node.with(|p| p.order(vec![AllocOrder { desired: Desired::Stop, ..p.orders[0].clone() }]));
    let end = node.end_of(0).await;
    assert_eq!(
        (crate::common::code(&end), crate::common::cause(&end).as_str()),
        (Some(0), "stopped as ordered (exit code 0)")
    );
    assert!(end.run.log_tail.unwrap().contains("bye\n"));
}

#[tokio::test]
async fn a_command_that_ignores_term_is_killed_after_its_kill_timeout() {
    let mut node = TestNode::new().await;
    let stubborn = AllocOrder {
        failure_policy: FailurePolicy {
            kill_timeout_s: 1,
            ..order(0, "trap '' TERM; echo $$ > pid; while :; do sleep 0.1; done").failure_policy
        },
        ..order(0, "trap '' TERM; echo $$ > pid; while :; do sleep 0.1; done")
    };
    node.with(|p| p.order(vec![stubborn]));
    node.start(&[]);
    let pid = node.line_of(0, "pid").await;
    node.running(0).await;
    node.with(|p| p.order(vec![AllocOrder { desired: Desired::Stop, ..p.orders[0].clone() }]));
    let stopped_at = Instant::now();
    let end = node.end_of(0).await;
    assert_eq!(crate::common::code(&end), Some(137));
    assert!(stopped_at.elapsed().as_millis() >= 1000, "{:?}", stopped_at.elapsed());
    assert!(!is_alive(&pid));
}

#[tokio::test]
async fn the_time_limit_ends_a_command() {
    let mut node = TestNode::new().await;
    node.with(|p| {
        p.order(vec![AllocOrder {
            work: Work { timeout_s: 1, ..order(0, "sleep 1000").work },
            ..order(0, "sleep 1000")
        }])
    });
    node.start(&[]);
    let end = node.end_of(0).await;
    assert_eq!((end.client, end.cause), (ClientStatus::Failed, Some(EndCause::OverTime { limit_s: 1 })));
}

#[tokio::test]
async fn a_command_over_its_time_limit_has_failed_whatever_it_does_at_the_end() {
    let mut node = TestNode::new().await;
    let polite = "trap 'exit 0' TERM; echo $$ > pid; while :; do sleep 0.05; done";
    node.with(|p| {
        p.order(vec![AllocOrder { work: Work { timeout_s: 1, ..order(0, polite).work }, ..order(0, polite) }])
    });
    node.start(&[]);
    let end = node.end_of(0).await;
    assert_eq!((end.client, end.cause), (ClientStatus::Failed, Some(EndCause::OverTime { limit_s: 1 })));
}

#[tokio::test]
async fn the_memory_limit_kills_the_whole_tree() {
    let mut node = TestNode::new().await;
    // The memory grows in a child of the shell.
    let script = "(head -c 300000000 /dev/zero | tail -c 300000000 | (sleep 1000; cat)) ; echo not reached";
    node.with(|p| {
        p.order(vec![AllocOrder { needs: Needs { memory_mib: 50, ..order(0, script).needs }, ..order(0, script) }])
    });
    node.start(&[]);
    let end = node.end_of(0).await;
    assert_eq!((end.client, crate::common::code(&end)), (ClientStatus::Failed, Some(137)));
    let message = crate::common::cause(&end);
    assert!(message.starts_with("out of memory: ") && message.ends_with("may use 50 MiB"), "{message}");
}

#[tokio::test]
async fn processes_that_the_command_leaves_behind_are_killed() {
    let mut node = TestNode::new().await;
    // One child in the process group, and one daemon in a session of its own.
    let script = "sleep 1000 & echo $! > child; setsid sh -c 'echo $$ > daemon; exec sleep 1000' & \
                  while ! [ -s daemon ]; do sleep 0.05; done; exit 0";
    node.with(|p| p.order(vec![order(0, script)]));
    node.start(&[]);
    let (child, daemon) = (node.line_of(0, "child").await, node.line_of(0, "daemon").await);
    let end = node.end_of(0).await;
    assert_eq!(end.client, ClientStatus::Complete);
    assert!(!is_alive(&child) && !is_alive(&daemon));
}

#[tokio::test]
async fn a_command_that_cannot_be_started_says_why() {
    let mut node = TestNode::new().await;
    let nowhere =
        AllocOrder { work: Work { command: vec!["/no/such/program".into()], ..order(0, "").work }, ..order(0, "") };
    let bad_cache =
        AllocOrder { work: Work { caches: vec!["../../etc".into()], ..order(1, "true").work }, ..order(1, "true") };
    node.with(|p| p.order(vec![nowhere, bad_cache]));
    node.start(&[]);
    let end = node.end_of(0).await;
    assert_eq!(end.cause, Some(EndCause::NotFound { program: "/no/such/program".into() }));
    let end = node.end_of(1).await;
    assert_eq!((end.client, crate::common::code(&end)), (ClientStatus::Failed, None));
    assert!(crate::common::cause(&end).contains("cannot be the name of a cache"));
}

#[tokio::test]
async fn an_alloc_stopped_before_its_start_is_never_started() {
    let mut node = TestNode::new().await;
    node.with(|p| p.order(vec![AllocOrder { desired: Desired::Stop, ..order(0, "echo ran > ran") }]));
    node.start(&[]);
    let end = node.end_of(0).await;
    assert_eq!((end.client, crate::common::code(&end)), (ClientStatus::Failed, None));
    assert!(!node.alloc_dir(0).join("work/ran").exists());
}

#[tokio::test]
async fn a_killed_supervisor_leaves_nothing_running_and_its_alloc_is_lost() {
    let mut node = TestNode::new().await;
    node.with(|p| p.order(vec![order(0, "echo $PPID > supervisor; echo $$ > pid; sleep 1000")]));
    node.start(&[]);
    let (supervisor, pid) = (node.line_of(0, "supervisor").await, node.line_of(0, "pid").await);
    node.running(0).await;
    let supervisor = nix::unistd::Pid::from_raw(supervisor.parse().unwrap());
    nix::sys::signal::kill(supervisor, nix::sys::signal::Signal::SIGKILL).unwrap();
    let end = node.end_of(0).await;
    assert_eq!(end.client, ClientStatus::Lost);
    assert!(crate::common::cause(&end).contains("its supervisor was killed"));
    node.until("the command has ended", |_| (!is_alive(&pid)).then_some(())).await;
}

#[tokio::test]
async fn an_alloc_that_cannot_be_ended_is_told_with_the_heartbeats_as_long_as_it_runs() {
    let mut node = TestNode::new().await;
    node.with(|p| p.order(vec![order(0, "until test -e go; do sleep 0.05; done")]));
    node.start(&[]);
    node.running(0).await;
    let told = |p: &mut crate::common::ControlPlane| p.beats.last().and_then(|beat| beat.health.unended.clone());
    let marked_and_told = |n: &TestNode| {
        // As its supervisor does when what it killed does not die. The supervisor of this alloc takes it back twice a second.
        std::fs::write(n.alloc_dir(0).join("unended"), "").unwrap();
        n.with(told)
    };
    let name = node.until("it is told", marked_and_told).await;
    assert_eq!(name, format!("alloc {}", alloc_id(0)));
    std::fs::write(node.alloc_dir(0).join("work/go"), "").unwrap();
    assert_eq!(node.end_of(0).await.client, ClientStatus::Complete);
    node.until("it is told no more", |n| n.with(|p| told(p).is_none().then_some(()))).await;
}

#[tokio::test]
async fn ag_08_an_alloc_absent_from_the_list_is_stopped_and_not_reported() {
    let mut node = TestNode::new().await;
    node.with(|p| p.order(vec![order(0, "echo $$ > pid; exec sleep 1000")]));
    node.start(&[]);
    let pid = node.line_of(0, "pid").await;
    node.running(0).await;
    node.with(|p| p.order(vec![]));
    node.until("it is stopped", |_| (!is_alive(&pid)).then_some(())).await;
    node.beats(2).await;
    assert!(node.with(|p| p.ends(alloc_id(0)).is_empty()), "its end is not reported");
}

#[tokio::test]
async fn a_command_with_a_user_of_its_own_has_not_the_agents_rights() {
    if !nix::unistd::geteuid().is_root() {
        return eprintln!("skipped: only root can run a job as another user");
    }
    let mut node = TestNode::new().await;
    node.with(|p| p.order(vec![order(0, "id -u; touch mine && cat ../task.json")]));
    node.start(&["--job-uids", "1450000000-1450000009", "--allow-metadata"]);
    let end = node.end_of(0).await;
    let tail = end.run.log_tail.unwrap();
    assert!(tail.starts_with("1450000001\n"), "{tail}");
    assert!(tail.contains("Permission denied"), "orders contain secrets: {tail}");
    assert!(node.alloc_dir(0).join("work/mine").exists());
}

/// `nohup`, `&` in a script, and some service managers start a program with ignored signals.
#[tokio::test]
async fn a_command_ignores_no_signal_that_the_starter_of_the_agent_ignored() {
    let mut node = TestNode::new().await;
    node.prelude = "trap '' HUP INT QUIT USR1 TSTP ALRM".to_owned();
    node.with(|p| p.order(vec![order(0, "grep SigIgn /proc/self/status")]));
    node.start(&[]);
    let line = node.end_of(0).await.run.log_tail.unwrap();
    let mask = u64::from_str_radix(line.trim().trim_start_matches("SigIgn:\t"), 16).unwrap();
    // Only the C library sets the two signals after 31.
    assert_eq!(mask & 0x7fff_ffff, 0, "{line}");
}

/// A library that appends the user id of every process that loads it to a file.
const WITNESS: &str = r#"
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>
__attribute__((constructor)) static void loaded(void) {
    char line[32];
    int length = snprintf(line, sizeof line, "%d\n", (int)geteuid());
    int file = open(WITNESS_FILE, O_WRONLY | O_APPEND);
    if (file >= 0 && write(file, line, length) == length) close(file);
}
"#;

/// Builds [`WITNESS`]. An error if there is no C compiler.
fn build_witness(dir: &Path, written: &Path) -> Result<PathBuf, String> {
    let (source, library) = (dir.join("witness.c"), dir.join("witness.so"));
    std::fs::write(&source, WITNESS).unwrap();
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC"]).arg(format!("-DWITNESS_FILE=\"{}\"", written.display()));
    let built = cc.arg("-o").arg(&library).arg(&source).output().map_err(|e| format!("cc cannot be run: {e}"))?;
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    Ok(library)
}

#[tokio::test]
async fn a_jobs_environment_reaches_no_process_that_is_still_root() {
    let name = "a_jobs_environment_reaches_no_process_that_is_still_root";
    if !nix::unistd::geteuid().is_root() {
        return eprintln!("skipped {name}: only root can run a job as another user");
    }
    let shared_dir = tempfile::tempdir_in(crate::common::open_dir()).unwrap();
    let written = shared_dir.path().join("written");
    std::fs::write(&written, "").unwrap();
    for (path, mode) in [(shared_dir.path(), 0o755), (written.as_path(), 0o666)] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }
    let library = match build_witness(shared_dir.path(), &written) {
        Ok(library) => library,
        Err(why) => return eprintln!("skipped {name}: {why}"),
    };
    let mut node = TestNode::new().await;
    let mut job = order(0, "true");
    job.env.insert("LD_PRELOAD".into(), library.display().to_string());
    node.with(|p| p.order(vec![job]));
    node.start(&["--job-uids", "1450000010-1450000019", "--allow-metadata"]);
    assert_eq!(node.end_of(0).await.client, ClientStatus::Complete);
    let own = "1450000011";
    let loaded_by = std::fs::read_to_string(written).unwrap();
    assert!(loaded_by.lines().any(|uid| uid == own), "the job gets its variable: {loaded_by:?}");
    assert!(loaded_by.lines().all(|uid| uid == own), "no other process gets it: {loaded_by:?}");
}

#[tokio::test]
async fn a_user_of_its_own_gets_the_jobs_environment_and_no_standard_input() {
    if !nix::unistd::geteuid().is_root() {
        return eprintln!("skipped: only root can run a job as another user");
    }
    let mut node = TestNode::new().await;
    node.env.push(("AGENTS_SECRET".into(), "1".into()));
    let mut job =
        order(0, "env | cut -d= -f1 | grep -v -e ^NODEKEEPER_ -e ^PWD$ -e ^_$ | sort | tr '\\n' ' '; cat; id -G");
    job.env = [("GREETING", "hello"), ("LANG", "C"), ("LONG", "x".repeat(100_000).as_str())]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into();
    node.with(|p| p.order(vec![job]));
    node.start(&["--job-uids", "1450000020-1450000029", "--allow-metadata"]);
    let tail = node.end_of(0).await.run.log_tail.unwrap();
    let group = 1_450_000_021;
    assert_eq!(
        tail,
        format!("CUDA_VISIBLE_DEVICES GREETING HOME LANG LOGNAME LONG NVIDIA_VISIBLE_DEVICES PATH USER {group}\n")
    );
}

#[test]
fn without_the_jobs_environment_nothing_is_run_as_another_user() {
    let mut helper = Command::new(env!("CARGO_BIN_EXE_nodekeeper-agent"));
    helper.arg("as-user").stdin(std::process::Stdio::null());
    let output = helper.output().unwrap();
    assert_eq!(output.status.code(), Some(126));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "");
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(stderr.contains("standard input says nothing to run"), "{stderr}");
}
