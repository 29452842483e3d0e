//! poll-and-scale: jobs and nodes in; launches, placements, lease expiry, reconnects and
//! shutdowns out.
//!
//! One [`tick`] reads everything, decides purely ([`mod@plan`]) and carries the decision out with
//! conditional writes ([`mod@act`]).
//!
//! Guarantees: killed at any instruction, run twice, late or beside itself, the next run puts
//! everything right from DynamoDB and EC2 alone; no more than `nodes.max` records are ever not
//! cleaned; no two instances for one node.
//! Does not: keep anything between runs, repeat a failed action, or know what woke it, but for
//! a spot interruption warning, whose drain is written first.

pub mod act;
pub mod plan;

pub use plan::{Action, Plan, Planned, plan};

use model::cloud::Cloud;
use model::control::{ControlKey, LastRun};
use model::functions::POLL_AND_SCALE;
use model::launch::LaunchSettings;
use model::time::{Span, Time};
use runtime::answer::{ActionAnswer, Ran, RunAnswer};
use runtime::clock::RunClock;
use runtime::observation::{Observation, ObserveError, Observed};
use runtime::run::Run;
use serde_json::Value;
use store::{Store, WriteError};

/// The function's name.
pub const FUNCTION: &str = POLL_AND_SCALE.name;

/// How long a spot instance stays after its warning (EC2 user guide, "Spot Instance
/// interruption notices").
const SPOT_WARNING: Span = Span::from_s(120);

/// One run.
pub async fn tick(
    store: &Store,
    cloud: &dyn Cloud,
    settings: &LaunchSettings,
    input: &Value,
    clock: RunClock,
) -> Result<RunAnswer, ObserveError> {
    let dry_run = input.get("dry_run").and_then(Value::as_bool).unwrap_or(false);
    let now = clock.now();
    // First of all, and whoever's turn it is: two minutes are short.
    if let (false, Some(instance_id)) = (dry_run, interrupted(input)) {
        drain_interrupted(store, instance_id, now).await?;
    }
    if !dry_run && !take_turn(store, input, now).await? {
        let (observed, ran) = (Observed::default(), Ran::NotItsTurn);
        return Ok(RunAnswer::new(FUNCTION, now, observed, Vec::new(), &clock, ran));
    }
    let seen = Observation::read(store, cloud, now).await?;
    let plan = plan(&seen, clock.now());
    let (actions, ran) = if dry_run {
        (ActionAnswer::said(&plan), Ran::DryRun)
    } else {
        let run = Run::new(POLL_AND_SCALE, store, &seen, clock);
        (act::act(run, cloud, settings, &plan).await, Ran::Whole)
    };
    Ok(RunAnswer::new(FUNCTION, seen.observed_at, seen.counts(), actions, &clock, ran))
}

/// At most one run in `poll.min_gap_s` is woken by events: the run that writes `last_run` runs. A
/// scheduled run always runs: what it observes is what counts, and a lost minute would be late.
async fn take_turn(store: &Store, input: &Value, now: Time) -> Result<bool, ObserveError> {
    let by_event = by_event(input);
    let last: LastRun = store.entry(&ControlKey::LastRun).await?;
    if by_event {
        let (policy, _) = store.ingest_control().await?.checked_policy()?;
        if last.since_at().is_some_and(|at| now.since(at) < Span::from_s(policy.poll.min_gap_s)) {
            return Ok(false);
        }
    }
    match store.write_entry(&last, &last.begun(now)).await {
        Ok(_) => Ok(true),
        Err(WriteError::Db(e)) => Err(e.into()),
        // Another run begins at this very moment.
        Err(_) => Ok(!by_event),
    }
}

/// EventBridge and DynamoDB streams say what happened; a schedule and a person do not.
fn by_event(input: &Value) -> bool {
    input.get("Records").is_some()
        || input.get("detail-type").and_then(Value::as_str).is_some_and(|t| t != "Scheduled Event")
}

fn interrupted(input: &Value) -> Option<&str> {
    let kind = input.get("detail-type")?.as_str()?;
    (kind == "EC2 Spot Instance Interruption Warning").then(|| input.get("detail")?.get("instance-id")?.as_str())?
}

async fn drain_interrupted(store: &Store, instance_id: &str, now: Time) -> Result<(), ObserveError> {
    for record in store.nodes().await? {
        if record.life().is_none_or(|l| l.instance_id.as_deref() != Some(instance_id)) {
            continue;
        }
        let Some(drained) = record.interrupted(now + SPOT_WARNING, now) else { continue };
        // A lost race is left to its agent, whose next heartbeat says the same.
        if let Err(WriteError::Db(e)) = store.write(Some(&record), &drained, Vec::new()).await {
            return Err(e.into());
        }
    }
    Ok(())
}
