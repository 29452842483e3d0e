//! What a cap is in the way of: what is kept for the first job that waits for room, and which idle
//! nodes make way for it.
//!
//! Guarantees: a job that a cap holds up keeps no more than lets it find the rest one day, and pays
//! for no half of itself; what it lacks is no later job's, as far as it can be had; room is counted
//! missing only where `nodes.max` or the price is in the way of all of it, and without what leaves
//! already; where a size's own maximum is, idle nodes of that size that it does not keep make way.
//! Does not: launch (the packing does) or shut down (`shutdown` does, within its own rules).

use super::super::sizes::{fits, fitting, offerings, usable};
use super::bins::{At, Bin};
use super::packing::Packing;
use super::prices::{Room, cheapest, is_within_cap, mix};
use model::ids::NodeId;
use model::policy::Size;
use model::{JobSummary, Market, Usd};

impl Packing<'_, '_> {
    /// The first job that cannot be placed keeps of the nodes it found what the caps let it find the
    /// rest to one day, and what it lacks is reserved for it. What it would have launched, from the bin
    /// `first_new` on, is taken back: half of it would be paid for, idle, until there is room for the
    /// rest.
    pub(super) fn block(&mut self, job: &JobSummary, found: &[usize], members: u32, first_new: usize) {
        self.undo_launches(first_new);
        let found: Vec<usize> = found.iter().copied().filter(|n| *n < self.bins.len()).collect();
        let policy = &self.view.seen.policy;
        let ever = fitting(policy, job);
        // Room is no help to a size that EC2 does not have now.
        let to_be_had = |s: &&Size| !offerings(self.view, s, job.market != Some(Market::Spot)).is_empty();
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

    /// Room for so many nodes of these sizes is no later job's; and if all of it can be had, what is in its
    /// way makes way. (If some of it hangs on a size that is full of others' work, the end of that work is
    /// what is waited for: nobody need make way before.)
    fn reserve(&mut self, sizes: &[&Size], lacking: u32, beside: Usd) {
        let cap = self.view.seen.policy.nodes.max_price_per_hour;
        let within = (!cap.is_zero()).then(|| cap.saturating_sub(beside));
        // What is idle and not kept may leave a size's maximum to others.
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

    /// How many of this size there are that do not leave already.
    fn staying(&self, size: &Size) -> u32 {
        self.of_size(size).saturating_sub(self.leaving_by_size.get(&size.name).copied().unwrap_or(0))
    }

    /// The idle nodes of this size, the dearest first.
    fn idle_of(&self, size: &Size) -> Vec<NodeId> {
        let mut idle: Vec<&Bin> = self.bins.iter().filter(|b| b.is_idle() && b.size == size.name).collect();
        idle.sort_by_key(|b| std::cmp::Reverse(b.price_per_hour));
        let ready = |b: &Bin| if let At::Ready(node) = b.at { Some(node) } else { None };
        idle.into_iter().filter_map(ready).collect()
    }

    /// The nodes it found are no later job's, nor so many others that they make up for what it lacks: as
    /// nodes to run on, those first that would fit it when empty, or as room.
    pub(super) fn keep_free(&mut self, job: &JobSummary, found: &[usize], members: u32) {
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

    /// Whether a node would fit a job's member if nothing were on it.
    fn would_fit(&self, bin: &Bin, job: &JobSummary) -> bool {
        let (At::Ready(node) | At::Booting(node)) = bin.at else { return false };
        let share = self.view.seen.policy.nodes.memory_usable;
        let life = self.view.node(node).and_then(|r| r.life());
        life.is_some_and(|l| fits(job.capacity, usable(l.offering.capacity, share)) && bin.is_kind(job))
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

    /// Whether there are as many of this size as it allows, reserved ones included.
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
        let spent = self.spent.saturating_sub(refund) + price;
        Room {
            nodes: records.saturating_sub(policy.max),
            price: if cap.is_zero() { Usd::ZERO } else { spent.saturating_sub(cap) },
        }
    }
}
