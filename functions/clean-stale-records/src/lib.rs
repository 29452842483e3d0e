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

pub use actions::{CleaningAction, Proof};
pub use plan::{CleaningPlan, plan};

use async_trait::async_trait;
use cloud::Ec2;
use model::functions::CLEAN_STALE_RECORDS;
use model::{Cloud, Function, Time};
use runtime::answer::{ActionAnswer, Ran, RunAnswer};
use runtime::clock::RunClock;
use runtime::controller::{self, Controller};
use runtime::env::FunctionNeeds;
use runtime::lambda::{self, Handler, Lambda, Parts, Reply};
use runtime::observation::{Observation, ObserveError};
use runtime::run::Run;
use serde_json::Value;
use store::Store;

pub const FUNCTION: &str = CLEAN_STALE_RECORDS.name;

pub const LAMBDA: Lambda = Lambda { name: FUNCTION, needs: FunctionNeeds { nodes: false, urls: false }, make };

fn make(parts: Parts) -> Handler {
    let ec2 = Ec2::connect(&parts.aws, parts.env.cluster.clone()).with_offers(&parts.aws);
    lambda::handler((parts.store, ec2), async |kept, input, clock| {
        tick(&kept.0, &kept.1, &input, clock).await.map(Reply::run)
    })
}

pub async fn tick(store: &Store, cloud: &dyn Cloud, input: &Value, clock: RunClock) -> Result<RunAnswer, ObserveError> {
    controller::tick(&Cleaning { store, cloud }, store, input, clock).await
}

struct Cleaning<'a> {
    store: &'a Store,
    cloud: &'a dyn Cloud,
}

#[async_trait]
impl Controller for Cleaning<'_> {
    type Action = CleaningAction;

    const FUNCTION: Function = CLEAN_STALE_RECORDS;
    const PLAN: fn(&Observation, Time) -> CleaningPlan = plan;

    async fn observe(&self, _: Time, clock: RunClock, _: Ran) -> Result<Observation, ObserveError> {
        Observation::read_for_cleaning(self.store, self.cloud, || clock.now()).await
    }

    async fn act(&self, run: Run<'_>, plan: &CleaningPlan) -> Vec<ActionAnswer> {
        act::act(run, self.cloud, plan).await
    }
}
