//! What a cap is in the way of: what is kept for the first job that waits for room, and which idle
//! nodes make way for it.
//!
//! Guarantees: a job that a cap holds up keeps no more than lets it find the rest one day, and pays
//! for no half of itself; room is counted missing only where `nodes.max` or the price is in the way
//! of sizes that can be had, and without what leaves already; where a size's own maximum is, idle
//! nodes of that size that do not fit make way.
//! Does not: launch (the packing does) or shut down (`shutdown` does, within its own rules).

use super::{At, Bin, Packing};
use crate::plan::sizes::{fits, fitting, offerings, usable};
use shared::ids::NodeId;
use shared::model::{JobSummary, Market, Usd};
use shared::policy::{Policy, Size};
use std::collections::BTreeSet;

/// Room below the caps that is missing for what is to be launched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::plan) struct Room {
    /// Records below `nodes.max`.
    pub(in crate::plan) nodes: u32,
    /// Below `nodes.max_price_per_hour`.
    pub(in crate::plan) price: Usd,
}

/// The price of the cheapest mix of so many nodes that the sizes' own maxima allow beside what is
/// `there`; `None` if they allow no such mix. The sizes are the cheapest first.
pub(super) fn cheapest(sizes: &[&Size], nodes: u32, there: impl Fn(&Size) -> u32) -> Option<Usd> {
    let (mut left, mut price) = (nodes, Usd::ZERO);
    for size in sizes {
        let some = left.min(size.max.map_or(u32::MAX, |max| max.saturating_sub(there(size))));
        price = price + size.price_per_hour.times(u64::from(some));
        left -= some;
    }
    (left == 0).then_some(price)
}

/// Whether the fleet may cost this much.
pub(super) fn is_within_cap(policy: &Policy, price: Usd) -> bool {
    let cap = policy.nodes.max_price_per_hour;
    cap.is_zero() || price <= cap
}

impl Packing<'_, '_> {
    /// The first job that cannot be placed keeps of the nodes it found what the caps let it find the
    /// rest to one day, and enough further nodes are kept free of later jobs to make room: those that
    /// would fit it when empty first. What it would have launched, from the bin `first_new` on, is taken
    /// back: half of it would be paid for, idle, until there is room for the rest.
    pub(super) fn block(&mut self, job: &JobSummary, found: &[usize], members: u32, first_new: usize) {
        self.undo_launches(first_new);
        let found: Vec<usize> = found.iter().copied().filter(|n| *n < self.bins.len()).collect();
        let policy = &self.view.seen.policy;
        let ever = fitting(policy, job);
        // Room is no help to a size that EC2 does not have now.
        let to_be_had = |s: &&Size| !offerings(self.view, s, job.market != Some(Market::Spot)).is_empty();
        let sizes: Vec<&Size> = ever.iter().copied().filter(to_be_had).collect();
        let alone = cheapest(&sizes, members, |_| 0).is_some_and(|price| is_within_cap(policy, price));
        let kept = self.within_caps(if alone { &sizes } else { &ever }, &found, members);
        let lacking = members.saturating_sub(kept.len().try_into().unwrap_or(u32::MAX));
        // Nor where it would be filled and no job come of it: a size's own maximum is in the way, or
        // even alone it would cost too much.
        let price = cheapest(&sizes, lacking, |size| self.of_size(size))
            .filter(|price| is_within_cap(policy, self.price(&kept) + *price) && self.is_capped(lacking, *price));
        self.room = price.map(|price| self.missing_room(lacking, price));
        self.keep(job, &kept);
        for n in &found {
            if let Some(bin) = self.bins.get_mut(*n) {
                bin.blocked = true;
            }
        }
        self.outgrown = self.outgrown(job, &sizes, lacking);
        // What is busy with another's work empties for nobody here; and what would not fit it is free for
        // others, unless it makes way.
        let helps = |b: &Bin| {
            let makes_way = self.room.is_some() || matches!(b.at, At::Ready(node) if self.outgrown.contains(&node));
            let foreign = b.taken && b.empty;
            !foreign && (makes_way || self.would_fit(b, job))
        };
        let is_other = |n: &usize| !found.contains(n) && self.bins.get(*n).is_some_and(helps);
        let mut others: Vec<usize> = (0..self.bins.len()).filter(is_other).collect();
        others.sort_by_key(|n| {
            self.bins
                .get(*n)
                .map(|b| (!self.would_fit(b, job), !b.empty, std::cmp::Reverse(b.free.vcpus), b.preference()))
        });
        for n in others.into_iter().take((members as usize).saturating_sub(found.len())) {
            if let Some(bin) = self.bins.get_mut(n) {
                bin.blocked = true;
            }
        }
        // The room it waits for is no later job's, who might be content with the first bit of it.
        if let Some(price) = price {
            self.records = self.records.saturating_add(lacking);
            self.spent = self.spent + price;
        }
    }

    /// Whether a node would fit a job's member if nothing were on it.
    fn would_fit(&self, bin: &Bin, job: &JobSummary) -> bool {
        let (At::Ready(node) | At::Booting(node)) = bin.at else { return false };
        let share = self.view.seen.policy.nodes.memory_usable;
        let life = self.view.node(node).and_then(|r| r.life());
        life.is_some_and(|l| fits(job.capacity, usable(l.offering.capacity, share)) && bin.is_kind(job))
    }

    /// Of the sizes that are full, as many empty nodes as lack that would not fit the job.
    fn outgrown(&self, job: &JobSummary, sizes: &[&Size], lacking: u32) -> BTreeSet<NodeId> {
        let full = |bin: &Bin| sizes.iter().any(|s| s.name == bin.size && self.is_full(s));
        let bins = self.bins.iter().filter(|b| b.is_idle() && full(b) && !self.would_fit(b, job));
        let ready = bins.filter_map(|b| match b.at {
            At::Ready(node) => Some(node),
            _ => None,
        });
        ready.take(lacking as usize).collect()
    }

    /// Of what was found, the cheapest nodes that leave the price for the rest: a job of many that
    /// kept dear nodes idle could wait for ever for a price that only they stand in the way of.
    fn within_caps(&self, sizes: &[&Size], found: &[usize], members: u32) -> Vec<usize> {
        let policy = &self.view.seen.policy;
        let mut kept = found.to_vec();
        kept.sort_by_key(|n| self.bins.get(*n).map(|b| b.price_per_hour));
        while !kept.is_empty() {
            let rest = members.saturating_sub(kept.len().try_into().unwrap_or(u32::MAX));
            let new = cheapest(sizes, rest, |size| {
                let there = kept.iter().filter(|n| self.bins.get(**n).is_some_and(|b| b.size == size.name)).count();
                u32::try_from(there).unwrap_or(u32::MAX)
            });
            if new.is_some_and(|new| is_within_cap(policy, self.price(&kept) + new)) {
                break;
            }
            kept.pop();
        }
        kept
    }

    /// The price of these bins.
    fn price(&self, bins: &[usize]) -> Usd {
        bins.iter().filter_map(|n| self.bins.get(*n)).map(|b| b.price_per_hour).sum()
    }

    /// How many there are of this size.
    fn of_size(&self, size: &Size) -> u32 {
        self.by_size.get(&size.name).copied().unwrap_or(0)
    }

    /// Whether there are as many of this size as it allows.
    pub(super) fn is_full(&self, size: &Size) -> bool {
        size.max.is_some_and(|most| self.of_size(size) >= most)
    }

    /// Whether so many further nodes at this price are beyond a cap that holds for all sizes, as long
    /// as what is leaving has not left.
    fn is_capped(&self, nodes: u32, price: Usd) -> bool {
        let policy = &self.view.seen.policy;
        self.records.saturating_add(nodes) > policy.nodes.max || !is_within_cap(policy, self.spent + price)
    }

    /// What of the room for so many nodes at this price is missing once all that is leaving is gone.
    pub(super) fn missing_room(&self, nodes: u32, price: Usd) -> Room {
        let policy = &self.view.seen.policy.nodes;
        let (leaving, refund) = self.leaving;
        let records = self.records.saturating_sub(leaving).saturating_add(nodes);
        let cap = policy.max_price_per_hour;
        let spent = self.spent.less(refund) + price;
        Room {
            nodes: records.saturating_sub(policy.max),
            price: if cap.is_zero() { Usd::ZERO } else { spent.less(cap) },
        }
    }
}
