//! What an action reads again before it writes.
//!
//! The indexes that the plan was made from may be behind the tables. So an action reads its alloc and its job again. A plan
//! that is only shown may name an action that a run then finds to be a conflict.
//!
//! Guarantees: an action that the rows no longer allow is a conflict.
//! Does not: write.

use super::acting::Acting;
use crate::plan::window_over;
use model::{Alloc, AllocId, ClientStatus, Desired, Job, JobId, JobState, NodeId, NodeRecord, NodeStatus, Time};
use runtime::answer::ActError;

impl Acting<'_> {
    /// An alloc, read again. A conflict if its summary differs: then the index was behind, and the plan saw an older
    /// state.
    pub(super) async fn alloc(&self, id: AllocId) -> Result<Alloc, ActError> {
        let alloc = self.run.store.alloc(id).await?.ok_or(ActError::CONFLICT)?;
        let changed = alloc.summary.client.is_final() || self.run.observed.alloc(id) != Some(&alloc.summary);
        if changed { Err(ActError::CONFLICT) } else { Ok(alloc) }
    }

    /// A job, read again. A conflict if its version differs: then the plan saw an older state.
    pub(super) async fn job(&self, id: JobId) -> Result<Job, ActError> {
        let job = self.run.store.job(id).await?.ok_or(ActError::CONFLICT)?;
        if self.is_as_read(&job) { Ok(job) } else { Err(ActError::CONFLICT) }
    }

    /// Whether the plan saw this job as it is now.
    pub(super) fn is_as_read(&self, job: &Job) -> bool {
        self.run.observed.job_as(&job.summary).map(|j| j.version) == Some(job.summary.version)
    }

    /// An alloc that is to be lost, read again. `record` is the record of its node as this run knows it.
    pub(super) async fn lost(
        &self,
        id: AllocId,
        node_id: NodeId,
        record: Option<&NodeRecord>,
        now: Time,
    ) -> Result<Alloc, ActError> {
        let alloc = self.alloc(id).await?;
        // The list of nodes may be older than the alloc that was just read. In that case the node is new, not gone.
        if record.is_none() && self.run.store.node(node_id.slot()).await?.and_then(|r| r.node_id()) == Some(node_id) {
            return Err(ActError::CONFLICT);
        }
        self.nobody_waits_for(&alloc, record, now).await?;
        Ok(alloc)
    }

    /// The record of the node, if it lists the alloc although the alloc is not live. The alloc is read before the record. If it
    /// ended meanwhile, the same transaction took it off the record.
    pub(super) async fn lists_without_row(&self, id: AllocId, node_id: NodeId) -> Result<Option<NodeRecord>, ActError> {
        let row = self.run.store.alloc(id).await?;
        if row.is_some_and(|alloc| !alloc.summary.client.is_final() && alloc.summary.node_id == node_id) {
            return Ok(None);
        }
        let record = self.run.store.node(node_id.slot()).await?;
        let lists = |record: &NodeRecord| record.life().is_some_and(|l| l.node_id == node_id && l.allocs.contains(&id));
        Ok(record.filter(lists))
    }

    /// A live alloc and the record of its node. A conflict if the alloc has ended, or if the record lists it.
    pub(super) async fn not_on_record(&self, id: AllocId, node_id: NodeId) -> Result<(Alloc, NodeRecord), ActError> {
        let alloc = self.alloc(id).await?;
        let record = self.run.store.node(node_id.slot()).await?.ok_or(ActError::CONFLICT)?;
        let lacks = record.life().is_some_and(|life| life.node_id == node_id && !life.allocs.contains(&id));
        let is_live = !alloc.summary.client.is_final() && alloc.summary.node_id == node_id;
        if is_live && lacks { Ok((alloc, record)) } else { Err(ActError::CONFLICT) }
    }

    /// Refuses to lose an alloc whose job regroups, because such a job waits until its stopped allocs have really
    /// ended.
    async fn nobody_waits_for(&self, alloc: &Alloc, record: Option<&NodeRecord>, now: Time) -> Result<(), ActError> {
        let silent = matches!(record.and_then(NodeRecord::status), Some(NodeStatus::Disconnected | NodeStatus::Down));
        let might_run = matches!(alloc.summary.client, ClientStatus::Running | ClientStatus::Unknown);
        let told = alloc.summary.desired == Desired::Stop;
        let waits = alloc.summary.failure_policy.lost_after_s > 0 && !window_over(&alloc.summary, now);
        if silent && might_run && told && waits {
            let job = self.run.store.job(alloc.id().job_id).await?;
            if job.is_some_and(|j| j.summary.state == JobState::Regrouping) {
                return Err(ActError::CONFLICT);
            }
        }
        Ok(())
    }

    /// An alloc that is to be stopped, and its job, both read again. A conflict if the job wants the alloc.
    pub(super) async fn stopped(&self, id: AllocId) -> Result<(Alloc, Option<Job>), ActError> {
        let alloc = self.alloc(id).await?;
        let job = self.run.store.job(id.job_id).await?;
        let is_placed = |j: &Job| matches!(j.summary.state, JobState::Placing | JobState::Placed);
        let wants = |j: &Job| is_placed(j) && !j.summary.done.contains(&id.member) && j.summary.allocs.contains(&id);
        if job.as_ref().is_some_and(wants) { Err(ActError::CONFLICT) } else { Ok((alloc, job)) }
    }

    /// The copies of a reconnect that is to be resolved, and their job, all read again. A conflict if the node of one of
    /// them is not heard.
    pub(super) async fn resolved(
        &self,
        keep: AllocId,
        stop: &[AllocId],
        now: Time,
    ) -> Result<(Job, Vec<Alloc>), ActError> {
        let job = self.job(keep.job_id).await?;
        let mut copies = Vec::new();
        for id in std::iter::once(&keep).chain(stop) {
            let alloc = self.alloc(*id).await?;
            let record = self.run.locks.record_of(alloc.summary.node_id);
            let is_heard = record.is_some_and(|record| record.is_heard(now));
            if alloc.summary.client == ClientStatus::Unknown || !is_heard {
                return Err(ActError::CONFLICT);
            }
            copies.push(alloc);
        }
        Ok((job, copies))
    }
}
