//! Brakes: an unusual share of what a cluster has is not taken away before it has waited.
//!
//! Guarantees: what waits is remembered from its first sight to its last, whichever function or run
//! sees it; it goes after its time, where it has one, or when an operator lets go of what was held
//! by then; a brake that let go does not close again on what is left of the same trouble.
//! Does not: say what is unusual; its callers do, each with a floor so that small fleets are not
//! held up.

use crate::store::Memory;
use crate::time::{Span, Time};

/// How long a trouble is the same one after the last run that saw it: two runs of a slow schedule.
const RUNS: Span = Span::from_s(600);
/// The same, where a node's reports see it: two of the slowest, for no agent waits for over an hour.
const REPORTS: Span = Span::from_s(7200);

/// One kind of brake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Brake {
    kind: &'static str,
    memory: &'static str,
    release: &'static str,
    episode: Span,
}

impl Brake {
    /// Leases that are over.
    pub const LEASES: Self = Self { kind: "leases", memory: "brake#leases", release: "release#leases", episode: RUNS };
    /// Nodes whose instance nothing lists.
    pub const MISSING: Self =
        Self { kind: "missing", memory: "brake#missing", release: "release#missing", episode: RUNS };
    /// Instances that no record claims.
    pub const ORPHANS: Self =
        Self { kind: "orphans", memory: "brake#orphans", release: "release#orphans", episode: RUNS };
    /// Handles that a report would destroy or drop.
    pub const HANDLES: Self =
        Self { kind: "handles", memory: "brake#handles", release: "release#handles", episode: REPORTS };

    /// The control key of what it remembers.
    pub const fn memory(self) -> &'static str {
        self.memory
    }

    /// The control key of the operator's word.
    pub const fn release(self) -> &'static str {
        self.release
    }

    /// Looks at `count` that would go now, for `reason`. `hold` is how long they wait; `None`: until
    /// an operator lets go.
    pub fn look(
        self,
        memory: &Memory,
        release: Option<&Memory>,
        hold: Option<Span>,
        count: usize,
        reason: &str,
        now: Time,
    ) -> Look {
        let known = memory.holds(now);
        let since = memory.since_at.filter(|_| known).unwrap_or(now);
        let released = release.filter(|r| r.holds(now)).and_then(|r| r.since_at).is_some_and(|at| at >= since);
        let left = hold.map(|hold| (since + hold).since(now));
        let held = !released && left.is_none_or(|left| left > Span::ZERO);
        let kind = self.kind;
        let note = Memory {
            since_at: Some(since),
            until_at: Some(now + self.episode),
            count: Some(if held { count as u64 } else { 0 }),
            message: Some(reason.to_owned()),
            ..memory.clone()
        };
        let reason = match left {
            _ if !held => format!("{reason}; no longer held"),
            Some(left) => format!("{reason}; held for {left} more, or until `nodekeeper release {kind}`"),
            None => format!("{reason}; held until `nodekeeper release {kind}`"),
        };
        // What never waited, for it was let go before it began, leaves nothing behind.
        Look { held, news: held && (!known || memory.count == Some(0)), note: (held || known).then_some(note), reason }
    }
}

/// Whether a brake holds something back now, by what it remembers. (It remembers for a while that it let
/// go, too.)
pub fn holds_back(memory: &Memory, now: Time) -> bool {
    memory.holds(now) && memory.count != Some(0)
}

/// What a brake says.
#[derive(Clone, Debug, PartialEq)]
pub struct Look {
    /// Whether they wait.
    pub held: bool,
    /// Whether it was not so before.
    pub news: bool,
    /// What to remember of it.
    pub note: Option<Memory>,
    /// In words.
    pub reason: String,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::fixtures::at;

    const HOLD: Option<Span> = Some(Span::from_s(300));

    fn look(memory: &mut Memory, hold: Option<Span>, release: Option<&Memory>, s: i64) -> (bool, bool) {
        let look = Brake::MISSING.look(memory, release, hold, 5, "5 of 6", at(s));
        *memory = look.note.unwrap_or_else(|| memory.clone());
        (look.held, look.news)
    }

    #[test]
    fn what_has_waited_long_enough_goes_and_is_not_held_again() {
        let mut memory = Memory::new("brake#missing");
        assert_eq!(look(&mut memory, HOLD, None, 0), (true, true));
        assert_eq!(look(&mut memory, HOLD, None, 299), (true, false));
        assert_eq!(look(&mut memory, HOLD, None, 300), (false, false));
        assert_eq!(look(&mut memory, HOLD, None, 899), (false, false), "the same trouble");
        assert_eq!(look(&mut memory, HOLD, None, 1499), (true, true), "another one");
    }

    #[test]
    fn a_slow_schedule_ends_it_too() {
        let mut memory = Memory::new("brake#missing");
        let held: Vec<bool> = (0..4).map(|n| look(&mut memory, HOLD, None, n * 299).0).collect();
        assert_eq!(held, [true, true, false, false]);
    }

    #[test]
    fn what_reports_see_is_let_go_of_also_where_they_are_rare() {
        let (mut memory, day) = (Memory::new("brake#handles"), 86_400);
        let mut look = |release: Option<&Memory>, s: i64| {
            let look = Brake::HANDLES.look(&memory, release, None, 20, "many", at(s));
            memory = look.note.unwrap_or_else(|| Memory::new("brake#handles"));
            look.held
        };
        let release = Memory { since_at: Some(at(100)), until_at: Some(at(day)), ..Memory::new("release#handles") };
        assert_eq!([look(None, 0), look(Some(&release), 3600)], [true, false]);
        // What comes after the operator's word has ended is news, although the same trouble.
        let released = memory.clone();
        assert_eq!(released.count, Some(0), "nothing is held");
        let look = Brake::HANDLES.look(&released, None, None, 20, "many", at(7200));
        assert!(look.held && look.news);
        assert_eq!(look.note.unwrap().count, Some(20));
    }

    #[test]
    fn an_operators_word_is_for_what_was_held_by_then() {
        let release = Memory { since_at: Some(at(-1)), until_at: Some(at(600)), ..Memory::new("release#missing") };
        let mut memory = Memory::new("brake#missing");
        assert_eq!(look(&mut memory, None, Some(&release), 0), (true, true), "held since later");
        assert_eq!(look(&mut memory, None, None, 500), (true, false), "there is no other end");
        let release = Memory { since_at: Some(at(1)), ..release };
        assert_eq!(look(&mut memory, None, Some(&release), 520), (false, false));
        let mut memory = Memory::new("brake#missing");
        assert_eq!(look(&mut memory, None, Some(&release), 0), (false, false), "in the same second");
        assert_eq!(memory, Memory::new("brake#missing"));
    }
}
