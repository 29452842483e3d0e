//! The functions in this process: when they run, how many run at the same time, and how they end.
//!
//! The code that makes them under Lambda makes them here ([`Lambda`]), with the environment of this system in place of the
//! process's own. Names and periods come from the table [`FUNCTIONS`].
//!
//! Guarantees: runs overlap, as in AWS. A run that takes longer than its function's time-out is abandoned, and a run that panics
//! fails. Its caller gets the error, and other runs go on. [`Functions::stop`] returns when no run is left.
//! Does not: limit memory, retry a failed event, end a run that never awaits anything, or survive a panic if the program was built
//! to abort on panic, as releases are.

pub(crate) mod function_urls;
pub(crate) mod triggers;
pub(crate) mod wake;

use crate::console::WallClock;
use crate::local::access::Gates;
use crate::local::args::{LocalArgs, LocalEnv};
use crate::local::directory::{Layout, log_file};
use crate::local::error;
use anyhow::Context as _;
use futures::FutureExt;
use model::functions::{FUNCTIONS, POLL_AND_SCALE};
use model::{Span, Time};
use runtime::env::FunctionEnvironment;
use runtime::lambda::{FunctionInstance, Lambda, Parts};
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs::File;
use std::future::Future;
use std::io::Write;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tracing::Dispatch;
use tracing::instrument::WithSubscriber;
use tracing_subscriber::layer::SubscriberExt;

const LAMBDAS: [Lambda; 5] = [
    poll_and_scale::LAMBDA,
    clean_stale_records::LAMBDA,
    heartbeat_ingest::LAMBDA,
    sweep_dispatch::LAMBDA,
    grant_credentials::LAMBDA,
];
/// The most invocations of one function that wait or run.
const MOST: usize = 1000;
/// The page gets at most this much of an answer.
const SHOWN_CHARS: usize = 8 * 1024;

/// The scheduled functions and their periods. A minute of the table takes `tick_s` seconds.
fn periods(tick_s: u64) -> Vec<(&'static str, Span)> {
    let tick_s = i64::try_from(tick_s).unwrap_or(60);
    let scaled = |period: Span| Span::from_ms(period.as_ms().saturating_mul(tick_s) / 60);
    FUNCTIONS.iter().filter_map(|function| Some((function.name, scaled(function.period?)))).collect()
}

/// Why an invocation has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(in crate::local) enum Failure {
    #[error("no function has this name")]
    Unknown,
    #[error("too many invocations wait: try again later")]
    Busy,
    #[error("the system is shutting down: it starts no run")]
    Stopping,
    /// The function ran, and failed.
    #[error("{0}")]
    Function(String),
}

#[derive(Clone, Debug, Default, Serialize)]
pub(in crate::local) struct Stats {
    pub(in crate::local) function: &'static str,
    /// Invocations that ended.
    pub(in crate::local) invocations: u64,
    /// Invocations that failed.
    pub(in crate::local) errors: u64,
    /// Invocations that wait or run now.
    pub(in crate::local) running: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::local) last: Option<LastRun>,
}

#[derive(Clone, Debug, Serialize)]
pub(in crate::local) struct LastRun {
    at: Time,
    duration_ms: Span,
    pub(in crate::local) ok: bool,
    /// The answer or the error.
    pub(in crate::local) result: String,
}

struct Running {
    made: FunctionInstance,
    time_out: Duration,
    at_once: Semaphore,
    /// The log of the function, and its file. Metrics are lines in this file, too.
    log: (Dispatch, Arc<File>),
    clock: WallClock,
    stats: Mutex<Stats>,
}

/// The functions that run here. A drop ends their runs, too.
pub(in crate::local) struct Functions {
    by_name: BTreeMap<&'static str, Arc<Running>>,
    /// The runs. `None` after `stop`.
    runs: Mutex<Option<JoinSet<()>>>,
}

impl Functions {
    /// Makes the functions. `variables` is their environment.
    pub(in crate::local) fn new(
        env: &LocalEnv,
        places: &Layout,
        variables: &BTreeMap<String, String>,
        access: &Gates,
    ) -> anyhow::Result<Self> {
        let made = LAMBDAS.iter().map(|lambda| {
            let given = FunctionEnvironment::read(lambda.needs, |name| variables.get(name).cloned())
                .context("the functions cannot start")?;
            // Each function calls at most one service besides DynamoDB.
            let other = if lambda.name == grant_credentials::FUNCTION { places.rights } else { places.ec2 };
            let parts = Parts::new(given, &access.sdk_config(places.dynamo), access.sdk_config(other));
            let path = places.logs.join(format!("{}.log", lambda.name));
            let file = Arc::new(log_file(&path).map_err(error::file("write", &path))?);
            let log = (log_to(&file, env.given.var("RUST_LOG")), file);
            let made = FunctionInstance::new(lambda.name, parts.env.cluster.clone(), (lambda.make)(parts));
            Ok((lambda.name, Running::new(lambda.name, made, log, Arc::clone(&env.clock))))
        });
        Ok(Self::of(made.collect::<anyhow::Result<_>>()?))
    }

    fn of(by_name: BTreeMap<&'static str, Running>) -> Self {
        let by_name = by_name.into_iter().map(|(name, running)| (name, Arc::new(running))).collect();
        Self { by_name, runs: Mutex::new(Some(JoinSet::new())) }
    }

    /// Runs the functions by their schedules until the tasks are dropped. A run that could not start at once is left out.
    pub(in crate::local) fn keep_schedules(self: &Arc<Self>, args: &LocalArgs, tasks: &mut JoinSet<()>) {
        for (function, period) in periods(args.tick_s) {
            let functions = Arc::clone(self);
            tasks.spawn(async move {
                let mut ticks = wake::ticks(period);
                loop {
                    ticks.tick().await;
                    if functions.is_free(function) {
                        functions.send(function, json!({}));
                    }
                }
            });
        }
    }

    fn is_free(&self, function: &str) -> bool {
        self.by_name.get(function).is_some_and(|running| running.at_once.available_permits() > 0)
    }

    /// Starts a run, and does not wait for it. The function's log has its failure.
    pub(in crate::local) fn send(&self, function: &str, event: Value) {
        if let Err(error) = self.start(function, event) {
            tracing::debug!(function, %error, "an event is lost");
        }
    }

    /// Runs a function, and waits for its answer. The run goes on if the caller stops waiting.
    pub(in crate::local) async fn invoke(&self, function: &str, event: Value) -> Result<Value, Failure> {
        self.start(function, event)?.await.unwrap_or(Err(Failure::Stopping))
    }

    fn start(&self, function: &str, event: Value) -> Result<oneshot::Receiver<Result<Value, Failure>>, Failure> {
        let running = Arc::clone(self.by_name.get(function).ok_or(Failure::Unknown)?);
        let mut runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
        let runs = runs.as_mut().ok_or(Failure::Stopping)?;
        while runs.try_join_next().is_some() {}
        running.enter()?;
        let (tell, answer) = oneshot::channel();
        runs.spawn(async move {
            let outcome = running.run(event).await;
            // An error means that the caller no longer waits.
            let _ = tell.send(outcome.map_err(Failure::Function));
        });
        Ok(answer)
    }

    pub(in crate::local) fn stats(&self) -> Vec<Stats> {
        self.by_name.values().map(|running| running.stats().clone()).collect()
    }

    /// Ends all runs, and starts no more.
    pub(in crate::local) async fn stop(&self) {
        let runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(mut runs) = runs {
            runs.shutdown().await;
        }
    }
}

impl Running {
    /// The limits are as in the template: a scheduled function times out before its next run, and a function that answers nodes
    /// runs several times at once. poll-and-scale may run three times at once: one run works, one waits for its turn, and one takes
    /// events and finds that another run waits.
    fn new(function: &'static str, made: FunctionInstance, log: (Dispatch, Arc<File>), clock: WallClock) -> Self {
        let known = FUNCTIONS.iter().find(|known| known.name == function);
        let at_once = match function {
            _ if known.is_some_and(|f| !f.routes.is_empty()) => 4,
            name if name == POLL_AND_SCALE.name => 3,
            _ => 1,
        };
        let time_out = Duration::from_secs(if known.is_some_and(|f| f.period.is_some()) { 55 } else { 20 });
        let stats = Mutex::new(Stats { function, ..Stats::default() });
        Self { made, time_out, at_once: Semaphore::new(at_once), log, clock, stats }
    }

    fn stats(&self) -> std::sync::MutexGuard<'_, Stats> {
        self.stats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self) -> Result<(), Failure> {
        let mut stats = self.stats();
        if stats.running >= MOST {
            return Err(Failure::Busy);
        }
        stats.running += 1;
        Ok(())
    }

    /// One run. It begins when the limit allows it.
    async fn run(&self, event: Value) -> Result<Value, String> {
        let _permit = self.at_once.acquire().await.map_err(|e| e.to_string())?;
        let began = (self.clock)();
        let deadline = began + Span::from_ms(i64::try_from(self.time_out.as_millis()).unwrap_or(i64::MAX));
        let emit = |line: Value| drop(writeln!(&*self.log.1, "{line}"));
        let answer = self.made.answer(event, Some(deadline), emit).with_subscriber(self.log.0.clone());
        let outcome = ended(answer, self.time_out).await;
        if let Err(error) = &outcome {
            emit(json!({ "failed": error }));
        }
        let at = (self.clock)();
        let result = outcome.as_ref().map_or_else(String::clone, Value::to_string);
        let result = result.chars().take(SHOWN_CHARS).collect();
        let mut stats = self.stats();
        stats.invocations += 1;
        stats.errors += u64::from(outcome.is_err());
        stats.running = stats.running.saturating_sub(1);
        stats.last = Some(LastRun { at, duration_ms: at.since(began), ok: outcome.is_ok(), result });
        outcome
    }
}

/// The answer of a run, or why there is none.
async fn ended(answer: impl Future<Output = Result<Value, String>>, time_out: Duration) -> Result<Value, String> {
    match timeout(time_out, AssertUnwindSafe(answer).catch_unwind()).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(panic)) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
            Err(format!("the run panicked: {text}"))
        }
        Err(_) => Err(format!("the run timed out after {} s", time_out.as_secs())),
    }
}

/// A log in this file, as functions write it under Lambda.
fn log_to(file: &Arc<File>, filter: Option<&str>) -> Dispatch {
    let log = tracing_subscriber::fmt::layer().with_writer(Arc::clone(file)).with_ansi(false).without_time();
    Dispatch::new(tracing_subscriber::registry().with(log).with(runtime::lambda::log_filter(filter, "info")))
}

/// Invokes the functions that run at `url` by their schedules.
pub(in crate::local) fn wake_elsewhere(args: &LocalArgs, url: &str, tasks: &mut JoinSet<()>) -> anyhow::Result<()> {
    let authority = wake::authority(url)
        .with_context(|| format!("--functions-url {url:?} is not an address like http://127.0.0.1:9000"))?;
    for (function, period) in periods(args.tick_s) {
        tasks.spawn(wake::invoke_by_schedule(authority.to_owned(), function, period));
    }
    Ok(())
}

/// Functions for tests.
#[cfg(test)]
pub(in crate::local) mod testing {
    use super::*;
    use runtime::lambda::{Reply, handler};

    /// One function that does what its event says: panic, hang, fail, or answer with what it was given.
    pub(in crate::local) fn functions() -> Functions {
        let handler = handler((), async |_, event: Value, _| match event["body"].as_str() {
            Some("panic") => panic!("as it was told"),
            Some("hang") => std::future::pending().await,
            Some("fail") => Err("it failed"),
            Some("large") => Ok(Reply::Http(json!({"statusCode": 200, "body": "x".repeat(6 << 20)}))),
            _ => {
                Ok(Reply::Http(json!({"statusCode": 418, "headers": {"retry-after": "3"}, "body": event.to_string()})))
            }
        });
        let made = FunctionInstance::new(HEARTBEAT, "c".parse().unwrap(), handler);
        let file = Arc::new(tempfile::tempfile().unwrap());
        #[allow(clippy::disallowed_methods, reason = "nothing depends on it")]
        let clock = Arc::new(Time::now);
        let running = Running::new(HEARTBEAT, made, (log_to(&file, None), file), clock);
        Functions::of(BTreeMap::from([(HEARTBEAT, running)]))
    }

    pub(in crate::local) const HEARTBEAT: &str = heartbeat_ingest::FUNCTION;
}

#[cfg(test)]
mod tests {
    use super::*;
    use testing::{HEARTBEAT, functions};

    #[test]
    fn every_function_runs_here_and_a_minute_of_the_schedules_takes_one_tick() {
        let mut here = LAMBDAS.map(|lambda| lambda.name);
        let mut all: Vec<_> = FUNCTIONS.iter().map(|function| function.name).collect();
        here.sort_unstable();
        all.sort_unstable();
        assert_eq!(here.to_vec(), all);
        for (name, period) in periods(2) {
            let in_aws = FUNCTIONS.iter().find(|function| function.name == name).unwrap().period.unwrap();
            assert_eq!(period.as_ms() * 30, in_aws.as_ms(), "{name}");
        }
        assert_eq!(periods(60).len(), FUNCTIONS.iter().filter(|f| f.period.is_some()).count());
    }

    #[tokio::test(start_paused = true)]
    async fn a_run_that_hangs_panics_or_fails_is_told_and_no_other_run_notices() {
        let (functions, began) = (functions(), tokio::time::Instant::now());
        let invoke = |body: &str| functions.invoke(HEARTBEAT, json!({ "body": body }));
        let (hangs, panics, fails, answers) = tokio::join!(invoke("hang"), invoke("panic"), invoke("fail"), invoke(""));
        let failed = |text: &str| Err(Failure::Function(text.to_owned()));
        assert_eq!(hangs, failed("a call was not answered while the run had time to wait"));
        assert!(began.elapsed() < Duration::from_secs(21), "{:?}", began.elapsed());
        assert_eq!(panics, failed("the run panicked: as it was told"));
        assert_eq!(fails, failed("it failed"));
        assert_eq!(answers.unwrap()["statusCode"], 418);
        let [stats] = functions.stats().try_into().unwrap();
        assert_eq!((stats.invocations, stats.errors, stats.running), (4, 3, 0));
        assert_eq!(functions.invoke("nobody", json!({})).await, Err(Failure::Unknown));
    }

    #[tokio::test(start_paused = true)]
    async fn more_runs_than_are_at_once_wait_and_none_is_left_at_the_end() {
        let functions = functions();
        (0..4).for_each(|_| functions.send(HEARTBEAT, json!({"body": "hang"})));
        tokio::task::yield_now().await;
        assert!(!functions.is_free(HEARTBEAT), "a scheduled run is left out");
        // This run gets its turn when the others have timed out.
        assert!(functions.invoke(HEARTBEAT, json!({})).await.is_ok());
        (0..MOST).for_each(|_| functions.send(HEARTBEAT, json!({"body": "hang"})));
        assert_eq!(functions.invoke(HEARTBEAT, json!({})).await, Err(Failure::Busy));
        functions.stop().await;
        assert_eq!(functions.invoke(HEARTBEAT, json!({})).await, Err(Failure::Stopping));
    }
}
