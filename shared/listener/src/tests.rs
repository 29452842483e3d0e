//! What one caller can do to a listener. Time is virtual, sockets are real.

use super::*;
use crate::admission::{Limits, Owner};
use axum::body::Body;
use axum::extract::DefaultBodyLimit;
use axum::routing::{get, post};
use std::collections::BTreeSet;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, timeout};

const PATIENCE: Duration = Duration::from_secs(20);
const MIB: usize = 1024 * 1024;
const LIMITS: Limits = Limits { owner: 8, others: 6, one: 4, patience: PATIENCE };
/// A user whom nobody of these tests is.
const STRANGER: u32 = 4_000_000;

/// Serves as a program of this owner, for these callers.
async fn served(owner: Owner, callers: Callers) -> SocketAddr {
    served_with(owner, callers, LIMITS).await
}

async fn served_with(owner: Owner, callers: Callers, limits: Limits) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    let router = Router::new()
        .route("/", get(|| async { "hello" }))
        .route("/large", get(|| async { vec![b'x'; 64 * MIB] }))
        .route("/body", post(|body: axum::body::Bytes| async move { body.len().to_string() }))
        .route(
            "/unlimited",
            post(|body: axum::body::Bytes| async move { body.len().to_string() }).layer(DefaultBodyLimit::disable()),
        )
        .route("/streamed", post(|body: Body| async { Body::new(body) }));
    let admission = Admission::new(owner, limits);
    tokio::spawn(serve("the test", listener, router, callers, admission));
    at
}

fn of_stranger() -> Owner {
    Owner(BTreeSet::from([STRANGER]))
}

async fn open(at: SocketAddr) -> TcpStream {
    TcpStream::connect(at).await.unwrap()
}

/// Everything that comes until the connection ends. It must end.
async fn rest(stream: &mut TcpStream) -> String {
    let mut answer = Vec::new();
    let _reset = timeout(PATIENCE * 10, stream.read_to_end(&mut answer)).await.expect("the connection never ends");
    String::from_utf8_lossy(&answer).into_owned()
}

async fn is_answered(at: SocketAddr) -> bool {
    let mut stream = open(at).await;
    let _closed = stream.write_all(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await;
    rest(&mut stream).await.contains("hello")
}

/// Sends this again and again, with pauses, until the connection breaks or so much is sent. Returns how much.
async fn send(stream: &mut TcpStream, piece: &[u8], pause: Duration, at_most: usize) -> usize {
    let mut sent = 0;
    while sent < at_most && stream.write_all(piece).await.is_ok() {
        sent += piece.len();
        sleep(pause).await;
    }
    sent
}

#[tokio::test(start_paused = true)]
async fn only_the_callers_of_a_port_are_answered() {
    for (owner, callers, answered) in [
        (Owner::of_this_program(None), Callers::Owner, true),
        (of_stranger(), Callers::Owner, false),
        (of_stranger(), Callers::Everyone, true),
    ] {
        let at = served(owner, callers).await;
        assert_eq!(is_answered(at).await, answered, "{callers:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_caller_has_its_share_of_connections_and_no_more() {
    for (owner, most) in [(Owner::of_this_program(None), LIMITS.owner), (of_stranger(), LIMITS.one)] {
        let at = served(owner, Callers::Everyone).await;
        let mut held = Vec::new();
        for _ in 0..most {
            let mut stream = open(at).await;
            stream.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
            stream.readable().await.unwrap();
            held.push(stream);
        }
        for _ in 0..200 {
            assert_eq!(rest(&mut open(at).await).await, "", "{most}");
        }
        assert!(!is_answered(at).await);
        held.clear();
        while !is_answered(at).await {}
    }
}

/// The first line of the request, what is sent after its head again and again, with which pauses, and what must be in the answer.
/// Each connection ends, and soon.
#[tokio::test(start_paused = true)]
async fn a_caller_who_does_not_go_on_loses_the_connection() {
    let (slow, at_once) = (Duration::from_secs(3), Duration::ZERO);
    let header = format!("x: {}\r\n", "x".repeat(1000));
    let length = "content-length: 1000000\r\n\r\n";
    let (chunked, chunk) = ("transfer-encoding: chunked\r\n\r\n", format!("10000\r\n{}\r\n", "x".repeat(0x10000)));
    for (line, head, piece, pause, at_most, wanted) in [
        ("GET / HTTP/1.1", "", "", slow, 0, ""),
        ("GET / HTTP/1.1", "x: ", "x", slow, usize::MAX, ""),
        ("GET / HTTP/1.1", "", header.as_str(), at_once, usize::MAX, "431"),
        ("POST /body HTTP/1.1", length, "", slow, 0, "400"),
        ("POST /body HTTP/1.1", chunked, chunk.as_str(), at_once, usize::MAX, "413"),
        ("POST /unlimited HTTP/1.1", length, "x", at_once, 1, "400"),
        ("POST /streamed HTTP/1.1", chunked, "1\r\nx\r\n", at_once, 1, "200"),
        ("POST /absent HTTP/1.1", length, "x", at_once, 1, "404"),
        ("", "", "", slow, 0, ""),
    ] {
        let at = served(of_stranger(), Callers::Everyone).await;
        let (mut stream, began) = (open(at).await, Instant::now());
        let start = if line.is_empty() { String::new() } else { format!("{line}\r\nhost: x\r\n{head}") };
        stream.write_all(start.as_bytes()).await.unwrap();
        let (mut reader, mut writer) = stream.into_split();
        let mut answer = Vec::new();
        let sending = async {
            let mut sent = 0;
            while sent < at_most && !piece.is_empty() && writer.write_all(piece.as_bytes()).await.is_ok() {
                sent += piece.len();
                sleep(pause).await;
            }
            sent
        };
        let reading = async { timeout(PATIENCE * 10, reader.read_to_end(&mut answer)).await.is_ok() };
        let (sent, has_ended) = tokio::join!(sending, reading);
        let answer = String::from_utf8_lossy(&answer);
        assert!(has_ended, "{line} {head}: the connection never ends");
        assert!(answer.contains(wanted) && answer.is_empty() == wanted.is_empty(), "{line} {head}: {answer:.300}");
        assert!(began.elapsed() <= PATIENCE + 2 * slow, "{line} {head}: {:?}", began.elapsed());
        assert!(sent < 16 * MIB, "{line} {head}: {sent} bytes were taken");
    }
}

/// Here the kernel watches the time, so it is real.
#[tokio::test]
async fn an_answer_that_nobody_reads_is_not_kept() {
    let patience = Duration::from_secs(1);
    let at = served_with(of_stranger(), Callers::Everyone, Limits { patience, ..LIMITS }).await;
    let mut held = Vec::new();
    for _ in 0..LIMITS.one {
        let mut stream = open(at).await;
        stream.write_all(b"GET /large HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        stream.readable().await.unwrap();
        held.push(stream);
    }
    assert!(!is_answered(at).await, "all places are taken");
    let began = Instant::now();
    while !is_answered(at).await {
        assert!(began.elapsed() < patience * 10, "the places are never free again");
        sleep(patience / 10).await;
    }
    let got: usize = bytes_in(held).await;
    assert!(got < LIMITS.one * 64 * MIB, "{got} bytes");
}

/// How many bytes wait in these connections.
async fn bytes_in(held: Vec<TcpStream>) -> usize {
    let mut all = 0;
    for mut stream in held {
        all += rest(&mut stream).await.len();
    }
    all
}

#[tokio::test(start_paused = true)]
async fn a_caller_who_goes_on_has_all_the_time_that_it_needs() {
    let at = served(of_stranger(), Callers::Everyone).await;
    let (mut stream, began) = (open(at).await, Instant::now());
    let (piece, pieces) = (vec![b'x'; 128 * 1024], 100);
    let head = format!("POST /unlimited HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n", piece.len() * pieces);
    stream.write_all(head.as_bytes()).await.unwrap();
    assert_eq!(send(&mut stream, &piece, Duration::from_secs(1), piece.len() * pieces).await, piece.len() * pieces);
    stream.shutdown().await.unwrap();
    assert!(rest(&mut stream).await.contains(&(piece.len() * pieces).to_string()));
    assert!(began.elapsed() > PATIENCE * 4);
    let (mut stream, began) = (open(at).await, Instant::now());
    stream.write_all(b"GET /large HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.unwrap();
    let (mut got, mut piece) = (0, vec![0; MIB]);
    while let n @ 1.. = stream.read(&mut piece).await.unwrap() {
        got += n;
        sleep(Duration::from_millis(800)).await;
    }
    assert!(got > 64 * MIB && began.elapsed() > PATIENCE * 2, "{got} bytes in {:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn an_idle_connection_ends_and_another_request_may_follow_an_answer() {
    let at = served(of_stranger(), Callers::Everyone).await;
    let (mut stream, began) = (open(at).await, Instant::now());
    for _ in 0..5 {
        stream.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        stream.readable().await.unwrap();
        assert!(stream.read(&mut [0; 1000]).await.unwrap() > 0);
        sleep(PATIENCE / 2).await;
    }
    assert_eq!(rest(&mut stream).await, "");
    assert!(began.elapsed() > PATIENCE * 2 && began.elapsed() < PATIENCE * 4);
}
