//! Brakes: an unusual share of a cluster is not taken away at once, but only after a wait (`docs/rules.md#R10`).
//!
//! Guarantees: the entry keeps the start time of a trouble for as long as any run of any function sees the trouble; a
//! brake lets go when its time has passed (if it has one), or when an operator releases it after the trouble began; a
//! brake that let go holds again during the same trouble only if the operator's release ends.
//! Does not: say what is unusual. Each caller does. A caller also has a minimum number below which nothing is
//! unusual, so that small fleets are not blocked. Sources: Nomad PR 15068 (mass disconnects), Concourse #1959 (mass
//! disappearance).

use crate::control::{BrakeEntry, Release};
use crate::reason::Reason;
use crate::time::{Span, Time};
use crate::words::BrakeKind;

/// If a trouble is seen again within this time, it is the same trouble. The time covers two runs of a slow schedule.
const SAME_TROUBLE_RUNS: Span = Span::from_s(600);
/// The same limit for troubles that reports show. The time covers two reports of the slowest agent, which waits at
/// most an hour between them.
const SAME_TROUBLE_REPORTS: Span = Span::from_s(7200);

/// What a brake judges now.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Trouble {
    pub kind: BrakeKind,
    /// How long the brake holds; `None`: until an operator releases it.
    pub hold: Option<Span>,
    /// How many nodes, records, instances or handles would be taken away now.
    pub count: usize,
    /// The trouble cannot have begun before this time, so an older entry is about another trouble. `None`: nothing shows
    /// when the trouble began.
    pub not_before: Option<Time>,
    /// What is unusual.
    pub why: Reason,
}

/// What a brake decides.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Decision {
    pub hold: Hold,
    /// Whether the brake holds now and did not hold at the last look.
    pub news: bool,
    /// The entry to store; `None` if there is nothing to store.
    pub entry: Option<BrakeEntry>,
    pub reason: Reason,
}

/// Whether a brake holds back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// The brake holds: the actions wait.
    Held,
    /// The brake does not hold: the actions may be carried out.
    Free,
}

impl Trouble {
    fn same_trouble(&self) -> Span {
        match self.kind {
            BrakeKind::Leases | BrakeKind::Missing | BrakeKind::Orphans => SAME_TROUBLE_RUNS,
            BrakeKind::Handles => SAME_TROUBLE_REPORTS,
        }
    }

    /// Decides from the brake's entry and the operator's release, both as read.
    pub fn decide(self, entry: &BrakeEntry, release: &Release, now: Time) -> Decision {
        let known = entry.applies(now) && entry.since_at() >= self.not_before;
        let since = if known { entry.began_at(now) } else { now };
        let released = release.applies(now) && release.since_at().is_some_and(|at| at >= since);
        let left = self.hold.map(|hold| (since + hold).since(now));
        let held = !released && left.is_none_or(|left| left > Span::ZERO);
        let count = if held { self.count as u64 } else { 0 };
        let after = entry.looked_at(since, now + self.same_trouble(), count, &self.why.to_string());
        let (why, kind) = (Box::new(self.why), self.kind);
        let reason = match left {
            _ if !held => Reason::NoLongerHeld { why },
            Some(left) => Reason::HeldFor { why, left, kind },
            None => Reason::Held { why, kind },
        };
        Decision {
            hold: if held { Hold::Held } else { Hold::Free },
            news: held && (!known || entry.held() == Some(0)),
            // A brake that was released before it ever held has no entry to store.
            entry: (held || known).then_some(after),
            reason,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::Control;
    use crate::fixtures::at;

    const HOLD: Option<Span> = Some(Span::from_s(300));

    fn trouble(kind: BrakeKind, hold: Option<Span>, count: usize) -> Trouble {
        Trouble { kind, hold, count, not_before: None, why: Reason::ManyUnlisted { unlisted: count, up: 6 } }
    }

    fn new(kind: BrakeKind) -> (BrakeEntry, Release) {
        (Control::default().brake(kind), Control::default().release(kind))
    }

    /// Returns whether the brake holds, and whether that is news.
    fn look(entry: &mut BrakeEntry, release: &Release, hold: Option<Span>, s: i64) -> (bool, bool) {
        let decision = trouble(BrakeKind::Missing, hold, 5).decide(entry, release, at(s));
        *entry = decision.entry.unwrap_or_else(|| entry.clone());
        (decision.hold == Hold::Held, decision.news)
    }

    #[test]
    fn a_brake_lets_go_after_its_time_and_does_not_hold_the_same_trouble_again() {
        let (mut entry, none) = new(BrakeKind::Missing);
        assert_eq!(look(&mut entry, &none, HOLD, 0), (true, true));
        assert_eq!(look(&mut entry, &none, HOLD, 299), (true, false));
        assert_eq!(look(&mut entry, &none, HOLD, 300), (false, false));
        assert_eq!(look(&mut entry, &none, HOLD, 899), (false, false), "the same trouble");
        assert_eq!(look(&mut entry, &none, HOLD, 1499), (true, true), "another trouble");
    }

    #[test]
    fn a_brake_also_ends_when_runs_are_rare() {
        let (mut entry, none) = new(BrakeKind::Missing);
        let held: Vec<bool> = (0..4).map(|n| look(&mut entry, &none, HOLD, n * 299).0).collect();
        assert_eq!(held, [true, true, false, false]);
    }

    #[test]
    fn a_release_also_works_when_reports_are_rare() {
        let (mut entry, none) = new(BrakeKind::Handles);
        let mut look = |release: &Release, s: i64| {
            let decision = trouble(BrakeKind::Handles, None, 20).decide(&entry, release, at(s));
            entry = decision.entry.unwrap_or_else(|| new(BrakeKind::Handles).0);
            decision.hold
        };
        let release = none.given(None, Span::from_s(86_300), at(100));
        assert_eq!([look(&none, 0), look(&release, 3600)], [Hold::Held, Hold::Free]);
        assert_eq!(entry.held(), Some(0), "nothing is held");
        // When the release has ended, the brake holds again. That is news, although the trouble is the same.
        let decision = trouble(BrakeKind::Handles, None, 20).decide(&entry, &none, at(7200));
        assert!(decision.hold == Hold::Held && decision.news);
        assert_eq!(decision.entry.unwrap().held(), Some(20));
    }

    #[test]
    fn a_release_is_only_for_a_trouble_that_began_before_it() {
        let (mut entry, none) = new(BrakeKind::Missing);
        let early = none.given(None, Span::from_s(601), at(-1));
        assert_eq!(look(&mut entry, &early, None, 0), (true, true), "held since later");
        assert_eq!(look(&mut entry, &none, None, 500), (true, false), "there is no other end");
        let release = none.given(None, Span::from_s(599), at(1));
        assert_eq!(look(&mut entry, &release, None, 520), (false, false));
        let (mut entry, before) = (new(BrakeKind::Missing).0, new(BrakeKind::Missing).0);
        assert_eq!(look(&mut entry, &release, None, 0), (false, false), "released before it was held");
        assert_eq!(entry, before);
    }
}
