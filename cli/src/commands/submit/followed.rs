//! `--after` and `--after-each`: the jobs that a new job follows.
//!
//! Guarantees: every followed job is stored, and none of them has already ended so that the new job can never run.
//! Does not: wait. The runs of poll-and-scale do.

use super::job_files::FromJob;
use crate::console::show::{one_line, several};
use crate::console::{Cluster, UsageError};
use crate::view::find::{Finder, Meant, short};
use anyhow::bail;
use model::{AfterEnd, Array, Job, JobId, JobSpec, JobState, Work};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

/// Finds the jobs that the jobs of a submission name. Each name is looked up once.
pub(crate) struct JobNames<'a> {
    cluster: &'a Cluster,
    stored: BTreeMap<String, (Meant, Vec<Job>)>,
}

impl<'a> JobNames<'a> {
    pub(crate) const fn new(cluster: &'a Cluster) -> Self {
        Self { cluster, stored: BTreeMap::new() }
    }

    /// The stored jobs that this name means.
    async fn stored(&mut self, given: &str) -> anyhow::Result<&(Meant, Vec<Job>)> {
        match self.stored.entry(given.to_owned()) {
            Entry::Occupied(jobs) => Ok(jobs.into_mut()),
            Entry::Vacant(absent) => {
                let meant = Finder::new(self.cluster).meant(given).await?;
                let jobs = self.cluster.store.jobs_of(meant.ids.iter().copied()).await?.all()?;
                Ok(absent.insert((meant, jobs)))
            }
        }
    }

    /// Adds to a job those that it follows by these names, and the outputs of others that it gets. A name means the jobs in `earlier`
    /// with the name, or else stored jobs.
    pub(crate) async fn add(
        &mut self,
        after: impl Iterator<Item = (&str, AfterEnd)>,
        from_jobs: &[FromJob],
        earlier: &BTreeMap<&str, Vec<Job>>,
        spec: &mut JobSpec,
    ) -> anyhow::Result<()> {
        for (given, end) in after {
            let ids = match earlier.get(given) {
                Some(jobs) => jobs.iter().map(id_of).collect(),
                None => {
                    let (meant, jobs) = self.stored(given).await?;
                    check(meant, jobs, end)?;
                    let done: BTreeSet<JobId> = jobs.iter().filter(|job| is_done(meant, job)).map(id_of).collect();
                    meant.ids.iter().copied().filter(|id| !done.contains(id)).collect()
                }
            };
            Vec::into_iter(ids).for_each(|id| spec.follow(id, end));
        }
        for from in from_jobs {
            match earlier.get(from.job.as_str()) {
                Some(jobs) => from.add(jobs, jobs.len() > 1, spec)?,
                None => {
                    let (meant, jobs) = self.stored(&from.job).await?;
                    from.add(jobs, from.is_array(meant, jobs)?, spec)?;
                    // The files of a job that has ended otherwise never come.
                    check(meant, jobs, AfterEnd::Success)?;
                }
            }
        }
        Ok(())
    }
}

/// The jobs that the elements of an array follow, by the numbers of the elements; `None`: it has been done.
#[derive(Clone, Debug, Default)]
pub(crate) struct AfterEach(BTreeMap<u32, Option<JobId>>);

impl AfterEach {
    /// Each element of these jobs follows the element of the given array with the same number.
    pub(crate) async fn of(names: &mut JobNames<'_>, given: &str, jobs: &[Job]) -> anyhow::Result<Self> {
        let (meant, stored) = names.stored(given).await?;
        let given = one_line(given);
        let Some(theirs) = stored.iter().find_map(|job| job.summary.array_count) else {
            bail!(UsageError(format!("{given} is no array, so no element can follow one of its elements")));
        };
        let ours = jobs.iter().flat_map(|job| elements(&job.work, Array::number(job.summary.job_id)));
        let ours: BTreeSet<u32> = ours.collect();
        if ours.len() != theirs as usize {
            bail!(UsageError(format!(
                "the array {given} has {}, and this one has {}: --after-each needs the same elements",
                several(theirs, "element"),
                ours.len()
            )));
        }
        let each = stored.iter().flat_map(|job| {
            let follows = Some(job.summary.job_id).filter(|_| !is_done(meant, job));
            meant.elements(job).iter().map(|n| (n, follows)).collect::<Vec<_>>()
        });
        let each: BTreeMap<u32, Option<JobId>> = each.collect();
        match ours.iter().find(|n| !each.contains_key(n)) {
            Some(n) => bail!("the array {given} has no stored element with the number {n}"),
            None => Ok(Self(each)),
        }
    }

    /// Adds what the job with this number follows: of a pack, what each of its elements follows.
    pub(crate) fn add(&self, number: u32, spec: &mut JobSpec) {
        for id in elements(&spec.work, number).iter().filter_map(|n| self.0.get(n).copied().flatten()) {
            spec.follow(id, AfterEnd::Success);
        }
    }
}

/// The numbers of the elements of a job of an array, which has this number: those of its pack, or its own.
fn elements(work: &Work, number: u32) -> Vec<u32> {
    work.pack.as_ref().map_or_else(|| vec![number], |pack| pack.elements.iter().collect())
}

fn id_of(job: &Job) -> JobId {
    job.summary.job_id
}

/// Whether this is a pack that ended with all of those elements complete that are meant, so that nothing need wait for it: others of its
/// elements failed, and ran again in another pack.
fn is_done(meant: &Meant, job: &Job) -> bool {
    let is_part = job.summary.state.is_ended() && meant.is_part_of(job);
    is_part && meant.elements(job).without(&job.elements.results.succeeded()).is_empty()
}

/// Refuses jobs that are not stored, and jobs that ended so that a job which follows them could never run.
fn check(meant: &Meant, stored: &[Job], end: AfterEnd) -> anyhow::Result<()> {
    let done: BTreeSet<JobId> = stored.iter().filter(|job| is_done(meant, job)).map(id_of).collect();
    let state: BTreeMap<JobId, JobState> = stored.iter().map(|job| (job.summary.job_id, job.summary.state)).collect();
    let mut open = meant.ids.iter().filter(|id| !done.contains(id));
    open.try_for_each(|id| may_complete(*id, state.get(id).copied(), end))
}

/// Refuses a job that is not stored, or has ended otherwise than a job that follows it wants.
pub(crate) fn may_complete(id: JobId, state: Option<JobState>, end: AfterEnd) -> anyhow::Result<()> {
    let Some(state) = state else {
        bail!("job {id} is not stored, so no job can follow it: `nodekeeper jobs --all` lists those that are");
    };
    if end == AfterEnd::Success && state.is_ended() && state != JobState::Complete {
        bail!(
            "job {id} is {state}, so a job that runs only if it is complete could never run: `nodekeeper rerun {id}` runs it \
             again with those that were rejected therefore, --after-any {id} runs this one all the same, and `nodekeeper \
             fetch {id}` gets files that it keeps, for --in",
            id = short(id)
        );
    }
    Ok(())
}
