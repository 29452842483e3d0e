//! Carrying out the plan: one attempt for each action.
//!
//! Guarantees: a handle is marked together with its node's `seq`, in one transaction.
//! Does not: retry (the next run does) or contain the loop (`runtime::run` does).

use crate::actions::SweepAction;
use crate::batches::{TOGETHER, mark};
use crate::plan::SweepPlan;
use async_trait::async_trait;
use model::action::Planned;
use model::{Handle, Time};
use runtime::answer::{ActError, ActionResult};
use runtime::run::{CallStep, Perform, Run};
use store::{WriteError, change_handle, delete_handle, together, unchanged};

pub(crate) struct Sweeping<'a>(pub(crate) &'a Run<'a>);

/// How many actions run at the same time.
const AT_ONCE: usize = 8;

const fn marked(planned: &Planned<SweepAction>) -> Option<&Handle> {
    if let SweepAction::MarkDestroying(handle) = &planned.action { Some(handle) } else { None }
}

#[async_trait]
impl Perform<SweepAction> for Sweeping<'_> {
    /// The marks of one node are made together.
    fn steps<'p>(&self, plan: &'p SweepPlan) -> Vec<CallStep<'p, SweepAction>> {
        let (mut marks, others): (Vec<_>, Vec<_>) =
            plan.actions.iter().enumerate().partition(|(_, planned)| marked(planned).is_some());
        let node = |planned| marked(planned).map(|handle| handle.node_id);
        marks.sort_by_key(|(_, planned)| node(planned));
        let by_node = marks.chunk_by(|(_, one), (_, other)| node(one) == node(other));
        let marks = by_node.flat_map(|marks| marks.chunks(TOGETHER)).map(<[_]>::to_vec).collect();
        vec![CallStep::new(marks, AT_ONCE), CallStep::each_alone(others, AT_ONCE)]
    }

    async fn perform(&self, call: &[&Planned<SweepAction>], _: Time) -> Result<Vec<ActionResult>, ActError> {
        let Some(planned) = call.first() else { return Ok(Vec::new()) };
        match &planned.action {
            SweepAction::MarkDestroying(_) => {
                let handles: Vec<&Handle> = call.iter().filter_map(|planned| marked(planned)).collect();
                return Ok(self.mark_each(&handles).await);
            }
            SweepAction::Postpone(before, after) => {
                // The record says whether the alloc is live, so it must be unchanged: if the alloc has just ended, the next
                // look at its handle must not be delayed.
                let mut writes = vec![change_handle(before, after)];
                writes.extend(self.0.locks.record_of(before.node_id).as_ref().map(unchanged));
                self.0.store.transact(&writes).await?;
            }
            SweepAction::ForgetHandle(handle) | SweepAction::Purge(handle) => {
                self.0.store.apply(&delete_handle(handle)).await?
            }
        }
        Ok(vec![ActionResult::DONE])
    }
}

impl Sweeping<'_> {
    /// Marks these handles of one node.
    async fn mark_each(&self, handles: &[&Handle]) -> Vec<ActionResult> {
        // With little time left, no further marks are begun.
        let mark = |some| async move {
            if self.0.may_begin() { self.mark(some).await.map(|()| ActionResult::DONE) } else { Ok(ActionResult::LEFT) }
        };
        let parts = together(handles, mark).await.into_iter();
        parts.flat_map(|(some, marked)| vec![marked.unwrap_or_else(ActionResult::from); some.len()]).collect()
    }

    async fn mark(&self, handles: &[&Handle]) -> Result<(), WriteError> {
        let (store, locks) = (self.0.store, &self.0.locks);
        let Some(first) = handles.first() else { return Ok(()) };
        let record = locks.record_of(first.node_id).ok_or(WriteError::CONFLICT)?;
        locks.wrote(mark(store, &record, handles, self.0.now()).await?);
        Ok(())
    }
}
