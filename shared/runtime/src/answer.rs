//! The result of a run: the outcome of each action, and the run's answer.
//!
//! Guarantees: every planned action has exactly one outcome in the answer.
//! Does not: decide or carry out anything.

use crate::clock::RunClock;
use crate::http::{MAX_LIST_BYTES, bytes_in_answer, first_part};
use crate::observation::ObservedCounts;
use crate::signs::Raised;
use model::action::PlanRow;
use model::control::Tally;
use model::{ActionName, CloudError, Describe, Explanation, LaunchError, NotPossible, Plan, Time};
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

#[derive(Clone, Debug, Serialize)]
pub struct ActionAnswer {
    pub action: ActionName,
    pub subject: String,
    pub reason: String,
    pub done: bool,
    pub outcome: ActionOutcome,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl ActionAnswer {
    pub fn new(row: PlanRow, ActionResult { outcome, error }: ActionResult) -> Self {
        let done = outcome == ActionOutcome::Done;
        Self { action: row.action, subject: row.subject, reason: row.reason, done, outcome, error }
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
    pub actions: Vec<ActionAnswer>,
    /// How many actions had each outcome, also those that [`RunAnswer::bounded`] left out.
    pub outcomes: BTreeMap<ActionOutcome, usize>,
    /// How many rows of all lists [`RunAnswer::bounded`] left out.
    #[serde(skip_serializing_if = "model::left_out::is_default")]
    pub left_out: usize,
    pub left_for_next_run: usize,
    pub duration_ms: i64,
    /// What the run did not do, and why. Only poll-and-scale says this.
    #[serde(flatten)]
    pub explained: Explanation,
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
        let left_for_next_run = count(&actions, ActionOutcome::Left);
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
            left_out: 0,
            left_for_next_run,
            duration_ms: clock.elapsed().as_ms(),
            explained: Explanation::default(),
            refused: Vec::new(),
            ran,
            unready: 0,
            wrong: Vec::new(),
        }
    }

    /// The answer with the first rows of each list, as many as fit in about 1 MiB. Lambda fails an invocation whose
    /// answer is larger than 6 MB. Actions that failed come before all others.
    #[must_use]
    pub fn bounded(mut self) -> Self {
        if self.actions.iter().map(bytes_in_answer).sum::<usize>() > MAX_LIST_BYTES {
            self.actions.sort_by_key(|a| a.outcome != ActionOutcome::Failed);
        }
        self.left_out += cut(&mut self.actions);
        let explained = &mut self.explained;
        self.left_out += cut(&mut explained.waiting);
        self.left_out += cut(&mut explained.staying);
        self.left_out += cut(&mut explained.limits);
        self
    }
}

/// Cuts a list where it becomes too long. Returns how many rows that removes.
fn cut<R: Serialize, L: Default + Extend<R> + IntoIterator<Item = R>>(list: &mut L) -> usize {
    let rows = Vec::from_iter(std::mem::take(list));
    let all = rows.len();
    let part = first_part(rows);
    let kept = part.len();
    list.extend(part);
    all - kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::fixtures::at;
    use std::time::Duration;

    #[test]
    fn an_answer_of_a_run_with_many_actions_fits_in_what_lambda_takes() {
        let row = |n: usize| ActionAnswer {
            action: ActionName::Place,
            subject: format!("job#{n}"),
            reason: "it fits".repeat(20),
            done: n != 9_999,
            outcome: if n == 9_999 { ActionOutcome::Failed } else { ActionOutcome::Done },
            error: (n == 9_999).then(|| "refused".to_owned()),
        };
        let clock = RunClock::new(at(0), None, Duration::from_secs(50));
        let answer = |rows: usize| {
            let actions = (0..rows).map(row).collect();
            RunAnswer::new("f", at(0), ObservedCounts::default(), actions, &clock, Ran::Whole).bounded()
        };
        let many = answer(28_000);
        let shown = many.actions.len();
        assert!(serde_json::to_vec(&many).unwrap().len() < 2 * MAX_LIST_BYTES);
        assert_eq!(many.actions[0].subject, "job#9999", "the one that failed");
        assert_eq!(many.actions[1].subject, "job#0");
        assert_eq!(many.left_out, 28_000 - shown);
        assert_eq!(many.outcomes, [(ActionOutcome::Done, 27_999), (ActionOutcome::Failed, 1)].into());
        let mut obeyed = answer(0);
        obeyed.actions = (0..9_999).map(|n| ActionAnswer { reason: "\u{1b}".repeat(300), ..row(n) }).collect();
        assert!(serde_json::to_vec(&obeyed.bounded()).unwrap().len() < 2 * MAX_LIST_BYTES, "each takes six bytes");
        let few = answer(100);
        assert_eq!((few.actions.len(), few.left_out), (100, 0));
        assert_eq!(few.actions[99].subject, "job#99");
    }
}
