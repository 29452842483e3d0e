//! Carrying out the plan: one attempt for each action.
//!
//! Guarantees: a handle is marked together with its node's `seq`, in one transaction.
//! Does not: retry (the next run does) or contain the loop (`runtime::run` does).

use crate::actions::Action;
use crate::batches::{TOGETHER, mark};
use crate::plan::Plan;
use async_trait::async_trait;
use model::Handle;
use model::action::Planned;
use model::ids::NodeId;
use model::time::Time;
use runtime::answer::{ActError, ActionAnswer, ActionResult, Outcome};
use runtime::run::{Call, Perform, Run, each_alone};
use std::collections::BTreeMap;
use store::{Attempts, WriteError, change_handle, delete_handle, unchanged};

struct Acting<'a>(Run<'a>);

/// How many actions run at the same time.
const AT_ONCE: usize = 8;

/// Carries out the plan. The marks of one node are made together.
pub(crate) async fn act(run: Run<'_>, plan: &Plan) -> Vec<ActionAnswer> {
    let acting = Acting(run);
    let numbered = plan.actions.iter().enumerate();
    let (marks, others): (Call<'_, Action>, Call<'_, Action>) =
        numbered.partition(|(_, p)| matches!(p.action, Action::MarkDestroying(_)));
    let mut by_node = BTreeMap::<NodeId, Call<'_, Action>>::new();
    for (n, planned) in marks {
        if let Action::MarkDestroying(handle) = &planned.action {
            by_node.entry(handle.node_id).or_default().push((n, planned));
        }
    }
    let calls = by_node.into_values().flat_map(|marks| marks.chunks(TOGETHER).map(<[_]>::to_vec).collect::<Vec<_>>());
    let mut answers = acting.0.carry_out(&acting, calls.collect(), AT_ONCE).await;
    answers.extend(acting.0.carry_out(&acting, each_alone(others), AT_ONCE).await);
    acting.0.use_releases(plan, &answers).await;
    acting.0.finish(answers, None).await
}

#[async_trait]
impl Perform<Action> for Acting<'_> {
    async fn perform(&self, call: &[&Planned<Action>], _: Time) -> Vec<ActionResult> {
        let handle =
            |p: &&Planned<Action>| if let Action::MarkDestroying(h) = &p.action { Some(h.clone()) } else { None };
        let handles: Vec<Handle> = call.iter().filter_map(handle).collect();
        match call {
            [one] if handles.is_empty() => vec![self.one(one).await.map_or_else(ActionResult::from, ActionResult::of)],
            _ => self.mark_each(&handles).await,
        }
    }
}

impl Acting<'_> {
    /// Marks these handles of one node.
    async fn mark_each(&self, handles: &[Handle]) -> Vec<ActionResult> {
        let mut results = Vec::with_capacity(handles.len());
        let mut attempts = Attempts::new(handles);
        while let Some(some) = attempts.take_next() {
            // No part of the marks begins when little time is left.
            if !self.0.may_begin() {
                results.extend(some.iter().map(|_| ActionResult::LEFT));
                continue;
            }
            let marked = self.mark(some).await;
            if !attempts.part_after(&marked) {
                let result = marked.map_or_else(ActionResult::from, |()| ActionResult::DONE);
                results.extend(some.iter().map(|_| result.clone()));
            }
        }
        results
    }

    async fn mark(&self, handles: &[Handle]) -> Result<(), WriteError> {
        let (store, locks) = (self.0.store, &self.0.locks);
        let Some(first) = handles.first() else { return Ok(()) };
        let record = locks.record_of(first.node_id).ok_or(WriteError::CONFLICT)?;
        let handles: Vec<&Handle> = handles.iter().collect();
        locks.wrote(mark(store, &record, &handles, self.0.now()).await?);
        Ok(())
    }

    async fn one(&self, planned: &Planned<Action>) -> Result<Outcome, ActError> {
        let (store, locks) = (self.0.store, &self.0.locks);
        match &planned.action {
            // Marks are made together: see `mark_each`.
            Action::MarkDestroying(_) => return Ok(Outcome::Left),
            Action::EndBrake(change) => self.0.hold_back(change).await?,
            Action::LookLater(before, after) => {
                // The record says whether the alloc is live, so it must be unchanged: if the alloc has just ended, the next
                // look at its handle must not be delayed.
                let mut writes = vec![change_handle(before, after)];
                writes.extend(locks.record_of(before.node_id).as_ref().map(unchanged));
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
