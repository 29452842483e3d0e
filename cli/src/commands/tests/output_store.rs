//! S3 in tests of the commands: a stand-in that keeps objects in memory, and clients.

use aws_credential_types::provider::SharedCredentialsProvider;
use aws_sdk_dynamodb::config::Credentials;
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Path, State};
use axum::http::{HeaderMap, Method};
use axum::response::Response;
use axum::routing::any;
use futures::StreamExt;
use model::stored::{BOTH, MORE, OUT, PIECE_BYTES, STREAMS_HEADER, THEN_HEADER};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// The place of the output of an alloc in the bucket `logs`.
pub(super) const KEY: &str = "lab/1/0-0";

/// S3 as an operator sees it, with the bucket `logs`.
#[derive(Clone, Default)]
pub(super) struct FakeS3(pub(super) Arc<Mutex<Objects>>);

#[derive(Default)]
pub(super) struct Objects {
    pub(super) objects: BTreeMap<String, Vec<u8>>,
    /// The metadata of each piece that says what comes after it.
    then: BTreeMap<String, &'static str>,
    /// The method and the key of each call.
    asked: Vec<String>,
    /// How many of the next answers break off in the middle.
    pub(super) breaks: u32,
    /// How many of the next calls are refused with `SlowDown`.
    pub(super) busy: u32,
    pub(super) denies: bool,
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

    pub(super) fn put_switches(&self, list: &str) {
        self.0.lock().unwrap().objects.insert(format!("{KEY}/000000.switches"), list.as_bytes().to_vec());
    }

    pub(super) fn asked(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap().asked)
    }
}

async fn object(State(s3): State<FakeS3>, Path(key): Path<String>, method: Method, headers: HeaderMap) -> Response {
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
    let Some(mut all) = s3.objects.get(&key).cloned() else { return refused(404, "NoSuchKey") };
    if let Some(range) = headers.get("range") {
        let from = range.to_str().unwrap().strip_prefix("bytes=").unwrap().strip_suffix('-').unwrap();
        all.drain(..from.parse::<usize>().unwrap());
    }
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

/// A client of the S3 at this URL.
pub(super) fn client(url: &str) -> s3::S3 {
    let config = aws_config::SdkConfig::builder()
        .region(aws_config::Region::new("eu-west-1"))
        .credentials_provider(SharedCredentialsProvider::new(Credentials::new("AKID", "secret", None, None, "test")))
        .endpoint_url(url)
        .build();
    crate::aws::s3(&config, None, Arc::new(|| model::Time::from_ms(1_800_000_000_000))).unwrap()
}

/// A client of an S3 that nobody serves.
pub(crate) fn nothing() -> s3::S3 {
    client("http://127.0.0.1:9")
}
