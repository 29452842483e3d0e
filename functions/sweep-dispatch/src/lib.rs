//! sweep-dispatch: marks containers and volumes for destruction. Each node reports its handles and is told
//! which to destroy.
//!
//! The end of an alloc marks its handle, and this function marks all others. The node destroys what is marked, and its next
//! report confirms that (Concourse #1959). The container of a complete alloc needs no row at first.
//!
//! Guarantees: a handle is destroyed only if its row was marked, its alloc is complete, or two reports listed it as unknown. A report
//! that may be older than the row of a handle never makes the handle missing or gone. When the life of a node is over, its rows are
//! deleted.
//! Does not: call nodes, or destroy anything that does not have the node's label.

mod act;
mod actions;
mod batches;
mod judging;
mod plan;
mod report;

use act::Sweeping;
pub use actions::SweepAction;
pub use plan::{SweepPlan, plan};

use async_trait::async_trait;
use model::functions::SWEEP_DISPATCH;
use model::{ClusterName, Function, Time};
use runtime::answer::{ActionAnswer, Ran, RunAnswer};
use runtime::clock::RunClock;
use runtime::controller::{self, Controller};
use runtime::env::FunctionNeeds;
use runtime::http::{NodeAdmission, NodeCredentials, Request, answer};
use runtime::lambda::{self, Handler, Lambda, Parts, Reply};
use runtime::observation::{Observation, ObserveError};
use runtime::run::Run;
use serde_json::Value;
use std::sync::atomic::AtomicI64;
use store::Store;

pub const FUNCTION: &str = SWEEP_DISPATCH.name;

pub const LAMBDA: Lambda = Lambda { name: FUNCTION, needs: FunctionNeeds { nodes: true, urls: false }, make };

fn make(parts: Parts) -> Handler {
    let sweep = Sweep::new(parts.store, parts.env.credentials, parts.env.cluster);
    lambda::handler(sweep, async |sweep, event, clock| sweep.handle(event, clock).await)
}

/// The time between reports, in seconds, until the process has read the policy: the default of
/// `sweep.report_s`.
const DEFAULT_REPORT_S: i64 = 30;

pub struct Sweep {
    pub(crate) store: Store,
    pub(crate) admission: NodeAdmission,
    /// `sweep.report_s` as last read: so a settled report reads the node's record and nothing else.
    pub(crate) report_s: AtomicI64,
}

impl Sweep {
    pub fn new(store: Store, credentials: NodeCredentials, cluster: ClusterName) -> Self {
        let admission = NodeAdmission::new(SWEEP_DISPATCH.routes, credentials, cluster);
        Self { store, admission, report_s: AtomicI64::new(DEFAULT_REPORT_S) }
    }

    /// Answers an event. An HTTP event is a report of a node; any other event starts a scheduled run.
    pub async fn handle(&self, event: Value, clock: RunClock) -> Result<Reply, ObserveError> {
        if Request::from_event(&event).is_some() {
            return Ok(Reply::Http(answer(self.report(&event, clock).await)));
        }
        tick(&self.store, &event, clock).await.map(Reply::run)
    }
}

/// One scheduled run.
pub async fn tick(store: &Store, input: &Value, clock: RunClock) -> Result<RunAnswer, ObserveError> {
    controller::tick(&Schedule(store), store, input, clock).await
}

/// The scheduled runs.
struct Schedule<'a>(&'a Store);

#[async_trait]
impl Controller for Schedule<'_> {
    type Action = SweepAction;

    const FUNCTION: Function = SWEEP_DISPATCH;
    const PLAN: fn(&Observation, Time) -> SweepPlan = plan;

    async fn observe(&self, now: Time, _: RunClock, _: Ran) -> Result<Observation, ObserveError> {
        Observation::read_for_sweep(self.0, now).await
    }

    async fn act(&self, run: Run<'_>, plan: &SweepPlan) -> Vec<ActionAnswer> {
        run.act(&Sweeping(&run), plan).await
    }
}
