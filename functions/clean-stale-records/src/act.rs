//! Carrying out the plan: one attempt for each action.
//!
//! Guarantees: a record is cleaned, and an orphan terminated, only after the proof was checked once more.
//! Does not: retry (the next run does) or contain the loop (`runtime::run` does).

use crate::actions::{Action, Proof};
use crate::plan::{Plan, is_orphan};
use async_trait::async_trait;
use model::action::Planned;
use model::cloud::{Cloud, InstanceState};
use model::ids::NodeId;
use model::time::Time;
use runtime::answer::{ActError, ActionAnswer, Outcome};
use runtime::run::{Perform, Run};
use store::steps::{self, Retention};
use store::{delete_node, silent_since};

struct Acting<'a> {
    run: Run<'a>,
    cloud: &'a dyn Cloud,
}

/// Carries out the plan, one action after the other.
pub(crate) async fn act(run: Run<'_>, cloud: &dyn Cloud, plan: &Plan) -> Vec<ActionAnswer> {
    let acting = Acting { run, cloud };
    let answers = acting.run.one_by_one(&acting, &plan.actions).await;
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
            Action::TerminateOrphan { instance_id, node_id } => self.terminate_orphan(instance_id, *node_id).await?,
            Action::Warn(subject) => {
                tracing::warn!(%subject, "{}", planned.reason);
                return Ok(Outcome::Said);
            }
            Action::HoldBack(kind, entry) => {
                self.run.store.write_entry(&self.run.seen.control.brake(*kind), entry).await?;
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
            // The record stays if a heartbeat has arrived since, or if EC2 knows a live instance by this id. A
            // terminated instance does not count: EC2 knows it by id for an hour after its tags are gone.
            conditions.push(silent_since(&record));
            if let Some(id) = record.life().and_then(|l| l.instance_id.as_deref())
                && self.cloud.instance(id).await?.is_some_and(|i| i.state != InstanceState::Terminated)
            {
                return Err(ActError::CONFLICT);
            }
        }
        let keep = Retention::of(&self.run.seen.policy);
        steps::clean_node(self.run.store, &record, reason, conditions, keep, now).await?;
        Ok(())
    }

    /// Terminates an orphan, after a consistent read of its slot has confirmed that the instance is one.
    async fn terminate_orphan(&self, instance_id: &String, node_id: NodeId) -> Result<(), ActError> {
        let record = self.run.store.node(node_id.slot()).await?;
        if !is_orphan(record.as_ref(), node_id, instance_id) {
            return Err(ActError::CONFLICT);
        }
        self.cloud.terminate(std::slice::from_ref(instance_id)).await?;
        Ok(())
    }
}
