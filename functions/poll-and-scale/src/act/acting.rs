//! What all actions of one run share.
//!
//! Guarantees: an action uses the node records as this run read or wrote them; an alloc or a job is read again
//! before it changes, and the write requires the version that was read.
//! Does not: contain any action; the other files do.

use super::pace::Pace;
use model::cloud::{Cloud, CloudError, Instance, InstanceState};
use model::control::FailedStarts;
use model::events::Subject;
use model::ids::{AllocId, JobId, NodeId};
use model::launch::LaunchSettings;
use model::reason::Reason;
use model::{ActionName, Alloc, Job, NodeRecord};
use runtime::answer::ActError;
use runtime::run::Run;
use std::collections::BTreeMap;
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
    /// The instances to terminate at the end, in as few calls as EC2 allows.
    terminate: Mutex<BTreeMap<String, NodeId>>,
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

    pub(super) async fn clean(&self, record: &NodeRecord, reason: &str, conditions: Vec<Cond>) -> Result<(), ActError> {
        let now = self.run.now();
        let cleaned = steps::clean_node(self.run.store, record, reason, conditions, self.keep, now).await?;
        self.run.lanes.wrote(cleaned);
        Ok(())
    }

    /// An alloc, read again. A conflict if its version differs: then the index was behind, and the plan saw an older
    /// state.
    pub(super) async fn alloc(&self, id: AllocId) -> Result<Alloc, ActError> {
        let alloc = self.run.store.alloc(id).await?.ok_or(ActError::CONFLICT)?;
        let read = self.run.seen.allocs.iter().find(|a| a.alloc_id == id).map(|a| a.version);
        let changed = alloc.summary.client.is_final() || read != Some(alloc.summary.version);
        if changed { Err(ActError::CONFLICT) } else { Ok(alloc) }
    }

    /// A job, read again. A conflict if its version differs: then the plan saw an older state.
    pub(super) async fn job(&self, id: JobId) -> Result<Job, ActError> {
        let job = self.run.store.job(id).await?.ok_or(ActError::CONFLICT)?;
        let read = self.run.seen.jobs.iter().find(|j| j.job_id == id).map(|j| j.version);
        if read == Some(job.summary.version) { Ok(job) } else { Err(ActError::CONFLICT) }
    }

    /// Queues the instance of a node for termination. All queued instances are terminated together, after the other
    /// actions of the run except launches.
    pub(super) fn terminate_later(&self, node_id: NodeId, instance_id: String) {
        self.terminate.lock().unwrap_or_else(PoisonError::into_inner).insert(instance_id, node_id);
    }

    /// Terminates the queued instances that have their node's tag, or that EC2 does not know. If EC2 cannot be asked for
    /// one of them, the others are still terminated, and the error is returned.
    pub(super) async fn terminate_batch(&self) -> Result<(), CloudError> {
        let queued = std::mem::take(&mut *self.terminate.lock().unwrap_or_else(PoisonError::into_inner));
        let listed: BTreeMap<&str, &Instance> =
            self.run.seen.instances.iter().map(|i| (i.instance_id.as_str(), i)).collect();
        let (mut ids, mut unasked) = (Vec::new(), None);
        for (instance_id, node_id) in queued {
            let foreign = match listed.get(instance_id.as_str()) {
                Some(instance) => Ok(Some((*instance).clone()).filter(|i| i.is_foreign_to(node_id))),
                None => self.cloud.instance(&instance_id).await.map(|i| i.filter(|i| i.node_id() != Some(node_id))),
            };
            match foreign.map(|f| f.filter(|i| i.state != InstanceState::Terminated)) {
                Err(error) => unasked = Some(error),
                Ok(None) => ids.push(instance_id),
                Ok(Some(foreign)) => {
                    let reason = Reason::ForeignInstance { instance_id, owner: foreign.owner() };
                    self.run.tell(&Subject::Slot(node_id.slot()), ActionName::Warn, &reason).await;
                }
            }
        }
        if !ids.is_empty() {
            self.cloud.terminate(&ids).await?;
        }
        unasked.map_or(Ok(()), Err)
    }
}
