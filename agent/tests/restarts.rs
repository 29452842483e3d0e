//! What happens to allocs when the agent is killed or ended, and when the machine reboots or loses its state.

use crate::common::{TestNode, alloc_id, copy_program, is_alive, order};
use model::ClientStatus;
use nodekeeper_agent::work::alloc_dir::{AllocDir, AllocTask, StartRecord};
use serde_json::json;
use std::time::Duration;

#[tokio::test]
async fn a_killed_agent_loses_no_running_alloc_and_its_end_is_reported_once() {
    let mut node = TestNode::new().await;
    node.with(|p| {
        p.order(vec![order(0, "echo run >> runs; echo $$ > pid; while ! [ -e go ]; do sleep 0.05; done; exit 7")])
    });
    node.start(&[]);
    let pid = node.line_of(0, "pid").await;
    node.running(0).await;
    node.kill_agent();
    assert!(is_alive(&pid));
    node.start(&[]);
    node.beats(2).await;
    std::fs::write(node.alloc_dir(0).join("work/go"), "").unwrap();
    let end = node.end_of(0).await;
    assert_eq!((end.client, crate::common::code(&end)), (ClientStatus::Failed, Some(7)));
    node.with(|p| p.must_report = true);
    node.beats(3).await;
    node.with(|p| {
        assert_eq!(p.ends(alloc_id(0)).len(), 1);
        assert_eq!(p.incarnations, 1, "it did not register again");
    });
    assert_eq!(node.line_of(0, "runs").await, "run");
}

/// An upgrade in place: the file has another program now, which does not understand the messages of this agent.
async fn another_program_in_its_place(args: &[&str]) {
    let mut node = TestNode::new().await;
    let program = node.dir.path().join("nodekeeper-agent");
    copy_program(env!("CARGO_BIN_EXE_nodekeeper-agent"), &program);
    node.program = Some(program.clone());
    let first = order(0, "echo $$ > pid; while ! [ -e go ]; do sleep 0.05; done");
    node.with(|p| p.order(vec![first.clone()]));
    node.start(args);
    node.line_of(0, "pid").await;
    let newer = node.dir.path().join("newer");
    std::fs::write(&newer, "#!/bin/sh\nexit 9\n").unwrap();
    std::fs::set_permissions(&newer, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::rename(&newer, &program).unwrap();
    node.with(|p| p.order(vec![first, order(1, "echo ran")]));
    assert_eq!(node.end_of(1).await.run.log_tail.as_deref(), Some("ran\n"));
    // The supervisor of the first alloc needs its helper at the end.
    std::fs::write(node.alloc_dir(0).join("work/go"), "").unwrap();
    assert_eq!(crate::common::code(&node.end_of(0).await), Some(0));
}

#[tokio::test]
async fn an_agent_whose_file_is_replaced_goes_on_with_its_own_version() {
    another_program_in_its_place(&[]).await;
    if nix::unistd::geteuid().is_root() {
        another_program_in_its_place(&["--job-uids", "1480000000-1480000009", "--allow-metadata"]).await;
    }
}

#[tokio::test]
async fn an_end_while_no_agent_runs_is_reported_by_the_next_agent() {
    let mut node = TestNode::new().await;
    node.with(|p| p.order(vec![order(0, "echo $$ > pid; while ! [ -e go ]; do sleep 0.05; done; exit 5")]));
    node.start(&[]);
    let pid = node.line_of(0, "pid").await;
    node.running(0).await;
    node.kill_agent();
    std::fs::write(node.alloc_dir(0).join("work/go"), "").unwrap();
    node.until("it ends", |_| (!is_alive(&pid)).then_some(())).await;
    node.start(&[]);
    assert_eq!(crate::common::code(&node.end_of(0).await), Some(5));
}

#[tokio::test]
async fn an_agent_killed_at_any_time_starts_nothing_twice() {
    let mut node = TestNode::new().await;
    let runs = node.dir.path().join("runs");
    let script = format!("echo run >> {}", runs.display());
    node.with(|p| p.order((0..20).map(|n| order(n, &script)).collect()));
    for wait_ms in [150, 250, 350, 450] {
        node.start(&[]);
        tokio::time::sleep(Duration::from_millis(wait_ms)).await;
        node.kill_agent();
    }
    node.start(&[]);
    for n in 0..20 {
        node.end_of(n).await;
    }
    assert_eq!(std::fs::read_to_string(runs).unwrap().lines().count(), 20);
}

#[tokio::test]
async fn after_term_allocs_keep_running_unless_the_option_stops_them() {
    for stop_work in [false, true] {
        let mut node = TestNode::new().await;
        node.with(|p| p.order(vec![order(0, "echo $$ > pid; exec sleep 1000")]));
        node.start(if stop_work { &["--stop-work-on-exit"] } else { &[] });
        let pid = node.line_of(0, "pid").await;
        node.running(0).await;
        node.term_agent();
        assert_eq!(node.agent_exit_code().await, Some(0));
        assert_eq!(is_alive(&pid), !stop_work);
    }
}

#[tokio::test]
async fn after_a_reboot_the_node_registers_anew_and_what_ran_is_lost() {
    let mut node = TestNode::new().await;
    let begins = node.dir.path().join("begins");
    node.with(|p| p.order(vec![order(0, &says_its_beginning(&begins))]));
    node.start(&["--boot-id", "b-1"]);
    node.running(0).await;
    let process = std::fs::read_to_string(&begins).unwrap();
    node.kill_agent();
    let reports = node.with(|p| p.reports.len());
    node.start(&["--boot-id", "b-2"]);
    let complete = node
        .until("a complete report", |w| w.with(|p| p.reports[reports..].iter().find(|r| r.complete).cloned()))
        .await;
    assert_eq!(complete.incarnation, "inc-2");
    assert!(is_alive(process.trim()), "a process with the pid of one from before the reboot is another one");
    let end = node.end_of(0).await;
    assert_eq!(end.client, ClientStatus::Lost);
    assert!(crate::common::cause(&end).contains("its node was rebooted"), "{end:?}");
    node.beats(2).await;
    assert_eq!(std::fs::read_to_string(&begins).unwrap(), process, "it began once");
}

#[tokio::test]
async fn without_its_state_file_the_node_registers_anew_and_keeps_running_allocs() {
    let mut node = TestNode::new().await;
    node.with(|p| p.order(vec![order(0, "echo $$ > pid; exec sleep 1000")]));
    node.start(&[]);
    let pid = node.line_of(0, "pid").await;
    node.running(0).await;
    node.kill_agent();
    std::fs::remove_file(node.data().join("state.json")).unwrap();
    let reports = node.with(|p| p.reports.len());
    node.start(&[]);
    let complete = node
        .until("a complete report", |w| w.with(|p| p.reports[reports..].iter().find(|r| r.complete).cloned()))
        .await;
    assert_eq!(complete.incarnation, "inc-2");
    assert_eq!(complete.allocs.iter().map(|a| a.client).collect::<Vec<_>>(), [ClientStatus::Running]);
    assert!(is_alive(&pid));
}

/// A command that notes each of its starts in a file outside of the directories of allocs.
fn says_its_beginning(begins: &std::path::Path) -> String {
    format!("echo $$ >> {}; exec sleep 1000", begins.display())
}

/// The first alloc ends as lost for this cause. Its command began once, and does not run any more.
async fn is_lost_and_began_once(node: &mut TestNode, begins: &std::path::Path, why: &str) {
    let end = node.end_of(0).await;
    assert_eq!(end.client, ClientStatus::Lost);
    assert!(crate::common::cause(&end).contains(why), "{end:?}");
    let pids = std::fs::read_to_string(begins).unwrap();
    assert_eq!(pids.lines().count(), 1, "it began once");
    node.until("nothing of it runs", |_| (!is_alive(pids.trim())).then_some(())).await;
}

#[tokio::test]
async fn an_alloc_whose_directory_is_gone_is_lost_and_not_started_beside_what_runs() {
    for is_new_agent in [false, true] {
        let mut node = TestNode::new().await;
        let begins = node.dir.path().join("begins");
        node.with(|p| p.order(vec![order(0, &says_its_beginning(&begins))]));
        node.start(&[]);
        node.running(0).await;
        if is_new_agent {
            node.kill_agent();
        }
        remove_tree::remove_tree(&node.alloc_dir(0)).unwrap();
        if is_new_agent {
            node.start(&[]);
        }
        is_lost_and_began_once(&mut node, &begins, "its directory is gone").await;
    }
}

#[tokio::test]
async fn a_file_of_an_alloc_that_is_garbage_starts_nothing_twice_and_ends_in_the_end() {
    let mut node = TestNode::new().await;
    let begins = node.dir.path().join("begins");
    node.with(|p| p.order(vec![order(0, &says_its_beginning(&begins))]));
    node.start(&[]);
    node.running(0).await;
    node.kill_agent();
    // The file no longer names the supervisor. The agent finds it, and the alloc goes on.
    std::fs::write(node.alloc_dir(0).join("started"), "").unwrap();
    node.start(&[]);
    node.beats(3).await;
    assert!(node.with(|p| p.ends(alloc_id(0)).is_empty()));
    // The exit record is garbage.
    node.kill_agent();
    std::fs::write(node.alloc_dir(0).join("exit.json"), "{").unwrap();
    node.start(&[]);
    is_lost_and_began_once(&mut node, &begins, "exit.json cannot be read").await;
}

#[tokio::test]
async fn gone_stops_everything_and_then_runs_on_gone() {
    let mut node = TestNode::new().await;
    let script = "trap 'echo term > termed; exit 0' TERM; echo $$ > pid; while :; do sleep 0.05; done";
    node.with(|p| {
        p.order(vec![order(0, script), order(1, "trap '' TERM; echo $$ > pid; while :; do sleep 0.1; done")])
    });
    node.with(|p| p.orders[1].failure_policy.kill_timeout_s = 1);
    let gone = node.dir.path().join("gone");
    // When called, this command writes down every command that still runs.
    let (first, second) = (node.alloc_dir(0).join("work/pid"), node.alloc_dir(1).join("work/pid"));
    let check = format!(
        "for f in {} {}; do kill -0 $(cat $f) && echo alive >> {gone}; done 2>/dev/null; echo called >> {gone}",
        first.display(),
        second.display(),
        gone = gone.display()
    );
    node.start(&["--on-gone", &check]);
    let pids = [node.line_of(0, "pid").await, node.line_of(1, "pid").await];
    node.with(|p| p.refuse = Some((410, json!({"error": "gone", "message": "this node is gone"}))));
    assert_eq!(node.agent_exit_code().await, Some(0));
    assert_eq!(std::fs::read_to_string(gone).unwrap(), "called\n");
    assert!(pids.iter().all(|pid| !is_alive(pid)));
    assert_eq!(node.line_of(0, "termed").await, "term");
}

#[tokio::test]
async fn hb_28_no_other_answer_stops_work() {
    let mut node = TestNode::new().await;
    node.with(|p| p.order(vec![order(0, "echo $$ > pid; exec sleep 1000")]));
    node.start(&[]);
    let pid = node.line_of(0, "pid").await;
    node.running(0).await;
    let refusals = [
        (401, json!({"error": "unauthorized", "message": "m"})),
        (409, json!({"error": "foreign_instance", "message": "m"})),
        (500, json!({"error": "internal", "message": "m"})),
        (503, json!({"error": "busy", "message": "m"})),
        // The control plane does not answer so: a proxy's page, and a body that does not fit its status.
        (410, json!("<html>")),
        (404, json!({"error": "gone", "message": "m"})),
    ];
    for refusal in refusals {
        let calls = node.with(|p| {
            p.refuse = Some(refusal.clone());
            p.calls
        });
        node.until("it is tried again", |w| w.with(|p| p.calls >= calls + 2).then_some(())).await;
        assert!(is_alive(&pid), "{refusal:?}");
        // After `foreign_instance` the agent waits long, so it is started again.
        node.with(|p| p.refuse = None);
        node.kill_agent();
        node.start(&[]);
        node.beats(1).await;
    }
    assert!(is_alive(&pid));
}

#[tokio::test]
async fn hb_26_and_27_with_the_option_silence_stops_work_and_an_answer_in_time_prevents_that() {
    let mut node = TestNode::new().await;
    node.with(|p| p.order(vec![order(0, "echo $$ > pid; echo run >> runs; exec sleep 1000")]));
    node.start(&["--stop-after-s", "2"]);
    let pid = node.line_of(0, "pid").await;
    node.running(0).await;
    // The control plane keeps answering for longer than the limit.
    tokio::time::sleep(Duration::from_millis(2500)).await;
    assert!(is_alive(&pid));
    node.with(|p| p.refuse = Some((503, json!({"error": "busy", "message": "m"}))));
    node.until("it is stopped", |_| (!is_alive(&pid)).then_some(())).await;
    node.with(|p| p.refuse = None);
    let end = node.end_of(0).await;
    assert_eq!(end.client, ClientStatus::Lost, "nobody ordered it");
    assert!(crate::common::cause(&end).contains("no answer from the control plane"));
    assert_eq!(node.line_of(0, "runs").await, "run", "stopped once, not started again");
}

#[tokio::test]
async fn a_node_that_cannot_save_its_orders_is_silent_until_it_can() {
    let mut node = TestNode::new().await;
    node.start(&[]);
    node.beats(2).await;
    // This has the effect of a full disk: a file cannot replace a directory that is not empty, and there is no spare file.
    let in_the_way = ["state.json", "state.spare"].map(|name| node.data().join(name));
    for file in &in_the_way {
        std::fs::remove_file(file).unwrap();
        std::fs::create_dir_all(file.join("in the way")).unwrap();
    }
    node.with(|p| p.order(vec![order(0, "echo run >> runs; exec sleep 1000")]));
    // One more heartbeat, whose answer cannot be saved, and perhaps one in flight.
    let most = node.with(|p| p.beats.len()) + 2;
    let log = node.dir.path().join("agent.log");
    let tried = |_: &TestNode| std::fs::read_to_string(&log).ok().filter(|l| l.contains("failures=4"));
    node.until("it has tried several times", tried).await;
    assert!(node.with(|p| p.beats.len()) <= most, "it must not look healthy");
    for file in &in_the_way {
        std::fs::remove_dir(file.join("in the way")).unwrap();
        std::fs::remove_dir(file).unwrap();
    }
    node.running(0).await;
    assert_eq!(node.line_of(0, "runs").await, "run");
}

#[tokio::test]
async fn a_mistake_in_the_configuration_is_one_line() {
    let mut node = TestNode::new().await;
    std::fs::write(node.dir.path().join("node.json"), "{}").unwrap();
    node.start(&[]);
    assert_eq!(node.agent_exit_code().await, Some(1));
    let log = std::fs::read_to_string(node.dir.path().join("agent.log")).unwrap();
    assert_eq!(log.lines().count(), 1, "{log}");
    node.start(&["--no-such-option"]);
    assert_eq!(node.agent_exit_code().await, Some(2));
}

#[tokio::test]
async fn of_several_supervisors_one_runs_the_alloc_and_none_if_it_is_never_to_be_started() {
    let root = tempfile::tempdir().unwrap();
    for (copy, never) in [(0, false), (1, true)] {
        let task = AllocTask {
            credentials: None,
            files: None,
            node_id: crate::common::NODE_ID.parse().unwrap(),
            order: order(copy, "echo run >> runs"),
            container: None,
            isolation: None,
            unisolated: true,
            gpus: Vec::new(),
            boot_id: "b-1".into(),
            caches: Vec::new(),
        };
        let dir = AllocDir::of(root.path(), alloc_id(copy));
        dir.create(&task).unwrap();
        if never {
            assert!(dir.claim(&StartRecord::never("b-1".into())).unwrap());
        }
        let supervisor = || {
            let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_nodekeeper-agent"));
            command.arg("run-alloc").arg(dir.path()).spawn().unwrap()
        };
        let all: Vec<_> = (0..5).map(|_| supervisor()).collect();
        all.into_iter().for_each(|mut one| assert!(one.wait().unwrap().success()));
        let runs = std::fs::read_to_string(dir.work().join("runs")).unwrap_or_default();
        assert_eq!(runs.lines().count(), usize::from(!never));
    }
}
