//! Carrying the decision out. Each action is tried once; the next run is the retry.

use crate::FUNCTION;
use crate::plan::{Action, Plan, Planned};
use shared::events::Event;
use shared::ids::NodeId;
use shared::model::{Handle, HandleState, MAX_DUE_S, NodeRecord};
use shared::observation::Observation;
use shared::run::{ActionAnswer, Done, RunClock};
use shared::store::{DbError, RunRow, Store, WriteError, change, change_handle, delete_handle, unchanged};
use shared::time::{Span, Time};
use std::collections::BTreeMap;

pub(crate) async fn act(store: &Store, seen: &Observation, plan: &Plan, clock: RunClock) -> Vec<ActionAnswer> {
    let mut records: BTreeMap<NodeId, NodeRecord> =
        seen.nodes.iter().filter_map(|r| Some((r.node_id()?, r.clone()))).collect();
    let mut answers = Vec::with_capacity(plan.actions.len());
    for planned in &plan.actions {
        let fresh = clock.now().since(seen.observed_at) <= Span::from_s(seen.policy.poll.stale_after_s);
        if !clock.has_left(seen.policy.watchdog.reserve_ms) || !fresh {
            answers.push(ActionAnswer::new(planned.row(), Done::Left, None));
            continue;
        }
        let result = perform(store, &mut records, planned, clock.now()).await;
        let (outcome, error) = match result {
            Ok(()) => (Done::Yes, None),
            Err(e) if e.is_conflict() => (Done::Conflict, None),
            Err(e) => {
                tracing::warn!(action = planned.row().action, subject = %planned.subject(), error = %e, "not done");
                (Done::Failed, Some(e.to_string()))
            }
        };
        if outcome == Done::Yes && matches!(planned.action, Action::MarkDestroying(_)) {
            let (subject, row, keep) = (planned.subject(), planned.row(), seen.policy.history.keep_events());
            let event = Event::new(&subject, row.action, &row.reason, clock.now(), keep, store.chance());
            store.tell(&event.with("handle", row.handle.unwrap_or_default())).await;
        }
        answers.push(ActionAnswer::new(planned.row(), outcome, error));
    }
    let before = seen.control.runs.get(FUNCTION);
    store.write_run(before, &RunRow::after(FUNCTION, before, seen.observed_at, clock.elapsed(), &answers)).await;
    answers
}

async fn perform(
    store: &Store,
    records: &mut BTreeMap<NodeId, NodeRecord>,
    planned: &Planned,
    now: Time,
) -> Result<(), WriteError> {
    match &planned.action {
        Action::MarkDestroying(handle) => {
            let record = records.get(&handle.node_id).ok_or(WriteError::CONFLICT)?;
            let told = mark(store, record, handle, now).await?;
            records.insert(handle.node_id, told);
            Ok(())
        }
        Action::Wait(before, after) => {
            // What its node's record says, that its alloc is live above all, must still be so: what ends
            // meanwhile is not put off.
            let mut writes = vec![change_handle(before, after)];
            writes.extend(records.get(&before.node_id).map(unchanged));
            store.transact(&writes).await
        }
        Action::ForgetHandle(handle) | Action::Purge(handle) => store.apply(&delete_handle(handle)).await,
    }
}

/// Marks a handle: the row and the node's `seq` in one transaction, so that a report can be told
/// to have known of it.
pub(crate) async fn mark(
    store: &Store,
    record: &NodeRecord,
    handle: &Handle,
    now: Time,
) -> Result<NodeRecord, WriteError> {
    let told = record.with_news(now).map_err(|_| WriteError::CONFLICT)?;
    let (write, told) = change(Some(record), &told);
    let seq = told.life().map_or(0, |l| l.seq);
    let after = Handle {
        state: HandleState::Destroying,
        seq,
        due_at: now + Span::from_s(MAX_DUE_S),
        deadline_at: None,
        missing_ms: None,
        missing_seen_at: None,
        ..handle.clone()
    };
    store.transact(&[write, change_handle(handle, &after)]).await?;
    Ok(told)
}

/// A read that failed fails the request.
pub(crate) const fn unread(e: DbError) -> WriteError {
    WriteError::Db(e)
}
