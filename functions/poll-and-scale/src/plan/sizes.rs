//! Which sizes fit a job, in which order they are tried, and which offerings may be launched now.
//!
//! Guarantees: the cheapest size comes first; at equal price the one with more memory, then by name.
//! Does not: count nodes or prices; the packing does.

use super::view::View;
use model::limits::Limit;
use model::policy::{Fallback, Policy, Size};
use model::reason::Reason;
use model::{Arch, Capacity, JobSummary, Machine, MachineNeed, Market, MarketNeed, Offering, Usd};
use std::collections::BTreeSet;

/// The sizes of a policy, in the order to try them.
pub(super) struct Sizes<'a> {
    policy: &'a Policy,
    sorted: Vec<(&'a Size, Capacity)>,
    /// The architecture of work that names none.
    pub(super) default_arch: Arch,
}

impl<'a> Sizes<'a> {
    pub(super) fn new(policy: &'a Policy) -> Self {
        let mut sorted: Vec<_> = policy.size.iter().map(|size| (size, policy.usable(size.capacity))).collect();
        sorted.sort_by(|(a, _), (b, _)| order(a).cmp(&order(b)));
        Self { policy, sorted, default_arch: policy.default_arch() }
    }

    pub(super) fn all(&self) -> Vec<&'a Size> {
        self.sorted.iter().map(|(size, _)| *size).collect()
    }

    /// The sizes that fit a job, in the order to try them.
    pub(super) fn fitting(&self, job: &JobSummary) -> Vec<&'a Size> {
        self.offering(job.needs.capacity(), &job.needs.machine)
    }

    /// The sizes that offer this, in the order to try them.
    pub(super) fn offering(&self, takes: Capacity, need: &MachineNeed) -> Vec<&'a Size> {
        let fit = self.sorted.iter().filter(|(size, usable)| self.machine(size).fits(takes, need, *usable));
        fit.map(|(size, _)| *size).collect()
    }

    /// A machine of this size.
    pub(super) fn machine(&self, size: &'a Size) -> Machine<'a> {
        size.machine(self.default_arch)
    }

    /// Why no size fits.
    pub(super) fn none_fits(&self, takes: Capacity, need: &MachineNeed) -> Reason {
        self.policy.none_fits(takes, need)
    }
}

/// The order to try sizes: the cheapest first; at equal price more memory, then by name.
fn order(size: &Size) -> impl Ord + use<'_> {
    (size.price_per_hour, std::cmp::Reverse(size.capacity.memory_mib), size.name.as_str())
}

/// The offerings of a size that may be launched now: those of [`every_offering`] that no limit covers, in subnets with
/// free addresses.
pub(super) fn offerings(view: &View<'_>, size: &Size, asked: Option<MarketNeed>) -> Vec<Offering> {
    let mut offerings = every_offering(view, size, asked);
    offerings.retain(|o| view.limit_on(o).is_none() && full_subnet(view, o).is_none());
    offerings
}

/// Why offerings of a size may not be launched now: each reason once.
pub(super) fn refusals(view: &View<'_>, size: &Size, asked: Option<MarketNeed>) -> Vec<Reason> {
    let every = every_offering(view, size, asked);
    let is_met = |limit: &&Limit| every.iter().any(|o| view.limit_on(o) == Some(*limit));
    let limits = view.limits.iter().filter(is_met).map(|limit| limit.reason(view.now));
    let full: BTreeSet<&str> = every.iter().filter_map(|o| full_subnet(view, o)).collect();
    limits.chain(full.into_iter().map(|subnet| Reason::NoFreeAddress { subnet: subnet.to_owned() })).collect()
}

/// The subnet of an offering, if it had no free address when EC2 was last asked.
fn full_subnet<'o>(view: &View<'_>, offering: &'o Offering) -> Option<&'o str> {
    let subnet = offering.subnet_id.as_deref()?;
    view.seen.policy.catalogue.subnets.get(subnet).filter(|known| known.free == 0).map(|_| subnet)
}

/// What a machine of this size costs; `None` if the zone does not have it, or the price is not known.
fn price(size: &Size, market: Market, zone: Option<&str>) -> Option<Usd> {
    match &size.offered {
        None => Some(size.price_per_hour),
        Some(offered) if zone.is_none_or(|zone| offered.zones.contains(zone)) => offered.price_in(market, zone),
        Some(_) => None,
    }
}

/// The offerings of a size: in each subnet, and then on demand if the size may fall back. `asked` is the market that the
/// job asks for; a size never falls back for a job that asks for spot, and always for one that asks for spot first.
pub(super) fn every_offering(view: &View<'_>, size: &Size, asked: Option<MarketNeed>) -> Vec<Offering> {
    let policy = &view.seen.policy;
    let may_fall_back = size.fallback == Fallback::OnDemand && asked != Some(MarketNeed::Spot);
    let markets: &[Market] = match size.market {
        Market::Spot if may_fall_back || asked == Some(MarketNeed::SpotFirst) => &[Market::Spot, Market::OnDemand],
        Market::Spot => &[Market::Spot],
        // A size of one type has no price on the spot market.
        Market::OnDemand if asked == Some(MarketNeed::SpotFirst) && size.offered.is_some() => {
            &[Market::Spot, Market::OnDemand]
        }
        Market::OnDemand => &[Market::OnDemand],
    };
    let template = size.template.as_deref().or(policy.launch.template.as_deref()).unwrap_or_default();
    let (template, version) = split_version(template);
    let subnets: Vec<Option<&String>> =
        if policy.launch.subnets.is_empty() { vec![None] } else { policy.launch.subnets.iter().map(Some).collect() };
    let mut found = Vec::new();
    for market in markets.iter().copied() {
        for subnet in &subnets {
            let zone = subnet.and_then(|id| policy.catalogue.zone_of(id));
            let Some(price_per_hour) = price(size, market, zone) else { continue };
            found.push(Offering {
                size: size.name.clone(),
                instance_type: size.instance_type.clone(),
                market,
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

/// Splits the version off a template's name: `name:7` is version 7 of `name`.
fn split_version(template: &str) -> (&str, Option<u64>) {
    match template.rsplit_once(':').and_then(|(name, v)| Some((name, v.parse().ok()?))) {
        Some((name, version)) => (name, Some(version)),
        None => (template, None),
    }
}
