//! Actions on allocs and jobs.
//!
//! Guarantees: a row that the index may have shown in an old state is read again before an alloc is lost or stopped, or
//! a reconnect is resolved.
//! Does not: decide; the plan does.

use super::acting::Acting;
use crate::plan::window_over;
use model::ids::{AllocId, JobId, NodeId};
use model::time::Time;
use model::{Alloc, ClientStatus, Desired, Ending, Job, JobState, NodeRecord, NodeStatus, ResolvedCopy};
use runtime::answer::ActError;
use store::{Write, change, no_job, steps, unchanged};

impl Acting<'_> {
    pub(super) async fn lose(&self, id: AllocId, node_id: NodeId, reason: &str, now: Time) -> Result<(), ActError> {
        let alloc = self.alloc(id).await?;
        let record = self.run.lanes.record_of(node_id);
        // The scan of the nodes may be older than the alloc that was just read. In that case the node is new, not gone.
        if record.is_none() && self.run.store.node(node_id.slot()).await?.and_then(|r| r.node_id()) == Some(node_id) {
            return Err(ActError::CONFLICT);
        }
        self.nobody_waits_for(&alloc, record.as_ref()).await?;
        let ending = Ending::lost(reason);
        let written = steps::end_alloc(self.run.store, record.as_ref(), &alloc, &ending, self.keep, now).await?;
        if let Some(written) = written {
            self.run.lanes.wrote(written);
        }
        Ok(())
    }

    pub(super) async fn unknown(&self, id: AllocId, node_id: NodeId, reason: &str, now: Time) -> Result<(), ActError> {
        let alloc = self.alloc(id).await?;
        let record = self.record(node_id)?;
        let after = alloc.unknown(reason, now).ok_or(ActError::CONFLICT)?;
        // The node must still be disconnected or down: its record must still have the version that was read.
        let writes: Vec<Write> = vec![change(Some(&alloc), &after).0, unchanged(&record)];
        self.run.store.transact(&writes).await?;
        Ok(())
    }

    pub(super) async fn place(&self, job_id: JobId, on: &[(u32, NodeId)], now: Time) -> Result<(), ActError> {
        let job = self.job(job_id).await?;
        let records: Vec<NodeRecord> = on.iter().map(|(_, n)| self.record(*n)).collect::<Result<_, _>>()?;
        let members: Vec<(u32, &NodeRecord)> = on.iter().map(|(m, _)| *m).zip(&records).collect();
        for written in steps::place(self.run.store, &job, &members, None, self.keep, now).await? {
            self.run.lanes.wrote(written);
        }
        Ok(())
    }

    pub(super) async fn replace(&self, original: AllocId, on: NodeId, now: Time) -> Result<(), ActError> {
        let (alloc, job) = (self.alloc(original).await?, self.job(original.job_id).await?);
        let record = self.record(on)?;
        let members = [(original.member, &record)];
        for written in steps::place(self.run.store, &job, &members, Some(&alloc), self.keep, now).await? {
            self.run.lanes.wrote(written);
        }
        Ok(())
    }

    pub(super) async fn stop_and_count_lost(
        &self,
        id: AllocId,
        node_id: NodeId,
        reason: &str,
        now: Time,
    ) -> Result<(), ActError> {
        let (alloc, record) = (self.alloc(id).await?, self.record(node_id)?);
        let written = steps::stop_and_count_lost(self.run.store, &record, &alloc, reason, self.keep, now).await?;
        self.run.lanes.wrote(written);
        Ok(())
    }

    /// Refuses to lose an alloc whose job regroups, because such a job waits until its stopped allocs have really
    /// ended. The job is read again, because the queue index may be behind.
    async fn nobody_waits_for(&self, alloc: &Alloc, record: Option<&NodeRecord>) -> Result<(), ActError> {
        let silent = matches!(record.and_then(NodeRecord::status), Some(NodeStatus::Disconnected | NodeStatus::Down));
        let might_run = matches!(alloc.summary.client, ClientStatus::Running | ClientStatus::Unknown);
        let told = alloc.summary.desired == Desired::Stop;
        let waits = alloc.summary.failure_policy.lost_after_s > 0 && !window_over(&alloc.summary, self.run.now());
        if silent && might_run && told && waits {
            let job = self.run.store.job(alloc.id().job_id).await?;
            if job.is_some_and(|j| j.summary.state == JobState::Regrouping) {
                return Err(ActError::CONFLICT);
            }
        }
        Ok(())
    }

    /// Tells an alloc to stop. The queue index may be behind, so the job is read again. The job must no longer want the
    /// alloc, and the transaction checks that the job does not change.
    pub(super) async fn stop(&self, id: AllocId, node_id: NodeId, reason: &str) -> Result<(), ActError> {
        let (alloc, record) = (self.alloc(id).await?, self.record(node_id)?);
        let job = self.run.store.job(id.job_id).await?;
        let wanted = |j: &Job| j.summary.state == JobState::Placed && !j.summary.done.contains(&id.member);
        if job.as_ref().is_some_and(wanted) {
            return Err(ActError::CONFLICT);
        }
        let now = self.run.now();
        let stopped = alloc.stop(reason, now).ok_or(ActError::CONFLICT)?;
        let (write, told) = change(Some(&record), &record.bump_seq(now)?);
        let check = job.as_ref().map_or_else(|| no_job(id.job_id), unchanged);
        self.run.store.transact(&[change(Some(&alloc), &stopped).0, write, check]).await?;
        self.run.lanes.wrote(told);
        Ok(())
    }

    /// Resolves a reconnect in one transaction over all live copies of a member that are not unknown. The unchanged
    /// version of the job shows that there are no other such copies.
    pub(super) async fn resolve(&self, keep: AllocId, stop: &[AllocId], reason: &str) -> Result<(), ActError> {
        let now = self.run.now();
        let mut writes = vec![unchanged(&self.job(keep.job_id).await?)];
        let mut told: Vec<(NodeRecord, NodeRecord)> = Vec::new();
        for id in std::iter::once(&keep).chain(stop) {
            let alloc = self.alloc(*id).await?;
            if alloc.summary.client == ClientStatus::Unknown {
                return Err(ActError::CONFLICT);
            }
            let after =
                alloc.resolved(if *id == keep { ResolvedCopy::Stays } else { ResolvedCopy::Stops }, reason, now);
            writes.push(change(Some(&alloc), &after).0);
            if alloc.summary.desired == Desired::Run && after.summary.desired == Desired::Stop {
                let record = self.record(alloc.summary.node_id)?;
                if !told.iter().any(|(before, _)| before.slot == record.slot) {
                    let after = record.bump_seq(now)?;
                    told.push((record, after));
                }
            }
        }
        let mut written = Vec::new();
        for (before, after) in &told {
            let (write, after) = change(Some(before), after);
            writes.push(write);
            written.push(after);
        }
        self.run.store.transact(&writes).await?;
        for record in written {
            self.run.lanes.wrote(record);
        }
        Ok(())
    }
}
