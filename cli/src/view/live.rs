//! The present as the page and `top` show it: its status, and the lists of jobs and nodes.
//!
//! Flow: the live jobs come from the index of the queue, often; all jobs with their commands from the table, seldom. A job
//! that is in the table as not ended, and not in the index, has ended meanwhile: its row is read by itself.
//! Guarantees: what is shown of a job that has not ended is as new as the index.

use super::present::{COUNTED, Present};
use super::rows::{JobRow, NodeRow};
use super::status::Status;
use futures::future::join_all;
use model::cloud::Cloud;
use model::ids::JobId;
use model::time::Time;
use model::{Job, JobSummary, NodeRecord};
use std::collections::BTreeMap;
use store::{DbError, Store};

/// How many jobs are kept of the table: the newest ones.
const MOST: usize = 50_000;
/// How many jobs that have ended meanwhile are read again at once.
const AGAIN: usize = 50;

/// The present and its status.
pub(crate) struct Live {
    pub(crate) present: Present,
    pub(crate) status: Status,
}

/// All jobs of the table, in short.
pub(crate) struct Stored(BTreeMap<JobId, JobRow>);

impl Live {
    pub(crate) async fn read(store: &Store, cloud: &dyn Cloud, now: Time) -> Result<Self, DbError> {
        let present = Present::read(store, cloud, COUNTED, now).await?;
        Ok(Self { status: Status::of(store, &present).await?, present })
    }

    /// All jobs: those that run, those that failed within a day, those that wait in their order, then the others, the newest
    /// first.
    pub(crate) async fn jobs(&self, stored: &Stored, store: &Store) -> Vec<JobRow> {
        let mut rows = stored.0.clone();
        let places = self.present.places();
        let live: BTreeMap<JobId, &JobSummary> = self.present.jobs.iter().map(|j| (j.job_id, j)).collect();
        let ended = rows.values().filter(|row| !row.state.is_ended() && !live.contains_key(&row.job_id));
        let ended: Vec<JobId> = ended.map(|row| row.job_id).take(AGAIN).collect();
        for job in join_all(ended.iter().map(|id| store.job(*id))).await.into_iter().flatten().flatten() {
            rows.insert(job.summary.job_id, JobRow::of(&job));
        }
        for job in &self.present.jobs {
            let row = rows.entry(job.job_id).or_insert_with(|| JobRow::of_summary(job));
            row.seen_in(job, &self.present, &places);
        }
        let mut rows: Vec<JobRow> = rows.into_values().collect();
        rows.sort_by_cached_key(|row| row.order(self.present.now));
        rows
    }

    /// All nodes, in the order of their slots; free slots last.
    pub(crate) fn nodes(&self) -> Vec<NodeRow> {
        let (names, next) = (self.present.names(), self.present.next.as_ref().ok());
        let mut rows: Vec<NodeRow> = self.present.nodes.iter().map(|n| NodeRow::of(n, next, &names)).collect();
        rows.sort_by_key(|row| (row.node_id.is_none(), row.slot));
        rows
    }

    /// One node, as the list has it.
    pub(crate) fn node(&self, record: &NodeRecord) -> NodeRow {
        NodeRow::of(record, self.present.next.as_ref().ok(), &self.present.names())
    }
}

impl Stored {
    pub(crate) async fn read(store: &Store) -> Result<Self, DbError> {
        let mut rows: BTreeMap<JobId, JobRow> = BTreeMap::new();
        let keep = |job: Job| {
            rows.insert(job.summary.job_id, JobRow::of(&job));
            if rows.len() > MOST {
                rows.pop_first();
            }
        };
        store.each_job(keep).await?;
        Ok(Self(rows))
    }

    pub(crate) fn name(&self, job: JobId) -> Option<&str> {
        self.0.get(&job)?.name.as_deref()
    }
}
