//! What can go wrong when a function is set up or invoked.
//!
//! Guarantees: a function's own failure ([`FunctionError`]) is kept apart from everything that kept it from running,
//! because callers must treat them differently: only the first means that the function's code ran.

use axum::body::Bytes;
use serde::Deserialize;
use serde_json::json;

/// Why the functions or schedules as given cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A name that cannot stand in a path or an ARN.
    #[error("function name {0:?} is not 1 to 64 letters, digits, '-' or '_': rename it")]
    BadName(String),
    /// Two functions of one name.
    #[error("function {0} is given twice: leave one out")]
    Duplicate(String),
    /// A number that must not be zero.
    #[error("{knob} of function {function} is 0: give at least 1")]
    Zero {
        /// The function.
        function: String,
        /// The field of its configuration.
        knob: &'static str,
    },
    /// A schedule for a function that is not there.
    #[error("a schedule names function {0}, which is not configured: add the function or drop the schedule")]
    UnknownFunction(String),
    /// The listener does not know where it listens.
    #[error("the local Lambda cannot tell its own address ({0}): bind its listener to a loopback address")]
    Listener(#[from] std::io::Error),
}

/// Why an invocation gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum InvokeError {
    /// No function of this name.
    #[error("there is no function {function}: use one of {known}")]
    UnknownFunction {
        /// The name asked for.
        function: String,
        /// The names there are.
        known: String,
    },
    /// All processes are busy and as many invocations wait as may.
    #[error(
        "function {function} is busy and {waiting} invocations wait already: try again later, or raise max_concurrency"
    )]
    TooManyRequests {
        /// The function.
        function: String,
        /// How many wait.
        waiting: usize,
    },
    /// The function ran and failed, was cut off, or could not start.
    #[error(transparent)]
    Function(#[from] FunctionError),
    /// The function's answer is not JSON.
    #[error("function {function} answered something that is not JSON ({source}): let its handler return a JSON value")]
    NotJson {
        /// The function.
        function: String,
        /// What the parser says.
        source: serde_json::Error,
    },
    /// The stand-in is being stopped.
    #[error("the local Lambda is shutting down: nothing new is run")]
    ShuttingDown,
}

/// A failed invocation as its caller sees it: what AWS sends along with `X-Amz-Function-Error`.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{error_type}: {message}")]
pub struct FunctionError {
    /// The class of the error, such as `Sandbox.Timedout`, or whatever the function said.
    pub error_type: String,
    /// What happened, for people.
    pub message: String,
    /// The error as JSON, exactly as the function reported it where it did.
    pub payload: Bytes,
}

impl FunctionError {
    /// An error of the stand-in's own, in the form in which AWS words its own.
    pub(super) fn new(error_type: &str, message: String) -> Self {
        let payload = json!({"errorType": error_type, "errorMessage": message}).to_string().into();
        Self { error_type: error_type.to_owned(), message, payload }
    }

    /// What a function posted to an `error` path of the Runtime API.
    pub(super) fn reported(payload: Bytes) -> Self {
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
