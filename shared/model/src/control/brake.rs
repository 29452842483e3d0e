//! Brakes: an unusual share of a cluster is not taken away at once, but only after a wait (`docs/rules.md#R10`).
//!
//! Guarantees: the entry keeps the start time of a trouble for as long as its source sees the trouble; a brake lets go
//! when its time has passed (if it has one); an operator's release lets go exactly what it names, once, and only in the
//! trouble in which it was given; the entry says that nothing is held as soon as its source no longer sees the trouble.
//! A source is a function. Each source is judged by itself, and changes only its own part of the entry.
//! Does not: say what is taken away, or how many there are. Each caller does.
//! Sources: Nomad PR 15068 (mass disconnects), Concourse #1959 (mass disappearance).

use super::{BrakeEntry, BrakePart, Control, Release};
use crate::enums::BrakeKind;
use crate::{Reason, Span, Time};
use std::collections::BTreeSet;

/// If a trouble is seen again within this time, it is the same trouble. The time covers two runs of a slow schedule.
const SAME_TROUBLE: Span = Span::from_s(600);

/// A brake as one source sees it: the entry and the operator's release as read, and the time of the decision.
#[derive(Clone, Debug)]
pub struct Brake<'a> {
    kind: BrakeKind,
    source: &'a str,
    entry: BrakeEntry,
    release: Release,
    now: Time,
}

impl Control {
    /// A brake, as the function of this name sees it.
    pub fn brake_of<'a>(&self, kind: BrakeKind, source: &'a str, now: Time) -> Brake<'a> {
        Brake { kind, source, entry: self.brake(kind), release: self.release(kind), now }
    }
}

/// How many may be taken away without a wait.
#[derive(Clone, Copy, Debug)]
pub struct Threshold {
    /// This many in any case, so that small fleets are not blocked.
    pub number: u64,
    /// Above `number`, up to this share of all.
    pub share: f64,
}

/// A trouble that a brake judges: more would be taken away than usual.
#[derive(Clone, Debug)]
pub struct Incident {
    /// How long the brake holds; `None`: until an operator releases it.
    pub hold: Option<Span>,
    /// The ids of the nodes, records or instances that would be taken away now.
    pub ids: Vec<String>,
    /// The trouble cannot have begun before this time, so an older entry is about another trouble. `None`: nothing shows
    /// when the trouble began.
    pub not_before: Option<Time>,
    /// Why the number is unusual.
    pub why: Reason,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    pub permit: Permit,
    /// Whether the brake holds now and did not hold when its source last judged.
    pub news: bool,
    pub change: BrakeChange,
    pub reason: Reason,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Permit {
    /// Everything: the brake does not hold.
    All,
    /// Only what an operator released, which may be nothing.
    Only(BTreeSet<String>),
}

impl Permit {
    /// Whether the node, record or instance with this id may be taken away.
    pub fn frees(&self, id: &str) -> bool {
        match self {
            Self::All => true,
            Self::Only(ids) => ids.contains(id),
        }
    }
}

/// The change that a source stores in the entry and the release of a brake.
#[derive(Clone, Debug, PartialEq)]
pub struct BrakeChange {
    pub kind: BrakeKind,
    /// The entry as read and as it is now; `None` if there is nothing to store.
    pub entry: Option<(BrakeEntry, BrakeEntry)>,
    /// The release as read, and the release without what the source let go. It is stored after everything was let go: if the source
    /// is cut off before, the next run or report goes on.
    pub release: Option<(Release, Release)>,
}

impl BrakeChange {
    pub const fn is_empty(&self) -> bool {
        self.entry.is_none() && self.release.is_none()
    }
}

impl<'a> Brake<'a> {
    fn part(&self) -> Option<BrakePart> {
        self.entry.part(self.source, SAME_TROUBLE, self.now)
    }

    /// When the known trouble began; now if none is known.
    pub fn began_at(&self) -> Time {
        self.part().map_or(self.now, |part| part.since_at)
    }

    /// Whether it is unusual to take away this many of `all`. What an operator released in the same trouble still counts:
    /// otherwise the rest would be few enough to go although nobody has released them.
    pub fn is_unusual(&self, count: usize, all: usize, threshold: Threshold) -> bool {
        let gone = self.part().map_or(0, |part| part.permit);
        let (count, all) = (count as u64, (all as u64).saturating_add(gone));
        let sum = count.saturating_add(gone);
        count > 0 && sum > threshold.number && sum as f64 > threshold.share * all as f64
    }

    /// What to store when the source sees nothing unusual: nothing is held any more, and its release is over. The start of the
    /// trouble is remembered, because the trouble may come and go.
    fn calm(&self) -> BrakeChange {
        let entry = match self.part() {
            Some(part) if part.count == 0 => None,
            Some(part) => Some(BrakePart { count: 0, ids: Vec::new(), ..part }).map(|calm| self.with(Some(calm), None)),
            // The time of the part is impossible, or is over.
            None if self.entry.parts.contains_key(self.source) && self.entry.applies(self.now) => {
                Some(self.with(None, None))
            }
            None => None,
        };
        self.change(entry, self.used())
    }

    fn with(&self, part: Option<BrakePart>, message: Option<String>) -> BrakeEntry {
        self.entry.with(self.entry.with_part(self.source, part, message, self.now))
    }

    fn used(&self) -> Option<Release> {
        self.release.used(self.source, self.now)
    }

    fn change(&self, entry: Option<BrakeEntry>, release: Option<Release>) -> BrakeChange {
        BrakeChange {
            kind: self.kind,
            entry: entry.map(|after| (self.entry.clone(), after)),
            release: release.map(|after| (self.release.clone(), after)),
        }
    }

    /// Decides about a trouble, if there is one. Otherwise everything may go, and the entry says that nothing is held.
    pub fn judge(&self, trouble: Option<Incident>) -> Decision {
        if let Some(trouble) = trouble {
            return self.decide(trouble);
        }
        let change = self.calm();
        let (news, reason) = (change.entry.is_some(), Reason::TroubleOver { kind: self.kind });
        Decision { permit: Permit::All, news, change, reason }
    }

    /// Decides what may be taken away in this trouble.
    fn decide(&self, trouble: Incident) -> Decision {
        let now = self.now;
        let known = self.part().filter(|part| trouble.not_before.is_none_or(|at| part.since_at >= at));
        let since = known.as_ref().map_or(now, |part| part.since_at);
        let left = trouble.hold.map(|hold| (since + hold).since(now));
        let is_over = left.is_some_and(|left| left <= Span::ZERO);
        let may_release = known.is_some() && self.release.applies(now) && self.release.since_at >= Some(since);
        let named = if may_release && !is_over { self.release.ids_of(self.source) } else { &[] };
        let named: BTreeSet<&str> = named.iter().map(String::as_str).collect();
        let ids: BTreeSet<String> = trouble.ids.into_iter().collect();
        let (released, held): (BTreeSet<String>, BTreeSet<String>) =
            ids.into_iter().partition(|id| named.contains(id.as_str()));
        let count = if is_over { 0 } else { held.len() as u64 };
        let part = BrakePart {
            ids: if is_over { Vec::new() } else { held.into_iter().collect() },
            count,
            permit: known.as_ref().map_or(0, |part| part.permit).saturating_add(released.len() as u64),
            since_at: since,
            until_at: now + SAME_TROUBLE,
        };
        let entry = self.with(Some(part), Some(trouble.why.to_string()));
        let used = self.used().filter(|_| !released.is_empty());
        let (why, kind) = (Box::new(trouble.why), self.kind);
        let is_known = known.is_some();
        let reason = match left {
            _ if count == 0 => Reason::NoLongerHeld { why },
            Some(left) => Reason::HeldFor { why, left, kind },
            None => Reason::Held { why, kind },
        };
        Decision {
            news: count > 0 && known.is_none_or(|part| part.count == 0),
            permit: if is_over { Permit::All } else { Permit::Only(released) },
            // A brake that never held has no entry to store.
            change: self.change((count > 0 || is_known).then_some(entry), used),
            reason,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::at;

    const HOLD: Option<Span> = Some(Span::from_s(300));
    const AN_HOUR: Span = Span::from_s(3600);

    /// The entry and the release of one brake, as its sources change them.
    struct Stored {
        kind: BrakeKind,
        entry: BrakeEntry,
        release: Release,
    }

    fn new(kind: BrakeKind) -> Stored {
        Stored { kind, entry: Control::default().brake(kind), release: Control::default().release(kind) }
    }

    fn ids(ids: impl IntoIterator<Item = usize>) -> Vec<String> {
        ids.into_iter().map(|n| format!("i-{n}")).collect()
    }

    impl Stored {
        fn brake<'a>(&self, source: &'a str, s: i64) -> Brake<'a> {
            Brake { kind: self.kind, source, entry: self.entry.clone(), release: self.release.clone(), now: at(s) }
        }

        fn store(&mut self, change: BrakeChange) {
            self.entry = change.entry.map_or_else(|| self.entry.clone(), |(_, after)| after);
            self.release = change.release.map_or_else(|| self.release.clone(), |(_, after)| after);
        }

        /// The ids that may go, how many the entry holds afterwards, and whether that is news.
        fn look(&mut self, source: &str, hold: Option<Span>, seen: Vec<String>, s: i64) -> (Vec<String>, u64, bool) {
            let why = Reason::ManyUnlisted { unlisted: seen.len(), up: 6 };
            let trouble = Incident { hold, ids: seen.clone(), not_before: None, why };
            let decision = self.brake(source, s).decide(trouble);
            self.store(decision.change);
            let free = seen.into_iter().filter(|id| decision.permit.frees(id)).collect();
            (free, self.entry.count.unwrap(), decision.news)
        }

        fn give(&mut self, s: i64) {
            self.release = self.release.given(&self.entry, AN_HOUR, at(s));
        }
    }

    #[test]
    fn a_brake_lets_go_after_its_time_and_does_not_hold_the_same_trouble_again() {
        let mut brake = new(BrakeKind::Missing);
        let mut look = |s| brake.look("a", HOLD, ids(0..5), s);
        assert_eq!(look(0), (vec![], 5, true));
        assert_eq!(look(299), (vec![], 5, false));
        assert_eq!(look(300), (ids(0..5), 0, false));
        assert_eq!(look(899), (ids(0..5), 0, false), "the same trouble");
        assert_eq!(look(1499), (vec![], 5, true), "another trouble");
    }

    #[test]
    fn a_run_whose_clock_is_behind_does_not_begin_the_wait_again() {
        let mut brake = new(BrakeKind::Missing);
        let mut look = |s| brake.look("a", HOLD, ids(0..5), s);
        assert_eq!([look(0).0, look(290).0, look(289).0], [ids(0..0), ids(0..0), ids(0..0)]);
        assert_eq!([look(301).0, look(300).0], [ids(0..5), ids(0..5)]);
    }

    #[test]
    fn a_brake_also_ends_when_runs_are_rare() {
        let mut brake = new(BrakeKind::Missing);
        let held: Vec<bool> = (0..4).map(|n| brake.look("a", HOLD, ids(0..5), n * 299).0.is_empty()).collect();
        assert_eq!(held, [true, true, false, false]);
    }

    #[test]
    fn a_release_lets_go_what_was_held_and_nothing_else_and_once() {
        let mut brake = new(BrakeKind::Orphans);
        assert_eq!(brake.look("a", None, ids(0..5), 0), (vec![], 5, true));
        brake.give(10);
        assert_eq!(brake.look("a", None, ids(0..12), 60), (ids(0..5), 7, false), "seven more came meanwhile");
        // The release is used up: the same ids are held when they come back.
        assert!(!brake.release.applies(at(60)));
        assert_eq!(brake.look("a", None, ids(0..12), 120), (vec![], 12, false));
        // Two of seven are not many, but five of the same trouble were let go.
        let few = Threshold { number: 3, share: 0.0 };
        assert!(brake.brake("a", 180).is_unusual(2, 2, few));
        assert!(!brake.brake("a", 180).is_unusual(0, 0, few));
        assert!(!brake.brake("a", 720).is_unusual(2, 2, few), "another trouble");
        assert!(brake.brake("a", 720).is_unusual(4, 4, few));
    }

    #[test]
    fn each_source_is_released_by_itself() {
        let mut brake = new(BrakeKind::Missing);
        brake.look("a", None, ids(0..3), 0);
        brake.give(10);
        assert_eq!(brake.look("b", None, ids(0..3), 20), (vec![], 6, true), "the ids of another function");
        assert_eq!(brake.look("a", None, ids(0..3), 500), (ids(0..3), 3, false));
        assert_eq!(brake.entry.ids().collect::<Vec<_>>(), [("b", "i-0"), ("b", "i-1"), ("b", "i-2")]);
    }

    #[test]
    fn a_brake_ends_with_its_trouble_and_so_does_the_release() {
        let mut brake = new(BrakeKind::Missing);
        brake.look("a", None, ids(0..30), 0);
        brake.look("b", None, ids(0..4), 0);
        brake.give(10);
        brake.store(brake.brake("a", 30).calm());
        assert_eq!((brake.entry.count, brake.entry.holds_back(at(30))), (Some(4), true));
        assert!(brake.brake("a", 60).calm().is_empty(), "nothing more to store");
        assert_eq!(brake.look("a", None, ids(0..30), 90), (vec![], 34, true), "what was released is over");
        brake.store(brake.brake("b", 100).calm());
        brake.store(brake.brake("a", 100).calm());
        assert!(!brake.entry.holds_back(at(100)) && !brake.release.applies(at(100)));
    }

    #[test]
    fn a_wrong_clock_holds_nothing_for_ever() {
        let mut brake = new(BrakeKind::Missing);
        brake.look("a", HOLD, ids(0..5), 1_000_000);
        assert_eq!(brake.look("a", HOLD, ids(0..5), 0), (vec![], 5, true));
        assert_eq!(brake.look("a", HOLD, ids(0..5), 300).0, ids(0..5));
        // The trouble is over when the clock is right again.
        let mut brake = new(BrakeKind::Missing);
        brake.look("a", HOLD, ids(0..5), 1_000_000);
        brake.store(brake.brake("a", 0).calm());
        assert!(!brake.entry.holds_back(at(0)));
    }

    #[test]
    fn more_ids_than_fit_into_a_row_are_released_in_parts() {
        let mut brake = new(BrakeKind::Orphans);
        let all: Vec<String> = (0..5000).map(|n| format!("i-{n:017}")).collect();
        brake.look("a", None, all.clone(), 0);
        let shown = brake.entry.ids().count();
        assert!((2000..4000).contains(&shown) && brake.entry.count == Some(5000), "{shown}");
        brake.give(10);
        assert_eq!(brake.look("a", None, all.clone(), 60).0, all[..shown]);
        assert_eq!(brake.look("a", None, all[shown..].to_vec(), 120).1, (5000 - shown) as u64);
    }
}
