//! Carrying the decision out. Each action is tried once; the next run is the retry.

use crate::FUNCTION;
use crate::plan::{Action, Plan, Planned, is_orphan};
use shared::cloud::{Cloud, CloudError, InstanceState};
use shared::events::Event;
use shared::observation::Observation;
use shared::run::{ActionAnswer, Done, RunClock};
use shared::steps::{self, Keep};
use shared::store::{DbError, RunRow, Store, WriteError, delete_node, silent_since};
use shared::time::Span;

#[derive(Debug, thiserror::Error)]
enum ActError {
    #[error(transparent)]
    Write(#[from] WriteError),
    #[error(transparent)]
    Cloud(#[from] CloudError),
}

impl From<DbError> for ActError {
    fn from(e: DbError) -> Self {
        Self::Write(e.into())
    }
}

const CONFLICT: ActError = ActError::Write(WriteError::CONFLICT);

pub(crate) async fn act(
    store: &Store,
    cloud: &dyn Cloud,
    seen: &Observation,
    plan: &Plan,
    clock: RunClock,
) -> Vec<ActionAnswer> {
    let mut answers = Vec::with_capacity(plan.actions.len());
    for planned in &plan.actions {
        let age = clock.now().since(seen.observed_at);
        let fresh = age <= Span::from_s(seen.policy.poll.stale_after_s);
        if !clock.has_left(seen.policy.watchdog.reserve_ms) || !fresh {
            answers.push(ActionAnswer::new(planned.row(), Done::Left, None));
            continue;
        }
        let (outcome, error) = match perform(store, cloud, seen, planned, clock).await {
            Ok(done) => (done, None),
            Err(ActError::Write(e)) if e.is_conflict() => (Done::Conflict, None),
            Err(e) => {
                tracing::warn!(action = planned.row().action, subject = %planned.subject(), error = %e, "not done");
                (Done::Failed, Some(e.to_string()))
            }
        };
        if matches!(outcome, Done::Yes | Done::Said) && planned.news {
            let (subject, keep) = (planned.subject(), seen.policy.history.keep_events());
            let (action, reason) = (planned.row().action, &planned.reason);
            store.tell(&Event::new(&subject, action, reason, clock.now(), keep, store.chance())).await;
        }
        answers.push(ActionAnswer::new(planned.row(), outcome, error));
    }
    let before = seen.control.runs.get(FUNCTION);
    store.write_run(before, &RunRow::after(FUNCTION, before, seen.observed_at, clock.elapsed(), &answers)).await;
    answers
}

async fn perform(
    store: &Store,
    cloud: &dyn Cloud,
    seen: &Observation,
    planned: &Planned,
    clock: RunClock,
) -> Result<Done, ActError> {
    let now = clock.now();
    match &planned.action {
        Action::Clean { node_id, stale } => {
            let record = seen.nodes.iter().find(|r| r.node_id() == Some(*node_id)).ok_or(CONFLICT)?;
            let mut more = Vec::new();
            if *stale {
                // The node that just spoke wins, and so does an instance that EC2 knows by id (a terminated
                // one for an hour after its tags are gone).
                more.push(silent_since(record));
                if let Some(id) = record.life().and_then(|l| l.instance_id.as_deref())
                    && cloud.instance(id).await?.is_some_and(|i| i.state != InstanceState::Terminated)
                {
                    return Err(CONFLICT);
                }
            }
            steps::clean_node(store, record, &planned.reason, more, Keep::of(&seen.policy), now).await?;
        }
        Action::DeleteRecord(record) => store.apply(&delete_node(record)).await?,
        Action::TerminateOrphan { instance_id, node_id } => {
            // A consistent read just before proves it.
            let record = store.node(node_id.slot()).await?;
            if !is_orphan(record.as_ref(), *node_id, instance_id) {
                return Err(CONFLICT);
            }
            cloud.terminate(std::slice::from_ref(instance_id)).await?;
        }
        Action::Warn(_) => {
            tracing::warn!(subject = %planned.subject(), "{}", planned.reason);
            return Ok(Done::Said);
        }
        Action::HoldBack(memory) => {
            store.remember(&seen.control.memory(&memory.key), memory).await?;
            return Ok(Done::Said);
        }
    }
    Ok(Done::Yes)
}
