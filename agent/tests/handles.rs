//! A real agent with handles, other work and interruptions.

use crate::common::{NODE_ID, TestNode, alloc_id, is_alive, order};
use model::wire::AllocOrder;
use model::{HandleKind, Work};

#[tokio::test]
async fn handles_are_reported_and_destroyed_when_named_but_not_while_an_alloc_uses_them() {
    let mut node = TestNode::new().await;
    let with_cache = |o: AllocOrder| AllocOrder { work: Work { caches: vec!["m2".into()], ..o.work }, ..o };
    node.with(|p| p.order(vec![order(0, "true"), with_cache(order(1, "echo $$ > pid; exec sleep 1000"))]));
    node.with(|p| p.destroy = [alloc_id(1).to_string(), "cache:m2".to_owned()].into());
    node.start(&[]);
    let pid = node.line_of(1, "pid").await;
    node.end_of(0).await;
    let listed = node
        .until("all are listed", |w| w.with(|p| p.handle_reports.iter().find(|r| r.handles.len() == 3).cloned()))
        .await;
    assert!(listed.complete);
    assert!(listed.handles.iter().all(|h| h.label.as_deref() == Some(NODE_ID)));
    assert_eq!(listed.handles.iter().filter(|h| h.kind == HandleKind::Volume).count(), 1);
    // The answers name handles that are in use, and do so more than once.
    let from = node.with(|p| p.handle_reports.len());
    node.until("more reports", |w| w.with(|p| p.handle_reports.len() >= from + 3).then_some(())).await;
    assert!(is_alive(&pid) && node.alloc_dir(1).exists() && node.data().join("caches/m2").exists());
    // An answer names a handle that is not in use.
    node.with(|p| p.destroy = vec![alloc_id(0).to_string()]);
    node.until("it is destroyed", |w| (!w.alloc_dir(0).exists()).then_some(())).await;
    node.until("the report without it", |w| {
        w.with(|p| p.handle_reports.last().is_some_and(|r| r.handles.len() == 2)).then_some(())
    })
    .await;
}

#[tokio::test]
async fn other_work_is_told_at_once() {
    let mut node = TestNode::new().await;
    node.with(|p| p.next_heartbeat_s = 3000.0);
    let flag = node.dir.path().join("busy");
    node.start(&["--busy-check", &format!("test -e {}", flag.display()), "--busy-check-every-s", "0.1"]);
    let busy = |w: &TestNode| w.with(|p| p.beats.last().map(|b| b.health.busy));
    node.until("not busy", |w| (busy(w) == Some(false)).then_some(())).await;
    std::fs::write(&flag, "").unwrap();
    node.until("busy", |w| (busy(w) == Some(true)).then_some(())).await;
}

#[tokio::test]
async fn an_interruption_is_told_at_once() {
    use axum::routing::{get, put};
    let imds = axum::Router::new()
        .route("/latest/api/token", put(|| async { "t" }))
        .route("/latest/meta-data/instance-id", get(|| async { "i-imds" }))
        .route("/latest/meta-data/local-ipv4", get(|| async { "10.1.2.3" }))
        .route(
            "/latest/meta-data/spot/instance-action",
            get(|| async { r#"{"action":"stop","time":"2017-09-18T08:22:00Z"}"# }),
        );
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, imds).await });
    let mut node = TestNode::new().await;
    node.with(|p| p.next_heartbeat_s = 3000.0);
    node.start_bare(&["--imds-url", &url]);
    let beat =
        node.until("it is told", |w| w.with(|p| p.beats.iter().find(|b| b.interrupt_at.is_some()).cloned())).await;
    assert_eq!(beat.interrupt_at.unwrap().as_ms(), 1_505_722_920_000);
    assert_eq!((beat.instance_id.as_str(), beat.address.as_deref()), ("i-imds", Some("10.1.2.3")));
}
