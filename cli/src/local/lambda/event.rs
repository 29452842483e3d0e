//! Asynchronous invocations, and schedules, which are made of them.
//!
//! Guarantees: whoever sends an event does not wait for the function; a failed run is retried as often as the
//! function's configuration says; of one function's scheduled runs at most one waits for its turn, and those left out
//! are counted.
//!
//! Does not: keep events over a restart, or make up for ticks missed while this machine slept.

use super::Host;
use super::error::InvokeError;
use super::function::{Function, Ticket};
use axum::body::Bytes;
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, MissedTickBehavior};

/// Runs a function by the clock.
#[derive(Clone, Debug)]
pub struct Schedule {
    /// The function.
    pub function: String,
    /// The first run is this long after the start.
    pub first_after_ms: u64,
    /// From one run to the next.
    pub every_ms: u64,
    /// What the function gets.
    pub payload: Value,
}

/// Keeps a schedule until the stand-in stops.
pub(super) async fn keep(schedule: Schedule, function: Arc<Function>, host: Arc<Host>) {
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
            tokio::spawn(see_through(ticket, Arc::clone(&function), Arc::clone(&host), payload.clone()));
        }
    }
}

/// Queues an invocation nobody waits for, and gives its request id.
pub(super) fn send(function: &Arc<Function>, host: &Arc<Host>, payload: Bytes) -> Result<Arc<str>, InvokeError> {
    let ticket = function.submit(payload.clone())?;
    let request_id = Arc::clone(&ticket.request_id);
    tokio::spawn(see_through(ticket, Arc::clone(function), Arc::clone(host), payload));
    Ok(request_id)
}

/// Waits for an invocation's end and retries it.
async fn see_through(mut ticket: Ticket, function: Arc<Function>, host: Arc<Host>, payload: Bytes) {
    let name = &function.config.name;
    let mut waits = host.event_retry_ms.into_iter().take(function.config.event_retries);
    loop {
        let mut error = match ticket.wait().await {
            Ok(_) | Err(InvokeError::ShuttingDown) => return,
            Err(error) => error,
        };
        ticket = loop {
            let Some(wait_ms) = waits.next() else {
                tracing::warn!(function = %name, %error, "an event's run failed and is not retried");
                return;
            };
            let Ok(_place) = function.retries.try_acquire() else {
                tracing::warn!(function = %name, %error, "an event's run failed, and too many others wait for a retry");
                return;
            };
            tracing::warn!(function = %name, %error, wait_ms, "an event's run failed and is retried");
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
