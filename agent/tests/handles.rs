//! A real agent with handles, other work, interruptions and containers.

use crate::common::{NODE_ID, TestNode, alloc_id, is_alive, order};
use model::wire::AllocOrder;
use model::{ClientStatus, HandleKind, Work};
use std::os::unix::fs::PermissionsExt;

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
    let busy = |w: &TestNode| w.with(|p| p.beats.last().and_then(|b| b.busy));
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

/// A `docker` command whose containers are files in `$FAKE_DOCKER`. It runs the command of a container directly. `rm`
/// of a container named `hang…` does not end before the test does.
const FAKE_DOCKER: &str = r#"#!/bin/sh
echo "$*" >> "$FAKE_DOCKER/calls"
case "$*" in
*nodekeeper-agent-probe*reach*) cat "$FAKE_DOCKER/reached"; exit ;;
"image inspect"*) test -e "$FAKE_DOCKER/imported"; exit ;;
"import - "*) tar --list --file - > "$FAKE_DOCKER/imported"; exit ;;
esac
case "$1" in
ps) for f in "$FAKE_DOCKER"/c-*; do [ -e "$f" ] && printf '%s\t%s\n' "${f##*/c-}" "$(cat "$f")"; done; exit 0 ;;
rm) for last; do :; done
    case "$last" in hang*) while [ -e "$FAKE_DOCKER" ]; do sleep 0.2; done ;; esac
    rm -f "$FAKE_DOCKER/c-$last" ;;
stop) for last; do :; done; kill -TERM "$(cat "$FAKE_DOCKER/pid-$last")" ;;
run) shift
    while [ "$1" != image-1 ]; do
        case "$1" in --name) name=$2 ;; --label) label=${2#*=} ;; esac
        shift
    done
    shift
    echo "$label" > "$FAKE_DOCKER/c-$name"; echo $$ > "$FAKE_DOCKER/pid-$name"
    exec "$@" ;;
esac
"#;

fn add_fake_docker(node: &mut TestNode) -> std::path::PathBuf {
    let bin = node.dir.path().join("bin");
    std::fs::create_dir(&bin).unwrap();
    std::fs::write(bin.join("docker"), FAKE_DOCKER.replace("$FAKE_DOCKER", &bin.display().to_string())).unwrap();
    std::fs::set_permissions(bin.join("docker"), std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = std::env::var_os("PATH").unwrap().into_string().unwrap();
    node.env.push(("PATH".into(), format!("{}:{path}", bin.display())));
    bin
}

#[tokio::test]
async fn a_container_runs_stops_and_is_removed() {
    let mut node = TestNode::new().await;
    let bin = add_fake_docker(&mut node);
    let with_image = |o: AllocOrder| AllocOrder { work: Work { image: Some("image-1".into()), ..o.work }, ..o };
    let without_image = order(2, "true");
    node.with(|p| {
        p.order(vec![
            with_image(order(0, "echo in a container; exit 4")),
            with_image(order(1, "exec sleep 1000")),
            without_image,
        ])
    });
    node.start(&["--runtime", "docker"]);
    let end = node.end_of(0).await;
    assert_eq!((crate::common::code(&end), end.log_tail.as_deref()), (Some(4), Some("in a container\n")));
    assert!(crate::common::cause(&node.end_of(2).await).contains("names no image"));
    node.running(1).await;
    let running = bin.join(format!("c-{}", alloc_id(1)));
    node.until("the container runs", |_| running.exists().then_some(())).await;
    node.with(|p| p.orders[0].desired = model::Desired::Stop);
    node.with(|p| p.order(p.orders.clone()));
    let end = node.end_of(1).await;
    assert_eq!(end.client, ClientStatus::Failed);
    assert!(!running.exists(), "removed when it ended");
    let calls = std::fs::read_to_string(bin.join("calls")).unwrap();
    assert!(calls.contains(&format!("stop --time 20 {}", alloc_id(1))), "{calls}");
}

/// A container has another network than the machine. So the agent tries from a container whether jobs reach the metadata.
#[tokio::test]
async fn a_container_that_reaches_the_metadata_or_cannot_try_it_makes_the_node_refuse() {
    if !nix::unistd::geteuid().is_root() {
        return eprintln!("skipped: only root can give jobs user ids of their own");
    }
    let uids = format!("{}-{}", 1_400_000_000 + std::process::id(), 1_400_000_009 + std::process::id());
    for (reached, want) in [
        (r#"{"addresses":["169.254.169.254:80"]}"#, Some("jobs reach the instance metadata at 169.254.169.254")),
        ("", Some("cannot find out whether jobs reach the metadata")),
        (r#"{"addresses":[]}"#, None),
    ] {
        let mut node = TestNode::new().await;
        let bin = add_fake_docker(&mut node);
        std::fs::write(bin.join("reached"), reached).unwrap();
        node.start(&["--runtime", "docker", "--job-uids", &uids]);
        let beat = node.until("it is told", |n| n.with(|p| p.beats.first().cloned())).await;
        match want {
            Some(want) => assert!(beat.refuses.as_deref().is_some_and(|r| r.starts_with(want)), "{:?}", beat.refuses),
            None => assert_eq!(beat.refuses, None),
        }
        // The image has the agent's program only, and the container runs as a job's does.
        assert_eq!(std::fs::read_to_string(bin.join("imported")).unwrap(), "agent\n");
        let calls = std::fs::read_to_string(bin.join("calls")).unwrap();
        let user = uids.split('-').next().unwrap();
        let run = format!("run --rm --user {user}:{user} --cap-drop ALL --security-opt no-new-privileges");
        assert!(calls.lines().any(|call| call.starts_with(&run)), "{calls}");
    }
}

#[tokio::test]
async fn an_option_in_place_of_an_image_is_refused_and_docker_is_not_called() {
    let mut node = TestNode::new().await;
    let bin = add_fake_docker(&mut node);
    let images = ["--privileged", "--volume=/:/host", "image-1 --privileged"];
    let orders = images.iter().zip(0..).map(|(image, copy)| AllocOrder {
        work: Work { image: Some((*image).into()), ..order(copy, "true").work },
        ..order(copy, "true")
    });
    node.with(|p| p.order(orders.collect()));
    node.start(&["--runtime", "docker"]);
    for (image, copy) in images.iter().zip(0..) {
        let end = node.end_of(copy).await;
        assert_eq!((end.client, crate::common::code(&end)), (ClientStatus::Failed, None));
        let message = crate::common::cause(&end);
        assert!(message.contains("is not an image reference") && message.contains(image), "{message}");
    }
    let calls = std::fs::read_to_string(bin.join("calls")).unwrap_or_default();
    assert!(!calls.lines().any(|call| call.starts_with("run")), "{calls}");
}

#[tokio::test]
async fn sw_01_destroys_that_hang_do_not_delay_the_next_ones() {
    let mut node = TestNode::new().await;
    let bin = add_fake_docker(&mut node);
    for name in ["hang-1", "hang-2", "next-1", "next-2"] {
        std::fs::write(bin.join(format!("c-{name}")), format!("{NODE_ID}\n")).unwrap();
    }
    std::fs::write(bin.join("c-foreign"), "9-01JD0000000000000000000009\n").unwrap();
    node.start(&["--runtime", "docker", "--max-destroys", "2", "--destroy-timeout-s", "0.5"]);
    // An answer names at most two handles, and these two hang.
    node.with(|p| p.destroy = ["hang-1", "hang-2"].map(str::to_owned).into());
    let tried =
        |name: &str| std::fs::read_to_string(bin.join("calls")).is_ok_and(|c| c.contains(&format!("volumes {name}")));
    node.until("both are started", |_| (tried("hang-1") && tried("hang-2")).then_some(())).await;
    node.with(|p| p.destroy = ["next-1", "next-2"].map(str::to_owned).into());
    node.until("the next ones are destroyed", |_| {
        (!bin.join("c-next-1").exists() && !bin.join("c-next-2").exists()).then_some(())
    })
    .await;
    // The label of a container of another node was reported. An answer names the container only when that node is no more.
    assert!(bin.join("c-foreign").exists());
    node.with(|p| p.destroy = vec!["foreign".into()]);
    node.until("it is destroyed", |_| (!bin.join("c-foreign").exists()).then_some(())).await;
}
