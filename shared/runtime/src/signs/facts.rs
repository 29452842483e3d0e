//! The facts that signs judge, and the findings that they raise.
//!
//! Guarantees: a sign judges by these facts alone, so that every reader of the same rows comes to the same findings.
//! Does not: read anything.

use super::{listing, say};
use crate::observation::Observation;
use crate::validation::InvalidRow;
use model::control::ListReport;
use model::functions::{CLEAN_STALE_RECORDS, POLL_AND_SCALE};
use model::policy::example_json;
use model::{
    ActionName, AllocSummary, CloudError, Control, Describe, Event, Explanation, Function, Handle, JobSummary,
    NodeRecord, Plan, Policy, Reason, Time,
};
use serde::{Deserialize, Serialize};
use store::Ended;

/// How many lines one sign may have about single jobs, nodes or sets.
pub(super) const LINES: usize = 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SignLevel {
    Well,
    /// An operator should look, but need not act: it ends by itself, or it cannot be known here.
    #[serde(rename = "look")]
    Caution,
    /// An operator must act.
    Wrong,
}

/// A finding of a sign.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Raised {
    /// What the finding is about: a function, an entry of the control table, or the word of the sign.
    pub what: String,
    pub level: SignLevel,
    /// What is wrong, and since when.
    pub text: String,
    /// What to do about it; empty if nothing needs to be done.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub to_do: String,
}

impl Raised {
    pub fn new(what: &str, level: SignLevel, text: impl Into<String>, to_do: impl Into<String>) -> Self {
        Self { what: what.to_owned(), level, text: text.into(), to_do: to_do.into() }
    }
}

/// What the next run of poll-and-scale would do, as far as the reader knows.
#[derive(Clone, Copy, Debug)]
pub enum ForeseenPlan<'a> {
    /// The reader does not ask.
    Unplanned,
    /// The plan is not known, because EC2 cannot be read from here.
    Unknown(&'a CloudError),
    /// What is not done, and why, and how many of the wanted nodes are not ready.
    Planned(&'a Explanation, u32),
}

impl<'a> ForeseenPlan<'a> {
    pub(super) const fn explained(self) -> Option<&'a Explanation> {
        match self {
            Self::Planned(explained, _) => Some(explained),
            Self::Unplanned | Self::Unknown(_) => None,
        }
    }
}

/// What was read, for all signs. A function gives what its run has read, and leaves the rest empty.
#[derive(Clone, Debug)]
pub struct Facts<'a> {
    /// The time of the judgement.
    pub now: Time,
    pub control: &'a Control,
    /// The stored policy, or the example if none can be used.
    pub policy: Policy,
    /// All node records that can be used.
    pub nodes: &'a [NodeRecord],
    /// The jobs that have not ended, in the order of the queue.
    pub jobs: &'a [JobSummary],
    /// The jobs that ended last, the newest first: at most [`super::ENDED`], within [`super::RECENT`].
    pub ended: &'a [Ended],
    pub allocs: &'a [AllocSummary],
    /// The handles that nodes were told to destroy long ago and still have.
    pub stuck: &'a [Handle],
    /// What poll-and-scale noted of EC2's list in its last run.
    pub polled: ListReport,
    /// What clean-stale-records noted of EC2's list in its last run.
    pub cleaned: ListReport,
    pub next: ForeseenPlan<'a>,
    /// The newest events of the cluster and of the functions.
    pub events: &'a [Event],
    /// The rows that nobody uses.
    pub rows: Vec<InvalidRow>,
}

impl<'a> Facts<'a> {
    /// The facts that the control table alone gives.
    pub fn new(control: &'a Control, now: Time) -> Self {
        let found = |function: Function| control.runs.get(function.name).and_then(|run| run.list.clone());
        Self {
            now,
            control,
            policy: control.checked_policy().map(|(policy, _)| policy).unwrap_or_else(|_| example()),
            nodes: &[],
            jobs: &[],
            ended: &[],
            allocs: &[],
            stuck: &[],
            polled: found(POLL_AND_SCALE).unwrap_or_default(),
            cleaned: found(CLEAN_STALE_RECORDS).unwrap_or_default(),
            next: ForeseenPlan::Unplanned,
            events: &[],
            rows: Vec::new(),
        }
    }

    /// The facts that a run of this function has read and planned.
    pub fn of_run<A: Describe>(function: Function, seen: &'a Observation, plan: &'a Plan<A>, now: Time) -> Self {
        let terminated = plan.actions.iter().filter(|p| p.action.name() == ActionName::TerminateOrphan).count();
        let mut facts = Self::new(&seen.control, now);
        if let Some(found) = listing::note(function, seen, terminated as u64, now) {
            let place = if function == POLL_AND_SCALE { &mut facts.polled } else { &mut facts.cleaned };
            *place = found;
        }
        if function == POLL_AND_SCALE {
            facts.next = ForeseenPlan::Planned(&plan.explained, plan.unready);
        }
        Self {
            policy: seen.policy.clone(),
            nodes: &seen.nodes,
            jobs: &seen.jobs,
            ended: &seen.ended,
            rows: seen.quarantined.rows.clone(),
            ..facts
        }
    }
}

pub(super) fn example() -> Policy {
    // The example is part of the program, and a test reads it.
    Policy::from_json(&example_json()).unwrap_or_else(|e| unreachable!("the example policy: {e}"))
}

/// The first [`LINES`] findings, and one for the rest: it is as bad as the worst of them, and `rest` makes its text
/// from their number.
pub(super) fn first(mut raised: Vec<Raised>, rest: impl Fn(usize) -> String) -> Vec<Raised> {
    let left = raised.split_off(raised.len().min(LINES));
    if let Some(worst) = left.iter().max_by_key(|one| one.level) {
        raised.push(Raised::new(&worst.what, worst.level, rest(left.len()), ""));
    }
    raised
}

/// A finding for each of the first [`LINES`] lines, and one for the rest.
pub(super) fn at_most(what: &str, lines: impl Iterator<Item = (SignLevel, String)>, all: &str) -> Vec<Raised> {
    let raised = lines.map(|(level, line)| Raised::new(what, level, say::one_line(&line), ""));
    first(raised.collect(), |more| format!("and {more} more: `{all}` shows all"))
}

/// The reasons that the plan gives for caps, apart from those that other signs say.
pub(super) fn caps(explained: &Explanation) -> impl Iterator<Item = &Reason> {
    let said = |reason: &&Reason| reason.is_unstored() && !matches!(reason, Reason::SetLacks { .. });
    explained.limits.iter().filter(said)
}
