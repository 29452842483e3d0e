//! The streams of the tables jobs and allocs, which wake poll-and-scale: a new job, and an alloc that ended. What has ended is
//! also what the webhook tells of.
//!
//! Guarantees: a job or an end that stays for [`INTERVAL`] is noticed.
//! Does not: read a stream. It compares the lists of waiting jobs and of live allocs, which the local tables give
//! cheaply.

use lambda_stand_in::Lambda;
use model::functions::POLL_AND_SCALE;
use model::ids::{AllocId, JobId};
use serde_json::json;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use store::{DbError, Store};
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::{MissedTickBehavior, interval};

/// How often the tables are looked at.
const INTERVAL: Duration = Duration::from_millis(200);

/// What the last look showed.
#[derive(Default)]
struct Seen {
    jobs: BTreeSet<JobId>,
    allocs: BTreeSet<AllocId>,
}

/// Wakes poll-and-scale for each new job and each ended alloc, until the future is dropped. `ended` gets the jobs that no longer
/// wait or run.
pub(super) async fn wake(store: Store, lambda: Arc<Lambda>, ended: Option<UnboundedSender<BTreeSet<JobId>>>) {
    let mut ticks = interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut before = Seen::default();
    loop {
        ticks.tick().await;
        let now = match look(&store).await {
            Ok(now) => now,
            Err(error) => {
                tracing::debug!(%error, "the tables cannot be read");
                continue;
            }
        };
        if let Some(event) = event(&before, &now)
            && let Err(error) = lambda.send_event(POLL_AND_SCALE.name, &event)
        {
            tracing::debug!(%error, "poll-and-scale cannot be woken");
        }
        let gone: BTreeSet<JobId> = before.jobs.difference(&now.jobs).copied().collect();
        if let Some(ended) = ended.as_ref().filter(|_| !gone.is_empty()) {
            // The other side ends together with this.
            drop(ended.send(gone));
        }
        before = now;
    }
}

async fn look(store: &Store) -> Result<Seen, DbError> {
    let jobs = store.queue().await?.into_iter().map(|job| job.job_id).collect();
    let allocs = store.live_allocs().await?.into_iter().map(|alloc| alloc.alloc_id).collect();
    Ok(Seen { jobs, allocs })
}

/// The event of what is new; `None` if nothing wakes the function.
fn event(before: &Seen, now: &Seen) -> Option<serde_json::Value> {
    let inserted = now.jobs.difference(&before.jobs).next().map(|_| json!({"eventName": "INSERT"}));
    let ended = before.allocs.difference(&now.allocs).next().map(|_| json!({"eventName": "MODIFY"}));
    let records: Vec<_> = inserted.into_iter().chain(ended).collect();
    (!records.is_empty()).then(|| json!({ "Records": records }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::ids::Ulid;

    #[test]
    fn a_new_job_and_an_ended_alloc_wake_the_function_and_nothing_else_does() {
        let job = |n| JobId::new(Ulid::from_parts(1, n));
        let alloc = |n| AllocId { job_id: job(n), member: 0, copy: 0 };
        let seen = |jobs: &[u128], allocs: &[u128]| Seen {
            jobs: jobs.iter().map(|n| job(*n)).collect(),
            allocs: allocs.iter().map(|n| alloc(*n)).collect(),
        };
        let names = |before: &Seen, now: &Seen| {
            let records = event(before, now)?["Records"].as_array()?.clone();
            Some(records.iter().map(|r| r["eventName"].as_str().unwrap().to_owned()).collect::<Vec<_>>().join(" "))
        };
        assert_eq!(names(&seen(&[1], &[1]), &seen(&[1], &[1])), None);
        assert_eq!(names(&seen(&[1], &[]), &seen(&[1], &[1])), None, "a placement is our own write");
        assert_eq!(names(&seen(&[1, 2], &[]), &seen(&[1], &[])), None);
        assert_eq!(names(&seen(&[1], &[]), &seen(&[1, 2], &[])).as_deref(), Some("INSERT"));
        assert_eq!(names(&seen(&[1], &[1]), &seen(&[1], &[])).as_deref(), Some("MODIFY"));
        assert_eq!(names(&seen(&[1], &[1]), &seen(&[2], &[2])).as_deref(), Some("INSERT MODIFY"));
    }
}
