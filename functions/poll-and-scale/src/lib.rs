//! poll-and-scale: reads jobs and nodes; launches and shuts down nodes, places jobs, expires leases and
//! resolves reconnects.
//!
//! One [`tick`] reads everything, makes a plan by a pure function ([`mod@plan`]) and carries it out with
//! conditional writes ([`mod@act`]).
//!
//! Guarantees: if a run is killed at any instruction, or runs twice, late or at the same time as another, the
//! next run puts everything right from DynamoDB and EC2 alone (`docs/rules.md#R1`); there are never more
//! than `nodes.max` records that are not cleaned; a node never has two instances.
//! Does not: keep anything between runs, or repeat a failed action. The plan does not depend on what started the run.
//! If a spot interruption warning started the run, its drain is written first.

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

/// The name of the function.
pub const FUNCTION: &str = POLL_AND_SCALE.name;

/// How long a spot instance stays after its warning (EC2 user guide, "Spot Instance
/// interruption notices").
const SPOT_WARNING: Span = Span::from_s(120);

/// One run, started by the schedule or by an event.
pub async fn tick(
    store: &Store,
    cloud: &dyn Cloud,
    settings: &LaunchSettings,
    input: &Value,
    clock: RunClock,
) -> Result<RunAnswer, ObserveError> {
    let dry_run = input.get("dry_run").and_then(Value::as_bool).unwrap_or(false);
    let now = clock.now();
    // The drain is written first, even if it is not this run's turn, because the warning comes only two minutes before
    // the end.
    if let (false, Some(instance_id)) = (dry_run, interrupted(input)) {
        drain_interrupted(store, instance_id, now).await?;
    }
    if !dry_run && !take_turn(store, input, now).await? {
        let (observed, ran) = (Observed::default(), Ran::NotItsTurn);
        return Ok(RunAnswer::new(FUNCTION, now, observed, Vec::new(), &clock, ran));
    }
    let seen = Observation::read(store, cloud, now).await?;
    let plan = plan(&seen, clock.now());
    let explained = plan.explained.answer();
    let (actions, ran) = if dry_run {
        let plan = act::confirm(store, cloud, &seen, plan, clock.now()).await?;
        (ActionAnswer::said(&plan), Ran::DryRun)
    } else {
        let run = Run::new(POLL_AND_SCALE, store, &seen, clock);
        (act::act(run, cloud, settings, &plan).await, Ran::Whole)
    };
    Ok(RunAnswer::new(FUNCTION, seen.observed_at, seen.counts(), actions, &clock, ran).explaining(explained))
}

/// Whether it is this run's turn. Events start at most one run in `poll.min_gap_s`: the one that writes
/// `last_run`. A scheduled run always has its turn, because skipping it would lose a minute.
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
        // Another run starts at the same moment. A run that an event started leaves the turn to it.
        Err(_) => Ok(!by_event),
    }
}

/// Whether an event started the run. The inputs of EventBridge rules and DynamoDB streams name an event. The inputs of
/// a schedule or a person do not.
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
        // A lost race is fine: the next heartbeat of the agent reports the same interruption.
        if let Err(WriteError::Db(e)) = store.write(Some(&record), &drained, Vec::new()).await {
            return Err(e.into());
        }
    }
    Ok(())
}
