//! Carrying out the plan: one attempt for each action.
//!
//! Guarantees: a record is cleaned, and an orphan terminated, only after the proof was checked once more.
//! Does not: retry (the next run does) or contain the loop (`runtime::run` does).

use crate::actions::{CleaningAction, Proof};
use crate::plan::{CleaningPlan, is_orphan};
use async_trait::async_trait;
use futures::FutureExt;
use model::action::Planned;
use model::{Cloud, ControlKey, NodeId, Slot, Time};
use runtime::answer::{ActError, ActionAnswer, ActionResult};
use runtime::run::{CallStep, Perform, Run};
use runtime::{catalogue, instances};
use store::{Retention, transactions};
use store::{delete, delete_entry, silent_since};

struct CleaningRun<'a> {
    run: &'a Run<'a>,
    cloud: &'a dyn Cloud,
}

pub async fn act(run: Run<'_>, cloud: &dyn Cloud, plan: &CleaningPlan) -> Vec<ActionAnswer> {
    run.act(&CleaningRun { run: &run, cloud }, plan).await
}

#[async_trait]
impl Perform<CleaningAction> for CleaningRun<'_> {
    /// The records one after the other, and then all orphans together.
    fn steps<'p>(&self, plan: &'p CleaningPlan) -> Vec<CallStep<'p, CleaningAction>> {
        let (orphans, others): (Vec<_>, Vec<_>) = plan
            .actions
            .iter()
            .enumerate()
            .partition(|(_, p)| matches!(p.action, CleaningAction::TerminateOrphan { .. }));
        vec![CallStep::each_alone(others, 1), CallStep::new(vec![orphans], 1)]
    }

    async fn perform(&self, call: &[&Planned<CleaningAction>], now: Time) -> Result<Vec<ActionResult>, ActError> {
        let Run { store, observed, .. } = self.run;
        let Some(planned) = call.first() else { return Ok(Vec::new()) };
        match &planned.action {
            CleaningAction::TerminateOrphan { .. } => return Ok(self.terminate(call).await),
            CleaningAction::Clean { node_id, proof } => {
                self.clean(*node_id, *proof, &planned.reason.to_string(), now).await?;
            }
            CleaningAction::DeleteRecord(record) => store.apply(&delete(record.as_ref())).await?,
            CleaningAction::ForgetEntry(key, version) => store.apply(&delete_entry(key, *version)).await?,
            CleaningAction::ReadOffers(parts) => {
                let Some(offers) = self.cloud.offers() else { return Ok(vec![ActionResult::REPORTED]) };
                let read = catalogue::read(offers, &observed.policy, &observed.policy.catalogue, parts, now).await;
                catalogue::keep(store, &observed.control, &read).await?;
            }
            CleaningAction::HoldBack(change) => {
                self.run.hold_back(change).await?;
                return Ok(vec![ActionResult::REPORTED]);
            }
        }
        Ok(vec![ActionResult::DONE])
    }

    async fn note(&self, _: &CleaningPlan) {
        if let Some(place) = &self.run.observed.jobs_place {
            self.run.note_place(&ControlKey::JobsPlace, place).await;
        }
    }
}

impl CleaningRun<'_> {
    async fn clean(&self, node_id: NodeId, proof: Proof, reason: &str, now: Time) -> Result<(), ActError> {
        let record = self.run.locks.record_of(node_id).ok_or(ActError::CONFLICT)?;
        let mut conditions = Vec::new();
        if proof == Proof::Silence {
            conditions.push(silent_since(&record));
            if let Some(instance_id) = record.life().and_then(|l| l.instance_id.as_deref()) {
                instances::is_gone(self.cloud, instance_id).await?;
            }
        }
        let keep = Retention::of(&self.run.observed.policy);
        transactions::clean_node(self.run.store, &record, reason, conditions, keep, now).await?;
        transactions::end_quota_limits(self.run.store, &self.run.observed.control, &record, now).await;
        Ok(())
    }

    /// Terminates the instances that are still orphans, with one call.
    async fn terminate(&self, call: &[&Planned<CleaningAction>]) -> Vec<ActionResult> {
        let orphans = call.iter().map(|planned| self.orphan(&planned.action).boxed()).collect();
        instances::terminate(self.cloud, orphans).await
    }

    /// The instance of the action, if a consistent read of its slots confirms that it is an orphan.
    async fn orphan(&self, action: &CleaningAction) -> Result<String, ActionResult> {
        let CleaningAction::TerminateOrphan { instance_id, nodes } = action else { return Err(ActionResult::CONFLICT) };
        let read = self.run.store.nodes_of(nodes.iter().map(|node_id| node_id.slot())).await?;
        let of_slot = |slot: Slot| read.rows.iter().find(|record| record.slot == slot);
        let is_orphan = read.unreadable.is_empty() && is_orphan(of_slot, nodes, instance_id);
        if is_orphan { Ok(instance_id.clone()) } else { Err(ActionResult::CONFLICT) }
    }
}
