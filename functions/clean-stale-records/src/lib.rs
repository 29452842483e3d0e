//! clean-stale-records: node records whose node is gone, orphaned instances, surplus rows; and
//! the watchdog of the other functions.
//!
//! Guarantees: a record is cleaned only if nothing lives in EC2 for it; an orphan is terminated
//! only after a consistent read of its slot proved it one; killed anywhere, the next run goes on.
//! Does not: launch or place anything, or restart what is overdue: a function that hangs is cut
//! off by itself. Rules: Arvados #12073 (stale records), #8236 (watchdog).

mod act;
mod actions;
mod plan;

pub use actions::{Action, Proof};
pub use plan::{Plan, plan};

use model::cloud::Cloud;
use model::functions::CLEAN_STALE_RECORDS;
use runtime::answer::{ActionAnswer, Ran, RunAnswer};
use runtime::clock::RunClock;
use runtime::observation::{Observation, ObserveError};
use runtime::run::Run;
use serde_json::Value;
use store::Store;

/// The function's name.
pub const FUNCTION: &str = CLEAN_STALE_RECORDS.name;

/// One run.
pub async fn tick(store: &Store, cloud: &dyn Cloud, input: &Value, clock: RunClock) -> Result<RunAnswer, ObserveError> {
    let dry_run = input.get("dry_run").and_then(Value::as_bool).unwrap_or(false);
    let seen = Observation::read(store, cloud, clock.now()).await?;
    let plan = plan(&seen, clock.now());
    let (actions, ran) = if dry_run {
        (ActionAnswer::said(&plan), Ran::DryRun)
    } else {
        (act::act(Run::new(CLEAN_STALE_RECORDS, store, &seen, clock), cloud, &plan).await, Ran::Whole)
    };
    Ok(RunAnswer::new(FUNCTION, seen.observed_at, seen.counts(), actions, &clock, ran))
}
