//! Storing output in S3: with a real agent, and a stand-in for S3 that keeps the objects.

use crate::common::{TestNode, alloc_id, order};
use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::routing::put;
use model::files::Form;
use model::stored::{BOTH, END, MORE, OUT, STREAMS_HEADER, THEN_HEADER};
use model::wire::AllocOrder;
use model::{ClientStatus, Content};
use serde_json::json;
use sha2::Digest;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex};

/// The objects and the settings of the stand-in for S3.
#[derive(Clone, Default)]
pub(crate) struct Bucket(Arc<Mutex<Inside>>);

/// The body of an object, and the metadata `then` and `streams`.
type Object = (Vec<u8>, String, String);

#[derive(Default)]
pub(crate) struct Inside {
    objects: BTreeMap<String, Object>,
    /// The keys of all calls.
    pub(crate) calls: Vec<String>,
    /// This many calls are refused for a passing reason.
    busy: u32,
    /// Objects whose keys begin with this may not be stored.
    denied: Option<String>,
    /// Calls for objects whose keys begin with this get no answer.
    pub(crate) hangs: Option<String>,
}

impl Bucket {
    /// Serves at this address.
    pub(crate) async fn serve(&self, at: SocketAddr) -> SocketAddr {
        let listener = tokio::net::TcpListener::bind(at).await.unwrap();
        let at = listener.local_addr().unwrap();
        let router = Router::new().route("/logs/{*key}", put(call).get(read)).with_state(self.clone());
        tokio::spawn(async move { axum::serve(listener, router.layer(DefaultBodyLimit::disable())).await });
        at
    }

    pub(crate) fn with<T>(&self, look: impl FnOnce(&mut Inside) -> T) -> T {
        look(&mut self.0.lock().unwrap())
    }

    fn pieces(&self, copy: u32) -> Vec<Object> {
        let piece = |no: u32| self.with(|s3| s3.objects.get(&format!("{}/{no:06}.log", key(copy))).cloned());
        (0..).map_while(piece).collect()
    }

    /// The bytes of an output that are stored.
    fn beginning(&self, copy: u32) -> Vec<u8> {
        self.pieces(copy).into_iter().flat_map(|(bytes, ..)| bytes).collect()
    }

    pub(crate) fn content(&self, content: &Content) -> Vec<u8> {
        self.with(|s3| s3.objects[&format!("lab/files/{}", content.sha256())].0.clone())
    }

    pub(crate) fn object(&self, key: &str) -> Vec<u8> {
        self.with(|s3| s3.objects[key].0.clone())
    }

    pub(crate) fn put_content(&self, bytes: &[u8], form: Form) -> Content {
        let sha256 = model::auth::hex(&sha2::Sha256::digest(bytes));
        let object = (bytes.to_vec(), String::new(), String::new());
        self.with(|s3| s3.objects.insert(format!("lab/files/{sha256}"), object));
        Content::new(form, &sha256, bytes.len() as u64).unwrap()
    }

    /// The bytes of an output; `None` until it is stored completely.
    fn whole(&self, copy: u32) -> Option<Vec<u8>> {
        let is_whole = self.pieces(copy).last().is_some_and(|(_, then, _)| then == END);
        is_whole.then(|| self.beginning(copy))
    }
}

async fn read(State(bucket): State<Bucket>, Path(key): Path<String>) -> Result<Vec<u8>, StatusCode> {
    bucket.with(|s3| s3.objects.get(&key).map(|(bytes, ..)| bytes.clone())).ok_or(StatusCode::NOT_FOUND)
}

async fn call(State(bucket): State<Bucket>, Path(key): Path<String>, headers: HeaderMap, body: Bytes) -> StatusCode {
    let of = |name: &str| headers.get(name).map_or("", |value| value.to_str().unwrap()).to_owned();
    let signed = of("authorization");
    assert!(signed.contains("Credential=AKIDTEST/") && signed.contains("/eu-west-1/s3/aws4_request"), "{signed}");
    bucket.with(|s3| s3.calls.push(key.clone()));
    if bucket.with(|s3| s3.hangs.as_ref().is_some_and(|hangs| key.starts_with(hangs))) {
        std::future::pending::<()>().await;
    }
    let mut s3 = bucket.0.lock().unwrap();
    if s3.denied.as_ref().is_some_and(|denied| key.starts_with(denied)) {
        return StatusCode::FORBIDDEN;
    }
    if s3.busy > 0 {
        s3.busy -= 1;
        return StatusCode::SERVICE_UNAVAILABLE;
    }
    s3.objects.insert(key, (body.to_vec(), of(THEN_HEADER), of(STREAMS_HEADER)));
    StatusCode::OK
}

fn key(copy: u32) -> String {
    format!("lab/test/0-{copy}")
}

pub(crate) fn stored(copy: u32, script: &str) -> AllocOrder {
    AllocOrder { output_s3: Some(format!("s3://logs/{}", key(copy)).parse().unwrap()), ..order(copy, script) }
}

fn environment(at: SocketAddr) -> Vec<(String, String)> {
    let set = [
        ("AWS_ENDPOINT_URL_S3", format!("http://{at}")),
        ("AWS_ACCESS_KEY_ID", "AKIDTEST".into()),
        ("AWS_SECRET_ACCESS_KEY", "secret".into()),
        ("AWS_REGION", "eu-west-1".into()),
    ];
    set.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// A node whose agent finds S3 at this address.
pub(crate) async fn node(at: SocketAddr) -> TestNode {
    let mut node = TestNode::new().await;
    node.env = environment(at);
    node
}

pub(crate) fn any_port() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

fn numbers(to: u32) -> Vec<u8> {
    (1..=to).flat_map(|n| format!("{n}\n").into_bytes()).collect()
}

#[tokio::test]
async fn an_output_is_stored_whole_and_once_with_its_streams() {
    let bucket = Bucket::default();
    let mut node = node(bucket.serve(any_port()).await).await;
    bucket.with(|s3| s3.busy = 2);
    let both = "echo small; sleep 0.3; echo wrong >&2; sleep 0.3; echo end";
    node.with(|p| p.order(vec![stored(0, "seq 1 2500000"), stored(1, both), order(2, "echo nowhere")]));
    node.start(&[]);
    node.until("the large output is stored", |_| bucket.whole(0)).await;
    assert!(bucket.whole(0).unwrap() == numbers(2_500_000), "{}", bucket.whole(0).unwrap().len());
    // 19 MB are three pieces.
    let of = |copy| bucket.pieces(copy).into_iter().map(|(_, then, streams)| (then, streams)).collect::<Vec<_>>();
    let piece = |then: &str, streams: &str| (then.to_owned(), streams.to_owned());
    assert_eq!(of(0), [piece(MORE, OUT), piece(MORE, OUT), piece(END, OUT)]);
    assert_eq!(bucket.whole(1).unwrap(), b"small\nwrong\nend\n");
    assert_eq!(of(1), [piece(END, BOTH)]);
    let switches = bucket.with(|s3| s3.objects[&format!("{}/000000.switches", key(1))].0.clone());
    assert_eq!(switches, b"[6,12]");
    node.end_of(2).await;
    node.until("the disk says so", |w| {
        let note = std::fs::read_to_string(w.alloc_dir(0).join("stored")).ok()?;
        note.contains("true").then_some(())
    })
    .await;
    // Another agent does not store it again.
    bucket.with(|s3| s3.calls.clear());
    node.kill_agent();
    node.with(|p| p.order(vec![stored(3, "echo later")]));
    node.start(&[]);
    node.until("a later output is stored", |_| bucket.whole(3)).await;
    assert_eq!(bucket.with(|s3| s3.calls.clone()), [format!("{}/000000.log", key(3))]);
}

/// The command still runs when EC2 announces the end of the instance: see `interruption` in the tests of the metadata.
#[tokio::test]
async fn what_a_running_command_has_printed_is_stored_before_it_ends_and_the_rest_after() {
    let bucket = Bucket::default();
    let mut node = node(bucket.serve(any_port()).await).await;
    let script = "seq 1 1500000; touch printed; until [ -e go ]; do sleep 0.05; done; echo end";
    node.with(|p| p.order(vec![stored(0, script)]));
    node.start(&[]);
    node.until("it has printed", |w| w.alloc_dir(0).join("work/printed").exists().then_some(())).await;
    // The end of another alloc makes the loop look at once.
    node.with(|p| p.order(vec![stored(0, script), stored(1, "true")]));
    node.until("what there is is stored", |_| (bucket.beginning(0) == numbers(1_500_000)).then_some(())).await;
    assert_eq!(bucket.whole(0), None, "more may come");
    let on_disk = || std::fs::metadata(node.alloc_dir(0).join("output")).unwrap().blocks() * 512;
    node.until("the first piece takes up no room", |_| (on_disk() < 4 << 20).then_some(())).await;
    // A new agent goes on with the last piece. It does not store the first one again, although the note is gone.
    node.kill_agent();
    std::fs::remove_file(node.alloc_dir(0).join("stored")).unwrap();
    bucket.with(|s3| s3.calls.clear());
    std::fs::write(node.alloc_dir(0).join("work/go"), "").unwrap();
    node.start(&[]);
    let whole = node.until("the rest is stored", |_| bucket.whole(0)).await;
    assert!(whole == [numbers(1_500_000), b"end\n".to_vec()].concat(), "{}", whole.len());
    let first = format!("{}/000000.log", key(0));
    assert!(bucket.with(|s3| !s3.calls.contains(&first)));
}

#[tokio::test]
async fn what_is_followed_is_stored_each_second_and_nothing_else_is() {
    let bucket = Bucket::default();
    let mut node = node(bucket.serve(any_port()).await).await;
    let ticks = "while :; do echo tick; sleep 0.1; done";
    node.with(|p| p.order(vec![stored(0, ticks), stored(1, ticks)]));
    node.start(&[]);
    node.running(0).await;
    node.running(1).await;
    node.with(|p| p.follows = vec![alloc_id(0)]);
    let puts = |copy| {
        let first = format!("{}/000000.log", key(copy));
        bucket.with(|s3| s3.calls.iter().filter(|key| **key == first).count())
    };
    node.until("it is stored", |_| (puts(0) >= 2).then_some(())).await;
    let other = puts(1);
    node.until("it is stored again and again", |_| (puts(0) >= 10).then_some(())).await;
    assert!(puts(1) <= other + 3, "all outputs are stored each half minute only: {} after {other}", puts(1));
    node.with(|p| p.follows.clear());
    node.beats(3).await;
    let before = puts(0);
    tokio::time::sleep(std::time::Duration::from_millis(2500)).await;
    // The round of all outputs may fall into this time.
    assert!(puts(0) <= before + 1);
    // A new agent hears of it, too.
    node.kill_agent();
    node.with(|p| p.follows = vec![alloc_id(0)]);
    node.start(&[]);
    node.until("the new agent stores it", |_| (puts(0) >= before + 3).then_some(())).await;
}

#[tokio::test]
async fn an_output_that_s3_refuses_keeps_no_other_one_back() {
    let bucket = Bucket::default();
    let mut node = node(bucket.serve(any_port()).await).await;
    bucket.with(|s3| s3.denied = Some(key(0)));
    node.with(|p| p.order(vec![stored(0, "true"), stored(1, "echo larger")]));
    node.start(&[]);
    node.until("the other output is stored", |_| bucket.whole(1)).await;
    bucket.with(|s3| s3.denied = None);
    node.until("it is stored when it may be", |_| bucket.whole(0)).await;
}

#[tokio::test]
async fn while_s3_is_away_ends_are_reported_and_the_next_agent_stores_what_has_no_directory_any_more() {
    // No server listens at this address now.
    let at = std::net::TcpListener::bind(any_port()).unwrap().local_addr().unwrap();
    let mut node = node(at).await;
    node.with(|p| p.order(vec![stored(0, "seq 1 1500000"), stored(1, "echo small")]));
    node.start(&[]);
    assert_eq!(node.end_of(0).await.client, ClientStatus::Complete);
    node.end_of(1).await;
    node.with(|p| p.destroy = vec![alloc_id(0).to_string()]);
    node.until("it is destroyed", |w| (!w.alloc_dir(0).exists()).then_some(())).await;
    node.beats(3).await;
    node.kill_agent();
    let bucket = Bucket::default();
    bucket.serve(at).await;
    node.start(&[]);
    node.until("it is stored", |_| bucket.whole(0)).await;
    assert!(bucket.whole(0).unwrap() == numbers(1_500_000));
    // The large output has two pieces. It does not keep the small one waiting.
    assert_eq!(bucket.with(|s3| s3.calls[0].clone()), format!("{}/000000.log", key(1)));
    let (outputs, kept) = (node.data().join("outputs"), node.data().join("outputs").join(alloc_id(0).to_string()));
    node.until("it is kept no longer", |_| (!kept.exists()).then_some(())).await;
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(outputs).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o700, "jobs cannot read it");
}

#[tokio::test]
async fn a_node_that_is_gone_stores_what_its_jobs_printed_before_it_powers_off() {
    let bucket = Bucket::default();
    let mut node = node(bucket.serve(any_port()).await).await;
    node.with(|p| p.order(vec![stored(0, "echo before; touch printed; sleep 1000")]));
    node.start(&["--on-gone", "touch gone"]);
    node.until("it has printed", |w| w.alloc_dir(0).join("work/printed").exists().then_some(())).await;
    node.with(|p| p.refuse = Some((410, json!({"error": "gone", "message": "the life of this node is over"}))));
    assert_eq!(node.agent_exit_code().await, Some(0));
    assert_eq!(bucket.whole(0).as_deref(), Some(&b"before\n"[..]));
}

#[tokio::test]
async fn an_agent_that_is_asked_to_end_does_not_wait_for_s3() {
    let at = std::net::TcpListener::bind(any_port()).unwrap().local_addr().unwrap();
    let mut node = node(at).await;
    node.with(|p| p.order(vec![stored(0, "echo one")]));
    node.start(&[]);
    node.end_of(0).await;
    let began = std::time::Instant::now();
    node.term_agent();
    assert_eq!(node.agent_exit_code().await, Some(0));
    assert!(began.elapsed().as_secs() < 15, "{:?}", began.elapsed());
}
