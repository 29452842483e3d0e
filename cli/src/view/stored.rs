//! Stored jobs, the newest first, from the indexes of ids and names.
//!
//! Guarantees: it stops reading when it has the wanted jobs, or has read as many as it may. Each row is read consistently.
//! Does not: see a job that was submitted a moment ago, because the indexes are behind the table.

use model::{Job, JobId, JobSummary, Time};
use std::cmp::Reverse;
use store::{DbError, JobIds, Store, Unreadable};

/// How many jobs a list reads, unless the person wants all.
pub(crate) const MOST_READ: usize = 10_000;
/// The fewest and the most jobs in one read.
const CHUNK: std::ops::RangeInclusive<usize> = 100..=1000;

pub(crate) enum Among<'a> {
    Stored,
    /// Those with this name.
    Named(&'a str),
    /// Those whose names begin with this text. If there are too many, some are not read.
    NamesBeginning(&'a str),
}

/// How many jobs are wanted, and how many may be read for them.
#[derive(Clone, Copy)]
pub(crate) struct Bounds {
    pub(crate) wanted: usize,
    pub(crate) most: usize,
}

#[derive(Default)]
pub(crate) struct StoredJobs {
    /// The newest first. There may be a few more than were wanted.
    pub(crate) jobs: Vec<Job>,
    pub(crate) unreadable: Vec<Unreadable>,
    pub(crate) looked: usize,
    /// Whether there may be more that were not read.
    pub(crate) more: bool,
}

/// The newest jobs that `takes` accepts. `since` only limits the reads of [`Among::Stored`]; `takes` must check it, too.
pub(crate) async fn newest(
    store: &Store,
    among: &Among<'_>,
    since: Time,
    bounds: Bounds,
    takes: impl Fn(&JobSummary) -> bool,
) -> Result<StoredJobs, DbError> {
    let mut read = StoredJobs::default();
    if let Among::NamesBeginning(beginning) = among {
        let found = store.with_names_beginning(beginning, bounds.most.min(MOST_READ)).await?;
        for ids in found.ids.chunks(*CHUNK.end()) {
            read.add(store, ids, &takes).await?;
            if read.is_enough(bounds) {
                read.more = true;
                return Ok(read);
            }
        }
        read.more = found.more;
        return Ok(read);
    }
    let chunk = bounds.wanted.clamp(*CHUNK.start(), *CHUNK.end());
    let mut below: Option<JobId> = None;
    loop {
        let JobIds { ids, more } = match among {
            Among::Named(name) => store.named(name, below, chunk).await?,
            Among::Stored | Among::NamesBeginning(_) => store.newest(below, since, chunk).await?,
        };
        below = ids.last().copied();
        read.add(store, &ids, &takes).await?;
        read.more = more && below.is_some();
        if !read.more || read.is_enough(bounds) {
            return Ok(read);
        }
    }
}

impl StoredJobs {
    async fn add(&mut self, store: &Store, ids: &[JobId], takes: impl Fn(&JobSummary) -> bool) -> Result<(), DbError> {
        let mut read = store.jobs_of(ids.iter().copied()).await?;
        read.rows.retain(|job| takes(&job.summary));
        read.rows.sort_by_key(|job| Reverse(job.summary.job_id));
        self.jobs.extend(read.rows);
        self.unreadable.extend(read.unreadable);
        self.looked += ids.len();
        Ok(())
    }

    const fn is_enough(&self, bounds: Bounds) -> bool {
        self.jobs.len() > bounds.wanted || self.looked >= bounds.most
    }
}
