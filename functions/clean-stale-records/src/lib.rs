//! clean-stale-records: cleans records whose node is gone, terminates orphans, deletes surplus rows, and
//! watches the other functions.
//!
//! Guarantees: a record is cleaned only if EC2 has no live instance for it; an orphan is terminated only
//! after a consistent read of its slot; if a run is killed at any point, the next run finishes the work.
//! Does not: launch or place anything, or restart an overdue function: Lambda ends a function that hangs.
//! Sources: Arvados #12073 (stale records), #8236 (watchdog).

pub mod act;
mod actions;
mod plan;

pub use actions::{Action, Proof};
pub use plan::{Plan, plan};

use cloud::Ec2;
use model::cloud::Cloud;
use model::functions::CLEAN_STALE_RECORDS;
use runtime::answer::{ActionAnswer, Ran, RunAnswer};
use runtime::clock::RunClock;
use runtime::env::Needs;
use runtime::lambda::{self, Handler, Lambda, Parts, Reply};
use runtime::observation::{Observation, ObserveError};
use runtime::run::{Mode, Run};
use runtime::signs::{self, Facts};
use runtime::watchdog;
use serde_json::Value;
use store::Store;

pub const FUNCTION: &str = CLEAN_STALE_RECORDS.name;

pub const LAMBDA: Lambda = Lambda { name: FUNCTION, needs: Needs { nodes: false, urls: false }, make };

fn make(parts: Parts) -> Handler {
    let ec2 = Ec2::connect(&parts.aws, parts.env.cluster.clone()).with_offers(&parts.aws);
    lambda::handler((parts.store, ec2), async |kept, input, clock| {
        tick(&kept.0, &kept.1, &input, clock).await.map(Reply::run)
    })
}

pub async fn tick(store: &Store, cloud: &dyn Cloud, input: &Value, clock: RunClock) -> Result<RunAnswer, ObserveError> {
    let mode = Mode::of(input);
    let run = run(store, cloud, mode, clock);
    match mode {
        Mode::DryRun => run.await,
        Mode::Act => watchdog::recorded(CLEAN_STALE_RECORDS, store, clock, run).await,
    }
}

async fn run(store: &Store, cloud: &dyn Cloud, mode: Mode, clock: RunClock) -> Result<RunAnswer, ObserveError> {
    let seen = Observation::read_for_cleaning(store, cloud, || clock.now()).await?;
    let now = clock.now();
    let plan = plan(&seen, now);
    let orphans = plan.actions.iter().filter(|p| matches!(p.action, Action::TerminateOrphan { .. })).count();
    let wrong = signs::wrong(CLEAN_STALE_RECORDS, &Facts::of_run(CLEAN_STALE_RECORDS, &seen, orphans, now));
    let (actions, ran) = if mode == Mode::DryRun {
        let plan = act::confirm(store, cloud, &seen, plan).await?;
        (ActionAnswer::said(&plan), Ran::DryRun)
    } else {
        (act::act(Run::new(CLEAN_STALE_RECORDS, store, &seen, clock), cloud, &plan).await, Ran::Whole)
    };
    Ok(RunAnswer::new(FUNCTION, seen.observed_at, seen.counts(), actions, &clock, ran).telling(wrong))
}
