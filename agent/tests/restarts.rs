//! The agent is killed, ended, rebooted or wiped: what becomes of the work.

mod common;

use common::{World, alloc_id, is_alive, order};
use nodekeeper_agent::config::Runtime;
use nodekeeper_agent::task::{AllocDir, Started, Task};
use serde_json::json;
use shared::model::ClientStatus;
use std::time::Duration;

#[tokio::test]
async fn a_killed_agent_loses_no_running_alloc_and_its_end_comes_once() {
    let mut world = World::new().await;
    world.with(|p| {
        p.order(vec![order(0, "echo run >> runs; echo $$ > pid; while ! [ -e go ]; do sleep 0.05; done; exit 7")])
    });
    world.start(&[]);
    let pid = world.line_of(0, "pid").await;
    world.running(0).await;
    world.kill_agent();
    assert!(is_alive(&pid));
    world.start(&[]);
    world.beats(2).await;
    std::fs::write(world.alloc_dir(0).join("work/go"), "").unwrap();
    let end = world.end_of(0).await;
    assert_eq!((end.client, end.exit_code), (ClientStatus::Failed, Some(7)));
    world.with(|p| p.must_report = true);
    world.beats(3).await;
    world.with(|p| {
        assert_eq!(p.ends(alloc_id(0)).len(), 1);
        assert_eq!(p.incarnations, 1, "it went on as who it was");
    });
    assert_eq!(world.line_of(0, "runs").await, "run");
}

#[tokio::test]
async fn an_end_while_no_agent_runs_is_reported_by_the_next() {
    let mut world = World::new().await;
    world.with(|p| p.order(vec![order(0, "echo $$ > pid; while ! [ -e go ]; do sleep 0.05; done; exit 5")]));
    world.start(&[]);
    let pid = world.line_of(0, "pid").await;
    world.running(0).await;
    world.kill_agent();
    std::fs::write(world.alloc_dir(0).join("work/go"), "").unwrap();
    world.until("it ends", |_| (!is_alive(&pid)).then_some(())).await;
    world.start(&[]);
    assert_eq!(world.end_of(0).await.exit_code, Some(5));
}

#[tokio::test]
async fn an_agent_killed_at_any_time_starts_nothing_twice() {
    let mut world = World::new().await;
    let runs = world.dir.path().join("runs");
    let script = format!("echo run >> {}", runs.display());
    world.with(|p| p.order((0..20).map(|n| order(n, &script)).collect()));
    for wait_ms in [150, 250, 350, 450] {
        world.start(&[]);
        tokio::time::sleep(Duration::from_millis(wait_ms)).await;
        world.kill_agent();
    }
    world.start(&[]);
    for n in 0..20 {
        world.end_of(n).await;
    }
    assert_eq!(std::fs::read_to_string(runs).unwrap().lines().count(), 20);
}

#[tokio::test]
async fn an_orderly_end_leaves_allocs_running_unless_told_otherwise() {
    for stop_work in [false, true] {
        let mut world = World::new().await;
        world.with(|p| p.order(vec![order(0, "echo $$ > pid; exec sleep 1000")]));
        world.start(if stop_work { &["--stop-work-on-exit"] } else { &[] });
        let pid = world.line_of(0, "pid").await;
        world.running(0).await;
        world.term_agent();
        assert_eq!(world.agent_exit_code().await, Some(0));
        assert_eq!(is_alive(&pid), !stop_work);
    }
}

#[tokio::test]
async fn a_new_boot_registers_anew_and_does_not_list_what_ran() {
    let mut world = World::new().await;
    world.with(|p| p.order(vec![order(0, "echo $$ > pid; exec sleep 1000")]));
    world.start(&["--boot-id", "b-1"]);
    world.line_of(0, "pid").await;
    world.running(0).await;
    world.kill_agent();
    let reports = world.with(|p| p.reports.len());
    world.start(&["--boot-id", "b-2"]);
    let complete = world
        .until("a complete report", |w| w.with(|p| p.reports[reports..].iter().find(|r| r.complete).cloned()))
        .await;
    assert_eq!((complete.incarnation.as_str(), complete.allocs.len()), ("inc-2", 0));
    // The order still stands in the list, as running: it is not started again.
    world.beats(2).await;
    assert!(world.with(|p| p.ends(alloc_id(0)).is_empty()));
}

#[tokio::test]
async fn a_lost_state_file_registers_anew_and_keeps_what_runs() {
    let mut world = World::new().await;
    world.with(|p| p.order(vec![order(0, "echo $$ > pid; exec sleep 1000")]));
    world.start(&[]);
    let pid = world.line_of(0, "pid").await;
    world.running(0).await;
    world.kill_agent();
    std::fs::remove_file(world.data().join("state.json")).unwrap();
    let reports = world.with(|p| p.reports.len());
    world.start(&[]);
    let complete = world
        .until("a complete report", |w| w.with(|p| p.reports[reports..].iter().find(|r| r.complete).cloned()))
        .await;
    assert_eq!(complete.incarnation, "inc-2");
    assert_eq!(complete.allocs.iter().map(|a| a.client).collect::<Vec<_>>(), [ClientStatus::Running]);
    assert!(is_alive(&pid));
}

#[tokio::test]
async fn gone_stops_everything_and_then_runs_on_gone() {
    let mut world = World::new().await;
    let script = "trap 'echo term > termed; exit 0' TERM; echo $$ > pid; while :; do sleep 0.05; done";
    world.with(|p| {
        p.order(vec![order(0, script), order(1, "trap '' TERM; echo $$ > pid; while :; do sleep 0.1; done")])
    });
    world.with(|p| p.orders[1].kill_timeout_s = 1);
    let gone = world.dir.path().join("gone");
    // What still runs when it is called would be seen.
    let (first, second) = (world.alloc_dir(0).join("work/pid"), world.alloc_dir(1).join("work/pid"));
    let check = format!(
        "for f in {} {}; do kill -0 $(cat $f) && echo alive >> {gone}; done 2>/dev/null; echo called >> {gone}",
        first.display(),
        second.display(),
        gone = gone.display()
    );
    world.start(&["--on-gone", &check]);
    let pids = [world.line_of(0, "pid").await, world.line_of(1, "pid").await];
    world.with(|p| p.refuse = Some((410, json!({"error": "gone", "message": "this node is no more"}))));
    assert_eq!(world.agent_exit_code().await, Some(0));
    assert_eq!(std::fs::read_to_string(gone).unwrap(), "called\n");
    assert!(pids.iter().all(|pid| !is_alive(pid)));
    assert_eq!(world.line_of(0, "termed").await, "term");
}

#[tokio::test]
async fn hb_28_no_other_answer_stops_work() {
    let mut world = World::new().await;
    world.with(|p| p.order(vec![order(0, "echo $$ > pid; exec sleep 1000")]));
    world.start(&[]);
    let pid = world.line_of(0, "pid").await;
    world.running(0).await;
    let refusals = [
        (401, json!({"error": "unauthorized", "message": "m"})),
        (409, json!({"error": "foreign_instance", "message": "m"})),
        (500, json!({"error": "internal", "message": "m"})),
        (503, json!({"error": "busy", "message": "m"})),
        // Not ours: a proxy's page, or a body that does not fit its status.
        (410, json!("<html>")),
        (404, json!({"error": "gone", "message": "m"})),
    ];
    for refusal in refusals {
        let calls = world.with(|p| {
            p.refuse = Some(refusal.clone());
            p.calls
        });
        world.until("it is tried again", |w| w.with(|p| p.calls >= calls + 2).then_some(())).await;
        assert!(is_alive(&pid), "{refusal:?}");
        // Backs off for long after a foreign instance: begin afresh.
        world.with(|p| p.refuse = None);
        world.kill_agent();
        world.start(&[]);
        world.beats(1).await;
    }
    assert!(is_alive(&pid));
}

#[tokio::test]
async fn hb_26_and_27_silence_stops_work_where_asked_for_and_an_answer_in_time_prevents_it() {
    let mut world = World::new().await;
    world.with(|p| p.order(vec![order(0, "echo $$ > pid; echo run >> runs; exec sleep 1000")]));
    world.start(&["--stop-after-s", "2"]);
    let pid = world.line_of(0, "pid").await;
    world.running(0).await;
    // Answered all the time, for longer than that.
    tokio::time::sleep(Duration::from_millis(2500)).await;
    assert!(is_alive(&pid));
    world.with(|p| p.refuse = Some((503, json!({"error": "busy", "message": "m"}))));
    world.until("it is stopped", |_| (!is_alive(&pid)).then_some(())).await;
    world.with(|p| p.refuse = None);
    let end = world.end_of(0).await;
    assert!(end.message.unwrap().contains("no answer from the control plane"));
    assert_eq!(world.line_of(0, "runs").await, "run", "stopped once, not started again");
}

#[tokio::test]
async fn a_node_that_cannot_keep_what_it_is_told_is_silent_until_it_can() {
    let mut world = World::new().await;
    world.start(&[]);
    world.beats(2).await;
    // As a full disk: nothing replaces a directory that is not empty.
    let state = world.data().join("state.json");
    std::fs::remove_file(&state).unwrap();
    std::fs::create_dir_all(state.join("in the way")).unwrap();
    world.with(|p| p.order(vec![order(0, "echo run >> runs; exec sleep 1000")]));
    // One heartbeat more, whose answer cannot be kept, and perhaps one under way.
    let most = world.with(|p| p.beats.len()) + 2;
    let log = world.dir.path().join("agent.log");
    let tried = |_: &World| std::fs::read_to_string(&log).ok().filter(|l| l.contains("failures=4"));
    world.until("it has tried several times", tried).await;
    assert!(world.with(|p| p.beats.len()) <= most, "it seems well");
    std::fs::remove_dir_all(&state).unwrap();
    world.running(0).await;
    assert_eq!(world.line_of(0, "runs").await, "run");
}

#[tokio::test]
async fn mistakes_at_the_start_are_one_line() {
    let mut world = World::new().await;
    std::fs::write(world.dir.path().join("node.json"), "{}").unwrap();
    world.start(&[]);
    assert_eq!(world.agent_exit_code().await, Some(1));
    let log = std::fs::read_to_string(world.dir.path().join("agent.log")).unwrap();
    assert_eq!(log.lines().count(), 1, "{log}");
    world.start(&["--no-such-option"]);
    assert_eq!(world.agent_exit_code().await, Some(2));
}

#[tokio::test]
async fn of_several_supervisors_of_one_alloc_one_runs_it_and_none_after_it_was_called_off() {
    let root = tempfile::tempdir().unwrap();
    for (copy, called_off) in [(0, false), (1, true)] {
        let task = Task {
            node_id: common::NODE_ID.parse().unwrap(),
            order: order(copy, "echo run >> runs"),
            runtime: Runtime::Process,
            job_user: None,
            boot_id: "b-1".into(),
            caches: Vec::new(),
        };
        let dir = AllocDir::of(root.path(), alloc_id(copy));
        dir.create(&task).unwrap();
        if called_off {
            assert!(dir.claim(&Started { pid: 0, start_ticks: 0, boot_id: "b-1".into() }).unwrap());
        }
        let supervisor = || {
            let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_nodekeeper-agent"));
            command.arg("run-alloc").arg(dir.path()).spawn().unwrap()
        };
        let all: Vec<_> = (0..5).map(|_| supervisor()).collect();
        all.into_iter().for_each(|mut one| assert!(one.wait().unwrap().success()));
        let runs = std::fs::read_to_string(dir.work().join("runs")).unwrap_or_default();
        assert_eq!(runs.lines().count(), usize::from(!called_off));
    }
}
