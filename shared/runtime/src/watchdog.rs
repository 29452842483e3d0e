//! The watchdog: what shows that a function still succeeds (`docs/rules.md#section-8`).
//!
//! A function that hangs is cut off by Lambda, and one that fails is started again. So the danger is a function that no
//! longer runs, or that fails every time. Nothing is restarted, because a restart does not help if the cloud is down. A
//! person is told, by the signs `function` and `heartbeats`.
//!
//! Guarantees: every run that could not observe leaves its error in its row, if the table can be written.
//! Does not: judge the rows, which the signs do, or notice that all functions stand still, which the template's alarms do.
//! Source: Arvados #8236, carried over from a server to functions.

use crate::clock::RunClock;
use model::control::RunRow;
use model::{Function, Policy, Span, Time};
use std::fmt::Display;
use std::future::Future;
use store::Store;

/// heartbeat-ingest notes accepted heartbeats about this often.
pub(crate) const NOTED: Span = Span::from_s(60);

/// The longest normal time between two successes: the period of the schedule, multiplied by `watchdog.multiplier`. The time
/// between the last runs does not count, because runs that events start may be seconds apart.
pub(crate) fn limit(policy: &Policy, period: Span) -> Span {
    Span::from_ms((period.as_ms() as f64 * policy.watchdog.multiplier) as i64)
}

/// Carries out a run. If it fails, notes why in the row of the function.
pub async fn recorded<T, E: Display>(
    function: Function,
    store: &Store,
    clock: RunClock,
    run: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    let started_at = clock.now();
    let result = run.await;
    if let Err(error) = &result {
        note(function.name, store, started_at, clock.elapsed(), &error.to_string()).await;
    }
    result
}

async fn note(function: &str, store: &Store, started_at: Time, took: Span, error: &str) {
    match store.control().await {
        Ok(control) => {
            let before = control.runs.get(function);
            store.write_run(before, &RunRow::failed(function, before, started_at, took, error)).await;
        }
        Err(unread) => tracing::warn!(error = %unread, "why the run failed was not noted"),
    }
}
