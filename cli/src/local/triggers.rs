//! The streams of the tables jobs and allocs, which wake poll-and-scale: a new job, and an alloc that ended.
//!
//! The embedded database tells which rows were written. Only those are read, so that a queue that stands still costs nothing.
//!
//! Guarantees: a job or an end that stays for [`TOGETHER`] is noticed.
//! Does not: read the streams of the database, which it would keep for ever.

use super::dynamo::Written;
use super::functions::Functions;
use model::functions::POLL_AND_SCALE;
use model::ids::{AllocId, JobId};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use store::{DbError, Store, Table};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::sleep;

/// How long writes are gathered before they are looked at together.
const TOGETHER: Duration = Duration::from_millis(200);

/// Jobs and allocs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Rows {
    jobs: BTreeSet<JobId>,
    allocs: BTreeSet<AllocId>,
}

/// Wakes poll-and-scale for each new job and each ended alloc, until nothing is written any more.
pub(super) async fn wake(store: Store, mut written: UnboundedReceiver<Written>, functions: Arc<Functions>) {
    let mut open = Rows::default();
    let mut touched = match all_open(&store).await {
        Ok(rows) => rows,
        Err(error) => {
            tracing::warn!(%error, "the tables cannot be read: jobs that are there already do not wake poll-and-scale");
            Rows::default()
        }
    };
    loop {
        match still_open(&store, &touched).await {
            Ok(now) => {
                if let Some(event) = open.note(&touched, now) {
                    functions.send(POLL_AND_SCALE.name, event);
                }
                touched = Rows::default();
            }
            // They are looked at again with the next writes.
            Err(error) => tracing::debug!(%error, "the tables cannot be read"),
        }
        let Some(first) = written.recv().await else { return };
        touched.add(&first);
        sleep(TOGETHER).await;
        while let Ok(more) = written.try_recv() {
            touched.add(&more);
        }
    }
}

/// All jobs that wait or run, and all live allocs.
async fn all_open(store: &Store) -> Result<Rows, DbError> {
    let jobs = store.queue().await?.into_iter().map(|job| job.job_id).collect();
    let allocs = store.live_allocs().await?.into_iter().map(|alloc| alloc.alloc_id).collect();
    Ok(Rows { jobs, allocs })
}

/// Those of the rows that have not ended.
async fn still_open(store: &Store, touched: &Rows) -> Result<Rows, DbError> {
    let jobs = store.jobs_of(touched.jobs.iter().copied()).await?.rows;
    let allocs = store.allocs_listed(touched.allocs.iter().copied()).await?.rows;
    Ok(Rows {
        jobs: jobs.iter().filter(|job| !job.summary.state.is_ended()).map(|job| job.summary.job_id).collect(),
        allocs: allocs
            .iter()
            .filter(|alloc| !alloc.summary.client.is_final())
            .map(|alloc| alloc.summary.alloc_id)
            .collect(),
    })
}

impl Rows {
    fn add(&mut self, written: &Written) {
        match written.table {
            Table::Jobs => self.jobs.extend(written.key.parse::<JobId>()),
            Table::Allocs => self.allocs.extend(written.key.parse::<AllocId>()),
            _ => {}
        }
    }

    /// Notes which of the touched rows are open now. Returns the event of what is new; `None` if nothing wakes the function.
    fn note(&mut self, touched: &Self, now: Self) -> Option<Value> {
        let is_inserted = now.jobs.difference(&self.jobs).next().is_some();
        let is_freed = touched.allocs.iter().any(|id| self.allocs.contains(id) && !now.allocs.contains(id));
        self.jobs.retain(|id| !touched.jobs.contains(id));
        self.allocs.retain(|id| !touched.allocs.contains(id));
        self.jobs.extend(now.jobs);
        self.allocs.extend(now.allocs);
        let names = [is_inserted.then_some("INSERT"), is_freed.then_some("MODIFY")].into_iter().flatten();
        let records: Vec<Value> = names.map(|name| json!({"eventName": name})).collect();
        (!records.is_empty()).then(|| json!({ "Records": records }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::ids::Ulid;

    fn rows(jobs: &[u128], allocs: &[u128]) -> Rows {
        let job = |n| JobId::new(Ulid::from_parts(1, n));
        let alloc = |n| AllocId { job_id: job(n), member: 0, copy: 0 };
        Rows { jobs: jobs.iter().map(|n| job(*n)).collect(), allocs: allocs.iter().map(|n| alloc(*n)).collect() }
    }

    #[test]
    fn a_new_job_and_an_ended_alloc_wake_the_function_and_nothing_else_does() {
        // What was open, which rows were written, which of them are open now; what wakes.
        let cases = [
            (rows(&[], &[]), rows(&[1], &[]), rows(&[1], &[]), Some("INSERT")),
            (rows(&[1], &[]), rows(&[1], &[]), rows(&[1], &[]), None),
            // A placement is our own write.
            (rows(&[1], &[]), rows(&[1], &[1]), rows(&[1], &[1]), None),
            (rows(&[1, 2], &[]), rows(&[2], &[]), rows(&[], &[]), None),
            (rows(&[1], &[1]), rows(&[], &[1]), rows(&[], &[]), Some("MODIFY")),
            (rows(&[1], &[1]), rows(&[1, 2], &[1, 2]), rows(&[2], &[2]), Some("INSERT MODIFY")),
            // It came and went between two looks.
            (rows(&[], &[]), rows(&[1], &[1]), rows(&[], &[]), None),
        ];
        for (mut open, touched, now, wakes) in cases {
            let was = format!("{open:?} {touched:?}");
            let untouched = open.jobs.difference(&touched.jobs).count();
            let event = open.note(&touched, now.clone());
            let records = event.map(|event| event["Records"].as_array().unwrap().clone());
            let names = records
                .map(|r| r.iter().map(|r| r["eventName"].as_str().unwrap().to_owned()).collect::<Vec<_>>().join(" "));
            assert_eq!(names.as_deref(), wakes, "{was}");
            assert_eq!(open.jobs.len(), untouched + now.jobs.len(), "{was}");
        }
    }

    #[test]
    fn written_keys_are_read_and_other_text_is_left_out() {
        let mut touched = Rows::default();
        let wanted = rows(&[1], &[1]);
        let (job, alloc) = (wanted.jobs.first().unwrap(), wanted.allocs.first().unwrap());
        for (table, key) in
            [(Table::Jobs, job.to_string()), (Table::Allocs, alloc.to_string()), (Table::Jobs, "?".into())]
        {
            touched.add(&Written { table, key });
        }
        assert_eq!(touched, wanted);
    }
}
