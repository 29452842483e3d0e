//! Demand sets: numbers of nodes that a controller wants, without jobs (`docs/rules.md#demand-sets`).
//!
//! Guarantees: a set ends by itself unless it is renewed; its revision counts the changes of what is wanted, and not the renewals;
//! names, numbers and times are bounded.
//! Does not: say which nodes satisfy a set. The plan of poll-and-scale does.

use super::Control;
use super::entries::{DemandNeed, DemandSet, EntryRow};
use super::key::ControlKey;
use crate::names::is_plain_name;
use crate::time::{Span, Time};

/// A set that applies now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WantedSet<'a> {
    pub name: &'a str,
    pub need: &'a DemandNeed,
    pub count: u32,
}

impl DemandSet {
    /// The most sets of a cluster. Every run reads all of them.
    pub const MOST: usize = 100;
    /// The highest count of one set.
    pub const MAX_COUNT: u32 = 10_000;
    /// The shortest and the longest time for which a set applies unless it is renewed.
    pub const LASTS: (Span, Span) = (Span::from_s(60), Span::from_s(7 * 86_400));

    pub fn is_name(name: &str) -> bool {
        is_plain_name(name)
    }

    pub fn name(&self) -> &str {
        self.0.key.split_once('#').map_or("", |(_, name)| name)
    }

    /// What each of its demands needs; `None` if the set was never written.
    pub const fn need(&self) -> Option<&DemandNeed> {
        self.0.need.as_ref()
    }

    /// How many demands the set has now: none after its end.
    pub fn count(&self, now: Time) -> u32 {
        if self.applies(now) { count(&self.0) } else { 0 }
    }

    /// How often what is wanted has changed. 0 if the set was never written.
    pub fn revision(&self) -> u64 {
        self.0.revision.unwrap_or(0)
    }

    /// The set with this need and count, until this time. A renewal of a set that applies keeps the revision.
    #[must_use]
    pub fn wanted(&self, need: DemandNeed, many: u32, until_at: Time, now: Time) -> Self {
        let is_same = self.count(now) == many && self.applies(now) && self.need() == Some(&need);
        let revision = Some(self.revision().saturating_add(u64::from(!is_same)));
        let since_at = if is_same { self.0.since_at } else { Some(now) };
        let (until_at, count) = (Some(until_at), Some(u64::from(many)));
        Self(EntryRow { need: Some(need), count, until_at, since_at, revision, ..self.0.clone() })
    }

    /// The set after it was deleted; `None` if it does not apply any more. clean-stale-records deletes the row.
    #[must_use]
    pub fn ended(&self, now: Time) -> Option<Self> {
        let revision = Some(self.revision().saturating_add(1));
        self.applies(now).then(|| Self(EntryRow { count: Some(0), until_at: Some(now), revision, ..self.0.clone() }))
    }
}

/// The count of the row. Another program may have written more than is allowed.
fn count(row: &EntryRow) -> u32 {
    let many = row.count.and_then(|n| u32::try_from(n).ok()).unwrap_or(DemandSet::MAX_COUNT);
    many.min(DemandSet::MAX_COUNT)
}

impl Control {
    /// The sets that apply at this time, by name.
    pub fn wanted_sets(&self, now: Time) -> impl Iterator<Item = WantedSet<'_>> {
        self.entries().filter_map(move |(key, row)| match (key, &row.need) {
            (ControlKey::Demand(name), Some(need)) if row.applies(now) => {
                Some(WantedSet { name, need, count: count(row) })
            }
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::Entry;
    use super::*;
    use crate::fixtures::at;

    fn never() -> DemandSet {
        DemandSet::from_row(EntryRow::new(&ControlKey::Demand("batch".into())))
    }

    fn small() -> DemandNeed {
        DemandNeed { size: Some("small".into()), ..DemandNeed::default() }
    }

    #[test]
    fn a_renewal_keeps_the_version_and_a_change_raises_it() {
        assert_eq!((never().revision(), never().count(at(0)), never().name()), (0, 0, "batch"));
        let set = never().wanted(small(), 3, at(900), at(0));
        assert_eq!((set.revision(), set.count(at(899)), set.count(at(900))), (1, 3, 0));
        let renewed = set.wanted(small(), 3, at(1000), at(100));
        assert_eq!((renewed.revision(), renewed.count(at(999)), renewed.since_at()), (1, 3, Some(at(0))));
        let more = renewed.wanted(small(), 4, at(1000), at(100));
        assert_eq!((more.revision(), more.since_at()), (2, Some(at(100))));
        let other = DemandNeed { exclusive: true, ..small() };
        assert_eq!(more.wanted(other, 4, at(1000), at(100)).revision(), 3);
        // The set had ended, so this is a change.
        assert_eq!(set.wanted(small(), 3, at(2000), at(900)).revision(), 2);
    }

    #[test]
    fn a_set_that_is_deleted_counts_as_zero_and_is_deleted_once() {
        let set = never().wanted(small(), 3, at(900), at(0));
        let ended = set.ended(at(5)).unwrap();
        assert_eq!((ended.count(at(5)), ended.revision(), ended.ended(at(6))), (0, 2, None));
        assert_eq!(never().ended(at(5)), None);
        let key = ControlKey::Demand("batch".into());
        assert!(ended.row().is_over(&key, at(5)));
        assert!(!set.row().is_over(&key, at(899)) && set.row().is_over(&key, at(900)));
    }

    #[test]
    fn only_sets_that_apply_are_wanted_and_no_more_than_is_allowed() {
        let mut control = Control::default();
        for (name, until, many) in [("b", 900, 3), ("a", 900, u64::MAX), ("c", 10, 3)] {
            let key = ControlKey::Demand(name.into());
            let mut row = DemandSet::from_row(EntryRow::new(&key)).wanted(small(), 3, at(until), at(0)).row().clone();
            row.count = Some(many);
            control.put(row);
        }
        let wanted: Vec<_> = control.wanted_sets(at(10)).map(|set| (set.name, set.count)).collect();
        assert_eq!(wanted, [("a", DemandSet::MAX_COUNT), ("b", 3)]);
    }

    #[test]
    fn names_are_short_and_plain() {
        for good in ["a", "ci-builds_2.x", &"x".repeat(64)] {
            assert!(DemandSet::is_name(good), "{good}");
        }
        for bad in ["", "a b", "a#b", "é", &"x".repeat(65)] {
            assert!(!DemandSet::is_name(bad), "{bad}");
        }
    }
}
