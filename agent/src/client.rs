//! HTTP to the functions, and what a refusal means.
//!
//! Guarantees: one attempt a call, over in [`TIMEOUT`]; a refusal counts only with the body
//! *and* the status that belong to it, so that no proxy's 410 can end a node's work.
//! Does not: retry; the loops do. Does not sign requests: in `iam` mode a signing proxy does.

use serde::Serialize;
use serde::de::DeserializeOwned;
use shared::ids::NodeId;
use shared::wire::{ErrorBody, ErrorCode};
use std::error::Error;
use std::time::Duration;

/// The longest a call may take.
pub const TIMEOUT: Duration = Duration::from_secs(20);

/// Why a call brought no answer.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CallError {
    /// The function said no.
    #[error("refused: {message}")]
    Refused {
        /// How.
        code: ErrorCode,
        /// In words.
        message: String,
        /// When to come back, if it said so.
        retry_after: Option<Duration>,
    },
    /// Nobody knows what became of it.
    #[error("no usable answer: {what}")]
    Failed {
        /// Why.
        what: String,
        /// When to come back, if somebody said so.
        retry_after: Option<Duration>,
    },
}

impl CallError {
    /// How the function refused, if it did.
    pub const fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Refused { code, .. } => Some(*code),
            Self::Failed { .. } => None,
        }
    }

    /// When to come back, if that was said.
    pub const fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Refused { retry_after, .. } | Self::Failed { retry_after, .. } => *retry_after,
        }
    }
}

/// Calls in the name of one node.
#[derive(Clone, Debug)]
pub struct Client {
    http: reqwest::Client,
    node_id: NodeId,
    token: Option<String>,
}

impl Client {
    /// A client with this node's credential.
    pub fn new(node_id: NodeId, token: Option<String>) -> Result<Self, reqwest::Error> {
        let builder = reqwest::Client::builder().timeout(TIMEOUT).connect_timeout(Duration::from_secs(5));
        // A redirect would carry the credential elsewhere.
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
            let unusable = |e| CallError::Failed { what: format!("the answer is not understood: {e}"), retry_after };
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

/// An error with all its causes, in one line.
pub fn chain(error: &dyn Error) -> String {
    let mut said = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        said.push_str(": ");
        said.push_str(&error.to_string());
        cause = error.source();
    }
    said
}

/// How many seconds from now an answer asks to be called again, made harmless.
pub fn next_call(asked_s: f64) -> Duration {
    let sane = if asked_s.is_finite() { asked_s } else { 30.0 };
    Duration::from_secs_f64(sane.clamp(0.2, 3600.0))
}
