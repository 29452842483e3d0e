//! `--after`: the jobs that a new job follows.
//!
//! Guarantees: every followed job is stored, and none of them has already ended so that the new job can never run.
//! Does not: wait. The runs of poll-and-scale do.

use crate::console::Cluster;
use crate::view::find::{Finder, short};
use model::ids::JobId;
use model::{AfterEnd, Job, JobState};
use std::collections::{BTreeMap, BTreeSet};

/// The jobs that the options name, each with how it must end.
pub(in crate::commands) async fn of_options(
    cluster: &Cluster,
    finder: &mut Finder<'_>,
    options: impl Iterator<Item = (&str, AfterEnd)>,
) -> anyhow::Result<BTreeMap<JobId, AfterEnd>> {
    let mut after = BTreeMap::new();
    for (given, end) in options {
        for id in finder.jobs(given).await? {
            follow(&mut after, id, end);
        }
    }
    check(cluster, &after).await?;
    Ok(after)
}

/// Adds a job to the followed ones. If it is named twice, the stricter end counts.
pub(in crate::commands) fn follow(after: &mut BTreeMap<JobId, AfterEnd>, id: JobId, end: AfterEnd) {
    let strictest = after.entry(id).or_insert(end);
    *strictest = (*strictest).min(end);
}

/// Refuses jobs that are not stored, and jobs that ended so that a job which follows them could never run.
pub(in crate::commands) async fn check(cluster: &Cluster, after: &BTreeMap<JobId, AfterEnd>) -> anyhow::Result<()> {
    if after.is_empty() {
        return Ok(());
    }
    let stored: Vec<Job> = cluster.store.jobs_of(after.keys().copied()).await?.all()?;
    let ids: BTreeSet<JobId> = stored.iter().map(|job| job.summary.job_id).collect();
    if let Some(id) = after.keys().find(|id| !ids.contains(id)) {
        anyhow::bail!("job {id} is not stored, so no job can follow it: `nodekeeper jobs --all` lists those that are");
    }
    for job in &stored {
        let (id, state) = (job.summary.job_id, job.summary.state);
        let must_be_complete = after.get(&id) == Some(&AfterEnd::Success);
        if must_be_complete && state.is_ended() && state != JobState::Complete {
            anyhow::bail!(
                "job {id} is {state}, so a job that runs only if it is complete could never run; --after-any {id} runs it \
                 all the same, and `nodekeeper fetch {id}` gets files that it keeps, for --in",
                id = short(id)
            );
        }
    }
    Ok(())
}
