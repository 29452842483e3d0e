//! Actions on allocs and jobs.
//!
//! Guarantees: a row that the index may have shown in an old state is read again before an alloc is lost or stopped, or
//! a reconnect is resolved.
//! Does not: decide; the plan does.

use super::acting::{Acting, Done};
use model::{Alloc, AllocId, Desired, Ending, Job, JobId, NodeId, NodeRecord, ResolvedCopy, Time};
use runtime::answer::ActError;
use std::collections::BTreeMap;
use store::placing::{Placing, place};
use store::transactions::{self, EndExtras};
use store::{Write, change, no_job, unchanged};

impl Acting<'_> {
    pub(super) async fn lose(&self, id: AllocId, node_id: NodeId, reason: &str, now: Time) -> Done {
        if let Some(record) = self.lists_without_row(id, node_id).await? {
            self.write_node(&record, &record.without_alloc(id, now)?, Vec::new()).await?;
            return Ok(());
        }
        let record = self.run.locks.record_of(node_id);
        let alloc = self.lost(id, node_id, record.as_ref(), self.run.now()).await?;
        let ending = record.as_ref().map_or_else(|| Ending::lost(reason), |record| record.loses(reason, now));
        let written = transactions::end_alloc(
            self.run.store,
            record.as_ref(),
            &alloc,
            &ending,
            EndExtras::default(),
            self.keep,
            now,
        )
        .await?;
        if let Some(written) = written {
            self.run.locks.wrote(written);
        }
        Ok(())
    }

    /// Puts a live alloc on the record of its node. Both are read again: the alloc must be live, and the record must not list it.
    pub(super) async fn list_again(&self, id: AllocId, node_id: NodeId, now: Time) -> Done {
        let (alloc, record) = self.not_on_record(id, node_id).await?;
        let (write, _) = change(Some(&record), &record.listing_again(id, now)?);
        self.run.store.transact(&[write, unchanged(&alloc)]).await?;
        Ok(())
    }

    pub(super) async fn unknown(&self, id: AllocId, node_id: NodeId, now: Time) -> Done {
        let alloc = self.alloc(id).await?;
        let record = self.record(node_id)?;
        let after = alloc.unknown(now).ok_or(ActError::CONFLICT)?;
        // The node must still be disconnected or down: its record must still have the version that was read.
        let writes: Vec<Write> = vec![change(Some(&alloc), &after).0, unchanged(&record)];
        self.run.store.transact(&writes).await?;
        Ok(())
    }

    pub(super) async fn place(&self, job_id: JobId, on: &[(u32, NodeId)], now: Time) -> Done {
        let job = self.job(job_id).await?;
        self.place_members(&job, on, None, now).await
    }

    pub(super) async fn replace(&self, original: AllocId, on: NodeId, now: Time) -> Done {
        let (alloc, job) = (self.alloc(original).await?, self.job(original.job_id).await?);
        self.place_members(&job, &[(original.member, on)], Some(&alloc), now).await
    }

    async fn place_members(&self, job: &Job, on: &[(u32, NodeId)], replaces: Option<&Alloc>, now: Time) -> Done {
        let records: Vec<NodeRecord> = on.iter().map(|(_, n)| self.record(*n)).collect::<Result<_, _>>()?;
        let members: Vec<(u32, &NodeRecord)> = on.iter().map(|(m, _)| *m).zip(&records).collect();
        let output = self.run.observed.policy.output.s3.as_ref().map(|prefix| (prefix, &self.settings.cluster));
        // Only one run at a time places what is under a limit, and that one after the other: two transactions that check the same row
        // at the same time are a conflict.
        let is_limited = self.run.observed.policy.limits_job(&job.summary);
        let turn = if is_limited { Some(self.limit_turn.lock().await) } else { None };
        let check = match turn.as_deref() {
            Some(Some(turn)) => Some(unchanged(turn)),
            Some(None) => return Err(ActError::CONFLICT),
            None => None,
        };
        let placing = Placing { replaces, output, keep: self.keep, now, only_if: check.as_ref() };
        for written in place(self.run.store, job, &members, &placing).await? {
            self.run.locks.wrote(written);
        }
        Ok(())
    }

    pub(super) async fn stop_and_count_lost(&self, id: AllocId, node_id: NodeId, reason: &str, now: Time) -> Done {
        let (alloc, record) = (self.alloc(id).await?, self.record(node_id)?);
        let written =
            transactions::stop_and_count_lost(self.run.store, &record, &alloc, reason, self.keep, now).await?;
        self.run.locks.wrote(written);
        Ok(())
    }

    /// Tells an alloc to stop. The queue index may be behind, so the job is read again. The job must no longer want the
    /// alloc, and the transaction checks that the job does not change.
    pub(super) async fn stop(&self, id: AllocId, node_id: NodeId) -> Done {
        let ((alloc, job), record) = (self.stopped(id).await?, self.record(node_id)?);
        let now = self.run.now();
        let stopped = alloc.stop(now).ok_or(ActError::CONFLICT)?;
        let (write, told) = change(Some(&record), &record.bump_seq(now)?);
        let check = job.as_ref().map_or_else(|| no_job(id.job_id), unchanged);
        self.run.store.transact(&[change(Some(&alloc), &stopped).0, write, check]).await?;
        self.run.locks.wrote(told);
        Ok(())
    }

    /// Resolves a reconnect in one transaction over all live copies of a member that are not unknown. The unchanged
    /// version of the job shows that there are no other such copies. The versions of the records show that no run has
    /// noted a silence of their nodes.
    pub(super) async fn resolve(&self, keep: AllocId, stop: &[AllocId]) -> Done {
        let now = self.run.now();
        let (job, copies) = self.resolved(keep, stop, now).await?;
        let mut writes = vec![unchanged(&job)];
        // Whether one of the copies on a node is told to stop.
        let mut nodes: BTreeMap<NodeId, bool> = BTreeMap::new();
        for alloc in copies {
            let copy = if alloc.id() == keep { ResolvedCopy::Stays } else { ResolvedCopy::Stops };
            let after = alloc.resolved(copy, now);
            writes.push(change(Some(&alloc), &after).0);
            let stops = alloc.summary.desired == Desired::Run && after.summary.desired == Desired::Stop;
            *nodes.entry(alloc.summary.node_id).or_default() |= stops;
        }
        let mut written = Vec::new();
        for (node_id, stops) in nodes {
            let record = self.record(node_id)?;
            if stops {
                let (write, after) = change(Some(&record), &record.bump_seq(now)?);
                writes.push(write);
                written.push(after);
            } else {
                writes.push(unchanged(&record));
            }
        }
        self.run.store.transact(&writes).await?;
        for record in written {
            self.run.locks.wrote(record);
        }
        Ok(())
    }
}
