//! The HTTP client for the control plane.
//!
//! Guarantees: each call is one attempt, and takes at most [`TIMEOUT`]; a refusal counts only if its body and its
//! status belong together, so that a 410 from a proxy cannot stop the work of a node.
//! Does not: retry; the loops do.

use super::signer::Signer;
use derive_more::Display;
use jiff::Timestamp;
use model::error_chain::error_chain;
use model::wire::{ErrorBody, ErrorCode};
use model::{NodeId, left_out};
use reqwest::StatusCode;
use reqwest::header::{CONTENT_TYPE, DATE, RETRY_AFTER};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::time::Duration;

/// The longest time that a call may take.
pub const TIMEOUT: Duration = Duration::from_secs(20);

/// Why a call has no answer.
#[derive(Clone, Debug, Display)]
#[display("{}: {what}", if code.is_some() { "refused" } else { "no usable answer" })]
pub struct CallError {
    /// The code of the refusal; `None` if the control plane did not refuse the call. Then it is not known whether the call had an
    /// effect.
    pub code: Option<ErrorCode>,
    pub what: String,
    /// The wait that the answer asks for; `None` if it asks for none.
    pub retry_after: Option<Duration>,
}

impl CallError {
    pub(crate) fn failed(what: impl Into<String>) -> Self {
        Self { code: None, what: what.into(), retry_after: None }
    }
}

/// How the node proves who it is.
pub enum Credential {
    /// By a signature with the credentials of the instance's role.
    Signature(Signer),
    /// In a local system: by the token of its node file.
    Token(String),
}

/// Gives the time by the node's clock: to sign requests, to date cached inputs, and for people.
pub type NodeClock = fn() -> Timestamp;

pub struct ControlPlaneClient {
    http: reqwest::Client,
    node_id: NodeId,
    credential: Credential,
    clock: NodeClock,
}

impl ControlPlaneClient {
    pub fn new(node_id: NodeId, credential: Credential, clock: NodeClock) -> Result<Self, reqwest::Error> {
        let builder = reqwest::Client::builder().connect_timeout(Duration::from_secs(5));
        // A redirect would send the credential to another server.
        let http = builder.redirect(reqwest::redirect::Policy::none()).build()?;
        Ok(Self { http, node_id, credential, clock })
    }

    /// The same client for this node.
    #[must_use]
    pub fn of(self, node_id: NodeId) -> Self {
        Self { node_id, ..self }
    }

    /// `POST {to}/v1/nodes/{node_id}/{what}`.
    pub async fn post<A: DeserializeOwned>(&self, to: &str, what: &str, body: &impl Serialize) -> Result<A, CallError> {
        self.post_within(TIMEOUT, to, what, body).await
    }

    /// [`Self::post`] with a time-out of its own.
    pub async fn post_within<A: DeserializeOwned>(
        &self,
        timeout: Duration,
        to: &str,
        what: &str,
        body: &impl Serialize,
    ) -> Result<A, CallError> {
        let url = format!("{}/v1/nodes/{}/{what}", to.trim_end_matches('/'), self.node_id);
        let body = left_out::to_json(body)
            .and_then(|body| serde_json::to_vec(&body))
            .map_err(|e| CallError::failed(e.to_string()))?;
        let at = (self.clock)();
        let mut request = self.http.post(&url).timeout(timeout).header(CONTENT_TYPE, "application/json");
        match &self.credential {
            Credential::Token(token) => request = request.bearer_auth(token),
            Credential::Signature(signer) => {
                let headers = signer.headers(&url, &body, at).await;
                for (name, value) in headers.map_err(CallError::failed)? {
                    request = request.header(name, value);
                }
            }
        }
        let response = request.body(body).send().await.map_err(|e| failed(&e))?;
        let status = response.status();
        let header = |name| response.headers().get(name).and_then(|v| v.to_str().ok()).map(str::to_owned);
        let retry_after = header(RETRY_AFTER).and_then(|v| v.trim().parse().ok()).map(Duration::from_secs);
        let date = header(DATE);
        let bytes = response.bytes().await.map_err(|e| failed(&e))?;
        if status.is_success() {
            let unusable = |e| CallError { retry_after, ..CallError::failed(format!("the answer is not valid: {e}")) };
            return serde_json::from_slice(&bytes).map_err(unusable);
        }
        match serde_json::from_slice::<ErrorBody>(&bytes) {
            Ok(ErrorBody { error: code, message: what }) if code.status() == status.as_u16() => {
                Err(CallError { code: Some(code), what, retry_after })
            }
            _ => {
                // The function URL refuses a signature before a function runs.
                if let (Credential::Signature(signer), StatusCode::FORBIDDEN) = (&self.credential, status) {
                    signer.refused(date.as_deref(), at).await;
                }
                Err(CallError { retry_after, ..CallError::failed(format!("HTTP status {status}")) })
            }
        }
    }
}

fn failed(error: &reqwest::Error) -> CallError {
    CallError::failed(error_chain(error))
}

/// The wait before the next call, from 0.2 s to one hour. `asked_s` is the wait that an answer asks for, in seconds.
pub fn next_call(asked_s: f64) -> Duration {
    let finite = if asked_s.is_finite() { asked_s } else { 30.0 };
    Duration::from_secs_f64(finite.clamp(0.2, 3600.0))
}
