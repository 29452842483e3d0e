//! Outputs that nodes have stored in S3, as `logs` and `job` show them.

use super::output::{FakeNode, ended, long, readers, tail_of};
use super::output_store::{client, nothing};
use super::*;
use crate::commands::output::output_stream::MISSING;
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Path, State};
use axum::http::Method;
use axum::response::Response;
use axum::routing::any;
use futures::StreamExt;
use model::stored::{BOTH, END, MORE, OUT, PIECE_BYTES, STREAMS_HEADER, THEN_HEADER};

/// S3 as an operator sees it, with the bucket `logs`.
#[derive(Clone, Default)]
pub(super) struct FakeS3(Arc<Mutex<Objects>>);

#[derive(Default)]
struct Objects {
    objects: BTreeMap<String, Vec<u8>>,
    /// The metadata of each piece that says what comes after it.
    then: BTreeMap<String, &'static str>,
    /// The method and the key of each call.
    asked: Vec<String>,
    /// How many of the next answers break off in the middle.
    breaks: u32,
    /// How many of the next calls are refused with `SlowDown`.
    busy: u32,
    denies: bool,
}

impl FakeS3 {
    pub(super) async fn serve(&self) -> s3::S3 {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let router = Router::new().route("/logs/{*key}", any(object)).with_state(self.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        client(&url)
    }

    /// Stores an output in pieces. `then` is what comes after the last of them.
    pub(super) fn put(&self, key: &str, bytes: &[u8], then: &'static str) {
        let mut s3 = self.0.lock().unwrap();
        let pieces: Vec<&[u8]> =
            if bytes.is_empty() { vec![bytes] } else { bytes.chunks(PIECE_BYTES as usize).collect() };
        let count = pieces.len();
        for (no, piece) in pieces.into_iter().enumerate() {
            let key = format!("{key}/{no:06}.log");
            s3.objects.insert(key.clone(), piece.to_vec());
            s3.then.insert(key, if no + 1 == count { then } else { MORE });
        }
    }

    /// Stores a file with its text as its key.
    pub(super) fn put_content(&self, text: &str) -> model::Content {
        self.0.lock().unwrap().objects.insert(text.to_owned(), text.into());
        let mut digest = files::Digesting::new(std::io::sink());
        std::io::Write::write_all(&mut digest, text.as_bytes()).unwrap();
        let (_, digest) = digest.finish().unwrap();
        model::Content::new(model::files::Form::File, &digest.sha256, digest.bytes).unwrap()
    }

    pub(super) fn put_object(&self, key: &str, text: &str) {
        self.0.lock().unwrap().objects.insert(key.to_owned(), text.into());
    }

    /// Stores a file at its place in the bucket of the cluster.
    pub(super) fn put_file(&self, text: &str) -> model::Content {
        let content = self.put_content(text);
        self.put_object(&format!("test/files/{}", content.sha256()), text);
        content
    }

    fn put_switches(&self, list: &str) {
        self.0.lock().unwrap().objects.insert(format!("{KEY}/000000.switches"), list.as_bytes().to_vec());
    }

    pub(super) fn asked(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap().asked)
    }
}

async fn object(State(s3): State<FakeS3>, Path(key): Path<String>, method: Method) -> Response {
    let mut s3 = s3.0.lock().unwrap();
    s3.asked.push(format!("{method} {}", key.strip_prefix(KEY).unwrap_or(&key)));
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
    if method == Method::PUT {
        return Response::default();
    }
    let Some(all) = s3.objects.get(&key).cloned() else { return refused(404, "NoSuchKey") };
    let streams = if s3.objects.contains_key(&key.replace(".log", ".switches")) { BOTH } else { OUT };
    let response = Response::builder().header("content-length", all.len()).header(STREAMS_HEADER, streams);
    let response = response.header(THEN_HEADER, s3.then.get(&key).copied().unwrap_or(MORE));
    if s3.breaks == 0 || method == Method::HEAD {
        return response.body(Body::from(all)).unwrap();
    }
    s3.breaks -= 1;
    let part = all[..all.len() / 2].to_vec();
    let broken = async {
        // Lets the server send what was written so far.
        tokio::task::yield_now().await;
        Err(std::io::Error::other("broken"))
    };
    let pieces = futures::stream::iter([Ok(Bytes::from(part))]).chain(futures::stream::once(broken));
    response.body(Body::from_stream(pieces)).unwrap()
}

const KEY: &str = "lab/1/0-0";

/// A world with one ended job with this output, which is to be stored in S3. Its node exists, and does not answer.
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
    s3.put(KEY, long().as_bytes(), END);
    let (said, changed) = world.changes(&["logs", &id(1)]).await;
    assert!(said.out == long() && changed.is_empty(), "{} {}", said.out.len(), said.err);
    assert_eq!(
        (said.err.lines().count(), s3.asked()),
        (1, ["HEAD /000000.log", "GET /000000.log"].map(str::to_owned).to_vec())
    );
    assert_eq!(said.result.unwrap(), Outcome::Done);
    let followed = world.run(&["logs", "-f", &id(1)]).await;
    assert!(followed.out == long() && followed.err.ends_with(" complete\n"), "{}", followed.err);
    let last = world.run(&["logs", &id(1), "--tail", "2"]).await;
    assert_eq!(last.out.as_str(), "line 19998\nline 19999\n");
    let all = world.run(&["logs", &id(1), "-n", "30000"]).await;
    assert!(all.out == long(), "{}", all.err);
    assert_eq!(world.run(&["logs", &id(1), "--json"]).await.json()[0]["output_s3"], format!("s3://logs/{KEY}"));
    assert!(world.run(&["job", &id(1)]).await.done().contains(&format!("s3://logs/{KEY}\n")));
    assert_eq!(readers(&world).await, 0);
}

#[tokio::test]
async fn an_output_of_many_pieces_is_found_in_few_calls_and_read_whole_with_its_streams() {
    let (world, s3) = to_be_stored(&long()).await;
    let large: Vec<u8> = (0..6 * PIECE_BYTES / 8 + 100).flat_map(|n| format!("{n:07}\n").into_bytes()).collect();
    s3.put(KEY, &large, END);
    s3.put_switches("[8,16]");
    let said = world.run(&["logs", &id(1)]).await;
    assert!(said.out.as_bytes() == large, "{} {}", said.out.len(), said.err);
    let asked = s3.asked();
    assert!(asked.iter().filter(|call| call.starts_with("HEAD")).count() <= 7, "{asked:?}");
    let error = world.run(&["logs", &id(1), "--stderr"]).await;
    assert_eq!(error.out, "0000001\n");
    s3.asked();
    let last = world.run(&["logs", &id(1), "--tail", "1"]).await;
    assert_eq!(last.out.as_bytes(), &large[large.len() - 8..]);
    assert_eq!(s3.asked().iter().filter(|call| call.starts_with("GET")).count(), 2, "only the end is read");
}

#[tokio::test]
async fn a_connection_that_breaks_is_replaced_and_not_for_ever() {
    let (world, s3) = to_be_stored(&long()).await;
    s3.put(KEY, long().as_bytes(), END);
    for (breaks, busy) in [(2, 0), (0, 2)] {
        (s3.0.lock().unwrap().breaks, s3.0.lock().unwrap().busy) = (breaks, busy);
        let said = world.run(&["logs", &id(1)]).await;
        assert!(said.out == long(), "{} {}", said.out.len(), said.err);
    }
    s3.0.lock().unwrap().breaks = 9;
    let said = world.run(&["logs", &id(1)]).await;
    assert_eq!((said.result.unwrap(), said.out.as_str()), (Outcome::Code(MISSING), ""));
    assert!(said.err.contains("after byte 0 is missing: "), "{}", said.err);
}

#[tokio::test]
async fn an_output_that_is_not_stored_yet_comes_from_its_node_or_is_told_to_be_absent() {
    let (mut world, s3) = to_be_stored(&long()).await;
    world.tick = Span::ZERO;
    // The second time, a part is stored already.
    for stored in [0, 100] {
        if stored > 0 {
            s3.put(KEY, &long().as_bytes()[..stored], MORE);
        }
        let said = FakeNode::ended(&world, &long()).answering(world.run(&["logs", &id(1)])).await;
        assert!(said.out == long() && !said.err.contains("s3://"), "{}", said.err);
    }
    s3.0.lock().unwrap().objects.clear();
    world.tick = Span::from_s(60);
    let said = world.run(&["logs", &id(1)]).await;
    let place = format!("s3://logs/{KEY} is not there: ");
    assert!(said.out == tail_of(&long()) && said.err.contains(&place), "{}", said.err);
    s3.0.lock().unwrap().denies = true;
    let said = world.run(&["logs", &id(1)]).await;
    assert!(said.out == tail_of(&long()) && said.err.contains("your permissions do not allow it"), "{}", said.err);
    world.cluster.outputs = nothing();
    let said = world.run(&["logs", &id(1)]).await;
    assert!(said.out == tail_of(&long()) && said.err.contains("cannot be read: no usable answer"), "{}", said.err);
}

/// The instance ended while the command ran.
#[tokio::test]
async fn what_was_stored_of_an_output_that_broke_off_is_printed_and_up_to_where_it_is_whole() {
    let (world, s3) = to_be_stored(&long()).await;
    s3.put(KEY, &long().as_bytes()[..100_000], MORE);
    for line in [&["logs", &id(1)][..], &["logs", "--follow", &id(1)]] {
        let said = world.run(line).await;
        assert_eq!(said.result.unwrap(), Outcome::Code(MISSING), "{line:?}");
        assert!(said.out == long()[..100_000], "{line:?} {}", said.out.len());
        assert!(said.err.contains("after byte 100000 is missing: its node stored it up to there"), "{}", said.err);
    }
}

/// The node is gone after it has sent a part and stored the whole output.
#[tokio::test]
async fn the_rest_that_the_node_does_not_send_is_read_where_it_is_stored() {
    let (mut world, s3) = to_be_stored(&long()).await;
    world.tick = Span::from_s(4);
    let node = FakeNode::new(&world, &long()[..30_000]);
    let stored = async {
        while !s3.asked().iter().any(|call| call.starts_with("HEAD")) {
            tokio::task::yield_now().await;
        }
        s3.put(KEY, long().as_bytes(), END);
    };
    let id = id(1);
    let line = ["logs", "-f", &id];
    let (said, ()) = node.answering(async { tokio::join!(world.run(&line), stored) }).await;
    assert!(said.out == long(), "{} {}", said.out.len(), said.err);
    assert_eq!(said.result.unwrap(), Outcome::Done);
}

#[tokio::test]
async fn a_short_output_stands_in_the_row_and_is_not_read_elsewhere() {
    let (world, s3) = to_be_stored("short\n").await;
    assert_eq!((world.run(&["logs", &id(1)]).await.out.as_str(), s3.asked()), ("short\n", Vec::new()));
}
