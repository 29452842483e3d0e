//! Storing output in S3: with a real agent, and a stand-in for S3 that keeps what it is sent.

use crate::common::{TestNode, alloc_id, order};
use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Path, Query, State};
use axum::http::{HeaderMap, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use model::ClientStatus;
use model::wire::AllocOrder;
use serde_json::json;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

/// What S3 has.
#[derive(Clone, Default)]
struct Bucket(Arc<Mutex<Inside>>);

#[derive(Default)]
struct Inside {
    objects: BTreeMap<String, Vec<u8>>,
    /// The parts of each upload that was begun and not ended.
    uploads: BTreeMap<String, BTreeMap<u32, Vec<u8>>>,
    calls: Vec<String>,
    /// So many parts are refused for a passing reason.
    busy: u32,
    /// So many uploads get an answer to their end that breaks off before the result.
    unsaid: u32,
    /// What may not be stored.
    denied: Option<String>,
}

impl Bucket {
    /// Serves at this address.
    async fn serve(&self, at: SocketAddr) -> SocketAddr {
        let listener = tokio::net::TcpListener::bind(at).await.unwrap();
        let at = listener.local_addr().unwrap();
        let router = Router::new().route("/logs/{*key}", any(call)).with_state(self.clone());
        tokio::spawn(async move { axum::serve(listener, router.layer(DefaultBodyLimit::disable())).await });
        at
    }

    fn with<T>(&self, look: impl FnOnce(&mut Inside) -> T) -> T {
        look(&mut self.0.lock().unwrap())
    }

    fn object(&self, copy: u32) -> Option<Vec<u8>> {
        self.with(|s3| s3.objects.get(&key(copy)).cloned())
    }
}

async fn call(
    State(bucket): State<Bucket>,
    Path(key): Path<String>,
    Query(query): Query<BTreeMap<String, String>>,
    method: Method,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let signed = headers["authorization"].to_str().unwrap();
    assert!(signed.contains("Credential=AKIDTEST/") && signed.contains("/eu-west-1/s3/aws4_request"), "{signed}");
    let mut s3 = bucket.0.lock().unwrap();
    let names: Vec<&str> = query.keys().map(String::as_str).collect();
    s3.calls.push(format!("{method} {}", names.join("&")));
    let upload = query.get("uploadId").cloned();
    if s3.denied.as_ref() == Some(&key) {
        return StatusCode::FORBIDDEN.into_response();
    }
    match (method.as_str(), names.as_slice()) {
        ("PUT", []) => _ = s3.objects.insert(key, body.to_vec()),
        ("POST", ["uploads"]) => {
            // As in AWS, an id may have characters that a URL must not have.
            let id = format!("a+/={}", s3.uploads.len());
            s3.uploads.insert(id.clone(), BTreeMap::new());
            return format!("<R><UploadId>{id}</UploadId></R>").into_response();
        }
        ("PUT", ["partNumber", "uploadId"]) => {
            if s3.busy > 0 {
                s3.busy -= 1;
                return StatusCode::SERVICE_UNAVAILABLE.into_response();
            }
            let no = query["partNumber"].parse().unwrap();
            s3.uploads.get_mut(&upload.unwrap()).unwrap().insert(no, body.to_vec());
            return [("etag", format!("\"{no}\""))].into_response();
        }
        ("POST", ["uploadId"]) => {
            let parts = s3.uploads.remove(&upload.unwrap()).unwrap();
            let (first, last) = (parts.first_key_value().unwrap().0, parts.last_key_value().unwrap().0);
            assert_eq!((*first, *last as usize), (1, parts.len()), "no part is missing");
            let named = String::from_utf8_lossy(&body).matches("<PartNumber>").count();
            assert_eq!(named, parts.len());
            if s3.unsaid > 0 {
                s3.unsaid -= 1;
                return "   ".into_response();
            }
            s3.objects.insert(key, parts.into_values().flatten().collect());
            return "<R><ETag>x</ETag></R>".into_response();
        }
        ("DELETE", ["uploadId"]) => _ = s3.uploads.remove(&upload.unwrap()),
        other => panic!("unexpected: {other:?}"),
    }
    StatusCode::OK.into_response()
}

fn key(copy: u32) -> String {
    format!("test/{copy}.log")
}

fn stored(copy: u32, script: &str) -> AllocOrder {
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
async fn node(at: SocketAddr) -> TestNode {
    let mut node = TestNode::new().await;
    node.env = environment(at);
    node
}

fn any_port() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

fn numbers(to: u32) -> Vec<u8> {
    (1..=to).flat_map(|n| format!("{n}\n").into_bytes()).collect()
}

#[tokio::test]
async fn an_output_of_many_parts_is_stored_whole_and_once() {
    let bucket = Bucket::default();
    let mut node = node(bucket.serve(any_port()).await).await;
    bucket.with(|s3| s3.busy = 2);
    node.with(|p| p.order(vec![stored(0, "seq 1 2500000"), stored(1, "echo small"), order(2, "echo nowhere")]));
    node.start(&[]);
    node.until("the large output is stored", |_| bucket.object(0)).await;
    assert!(bucket.object(0).unwrap() == numbers(2_500_000), "{}", bucket.object(0).unwrap().len());
    assert_eq!(bucket.object(1).unwrap(), b"small\n");
    node.end_of(2).await;
    node.until("the disk says so", |w| w.alloc_dir(0).join("stored").exists().then_some(())).await;
    assert_eq!(bucket.with(|s3| (s3.objects.len(), s3.uploads.len())), (2, 0));
    // 19 MB are three parts of 8 MiB, and two of them were refused first.
    let calls = bucket.with(|s3| std::mem::take(&mut s3.calls));
    assert_eq!(calls.iter().filter(|call| *call == "PUT partNumber&uploadId").count(), 3 + 2, "{calls:?}");
    assert_eq!(calls.iter().filter(|call| *call == "POST uploads").count(), 1, "the upload went on: {calls:?}");
    // Another agent does not store it again.
    node.kill_agent();
    node.with(|p| p.order(vec![stored(3, "echo later")]));
    node.start(&[]);
    node.until("a later output is stored", |_| bucket.object(3)).await;
    assert_eq!(bucket.with(|s3| s3.calls.clone()), ["PUT "]);
}

#[tokio::test]
async fn an_upload_whose_end_is_not_said_is_made_again() {
    let bucket = Bucket::default();
    let mut node = node(bucket.serve(any_port()).await).await;
    bucket.with(|s3| s3.unsaid = 1);
    node.with(|p| p.order(vec![stored(0, "seq 1 1500000")]));
    node.start(&[]);
    node.until("the output is stored", |_| bucket.object(0)).await;
    assert!(bucket.object(0).unwrap() == numbers(1_500_000));
    assert_eq!(bucket.with(|s3| s3.calls.iter().filter(|call| *call == "POST uploads").count()), 2);
}

#[tokio::test]
async fn an_output_that_s3_refuses_keeps_no_other_one_back() {
    let bucket = Bucket::default();
    let mut node = node(bucket.serve(any_port()).await).await;
    bucket.with(|s3| s3.denied = Some(key(0)));
    node.with(|p| p.order(vec![stored(0, "true"), stored(1, "echo larger")]));
    node.start(&[]);
    node.until("the other output is stored", |_| bucket.object(1)).await;
    bucket.with(|s3| s3.denied = None);
    node.until("it is stored when it may be", |_| bucket.object(0)).await;
}

#[tokio::test]
async fn while_s3_is_away_ends_are_reported_and_the_next_agent_stores_what_has_no_directory_any_more() {
    // Nobody listens here now.
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
    let unsent = node.data().join("unsent");
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&unsent).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o700, "jobs cannot read it");
    let bucket = Bucket::default();
    bucket.serve(at).await;
    node.start(&[]);
    node.until("it is stored", |_| bucket.object(0)).await;
    assert!(bucket.object(0).unwrap() == numbers(1_500_000));
    // The large one has two parts. It does not keep the small one waiting.
    assert_eq!(bucket.with(|s3| s3.calls[..2].to_vec()), ["PUT ", "POST uploads"]);
    node.until("nothing is left", |_| std::fs::read_dir(&unsent).unwrap().next().is_none().then_some(())).await;
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
    assert_eq!(bucket.object(0).as_deref(), Some(&b"before\n"[..]));
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
