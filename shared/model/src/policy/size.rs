//! A size: one kind of machine to launch, or several instance types, by their names and by what is needed of them.
//!
//! Guarantees: a type is taken only if the catalogue has all that is needed of it, and knows a price of it; only
//! [`Size::markets`] says how a size may be bought, and only [`Size::offers`] whether work can ever get a machine of it.
//! Does not: ask EC2 which types there are ([`crate::catalogue`] has what EC2 answered), or say what a knob means or allows.

use crate::catalogue::Offered;
use crate::enums::{Arch, Fallback, Generation, Market, MarketNeed};
use crate::names::matches;
use crate::{Capacity, CapacityReservation, Machine, MachineKind, MachineNeed, Reserved, TypeFacts, Usd};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::sync::Arc;

/// `[[size]]` with `instance_type`: one kind of machine to launch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Size {
    pub name: String,
    pub instance_type: String,
    #[serde(flatten)]
    pub capacity: Capacity,
    #[serde(flatten)]
    pub kind: MachineKind,
    pub price_per_hour: Usd,
    pub market: Market,
    pub fallback: Fallback,
    pub max: Option<u32>,
    pub template: Option<String>,
    /// The type in the catalogue, if the size is one of several types; `None` if the policy itself describes the machine.
    #[serde(skip)]
    pub offered: Option<Arc<Offered>>,
    /// The capacity reservation in which its machines run. The policy has the same size without it too.
    #[serde(skip)]
    pub reservation: Option<Reserved>,
}

impl Size {
    /// Whether the size comes from the catalogue, and not from the document.
    pub const fn is_derived(&self) -> bool {
        self.offered.is_some() || self.reservation.is_some()
    }

    /// The same size in this capacity reservation, where it costs nothing more.
    pub(super) fn reserved(&self, id: &str, reservation: &CapacityReservation) -> Self {
        let reserved = Reserved { id: id.to_owned(), kind: reservation.kind };
        Self {
            price_per_hour: Usd::ZERO,
            market: Market::Reserved,
            fallback: Fallback::None,
            reservation: Some(reserved),
            ..self.clone()
        }
    }

    /// The markets in which a machine of this size may be bought for work that asks for `asked`, the first choice first. A size never
    /// falls back for work that asks for spot, and always for work that asks for spot first.
    pub fn markets(&self, asked: Option<MarketNeed>) -> &'static [Market] {
        let may_fall_back = self.fallback == Fallback::OnDemand;
        match (self.market, asked) {
            (Market::Reserved, _) => &[Market::Reserved],
            (Market::Spot, Some(MarketNeed::Spot)) => &[Market::Spot],
            (Market::Spot, Some(MarketNeed::OnDemand)) if may_fall_back => &[Market::OnDemand],
            (Market::Spot, Some(MarketNeed::SpotFirst)) => &[Market::Spot, Market::OnDemand],
            (Market::Spot, None) if may_fall_back => &[Market::Spot, Market::OnDemand],
            (Market::Spot, None) => &[Market::Spot],
            // A size of one type has no price on the spot market.
            (Market::OnDemand, Some(MarketNeed::SpotFirst)) if self.offered.is_some() => {
                &[Market::Spot, Market::OnDemand]
            }
            (Market::OnDemand, Some(MarketNeed::OnDemand | MarketNeed::SpotFirst) | None) => &[Market::OnDemand],
            (Market::Spot, Some(MarketNeed::OnDemand)) | (Market::OnDemand, Some(MarketNeed::Spot)) => &[],
        }
    }

    /// The price of a machine of this size in a market and a zone, or the lowest price without a zone. `None` if the zone does not
    /// have it, or if the price is not known: nothing is bought then.
    pub fn price_in(&self, market: Market, zone: Option<&str>) -> Option<Usd> {
        match &self.offered {
            None => Some(self.price_per_hour),
            Some(offered) if zone.is_none_or(|zone| offered.zones.contains(zone)) => offered.price_in(market, zone),
            Some(_) => None,
        }
    }

    /// The lowest price of a machine of this size for work that asks for `asked`.
    pub fn price_for(&self, asked: Option<MarketNeed>) -> Usd {
        let markets = self.markets(asked);
        let elsewhere = || markets.iter().filter_map(|market| self.price_in(*market, None)).min();
        if markets.contains(&self.market) { self.price_per_hour } else { elsewhere().unwrap_or(self.price_per_hour) }
    }

    /// Whether work that takes up so much, and asks for this, can get a new machine of this size, which has this room for jobs.
    pub fn offers(&self, takes: Capacity, need: &MachineNeed, (room, default_arch): (Capacity, Arch)) -> bool {
        let machine = self.machine(default_arch);
        let may_be =
            |market| self.price_in(market, None).is_some() && Machine { market, ..machine }.fits(takes, need, room);
        self.markets(need.market).iter().copied().any(may_be)
    }
}

/// The requirements of a size for its instance types. A range includes both of its ends.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Requirements {
    /// The names, where `*` is any text.
    pub instance_types: BTreeSet<String>,
    /// The names of types that are not taken, where `*` is any text.
    pub exclude_types: BTreeSet<String>,
    pub vcpus: (f64, f64),
    pub memory_gib: (f64, f64),
    pub memory_gib_per_vcpu: (f64, f64),
    pub gpus: (f64, f64),
    pub gpu_type: Option<String>,
    pub gpu_memory_gib: u64,
    pub local_disk_gib: u64,
    pub generation: Generation,
    pub burstable: bool,
    pub bare_metal: bool,
}

/// A size of several instance types.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SeveralTypes {
    pub name: String,
    #[serde(flatten)]
    pub requirements: Requirements,
    pub scratch_gib: u64,
    pub arch: Arch,
    pub labels: BTreeSet<String>,
    pub containers: bool,
    pub market: Market,
    pub fallback: Fallback,
    pub max: Option<u32>,
    pub template: Option<String>,
}

impl Requirements {
    /// Why the type is not taken, as the first thing that does not fit; `None` if it is taken.
    pub fn lacks(&self, name: &str, arch: Arch, facts: &TypeFacts) -> Option<&'static str> {
        let is_in = |(least, most): (f64, f64), n: f64| (least..=most).contains(&n);
        let gib = facts.memory_mib as f64 / 1024.0;
        let has_gpu_type = |asked: &String| facts.gpu_type.as_ref().is_some_and(|has| has.eq_ignore_ascii_case(asked));
        let checks = [
            ("instance_types", self.instance_types.iter().any(|pattern| matches(pattern, name))),
            ("exclude_types", !self.exclude_types.iter().any(|pattern| matches(pattern, name))),
            ("arch", facts.arch.contains(&arch)),
            ("generation", facts.is_current || self.generation == Generation::Any),
            ("vcpus", is_in(self.vcpus, facts.vcpus.into())),
            ("memory_gib", is_in(self.memory_gib, gib)),
            ("memory_gib_per_vcpu", is_in(self.memory_gib_per_vcpu, gib / f64::from(facts.vcpus.max(1)))),
            ("gpus", is_in(self.gpus, facts.gpus as f64)),
            ("gpu_type", self.gpu_type.as_ref().is_none_or(has_gpu_type)),
            ("gpu_memory_gib", self.gpu_memory_gib <= facts.gpu_memory_gib),
            ("local_disk_gib", self.local_disk_gib <= facts.local_disk_gib),
            ("burstable", self.burstable || !facts.is_burstable),
            ("bare_metal", self.bare_metal || !facts.is_bare_metal),
        ];
        checks.iter().find(|(_, is_met)| !is_met).map(|(name, _)| *name)
    }
}

impl SeveralTypes {
    /// The size of one of its types. `None`: the type is not taken, or the catalogue knows no price of it in one of these
    /// zones. Without zones, any counts.
    pub(super) fn of_type(&self, name: &str, offered: &Offered, zones: &BTreeSet<&str>) -> Option<Size> {
        let prices = zones
            .iter()
            .filter(|zone| offered.zones.contains(**zone))
            .filter_map(|zone| offered.price_in(self.market, Some(*zone)));
        let price_per_hour = if zones.is_empty() { offered.price(self.market) } else { prices.min() }?;
        self.at_price(name, offered, price_per_hour)
    }

    /// The size of one of its types at this price. `None`: the type is not taken.
    pub fn at_price(&self, name: &str, offered: &Offered, price_per_hour: Usd) -> Option<Size> {
        let facts = &offered.facts;
        if self.requirements.lacks(name, self.arch, facts).is_some() {
            return None;
        }
        let gpus = u32::try_from(facts.gpus).ok()?;
        let (vcpus, memory_mib, scratch_gib) = (facts.vcpus, facts.memory_mib, self.scratch_gib);
        Some(Size {
            name: self.name.clone(),
            instance_type: name.to_owned(),
            capacity: Capacity { vcpus, memory_mib, scratch_gib, gpus },
            kind: MachineKind {
                arch: self.arch,
                gpu_type: facts.gpu_type.clone().filter(|_| gpus > 0),
                gpu_memory_gib: facts.gpu_memory_gib,
                labels: self.labels.clone(),
                containers: self.containers,
            },
            price_per_hour,
            market: self.market,
            fallback: self.fallback,
            max: self.max,
            template: self.template.clone(),
            offered: Some(Arc::new(offered.clone())),
            reservation: None,
        })
    }
}

impl Offered {
    /// The lowest price of the type in a market, in any zone; `None` if none is known.
    pub fn price(&self, market: Market) -> Option<Usd> {
        match market {
            Market::OnDemand => self.on_demand,
            Market::Spot => self.spot.values().min().copied(),
            Market::Reserved => Some(Usd::ZERO),
        }
    }

    /// The price of the type in a market and a zone, or the lowest price without a zone; `None` if it is not known.
    pub fn price_in(&self, market: Market, zone: Option<&str>) -> Option<Usd> {
        match (market, zone) {
            (Market::Spot, Some(zone)) => self.spot.get(zone).copied(),
            (Market::OnDemand | Market::Reserved, _) | (Market::Spot, None) => self.price(market),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::{Catalogue, CataloguePart, PartState};
    use crate::policy::Policy;
    use serde_json::json;

    fn policy(size: serde_json::Value) -> Policy {
        Policy::from_json(&json!({"launch": {"template": "nodekeeper"}, "size": [size]})).unwrap()
    }

    fn facts(vcpus: u32, gib: u64) -> TypeFacts {
        let arch = [Arch::X86_64].into();
        TypeFacts { vcpus, memory_mib: gib * 1024, arch, is_current: true, ..TypeFacts::default() }
    }

    /// The market of the policy × its fallback × whether the type is one of several × what work asks for: the markets of its ways.
    #[test]
    fn the_markets_of_a_size_follow_from_how_it_is_bought_and_from_what_is_asked() {
        use MarketNeed::{OnDemand as AskOnDemand, Spot as AskSpot, SpotFirst};
        let one = |market: &str, fallback: &str| {
            json!({"name": "s", "instance_type": "m7a.large", "vcpus": 2, "memory_mib": 8192, "price_per_hour": 0.1,
                   "market": market, "fallback": fallback})
        };
        let several = |market: &str, fallback: &str| json!({"name": "s", "instance_types": ["*"], "market": market, "fallback": fallback});
        let spot: &[Market] = &[Market::Spot];
        let (on_demand, both, none): (&[Market], &[Market], &[Market]) =
            (&[Market::OnDemand], &[Market::Spot, Market::OnDemand], &[]);
        let offered = Offered { on_demand: Some(Usd::from_micros(90)), ..crate::fixtures::offered(2, 8, &[("z", 30)]) };
        let read = PartState { read_at: Some(crate::fixtures::at(0)), ..PartState::default() };
        let catalogue = |policy: &Policy| Catalogue {
            types: [("t".to_owned(), offered.clone())].into(),
            parts: CataloguePart::ALL.map(|part| (part, read.clone())).into(),
            wanted: policy.catalogue_wanted(),
            ..Catalogue::default()
        };
        let asked = [None, Some(AskSpot), Some(AskOnDemand), Some(SpotFirst)];
        for (size, markets, prices) in [
            (one("spot", "none"), [spot, spot, none, both], [100_000; 4]),
            (one("spot", "on_demand"), [both, spot, on_demand, both], [100_000; 4]),
            (one("on_demand", "none"), [on_demand, none, on_demand, on_demand], [100_000; 4]),
            (several("spot", "none"), [spot, spot, none, both], [30; 4]),
            (several("spot", "on_demand"), [both, spot, on_demand, both], [30, 30, 90, 30]),
            (several("on_demand", "none"), [on_demand, none, on_demand, both], [90; 4]),
        ] {
            let policy = policy(size.clone());
            let catalogue = catalogue(&policy);
            let policy = policy.with_catalogue(catalogue);
            let of = &policy.size[0];
            assert_eq!(asked.map(|asked| of.markets(asked)), markets, "{size}");
            assert_eq!(asked.map(|asked| of.price_for(asked).micros()), prices, "{size}");
            let takes = Capacity { vcpus: 1, ..Capacity::default() };
            let need = |market| MachineNeed { market, ..MachineNeed::default() };
            let never = asked.map(|asked| policy.never_offers(takes, &need(asked)).is_some());
            assert_eq!(never, markets.map(<[_]>::is_empty), "{size}");
        }
    }

    /// What has no price in a market is not bought there, so it offers nothing.
    #[test]
    fn a_market_without_a_price_is_none() {
        let several = json!({"name": "s", "instance_types": ["*"], "market": "spot", "fallback": "on_demand"});
        let mut offered = crate::fixtures::offered(2, 8, &[("z", 30)]);
        offered.on_demand = None;
        let catalogue = Catalogue { types: [("t".to_owned(), offered)].into(), ..Catalogue::default() };
        let policy = policy(several).with_catalogue(catalogue);
        let on_demand = MachineNeed { market: Some(MarketNeed::OnDemand), ..MachineNeed::default() };
        let offers =
            |need: &MachineNeed| policy.size[0].offers(Capacity::default(), need, (Capacity::default(), Arch::X86_64));
        assert_eq!((offers(&MachineNeed::default()), offers(&on_demand)), (true, false));
    }

    /// Each requirement of a size × a type that meets all requirements but one.
    #[test]
    fn each_need_is_compared_with_the_type() {
        let a10g = TypeFacts { gpus: 4, gpu_type: Some("a10g".into()), gpu_memory_gib: 24, ..facts(48, 192) };
        let gpu = |more: serde_json::Value| {
            let mut size = json!({"name": "s", "instance_types": ["*"], "gpus": [1, 8]});
            size.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            size
        };
        let cpu = |knob: &str, value: serde_json::Value| {
            let mut size = json!({"name": "s", "instance_types": ["*"]});
            size[knob] = value;
            size
        };
        for (size, facts, lacks) in [
            (cpu("instance_types", json!(["m7a.*"])), facts(2, 8), None),
            (cpu("instance_types", json!(["c7a.*"])), facts(2, 8), Some("instance_types")),
            (cpu("exclude_types", json!(["m7*"])), facts(2, 8), Some("exclude_types")),
            (cpu("vcpus", json!([2, 64])), facts(2, 8), None),
            (cpu("vcpus", json!([4, 64])), facts(2, 8), Some("vcpus")),
            (cpu("memory_gib", json!([0, 7.5])), facts(2, 8), Some("memory_gib")),
            (cpu("memory_gib_per_vcpu", json!([8, 16])), facts(2, 8), Some("memory_gib_per_vcpu")),
            (cpu("memory_gib_per_vcpu", json!([4, 4])), facts(2, 8), None),
            (cpu("arch", json!("arm64")), facts(2, 8), Some("arch")),
            (cpu("vcpus", json!([1, 64])), a10g.clone(), Some("gpus")),
            (gpu(json!({})), a10g.clone(), None),
            (gpu(json!({})), facts(2, 8), Some("gpus")),
            (gpu(json!({"gpu_type": "A10G", "gpu_memory_gib": 24})), a10g.clone(), None),
            (gpu(json!({"gpu_type": "h100"})), a10g.clone(), Some("gpu_type")),
            (gpu(json!({"gpu_memory_gib": 25})), a10g, Some("gpu_memory_gib")),
            (cpu("local_disk_gib", json!(1)), facts(2, 8), Some("local_disk_gib")),
            (cpu("vcpus", json!([1, 64])), TypeFacts { is_current: false, ..facts(2, 8) }, Some("generation")),
            (cpu("generation", json!("any")), TypeFacts { is_current: false, ..facts(2, 8) }, None),
            (cpu("vcpus", json!([1, 64])), TypeFacts { is_burstable: true, ..facts(2, 8) }, Some("burstable")),
            (cpu("burstable", json!(true)), TypeFacts { is_burstable: true, ..facts(2, 8) }, None),
            (cpu("vcpus", json!([1, 64])), TypeFacts { is_bare_metal: true, ..facts(2, 8) }, Some("bare_metal")),
        ] {
            let of = &policy(size.clone()).several[0];
            assert_eq!(of.requirements.lacks("m7a.large", of.arch, &facts), lacks, "{size}");
        }
    }

    #[test]
    fn a_type_without_a_known_price_is_not_taken() {
        let spot = json!({"name": "s", "instance_types": ["*"], "market": "spot", "fallback": "on_demand", "max": 7});
        let policy = policy(spot);
        let mut catalogue = Catalogue::default();
        let offer = |on_demand, spot: &[(&str, u64)]| Offered {
            facts: facts(2, 8),
            zones: ["a".to_owned(), "b".to_owned()].into(),
            on_demand: Some(Usd::from_micros(on_demand)),
            spot: spot.iter().map(|(zone, micros)| ((*zone).to_owned(), Usd::from_micros(*micros))).collect(),
        };
        catalogue.types.insert("m7a.large".into(), offer(100, &[("a", 40), ("b", 30)]));
        catalogue.types.insert("m7i.large".into(), offer(90, &[]));
        let document = policy.to_json();
        let policy = policy.with_catalogue(catalogue.clone());
        let [only] = policy.size.as_slice() else { panic!("{:?}", policy.size) };
        assert_eq!((only.instance_type.as_str(), only.price_per_hour.micros(), only.max), ("m7a.large", 30, Some(7)));
        let offered = only.offered.as_ref().unwrap();
        let price = |market, zone| offered.price_in(market, zone).map(Usd::micros);
        assert_eq!(price(Market::Spot, Some("a")), Some(40));
        assert_eq!(price(Market::Spot, Some("c")), None);
        assert_eq!(price(Market::Spot, None), Some(30));
        assert_eq!(price(Market::OnDemand, Some("c")), Some(100));
        // The document is the same whatever the catalogue has, and reads back.
        assert_eq!(policy.to_json(), document);
        assert_eq!(Policy::from_json(&document).unwrap().with_catalogue(catalogue.clone()), policy);
        assert_eq!(policy.clone().with_catalogue(catalogue).size.len(), 1, "a second time");
        assert_eq!(policy.size.len() + policy.with_catalogue(Catalogue::default()).size.len(), 1);
    }
}
