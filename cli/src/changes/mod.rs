//! The writes of operators: cancel jobs; hold, drain or resume a node. `operate` has the
//! code that all of them share.
//!
//! Guarantees: an intent belongs to the current life of the slot and ends with it.
//! Does not: ask a person, or print. Stop allocs: the next run stops the allocs of a cancelled job.

pub(crate) mod operate;

use crate::console::show::several;
use crate::console::{Cluster, WallClock};
use crate::view::find::{no_job, no_node};
use model::events::Subject;
use model::ids::{JobId, Slot};
use model::time::Time;
use model::{ActionName, Intent, Job, JobState, NodeRecord, NodeState};
use operate::{BY_OPERATOR, record_event, retried};
use std::collections::BTreeMap;
use store::transactions::{Retention, cancel_jobs};

pub(crate) fn cancelled_line(job: &Job) -> String {
    let stopping = match job.summary.allocs.len() {
        0 => String::new(),
        n => format!(": {} will stop in the next run", several(n, "live alloc")),
    };
    format!("{} cancelled{stopping}", job.summary.job_id)
}

/// For each of these jobs, the cancelled job, or its state if it had ended already.
pub(crate) type Cancelled = (JobId, anyhow::Result<Result<Job, JobState>>);

/// Cancels these jobs, at most as many as one transaction takes: in one transaction, or one by one if that fails, such as
/// when one of them cannot be read.
pub(crate) async fn cancel(cluster: &Cluster, ids: &[JobId], keep: Retention, clock: &WallClock) -> Vec<Cancelled> {
    let mut cancelled = Vec::with_capacity(ids.len());
    if let Ok(mut states) = in_one(cluster, ids, keep, clock).await {
        cancelled.extend(ids.iter().map(|id| (*id, states.remove(id).ok_or_else(|| no_job(*id)))));
        return cancelled;
    }
    for id in ids {
        let state = in_one(cluster, std::slice::from_ref(id), keep, clock).await;
        cancelled.push((*id, state.and_then(|mut states| states.remove(id).ok_or_else(|| no_job(*id)))));
    }
    cancelled
}

async fn in_one(
    cluster: &Cluster,
    ids: &[JobId],
    keep: Retention,
    clock: &WallClock,
) -> anyhow::Result<BTreeMap<JobId, Result<Job, JobState>>> {
    retried(async || {
        let jobs = cluster.store.jobs_of(ids.iter().copied()).await?.all()?;
        let cancelled = cancel_jobs(&cluster.store, &jobs, BY_OPERATOR, keep, clock()).await?;
        let ended = jobs.into_iter().map(|job| (job.summary.job_id, Err(job.summary.state)));
        Ok(ended.chain(cancelled.into_iter().map(|job| (job.summary.job_id, Ok(job)))).collect())
    })
    .await
}

/// Sets the intent of a node, and the deadline of a drain. A drain without a deadline keeps the deadline that a draining
/// node has. Returns the record as written; `None` if nothing changed.
pub(crate) async fn change_intent(
    cluster: &Cluster,
    slot: Slot,
    intent: Intent,
    by: Option<Time>,
    now: Time,
) -> anyhow::Result<Option<NodeRecord>> {
    let changed = retried(async || {
        let record = cluster.store.node(slot).await?.ok_or_else(|| no_node(slot))?;
        // The termination of this node has begun and cannot be undone.
        if matches!(record.state, NodeState::ShuttingDown(_)) {
            anyhow::bail!("slot {slot} is shutting down already: its intent cannot change any more");
        }
        if record.life().is_some_and(|l| l.intent == intent && (by.is_none() || l.drain_by_at == by)) {
            return Ok(None);
        }
        let after = record.with_intent(intent, by, now)?;
        Ok(Some(cluster.store.write(Some(&record), &after, Vec::new()).await?))
    });
    let changed = changed.await?;
    if changed.is_some() {
        let action = match intent {
            Intent::Hold => ActionName::Hold,
            Intent::Drain => ActionName::Drain,
            Intent::Run => ActionName::Resume,
        };
        record_event(cluster, &Subject::Slot(slot), action, BY_OPERATOR, now).await?;
    }
    Ok(changed)
}
