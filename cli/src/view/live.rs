//! The present as the page shows it: the status, and the lists of jobs and nodes.
//!
//! Flow: running jobs, the head of the queue, and jobs that ended in the last minutes are read often, from the index of the
//! queue. The jobs that ended last, of each kind of end, are read seldom.
//! Guarantees: a live job is as new as the index. The amount that is read does not grow with the number of jobs.
//! Does not: know every job. `find` does.

use super::present::{COUNTED, Snapshot};
use super::rows::{JobRow, NodeRow};
use super::status::Status;
use futures::future::{try_join, try_join_all};
use model::cloud::Cloud;
use model::ids::JobId;
use model::time::{Span, Time};
use model::{JobState, NodeRecord};
use std::collections::BTreeMap;
use store::{DbError, End, Store};

/// How many ended jobs are known of each kind of end: those that ended last.
const KEPT: usize = 500;
/// Jobs that ended within this time are read at each look. Later the list that is read seldom has them.
const LATELY: Span = Span::from_s(120);
/// How many of these jobs are read.
const AGAIN: usize = 50;

pub(crate) struct LiveView {
    pub(crate) present: Snapshot,
    pub(crate) status: Status,
    /// The jobs that ended within [`LATELY`].
    ended: Vec<JobId>,
}

/// The rows of the jobs that ended last.
pub(crate) struct EndedJobs {
    rows: BTreeMap<JobId, JobRow>,
    /// The states of which more jobs are stored.
    more: Vec<JobState>,
}

impl LiveView {
    pub(crate) async fn read(store: &Store, cloud: &dyn Cloud, now: Time) -> Result<Self, DbError> {
        let present = Snapshot::read(store, cloud, COUNTED, now).await?;
        let (status, ended) =
            try_join(Status::of(store, &present), store.ended(&End::ALL, now - LATELY, AGAIN)).await?;
        Ok(Self { status, present, ended: ended.iter().map(|ended| ended.job.job_id).collect() })
    }

    /// The known jobs: first those that run, then those that failed within a day, then the waiting ones in the order of the queue,
    /// then the others, the newest first.
    pub(crate) async fn jobs(&self, stored: &EndedJobs, store: &Store) -> Result<Vec<JobRow>, DbError> {
        let mut rows = stored.rows.clone();
        let places = self.present.places();
        let ended: Vec<JobId> = self.ended.iter().copied().filter(|id| !rows.contains_key(id)).collect();
        for job in store.jobs_of(ended).await?.rows {
            rows.insert(job.summary.job_id, JobRow::of(&job));
        }
        for job in &self.present.jobs {
            // A job that ended after the list of live jobs was read stays ended.
            rows.entry(job.job_id).or_insert_with(|| {
                let mut row = JobRow::of_summary(job);
                row.add_snapshot(job, &self.present, &places);
                row
            });
        }
        let mut rows: Vec<JobRow> = rows.into_values().collect();
        rows.sort_by_cached_key(|row| row.order(self.present.now));
        Ok(rows)
    }

    /// The states of which there are more jobs than are known.
    pub(crate) fn more<'a>(&self, stored: &'a EndedJobs) -> impl Iterator<Item = JobState> + use<'a> {
        let waits = self.present.more_jobs_wait.then_some(JobState::Queued);
        waits.into_iter().chain(stored.more.iter().copied())
    }

    /// All nodes, in the order of their slots; free slots last.
    pub(crate) fn nodes(&self) -> Vec<NodeRow> {
        let (names, next) = (self.present.names(), self.present.next.as_ref().ok());
        let mut rows: Vec<NodeRow> = self.present.nodes.iter().map(|n| NodeRow::of(n, next, &names)).collect();
        rows.sort_by_key(|row| (row.node_id.is_none(), row.slot));
        rows
    }

    pub(crate) fn node(&self, record: &NodeRecord) -> NodeRow {
        NodeRow::of(record, self.present.next.as_ref().ok(), &self.present.names())
    }
}

impl EndedJobs {
    pub(crate) async fn read(store: &Store) -> Result<Self, DbError> {
        let read = End::ALL.map(|end| async move { store.ended(&[end], Time::from_ms(0), KEPT).await });
        let ended = try_join_all(read).await?;
        let states = [JobState::Complete, JobState::Failed, JobState::Cancelled];
        let more = states.into_iter().zip(&ended).filter(|(_, jobs)| jobs.len() >= KEPT).map(|(state, _)| state);
        let ids = ended.iter().flatten().map(|ended| ended.job.job_id);
        let jobs = store.jobs_of(ids).await?.rows;
        Ok(Self { rows: jobs.iter().map(|job| (job.summary.job_id, JobRow::of(job))).collect(), more: more.collect() })
    }

    pub(crate) fn name(&self, job: JobId) -> Option<&str> {
        self.rows.get(&job)?.name.as_deref()
    }
}
