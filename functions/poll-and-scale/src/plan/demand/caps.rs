//! The first job that a cap makes wait: what is kept for it, and which idle nodes make way for it.
//!
//! Guarantees: the job keeps only as many nodes as leave the caps enough for the rest of its members; no
//! nodes are launched for a part of its members; later jobs cannot take what it lacks, as far as EC2 has it;
//! idle nodes make way only if `nodes.max` or the price cap does not allow all that it lacks, counted without
//! the nodes that are shutting down already; if the maximum of a size is in the way, idle nodes of that size
//! make way.
//! Does not: launch (the packing does) or shut down (`shutdown` does, by its own rules).

use super::super::sizes::{fits, fitting, offerings, usable};
use super::bins::{At, Bin};
use super::packing::Packing;
use super::prices::{Room, cheapest, is_within_cap, mix};
use model::ids::NodeId;
use model::policy::Size;
use model::{JobSummary, Usd};

impl Packing<'_, '_> {
    /// Reserves for the first job that cannot be placed. Of the nodes that it found, it keeps those that leave the
    /// caps enough for the rest of its members; what it lacks is reserved. Its launches, from the bin `first_new`
    /// on, are taken back: otherwise some nodes would be paid for, idle, until there is room for the rest.
    pub(super) fn block(&mut self, job: &JobSummary, found: &[usize], members: u32, first_new: usize) {
        self.undo_launches(first_new);
        let found: Vec<usize> = found.iter().copied().filter(|n| *n < self.bins.len()).collect();
        let policy = &self.view.seen.policy;
        let ever = fitting(policy, job);
        // Making room does not help a size that EC2 does not have now.
        let to_be_had = |s: &&Size| !offerings(self.view, s, job.market).is_empty();
        let now: Vec<&Size> = ever.iter().copied().filter(to_be_had).collect();
        let can_be_had = cheapest(&now, members, |_| 0).is_some_and(|price| is_within_cap(policy, price));
        let kept = self.within_caps(if can_be_had { &now } else { &ever }, &found, members);
        self.keep(job, &kept);
        if can_be_had {
            let lacking = members.saturating_sub(kept.len().try_into().unwrap_or(u32::MAX));
            self.reserve(&now, lacking, self.price(&kept));
        }
        self.keep_free(job, &found, members);
    }

    /// Reserves room for `lacking` nodes of these sizes, `beside` being the price of the nodes that the job keeps.
    /// If room can be made for all of them, the idle nodes that are in the way are marked to make way. If a size is
    /// full of nodes with work, the job waits for the end of that work, and no node needs to make way before.
    fn reserve(&mut self, sizes: &[&Size], lacking: u32, beside: Usd) {
        let cap = self.view.seen.policy.nodes.max_price_per_hour;
        let within = (!cap.is_zero()).then(|| cap.saturating_sub(beside));
        // Idle nodes that are not kept do not count for the maximum of a size, because they can make way.
        let there =
            |size: &Size| self.staying(size).saturating_sub(self.idle_of(size).len().try_into().unwrap_or(u32::MAX));
        let mix = mix(sizes, lacking, there, within);
        if mix.nodes == lacking {
            for (size, some) in &mix.of {
                let over = self.staying(size).saturating_add(*some).saturating_sub(size.max.unwrap_or(u32::MAX));
                let idle = self.idle_of(size);
                self.outgrown.extend(idle.into_iter().take(over as usize));
            }
            if self.is_capped(mix.nodes, mix.price) {
                self.room = Some(self.missing_room(mix.nodes, mix.price));
            }
        }
        self.reserved = mix.nodes > 0;
        self.records = self.records.saturating_add(mix.nodes);
        self.spent = self.spent + mix.price;
        for (size, some) in mix.of {
            let there = self.by_size.entry(size.name.clone()).or_default();
            *there = there.saturating_add(some);
        }
    }

    /// How many nodes of this size there are, without those that are shutting down.
    fn staying(&self, size: &Size) -> u32 {
        self.of_size(size).saturating_sub(self.leaving_by_size.get(&size.name).copied().unwrap_or(0))
    }

    /// The idle nodes of this size, the most expensive first.
    fn idle_of(&self, size: &Size) -> Vec<NodeId> {
        let mut idle: Vec<&Bin> = self.bins.iter().filter(|b| b.is_idle() && b.size == size.name).collect();
        idle.sort_by_key(|b| std::cmp::Reverse(b.price_per_hour));
        let ready = |b: &Bin| if let At::Ready(node) = b.at { Some(node) } else { None };
        idle.into_iter().filter_map(ready).collect()
    }

    /// Keeps later jobs off the nodes that the job found, and off as many others as replace what it lacks: as nodes
    /// to run on, or as room that they make. Nodes that would fit the job when empty come first.
    pub(super) fn keep_free(&mut self, job: &JobSummary, found: &[usize], members: u32) {
        // A node that another scheduler keeps busy does not become free for this job. A node that would not fit the
        // job is left to later jobs, unless it makes way.
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
        let lacking = (members as usize).saturating_sub(found.len());
        let room = self.room.unwrap_or_default();
        let (mut nodes, mut price) = (0, Usd::ZERO);
        for n in found {
            if let Some(bin) = self.bins.get_mut(*n) {
                bin.blocked = true;
            }
        }
        for (before, n) in others.into_iter().enumerate() {
            if before >= lacking && nodes >= room.nodes && price >= room.price {
                break;
            }
            if let Some(bin) = self.bins.get_mut(n) {
                bin.blocked = true;
                nodes += 1;
                price = price + bin.price_per_hour;
            }
        }
    }

    /// Whether a node would fit a member of the job if nothing were on it.
    fn would_fit(&self, bin: &Bin, job: &JobSummary) -> bool {
        let (At::Ready(node) | At::Booting(node)) = bin.at else { return false };
        let share = self.view.seen.policy.nodes.memory_usable;
        let life = self.view.node(node).and_then(|r| r.life());
        life.is_some_and(|l| fits(job.capacity, usable(l.offering.capacity, share)) && bin.is_kind(job))
    }

    /// Of the nodes found, the cheapest that leave enough of the price cap for the rest of the members. A job of many
    /// members that kept expensive nodes could wait for ever, because those nodes alone would use up the cap.
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

    /// How many nodes of this size there are, including launches and reserved ones.
    fn of_size(&self, size: &Size) -> u32 {
        self.by_size.get(&size.name).copied().unwrap_or(0)
    }

    /// Whether the size has reached its own maximum.
    pub(super) fn is_full(&self, size: &Size) -> bool {
        size.max.is_some_and(|most| self.of_size(size) >= most)
    }

    /// Whether `nodes` more nodes at this price exceed `nodes.max` or the price cap, as long as the nodes that are
    /// shutting down still count.
    fn is_capped(&self, nodes: u32, price: Usd) -> bool {
        let policy = &self.view.seen.policy;
        self.records.saturating_add(nodes) > policy.nodes.max || !is_within_cap(policy, self.spent + price)
    }

    /// The room that is still missing for `nodes` more nodes at this price after all nodes that are shutting down are
    /// gone.
    pub(super) fn missing_room(&self, nodes: u32, price: Usd) -> Room {
        let policy = &self.view.seen.policy.nodes;
        let (leaving, refund) = self.leaving;
        let records = self.records.saturating_sub(leaving).saturating_add(nodes);
        let cap = policy.max_price_per_hour;
        let spent = self.spent.saturating_sub(refund) + price;
        Room {
            nodes: records.saturating_sub(policy.max),
            price: if cap.is_zero() { Usd::ZERO } else { spent.saturating_sub(cap) },
        }
    }
}
