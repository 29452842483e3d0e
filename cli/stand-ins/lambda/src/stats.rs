//! The counts of each function, for the page that shows them.
//!
//! Does not: keep a history; the logs and the events table do.

use crate::error::FunctionError;
use axum::body::Bytes;
use model::time::{Span, Time};
use serde::Serialize;

/// A longer answer is cut at this length.
const SHOWN_BYTES: usize = 8 * 1024;

/// The counts of one function since the start.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Stats {
    /// The function's name.
    pub function: String,
    /// Invocations that ended, with success or not.
    pub invocations: u64,
    /// Invocations that failed for any reason.
    pub errors: u64,
    /// Invocations that timed out; also counted as errors.
    pub timeouts: u64,
    /// Invocations refused because the queue was full.
    pub throttles: u64,
    /// Scheduled runs skipped because an earlier one still waited.
    pub skipped: u64,
    /// Processes started.
    pub cold_starts: u64,
    /// Processes that exist now.
    pub processes: usize,
    /// Invocations that run now.
    pub running: usize,
    /// Invocations that wait now.
    pub waiting: usize,
    /// The invocation that ended last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last: Option<LastRun>,
}

/// How an invocation ended.
#[derive(Clone, Debug, Serialize)]
pub struct LastRun {
    /// When it ended.
    pub at: Time,
    /// How long the function worked on the invocation, without cold start and queue.
    pub duration_ms: Span,
    /// Whether the invocation succeeded.
    pub ok: bool,
    /// The answer or the error; an answer is cut at 8 KiB.
    pub result: String,
}

/// Counted at the end of each invocation. This must be cheap: thousands may end in a second.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) invocations: u64,
    pub(crate) errors: u64,
    pub(crate) timeouts: u64,
    pub(crate) throttles: u64,
    pub(crate) skipped: u64,
    pub(crate) cold_starts: u64,
    pub(crate) last: Option<Ended>,
}

#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) at: Time,
    pub(crate) took: Span,
    pub(crate) outcome: Result<Bytes, FunctionError>,
}

impl Ended {
    pub(crate) fn to_last_run(&self) -> LastRun {
        let result = match &self.outcome {
            Ok(answer) => {
                let shown = answer.get(..SHOWN_BYTES).unwrap_or(answer);
                String::from_utf8_lossy(shown).into_owned()
            }
            Err(error) => error.to_string(),
        };
        LastRun { at: self.at, duration_ms: self.took, ok: self.outcome.is_ok(), result }
    }
}
