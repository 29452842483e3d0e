//! Carrying out the plan: one attempt for each action.
//!
//! Guarantees: a record is cleaned, and an orphan terminated, only after the proof was checked once more.
//! Does not: retry (the next run does) or contain the loop (`runtime::run` does).

use crate::actions::{CleaningAction, Proof};
use crate::plan::{CleaningPlan, is_orphan};
use async_trait::async_trait;
use futures::FutureExt;
use model::NodeRecord;
use model::action::Planned;
use model::cloud::Cloud;
use model::ids::{NodeId, Slot};
use model::time::Time;
use runtime::answer::{ActError, ActionAnswer, ActionResult};
use runtime::confirm::{Confirm, confirmed};
use runtime::observation::{Observation, ObserveError};
use runtime::run::{CallStep, Perform, Run};
use runtime::{catalogue, instances};
use std::collections::HashMap;
use store::transactions::{self, Retention};
use store::{Store, delete, silent_since};

struct CleaningRun<'a> {
    run: &'a Run<'a>,
    proofs: Proofs<'a>,
}

/// If a plan has this many orphans, the run reads all records once more. For fewer, it reads one record for each orphan.
const MANY_ORPHANS: usize = 20;

pub async fn act(run: Run<'_>, cloud: &dyn Cloud, plan: &CleaningPlan) -> Vec<ActionAnswer> {
    let proofs = Proofs { store: run.store, cloud, observed: run.observed };
    run.act(&CleaningRun { run: &run, proofs }, plan).await
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
            CleaningAction::ForgetEntry(entry) => store.apply(&delete(entry.as_ref())).await?,
            CleaningAction::ReadOffers(parts) => {
                let Some(offers) = self.proofs.cloud.offers() else { return Ok(vec![ActionResult::REPORTED]) };
                let read = catalogue::read(offers, &observed.policy, &observed.policy.catalogue, parts, now).await;
                catalogue::keep(store, &observed.control, &read).await?;
            }
            CleaningAction::Warn(subject) => {
                tracing::warn!(%subject, "{}", planned.reason);
                return Ok(vec![ActionResult::REPORTED]);
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
            self.run.note_place(&self.run.observed.control.jobs_place(), place).await;
        }
    }
}

impl CleaningRun<'_> {
    async fn clean(&self, node_id: NodeId, proof: Proof, reason: &str, now: Time) -> Result<(), ActError> {
        let record = self.run.locks.record_of(node_id).ok_or(ActError::CONFLICT)?;
        let mut conditions = Vec::new();
        if proof == Proof::Silence {
            conditions.push(silent_since(&record));
            self.proofs.is_gone(&record).await?;
        }
        let keep = Retention::of(&self.run.observed.policy);
        transactions::clean_node(self.run.store, &record, reason, conditions, keep, now).await?;
        transactions::end_quota_limits(self.run.store, &self.run.observed.control, &record, now).await;
        Ok(())
    }

    /// Terminates the instances that are still orphans, with one call.
    async fn terminate(&self, call: &[&Planned<CleaningAction>]) -> Vec<ActionResult> {
        let mut again = None;
        if call.len() >= MANY_ORPHANS {
            let by_slot = |records: Vec<NodeRecord>| records.into_iter().map(|r| (r.slot, r)).collect();
            // If one of the records cannot be read now, each orphan's record is read by itself.
            again = self.run.store.nodes().await.map(by_slot).ok();
        }
        let again: Option<&HashMap<Slot, NodeRecord>> = again.as_ref();
        let orphans = call.iter().map(|planned| self.orphan(&planned.action, again).boxed()).collect();
        instances::terminate(self.proofs.cloud, orphans).await
    }

    /// The instance of the action, if it is still an orphan. `again`: all records, read again just now.
    async fn orphan(
        &self,
        action: &CleaningAction,
        again: Option<&HashMap<Slot, NodeRecord>>,
    ) -> Result<String, ActionResult> {
        let CleaningAction::TerminateOrphan { instance_id, nodes } = action else { return Err(ActionResult::CONFLICT) };
        match again {
            Some(records) if is_orphan(|slot| records.get(&slot), nodes, instance_id) => {}
            Some(_) => return Err(ActionResult::CONFLICT),
            None => self.proofs.orphan(instance_id, nodes).await?,
        }
        Ok(instance_id.clone())
    }
}

/// Checks the proofs of a plan again.
#[derive(Clone, Copy)]
struct Proofs<'a> {
    store: &'a Store,
    cloud: &'a dyn Cloud,
    observed: &'a Observation,
}

impl Proofs<'_> {
    async fn is_gone(&self, record: &NodeRecord) -> Result<(), ActError> {
        match record.life().and_then(|l| l.instance_id.as_deref()) {
            Some(instance_id) => instances::is_gone(self.cloud, instance_id).await,
            None => Ok(()),
        }
    }

    /// A conflict unless a consistent read of the slots confirms that the instance is an orphan.
    async fn orphan(&self, instance_id: &str, nodes: &[NodeId]) -> Result<(), ActError> {
        let read = self.store.nodes_of(nodes.iter().map(|node_id| node_id.slot())).await?;
        let of_slot = |slot: Slot| read.rows.iter().find(|record| record.slot == slot);
        let is_orphan = read.unreadable.is_empty() && is_orphan(of_slot, nodes, instance_id);
        if is_orphan { Ok(()) } else { Err(ActError::CONFLICT) }
    }
}

#[async_trait]
impl Confirm<CleaningAction> for Proofs<'_> {
    async fn check(&self, action: &CleaningAction, _: Time) -> Result<(), ActError> {
        match action {
            CleaningAction::Clean { node_id, proof: Proof::Silence } => {
                let record = self.observed.node(*node_id);
                self.is_gone(record.ok_or(ActError::CONFLICT)?).await
            }
            CleaningAction::TerminateOrphan { instance_id, nodes } => self.orphan(instance_id, nodes).await,
            _ => Ok(()),
        }
    }
}

/// The plan without the actions that would be conflicts if a run carried the plan out now.
pub async fn confirm(
    store: &Store,
    cloud: &dyn Cloud,
    seen: &Observation,
    plan: CleaningPlan,
    now: Time,
) -> Result<CleaningPlan, ObserveError> {
    confirmed(&Proofs { store, cloud, observed: seen }, plan, now).await
}
