//! What a cap is in the way of: what is kept for the first job that waits for room, and which idle
//! nodes make way for it.
//!
//! Guarantees: a job that a cap holds up keeps no more than lets it find the rest one day; room is
//! counted missing only where `nodes.max` or the price is in the way, and without what leaves
//! already; where a size's own maximum is, idle nodes of that size that do not fit make way.
//! Does not: launch (the packing does) or shut down (`shutdown` does, within its own rules).

use super::{At, Bin, Packing};
use crate::plan::sizes::{fits, fitting, usable};
use shared::ids::NodeId;
use shared::model::{JobSummary, Usd};
use shared::policy::Size;
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

impl Packing<'_, '_> {
    /// The first job that cannot be placed keeps what it found, as far as the caps let it find the
    /// rest one day (of what it would have launched, from the bin `first_new` on, the rest is taken
    /// back), and enough further nodes are kept free of later jobs to make room: those that would fit
    /// it when empty first.
    pub(super) fn block(&mut self, job: &JobSummary, found: &[usize], members: u32, first_new: usize) {
        let kept = self.within_caps(job, found, members);
        let launched = kept.iter().filter(|n| **n >= first_new).count();
        self.undo_launches(first_new.saturating_add(launched));
        let found: Vec<usize> = found.iter().copied().filter(|n| *n < self.bins.len()).collect();
        let lacking = members.saturating_sub(kept.len().try_into().unwrap_or(u32::MAX));
        let sizes = fitting(&self.view.seen.policy, job);
        let price = self.cheapest(&sizes, &kept, lacking).unwrap_or(Usd::ZERO);
        // Where only a size's own maximum is in the way, room below the others is no help.
        self.room = self.is_capped(lacking, price).then(|| self.missing_room(lacking, price));
        self.keep(job, &kept);
        for n in &found {
            if let Some(bin) = self.bins.get_mut(*n) {
                bin.blocked = true;
            }
        }
        self.outgrown = self.outgrown(job, &sizes, lacking);
        // What is busy with another's work empties for nobody here.
        let foreign = |b: &Bin| b.taken && b.empty;
        let is_other = |n: &usize| !found.contains(n) && self.bins.get(*n).is_some_and(|b| !foreign(b));
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
        if self.room.is_some() {
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
        let bins = self.bins.iter().filter(|b| b.empty && full(b) && !self.would_fit(b, job));
        let ready = bins.filter_map(|b| match b.at {
            At::Ready(node) => Some(node),
            _ => None,
        });
        ready.take(lacking as usize).collect()
    }

    /// Of what was found, the cheapest nodes that leave the price for the rest: a job of many that
    /// kept dear nodes idle could wait for ever for a price that only they stand in the way of.
    fn within_caps(&self, job: &JobSummary, found: &[usize], members: u32) -> Vec<usize> {
        let policy = &self.view.seen.policy;
        let cap = policy.nodes.max_price_per_hour;
        let sizes = fitting(policy, job);
        let mut kept = found.to_vec();
        // New ones are the cheapest there are.
        kept.sort_by_key(|n| self.bins.get(*n).map(|b| (!matches!(b.at, At::New(_)), b.price_per_hour)));
        while !cap.is_zero() && !kept.is_empty() {
            let price = kept.iter().filter_map(|n| self.bins.get(*n)).map(|b| b.price_per_hour).sum::<Usd>();
            let rest = members.saturating_sub(kept.len().try_into().unwrap_or(u32::MAX));
            if self.cheapest(&sizes, &kept, rest).is_some_and(|new| price + new <= cap) {
                break;
            }
            kept.pop();
        }
        kept
    }

    /// The price of so many further nodes of these sizes beside these bins.
    fn cheapest(&self, sizes: &[&Size], beside: &[usize], nodes: u32) -> Option<Usd> {
        cheapest(sizes, nodes, |size| {
            let there = beside.iter().filter(|n| self.bins.get(**n).is_some_and(|b| b.size == size.name)).count();
            u32::try_from(there).unwrap_or(u32::MAX)
        })
    }

    /// Whether there are as many of this size as it allows.
    pub(super) fn is_full(&self, size: &Size) -> bool {
        size.max.is_some_and(|most| self.by_size.get(&size.name).copied().unwrap_or(0) >= most)
    }

    /// Whether so many further nodes at this price are beyond a cap that holds for all sizes, as long
    /// as what is leaving has not left.
    fn is_capped(&self, nodes: u32, price: Usd) -> bool {
        let policy = &self.view.seen.policy.nodes;
        let cap = policy.max_price_per_hour;
        self.records.saturating_add(nodes) > policy.max || (!cap.is_zero() && self.spent + price > cap)
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
