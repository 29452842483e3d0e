//! Lets a request to one service through only if one pair of credentials has signed it.
//!
//! Guarantees: the whole body is read and checked before the service gets the request.
//! Does not: accept sessions of roles.

use crate::sigv4::{self, Issued, Issuer, RawRequest, SignScope};
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use model::Time;
use std::fmt;
use std::sync::Arc;

/// The largest body in bytes: as large as DynamoDB takes.
const MAX_BODY_BYTES: usize = 16 * 1024 * 1024;

/// A pair of credentials that is valid until this program ends.
#[derive(Clone, PartialEq, Eq)]
pub struct KeyPair {
    pub access_key_id: String,
    pub secret_access_key: String,
}

impl fmt::Debug for KeyPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyPair").field("access_key_id", &self.access_key_id).finish_non_exhaustive()
    }
}

impl Issuer for KeyPair {
    fn issued(&self, access_key_id: &str) -> Option<Issued> {
        (access_key_id == self.access_key_id).then(|| Issued {
            secret_access_key: self.secret_access_key.clone(),
            session_token: None,
            expires_at: Time::from_ms(i64::MAX),
            account: String::new(),
            arn: String::new(),
            user_id: String::new(),
        })
    }
}

/// The answer of a service to a refused request. The text says why.
pub type Refuse = fn(&str) -> Response;

/// Passes on only requests that are signed for one service.
#[derive(Clone)]
pub struct Signatures {
    /// Whose signatures are accepted.
    pub credentials: Arc<KeyPair>,
    /// The region of the signatures.
    pub region: &'static str,
    /// The service's name in signatures, such as `dynamodb`.
    pub service: &'static str,
    /// The answer to all other requests.
    pub refusal: Refuse,
    pub clock: Arc<dyn Fn() -> Time + Send + Sync>,
}

impl fmt::Debug for Signatures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Signatures").field("service", &self.service).finish_non_exhaustive()
    }
}

impl Signatures {
    pub async fn check(State(signatures): State<Self>, request: Request, next: Next) -> Response {
        let (parts, body) = request.into_parts();
        let Ok(body) = axum::body::to_bytes(body, MAX_BODY_BYTES).await else {
            return (StatusCode::PAYLOAD_TOO_LARGE, "the body is too large, or broken off\n").into_response();
        };
        match signatures.check_signature(&parts, &body) {
            Ok(()) => next.run(Request::from_parts(parts, Body::from(body))).await,
            Err(why) => {
                tracing::debug!(service = signatures.service, why, "a signature is refused");
                (signatures.refusal)(&format!(
                    "{why}: load the environment file of this start of `nodekeeper local`, which has the credentials"
                ))
            }
        }
    }

    fn check_signature(&self, parts: &axum::http::request::Parts, body: &Bytes) -> Result<(), &'static str> {
        let scope = SignScope { region: self.region, service: self.service };
        sigv4::caller(RawRequest::of(parts, body), scope, self.credentials.as_ref(), (self.clock)()).map(drop)
    }
}
