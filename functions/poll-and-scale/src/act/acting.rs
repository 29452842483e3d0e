//! What all actions of one run share.
//!
//! Guarantees: an action uses the node records as this run read or wrote them; an alloc or a job is read again
//! before it changes, and the write requires the version that was read.
//! Does not: contain any action; the other files do.

use super::AT_ONCE;
use super::pace::Pace;
use super::reading::Reading;
use futures::StreamExt;
use model::cloud::{Cloud, CloudError, Instance, InstanceState};
use model::control::FailedStarts;
use model::events::Subject;
use model::ids::{JobId, NodeId};
use model::launch::LaunchSettings;
use model::reason::Reason;
use model::{ActionName, NodeRecord};
use runtime::answer::ActError;
use runtime::run::Run;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};
use store::Cond;
use store::steps::{self, Retention};

/// What all actions of one run share.
pub(super) struct Acting<'a> {
    pub(super) run: Run<'a>,
    pub(super) cloud: &'a dyn Cloud,
    pub(super) settings: &'a LaunchSettings,
    pub(super) keep: Retention,
    pub(super) pace: Pace,
    /// The entry of the failed starts as this run last wrote it.
    pub(super) failed_starts: tokio::sync::Mutex<Option<FailedStarts>>,
    /// The jobs whose rows turned out to be unreadable.
    pub(super) unreadable: Mutex<BTreeSet<JobId>>,
    /// The instances to terminate at the end, in as few calls as EC2 allows.
    terminate: Mutex<BTreeMap<String, NodeId>>,
}

/// An instance that a run wanted to terminate and did not.
pub(super) struct NotTerminated {
    pub(super) instance_id: String,
    pub(super) why: Why,
}

/// Why an instance was not terminated.
pub(super) enum Why {
    /// EC2 did not answer, or refused.
    Failed(String),
    /// The instance is not the node's.
    Foreign(String),
}

impl<'a> Acting<'a> {
    pub(super) fn new(run: Run<'a>, cloud: &'a dyn Cloud, settings: &'a LaunchSettings) -> Self {
        let policy = &run.seen.policy;
        Self {
            cloud,
            settings,
            keep: Retention::of(policy),
            pace: Pace::new(policy.launch.calls_per_second),
            failed_starts: tokio::sync::Mutex::default(),
            unreadable: Mutex::default(),
            terminate: Mutex::default(),
            run,
        }
    }

    /// The record of a node as this run knows it.
    pub(super) fn record(&self, node_id: NodeId) -> Result<NodeRecord, ActError> {
        self.run.lanes.record_of(node_id).ok_or(ActError::CONFLICT)
    }

    /// Writes the change of a record that this run has read or written.
    pub(super) async fn write_node(
        &self,
        before: &NodeRecord,
        after: &NodeRecord,
        conditions: Vec<Cond>,
    ) -> Result<NodeRecord, ActError> {
        let written = self.run.store.write(Some(before), after, conditions).await?;
        self.run.lanes.wrote(written.clone());
        Ok(written)
    }

    /// [`Acting::write_node`] for several records, at most 100: all of them change, or none.
    pub(super) async fn write_nodes(
        &self,
        changes: &[(Option<NodeRecord>, NodeRecord)],
        conditions: &[Cond],
    ) -> Result<Vec<NodeRecord>, ActError> {
        let written = self.run.store.write_together(changes, conditions).await?;
        written.iter().for_each(|record| self.run.lanes.wrote(record.clone()));
        Ok(written)
    }

    pub(super) async fn clean(&self, record: &NodeRecord, reason: &str, conditions: Vec<Cond>) -> Result<(), ActError> {
        let now = self.run.now();
        let cleaned = steps::clean_node(self.run.store, record, reason, conditions, self.keep, now).await?;
        self.run.lanes.wrote(cleaned);
        Ok(())
    }

    /// What this run reads again.
    pub(super) fn reading(&self) -> Reading<'_> {
        Reading { store: self.run.store, cloud: self.cloud, seen: self.run.seen }
    }

    /// Queues the instance of a node for termination. All queued instances are terminated together, after the other
    /// actions of the run except launches.
    pub(super) fn terminate_later(&self, node_id: NodeId, instance_id: String) {
        self.terminate.lock().unwrap_or_else(PoisonError::into_inner).insert(instance_id, node_id);
    }

    /// Terminates the queued instances that have their node's tag, or that EC2 does not know. Returns what was not
    /// terminated, and why.
    pub(super) async fn terminate_batch(&self) -> Vec<NotTerminated> {
        let queued = std::mem::take(&mut *self.terminate.lock().unwrap_or_else(PoisonError::into_inner));
        let listed: BTreeMap<&str, &Instance> =
            self.run.seen.instances.iter().map(|i| (i.instance_id.as_str(), i)).collect();
        let ask = |id: &String| {
            let id = id.clone();
            async move { (id.clone(), self.cloud.instance(&id).await) }
        };
        let unlisted: Vec<_> = queued.keys().filter(|id| !listed.contains_key(id.as_str())).map(ask).collect();
        let asked = futures::stream::iter(unlisted).buffer_unordered(AT_ONCE);
        let mut asked: BTreeMap<String, Result<Option<Instance>, CloudError>> = asked.collect().await;
        let (mut ids, mut not_terminated) = (Vec::new(), Vec::new());
        for (instance_id, node_id) in queued {
            let foreign = match listed.get(instance_id.as_str()) {
                Some(instance) => Ok(Some((*instance).clone()).filter(|i| i.is_foreign_to(node_id))),
                None => {
                    let known = asked.remove(&instance_id).unwrap_or(Ok(None));
                    known.map(|i| i.filter(|i| i.node_id() != Some(node_id)))
                }
            };
            match foreign.map(|f| f.filter(|i| i.state != InstanceState::Terminated)) {
                Err(error) => not_terminated.push(NotTerminated { instance_id, why: Why::Failed(error.to_string()) }),
                Ok(None) => ids.push(instance_id),
                Ok(Some(foreign)) => {
                    let reason = Reason::ForeignInstance { instance_id: instance_id.clone(), owner: foreign.owner() };
                    self.run.tell(&Subject::Slot(node_id.slot()), ActionName::Warn, &reason).await;
                    not_terminated.push(NotTerminated { instance_id, why: Why::Foreign(reason.to_string()) });
                }
            }
        }
        if !ids.is_empty()
            && let Err(error) = self.cloud.terminate(&ids).await
        {
            let why = |instance_id| NotTerminated { instance_id, why: Why::Failed(error.to_string()) };
            not_terminated.extend(ids.into_iter().map(why));
        }
        not_terminated
    }
}
