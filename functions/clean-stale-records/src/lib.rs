//! clean-stale-records: node records whose node is gone, orphaned instances, surplus rows; and
//! the watchdog of the other functions.
//!
//! Guarantees: a record is cleaned only if nothing lives in EC2 for it; an orphan is terminated
//! only after a consistent read of its slot proved it one; killed anywhere, the next run goes on.
//! Does not: launch or place anything, or restart what is overdue: a function that hangs is cut
//! off by itself. Rules: Arvados #12073 (stale records), #8236 (watchdog).

mod act;
mod plan;

pub use plan::{Action, Plan, Planned, plan};

use serde_json::Value;
use shared::cloud::Cloud;
use shared::observation::Observation;
use shared::run::{ActionAnswer, ObserveError, RunAnswer, RunClock};
use shared::store::Store;

/// The function's name.
pub const FUNCTION: &str = "clean-stale-records";

/// One run.
pub async fn tick(store: &Store, cloud: &dyn Cloud, input: &Value, clock: RunClock) -> Result<RunAnswer, ObserveError> {
    let dry_run = input.get("dry_run").and_then(Value::as_bool).unwrap_or(false);
    let seen = Observation::read(store, cloud, clock.now()).await?;
    let plan = plan(&seen, clock.now());
    let actions = if dry_run {
        ActionAnswer::said(plan.actions.iter().map(Planned::row))
    } else {
        act::act(store, cloud, &seen, &plan, clock).await
    };
    Ok(RunAnswer::new(FUNCTION, seen.observed_at, seen.counts(), actions, &clock))
}
