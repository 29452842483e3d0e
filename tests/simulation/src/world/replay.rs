//! A world that compares policies: the jobs of a file arrive, and the world ends when all of them have ended.
//!
//! Guarantees: after the last job, the costs of each policy are counted for the same time.
//! Does not: have operators, or faults.

use super::{Lived, Outcome, World};
use crate::ec2::Seen;
use crate::replay::Replay;
use futures::future::join_all;
use nodekeeper_cli::when::{ForeseenStart, starts};
use runtime::observation::Observation;
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::time::{Instant, sleep, sleep_until};

/// How many jobs are submitted at the same time.
const SIDE_BY_SIDE: usize = 100;
/// How many minutes the world goes on after the last job: idle nodes end in this time.
const AFTER_MIN: u32 = 15;
/// If no job ends for this many minutes, the world ends without the remaining jobs.
const PATIENCE_MIN: u32 = 2 * 24 * 60;
/// The time from a write to the start of a function by a stream.
const STREAM: Duration = Duration::from_millis(300);

impl World {
    pub(super) async fn replay(self: Arc<Self>, replay: Arc<Replay>) -> Outcome {
        // `policy set` also reads what EC2 offers at once.
        self.functions.run(clean_stale_records::FUNCTION, &json!({})).await;
        let have_arrived = Arc::new(AtomicBool::new(false));
        for work in [
            tokio::spawn(Arc::clone(&self).schedules()),
            tokio::spawn(Arc::clone(&self).events()),
            tokio::spawn(Arc::clone(&self).streams()),
            tokio::spawn(Arc::clone(&self).foretold()),
            tokio::spawn(Arc::clone(&self).arrive(replay, Arc::clone(&have_arrived))),
        ] {
            drop(work);
        }
        let mut lived = Lived::default();
        let (mut after, mut waited, mut left) = (0, 0, usize::MAX);
        while after < AFTER_MIN && waited < PATIENCE_MIN {
            tokio::select! {
                biased;
                () = self.core.stop.notified() => break,
                () = sleep(Duration::from_secs(60)) => {}
            }
            self.core.invariant_no_task_panics();
            if self.core.what_broke().is_some() {
                break;
            }
            lived.minutes += 1;
            self.count_nodes(&mut lived, 0);
            let jobs = self.check.jobs();
            if have_arrived.load(Ordering::Relaxed) {
                after += u32::from(jobs == 0);
                waited = if jobs == left { waited + 1 } else { 0 };
            }
            left = jobs;
        }
        Outcome { measured: Some(self.check.end_measuring()), ..self.outcome(&lived) }
    }

    async fn arrive(self: Arc<Self>, replay: Arc<Replay>, have_arrived: Arc<AtomicBool>) {
        let began = Instant::now();
        for arrival in &replay.arrivals {
            sleep_until(began + Duration::from_secs(arrival.at_s)).await;
            let mut left = arrival.count;
            while left > 0 {
                let now = left.min(SIDE_BY_SIDE);
                join_all((0..now).map(|_| self.send_by(arrival.by.as_deref(), arrival.spec.clone()))).await;
                left -= now;
            }
        }
        have_arrived.store(true, Ordering::Relaxed);
    }

    /// A person asks each minute when the jobs begin that wait.
    async fn foretold(self: Arc<Self>) {
        loop {
            sleep(Duration::from_secs(60)).await;
            let now = self.core.now();
            let Ok(observed) = Observation::read(&self.store, &Seen(Arc::clone(&self.ec2)), now).await else {
                continue;
            };
            let plan = poll_and_scale::plan(&observed, now);
            for waiting in plan.explained.waiting.iter().flat_map(|waiting| &waiting.jobs) {
                if let Some(ForeseenStart::Boots { least, most, .. }) = starts(&plan, &observed, *waiting, now) {
                    self.check.foretell(*waiting, (now + least, now + most));
                }
            }
        }
    }

    /// The streams of the tables wake poll-and-scale when a job arrives, when an alloc ends and when a node becomes ready.
    async fn streams(self: Arc<Self>) {
        loop {
            self.check.wakes.notified().await;
            sleep(STREAM).await;
            let input = json!({"Records": [{"eventName": "INSERT"}]});
            self.functions.ring(poll_and_scale::FUNCTION, input);
        }
    }
}
