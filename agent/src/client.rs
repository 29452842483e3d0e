//! The HTTP client for the control plane.
//!
//! Guarantees: each call is one attempt, and takes at most [`TIMEOUT`]; a refusal counts only if its body and its
//! status belong together, so that a 410 from a proxy cannot stop the work of a node.
//! Does not: retry; the loops do. Does not sign requests; in `iam` mode a signing proxy does.

use model::causes::chain;
use model::ids::NodeId;
use model::wire::{ErrorBody, ErrorCode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::time::Duration;

/// The longest time that a call may take.
pub const TIMEOUT: Duration = Duration::from_secs(20);

/// Why a call has no answer.
#[derive(Clone, Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the names say it")]
pub enum CallError {
    /// The control plane refused the call.
    #[error("refused: {message}")]
    Refused { code: ErrorCode, message: String, retry_after: Option<Duration> },
    /// It is not known whether the call had an effect.
    #[error("no usable answer: {what}")]
    Failed { what: String, retry_after: Option<Duration> },
}

impl CallError {
    /// The code of the refusal; `None` if the control plane did not refuse the call.
    pub const fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Refused { code, .. } => Some(*code),
            Self::Failed { .. } => None,
        }
    }

    /// The wait that the answer asks for; `None` if it asks for none.
    pub const fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Refused { retry_after, .. } | Self::Failed { retry_after, .. } => *retry_after,
        }
    }
}

/// Calls the control plane for one node.
#[derive(Clone, Debug)]
pub struct ControlPlaneClient {
    http: reqwest::Client,
    node_id: NodeId,
    token: Option<String>,
}

impl ControlPlaneClient {
    /// A client with this node's credential.
    pub fn new(node_id: NodeId, token: Option<String>) -> Result<Self, reqwest::Error> {
        let builder = reqwest::Client::builder().timeout(TIMEOUT).connect_timeout(Duration::from_secs(5));
        // A redirect would send the credential to another server.
        let http = builder.redirect(reqwest::redirect::Policy::none()).build()?;
        Ok(Self { http, node_id, token })
    }

    /// `POST {base}/v1/nodes/{node_id}/{what}`.
    pub async fn post<A: DeserializeOwned>(
        &self,
        base: &str,
        what: &str,
        body: &impl Serialize,
    ) -> Result<A, CallError> {
        let url = format!("{}/v1/nodes/{}/{what}", base.trim_end_matches('/'), self.node_id);
        let mut request = self.http.post(url).json(body);
        if let Some(token) = &self.token {
            request = request.bearer_auth(token);
        }
        let response = request.send().await.map_err(|e| failed(&e))?;
        let status = response.status();
        let retry_after = response.headers().get("retry-after").and_then(|v| v.to_str().ok()?.trim().parse().ok());
        let retry_after = retry_after.map(Duration::from_secs);
        let bytes = response.bytes().await.map_err(|e| failed(&e))?;
        if status.is_success() {
            let unusable = |e| CallError::Failed { what: format!("the answer is not valid: {e}"), retry_after };
            return serde_json::from_slice(&bytes).map_err(unusable);
        }
        match serde_json::from_slice::<ErrorBody>(&bytes) {
            Ok(ErrorBody { error: code, message }) if code.status() == status.as_u16() => {
                Err(CallError::Refused { code, message, retry_after })
            }
            _ => Err(CallError::Failed { what: format!("HTTP status {status}"), retry_after }),
        }
    }
}

fn failed(error: &reqwest::Error) -> CallError {
    CallError::Failed { what: chain(error), retry_after: None }
}

/// The wait before the next call, from 0.2 s to one hour. `asked_s` is the wait that an answer asks for, in seconds.
pub fn next_call(asked_s: f64) -> Duration {
    let finite = if asked_s.is_finite() { asked_s } else { 30.0 };
    Duration::from_secs_f64(finite.clamp(0.2, 3600.0))
}
