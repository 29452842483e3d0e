//! Asynchronous invocations and schedules. A scheduled run is an asynchronous invocation.
//!
//! Guarantees: the sender of an event does not wait for the function; at most one scheduled run of a function waits in its queue, and skipped runs are counted.
//!
//! Does not: run a failed event again, keep events over a restart, or repeat runs missed while this machine slept.

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
            tokio::spawn(until_ended(ticket, Arc::clone(&function)));
        }
    }
}

/// Queues an asynchronous invocation and returns its request id.
pub(crate) fn send(function: &Arc<Function>, payload: Bytes) -> Result<Arc<str>, InvokeError> {
    let ticket = function.submit(payload)?;
    let request_id = Arc::clone(&ticket.request_id);
    tokio::spawn(until_ended(ticket, Arc::clone(function)));
    Ok(request_id)
}

/// Waits for the end of an invocation, and logs its failure.
async fn until_ended(ticket: Ticket, function: Arc<Function>) {
    match ticket.wait().await {
        Ok(_) | Err(InvokeError::ShuttingDown) => {}
        Err(error) => {
            tracing::warn!(function = %function.config.name, %error, "an asynchronous invocation failed");
        }
    }
}
