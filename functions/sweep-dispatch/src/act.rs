//! Carrying out the plan: one attempt for each action.
//!
//! Guarantees: a handle is marked together with its node's `seq`, in one transaction.
//! Does not: retry (the next run does) or contain the loop (`runtime::run` does).

use crate::actions::Action;
use crate::batches::{TOGETHER, marks};
use crate::plan::Plan;
use async_trait::async_trait;
use model::action::Planned;
use model::ids::NodeId;
use model::time::Time;
use model::{Handle, NodeRecord};
use runtime::answer::{ActError, ActionAnswer, Outcome};
use runtime::run::{Numbered, Perform, PerformTogether, Run};
use std::collections::BTreeMap;
use store::{Store, WriteError, change_handle, delete_handle, unchanged};

struct Acting<'a>(Run<'a>);

/// How many actions run at the same time.
const AT_ONCE: usize = 8;

/// Carries out the plan. The marks of one node are made together.
pub(crate) async fn act(run: Run<'_>, plan: &Plan) -> Vec<ActionAnswer> {
    let acting = Acting(run);
    let numbered = plan.actions.iter().enumerate();
    let (marks, others): (Vec<Numbered<'_, Action>>, Vec<_>) =
        numbered.partition(|(_, p)| matches!(p.action, Action::MarkDestroying(_)));
    let mut by_node = BTreeMap::<NodeId, Vec<Numbered<'_, Action>>>::new();
    for (n, planned) in marks {
        if let Action::MarkDestroying(handle) = &planned.action {
            by_node.entry(handle.node_id).or_default().push((n, planned));
        }
    }
    let calls = by_node.into_values().flat_map(|marks| marks.chunks(TOGETHER).map(<[_]>::to_vec).collect::<Vec<_>>());
    let mut answers = acting.0.calls_at_once(&acting, calls.collect(), AT_ONCE).await;
    answers.extend(acting.0.at_once(&acting, others, AT_ONCE).await);
    let brakes = plan.actions.iter().filter_map(|planned| match &planned.action {
        Action::EndBrake(change) => Some(change.as_ref()),
        _ => None,
    });
    acting.0.use_releases(brakes, &answers).await;
    acting.0.finish(answers, None).await
}

#[async_trait]
impl PerformTogether<Action> for Acting<'_> {
    async fn perform_together(&self, planned: &[&Planned<Action>]) -> Vec<(Outcome, Option<String>)> {
        let handles: Vec<&Handle> = planned
            .iter()
            .filter_map(|p| match &p.action {
                Action::MarkDestroying(handle) => Some(handle),
                _ => None,
            })
            .collect();
        match self.mark(&handles).await {
            Ok(()) => return planned.iter().map(|_| (Outcome::Done, None)).collect(),
            // One of the rows has changed: the others are marked alone.
            Err(e) if handles.len() > 1 && e.outcome().0 == Outcome::Conflict => {}
            Err(e) => return planned.iter().map(|_| e.outcome()).collect(),
        }
        let mut outcomes = Vec::with_capacity(handles.len());
        for handle in handles {
            // Each is an action of its own, so each begins only in time.
            let outcome = if self.0.may_begin() {
                self.mark(&[handle]).await.map_or_else(|e| e.outcome(), |()| (Outcome::Done, None))
            } else {
                (Outcome::Left, None)
            };
            outcomes.push(outcome);
        }
        outcomes
    }
}

impl Acting<'_> {
    /// Marks these handles of one node.
    async fn mark(&self, handles: &[&Handle]) -> Result<(), ActError> {
        let (store, lanes) = (self.0.store, &self.0.lanes);
        let Some(first) = handles.first() else { return Ok(()) };
        let record = lanes.record_of(first.node_id).ok_or(ActError::CONFLICT)?;
        lanes.wrote(mark(store, &record, handles, self.0.now()).await?);
        Ok(())
    }
}

#[async_trait]
impl Perform<Action> for Acting<'_> {
    async fn perform(&self, planned: &Planned<Action>, _: Time) -> Result<Outcome, ActError> {
        let (store, lanes) = (self.0.store, &self.0.lanes);
        match &planned.action {
            Action::MarkDestroying(handle) => self.mark(&[handle]).await?,
            Action::EndBrake(change) => self.0.hold_back(change).await?,
            Action::LookLater(before, after) => {
                // The node's record says whether the alloc is live, so it must be unchanged: if the alloc has just
                // ended, the next look at its handle must not be delayed.
                let mut writes = vec![change_handle(before, after)];
                writes.extend(lanes.record_of(before.node_id).as_ref().map(unchanged));
                store.transact(&writes).await?;
            }
            Action::ForgetHandle(handle) | Action::Purge(handle) => store.apply(&delete_handle(handle)).await?,
            Action::Warn(subject) => {
                tracing::warn!(%subject, "{}", planned.reason);
                return Ok(Outcome::Said);
            }
        }
        Ok(Outcome::Done)
    }
}

/// Marks handles of one node for destruction and raises the node's `seq`, in one transaction, so that the `as_of` of a
/// later report shows whether that report knows of the order. At most `TOGETHER` handles.
pub(crate) async fn mark(
    store: &Store,
    record: &NodeRecord,
    handles: &[&Handle],
    now: Time,
) -> Result<NodeRecord, WriteError> {
    let (told, writes) = marks(record, handles, now)?;
    store.transact(&writes).await?;
    Ok(told)
}
