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

pub use plan::{Action, FleetPlan, PlannedAction, plan};

use async_trait::async_trait;
use cloud::Ec2;
use model::control::PollTurn;
use model::functions::POLL_AND_SCALE;
use model::policy::PollPolicy;
use model::{Cloud, ControlKey, Function, LaunchSettings, Span, Time};
use runtime::answer::{ActionAnswer, Ran, RunAnswer};
use runtime::clock::RunClock;
use runtime::controller::{self, Controller};
use runtime::env::FunctionNeeds;
use runtime::lambda::{self, Handler, Lambda, Parts, Reply};
use runtime::observation::{Observation, ObserveError};
use runtime::run::Run;
use runtime::signs::Raised;
use serde_json::Value;
use std::time::Duration;
use store::{Store, WriteError, transactions};

pub const FUNCTION: &str = POLL_AND_SCALE.name;

pub const LAMBDA: Lambda = Lambda { name: FUNCTION, needs: FunctionNeeds { nodes: true, urls: true }, make };

fn make(parts: Parts) -> Handler {
    let (ec2, settings) = (Ec2::connect(&parts.aws, parts.env.cluster.clone()), parts.launch_settings());
    lambda::handler((parts.store, ec2, settings), async |kept, input, clock| {
        tick(&kept.0, &kept.1, &kept.2, &input, clock).await.map(Reply::run)
    })
}

/// How long a spot instance stays after its warning (EC2 user guide, "Spot Instance
/// interruption notices").
pub(crate) const SPOT_WARNING: Span = Span::from_s(120);

/// The longest that a run waits for its turn. Lambda ends the invocation after 55 s, and the run itself needs its time.
const LONGEST_WAIT: Span = Span::from_s(20);

/// This many nodes in use add one `poll.min_gap_s` to the time between two runs that events start.
const NODES_PER_GAP: u64 = 500;

/// How often a run tries to take its turn. If it loses each race, it begins all the same: one run too many does no harm.
const RACES: u32 = 4;

/// One run, started by the schedule or by an event.
pub async fn tick(
    store: &Store,
    cloud: &dyn Cloud,
    settings: &LaunchSettings,
    input: &Value,
    clock: RunClock,
) -> Result<RunAnswer, ObserveError> {
    controller::tick(&Scaling { store, cloud, settings }, store, input, clock).await
}

struct Scaling<'a> {
    store: &'a Store,
    cloud: &'a dyn Cloud,
    settings: &'a LaunchSettings,
}

#[async_trait]
impl Controller for Scaling<'_> {
    type Action = Action;

    const FUNCTION: Function = POLL_AND_SCALE;
    const PLAN: fn(&Observation, Time) -> FleetPlan = plan;

    async fn begins_at(&self, input: &Value, clock: RunClock) -> Result<Option<Time>, ObserveError> {
        let now = clock.now();
        // The drain is written even if this run then leaves: the warning comes only two minutes before the end.
        if let Some((by, instance_id)) = warned(input, now) {
            drain_interrupted(self.store, instance_id, by, now).await?;
        }
        match take_turn(self.store, input, now).await? {
            Turn::Now => Ok(Some(now)),
            Turn::At(due) => {
                let wait = u64::try_from(due.since(clock.now()).as_ms()).unwrap_or(0);
                tokio::time::sleep(Duration::from_millis(wait)).await;
                begin(self.store, clock.now()).await?;
                Ok(Some(clock.now()))
            }
            Turn::Left => Ok(None),
        }
    }

    async fn observe(&self, now: Time, _: RunClock, ran: Ran) -> Result<Observation, ObserveError> {
        match ran {
            Ran::Whole => Observation::read_in_turn(self.store, self.cloud, now).await,
            _ => Observation::read(self.store, self.cloud, now).await,
        }
    }

    async fn act(&self, run: Run<'_>, plan: &FleetPlan) -> Vec<ActionAnswer> {
        act::act(run, self.cloud, self.settings, plan).await
    }

    async fn dry_run(&self, run: Run<'_>) -> Vec<Raised> {
        act::dry_run(run, self.cloud, self.settings).await
    }
}

/// When a run begins, if it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    /// This run begins now.
    Now,
    /// This run begins at this time: `poll.min_gap_s` after the last one.
    At(Time),
    /// This run does nothing: a later run, which waits for its turn or is scheduled, sees everything that this run would see.
    Left,
}

/// Decides when this run begins, and writes that to `last_run`.
///
/// Events start at most one run in a gap. The run of the first event within a gap waits for the end of the gap. The runs of
/// the other events leave, because the waiting run reads everything after them. If the waiting run is killed, or if the wait
/// would be longer than [`LONGEST_WAIT`], the scheduled run of the next minute sees the changes that the events are about. A
/// scheduled run does not wait for a gap.
async fn take_turn(store: &Store, input: &Value, now: Time) -> Result<Turn, ObserveError> {
    let by_event = by_event(input);
    for _ in 0..RACES {
        let last: PollTurn = store.entry(&ControlKey::LastRun).await?;
        // A time far ahead is from a wrong clock. It must not keep every run from its turn.
        let can_be = |at: &Time| at.since(now) <= LONGEST_WAIT;
        if by_event && last.promised_at(now).is_some_and(|at| can_be(&at)) {
            return Ok(Turn::Left);
        }
        let gap = if by_event { gap_now(store).await? } else { Span::ZERO };
        let due = last.since_at.filter(can_be).map_or(now, |at| at + gap).max(now);
        let (after, turn) = if due == now { (last.begun(now), Turn::Now) } else { (last.promised(due), Turn::At(due)) };
        match store.write_entry(&last, &after).await {
            Ok(_) => return Ok(turn),
            Err(WriteError::Db(e)) => return Err(e.into()),
            // Another run takes its turn at the same moment.
            Err(_) if by_event => {}
            Err(_) => return Ok(Turn::Now),
        }
    }
    Ok(Turn::Now)
}

/// Notes that a run that has waited begins now. A lost race is fine: another run begins at the same moment.
async fn begin(store: &Store, now: Time) -> Result<(), ObserveError> {
    let last: PollTurn = store.entry(&ControlKey::LastRun).await?;
    match store.write_entry(&last, &last.begun(now)).await {
        Err(WriteError::Db(e)) => Err(e.into()),
        _ => Ok(()),
    }
}

/// The shortest time between two runs that events start. It grows with the fleet, because a run reads every node: so the
/// cost of the runs stays a small part of the cost of the nodes.
pub fn gap(policy: &PollPolicy, in_use: u64) -> Span {
    let least = policy.min_gap_s;
    let grown = least.saturating_mul(1 + i64::try_from(in_use / NODES_PER_GAP).unwrap_or(0));
    Span::from_s(grown).min(LONGEST_WAIT)
}

async fn gap_now(store: &Store) -> Result<Span, ObserveError> {
    let control = store.ingest_control().await?;
    let (policy, _) = control.checked_policy()?;
    let in_use = control.runs.get(POLL_AND_SCALE.name).and_then(|r| r.in_use).unwrap_or(0);
    Ok(gap(&policy.poll, in_use))
}

/// Whether an event started the run. The inputs of EventBridge rules and DynamoDB streams name an event. The inputs of
/// a schedule or a person do not.
fn by_event(input: &Value) -> bool {
    input.get("Records").is_some()
        || input.get("detail-type").and_then(Value::as_str).is_some_and(|t| t != "Scheduled Event")
}

/// The instance that an event of EC2 says will go, and when: two minutes after an interruption warning. A rebalance
/// recommendation names no time, because it only says that EC2 may take the instance soon.
fn warned(input: &Value, now: Time) -> Option<(Option<Time>, &str)> {
    let by = match input.get("detail-type")?.as_str()? {
        // The second one is about a capacity reservation that another account has lent.
        "EC2 Spot Instance Interruption Warning" | "EC2 Capacity Reservation Instance Interruption Warning" => {
            Some(warned_at(input, now) + SPOT_WARNING)
        }
        "EC2 Instance Rebalance Recommendation" => None,
        _ => return None,
    };
    Some((by, input.get("detail")?.get("instance-id")?.as_str()?))
}

/// When EC2 gave the warning, which may be long before the run. An impossible time counts as the nearest possible one.
fn warned_at(input: &Value, now: Time) -> Time {
    let at = input.get("time").and_then(Value::as_str).and_then(|at| at.parse::<Time>().ok());
    at.unwrap_or(now).clamp(now - SPOT_WARNING, now)
}

/// Drains the node of this instance until `by`. Without a deadline, drains it only if `launch.drain_at_risk` is set.
async fn drain_interrupted(store: &Store, instance_id: &str, by: Option<Time>, now: Time) -> Result<(), ObserveError> {
    let policy = store.ingest_control().await.ok().and_then(|control| control.checked_policy().ok());
    let policy = policy.map(|(policy, _)| policy);
    if by.is_none() && !policy.as_ref().is_some_and(|policy| policy.launch.drain_at_risk) {
        return Ok(());
    }
    let keep_events = policy.map(|policy| policy.history.keep_events());
    for record in store.nodes_listed(1).await?.rows {
        if record.life().is_none_or(|l| l.instance_id.as_deref() != Some(instance_id)) {
            continue;
        }
        // A lost race is fine: the next heartbeat of the agent reports the same interruption.
        if let Err(WriteError::Db(e)) = transactions::drain_interrupted(store, &record, by, keep_events, now).await {
            return Err(e.into());
        }
    }
    Ok(())
}
