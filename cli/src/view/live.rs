//! The present as the page shows it: the status, and the lists of jobs and nodes.
//!
//! Flow: running jobs, the head of the queue, and jobs that ended in the last minutes are read often, from the index of the
//! queue. The jobs that ended last, of each kind of end, are read seldom.
//! Guarantees: a live job is as new as the index. The amount that is read does not grow with the number of jobs.
//! Does not: know every job. `find` does.

use super::present::{COUNTED, Snapshot};
use super::rows::{JobRow, node_row};
use super::status::Status;
use futures::future::{try_join, try_join_all};
use model::{AllocId, Cloud, JobId, JobState, JobSummary, NodeRecord, Slot, Span, Time};
use serde_json::Value;
use std::collections::BTreeMap;
use store::{DbError, End, Ended, Store};

/// How many ended jobs are known of each kind of end: those that ended last.
const KEPT: usize = 500;
/// Each refresh reads the jobs that ended within this time. Older ones are in a list that is read seldom.
const LATELY: Span = Span::from_s(120);
/// How many of these jobs are read.
const AGAIN: usize = 50;

pub(crate) struct LiveView {
    pub(crate) present: Snapshot,
    pub(crate) status: Status,
    /// The jobs that ended within [`LATELY`].
    ended: Vec<Ended>,
}

/// The rows of the jobs that ended last.
pub(crate) struct EndedJobs {
    rows: BTreeMap<JobId, JobRow>,
    /// The states of which more jobs are stored.
    more: Vec<JobState>,
}

/// A part of a long list, and the place where it goes on.
pub(crate) struct JobsPart {
    pub(crate) rows: Vec<JobRow>,
    pub(crate) next: Option<String>,
}

impl LiveView {
    pub(crate) async fn read(store: &Store, cloud: &dyn Cloud, now: Time) -> Result<Self, DbError> {
        let present = Snapshot::read(store, cloud, COUNTED, now).await?;
        let (status, ended) =
            try_join(Status::of(store, &present), store.ended(&End::ALL, now - LATELY, AGAIN)).await?;
        Ok(Self { status, present, ended })
    }

    /// The known jobs: first those that run, then those that failed within a day, then the waiting ones in the order of the queue,
    /// then the others, the newest first.
    pub(crate) fn jobs(&self, stored: &EndedJobs) -> Vec<JobRow> {
        let mut rows = stored.rows.clone();
        let places = self.present.places();
        rows.extend(self.ended.iter().map(row_of));
        for job in &self.present.jobs {
            // A job that ended after the list of live jobs was read stays ended.
            rows.entry(job.job_id).or_insert_with(|| self.row(job, &places));
        }
        let mut rows: Vec<JobRow> = rows.into_values().collect();
        rows.sort_by_cached_key(|row| row.order(self.present.now));
        rows
    }

    /// The jobs of one list behind this place: those that wait, in the order of the queue, or those of one kind of end, the newest first.
    /// Those that ended at the very time of the place are there again.
    pub(crate) async fn jobs_after(&self, store: &Store, state: JobState, place: &str) -> Result<JobsPart, DbError> {
        let Some(end) = End::of(state) else {
            let waiting = store.waiting(Some(place), COUNTED).await?;
            let row = |job| self.row(job, &BTreeMap::new());
            return Ok(JobsPart { rows: waiting.jobs.iter().map(row).collect(), next: waiting.end });
        };
        let until = place.parse().map_or(self.present.now, Time::from_ms);
        // A run may reject thousands of jobs in one moment: then all of these are read.
        let mut most = KEPT;
        let ended = loop {
            let ended = store.ended_until(end, until, most).await?;
            if ended.len() < most || ended.last().is_some_and(|last| last.at < until) {
                break ended;
            }
            most = most.saturating_mul(2);
        };
        let next = ended.last().filter(|_| ended.len() >= most).map(|last| last.at.as_ms().to_string());
        Ok(JobsPart { rows: ended.iter().map(|ended| row_of(ended).1).collect(), next })
    }

    /// The place after the last known job of this list, for the next part; `None` if all jobs are known.
    pub(crate) fn place_after(&self, stored: &EndedJobs, state: JobState) -> Option<String> {
        self.more(stored).find(|more| End::of(*more) == End::of(state))?;
        match End::of(state) {
            None => self.present.jobs.iter().rfind(|job| job.state == JobState::Queued).map(JobSummary::rank),
            end => {
                let of_end = stored.rows.values().filter(|row| End::of(row.summary.state) == end);
                of_end.filter_map(|row| row.finished_at).min().map(|at| at.as_ms().to_string())
            }
        }
    }

    fn row(&self, job: &JobSummary, places: &BTreeMap<AllocId, Slot>) -> JobRow {
        let mut row = JobRow::of_summary(job);
        row.add_live(self.present.waits_because(job), places);
        row
    }

    /// The states of which there are more jobs than are known.
    pub(crate) fn more<'a>(&self, stored: &'a EndedJobs) -> impl Iterator<Item = JobState> + use<'a> {
        let waits = self.present.more_jobs_wait.then_some(JobState::Queued);
        waits.into_iter().chain(stored.more.iter().copied())
    }

    /// All nodes, in the order of their slots; free slots last.
    pub(crate) fn nodes(&self) -> Vec<Value> {
        let (names, next) = (self.present.names(), self.present.next.as_ref().ok());
        let mut records: Vec<&NodeRecord> = self.present.nodes.iter().collect();
        records.sort_by_key(|record| (record.life().is_none(), record.slot));
        records.into_iter().map(|record| node_row(record, next, &names)).collect()
    }

    pub(crate) fn node(&self, record: &NodeRecord) -> Value {
        node_row(record, self.present.next.as_ref().ok(), &self.present.names())
    }
}

fn row_of(ended: &Ended) -> (JobId, JobRow) {
    (ended.job.job_id, JobRow { finished_at: Some(ended.at), ..JobRow::of_summary(&ended.job) })
}

impl EndedJobs {
    pub(crate) async fn read(store: &Store) -> Result<Self, DbError> {
        let read = End::ALL.map(|end| async move { store.ended(&[end], Time::from_ms(0), KEPT).await });
        let ended = try_join_all(read).await?;
        let states = [JobState::Complete, JobState::Failed, JobState::Cancelled];
        let more = states.into_iter().zip(&ended).filter(|(_, jobs)| jobs.len() >= KEPT).map(|(state, _)| state);
        Ok(Self { more: more.collect(), rows: ended.iter().flatten().map(row_of).collect() })
    }

    pub(crate) fn name(&self, job: JobId) -> Option<&str> {
        self.rows.get(&job)?.summary.name.as_deref()
    }
}
