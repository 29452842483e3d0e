//! The fields of a shown job that the index of the queue lacks: its command, and the reason for its state.
//!
//! Guarantees: a row is read once for each version of its job; memory is bounded.
//! Does not: read rows that are not shown.

use super::rows::JobRow;
use model::{JobId, Version};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use store::{DbError, Store};

/// With more rows than this, all are forgotten. So the memory of a page that is open for days stays bounded.
const KEPT: usize = 10_000;

/// Rows by job, each with the version that the index had of the job.
#[derive(Default)]
pub(super) struct Commands(Mutex<BTreeMap<JobId, (Version, JobRow)>>);

impl Commands {
    /// Adds the missing fields to these rows.
    pub(super) async fn complete(&self, store: &Store, rows: &mut [JobRow]) -> Result<(), DbError> {
        let unknown: Vec<JobId> = {
            let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let is_known = |job: &JobRow| {
                known.get(&job.summary.job_id).is_some_and(|(version, _)| *version == job.summary.version)
            };
            let unknown = rows.iter().filter(|row| row.command.is_none() && !is_known(row));
            unknown.map(|row| row.summary.job_id).collect()
        };
        let read = store.jobs_of(unknown).await?.rows;
        let mut read: BTreeMap<JobId, JobRow> = read.iter().map(|job| (job.summary.job_id, JobRow::of(job))).collect();
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() + read.len() > KEPT {
            known.clear();
        }
        for row in rows.iter_mut().filter(|row| row.command.is_none()) {
            let id = row.summary.job_id;
            if let Some(whole) = read.remove(&id) {
                known.insert(id, (row.summary.version, whole));
            }
            if let Some((_, whole)) = known.get(&id) {
                row.command.clone_from(&whole.command);
                if row.array_states.is_none() {
                    row.reason.clone_from(&whole.reason);
                }
            }
        }
        Ok(())
    }
}
