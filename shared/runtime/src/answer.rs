//! The result of a run: the outcome of each action, and the run's answer.
//!
//! Guarantees: every planned action has exactly one outcome in the answer.
//! Does not: decide or carry out anything.

use crate::clock::RunClock;
use crate::observation::ObservedCounts;
use crate::signs::Raised;
use model::action::PlanRow;
use model::control::Tally;
use model::{ActionName, CloudError, Describe, LaunchError, NotPossible, Plan, Time};
use serde::Serialize;
use std::collections::BTreeMap;
use store::{DbError, WriteError};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ActionOutcome {
    Done,
    /// Someone else was first. The next run decides again.
    Conflict,
    Failed,
    /// The action was not started: not enough time was left, the observation was too old, or launches stopped.
    Left,
    /// The action was only announced: a dry run, a warning, or something that is deliberately not done.
    Reported,
}

#[derive(Debug, thiserror::Error)]
pub enum ActError {
    #[error(transparent)]
    Write(#[from] WriteError),
    #[error(transparent)]
    Cloud(#[from] CloudError),
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// The record has changed, and the transition no longer applies.
    #[error(transparent)]
    NotPossible(#[from] NotPossible),
}

impl ActError {
    /// Someone else changed the record first.
    pub const CONFLICT: Self = Self::Write(WriteError::CONFLICT);

    /// Whether the error is an unreadable row of the table with this name.
    pub fn is_unreadable(&self, name: &str) -> bool {
        matches!(self, Self::Write(WriteError::Db(DbError::Corrupt { table, .. })) if *table == name)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActionResult {
    pub outcome: ActionOutcome,
    /// What went wrong, or why the action was deliberately not done.
    pub error: Option<String>,
}

impl ActionResult {
    pub const DONE: Self = Self::of(ActionOutcome::Done);
    pub const CONFLICT: Self = Self::of(ActionOutcome::Conflict);
    pub const LEFT: Self = Self::of(ActionOutcome::Left);
    pub const REPORTED: Self = Self::of(ActionOutcome::Reported);

    const fn of(outcome: ActionOutcome) -> Self {
        Self { outcome, error: None }
    }

    /// The run deliberately did not do the action. `why` is for people.
    pub const fn kept_back(why: String) -> Self {
        Self { outcome: ActionOutcome::Reported, error: Some(why) }
    }
}

impl<E: Into<ActError>> From<E> for ActionResult {
    fn from(error: E) -> Self {
        match error.into() {
            ActError::Write(e) if e.is_conflict() => Self::CONFLICT,
            ActError::NotPossible(e) => Self { outcome: ActionOutcome::Conflict, error: Some(e.to_string()) },
            e => Self { outcome: ActionOutcome::Failed, error: Some(e.to_string()) },
        }
    }
}

impl From<DbError> for ActError {
    fn from(e: DbError) -> Self {
        Self::Write(e.into())
    }
}

#[derive(Clone, Debug)]
pub struct ActionAnswer {
    pub action: ActionName,
    pub subject: String,
    pub reason: String,
    pub outcome: ActionOutcome,
    pub error: Option<String>,
}

impl ActionAnswer {
    pub fn new(row: PlanRow, ActionResult { outcome, error }: ActionResult) -> Self {
        Self { action: row.action, subject: row.subject, reason: row.reason, outcome, error }
    }

    /// One answer for each action that a dry run has planned.
    pub fn of_dry_run<A: Describe>(plan: &Plan<A>) -> Vec<Self> {
        plan.actions.iter().map(|p| Self::new(p.row(), ActionResult::REPORTED)).collect()
    }
}

/// Whether a run decided and acted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ran {
    /// The run decided and acted.
    Whole,
    /// The run only decided.
    DryRun,
    /// The run did neither: an event started it too soon after the last run.
    NotItsTurn,
}

#[derive(Clone, Debug, Serialize)]
pub struct RunAnswer {
    pub function: &'static str,
    pub observed_at: Time,
    pub observed: ObservedCounts,
    /// Not in the JSON, which could be larger than the 6 MB that Lambda takes. Events tell of each.
    #[serde(skip)]
    pub actions: Vec<ActionAnswer>,
    /// How many actions had each outcome.
    pub outcomes: BTreeMap<ActionOutcome, usize>,
    pub duration_ms: i64,
    /// What was refused in a dry run.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<Raised>,
    #[serde(skip)]
    pub ran: Ran,
    /// How many nodes are wanted and not ready. Only poll-and-scale says this.
    #[serde(skip)]
    pub unready: u32,
    /// The signs that this function tells and that are wrong.
    #[serde(skip)]
    pub wrong: Vec<&'static str>,
}

pub fn count(actions: &[ActionAnswer], outcome: ActionOutcome) -> usize {
    actions.iter().filter(|a| a.outcome == outcome).count()
}

/// How many orphans a run terminates.
pub fn terminated(answers: &[ActionAnswer]) -> u64 {
    let is = |a: &&ActionAnswer| a.action == ActionName::TerminateOrphan && a.outcome != ActionOutcome::Conflict;
    answers.iter().filter(is).count() as u64
}

pub fn tally(actions: &[ActionAnswer]) -> Tally {
    let many = |outcome| count(actions, outcome) as u64;
    Tally { done: many(ActionOutcome::Done), left: many(ActionOutcome::Left), failed: many(ActionOutcome::Failed) }
}

impl RunAnswer {
    pub fn new(
        function: &'static str,
        observed_at: Time,
        observed: ObservedCounts,
        actions: Vec<ActionAnswer>,
        clock: &RunClock,
        ran: Ran,
    ) -> Self {
        let mut outcomes = BTreeMap::new();
        for action in &actions {
            *outcomes.entry(action.outcome).or_default() += 1;
        }
        Self {
            function,
            observed_at,
            observed,
            actions,
            outcomes,
            duration_ms: clock.elapsed().as_ms(),
            refused: Vec::new(),
            ran,
            unready: 0,
            wrong: Vec::new(),
        }
    }
}
