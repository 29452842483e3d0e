//! Carrying out the plan: one attempt for each action.
//!
//! Guarantees: a record is cleaned, and an orphan terminated, only after the proof was checked once more.
//! Does not: retry (the next run does) or contain the loop (`runtime::run` does).

use crate::actions::{Action, Proof};
use crate::plan::{Plan, is_orphan};
use async_trait::async_trait;
use futures::{FutureExt, StreamExt};
use model::NodeRecord;
use model::action::Planned;
use model::cloud::{Cloud, InstanceState};
use model::ids::{NodeId, Slot};
use model::time::Time;
use runtime::answer::{ActError, ActionAnswer, ActionResult, Outcome};
use runtime::catalogue;
use runtime::confirm::{Confirm, confirmed};
use runtime::observation::{Observation, ObserveError};
use runtime::run::{Call, Perform, Run, each_alone};
use std::collections::HashMap;
use store::transactions::{self, Retention};
use store::{Store, delete, silent_since};

struct Acting<'a> {
    run: Run<'a>,
    reading: Reading<'a>,
}

/// If a plan has this many orphans, the run reads all records once more. For fewer, it reads one record for each orphan.
const MANY_ORPHANS: usize = 20;

/// How many orphans are checked at the same time.
const AT_ONCE: usize = 8;

/// Carries out the plan: the records one after the other, and then all orphans together.
pub async fn act(run: Run<'_>, cloud: &dyn Cloud, plan: &Plan) -> Vec<ActionAnswer> {
    let reading = Reading { store: run.store, cloud, seen: run.seen };
    let (orphans, others): (Call<'_, Action>, Vec<_>) =
        plan.actions.iter().enumerate().partition(|(_, p)| matches!(p.action, Action::TerminateOrphan { .. }));
    let acting = Acting { run, reading };
    let mut answers = acting.run.carry_out(&acting, each_alone(others), 1).await;
    if !orphans.is_empty() {
        answers.extend(acting.run.carry_out(&acting, vec![orphans], 1).await);
    }
    acting.run.use_releases(plan, &answers).await;
    if let Some(place) = &acting.run.seen.jobs_place {
        acting.run.note_place(&acting.run.seen.control.jobs_place(), place).await;
    }
    acting.run.finish(answers, None).await
}

#[async_trait]
impl Perform<Action> for Acting<'_> {
    async fn perform(&self, call: &[&Planned<Action>], now: Time) -> Vec<ActionResult> {
        match call {
            [one] if !matches!(one.action, Action::TerminateOrphan { .. }) => vec![self.one(one, now).await],
            orphans => self.terminate(orphans).await,
        }
    }
}

impl Acting<'_> {
    async fn one(&self, planned: &Planned<Action>, now: Time) -> ActionResult {
        self.try_one(planned, now).await.map_or_else(ActionResult::from, ActionResult::of)
    }

    async fn try_one(&self, planned: &Planned<Action>, now: Time) -> Result<Outcome, ActError> {
        match &planned.action {
            Action::Clean { node_id, proof } => {
                self.clean(*node_id, *proof, &planned.reason.to_string(), now).await?;
            }
            Action::DeleteRecord(record) => self.run.store.apply(&delete(record.as_ref())).await?,
            Action::IndexJob(job) => drop(self.run.store.write(Some(job.as_ref()), job, Vec::new()).await?),
            Action::ForgetEntry(entry) => self.run.store.apply(&delete(entry.as_ref())).await?,
            Action::ReadOffers(parts) => {
                let Run { store, seen, .. } = &self.run;
                let Some(offers) = self.reading.cloud.offers() else { return Ok(Outcome::Said) };
                let read = catalogue::read(offers, &seen.policy, &seen.policy.catalogue, parts, now).await;
                catalogue::keep(store, &seen.control, &read).await?;
            }
            // Orphans are terminated together: see `terminate`.
            Action::TerminateOrphan { .. } => return Ok(Outcome::Left),
            Action::Warn(subject) => {
                tracing::warn!(%subject, "{}", planned.reason);
                return Ok(Outcome::Said);
            }
            Action::HoldBack(change) => {
                self.run.hold_back(change).await?;
                return Ok(Outcome::Said);
            }
        }
        Ok(Outcome::Done)
    }

    async fn clean(&self, node_id: NodeId, proof: Proof, reason: &str, now: Time) -> Result<(), ActError> {
        let record = self.run.locks.record_of(node_id).ok_or(ActError::CONFLICT)?;
        let mut conditions = Vec::new();
        if proof == Proof::Silence {
            conditions.push(silent_since(&record));
            self.reading.is_gone(&record).await?;
        }
        let keep = Retention::of(&self.run.seen.policy);
        transactions::clean_node(self.run.store, &record, reason, conditions, keep, now).await?;
        transactions::end_quota_limits(self.run.store, &self.run.seen.control, &record, now).await;
        Ok(())
    }

    /// Terminates the instances that are still orphans, with one call.
    async fn terminate(&self, call: &[&Planned<Action>]) -> Vec<ActionResult> {
        let mut again = None;
        if call.len() >= MANY_ORPHANS {
            let by_slot = |records: Vec<NodeRecord>| records.into_iter().map(|r| (r.slot, r)).collect();
            // If one of the records cannot be read now, each orphan's record is read by itself.
            again = self.run.store.nodes().await.map(by_slot).ok();
        }
        let again: Option<&HashMap<Slot, NodeRecord>> = again.as_ref();
        let work: Vec<_> = call.iter().map(|planned| self.orphan(&planned.action, again).boxed()).collect();
        let orphans: Vec<Result<String, ActError>> = futures::stream::iter(work).buffered(AT_ONCE).collect().await;
        let ids: Vec<String> = orphans.iter().flatten().cloned().collect();
        let terminated = if ids.is_empty() { Ok(()) } else { self.reading.cloud.terminate(&ids).await };
        let terminated = terminated.map_or_else(ActionResult::from, |()| ActionResult::DONE);
        orphans.into_iter().map(|orphan| orphan.map_or_else(ActionResult::from, |_| terminated.clone())).collect()
    }

    /// The instance of the action, if it is still an orphan. `again`: all records, read again just now.
    async fn orphan(&self, action: &Action, again: Option<&HashMap<Slot, NodeRecord>>) -> Result<String, ActError> {
        let Action::TerminateOrphan { instance_id, nodes } = action else { return Err(ActError::CONFLICT) };
        match again {
            Some(records) if is_orphan(|slot| records.get(&slot), nodes, instance_id) => {}
            Some(_) => return Err(ActError::CONFLICT),
            None => self.reading.orphan(instance_id, nodes).await?,
        }
        Ok(instance_id.clone())
    }
}

/// Checks the proofs of a plan again.
#[derive(Clone, Copy)]
struct Reading<'a> {
    store: &'a Store,
    cloud: &'a dyn Cloud,
    seen: &'a Observation,
}

impl Reading<'_> {
    /// A conflict if EC2 knows a live instance by the id that the record names. A terminated instance does not count:
    /// EC2 knows it by id for an hour after its tags are gone.
    async fn is_gone(&self, record: &NodeRecord) -> Result<(), ActError> {
        let Some(id) = record.life().and_then(|l| l.instance_id.as_deref()) else { return Ok(()) };
        let known = self.cloud.instance(id).await?;
        if known.is_some_and(|i| i.state != InstanceState::Terminated) { Err(ActError::CONFLICT) } else { Ok(()) }
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
impl Confirm<Action> for Reading<'_> {
    async fn confirm(&self, planned: &Planned<Action>) -> Result<(), ActError> {
        match &planned.action {
            Action::Clean { node_id, proof: Proof::Silence } => {
                let record = self.seen.node(*node_id);
                self.is_gone(record.ok_or(ActError::CONFLICT)?).await
            }
            Action::TerminateOrphan { instance_id, nodes } => self.orphan(instance_id, nodes).await,
            _ => Ok(()),
        }
    }
}

/// The plan without the actions that would be conflicts if a run carried the plan out now.
pub async fn confirm(store: &Store, cloud: &dyn Cloud, seen: &Observation, plan: Plan) -> Result<Plan, ObserveError> {
    confirmed(&Reading { store, cloud, seen }, plan).await
}
