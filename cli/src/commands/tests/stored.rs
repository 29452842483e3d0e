//! Outputs that nodes have stored in S3, as `logs` and `job` show them.

use super::output::{FakeNode, ended, long, readers, tail_of};
use super::*;
use aws_credential_types::provider::SharedCredentialsProvider;
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Path, State};
use axum::http::HeaderMap;
use axum::response::Response;
use axum::routing::get;
use futures::StreamExt;
use std::time::{Duration, SystemTime};

/// S3 as an operator sees it, with the bucket `logs`.
#[derive(Clone, Default)]
pub(super) struct FakeS3(Arc<Mutex<Objects>>);

#[derive(Default)]
struct Objects {
    objects: BTreeMap<String, Vec<u8>>,
    /// The range of each call; empty for all of an object.
    asked: Vec<String>,
    /// How many of the next answers break off in their middle.
    breaks: u32,
    /// How many of the next calls are refused for a passing reason.
    busy: u32,
    denies: bool,
}

/// A client of the S3 at this URL.
fn client(url: &str) -> s3::S3 {
    let config = aws_config::SdkConfig::builder()
        .region(aws_config::Region::new("eu-west-1"))
        .credentials_provider(SharedCredentialsProvider::new(Credentials::new("AKID", "secret", None, None, "test")))
        .endpoint_url(url)
        .build();
    crate::aws::s3(&config, None, || SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000)).unwrap()
}

/// S3 of a cluster that stores nothing.
pub(super) fn nothing() -> s3::S3 {
    client("http://127.0.0.1:9")
}

impl FakeS3 {
    /// Serves the objects.
    pub(super) async fn serve(&self) -> s3::S3 {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let router = Router::new().route("/logs/{*key}", get(object)).with_state(self.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        client(&url)
    }

    pub(super) fn put(&self, key: &str, bytes: &[u8]) {
        self.0.lock().unwrap().objects.insert(key.to_owned(), bytes.to_vec());
    }

    pub(super) fn asked(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap().asked)
    }
}

/// Answers as S3 does.
async fn object(State(s3): State<FakeS3>, Path(key): Path<String>, headers: HeaderMap) -> Response {
    let mut s3 = s3.0.lock().unwrap();
    let range = headers.get("range").map_or("", |range| range.to_str().unwrap()).to_owned();
    s3.asked.push(range.clone());
    let refused = |status: u16, code: &str| {
        let body = format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>m</Message></Error>");
        Response::builder().status(status).body(Body::from(body)).unwrap()
    };
    if s3.denies {
        return refused(403, "AccessDenied");
    }
    if s3.busy > 0 {
        s3.busy -= 1;
        return refused(503, "SlowDown");
    }
    let Some(all) = s3.objects.get(&key).cloned() else { return refused(404, "NoSuchKey") };
    let from = match range.strip_prefix("bytes=").and_then(|range| range.split_once('-')) {
        None => 0,
        Some(("", last)) => all.len().saturating_sub(last.parse().unwrap()),
        Some((from, _)) => from.parse().unwrap(),
    };
    if !range.is_empty() && from >= all.len() {
        return refused(416, "InvalidRange");
    }
    let mut part = all[from..].to_vec();
    let response = Response::builder().status(if range.is_empty() { 200 } else { 206 });
    let response = response.header("content-range", format!("bytes {from}-{}/{}", all.len() - 1, all.len()));
    let response = response.header("content-length", part.len());
    if s3.breaks == 0 {
        return response.body(Body::from(part)).unwrap();
    }
    s3.breaks -= 1;
    part.truncate(part.len() / 2);
    let broken = async {
        // What was written so far is sent while the body has nothing.
        tokio::task::yield_now().await;
        Err(std::io::Error::other("broken"))
    };
    let pieces = futures::stream::iter([Ok(Bytes::from(part))]).chain(futures::stream::once(broken));
    response.body(Body::from_stream(pieces)).unwrap()
}

const KEY: &str = "lab/1/0-0.log";

/// A world with one job that has ended with this output, and is to be stored. Its node is there, and does not answer.
async fn to_be_stored(output: &str) -> (World, FakeS3) {
    let (mut world, alloc) = ended(output).await;
    let alloc = world.store().alloc(alloc.id()).await.unwrap().unwrap();
    let place = Alloc { output_s3: Some(format!("s3://logs/{KEY}").parse().unwrap()), ..alloc.clone() };
    world.store().write(Some(&alloc), &place, Vec::new()).await.unwrap();
    let s3 = FakeS3::default();
    world.cluster.outputs = s3.serve().await;
    world.tick = Span::from_s(60);
    (world, s3)
}

#[tokio::test]
async fn a_stored_output_needs_no_node() {
    let (world, s3) = to_be_stored(&long()).await;
    s3.put(KEY, long().as_bytes());
    let (said, changed) = world.changes(&["logs", &id(1)]).await;
    assert!(said.out == long() && changed.is_empty(), "{} {}", said.out.len(), said.err);
    assert_eq!((said.err.lines().count(), s3.asked()), (1, vec![String::new()]), "{}", said.err);
    let followed = world.run(&["logs", "-f", &id(1)]).await;
    assert!(followed.out == long() && followed.err.ends_with(" complete\n"), "{}", followed.err);
    // Only the end of the object is read for its last lines.
    s3.asked();
    let last = world.run(&["logs", &id(1), "--tail", "2"]).await;
    assert_eq!((last.out.as_str(), s3.asked()), ("line 19998\nline 19999\n", vec!["bytes=-66336".to_owned()]));
    let all = world.run(&["logs", &id(1), "-n", "30000"]).await;
    assert!(all.out == long(), "{}", all.err);
    assert_eq!(world.run(&["logs", &id(1), "--json"]).await.json()[0]["output_s3"], format!("s3://logs/{KEY}"));
    assert!(world.run(&["job", &id(1)]).await.done().contains(&format!("s3://logs/{KEY}\n")));
    assert_eq!(readers(&world).await, 0);
}

#[tokio::test]
async fn a_connection_that_breaks_is_replaced_where_it_broke_and_not_for_ever() {
    let (world, s3) = to_be_stored(&long()).await;
    s3.put(KEY, long().as_bytes());
    s3.0.lock().unwrap().breaks = 2;
    let said = world.run(&["logs", &id(1)]).await;
    assert!(said.out == long(), "{} {}", said.out.len(), said.err);
    let (all, asked) = (long().len(), s3.asked());
    assert_eq!(
        asked,
        [String::new(), format!("bytes={}-", all / 2), format!("bytes={}-", all / 2 + all.div_ceil(2) / 2)]
    );
    // Also where there was no answer yet.
    s3.0.lock().unwrap().busy = 2;
    let said = world.run(&["logs", &id(1)]).await;
    assert!(said.out == long(), "{} {}", said.out.len(), said.err);
    s3.0.lock().unwrap().breaks = 9;
    let said = world.run(&["logs", &id(1)]).await;
    assert!(long().starts_with(&said.out) && said.out.len() > all / 2, "{}", said.out.len());
    assert!(said.err.contains(&format!("after byte {} is missing: ", said.out.len())), "{}", said.err);
}

#[tokio::test]
async fn an_output_that_is_not_stored_yet_comes_from_its_node_or_is_told_to_be_absent() {
    let (mut world, s3) = to_be_stored(&long()).await;
    world.tick = Span::ZERO;
    let said = FakeNode::ended(&world, &long()).answering(world.run(&["logs", &id(1)])).await;
    assert!(said.out == long() && !said.err.contains("s3://"), "{}", said.err);
    world.tick = Span::from_s(60);
    let said = world.run(&["logs", &id(1)]).await;
    assert!(
        said.out == tail_of(&long()) && said.err.contains(&format!("s3://logs/{KEY} is not there: ")),
        "{}",
        said.err
    );
    s3.0.lock().unwrap().denies = true;
    let said = world.run(&["logs", &id(1)]).await;
    assert!(said.out == tail_of(&long()) && said.err.contains("your permissions do not allow it"), "{}", said.err);
    world.cluster.outputs = nothing();
    let said = world.run(&["logs", &id(1)]).await;
    assert!(said.out == tail_of(&long()) && said.err.contains("cannot be read: no usable answer"), "{}", said.err);
}

/// The node goes away after it has sent a part, and has stored all before.
#[tokio::test]
async fn the_rest_that_the_node_does_not_send_is_read_where_it_is_stored() {
    let (mut world, s3) = to_be_stored(&long()).await;
    world.tick = Span::from_s(4);
    let node = FakeNode::new(&world, &long()[..30_000]);
    let stored = async {
        while !s3.asked().iter().any(String::is_empty) {
            tokio::task::yield_now().await;
        }
        s3.put(KEY, long().as_bytes());
    };
    let id = id(1);
    let line = ["logs", "-f", &id];
    let (said, ()) = node.answering(async { tokio::join!(world.run(&line), stored) }).await;
    assert!(said.out == long(), "{} {}", said.out.len(), said.err);
    assert_eq!(s3.asked(), ["bytes=30000-"]);
}

#[tokio::test]
async fn a_short_output_stands_in_the_row_and_is_not_read_elsewhere() {
    let (world, s3) = to_be_stored("short\n").await;
    assert_eq!((world.run(&["logs", &id(1)]).await.out.as_str(), s3.asked()), ("short\n", Vec::new()));
}
