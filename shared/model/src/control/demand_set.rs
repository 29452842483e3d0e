//! Demand sets: numbers of nodes that a controller wants, without jobs (`docs/rules.md#demand-sets`).
//!
//! Guarantees: a set ends by itself unless it is renewed; its revision counts the changes of what is wanted, and not the renewals;
//! names, numbers and times are bounded.
//! Does not: say which nodes satisfy a set. The plan of poll-and-scale does.

use super::Control;
use super::entries::{DemandSet, DemandTerms};
use crate::{Span, Time};

/// A set that applies now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WantedSet<'a> {
    pub name: &'a str,
    pub size: &'a str,
    pub count: u32,
}

impl DemandSet {
    /// The most sets of a cluster. Every run reads all of them.
    pub const MOST: usize = 100;
    /// The highest count of one set.
    pub const MAX_COUNT: u32 = 10_000;
    /// The shortest and the longest time for which a set applies unless it is renewed.
    pub const LASTS: (Span, Span) = (Span::from_s(60), Span::from_s(7 * 86_400));

    pub fn name(&self) -> &str {
        self.key.split_once('#').map_or("", |(_, name)| name)
    }

    /// How many demands the set has now: none after its end. Another program may have written more than is allowed.
    pub fn count(&self, now: Time) -> u32 {
        let many = u32::try_from(self.entry.count).map_or(Self::MAX_COUNT, |many| many.min(Self::MAX_COUNT));
        if self.applies(now) { many } else { 0 }
    }

    /// The set with this need and count, until this time. A renewal of a set that applies keeps the revision.
    #[must_use]
    pub fn wanted(&self, size: &str, many: u32, until_at: Time, now: Time) -> Self {
        let is_same = self.count(now) == many && self.applies(now) && self.size.as_deref() == Some(size);
        let revision = self.revision.saturating_add(u64::from(!is_same));
        let since_at = if is_same { self.since_at } else { Some(now) };
        let size = Some(size.to_owned());
        self.with(DemandTerms { until_at: Some(until_at), since_at, size, count: many.into(), revision })
    }
}

impl Control {
    /// The sets that apply at this time, by name.
    pub fn wanted_sets(&self, now: Time) -> impl Iterator<Item = WantedSet<'_>> {
        let applying = self.demand_sets.values().filter(move |set| set.applies(now));
        applying.filter_map(move |set| {
            Some(WantedSet { name: set.name(), size: set.size.as_deref()?, count: set.count(now) })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::key::ControlKey;
    use super::*;
    use crate::fixtures::at;

    fn never() -> DemandSet {
        DemandSet::new(&ControlKey::Demand("batch".into()))
    }

    #[test]
    fn a_renewal_keeps_the_version_and_a_change_raises_it() {
        assert_eq!((never().revision, never().count(at(0)), never().name()), (0, 0, "batch"));
        let set = never().wanted("small", 3, at(900), at(0));
        assert_eq!((set.revision, set.count(at(899)), set.count(at(900))), (1, 3, 0));
        let renewed = set.wanted("small", 3, at(1000), at(100));
        assert_eq!((renewed.revision, renewed.count(at(999)), renewed.since_at), (1, 3, Some(at(0))));
        let more = renewed.wanted("small", 4, at(1000), at(100));
        assert_eq!((more.revision, more.since_at), (2, Some(at(100))));
        assert_eq!(more.wanted("large", 4, at(1000), at(100)).revision, 3);
        // The set had ended, so this is a change.
        assert_eq!(set.wanted("small", 3, at(2000), at(900)).revision, 2);
    }

    #[test]
    fn a_set_is_over_at_its_end() {
        let set = never().wanted("small", 3, at(900), at(0));
        let is_over = |set: &DemandSet, s| {
            let mut control = Control::default();
            control.put(set);
            control.over(at(s)).len() == 1
        };
        assert!(!is_over(&set, 899) && is_over(&set, 900));
    }

    #[test]
    fn only_sets_that_apply_are_wanted_and_no_more_than_is_allowed() {
        let mut control = Control::default();
        for (name, until, many) in [("b", 900, 3), ("a", 900, u64::MAX), ("c", 10, 3)] {
            let key = ControlKey::Demand(name.into());
            let mut set = DemandSet::new(&key).wanted("small", 3, at(until), at(0));
            set.entry.count = many;
            control.put(&set);
        }
        let wanted: Vec<_> = control.wanted_sets(at(10)).map(|set| (set.name, set.count)).collect();
        assert_eq!(wanted, [("a", DemandSet::MAX_COUNT), ("b", 3)]);
    }
}
