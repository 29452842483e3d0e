//! Why an invocation fails.
//!
//! Guarantees: a failure of the function itself ([`FunctionError`]) is never mixed with a failure to run it
//! ([`InvokeError`]). Callers must treat the two differently, because the function's code ran only in the first case.

use axum::body::Bytes;
use serde::Deserialize;
use serde_json::json;

/// Why an invocation has no answer.
#[derive(Debug, thiserror::Error)]
pub enum InvokeError {
    /// No function has this name.
    #[error("no function is named {function}: use one of {known}")]
    UnknownFunction {
        /// The name in the request.
        function: String,
        /// All names.
        known: String,
    },
    /// All processes are busy and the queue is full.
    #[error(
        "function {function} is busy and {waiting} invocations already wait: try again later, or raise max_concurrency"
    )]
    TooManyRequests {
        /// The function's name.
        function: String,
        /// How many invocations wait.
        waiting: usize,
    },
    /// The function ran and failed, timed out, or could not start.
    #[error(transparent)]
    Function(#[from] FunctionError),
    /// The function's answer is not JSON.
    #[error("the answer of function {function} is not JSON ({source}): let its handler return a JSON value")]
    NotJson {
        /// The function's name.
        function: String,
        /// The parser's error.
        source: serde_json::Error,
    },
    /// The stand-in is stopping.
    #[error("the local Lambda is shutting down: it runs nothing new")]
    ShuttingDown,
}

/// A failed invocation as its caller sees it: the body that AWS sends with `X-Amz-Function-Error`.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{error_type}: {message}")]
pub struct FunctionError {
    /// The class of the error: AWS's own, such as `Sandbox.Timedout`, or the function's.
    pub error_type: String,
    /// What happened, for people.
    pub message: String,
    /// The error as JSON, byte for byte if the function reported it.
    pub payload: Bytes,
}

impl FunctionError {
    /// An error that the stand-in itself reports, in AWS's form.
    pub(crate) fn new(error_type: &str, message: String) -> Self {
        let payload = json!({"errorType": error_type, "errorMessage": message}).to_string().into();
        Self { error_type: error_type.to_owned(), message, payload }
    }

    /// What a function posted to an `error` path of the Runtime API.
    pub(crate) fn reported(payload: Bytes) -> Self {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Report {
            error_type: Option<String>,
            error_message: Option<String>,
        }
        match serde_json::from_slice::<Report>(&payload) {
            Ok(report) => Self {
                error_type: report.error_type.unwrap_or_else(|| "Unhandled".to_owned()),
                message: report.error_message.unwrap_or_else(|| "the function gave no message".to_owned()),
                payload,
            },
            Err(_) => Self::new("Unhandled", String::from_utf8_lossy(&payload).into_owned()),
        }
    }
}
