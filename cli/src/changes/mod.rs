//! The writes of operators: cancel, pause or change jobs; hold, drain or resume a node. `operate` has the
//! code that all of them share.
//!
//! Guarantees: an intent belongs to the current life of the slot and ends with it.
//! Does not: ask a person, or print. Stop allocs: the next run stops the allocs of a cancelled job.

pub(crate) mod operate;

use crate::console::{Cluster, WallClock};
use crate::view::find::{no_job, no_node};
use anyhow::bail;
use futures::stream::{self, LocalBoxStream, StreamExt};
use model::{ActionName, Intent, Job, JobId, NodeRecord, NodeState, Slot, Subject, Time};
use operate::{record_event, retention, retried};
use std::collections::BTreeMap;
use store::Retention;
use store::transactions::{JOBS_TOGETHER, change_jobs};

/// How many transactions run at the same time.
const AT_ONCE: usize = 8;

/// For each of these jobs, the job as changed, or as it stays because it cannot be changed so.
pub(crate) type Changed = (JobId, anyhow::Result<Result<Job, Job>>);

/// The job as it will be; `None`: it stays as it is.
type AfterChange<'a> = dyn Fn(&Job, Time) -> Option<Job> + Sync + 'a;

/// What a person does to jobs: the action and the reason of the event.
pub(crate) struct JobChange<'a> {
    pub(crate) action: ActionName,
    pub(crate) reason: String,
    pub(crate) keep: Retention,
    pub(crate) after: Box<AfterChange<'a>>,
}

impl JobChange<'_> {
    /// Cancels each job that has not ended.
    pub(crate) async fn cancel(cluster: &Cluster) -> anyhow::Result<Self> {
        let (keep, by) = (retention(cluster).await?, cluster.reach.who.name().await?.to_owned());
        let after = move |job: &Job, now| job.cancel(&by, keep.finished, now);
        Ok(Self { action: ActionName::Cancel, reason: cluster.by().await?, keep, after: Box::new(after) })
    }
}

/// Changes these jobs, and gives them in the same order.
pub(crate) fn change_each<'a>(
    cluster: &'a Cluster,
    ids: &'a [JobId],
    how: &'a JobChange<'_>,
    clock: &'a WallClock,
) -> LocalBoxStream<'a, Changed> {
    let parts: Vec<_> = ids.chunks(JOBS_TOGETHER).map(|ids| change(cluster, ids, how, clock)).collect();
    stream::iter(parts).buffered(AT_ONCE).flat_map(stream::iter).boxed_local()
}

/// Changes these jobs, at most as many as one transaction takes: in one transaction, or one by one if that fails, such as
/// when one of them cannot be read.
async fn change(cluster: &Cluster, ids: &[JobId], how: &JobChange<'_>, clock: &WallClock) -> Vec<Changed> {
    let mut all = Vec::with_capacity(ids.len());
    if let Ok(mut changed) = in_one(cluster, ids, how, clock).await {
        all.extend(ids.iter().map(|id| (*id, changed.remove(id).ok_or_else(|| no_job(*id)))));
        return all;
    }
    for id in ids {
        let changed = in_one(cluster, std::slice::from_ref(id), how, clock).await;
        all.push((*id, changed.and_then(|mut changed| changed.remove(id).ok_or_else(|| no_job(*id)))));
    }
    all
}

async fn in_one(
    cluster: &Cluster,
    ids: &[JobId],
    how: &JobChange<'_>,
    clock: &WallClock,
) -> anyhow::Result<BTreeMap<JobId, Result<Job, Job>>> {
    retried(async || {
        let (jobs, now) = (cluster.store.jobs_of(ids.iter().copied()).await?.all()?, clock());
        let after = |job: &Job| (how.after)(job, now);
        let changed = change_jobs(&cluster.store, &jobs, (how.action, &how.reason), after, how.keep, now).await?;
        let stay = jobs.into_iter().map(|job| (job.summary.job_id, Err(job)));
        Ok(stay.chain(changed.into_iter().map(|job| (job.summary.job_id, Ok(job)))).collect())
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
    let who = cluster.by().await?;
    let changed = retried(async || {
        let record = cluster.store.node(slot).await?.ok_or_else(|| no_node(slot))?;
        // The termination of this node has begun and cannot be undone.
        if matches!(record.state, NodeState::ShuttingDown(_)) {
            bail!("slot {slot} is shutting down already: its intent cannot change any more");
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
        record_event(cluster, &Subject::Slot(slot), action, &who, now).await?;
    }
    Ok(changed)
}
