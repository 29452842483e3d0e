//! A scheduled run from its start to its answer: observe, plan, act.
//!
//! Guarantees: every scheduled function runs so; a run that fails leaves its error in its row.
//! Does not: decide anything, or carry anything out: the functions and [`run`](crate::run) do.

use crate::answer::{ActionAnswer, Ran, RunAnswer};
use crate::clock::RunClock;
use crate::observation::{Observation, ObserveError, ObservedCounts};
use crate::run::Run;
use crate::signs::{self, Facts, Raised};
use crate::watchdog;
use async_trait::async_trait;
use model::{Describe, Function, Plan, Time};
use serde_json::Value;
use store::Store;

/// What a scheduled function reads, decides and does.
#[async_trait]
pub trait Controller: Sync {
    type Action: Describe + Send + Sync;

    const FUNCTION: Function;
    const PLAN: fn(&Observation, Time) -> Plan<Self::Action>;

    /// When a run that acts begins, which may be after a wait; `None` if it leaves everything to a later run.
    async fn begins_at(&self, _input: &Value, clock: RunClock) -> Result<Option<Time>, ObserveError> {
        Ok(Some(clock.now()))
    }

    /// Reads everything that the plan needs. The run began at `now`.
    async fn observe(&self, now: Time, clock: RunClock, ran: Ran) -> Result<Observation, ObserveError>;

    async fn act(&self, run: Run<'_>, plan: &Plan<Self::Action>) -> Vec<ActionAnswer>;

    /// What would keep the actions of any run from success, as far as that can be asked without changing anything.
    async fn dry_run(&self, _run: Run<'_>) -> Vec<Raised> {
        Vec::new()
    }
}

/// One run, started by the schedule, an event or a person. With `"dry_run": true` it only says what it would do.
pub async fn tick<C: Controller>(
    controller: &C,
    store: &Store,
    input: &Value,
    clock: RunClock,
) -> Result<RunAnswer, ObserveError> {
    match input.get("dry_run").and_then(Value::as_bool) {
        Some(true) => run(controller, store, input, Ran::DryRun, clock).await,
        _ => watchdog::recorded(C::FUNCTION, store, clock, run(controller, store, input, Ran::Whole, clock)).await,
    }
}

async fn run<C: Controller>(
    controller: &C,
    store: &Store,
    input: &Value,
    ran: Ran,
    clock: RunClock,
) -> Result<RunAnswer, ObserveError> {
    let begins_at = if ran == Ran::Whole { controller.begins_at(input, clock).await? } else { Some(clock.now()) };
    let Some(now) = begins_at else {
        let (observed, ran) = (ObservedCounts::default(), Ran::NotItsTurn);
        return Ok(RunAnswer::new(C::FUNCTION.name, clock.now(), observed, Vec::new(), &clock, ran));
    };
    let seen = controller.observe(now, clock, ran).await?;
    let now = clock.now();
    let plan = C::PLAN(&seen, now);
    let wrong = signs::wrong(C::FUNCTION, &Facts::of_run(C::FUNCTION, &seen, &plan, now));
    let run = Run::new(C::FUNCTION, store, &seen, clock);
    let (actions, refused) = if ran == Ran::Whole {
        (controller.act(run, &plan).await, Vec::new())
    } else {
        (ActionAnswer::of_dry_run(&plan), controller.dry_run(run).await)
    };
    let answer = RunAnswer::new(C::FUNCTION.name, seen.observed_at, seen.counts(), actions, &clock, ran);
    Ok(RunAnswer { refused, unready: plan.unready, wrong, ..answer })
}
