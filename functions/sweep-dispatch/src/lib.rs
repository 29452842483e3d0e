//! sweep-dispatch: marks containers and volumes for destruction; each node reports what it has
//! and is told what to destroy.
//!
//! Marked here, swept there; the next report is the receipt (Concourse #1959).
//!
//! Guarantees: a live handle is destroyed only if its row was marked, or it was unknown twice;
//! no report destroys or drops what it cannot have seen; rows of nodes that are no more go.
//! Does not: talk to nodes, or touch what does not carry a node's label.

mod act;
mod plan;
mod report;

pub use plan::{Action, Plan, Planned, plan};

use serde_json::Value;
use shared::http::{Credentials, Request, answer};
use shared::ids::ClusterName;
use shared::observation::Observation;
use shared::run::{ActionAnswer, ObserveError, RunAnswer, RunClock};
use shared::store::Store;
use shared::time::Time;
use std::sync::atomic::AtomicI64;

/// The function's name.
pub const FUNCTION: &str = "sweep-dispatch";

/// What a settled report is told before the process has read the policy: its default.
const DEFAULT_REPORT_S: i64 = 30;

/// What the function works with.
#[derive(Debug)]
pub struct Sweep {
    pub(crate) store: Store,
    pub(crate) credentials: Credentials,
    pub(crate) cluster: ClusterName,
    /// `sweep.report_s` as last read: a settled report costs one read, and that is not the policy's.
    pub(crate) report_s: AtomicI64,
}

impl Sweep {
    /// On these tables.
    pub const fn new(store: Store, credentials: Credentials, cluster: ClusterName) -> Self {
        Self { store, credentials, cluster, report_s: AtomicI64::new(DEFAULT_REPORT_S) }
    }

    /// An HTTP event is a node's report, anything else the schedule.
    pub async fn handle(&self, event: &Value, clock: RunClock) -> Result<Value, ObserveError> {
        if let Some(request) = Request::from_event(event) {
            return Ok(answer(self.report(&request, clock.now()).await));
        }
        let run = tick(&self.store, event, clock).await?;
        Ok(serde_json::to_value(run).unwrap_or_default())
    }
}

/// Reads what a scheduled run decides from: the handles that are due, the live allocs, and
/// after them the node records.
pub async fn observe(store: &Store, now: Time) -> Result<Observation, ObserveError> {
    Observation::read_for_sweep(store, now).await
}

/// One scheduled run.
pub async fn tick(store: &Store, input: &Value, clock: RunClock) -> Result<RunAnswer, ObserveError> {
    let dry_run = input.get("dry_run").and_then(Value::as_bool).unwrap_or(false);
    let seen = observe(store, clock.now()).await?;
    let plan = plan(&seen, clock.now());
    let actions = if dry_run {
        ActionAnswer::said(plan.actions.iter().map(Planned::row))
    } else {
        act::act(store, &seen, &plan, clock).await
    };
    Ok(RunAnswer::new(FUNCTION, seen.observed_at, seen.counts(), actions, &clock))
}
