//! Carrying out the plan: one attempt for each action.
//!
//! Guarantees: a record is cleaned, and an orphan terminated, only after the proof was checked once more.
//! Does not: retry (the next run does) or contain the loop (`runtime::run` does).

use crate::actions::{Action, Proof};
use crate::plan::{Plan, is_orphan};
use async_trait::async_trait;
use model::NodeRecord;
use model::action::Planned;
use model::cloud::{Cloud, InstanceState};
use model::ids::{NodeId, Slot};
use model::time::Time;
use runtime::answer::{ActError, ActionAnswer, Outcome};
use runtime::confirm::{Confirm, confirmed};
use runtime::observation::{Observation, ObserveError};
use runtime::run::{Numbered, Perform, Run};
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use store::steps::{self, Retention};
use store::{Store, delete_entry, delete_node, silent_since};

struct Acting<'a> {
    run: Run<'a>,
    reading: Reading<'a>,
    /// All records, read a second time because there are many orphans. `None`: each orphan's record is read by itself.
    again: Option<HashMap<Slot, NodeRecord>>,
    /// The orphans to terminate at the end, in as few calls as EC2 allows.
    orphans: Mutex<Vec<String>>,
}

/// If a plan has this many orphans, the run reads all records once more. For fewer, it reads one record for each orphan.
const MANY_ORPHANS: usize = 20;

/// How many orphans are checked at the same time.
const AT_ONCE: usize = 8;

/// Carries out the plan: the records one after the other, and then all orphans together.
pub async fn act(run: Run<'_>, cloud: &dyn Cloud, plan: &Plan) -> Vec<ActionAnswer> {
    let reading = Reading { store: run.store, cloud, seen: run.seen };
    let (orphans, others): (Vec<Numbered<'_, Action>>, Vec<_>) =
        plan.actions.iter().enumerate().partition(|(_, p)| matches!(p.action, Action::TerminateOrphan { .. }));
    let mut acting = Acting { run, reading, again: None, orphans: Mutex::default() };
    let mut answers = acting.run.at_once(&acting, others, 1).await;
    if orphans.len() >= MANY_ORPHANS {
        let by_slot = |records: Vec<NodeRecord>| records.into_iter().map(|r| (r.slot, r)).collect();
        // If one of the records cannot be read now, each orphan's record is read by itself.
        acting.again = acting.run.store.nodes().await.map(by_slot).ok();
    }
    let mut terminated = acting.run.at_once(&acting, orphans, AT_ONCE).await;
    let ids = std::mem::take(&mut *acting.orphans.lock().unwrap_or_else(PoisonError::into_inner));
    if !ids.is_empty()
        && let Err(error) = cloud.terminate(&ids).await
    {
        terminated.iter_mut().filter(|(_, a)| a.done).for_each(|(_, answer)| answer.fail(error.to_string()));
    }
    answers.extend(terminated);
    let brakes = plan.actions.iter().filter_map(|planned| match &planned.action {
        Action::HoldBack(change) => Some(change.as_ref()),
        _ => None,
    });
    acting.run.use_releases(brakes, &answers).await;
    if let Some(place) = &acting.run.seen.jobs_place {
        acting.run.note_place(&acting.run.seen.control.jobs_place(), place).await;
    }
    acting.run.finish(answers, None).await
}

#[async_trait]
impl Perform<Action> for Acting<'_> {
    async fn perform(&self, planned: &Planned<Action>, now: Time) -> Result<Outcome, ActError> {
        match &planned.action {
            Action::Clean { node_id, proof } => {
                self.clean(*node_id, *proof, &planned.reason.to_string(), now).await?;
            }
            Action::DeleteRecord(record) => self.run.store.apply(&delete_node(record)).await?,
            Action::IndexJob(job) => drop(self.run.store.write(Some(job.as_ref()), job, Vec::new()).await?),
            Action::ForgetEntry(entry) => self.run.store.apply(&delete_entry(entry)).await?,
            Action::TerminateOrphan { instance_id, node_id } => self.terminate_orphan(instance_id, *node_id).await?,
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
}

impl Acting<'_> {
    async fn clean(&self, node_id: NodeId, proof: Proof, reason: &str, now: Time) -> Result<(), ActError> {
        let record = self.run.lanes.record_of(node_id).ok_or(ActError::CONFLICT)?;
        let mut conditions = Vec::new();
        if proof == Proof::Silence {
            conditions.push(silent_since(&record));
            self.reading.is_gone(&record).await?;
        }
        let keep = Retention::of(&self.run.seen.policy);
        steps::clean_node(self.run.store, &record, reason, conditions, keep, now).await?;
        steps::end_quota_limits(self.run.store, &self.run.seen.control, &record, now).await;
        Ok(())
    }

    /// Queues the instance for termination, if it is still an orphan.
    async fn terminate_orphan(&self, instance_id: &str, node_id: NodeId) -> Result<(), ActError> {
        match &self.again {
            Some(records) if is_orphan(records.get(&node_id.slot()), node_id, instance_id) => {}
            Some(_) => return Err(ActError::CONFLICT),
            None => self.reading.orphan(instance_id, node_id).await?,
        }
        self.orphans.lock().unwrap_or_else(PoisonError::into_inner).push(instance_id.to_owned());
        Ok(())
    }
}

/// Reads again what the plan was made from.
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

    /// A conflict unless a consistent read of the slot confirms that the instance is an orphan.
    async fn orphan(&self, instance_id: &str, node_id: NodeId) -> Result<(), ActError> {
        let record = self.store.node(node_id.slot()).await?;
        if is_orphan(record.as_ref(), node_id, instance_id) { Ok(()) } else { Err(ActError::CONFLICT) }
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
            Action::TerminateOrphan { instance_id, node_id } => self.orphan(instance_id, *node_id).await,
            _ => Ok(()),
        }
    }
}

/// The plan without the actions that would be conflicts if a run carried the plan out now.
pub async fn confirm(store: &Store, cloud: &dyn Cloud, seen: &Observation, plan: Plan) -> Result<Plan, ObserveError> {
    confirmed(&Reading { store, cloud, seen }, plan).await
}
