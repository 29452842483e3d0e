//! `--after` and `--after-each`: the jobs that a new job follows.
//!
//! Guarantees: every followed job is stored, and none of them has already ended so that the new job can never run.
//! Does not: wait. The runs of poll-and-scale do.

use crate::console::show::{one_line, several};
use crate::console::{Cluster, UsageError};
use crate::view::find::{Finder, short};
use model::array::Array;
use model::ids::JobId;
use model::ranges::Ranges;
use model::{AfterEnd, Job, JobSpec, JobState};
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

/// The jobs that the elements of an array follow, by the numbers of the elements.
#[derive(Clone, Debug, Default)]
pub(in crate::commands) struct AfterEach(BTreeMap<u32, JobId>);

impl AfterEach {
    /// Each element of these jobs follows the element of the given array with the same number.
    pub(in crate::commands) async fn of(cluster: &Cluster, given: &str, jobs: &[Job]) -> anyhow::Result<Self> {
        let meant = Finder::new(cluster).meant(given).await?;
        let stored = cluster.store.jobs_of(meant.ids).await?.all()?;
        let given = one_line(given);
        let Some(theirs) = stored.iter().find_map(|job| job.summary.array_count) else {
            return Err(UsageError(format!("{given} is no array, so no element can follow one of its elements")).into());
        };
        let ours: BTreeSet<u32> = jobs.iter().flat_map(elements).collect();
        if ours.len() != theirs as usize {
            return Err(UsageError(format!(
                "the array {given} has {}, and this one has {}: --after-each needs the same elements",
                several(theirs, "element"),
                ours.len()
            ))
            .into());
        }
        let each: BTreeMap<u32, JobId> =
            stored.iter().flat_map(|job| elements(job).map(|n| (n, job.summary.job_id)).collect::<Vec<_>>()).collect();
        match ours.iter().find(|n| !each.contains_key(n)) {
            Some(n) => anyhow::bail!("the array {given} has no stored element with the number {n}"),
            None => Ok(Self(each)),
        }
    }

    /// Adds what the job with this number follows: of a pack, what each of its elements follows.
    pub(in crate::commands) fn add(&self, number: u32, spec: &mut JobSpec) {
        let elements = spec.work.pack.as_ref().map_or_else(|| Ranges::of(number, number), |pack| pack.elements.clone());
        for id in elements.iter().filter_map(|n| self.0.get(&n)) {
            follow(&mut spec.after, *id, AfterEnd::Success);
        }
    }
}

/// The numbers of the elements of a job of an array.
fn elements(job: &Job) -> impl Iterator<Item = u32> {
    let number = Array::number(job.summary.job_id);
    let elements = job.work.pack.as_ref().map_or_else(|| Ranges::of(number, number), |pack| pack.elements.clone());
    elements.iter().collect::<Vec<_>>().into_iter()
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
