//! Writing many jobs.
//!
//! Guarantees: each job is written once or not at all. Jobs that are stored already are left as they are. At the end it is known
//! which jobs are stored, even if a write failed or its answer was lost. The row of a key is written together with its first job.
//! Does not: choose ids.

use crate::console::Cluster;
use futures::stream::{self, StreamExt};
use model::{Event, Job, JobId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use store::transactions::JOBS_TOGETHER;
use store::{DbError, Store, Write, WriteError};

/// How many transactions run at the same time.
const AT_ONCE: usize = 16;
/// How often a transaction is retried.
const TRIES: u32 = 8;
/// The longest pause before the first retry, if DynamoDB throttles. It doubles with each retry.
const PAUSE: Duration = Duration::from_millis(50);
#[derive(Debug, Default)]
pub(crate) struct Written {
    /// The stored jobs, in the order of their ids.
    pub(crate) jobs: Vec<Job>,
    /// The jobs that are not stored.
    pub(crate) missing: BTreeSet<JobId>,
    /// The jobs of which it is not known whether they are stored.
    pub(crate) unclear: BTreeSet<JobId>,
    /// Why some jobs are not stored.
    pub(crate) error: Option<WriteError>,
}

/// What one transaction writes: at most [`JOBS_TOGETHER`] jobs, and rows of keys, each with the first job of its key.
pub(crate) struct Together<'a> {
    pub(crate) jobs: &'a [Job],
    pub(crate) keys: Vec<(JobId, Event)>,
}

/// These jobs, without keys.
pub(crate) fn in_order(jobs: &[Job]) -> Vec<Together<'_>> {
    jobs.chunks(JOBS_TOGETHER).map(|jobs| Together { jobs, keys: Vec::new() }).collect()
}

/// Writes these jobs. A job may follow only jobs before it. With `may_exist`, some of them may have been written before.
pub(crate) async fn write(cluster: &Cluster, all: Vec<Together<'_>>, may_exist: bool) -> Written {
    // If one of these jobs follows another one, they are written in order: it is never stored without the other one.
    let jobs = || all.iter().flat_map(|some| some.jobs);
    let ids: BTreeSet<JobId> = jobs().map(|job| job.summary.job_id).collect();
    let in_order = jobs().any(|job| job.summary.after.keys().any(|id| ids.contains(id)));
    // After a failure, no other write is begun.
    let failed = AtomicBool::new(false);
    let writes = all.iter().map(|some| {
        let failed = &failed;
        async move {
            if failed.load(Ordering::Relaxed) {
                return (some, None);
            }
            let result = write_some(cluster, some, may_exist).await;
            failed.fetch_or(result.is_err(), Ordering::Relaxed);
            (some, Some(result))
        }
    });
    let mut writes = stream::iter(writes).buffer_unordered(if in_order { 1 } else { AT_ONCE });
    let mut all = Written::default();
    let mut unclear = Vec::new();
    while let Some((some, result)) = writes.next().await {
        let ids = some.jobs.iter().map(|job| job.summary.job_id);
        match result {
            Some(Ok(written)) => all.jobs.extend(written),
            Some(Err(e)) => {
                unclear.extend(ids);
                all.error.get_or_insert(e);
            }
            None => all.missing.extend(ids),
        }
    }
    // A write whose answer was lost may have been carried out.
    match cluster.store.jobs_of(unclear.iter().copied()).await.and_then(store::Listed::all) {
        Ok(found) => {
            let there: BTreeSet<JobId> = found.iter().map(|job| job.summary.job_id).collect();
            all.missing.extend(unclear.into_iter().filter(|id| !there.contains(id)));
            all.jobs.extend(found);
            if all.missing.is_empty() {
                all.error = None;
            }
        }
        Err(_) => all.unclear.extend(unclear),
    }
    all.jobs.sort_by_key(|job| job.summary.job_id);
    all
}

/// Writes a few jobs: all or none. Jobs that are stored already are left as they are.
async fn write_some(cluster: &Cluster, some: &Together<'_>, may_exist: bool) -> Result<Vec<Job>, WriteError> {
    let Together { jobs, keys } = some;
    let (mut looks, mut tries) = (may_exist, 0);
    loop {
        let there: BTreeMap<JobId, Job> = if looks {
            let found = cluster.store.jobs_of(jobs.iter().map(|job| job.summary.job_id)).await?.all()?;
            found.into_iter().map(|job| (job.summary.job_id, job)).collect()
        } else {
            BTreeMap::new()
        };
        let missing = jobs.iter().filter(|job| !there.contains_key(&job.summary.job_id));
        let (mut writes, missing): (Vec<Write>, Vec<Job>) = missing.map(|job| store::change(None, job)).unzip();
        let is_missing = |first: &JobId| missing.iter().any(|job| job.summary.job_id == *first);
        writes.extend(keys.iter().filter(|(first, _)| is_missing(first)).map(|(_, row)| Store::event_write(row)));
        // A submission leaves no event: the row of the job says all of it.
        match cluster.store.write_all(&writes).await {
            Ok(()) => return Ok(there.into_values().chain(missing).collect()),
            // The jobs are not there, so the row of a key is: another program has begun with it.
            Err(e @ WriteError::Conflict(_)) if looks && !keys.is_empty() => return Err(e),
            // Another program submits the same jobs, or an earlier try was carried out and its answer was lost.
            Err(WriteError::Conflict(_) | WriteError::Contended) if tries < TRIES => looks = true,
            Err(WriteError::Db(DbError::Throttled { .. })) if tries < TRIES => {
                looks = true;
                let most = PAUSE.saturating_mul(1 << tries.min(10)).as_secs_f64();
                let pause = cluster.store.rng().between(most / 2.0, most);
                tokio::time::sleep(Duration::from_secs_f64(pause)).await;
            }
            Err(e) => return Err(e),
        }
        tries += 1;
    }
}
