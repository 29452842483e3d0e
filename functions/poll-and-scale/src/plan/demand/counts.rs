//! What the caps of the policy count: nodes, their price, and how many of each size.
//!
//! Guarantees: every record that is not cleaned counts, as do the launches of this plan and what is reserved.
//! Does not: know jobs.

use super::super::needs::CapExcess;
use super::super::view::View;
use super::prices::{Mix, is_within_cap};
use model::policy::Size;
use model::{CataloguePart, Life, NodeRecord, NodeState, Policy, Reason, Usd};
use std::collections::BTreeMap;

/// A number of nodes, their price, and how many there are of each size.
#[derive(Debug, Default)]
pub(super) struct Count<'a> {
    pub(super) nodes: u32,
    pub(super) price: Usd,
    by_size: BTreeMap<&'a str, u32>,
}

impl<'a> Count<'a> {
    fn of_lives(lives: impl Iterator<Item = &'a Life>) -> Self {
        let mut count = Self::default();
        count.by_size = by_size(lives.map(|life| {
            count.nodes += 1;
            count.price = count.price + life.most_per_hour();
            life.offering.size.as_str()
        }));
        count
    }

    fn of(&self, size: &Size) -> u32 {
        self.by_size.get(size.name.as_str()).copied().unwrap_or(0)
    }

    fn add(&mut self, size: &'a Size, nodes: u32, price: Usd) {
        self.nodes = self.nodes.saturating_add(nodes);
        self.price = self.price + price;
        let of_size = self.by_size.entry(&size.name).or_default();
        *of_size = of_size.saturating_add(nodes);
    }

    fn remove(&mut self, size: &Size, price: Usd) {
        self.nodes = self.nodes.saturating_sub(1);
        self.price = self.price.saturating_sub(price);
        if let Some(of_size) = self.by_size.get_mut(size.name.as_str()) {
            *of_size = of_size.saturating_sub(1);
        }
    }
}

pub(super) struct FleetCounts<'a> {
    policy: &'a Policy,
    /// Why nothing is launched this month.
    budget_spent: Option<Reason>,
    /// The records that are not cleaned, with the launches of this plan and what is reserved.
    all: Count<'a>,
    /// The records that are shutting down.
    leaving: Count<'a>,
    /// The launches of this plan.
    new: Count<'a>,
    /// What is reserved for the first job that cannot be placed.
    pub(super) reserved: Count<'a>,
    /// The nodes in each zone, with the launches of this plan.
    zones: BTreeMap<String, u32>,
    /// How many machines are free in each capacity reservation: what EC2 reported, less the launches since then.
    free: BTreeMap<&'a str, u32>,
}

impl<'a> FleetCounts<'a> {
    pub(super) fn of(view: &View<'a>) -> Self {
        let leaves = |record: &NodeRecord| matches!(record.state, NodeState::ShuttingDown(_));
        let mut all = Count::of_lives(view.lives().map(|(_, life)| life));
        all.nodes = all.nodes.saturating_add(u32::try_from(view.observed.quarantined.slots.len()).unwrap_or(u32::MAX));
        let leaving = Count::of_lives(view.lives().filter(|(record, _)| leaves(record)).map(|(_, life)| life));
        let (policy, mut zones) = (&view.observed.policy, BTreeMap::new());
        if policy.launch.zone_share < 1.0 {
            for zone in view.lives().filter_map(|(_, life)| zone_of(policy, life)) {
                *zones.entry(zone.to_owned()).or_default() += 1;
            }
        }
        let budget_spent = policy.budget_spent(&view.observed.nodes, view.now);
        Self {
            policy,
            budget_spent,
            all,
            leaving,
            new: Count::default(),
            reserved: Count::default(),
            zones,
            free: free(view),
        }
    }

    /// How many machines of the capacity reservation of this size are free; 0 if it has none.
    pub(super) fn free_in_reservation(&self, size: &Size) -> u32 {
        size.reservation.as_ref().and_then(|reserved| self.free.get(reserved.id.as_str())).copied().unwrap_or(0)
    }

    /// Whether one more node in this zone would be more than `launch.zone_share` of the nodes. The share of a few nodes is
    /// rounded up, so that the first one can be launched.
    pub(super) fn is_zone_full(&self, zone: &str) -> bool {
        let share = self.policy.launch.zone_share;
        let there = self.zones.get(zone).copied().unwrap_or(0);
        share < 1.0 && f64::from(there) >= (share * f64::from(self.all.nodes.saturating_add(1))).ceil()
    }

    pub(super) fn launch(&mut self, size: &'a Size, zone: Option<&str>, price: Usd) {
        if let Some(zone) = zone {
            *self.zones.entry(zone.to_owned()).or_default() += 1;
        }
        if let Some(free) = size.reservation.as_ref().and_then(|reserved| self.free.get_mut(reserved.id.as_str())) {
            *free = free.saturating_sub(1);
        }
        self.all.add(size, 1, price);
        self.new.add(size, 1, price);
    }

    /// Undoes `launch`.
    pub(super) fn take_back(&mut self, size: &Size, zone: Option<&str>, price: Usd) {
        if let Some(there) = zone.and_then(|zone| self.zones.get_mut(zone)) {
            *there = there.saturating_sub(1);
        }
        if let Some(free) = size.reservation.as_ref().and_then(|reserved| self.free.get_mut(reserved.id.as_str())) {
            *free = free.saturating_add(1);
        }
        self.all.remove(size, price);
        self.new.remove(size, price);
    }

    pub(super) fn reserve(&mut self, mix: Mix<'a>) {
        for (size, nodes, price) in mix.of {
            let price = price.times(u64::from(nodes));
            self.all.add(size, nodes, price);
            self.reserved.add(size, nodes, price);
        }
    }

    /// The number of nodes of this size, without those that are shutting down.
    pub(super) fn staying(&self, size: &Size) -> u32 {
        self.all.of(size).saturating_sub(self.leaving.of(size))
    }

    /// Whether the size has reached its own maximum.
    pub(super) fn is_full(&self, size: &Size) -> bool {
        size.max.is_some_and(|most| self.all.of(size) >= most)
    }

    /// The cap that does not allow one more node of this size at this price, and whether it would allow the node without the
    /// reserved ones.
    pub(super) fn cap_on(&self, size: &Size, price: Usd) -> Option<(Reason, bool)> {
        let (policy, all, reserved) = (self.policy, &self.all, &self.reserved);
        let (max, cap) = (policy.nodes.max, policy.nodes.max_price_per_hour);
        if let Some(reason) = &self.budget_spent {
            return Some((reason.clone(), false));
        }
        if all.nodes >= max {
            let used = all.nodes.saturating_sub(reserved.nodes);
            let there = used.saturating_sub(self.new.nodes);
            let cap = if max == 0 { Reason::ClusterPaused {} } else { Reason::NodesMax { max, there } };
            return Some((cap, used < max));
        }
        if let Some(most) = size.max.filter(|most| all.of(size) >= *most) {
            let used = all.of(size).saturating_sub(reserved.of(size));
            let there = used.saturating_sub(self.new.of(size));
            return Some((Reason::SizeMaximum { size: size.name.clone(), max: most, there }, used < most));
        }
        if !is_within_cap(policy, all.price + price) {
            let spent = all.price.saturating_sub(reserved.price);
            return Some((Reason::PriceCap { spent, price, cap }, is_within_cap(policy, spent + price)));
        }
        None
    }

    /// Whether `nodes` more nodes at this price exceed `nodes.max` or the price cap. Nodes that are shutting down still
    /// count.
    pub(super) fn is_capped(&self, nodes: u32, price: Usd) -> bool {
        self.all.nodes.saturating_add(nodes) > self.policy.nodes.max
            || !is_within_cap(self.policy, self.all.price + price)
    }

    /// The room that is still missing for `nodes` more nodes at this price after all nodes that are shutting down are
    /// gone.
    pub(super) fn missing_room(&self, nodes: u32, price: Usd) -> CapExcess {
        let records = self.all.nodes.saturating_sub(self.leaving.nodes).saturating_add(nodes);
        let cap = self.policy.nodes.max_price_per_hour;
        let spent = self.all.price.saturating_sub(self.leaving.price) + price;
        CapExcess {
            nodes: records.saturating_sub(self.policy.nodes.max),
            price: if cap.is_zero() { Usd::ZERO } else { spent.saturating_sub(cap) },
        }
    }
}

/// How many machines are free in each capacity reservation. EC2's number may lack the latest launches.
fn free<'a>(view: &View<'a>) -> BTreeMap<&'a str, u32> {
    let catalogue = &view.observed.policy.catalogue;
    let mut free: BTreeMap<&str, u32> = catalogue.reservations.iter().map(|(id, of)| (id.as_str(), of.free)).collect();
    let Some(read_at) = catalogue.part(CataloguePart::Reservations).read_at.filter(|_| !free.is_empty()) else {
        return free;
    };
    for (_, life) in view.lives().filter(|(_, life)| life.launch_claim_until_at >= read_at) {
        let reserved = life.offering.reservation.as_ref();
        if let Some(free) = reserved.and_then(|reserved| free.get_mut(reserved.id.as_str())) {
            *free = free.saturating_sub(1);
        }
    }
    free
}

fn zone_of<'l>(policy: &'l Policy, life: &'l Life) -> Option<&'l str> {
    let Life { offering, .. } = life;
    offering.zone.as_deref().or_else(|| policy.catalogue.zone_of(offering.subnet_id.as_deref()?))
}

/// How many of each there are.
pub(super) fn by_size<'a>(sizes: impl Iterator<Item = &'a str>) -> BTreeMap<&'a str, u32> {
    let mut all = BTreeMap::new();
    for size in sizes {
        *all.entry(size).or_default() += 1;
    }
    all
}
