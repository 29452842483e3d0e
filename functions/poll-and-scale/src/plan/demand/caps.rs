//! The first job that waits because of a cap: what is kept for it, and which idle nodes must make room for it.
//!
//! Guarantees: the job keeps nodes only as long as the caps still allow nodes for the rest of its members; no nodes are
//! launched for a part of its members; later jobs cannot take the room for that rest, if EC2 has nodes for it now; idle
//! nodes must make room only if `nodes.max` or the price cap does not allow nodes for that rest, not counting nodes
//! that are already shutting down; if the maximum of a size is reached, idle nodes of that size must make room.
//! Does not: launch (the packing does) or shut down (`shutdown` does, by its own rules).

use super::super::sizes::{closed, offerings};
use super::bin::{At, Bin};
use super::packing::Packing;
use super::prices::{SizesFor, cheapest, is_within_cap, mix};
use model::policy::Size;
use model::{JobSummary, MarketNeed, NodeId, Reason, Usd};
use std::collections::{BTreeMap, BTreeSet};

impl<'a> Packing<'_, 'a> {
    /// Reserves for the first job that cannot be placed. The job keeps the found nodes with which the caps still allow
    /// nodes for the rest of its members, and room for that rest is reserved. The job's launches, from the bin
    /// `first_new` on, are taken back: otherwise the new nodes would cost money while they wait for the rest.
    /// Returns how many nodes the job keeps.
    pub(super) fn block(&mut self, job: &'a JobSummary, found: &[usize], members: u32, first_new: usize) -> usize {
        self.undo_launches(first_new);
        let found: Vec<usize> = found.iter().copied().filter(|n| *n < self.bins.len()).collect();
        let policy = &self.view.observed.policy;
        let (ever, asked) = (self.sizes.fitting(job), job.needs.machine.market);
        // Room does not help a size for which EC2 has no capacity now.
        let to_be_had = |s: &&Size| self.is_to_be_had(s, asked);
        let now: Vec<&'a Size> = ever.iter().copied().filter(to_be_had).collect();
        let can_be_had = cheapest((&now, asked), members, |_| 0, |size| self.free_of(size))
            .is_some_and(|price| is_within_cap(policy, price));
        let kept = self.within_caps((if can_be_had { &now } else { &ever }, asked), &found, members);
        self.keep(job, &kept);
        if can_be_had {
            let lacking = members.saturating_sub(kept.len().try_into().unwrap_or(u32::MAX));
            self.reserve((&now, asked), lacking, self.price(&kept));
            let makes_room = self.findings.room.is_some() || !self.findings.outgrown.is_empty();
            self.findings.room_for = makes_room.then_some(job.job_id);
        }
        self.keep_free(job, &found, members);
        kept.len()
    }

    /// Reserves room for `lacking` nodes of these sizes. `beside` is the price of the nodes that the job keeps. If
    /// there can be room for all of them, the idle nodes that take up this room are marked for shutdown. If a size is
    /// full of nodes with work, the job waits until that work ends, and no idle node is shut down for it before that.
    fn reserve(&mut self, of: SizesFor<'_, 'a>, lacking: u32, beside: Usd) {
        let cap = self.view.observed.policy.nodes.max_price_per_hour;
        let within = (!cap.is_zero()).then(|| cap.saturating_sub(beside));
        // Idle nodes that are not kept do not count for the maximum of a size, because they can be shut down.
        let there = |size: &Size| {
            self.counts.staying(size).saturating_sub(self.idle_of(size).len().try_into().unwrap_or(u32::MAX))
        };
        let mix = mix(of, lacking, there, |size| self.free_of(size), within);
        if mix.nodes == lacking {
            for (size, some, _) in &mix.of {
                let over = self.counts.staying(size).saturating_add(*some).saturating_sub(size.max.unwrap_or(u32::MAX));
                let idle = self.idle_of(size);
                self.findings.outgrown.extend(idle.into_iter().take(over as usize));
            }
            if self.counts.is_capped(mix.nodes, mix.price) {
                self.findings.room = Some(self.counts.missing_room(mix.nodes, mix.price));
            }
        }
        self.counts.reserve(mix);
    }

    /// The most expensive first.
    fn idle_of(&self, size: &Size) -> Vec<NodeId> {
        let mut idle: Vec<&Bin<'_>> = self.bins.iter().filter(|b| b.is_idle() && b.size == size.name).collect();
        idle.sort_by_key(|b| std::cmp::Reverse(b.price_per_hour));
        let ready = |b: &Bin<'_>| if let At::Ready(node) = b.at { Some(node) } else { None };
        idle.into_iter().filter_map(ready).collect()
    }

    /// Keeps later jobs off the nodes that the job found, and off enough other nodes for the members without one: the job will
    /// run on such a node, or the shutdown of the node makes room. Nodes that would fit the job when empty come first.
    pub(super) fn keep_free(&mut self, job: &JobSummary, found: &[usize], members: u32) {
        // A node that another scheduler keeps busy does not become free for this job. A node that would not fit the job
        // is left to later jobs, unless its shutdown makes room.
        let helps = |b: &Bin<'_>| {
            let makes_way = self.findings.room.is_some()
                || matches!(b.at, At::Ready(node) if self.findings.outgrown.contains(&node));
            let foreign = b.busy && b.empty;
            !foreign && (makes_way || b.would_fit(job))
        };
        let is_found: BTreeSet<usize> = found.iter().copied().collect();
        let others = self.bins.to_keep_free(job, |n, bin| !is_found.contains(&n) && helps(bin));
        let lacking = (members as usize).saturating_sub(found.len());
        let room = self.findings.room.unwrap_or_default();
        let (mut nodes, mut price) = (0, Usd::ZERO);
        found.iter().for_each(|n| self.bins.block(*n));
        for (before, n) in others.into_iter().enumerate() {
            if before >= lacking && nodes >= room.nodes && price >= room.price {
                break;
            }
            self.bins.block(n);
            nodes += 1;
            price = price + self.price(&[n]);
        }
    }

    /// The cheapest of the found nodes that leave enough of the price cap for the rest of the members. If a job of many members
    /// kept expensive nodes, those could use up the cap, and the job would wait for ever.
    fn within_caps(&self, of: SizesFor<'_, '_>, found: &[usize], members: u32) -> Vec<usize> {
        let policy = &self.view.observed.policy;
        let mut kept = found.to_vec();
        kept.sort_by_key(|n| self.bins.get(*n).map(|b| b.price_per_hour));
        let mut spent = self.price(&kept);
        let mut of_size: BTreeMap<&str, u32> = BTreeMap::new();
        for bin in kept.iter().filter_map(|n| self.bins.get(*n)) {
            *of_size.entry(bin.size).or_default() += 1;
        }
        while let Some(dearest) = kept.last() {
            let rest = members.saturating_sub(kept.len().try_into().unwrap_or(u32::MAX));
            let there = |size: &Size| of_size.get(size.name.as_str()).copied().unwrap_or(0);
            let new = cheapest(of, rest, there, |size| self.free_of(size));
            if new.is_some_and(|new| is_within_cap(policy, spent + new)) {
                break;
            }
            if let Some(bin) = self.bins.get(*dearest) {
                spent = spent.saturating_sub(bin.price_per_hour);
                if let Some(count) = of_size.get_mut(bin.size) {
                    *count = count.saturating_sub(1);
                }
            }
            kept.pop();
        }
        kept
    }

    /// Whether EC2 launches this size now, as far as is known.
    pub(super) fn is_to_be_had(&self, size: &Size, asked: Option<MarketNeed>) -> bool {
        self.closed(size).is_none() && !offerings(self.view, size, asked).is_empty()
    }

    /// Why no machine may be launched in the capacity reservation of this size; `None` if one may, or if it has none.
    pub(super) fn closed(&self, size: &Size) -> Option<Reason> {
        closed(self.view, size, self.counts.free_in_reservation(size))
    }

    fn free_of(&self, size: &Size) -> u32 {
        if self.closed(size).is_some() { 0 } else { self.counts.free_in_reservation(size) }
    }

    fn price(&self, bins: &[usize]) -> Usd {
        bins.iter().filter_map(|n| self.bins.get(*n)).map(|b| b.price_per_hour).sum()
    }
}
