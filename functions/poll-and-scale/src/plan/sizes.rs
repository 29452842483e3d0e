//! Which sizes fit a job, in which order they are tried, and which offerings may be launched now.
//!
//! Guarantees: the cheapest size comes first; at equal price the one with more memory, then by name; of reserved ones the
//! smallest first.
//! Does not: count nodes or prices; the packing does.

use super::view::View;
use model::policy::Size;
use model::{
    Arch, Capacity, CapacityReservation, Catalogue, JobSummary, Limit, Market, MarketNeed, Offering, Policy, Reason,
    Span, Usd,
};
use std::collections::BTreeSet;

/// The sizes of a policy. Each method gives them in the order to try them.
pub(super) struct Sizes<'a> {
    sorted: Vec<(&'a Size, Capacity)>,
    /// The architecture of work that names none.
    pub(super) default_arch: Arch,
}

impl<'a> Sizes<'a> {
    pub(super) fn new(policy: &'a Policy) -> Self {
        let mut sorted: Vec<_> = policy.size.iter().map(|size| (size, policy.usable(size.capacity))).collect();
        sorted.sort_by(|(a, _), (b, _)| order(a).cmp(&order(b)));
        Self { sorted, default_arch: policy.default_arch() }
    }

    /// Every size that work without GPUs may have.
    pub(super) fn all(&self) -> Vec<&'a Size> {
        self.sorted.iter().map(|(size, _)| *size).filter(|size| is_for(size, 0)).collect()
    }

    pub(super) fn named(&self, name: &str) -> Vec<&'a Size> {
        self.sorted.iter().map(|(size, _)| *size).filter(|size| size.name == name).collect()
    }

    /// The sizes with the capacity that the job takes whose machines meet its need.
    pub(super) fn fitting(&self, job: &JobSummary) -> Vec<&'a Size> {
        let (takes, need) = (job.needs.capacity(), &job.needs.machine);
        let is_fitting =
            |size, usable| is_for(size, takes.gpus) && size.offers(takes, need, (usable, self.default_arch));
        let fit = self.sorted.iter().filter(|(size, usable)| is_fitting(size, *usable));
        let mut fit: Vec<&Size> = fit.map(|(size, _)| *size).collect();
        // The size that is the cheapest on the spot market need not be the cheapest on demand.
        if need.market == Some(MarketNeed::OnDemand) {
            fit.sort_by_key(|size| size.price_for(need.market));
        }
        fit
    }
}

/// Whether work that needs this many GPUs may have this size. Reserved machines cost nothing. Without this rule every job would
/// go to those with GPUs first, and jobs that need GPUs would find none.
fn is_for(size: &Size, gpus: u32) -> bool {
    size.reservation.is_none() || size.capacity.gpus == 0 || gpus > 0
}

/// Why no machine may be launched in the capacity reservation of a size; `None` if one may. `free`: the machines left in it.
pub(super) fn closed(view: &View<'_>, size: &Size, free: u32) -> Option<Reason> {
    let reservation = size.reservation.as_ref()?.id.clone();
    let known = view.observed.policy.catalogue.reservations.get(&reservation)?;
    let lead = Span::from_s(view.observed.policy.launch.reservation_drain_s);
    if let Some(until) = known.until().filter(|until| view.now >= *until - lead) {
        return Some(Reason::ReservationEnding { reservation, until });
    }
    (free == 0).then_some(Reason::ReservationUsed { reservation, total: known.total })
}

/// The order to try sizes: the cheapest first, then the one with more memory, then by name. All reserved sizes
/// cost nothing, so the smallest of them comes first.
fn order(size: &Size) -> impl Ord + use<'_> {
    let Capacity { vcpus, memory_mib, .. } = size.capacity;
    let smallest = size.reservation.as_ref().map(|_| (vcpus, memory_mib));
    (size.price_per_hour, smallest, std::cmp::Reverse(memory_mib), size.name.as_str())
}

/// The offerings of a size that may be launched now: those of [`every_offering`] that no limit covers, in subnets with
/// free addresses.
pub(super) fn offerings(view: &View<'_>, size: &Size, asked: Option<MarketNeed>) -> Vec<Offering> {
    let mut offerings = every_offering(&view.observed.policy, size, asked);
    offerings.retain(|o| view.limit_on(o).is_none() && full_subnet(view, o).is_none());
    offerings
}

/// Why offerings of a size may not be launched now: each reason once.
pub(super) fn refusals(view: &View<'_>, size: &Size, asked: Option<MarketNeed>) -> Vec<Reason> {
    let every = every_offering(&view.observed.policy, size, asked);
    let is_met = |limit: &&Limit| every.iter().any(|o| view.limit_on(o) == Some(*limit));
    let limits = view.limits.iter().filter(is_met).map(|limit| limit.reason(view.now));
    let full: BTreeSet<&str> = every.iter().filter_map(|o| full_subnet(view, o)).collect();
    limits.chain(full.into_iter().map(|subnet| Reason::NoFreeAddress { subnet: subnet.to_owned() })).collect()
}

/// The subnet of an offering, if it had no free address when EC2 was last asked.
fn full_subnet<'o>(view: &View<'_>, offering: &'o Offering) -> Option<&'o str> {
    let subnet = offering.subnet_id.as_deref()?;
    view.observed.policy.catalogue.subnets.get(subnet).filter(|known| known.free == 0).map(|_| subnet)
}

/// What a machine of this size costs; `None` if the zone does not have it, or the price is not known.
fn price(catalogue: &Catalogue, size: &Size, market: Market, zone: Option<&str>) -> Option<Usd> {
    let Some(reserved) = &size.reservation else { return size.price_in(market, zone) };
    let is_there = |it: &CapacityReservation| zone.is_none_or(|zone| zone == it.zone);
    catalogue.reservations.get(&reserved.id).filter(|it| is_there(it)).map(|_| Usd::ZERO)
}

/// The offerings of a size: in each subnet, and then on demand if the size may fall back. `asked` is the market that the
/// job asks for.
pub(crate) fn every_offering(policy: &Policy, size: &Size, asked: Option<MarketNeed>) -> Vec<Offering> {
    let template = size.template.as_deref().or(policy.launch.template.as_deref()).unwrap_or_default();
    let (template, version) = split_version(template);
    let (subnets, mut found) = (subnets(policy), Vec::new());
    for market in size.markets(asked).iter().copied() {
        for subnet in &subnets {
            let zone = subnet.and_then(|id| policy.catalogue.zone_of(id));
            let Some(price_per_hour) = price(&policy.catalogue, size, market, zone) else { continue };
            found.push(Offering {
                size: size.name.clone(),
                instance_type: size.instance_type.clone(),
                market,
                reservation: size.reservation.clone(),
                subnet_id: subnet.cloned(),
                zone: zone.map(str::to_owned),
                template: template.to_owned(),
                template_version: version,
                price_per_hour,
                capacity: size.capacity,
                kind: size.kind.clone(),
            });
        }
    }
    found
}

/// The subnets in the order to try them: as the policy lists them, but of one zone the one with the most free addresses first,
/// because a launch call names only the first of them. `None`: the template names the subnet.
fn subnets(policy: &Policy) -> Vec<Option<&String>> {
    let (listed, known) = (&policy.launch.subnets, &policy.catalogue.subnets);
    let zone = |id: &String| policy.catalogue.zone_of(id);
    let is_beside = |a: &String, b: &String| a == b || zone(a).is_some_and(|of| zone(b) == Some(of));
    let mut sorted: Vec<&String> = listed.iter().collect();
    sorted.sort_by_cached_key(|id| {
        let first = listed.iter().position(|other| is_beside(id, other));
        (first, std::cmp::Reverse(known.get(*id).map(|subnet| subnet.free)))
    });
    if sorted.is_empty() { vec![None] } else { sorted.into_iter().map(Some).collect() }
}

/// Splits the version off a template's name: `name:7` is version 7 of `name`.
fn split_version(template: &str) -> (&str, Option<u64>) {
    match template.rsplit_once(':').and_then(|(name, v)| Some((name, v.parse().ok()?))) {
        Some((name, version)) => (name, Some(version)),
        None => (template, None),
    }
}
