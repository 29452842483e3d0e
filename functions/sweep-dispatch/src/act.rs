//! Carrying out the plan: one attempt for each action.
//!
//! Guarantees: a handle is marked together with its node's `seq`, in one transaction.
//! Does not: retry (the next run does) or contain the loop (`runtime::run` does).

use crate::actions::Action;
use crate::plan::Plan;
use async_trait::async_trait;
use model::action::Planned;
use model::time::Time;
use model::{Handle, NodeRecord};
use runtime::answer::{ActError, ActionAnswer, Outcome};
use runtime::run::{Perform, Run};
use store::{Store, WriteError, change, change_handle, delete_handle, unchanged};

struct Acting<'a>(Run<'a>);

/// Carries out the plan, one action after the other.
pub(crate) async fn act(run: Run<'_>, plan: &Plan) -> Vec<ActionAnswer> {
    let acting = Acting(run);
    let answers = acting.0.one_by_one(&acting, &plan.actions).await;
    acting.0.finish(answers, None).await
}

#[async_trait]
impl Perform<Action> for Acting<'_> {
    async fn perform(&self, planned: &Planned<Action>, now: Time) -> Result<Outcome, ActError> {
        let (store, lanes) = (self.0.store, &self.0.lanes);
        match &planned.action {
            Action::MarkDestroying(handle) => {
                let record = lanes.record_of(handle.node_id).ok_or(ActError::CONFLICT)?;
                lanes.wrote(mark(store, &record, handle, now).await?);
            }
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

/// Marks a handle for destruction and raises the node's `seq`, in one transaction, so that the `as_of` of a later
/// report shows whether that report knows of the order.
pub(crate) async fn mark(
    store: &Store,
    record: &NodeRecord,
    handle: &Handle,
    now: Time,
) -> Result<NodeRecord, WriteError> {
    let told = record.bump_seq(now).map_err(|_| WriteError::CONFLICT)?;
    let (write, told) = change(Some(record), &told);
    let seq = told.life().map_or(0, |l| l.seq);
    store.transact(&[write, change_handle(handle, &handle.marked(seq, now))]).await?;
    Ok(told)
}
