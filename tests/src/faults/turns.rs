//! Events that come shortly after a run: none is lost, and the functions make few runs for them.

use async_trait::async_trait;
use model::control::{PolicyRow, RunNote};
use model::fixtures::at;
use model::policy::example_json;
use model::{
    Cloud, CloudError, Instance, Job, JobSpec, LaunchAnswer, LaunchError, LaunchRequest, LaunchSettings, Policy, Time,
};
use nodekeeper_simulation::database::Plain;
use runtime::answer::RunAnswer;
use runtime::clock::RunClock;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use store::Store;

/// An account without instances that can launch nothing.
pub struct NoEc2;

#[async_trait]
impl Cloud for NoEc2 {
    async fn instances(&self) -> Result<Vec<Instance>, CloudError> {
        Ok(Vec::new())
    }
    async fn instance(&self, _: &str) -> Result<Option<Instance>, CloudError> {
        Ok(None)
    }
    async fn launch(&self, _: &LaunchRequest, _: &str) -> Result<LaunchAnswer, LaunchError> {
        Err(LaunchError::Lost("not in this test".into()))
    }
    async fn terminate(&self, _: &[String]) -> Result<(), CloudError> {
        Ok(())
    }
    async fn console_output(&self, _: &str) -> Result<Option<String>, CloudError> {
        Ok(None)
    }
}

fn event() -> Value {
    json!({"Records": [{"eventName": "INSERT"}]})
}

/// A store with this policy. Its clock follows tokio's.
struct Bench {
    store: Store,
    began: tokio::time::Instant,
}

impl Bench {
    async fn new(poll: Value) -> Self {
        let store = Store::new(Arc::new(Plain::new()));
        let mut policy = example_json();
        policy["poll"] = poll;
        let policy = Policy::from_json(&policy).unwrap();
        store.write(None, &PolicyRow::of_policy(&policy), Vec::new()).await.unwrap();
        Self { store, began: tokio::time::Instant::now() }
    }

    fn now(&self) -> Time {
        at(1000) + model::time::Span::from_ms(self.began.elapsed().as_millis() as i64)
    }

    async fn until(&self, s: i64) {
        tokio::time::sleep_until(self.began + Duration::from_secs(s as u64)).await;
    }

    /// Runs poll-and-scale. Returns the second at which it observed, or `None` if it was not its turn.
    async fn run(&self, input: Value) -> Option<f64> {
        let settings = LaunchSettings {
            cluster: "c".parse().unwrap(),
            key: None,
            heartbeat_url: "http://h".into(),
            sweep_url: "http://s".into(),
        };
        let clock = RunClock::new(self.now(), None, Duration::from_secs(50));
        let answer: RunAnswer = poll_and_scale::tick(&self.store, &NoEc2, &settings, &input, clock).await.unwrap();
        let observed = answer.observed_at.since(at(1000)).as_ms() as f64 / 1000.0;
        (answer.observed.jobs > 0).then_some(observed)
    }

    async fn event(&self, s: i64) -> Option<f64> {
        self.until(s).await;
        self.run(event()).await
    }

    async fn submit(&self) {
        let spec = JobSpec::running(["true"]);
        let job = Job::submit(model::fixtures::job_id(1), spec, at(0)).unwrap();
        self.store.write(None, &job, Vec::new()).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn an_event_within_the_gap_waits_for_its_end_and_the_next_ones_leave() {
    let bench = Bench::new(json!({"min_gap_s": 5})).await;
    bench.submit().await;
    let (first, second, third, schedule, fourth, fifth) = tokio::join!(
        bench.event(0),
        bench.event(1),
        bench.event(3),
        async {
            bench.until(4).await;
            bench.run(json!({})).await
        },
        bench.event(6),
        bench.event(100),
    );
    assert_eq!(first, Some(0.0));
    assert_eq!(second, Some(5.0), "it waits until five seconds after the first run");
    assert_eq!(third, None, "the second one observes later, and sees what this one would have seen");
    assert_eq!(schedule, Some(4.0), "the schedule never waits");
    assert_eq!(fourth, Some(10.0), "five seconds after the run that waited");
    assert_eq!(fifth, Some(100.0), "a promise that is kept is over");
}

/// Each slot of a full fleet stands idle for this long between two jobs.
#[tokio::test(start_paused = true)]
async fn by_default_an_event_waits_for_a_second_at_most() {
    let bench = Bench::new(json!({})).await;
    bench.submit().await;
    let (first, second) = tokio::join!(bench.event(0), bench.event(0));
    assert_eq!([first, second], [Some(0.0), Some(1.0)]);
}

#[tokio::test(start_paused = true)]
async fn a_run_that_waits_and_is_killed_blocks_nobody_for_longer_than_the_gap() {
    let bench = Bench::new(json!({"min_gap_s": 5})).await;
    bench.submit().await;
    assert_eq!(bench.event(0).await, Some(0.0));
    bench.until(1).await;
    tokio::select! {
        _ = bench.run(event()) => panic!("it waits"),
        () = bench.until(2) => {}
    }
    assert_eq!(bench.event(3).await, None);
    assert_eq!(bench.event(6).await, Some(6.0));
}

#[tokio::test(start_paused = true)]
async fn the_gap_grows_with_the_fleet_and_no_run_waits_for_longer_than_its_time() {
    // The gap is `min_gap_s`, and one more for each 500 nodes. It is never longer than a run may wait.
    for (min_gap_s, in_use, begins_s) in [(1, 999, 2.0), (1, 1_000, 3.0), (5, 1_000, 15.0), (20, 1_000, 20.0)] {
        let bench = Bench::new(json!({"min_gap_s": min_gap_s})).await;
        bench.submit().await;
        assert_eq!(bench.event(0).await, Some(0.0));
        let before = bench.store.ingest_control().await.unwrap().runs["poll-and-scale"].clone();
        let after = before.with(RunNote { in_use: Some(in_use), ..before.entry.clone() });
        bench.store.write(Some(&before), &after, Vec::new()).await.unwrap();
        assert_eq!(bench.event(1).await, Some(begins_s));
    }
}
