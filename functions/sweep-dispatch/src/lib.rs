//! sweep-dispatch: marks containers and volumes for destruction; each node reports what it has
//! and is told what to destroy.
//!
//! Marked here, swept there; the next report is the receipt (Concourse #1959).
//!
//! Guarantees: a live handle is destroyed only if its row was marked, or it was unknown twice;
//! no report destroys or drops what it cannot have seen; rows of nodes that are no more go.
//! Does not: talk to nodes, or touch what does not carry a node's label.

mod act;
mod actions;
mod plan;
mod report;

pub use actions::Action;
pub use plan::{Plan, plan};

use model::functions::SWEEP_DISPATCH;
use model::ids::ClusterName;
use model::time::Time;
use runtime::answer::{ActionAnswer, Ran, RunAnswer};
use runtime::clock::RunClock;
use runtime::http::{Credentials, Request, answer};
use runtime::lambda::Reply;
use runtime::observation::{Observation, ObserveError};
use runtime::run::Run;
use serde_json::Value;
use std::sync::atomic::AtomicI64;
use store::Store;

/// The function's name.
pub const FUNCTION: &str = SWEEP_DISPATCH.name;

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
    pub async fn handle(&self, event: Value, clock: RunClock) -> Result<Reply, ObserveError> {
        if let Some(request) = Request::from_event(&event) {
            return Ok(Reply::Http(answer(self.report(&request, clock.now()).await)));
        }
        tick(&self.store, &event, clock).await.map(Reply::Run)
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
    let (actions, ran) = if dry_run {
        (ActionAnswer::said(&plan), Ran::DryRun)
    } else {
        (act::act(Run::new(SWEEP_DISPATCH, store, &seen, clock), &plan).await, Ran::Whole)
    };
    Ok(RunAnswer::new(FUNCTION, seen.observed_at, seen.counts(), actions, &clock, ran))
}
