//! Records the requests to AWS that tests make, for `tests/calls.py`, which holds them against AWS's own models.
//!
//! Guarantees: each request that reaches a server given to [`recorded`] is one line of the file that the variable
//! `NODEKEEPER_RECORDED_CALLS` names: method, URI, headers and body, before anybody has judged it.
//! Does not: record anything without this variable, or the body of an object.

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::middleware::{self, Next};
use axum::response::Response;
use ec2_stand_in::Ec2Region;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::net::TcpListener;

/// A router whose requests are recorded.
pub fn recorded(router: Router) -> Router {
    match std::env::var_os("NODEKEEPER_RECORDED_CALLS") {
        Some(file) => {
            let file = PathBuf::from(file);
            router.layer(middleware::from_fn(move |request, next| record(file.clone(), request, next)))
        }
        None => router,
    }
}

/// Serves a stand-in whose requests are recorded.
pub async fn serve_recorded(listener: TcpListener, ec2: Arc<Ec2Region>) {
    let router = recorded(ec2.router());
    tokio::select! {
        served = axum::serve(listener, router) => served.unwrap(),
        () = ec2.keep_advancing() => {}
    }
}

async fn record(file: PathBuf, request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    let bytes = axum::body::to_bytes(body, usize::MAX).await.unwrap();
    let text = |value: &axum::http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    let headers: BTreeMap<&str, String> =
        parts.headers.iter().map(|(name, value)| (name.as_str(), text(value))).collect();
    let is_object = headers.get("authorization").is_some_and(|signed| signed.contains("/s3/"));
    let line = serde_json::json!({
        "method": parts.method.as_str(),
        "uri": parts.uri.to_string(),
        "headers": headers,
        "body": if is_object { "".into() } else { String::from_utf8_lossy(&bytes) },
    });
    // One write for each line: tests of several threads write into the file.
    let mut out = std::fs::OpenOptions::new().create(true).append(true).open(file).unwrap();
    out.write_all(format!("{line}\n").as_bytes()).unwrap();
    next.run(Request::from_parts(parts, Body::from(bytes))).await
}
