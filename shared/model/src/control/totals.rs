//! What shares have used, and what they have cost this month (`docs/rules.md#shares`).
//!
//! What was used counts by a half-life, so one number for each share is enough: all of it fades by the same factor.
//!
//! Guarantees: what is added in parts comes to the same as all at once; a row of one version has each ended alloc once.
//! Does not: read allocs. An alloc whose end is written later than it is counted up to is left out.

use super::entries::{Entry, EntryRow};
use crate::{Span, Time, Usd};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::f64::consts::LN_2;

pub type TotalsRow = EntryRow<Totals>;

/// What was used this many half-lives ago does not count.
const HALF_LIVES: f64 = 20.0;

/// Less than this is nothing, in vCPU-seconds.
const NOTHING: f64 = 1e-3;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Totals {
    /// Up to when the allocs have ended that are counted.
    pub until_at: Option<Time>,
    /// What each share has used, in vCPU-seconds, with what has faded at `until_at`.
    pub used: BTreeMap<String, f64>,
    /// What each share has cost in this month, by its allocs that are counted.
    pub month_of: BTreeMap<String, Usd>,
}

impl Entry for Totals {}

/// A time of an alloc on its node.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ShareUse<'a> {
    pub share: &'a str,
    /// How much it takes, in vCPUs.
    pub vcpus: f64,
    pub price_per_hour: Usd,
    pub from: Time,
    pub to: Time,
}

fn seconds(span: Span) -> f64 {
    span.as_ms() as f64 / 1000.0
}

impl Totals {
    /// Since when the ended allocs count that are not in these totals.
    pub fn since(&self, half_life: Span, now: Time) -> Time {
        let oldest = now - Span::from_ms((half_life.as_ms() as f64 * HALF_LIVES) as i64);
        self.until_at.map_or(oldest, |until| until.max(oldest))
    }

    /// What each share has used at this time, with these uses, of which none is in the totals yet.
    pub fn used_at<'a>(
        &self,
        uses: impl Iterator<Item = ShareUse<'a>>,
        half_life: Span,
        now: Time,
    ) -> BTreeMap<String, f64> {
        let half_life = seconds(half_life);
        let left = |then: Time| (-seconds(now.since(then)) / half_life).exp2();
        let faded = self.until_at.map_or(0.0, left);
        let mut used: BTreeMap<String, f64> =
            self.used.iter().map(|(name, used)| (name.clone(), used * faded)).collect();
        for part in uses.filter(|part| part.from < part.to) {
            let amount = part.vcpus * half_life / LN_2 * (left(part.to) - left(part.from));
            *used.entry(part.share.to_owned()).or_default() += amount;
        }
        used.retain(|_, used| *used > NOTHING);
        used
    }

    /// What each share has cost in the month of this time, with these uses, of which none is in the totals yet: each by its part of
    /// its node.
    pub fn costs_at<'a>(&self, uses: impl Iterator<Item = ShareUse<'a>>, now: Time) -> BTreeMap<String, Usd> {
        let month = now.month();
        let mut costs =
            if self.until_at.map(Time::month) == Some(month) { self.month_of.clone() } else { BTreeMap::new() };
        for part in uses.filter(|part| part.to > month) {
            let cost = costs.entry(part.share.to_owned()).or_default();
            *cost = *cost + part.price_per_hour.in_time(part.to.since(part.from.max(month)));
        }
        costs
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::at;
    use crate::rng::Rng;

    const HALF_LIFE: Span = Span::from_s(3600);

    fn part(share: &str, from: i64, to: i64) -> ShareUse<'_> {
        ShareUse { share, vcpus: 2.0, price_per_hour: Usd::from_micros(3_600_000), from: at(from), to: at(to) }
    }

    #[test]
    fn what_is_added_in_any_parts_comes_to_the_same_as_all_at_once() {
        let rng = Rng::seeded(7);
        let number = |most: f64| rng.between(0.0, most) as i64;
        let ends: Vec<(i64, i64)> = (0..300).map(|_| number(80_000.0)).map(|to| (to - number(9000.0), to)).collect();
        let whole = Totals::default();
        let all = |uses: &[(i64, i64)]| -> Vec<ShareUse<'_>> {
            uses.iter().map(|(from, to)| part("a", *from, *to)).collect()
        };
        let at_once = whole.used_at(all(&ends).into_iter(), HALF_LIFE, at(90_000))["a"];
        for _ in 0..20 {
            let (mut totals, mut until) = (Totals::default(), 0);
            while until < 90_000 {
                let next = (until + 1 + number(5000.0)).min(90_000);
                let new: Vec<(i64, i64)> = ends.iter().copied().filter(|(_, to)| (until..next).contains(to)).collect();
                let used = totals.used_at(all(&new).into_iter(), HALF_LIFE, at(next));
                totals = Totals { until_at: Some(at(next)), used, ..totals };
                until = next;
            }
            let in_parts = totals.used["a"];
            assert!((in_parts / at_once - 1.0).abs() < 1e-9, "{in_parts} {at_once}");
        }
    }

    #[test]
    fn what_was_used_a_half_life_ago_counts_half_and_a_use_may_be_cut_anywhere() {
        let used =
            |uses: &[ShareUse<'_>], now: i64| Totals::default().used_at(uses.iter().copied(), HALF_LIFE, at(now));
        let (soon, later) = (used(&[part("a", 0, 600)], 600)["a"], used(&[part("a", 0, 600)], 4200)["a"]);
        assert!((soon / later - 2.0).abs() < 1e-9 && soon < 1200.0 && soon > 1100.0, "{soon} {later}");
        let cut = used(&[part("a", 0, 100), part("a", 100, 600)], 600)["a"];
        assert!((cut - soon).abs() < 1e-9);
        assert!(used(&[part("a", 5, 5), part("a", 9, 5)], 600).is_empty(), "a clock that went back uses nothing");
        assert!(used(&[part("a", 0, 1)], 40 * 3600).is_empty(), "what has faded is let go");
    }

    #[test]
    fn a_share_costs_its_part_of_the_nodes() {
        // $3.60 an hour are $0.001 a second.
        let of_share = Totals::default().costs_at([part("a", 0, 600), part("b", 0, 60)].into_iter(), at(600));
        assert_eq!(
            of_share,
            [("a", 600_000), ("b", 60_000)].map(|(name, usd)| (name.to_owned(), Usd::from_micros(usd))).into()
        );
    }
}
