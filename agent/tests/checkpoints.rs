//! The folder that a job keeps: each try begins with what an earlier one left there.

use crate::common::{TestNode, alloc_id};
use crate::uploads::{Bucket, any_port, node, stored};
use axum::Router;
use axum::http::StatusCode;
use axum::routing::{get, put};
use model::wire::{AllocOrder, AllocUpdate};
use model::{Checkpoint, ClientStatus, Desired, Source, Work};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Counts one step after the other, and one more when it is asked to stop.
const STEPS: &str = "n=$(cat ckpt/n || echo 0); echo $n > began
    trap 'echo $((n + 100)) > ckpt/n; exit 75' TERM
    while :; do n=$((n + 1)); echo $n > ckpt/.n; mv ckpt/.n ckpt/n; touch stepped; sleep 0.2; done";

fn keeps(copy: u32, script: &str, from: Option<&Checkpoint>) -> AllocOrder {
    let order = stored(copy, script);
    AllocOrder { work: Work { keep: Some("ckpt".into()), checkpoint: from.cloned(), ..order.work }, ..order }
}

/// The number in a checkpoint as it is stored now: the text of the only file of the archive.
fn number(bucket: &Bucket, of: &Checkpoint) -> u32 {
    let dir = tempfile::tempdir().unwrap();
    let AllocOrder { output_s3, .. } = stored(0, "");
    std::fs::write(dir.path().join("a"), bucket.object(of.stored_at(&output_s3.unwrap()).key())).unwrap();
    let text = std::process::Command::new("tar").args(["-xOf", "a"]).current_dir(dir.path()).output().unwrap();
    String::from_utf8(text.stdout).unwrap().trim().parse().unwrap()
}

/// The newest checkpoint of an alloc that runs.
fn reported(node: &TestNode, copy: u32) -> Option<Checkpoint> {
    let updates = |updates: &[AllocUpdate]| {
        updates
            .iter()
            .rev()
            .find(|update| update.alloc_id == alloc_id(copy))
            .and_then(|update| update.run.checkpoint.clone())
    };
    node.with(|p| p.reports.iter().rev().find_map(|report| updates(&report.allocs)))
}

async fn stepped(node: &TestNode, copy: u32) {
    node.until("it has made a step", |w| w.alloc_dir(copy).join("work/stepped").exists().then_some(())).await;
}

/// Stops the alloc after a step. Returns its checkpoint.
async fn stopped(node: &TestNode, order: AllocOrder) -> Option<Checkpoint> {
    let copy = order.alloc_id.copy;
    stepped(node, copy).await;
    node.with(|p| p.order(vec![AllocOrder { desired: Desired::Stop, ..order }]));
    node.end_of(copy).await.run.checkpoint
}

#[tokio::test]
async fn a_try_begins_with_what_an_earlier_one_left_however_that_ended() {
    let bucket = Bucket::default();
    let mut node = node(bucket.serve(any_port()).await).await;
    let failed = keeps(0, "ls -A ckpt; echo 7 > ckpt/n; exit 3", None);
    node.with(|p| p.order(vec![failed]));
    node.start(&[]);
    let first = node.end_of(0).await.run.checkpoint.unwrap();
    assert_eq!(number(&bucket, &first), 7);
    let second = keeps(1, STEPS, Some(&first));
    node.with(|p| p.order(vec![second.clone()]));
    let second = stopped(&node, second).await.unwrap();
    assert_eq!(node.line_of(1, "began").await, "7");
    assert!(number(&bucket, &second) > 107, "after the signal, at its end");
    // What it never touched stays as it was.
    node.with(|p| p.order(vec![keeps(2, "cat ckpt/n > seen", Some(&second))]));
    let third = node.end_of(2).await.run.checkpoint;
    assert_eq!((node.line_of(2, "seen").await, third), (number(&bucket, &second).to_string(), None));
    // Not even its supervisor survives.
    node.with(|p| p.order(vec![keeps(3, "echo 9 > ckpt/n; echo $PPID > supervisor; sleep 1000", None)]));
    let supervisor = node.line_of(3, "supervisor").await.parse().unwrap();
    node.running(3).await;
    kill(Pid::from_raw(supervisor), Signal::SIGKILL).unwrap();
    let end = node.end_of(3).await;
    assert_eq!((end.client, number(&bucket, &end.run.checkpoint.unwrap())), (ClientStatus::Lost, 9));
    // Nothing survives a reboot but the disk.
    node.with(|p| p.order(vec![keeps(4, "echo 10 > ckpt/n; echo $PPID > supervisor; sleep 1000", None)]));
    let supervisor = node.line_of(4, "supervisor").await.parse().unwrap();
    node.running(4).await;
    node.kill_agent();
    kill(Pid::from_raw(supervisor), Signal::SIGKILL).unwrap();
    node.start(&["--boot-id", "b-2"]);
    let end = node.end_of(4).await;
    assert_eq!((end.client, number(&bucket, &end.run.checkpoint.unwrap())), (ClientStatus::Lost, 10));
}

#[tokio::test]
async fn a_checkpoint_takes_the_place_of_an_input_and_a_folder_that_is_gone_changes_nothing() {
    let bucket = Bucket::default();
    let mut node = node(bucket.serve(any_port()).await).await;
    node.with(|p| p.order(vec![keeps(0, "echo 1 > ckpt/a", None)]));
    node.start(&[]);
    let first = node.end_of(0).await.run.checkpoint.unwrap();
    let mut order = keeps(1, "find ckpt -type f > seen; rm -r ckpt", Some(&first));
    let seed = bucket.put_content(b"seed", model::files::Form::File);
    order.work.inputs.insert("ckpt/seed".into(), Source::Content(seed));
    node.with(|p| p.order(vec![order]));
    let second = node.end_of(1).await.run.checkpoint;
    assert_eq!((node.line_of(1, "seen").await.as_str(), second), ("ckpt/a", None));
}

#[tokio::test]
async fn no_newer_checkpoint_is_stored_before_the_control_plane_knows_the_one_before() {
    let bucket = Bucket::default();
    let mut node = node(bucket.serve(any_port()).await).await;
    let mut often = keeps(0, STEPS, None);
    often.work.keep_every_s = 1;
    node.with(|p| {
        p.takes_nothing = true;
        p.order(vec![often]);
    });
    node.start(&[]);
    let first = node.until("it has a checkpoint", |w| reported(w, 0)).await;
    let before = number(&bucket, &first);
    tokio::time::sleep(Duration::from_secs(4)).await;
    node.beats(2).await;
    assert_eq!((reported(&node, 0).as_ref(), number(&bucket, &first)), (Some(&first), before), "it is the only one");
    node.with(|p| p.takes_nothing = false);
    let second = node.until("now it has a newer one", |w| reported(w, 0).filter(|newest| *newest != first)).await;
    assert!(second.place != first.place && number(&bucket, &second) > before);
}

#[tokio::test]
async fn nightly_a_stop_does_not_wait_longer_for_a_checkpoint_than_ec2_does() {
    let bucket = Bucket::default();
    let mut node = node(bucket.serve(any_port()).await).await;
    let order = keeps(0, STEPS, None);
    node.with(|p| p.order(vec![order.clone()]));
    node.start(&[]);
    stepped(&node, 0).await;
    bucket.with(|s3| s3.hangs = Some("lab/files".into()));
    node.with(|p| p.order(vec![AllocOrder { desired: Desired::Stop, ..order }]));
    tokio::time::sleep(Duration::from_secs(110)).await;
    assert!(node.with(|p| p.ends(alloc_id(0)).is_empty()), "it waits for its checkpoint");
    assert_eq!(node.end_of(0).await.run.checkpoint, None);
}

#[tokio::test]
async fn a_running_command_has_checkpoints_as_often_as_it_wants_and_when_its_node_goes() {
    let (bucket, announced) = (Bucket::default(), Arc::new(AtomicBool::new(false)));
    let is_announced = Arc::clone(&announced);
    let action = get(move || async move {
        let body = r#"{"action":"terminate","time":"2017-09-18T08:22:00Z"}"#;
        if is_announced.load(Ordering::Relaxed) { (StatusCode::OK, body) } else { (StatusCode::NOT_FOUND, "") }
    });
    let imds = Router::new()
        .route("/latest/api/token", put(|| async { "t" }))
        .route("/latest/meta-data/instance-id", get(|| async { "i-imds" }))
        .route("/latest/meta-data/local-ipv4", get(|| async { "127.0.0.1" }))
        .route("/latest/meta-data/spot/instance-action", action);
    let listener = tokio::net::TcpListener::bind(any_port()).await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, imds).await });
    let mut node = node(bucket.serve(any_port()).await).await;
    let mut often = keeps(1, STEPS, None);
    often.work.keep_every_s = 1;
    node.with(|p| p.order(vec![keeps(0, STEPS, None), often]));
    node.start_bare(&["--imds-url", &url]);
    stepped(&node, 0).await;
    let newest = |w: &TestNode| reported(w, 1).map(|newest| number(&bucket, &newest));
    let first = node.until("the one that wants it has one", newest).await;
    node.until("and newer ones", |w| newest(w).filter(|newer| *newer > first + 10)).await;
    let places =
        bucket.with(|s3| s3.calls.iter().filter(|key| key.contains("/0-1-")).cloned().collect::<BTreeSet<_>>());
    assert_eq!(places.len(), 2, "in turn: {places:?}");
    assert_eq!(reported(&node, 0), None, "the other one does not");
    announced.store(true, Ordering::Relaxed);
    node.until("now it does", |w| reported(w, 0)).await;
    assert!(node.with(|p| p.ends(alloc_id(0)).is_empty()), "it runs");
}
