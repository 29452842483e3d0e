//! The limits of arrays: how many jobs of one array may be placed at the same time.
//!
//! A job of the array counts if it has a live alloc on the record of a node or in the index, or if the index shows it as
//! placed or regrouping. Records are read consistently, so an index that is behind hides no job that runs. A job that the
//! index still shows as queued counts once, in its place of the queue, as in the run that placed it.
//!
//! Guarantees: one plan never places, and never launches for, more jobs of an array than its limit leaves; a job that waits
//! for its array holds up no other job and reserves nothing.
//! Does not: lock. Two runs at the same time choose from the same queue in the same order, so they choose the same jobs,
//! and each job is placed once. Does not count copies: a copy belongs to a job that is counted.

use super::super::view::View;
use model::{Array, JobId, JobState, JobSummary, Reason};
use std::collections::{BTreeMap, BTreeSet};

/// The placed jobs of each array with a limit, including those that this plan places.
pub(super) struct Arrays {
    placed: BTreeMap<Array, BTreeSet<JobId>>,
}

impl Arrays {
    pub(super) fn new(view: &View<'_>) -> Self {
        let queued = view.observed.jobs.iter().filter(|job| job.state == JobState::Queued && job.array_limit.is_some());
        let mut placed: BTreeMap<Array, BTreeSet<JobId>> =
            queued.map(|job| (Array::of(job.job_id), BTreeSet::new())).collect();
        if !placed.is_empty() {
            let on_records = view.lives().flat_map(|(_, life)| life.allocs.iter().map(|alloc| alloc.job_id));
            let in_index = view.observed.allocs.iter().map(|alloc| alloc.alloc_id.job_id);
            let in_queue = view.observed.jobs.iter().filter(|job| job.state != JobState::Queued).map(|job| job.job_id);
            for job in on_records.chain(in_index).chain(in_queue) {
                if let Some(jobs) = placed.get_mut(&Array::of(job)) {
                    jobs.insert(job);
                }
            }
        }
        Self { placed }
    }

    /// Counts a queued job as placed. An error if its array already has as many jobs as its limit allows.
    pub(super) fn admit(&mut self, job: &JobSummary) -> Result<(), Reason> {
        let Some(limit) = job.array_limit else { return Ok(()) };
        let placed = self.placed.entry(Array::of(job.job_id)).or_default();
        let is_full = u32::try_from(placed.len()).unwrap_or(u32::MAX) >= limit.get();
        if is_full && !placed.contains(&job.job_id) {
            return Err(Reason::ArrayLimit { limit: limit.get() });
        }
        placed.insert(job.job_id);
        Ok(())
    }
}
