//! Asynchronous invocations and schedules. A scheduled run is an asynchronous invocation.
//!
//! Guarantees: the sender of an event does not wait for the function; a failed run is retried as often as the
//! function's settings say; at most one scheduled run of a function waits in its queue, and skipped runs are counted.
//!
//! Does not: keep events over a restart, or repeat runs missed while this machine slept.

use crate::error::InvokeError;
use crate::function::{Function, Ticket};
use crate::host::Host;
use crate::settings::Schedule;
use axum::body::Bytes;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, MissedTickBehavior};

/// Runs a schedule until the stand-in stops.
pub(crate) async fn run_schedule(schedule: Schedule, function: Arc<Function>, host: Arc<Host>) {
    let mut stop = host.stop_signal();
    let first = Instant::now() + Duration::from_millis(schedule.first_after_ms);
    let mut ticks = tokio::time::interval_at(first, Duration::from_millis(schedule.every_ms));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let payload = Bytes::from(schedule.payload.to_string());
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = stop.raised() => return,
        }
        if let Some(ticket) = function.submit_scheduled(payload.clone()) {
            tokio::spawn(wait_and_retry(ticket, Arc::clone(&function), Arc::clone(&host), payload.clone()));
        }
    }
}

/// Queues an asynchronous invocation and returns its request id.
pub(crate) fn send(function: &Arc<Function>, host: &Arc<Host>, payload: Bytes) -> Result<Arc<str>, InvokeError> {
    let ticket = function.submit(payload.clone())?;
    let request_id = Arc::clone(&ticket.request_id);
    tokio::spawn(wait_and_retry(ticket, Arc::clone(function), Arc::clone(host), payload));
    Ok(request_id)
}

/// Waits for the end of an invocation and retries it if it failed.
async fn wait_and_retry(mut ticket: Ticket, function: Arc<Function>, host: Arc<Host>, payload: Bytes) {
    let name = &function.config.name;
    let mut waits = host.event_retry_ms.into_iter().take(function.config.event_retries);
    loop {
        let mut error = match ticket.wait().await {
            Ok(_) | Err(InvokeError::ShuttingDown) => return,
            Err(error) => error,
        };
        ticket = loop {
            let Some(wait_ms) = waits.next() else {
                tracing::warn!(function = %name, %error, "an asynchronous invocation failed; no retry is left");
                return;
            };
            let Ok(_place) = function.retries.try_acquire() else {
                tracing::warn!(function = %name, %error, "an asynchronous invocation failed and is not retried: too many others wait for a retry");
                return;
            };
            tracing::warn!(function = %name, %error, wait_ms, "an asynchronous invocation failed and will be retried");
            let mut stop = host.stop_signal();
            tokio::select! {
                () = tokio::time::sleep(Duration::from_millis(wait_ms)) => {}
                () = stop.raised() => return,
            }
            match function.submit(payload.clone()) {
                Ok(ticket) => break ticket,
                Err(InvokeError::ShuttingDown) => return,
                Err(refused) => error = refused,
            }
        };
    }
}
