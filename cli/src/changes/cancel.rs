//! Ending a job.
//!
//! Does not: stop allocs. The next run stops the allocs of a cancelled job.

use super::operate::{BY_OPERATOR, retried};
use crate::console::show::several;
use crate::console::{Clock, Cluster};
use crate::view::find::no_job;
use model::ids::JobId;
use model::{Job, JobState};
use std::collections::BTreeMap;
use store::transactions::{Retention, cancel_job, cancel_jobs};

/// What is said of a job that was cancelled.
pub(crate) fn cancelled_line(job: &Job) -> String {
    let stopping = match job.summary.allocs.len() {
        0 => String::new(),
        n => format!(": {} will stop in the next run", several(n, "live alloc")),
    };
    format!("{} cancelled{stopping}", job.summary.job_id)
}

/// Cancels one job. The state of the job if it has ended already.
pub(crate) async fn cancel(
    cluster: &Cluster,
    id: JobId,
    keep: Retention,
    clock: &Clock,
) -> anyhow::Result<Result<Job, JobState>> {
    retried(async || {
        let job = cluster.store.job(id).await?.ok_or_else(|| no_job(id))?;
        let cancelled = cancel_job(&cluster.store, &job, BY_OPERATOR, keep, clock()).await?;
        Ok(cancelled.ok_or(job.summary.state))
    })
    .await
}

/// What became of a job that was to be cancelled.
pub(crate) type Cancelled = (JobId, anyhow::Result<Result<Job, JobState>>);

/// Cancels these jobs, at most as many as one transaction takes: together if nobody else writes one of them meanwhile,
/// otherwise one by one.
pub(crate) async fn cancel_together(
    cluster: &Cluster,
    ids: &[JobId],
    keep: Retention,
    clock: &Clock,
) -> Vec<Cancelled> {
    if let [_, _, ..] = ids
        && let Ok(mut states) = in_one(cluster, ids, keep, clock).await
    {
        return ids.iter().map(|id| (*id, states.remove(id).ok_or_else(|| no_job(*id)))).collect();
    }
    let mut cancelled = Vec::with_capacity(ids.len());
    for id in ids {
        cancelled.push((*id, cancel(cluster, *id, keep, clock).await));
    }
    cancelled
}

async fn in_one(
    cluster: &Cluster,
    ids: &[JobId],
    keep: Retention,
    clock: &Clock,
) -> anyhow::Result<BTreeMap<JobId, Result<Job, JobState>>> {
    let jobs = cluster.store.jobs_of(ids.iter().copied()).await?.all()?;
    let cancelled = cancel_jobs(&cluster.store, &jobs, BY_OPERATOR, keep, clock()).await?;
    let ended = jobs.into_iter().map(|job| (job.summary.job_id, Err(job.summary.state)));
    Ok(ended.chain(cancelled.into_iter().map(|job| (job.summary.job_id, Ok(job)))).collect())
}
