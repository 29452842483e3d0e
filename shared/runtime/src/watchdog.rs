//! The watchdog: each function checks that the others still succeed (`docs/rules.md#section-8`).
//!
//! A function that hangs is cut off by Lambda, and one that fails is started again. So the danger is a function that no
//! longer runs, or that fails every time. Nothing is restarted, because a restart does not help if the cloud is down. A
//! person is told.
//!
//! Guarantees: every run that could not observe leaves its error in its row, if the table can be written. Each function
//! reports the silence of the others, and all reports about one function leave one event in an hour.
//! Does not: notice that all functions stand still. The template's alarms do.
//! Source: Arvados #8236, carried over from a server to functions.

use crate::clock::RunClock;
use crate::observation::Observation;
use model::control::RunRow;
use model::functions::{self, HEARTBEAT_INGEST};
use model::{Control, EventPolicy, Function, Plan, Policy, Reason, Span, Subject, Time};
use std::fmt::Display;
use std::future::Future;
use store::Store;

/// A warning about a function is at most one event in this time.
pub const ONCE: Span = Span::from_s(3600);

/// heartbeat-ingest notes accepted heartbeats about this often.
pub(crate) const NOTED: Span = Span::from_s(60);

/// The longest normal time between two successes: the period of the schedule, multiplied by `watchdog.multiplier`. The time
/// between the last runs does not count, because runs that events start may be seconds apart.
pub(crate) fn limit(policy: &Policy, period: Span) -> Span {
    Span::from_ms((period.as_ms() as f64 * policy.watchdog.multiplier) as i64)
}

/// The functions besides `watcher` whose last success is too old, and why. `in_use` is the number of nodes in use: without
/// any, nobody sends heartbeats.
pub fn overdue(
    control: &Control,
    policy: &Policy,
    in_use: usize,
    watcher: Function,
    now: Time,
) -> Vec<(Subject, Reason)> {
    let mut found = Vec::new();
    for (function, period) in functions::scheduled().filter(|(f, _)| **f != watcher) {
        let Some(run) = control.runs.get(function.name) else { continue };
        let name = || function.name.to_owned();
        let too_long = |since: Option<Time>| since.map(|at| now.since(at)).filter(|span| *span > limit(policy, period));
        if let Some(since) = too_long(run.nothing_done_since_at) {
            let reason = Reason::NothingDone { function: name(), since, failed: run.failed, left: run.left };
            found.push((Subject::Function(name()), reason));
        }
        if let Some(quiet) = too_long(run.quiet_since()) {
            let why = run.error.as_ref().map_or_else(String::new, |error| format!("; its last run failed: {error}"));
            found.push((Subject::Function(name()), Reason::Overdue { function: name(), quiet, period, why }));
        }
    }
    let heard = control.ingest().since_at.map(|at| now.since(at));
    if let Some(quiet) =
        heard.filter(|quiet| watcher != HEARTBEAT_INGEST && in_use > 0 && *quiet > limit(policy, NOTED))
    {
        let subject = Subject::Function(HEARTBEAT_INGEST.name.to_owned());
        found.push((subject, Reason::NoHeartbeats { quiet, nodes: in_use }));
    }
    found
}

/// Plans a warning about each function besides `watcher` that is overdue.
pub fn warn<A>(plan: &mut Plan<A>, seen: &Observation, watcher: Function, now: Time, warning: fn(Subject) -> A) {
    for (subject, reason) in overdue(&seen.control, &seen.policy, seen.in_use(), watcher, now) {
        plan.push(warning(subject), reason, EventPolicy::Once(ONCE));
    }
}

/// Carries out a run. If it fails, notes why in the row of the function.
pub async fn recorded<T, E: Display>(
    function: Function,
    store: &Store,
    clock: RunClock,
    run: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    let started_at = clock.now();
    let result = run.await;
    if let Err(error) = &result {
        note(function.name, store, started_at, clock.elapsed(), &error.to_string()).await;
    }
    result
}

async fn note(function: &str, store: &Store, started_at: Time, took: Span, error: &str) {
    match store.control().await {
        Ok(control) => {
            let before = control.runs.get(function);
            store.write_run(before, &RunRow::failed(function, before, started_at, took, error)).await;
        }
        Err(unread) => tracing::warn!(error = %unread, "why the run failed was not noted"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::control::Tally;
    use model::fixtures::at;
    use model::functions::{CLEAN_STALE_RECORDS, POLL_AND_SCALE, SWEEP_DISPATCH};
    use model::policy::example_json;
    use serde_json::json;

    fn ran(function: Function, success_s: i64) -> RunRow {
        RunRow::after(function.name, None, at(success_s), Span::from_s(1), Tally::default())
    }

    #[test]
    fn every_function_watches_all_others() {
        let policy = Policy::from_json(&example_json()).unwrap();
        let noted = json!({"key": "ingest", "version": 1, "since_at": at(0).as_ms()});
        let mut control = Control::from_rows([noted]);
        for function in [POLL_AND_SCALE, CLEAN_STALE_RECORDS, SWEEP_DISPATCH] {
            control.runs.insert(function.name.into(), ran(function, 0));
        }
        let told = |watcher: Function, s: i64, in_use: usize| {
            let found = overdue(&control, &policy, in_use, watcher, at(s));
            found.into_iter().map(|(subject, _)| subject.to_string().replace("function#", "")).collect::<Vec<_>>()
        };
        let names = |functions: &[Function]| functions.iter().map(|f| f.name.to_owned()).collect::<Vec<_>>();
        // The multiplier is 5, and the periods are 60 s, 300 s, 60 s, and 60 s for the notes of heartbeats.
        assert_eq!(told(POLL_AND_SCALE, 300, 1), names(&[]));
        assert_eq!(told(POLL_AND_SCALE, 301, 1), names(&[SWEEP_DISPATCH, HEARTBEAT_INGEST]));
        assert_eq!(told(POLL_AND_SCALE, 301, 0), names(&[SWEEP_DISPATCH]));
        assert_eq!(told(POLL_AND_SCALE, 1501, 1), names(&[CLEAN_STALE_RECORDS, SWEEP_DISPATCH, HEARTBEAT_INGEST]));
        assert_eq!(told(CLEAN_STALE_RECORDS, 1501, 1), names(&[POLL_AND_SCALE, SWEEP_DISPATCH, HEARTBEAT_INGEST]));
        assert_eq!(told(SWEEP_DISPATCH, 1501, 1), names(&[POLL_AND_SCALE, CLEAN_STALE_RECORDS, HEARTBEAT_INGEST]));
        assert_eq!(told(HEARTBEAT_INGEST, 1501, 1), names(&[POLL_AND_SCALE, CLEAN_STALE_RECORDS, SWEEP_DISPATCH]));
    }

    #[test]
    fn a_function_that_does_nothing_of_what_it_should_is_named() {
        let policy = Policy::from_json(&example_json()).unwrap();
        let run = |before: Option<&RunRow>, s, done, failed| {
            let tally = Tally { done, left: 0, failed };
            RunRow::after(POLL_AND_SCALE.name, before, at(s), Span::from_s(1), tally)
        };
        let (first, mut control) = (run(None, 10, 0, 3), Control::default());
        let told = |control: &Control, s| overdue(control, &policy, 0, SWEEP_DISPATCH, at(s));
        control.runs.insert(POLL_AND_SCALE.name.into(), run(Some(&first), 300, 0, 3));
        assert_eq!(told(&control, 310), []);
        let [(_, reason)] = told(&control, 311).try_into().unwrap();
        let said = "poll-and-scale has done nothing of what it should for 5 min 1 s: 3 actions failed and 0 were left in its last run";
        assert_eq!(reason.to_string(), said);
        for (done, failed) in [(1, 3), (0, 0)] {
            control.runs.insert(POLL_AND_SCALE.name.into(), run(Some(&first), 300, done, failed));
            assert_eq!(told(&control, 311), [], "{done} done, {failed} failed");
        }
    }

    #[test]
    fn a_function_that_fails_from_its_first_run_on_is_overdue_too() {
        let policy = Policy::from_json(&example_json()).unwrap();
        let failed = |before: Option<&RunRow>, s| {
            RunRow::failed(POLL_AND_SCALE.name, before, at(s), Span::from_s(1), "EC2 did not answer")
        };
        let (first, mut control) = (failed(None, 10), Control::default());
        control.runs.insert(POLL_AND_SCALE.name.into(), failed(Some(&first), 310));
        let told = |control: &Control, s| overdue(control, &policy, 0, SWEEP_DISPATCH, at(s));
        assert_eq!(told(&control, 310), []);
        let [(_, reason)] = told(&control, 311).try_into().unwrap();
        let said = "poll-and-scale has not succeeded for 5 min 1 s; it should run every 1 min; its last run failed: EC2 did not answer";
        assert_eq!(reason.to_string(), said);
        let well = RunRow::after(POLL_AND_SCALE.name, Some(&first), at(320), Span::from_s(1), Tally::default());
        assert_eq!((well.error.clone(), well.failing_since_at), (None, None));
        control.runs.insert(POLL_AND_SCALE.name.into(), well);
        assert_eq!(told(&control, 620), []);
    }
}
