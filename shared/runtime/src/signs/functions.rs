//! Signs: whether the functions work.
//!
//! Guarantees: a function that does not run, that fails for a whole period, or that does nothing of what it plans needs
//! an operator; a single failed run does not.
//! Does not: look at schedules, logs or permissions in AWS. It judges by what the runs noted.

use super::facts::{Facts, ForeseenPlan, Raised, SignLevel};
use super::say::{one_line, several, when};
use crate::watchdog;
use model::control::RunRow;
use model::functions::{self, HEARTBEAT_INGEST, SWEEP_DISPATCH};
use model::{Function, Span};

/// How much clocks may differ.
const CLOCKS: Span = Span::from_s(120);

pub(super) fn policy(facts: &Facts<'_>) -> Vec<Raised> {
    vec![match facts.control.checked_policy() {
        Ok((_, version)) => Raised::new("policy", SignLevel::Well, format!("version {version}"), ""),
        // The error message already says what to do.
        Err(e) => Raised::new("policy", SignLevel::Wrong, one_line(&e.to_string()), ""),
    }]
}

pub(super) fn scheduled(facts: &Facts<'_>) -> Vec<Raised> {
    functions::scheduled().map(|(function, period)| one(facts, function, period)).collect()
}

/// sweep-dispatch counts this sign for the other functions. When sweep-dispatch itself does not run, clean-stale-records counts it.
pub(super) fn teller(facts: &Facts<'_>) -> Vec<Raised> {
    scheduled(facts).into_iter().filter(|one| one.what == SWEEP_DISPATCH.name).collect()
}

fn one(facts: &Facts<'_>, function: &Function, period: Span) -> Raised {
    const START: &str = "check its schedule and its log (in AWS), or start `nodekeeper local`";
    let (now, name) = (facts.now, function.name);
    let limit = watchdog::limit(&facts.policy, period);
    let Some(run) = facts.control.runs.get(name) else {
        // In a new cluster the first run comes.
        let began = facts.control.runs.values().filter_map(|run| run.first_at).min();
        let is_new = began.is_some_and(|at| now.since(at) <= limit);
        return Raised::new(name, if is_new { SignLevel::Caution } else { SignLevel::Wrong }, "has never run", START);
    };
    let error = run.error.as_deref().map(|e| format!("; its last run failed: {}", one_line(e))).unwrap_or_default();
    let Some(success) = run.last_success_at else {
        return Raised::new(name, SignLevel::Wrong, format!("has never succeeded{error}"), START);
    };
    let said = format!("last succeeded {}{error}", when(success, now));
    if now.since(success) > limit {
        return Raised::new(name, SignLevel::Wrong, format!("{said}; it should run every {period}"), START);
    }
    if success.since(now) > CLOCKS {
        let to_do = "set the clock that is wrong: until then, nobody sees whether it still runs";
        return Raised::new(name, SignLevel::Caution, format!("{said}: its clock or the clock here is wrong"), to_do);
    }
    // One failed run may be chance.
    if let Some(since) = run.failing_since_at.filter(|since| now.since(*since) >= period) {
        let to_do = "the error says what is missing; until then, nothing is decided";
        return Raised::new(name, SignLevel::Wrong, format!("has failed since {}{error}", when(since, now)), to_do);
    }
    if let Some(since) = run.nothing_done_since_at.filter(|since| now.since(*since) >= limit) {
        let to_do = "its log names each error: check its permissions, and `poll.stale_after_s`";
        let said = format!("has done nothing of what it should since {}: it {}", when(since, now), undone(run));
        return Raised::new(name, SignLevel::Wrong, said, to_do);
    }
    let failed = if run.failed > 0 { format!(", {} failed", several(run.failed, "action")) } else { String::new() };
    let left = if run.left > 0 { format!(", {} left for the next run", run.left) } else { String::new() };
    let level = if error.is_empty() && failed.is_empty() { SignLevel::Well } else { SignLevel::Caution };
    Raised::new(name, level, format!("{said}, {} done{failed}{left}", several(run.actions, "action")), "")
}

fn undone(run: &RunRow) -> String {
    match (run.failed, run.left) {
        (0, left) => format!("leaves {}: what it reads is too old or its time is over", several(left, "action")),
        (failed, _) => format!("fails in {}", several(failed, "action")),
    }
}

/// Missing heartbeats are a problem only while a node is in use.
pub(super) fn heartbeats(facts: &Facts<'_>) -> Vec<Raised> {
    let name = HEARTBEAT_INGEST.name;
    let in_use = facts.nodes.iter().filter(|n| n.status().is_some()).count();
    let heard = facts.control.ingest().since_at;
    let said = heard.map_or("no heartbeat was ever accepted".to_owned(), |at| {
        format!("last noted heartbeats {}", when(at, facts.now))
    });
    let limit = watchdog::limit(&facts.policy, watchdog::NOTED);
    vec![if in_use > 0 && heard.is_none_or(|at| facts.now.since(at) > limit) {
        let to_do = "check the function's log, its URL and the nodes' way to it";
        Raised::new(name, SignLevel::Wrong, format!("{said}, and {} in use", several(in_use, "node")), to_do)
    } else {
        Raised::new(name, SignLevel::Well, said, "")
    }]
}

pub(super) fn plan(facts: &Facts<'_>) -> Vec<Raised> {
    let ForeseenPlan::Unknown(error) = facts.next else { return Vec::new() };
    let says = format!("what the next run would do is not known here: {}", one_line(&error.to_string()));
    let to_do = "if EC2 limits the calls, try again in a minute; else check the credentials and the connection of this \
                 command (the functions have their own)";
    vec![Raised::new("plan", SignLevel::Caution, says, to_do)]
}
