//! A stand-in for the AWS services by which jobs get rights: STS gives the credentials of a role, and Secrets Manager and
//! Parameter Store give secrets to the session of a role.
//!
//! Guarantees: each request must be signed. Only the owner of the local system can assume a role, and only the session of a role
//! gets a secret. Credentials expire at their time.
//! Does not: know policies: each role may read each secret. It knows one region only.
//! Source: AWS Security Token Service API Reference; AWS Secrets Manager API Reference; AWS Systems Manager API Reference.

mod secrets;
mod sessions;
mod state;
mod sts;

pub use sessions::{Sessions, date, random};
pub use state::Rights;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::header;
use axum::http::request::Parts;
use axum::response::Response;
use axum::routing::post;
use std::sync::Arc;

/// The API of all three services.
pub fn router(rights: Arc<Rights>) -> Router {
    Router::new().route("/", post(answer)).with_state(rights)
}

async fn answer(State(rights): State<Arc<Rights>>, parts: Parts, body: Bytes) -> Response {
    let text =
        |name: header::HeaderName| parts.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let target = parts.headers.get("x-amz-target").and_then(|value| value.to_str().ok());
    match target {
        Some(target) => {
            let service = if target.starts_with("secretsmanager.") { "secretsmanager" } else { "ssm" };
            secrets::answer(&rights, target, rights.caller(service, &parts, &body), &body)
        }
        None if text(header::CONTENT_TYPE).starts_with("application/x-www-form-urlencoded") => {
            sts::answer(&rights, rights.caller("sts", &parts, &body), &body)
        }
        None => {
            sts::refused("InvalidAction", "the request is neither for STS, nor for Secrets Manager or Parameter Store")
        }
    }
}
