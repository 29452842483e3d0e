//! Whether a document that was not taken is sent again, and what a process remembers.
//!
//! Guarantees: an end that nobody takes is given up after [`PATIENCE`], and one that only this receiver never takes after
//! [`PATIENCE_BESIDE_OTHERS`]; each document that is lost is counted, and so is each that is late by more than [`LATE`].
//! Does not: promise that a document is sent only once. A process remembers what it sent, to avoid repetitions, and forgets it when it ends.

use crate::receiver::Answer;
use model::time::{Span, Time};
use std::collections::{BTreeSet, VecDeque};

/// How long a document is sent again and again. The event source mapping forgets a change after twice this time.
pub const PATIENCE: Span = Span::from_s(3600);
/// The same, if the receiver takes other documents: a stream passes on nothing behind a document that is tried again.
pub const PATIENCE_BESIDE_OTHERS: Span = Span::from_s(300);
/// A document that still fails at this age counts as failed, although it is sent again.
pub const LATE: Span = Span::from_s(120);
/// How many ids a process remembers.
const REMEMBERED: usize = 1000;

/// What became of a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// There is nothing to tell: the job has not ended, or its end was told before.
    Nothing,
    /// The receiver has it.
    Delivered,
    /// It is lost, for this reason.
    Lost(String),
    /// It has to be sent again, for this reason. `late` counts as failed.
    Again {
        /// Why the receiver does not have the document.
        why: String,
        /// Whether it is late.
        late: bool,
    },
}

impl Outcome {
    /// What follows from an answer, `age` after what the document tells of. `takes_others`: whether the receiver took
    /// another document lately.
    pub fn of(answer: Answer, age: Span, takes_others: bool) -> Self {
        let patience = if takes_others { PATIENCE_BESIDE_OTHERS } else { PATIENCE };
        match answer {
            Answer::Taken => Self::Delivered,
            Answer::Refused(why) => Self::Lost(why),
            Answer::Failed(why) if age > patience => Self::Lost(format!("given up after {age}: {why}")),
            Answer::Failed(why) => Self::Again { why, late: age > LATE },
        }
    }
}

/// What a process remembers of what it sent.
#[derive(Debug, Default)]
pub struct Memory {
    order: VecDeque<String>,
    ids: BTreeSet<String>,
    taken_at: Option<Time>,
}

impl Memory {
    /// Remembers a document that is not sent again; the oldest is forgotten.
    pub fn settled(&mut self, id: &str, taken_at: Option<Time>) {
        self.taken_at = taken_at.or(self.taken_at);
        if self.ids.insert(id.to_owned()) {
            self.order.push_back(id.to_owned());
        }
        if self.order.len() > REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.ids.remove(&oldest);
        }
    }

    /// Whether this process has delivered it or given it up.
    pub fn knows(&self, id: &str) -> bool {
        self.ids.contains(id)
    }

    /// Whether the receiver took a document lately.
    pub fn takes_others(&self, now: Time) -> bool {
        self.taken_at.is_some_and(|at| now.since(at) <= PATIENCE_BESIDE_OTHERS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::fixtures::at;

    #[test]
    fn a_failure_is_tried_again_for_an_hour_and_beside_others_for_five_minutes() {
        let of = |s: i64, others| Outcome::of(Answer::Failed("down".into()), Span::from_s(s), others);
        let again = |late| Outcome::Again { why: "down".into(), late };
        assert_eq!((of(0, false), of(120, false), of(121, true)), (again(false), again(false), again(true)));
        assert_eq!((of(300, true), of(301, false), of(3600, false)), (again(true), again(true), again(true)));
        assert_eq!(of(301, true), Outcome::Lost("given up after 5 min 1 s: down".into()));
        assert!(matches!(of(3601, false), Outcome::Lost(_)));
        let refused = Outcome::of(Answer::Refused("no".into()), Span::ZERO, false);
        assert_eq!(refused, Outcome::Lost("no".into()));
        assert_eq!(Outcome::of(Answer::Taken, Span::from_s(90_000), true), Outcome::Delivered);
    }

    #[test]
    fn a_process_remembers_a_bounded_number_of_deliveries() {
        let mut memory = Memory::default();
        assert!(!memory.takes_others(at(0)));
        for n in 0..=REMEMBERED {
            memory.settled(&n.to_string(), None);
            memory.settled(&n.to_string(), None);
        }
        assert!(!memory.knows("0") && memory.knows("1") && memory.knows(&REMEMBERED.to_string()));
        assert_eq!((memory.order.len(), memory.ids.len()), (REMEMBERED, REMEMBERED));
        assert!(!memory.takes_others(at(0)), "none was taken");
        memory.settled("taken", Some(at(0)));
        memory.settled("refused", None);
        assert!(memory.takes_others(at(300)) && !memory.takes_others(at(301)));
    }
}
