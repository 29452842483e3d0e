//! The fields of a shown job that the index of the queue lacks: its command, and the reason for its state.
//!
//! Guarantees: a row is read once for each version of its job; memory is bounded.
//! Does not: read rows that are not shown.

use super::rows::JobRow;
use model::ids::JobId;
use model::{JobSummary, Version};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use store::{DbError, Store};

/// With more rows than this, all are forgotten.
const KEPT: usize = 5000;

/// Rows by job, each with the version that the index had of the job.
#[derive(Default)]
pub(super) struct Commands(Mutex<BTreeMap<JobId, (Version, JobRow)>>);

impl Commands {
    /// Adds the missing fields to the rows of these live jobs.
    pub(super) async fn complete(
        &self,
        store: &Store,
        live: &[JobSummary],
        rows: &mut [JobRow],
    ) -> Result<(), DbError> {
        let versions: BTreeMap<JobId, Version> = live.iter().map(|job| (job.job_id, job.version)).collect();
        let unknown: Vec<JobId> = {
            let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let is_known = |id: &JobId| known.get(id).is_some_and(|(version, _)| Some(version) == versions.get(id));
            let shown = rows.iter().filter(|row| row.command.is_none()).map(|row| row.job_id);
            shown.filter(|id| !is_known(id)).collect()
        };
        let read = store.jobs_of(unknown).await?.rows;
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() + read.len() > KEPT {
            known.clear();
        }
        for job in &read {
            let id = job.summary.job_id;
            known.insert(id, (versions.get(&id).copied().unwrap_or(job.summary.version), JobRow::of(job)));
        }
        for row in rows.iter_mut().filter(|row| row.command.is_none()) {
            if let Some((_, whole)) = known.get(&row.job_id) {
                row.command.clone_from(&whole.command);
                row.reason.clone_from(&whole.reason);
            }
        }
        Ok(())
    }
}
