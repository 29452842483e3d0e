//! Real processes under a real agent: how allocs start, stop and end.

mod common;

use common::{World, alloc_id, is_alive, order};
use shared::model::{ClientStatus, Desired};
use shared::wire::{AllocOrder, MAX_LOG_TAIL_BYTES};
use std::time::Instant;

#[tokio::test]
async fn a_job_runs_and_its_end_and_output_are_reported() {
    let mut world = World::new().await;
    let mut hello = order(0, "echo $GREETING $NODEKEEPER_MEMBER $NODEKEEPER_HOSTS; pwd; exit 3");
    hello.env.insert("GREETING".into(), "hello".into());
    hello.caches = vec!["m2".into()];
    world.with(|p| p.order(vec![hello]));
    world.start(&[]);
    let end = world.end_of(0).await;
    assert_eq!((end.client, end.exit_code), (ClientStatus::Failed, Some(3)));
    let tail = end.log_tail.unwrap();
    assert!(tail.starts_with("hello 0 127.0.0.1\n"), "{tail}");
    assert!(tail.trim_end().ends_with("/work"), "{tail}");
    assert!(world.data().join("caches/m2").is_dir());
}

#[tokio::test]
async fn the_tail_of_a_long_output_is_sent() {
    let mut world = World::new().await;
    world.with(|p| p.order(vec![order(0, "seq 1 20000; echo the end")]));
    world.start(&[]);
    let end = world.end_of(0).await;
    assert_eq!(end.client, ClientStatus::Complete);
    let tail = end.log_tail.unwrap();
    assert!(tail.ends_with("20000\nthe end\n"));
    assert!((MAX_LOG_TAIL_BYTES - 4..=MAX_LOG_TAIL_BYTES).contains(&tail.len()), "{}", tail.len());
}

#[tokio::test]
async fn stop_is_term_first() {
    let mut world = World::new().await;
    let script = "trap 'echo bye; exit 0' TERM; echo $$ > pid; while :; do sleep 0.1; done";
    world.with(|p| p.order(vec![order(0, script)]));
    world.start(&[]);
    world.line_of(0, "pid").await;
    world.running(0).await;
    world.with(|p| p.order(vec![AllocOrder { desired: Desired::Stop, ..p.orders[0].clone() }]));
    let end = world.end_of(0).await;
    assert_eq!((end.exit_code, end.message.as_deref()), (Some(0), Some("stopped as ordered")));
    assert!(end.log_tail.unwrap().ends_with("bye\n"));
}

#[tokio::test]
async fn what_ignores_term_is_killed_after_its_kill_timeout() {
    let mut world = World::new().await;
    let stubborn =
        AllocOrder { kill_timeout_s: 1, ..order(0, "trap '' TERM; echo $$ > pid; while :; do sleep 0.1; done") };
    world.with(|p| p.order(vec![stubborn]));
    world.start(&[]);
    let pid = world.line_of(0, "pid").await;
    world.running(0).await;
    world.with(|p| p.order(vec![AllocOrder { desired: Desired::Stop, ..p.orders[0].clone() }]));
    let asked = Instant::now();
    let end = world.end_of(0).await;
    assert_eq!(end.exit_code, Some(137));
    assert!(asked.elapsed().as_millis() >= 1000, "{:?}", asked.elapsed());
    assert!(!is_alive(&pid));
}

#[tokio::test]
async fn the_time_limit_ends_it() {
    let mut world = World::new().await;
    world.with(|p| p.order(vec![AllocOrder { timeout_s: 1, ..order(0, "sleep 1000") }]));
    world.start(&[]);
    let end = world.end_of(0).await;
    assert_eq!(end.exit_code, Some(143));
    assert_eq!(end.message.as_deref(), Some("ran longer than its time limit of 1 s"));
}

#[tokio::test]
async fn the_memory_limit_kills_the_whole_tree() {
    let mut world = World::new().await;
    // The shell's child is what grows.
    let script = "(head -c 300000000 /dev/zero | tail -c 300000000 | (sleep 1000; cat)) ; echo not reached";
    world.with(|p| p.order(vec![AllocOrder { memory_mib: 50, ..order(0, script) }]));
    world.start(&[]);
    let end = world.end_of(0).await;
    assert_eq!((end.client, end.exit_code), (ClientStatus::Failed, Some(137)));
    let message = end.message.unwrap();
    assert!(message.ends_with("may use 50 MiB"), "{message}");
}

#[tokio::test]
async fn what_the_command_leaves_behind_is_killed() {
    let mut world = World::new().await;
    // One child in the group, one daemon in a session of its own.
    let script = "sleep 1000 & echo $! > child; setsid sh -c 'echo $$ > daemon; exec sleep 1000' & \
                  while ! [ -s daemon ]; do sleep 0.05; done; exit 0";
    world.with(|p| p.order(vec![order(0, script)]));
    world.start(&[]);
    let (child, daemon) = (world.line_of(0, "child").await, world.line_of(0, "daemon").await);
    let end = world.end_of(0).await;
    assert_eq!(end.client, ClientStatus::Complete);
    assert!(!is_alive(&child) && !is_alive(&daemon));
}

#[tokio::test]
async fn a_command_that_cannot_be_started_says_why() {
    let mut world = World::new().await;
    let nowhere = AllocOrder { command: vec!["/no/such/program".into()], ..order(0, "") };
    let bad_cache = AllocOrder { caches: vec!["../../etc".into()], ..order(1, "true") };
    world.with(|p| p.order(vec![nowhere, bad_cache]));
    world.start(&[]);
    let end = world.end_of(0).await;
    assert_eq!(end.exit_code, Some(127));
    assert!(end.message.unwrap().contains("/no/such/program"));
    let end = world.end_of(1).await;
    assert_eq!((end.client, end.exit_code), (ClientStatus::Failed, None));
    assert!(end.message.unwrap().contains("cannot be the name of a cache"));
}

#[tokio::test]
async fn stopped_before_it_was_started_is_never_started() {
    let mut world = World::new().await;
    world.with(|p| p.order(vec![AllocOrder { desired: Desired::Stop, ..order(0, "echo ran > ran") }]));
    world.start(&[]);
    let end = world.end_of(0).await;
    assert_eq!((end.client, end.exit_code), (ClientStatus::Failed, None));
    assert!(!world.alloc_dir(0).join("work/ran").exists());
}

#[tokio::test]
async fn a_killed_supervisor_leaves_nothing_running_and_its_alloc_failed() {
    let mut world = World::new().await;
    world.with(|p| p.order(vec![order(0, "echo $PPID > supervisor; echo $$ > pid; sleep 1000")]));
    world.start(&[]);
    let (supervisor, pid) = (world.line_of(0, "supervisor").await, world.line_of(0, "pid").await);
    world.running(0).await;
    let supervisor = nix::unistd::Pid::from_raw(supervisor.parse().unwrap());
    nix::sys::signal::kill(supervisor, nix::sys::signal::Signal::SIGKILL).unwrap();
    let end = world.end_of(0).await;
    assert_eq!(end.client, ClientStatus::Failed);
    assert!(end.message.unwrap().contains("its supervisor was killed"));
    world.until("the command is dead", |_| (!is_alive(&pid)).then_some(())).await;
}

#[tokio::test]
async fn ag_08_an_alloc_absent_from_the_list_is_destroyed_here() {
    let mut world = World::new().await;
    world.with(|p| p.order(vec![order(0, "echo $$ > pid; exec sleep 1000")]));
    world.start(&[]);
    let pid = world.line_of(0, "pid").await;
    world.running(0).await;
    world.with(|p| p.order(vec![]));
    world.until("it is stopped", |_| (!is_alive(&pid)).then_some(())).await;
    world.beats(2).await;
    assert!(world.with(|p| p.ends(alloc_id(0)).is_empty()), "its end is nobody's business any more");
}

#[tokio::test]
async fn a_job_user_runs_the_command_with_no_rights_of_ours() {
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    let mut world = World::new().await;
    world.with(|p| p.order(vec![order(0, "id -un; id -gn; echo $HOME; touch mine && cat ../task.json")]));
    world.start(&["--job-user", "nobody"]);
    let end = world.end_of(0).await;
    let tail = end.log_tail.unwrap();
    assert!(tail.starts_with("nobody\nnogroup\n/nonexistent\n"), "{tail}");
    assert!(tail.contains("Permission denied"), "the orders carry secrets: {tail}");
    assert!(world.alloc_dir(0).join("work/mine").exists());
}
