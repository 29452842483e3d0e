//! How a run came out: what became of each action, and the run's answer.
//!
//! Does not: decide or do anything.

use crate::clock::RunClock;
use crate::observation::Observed;
use model::action::{Describe, Plan, PlanRow};
use model::cloud::{CloudError, LaunchError};
use model::control::Tally;
use model::time::Time;
use model::{ActionName, NotPossible};
use serde::Serialize;
use store::{DbError, WriteError};

/// How an action came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It was done.
    Done,
    /// Someone else was first. The next run decides again.
    Conflict,
    /// It failed.
    Failed,
    /// It was not begun: no time was left, or the observation was too old.
    Left,
    /// It was only said: a dry run, a warning, or something deliberately not done.
    Said,
}

/// Why an action was not done.
#[derive(Debug, thiserror::Error)]
pub enum ActError {
    /// DynamoDB did not take the write.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// EC2 did not do it.
    #[error(transparent)]
    Cloud(#[from] CloudError),
    /// EC2 did not launch.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// The record changed since: the transition no longer applies.
    #[error(transparent)]
    NotPossible(#[from] NotPossible),
}

impl ActError {
    /// Someone else was first.
    pub const CONFLICT: Self = Self::Write(WriteError::CONFLICT);

    /// The outcome of an action that ended with this error, and the error to tell.
    pub fn outcome(&self) -> (Outcome, Option<String>) {
        match self {
            Self::Write(e) if e.is_conflict() => (Outcome::Conflict, None),
            Self::NotPossible(e) => (Outcome::Conflict, Some(e.to_string())),
            e => (Outcome::Failed, Some(e.to_string())),
        }
    }
}

impl From<DbError> for ActError {
    fn from(e: DbError) -> Self {
        Self::Write(e.into())
    }
}

/// One action of a run's answer.
#[derive(Clone, Debug, Serialize)]
pub struct ActionAnswer {
    /// Which action.
    pub action: ActionName,
    /// What it is about.
    pub subject: String,
    /// Why.
    pub reason: String,
    /// Whether it was done.
    pub done: bool,
    /// How it came out.
    pub outcome: Outcome,
    /// What went wrong, if something did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl ActionAnswer {
    /// What became of a planned action.
    pub fn new(row: PlanRow, outcome: Outcome, error: Option<String>) -> Self {
        let done = outcome == Outcome::Done;
        Self { action: row.action, subject: row.subject, reason: row.reason, done, outcome, error }
    }

    /// The answers of a dry run.
    pub fn said<A: Describe>(plan: &Plan<A>) -> Vec<Self> {
        plan.actions.iter().map(|p| Self::new(p.row(), Outcome::Said, None)).collect()
    }

    /// An action that was done turned out to have failed.
    pub fn fail(&mut self, error: String) {
        self.done = false;
        self.outcome = Outcome::Failed;
        self.error = Some(error);
    }
}

/// Whether a run decided and acted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ran {
    /// It did.
    Whole,
    /// It decided only.
    DryRun,
    /// It did neither: an event woke it too soon after the last run.
    NotItsTurn,
}

/// What a scheduled run answers.
#[derive(Clone, Debug, Serialize)]
pub struct RunAnswer {
    /// Which function.
    pub function: &'static str,
    /// When it began to observe.
    pub observed_at: Time,
    /// What it saw, counted.
    pub observed: Observed,
    /// What it decided, and how each action came out.
    pub actions: Vec<ActionAnswer>,
    /// How many actions were not begun.
    pub left_for_next_run: usize,
    /// How long it took, in milliseconds.
    pub duration_ms: i64,
    /// Whether it decided and acted.
    #[serde(skip)]
    pub ran: Ran,
}

/// How many actions came out in one way.
pub fn count(actions: &[ActionAnswer], outcome: Outcome) -> usize {
    actions.iter().filter(|a| a.outcome == outcome).count()
}

/// How many actions were done, and how many were left.
pub fn tally(actions: &[ActionAnswer]) -> Tally {
    Tally { done: count(actions, Outcome::Done) as u64, left: count(actions, Outcome::Left) as u64 }
}

impl RunAnswer {
    /// The answer of a run.
    pub fn new(
        function: &'static str,
        observed_at: Time,
        observed: Observed,
        actions: Vec<ActionAnswer>,
        clock: &RunClock,
        ran: Ran,
    ) -> Self {
        let left_for_next_run = count(&actions, Outcome::Left);
        Self { function, observed_at, observed, actions, left_for_next_run, duration_ms: clock.elapsed().as_ms(), ran }
    }
}
