//! What each function has done so far, for the page that shows it.
//!
//! Does not: keep a history. The log sink and the events table have it.

use super::error::FunctionError;
use axum::body::Bytes;
use serde::Serialize;
use shared::time::{Span, Time};

/// More of an answer than this is not shown.
const SHOWN_BYTES: usize = 8 * 1024;

/// The counts of one function since the start.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Stats {
    /// The function.
    pub function: String,
    /// Invocations that ended, well or badly, retries included.
    pub invocations: u64,
    /// Those that failed, in whatever way.
    pub errors: u64,
    /// Those of them that were cut off at their deadline.
    pub timeouts: u64,
    /// Invocations refused because too many waited.
    pub throttles: u64,
    /// Scheduled runs left out because an earlier one still waited for its turn.
    pub skipped: u64,
    /// Processes started.
    pub cold_starts: u64,
    /// Processes that live now.
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
    /// How long the function worked on it; a cold start and waiting do not count.
    pub duration_ms: Span,
    /// Whether it ended well.
    pub ok: bool,
    /// The answer, or what went wrong; cut at 8 KiB.
    pub result: String,
}

/// What is counted at each end of an invocation, cheaply: thousands may end in a second, and few are looked at.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) invocations: u64,
    pub(super) errors: u64,
    pub(super) timeouts: u64,
    pub(super) throttles: u64,
    pub(super) skipped: u64,
    pub(super) cold_starts: u64,
    pub(super) last: Option<Ended>,
}

#[derive(Debug)]
pub(super) struct Ended {
    pub(super) at: Time,
    pub(super) took: Span,
    pub(super) outcome: Result<Bytes, FunctionError>,
}

impl Ended {
    pub(super) fn shown(&self) -> LastRun {
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
