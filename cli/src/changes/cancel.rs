//! Ending a job.
//!
//! Does not: stop allocs. The next run stops the allocs of a cancelled job.

use super::operate::{BY_OPERATOR, retried};
use crate::console::show::several;
use crate::console::{Clock, Cluster};
use crate::view::find::no_job;
use model::ids::JobId;
use model::{Job, JobState};
use store::transactions::{Retention, cancel_job};

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
