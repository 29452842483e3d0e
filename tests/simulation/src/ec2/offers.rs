//! What the simulated EC2 offers: the types for the size of several types, with spot prices that change from hour to
//! hour and from zone to zone. A world that compares policies has the types of `replay::pools`.
//!
//! Guarantees: the same time gives the same answers.
//! Does not: refuse anything. A launch may find less than what is offered here.

use super::Seen;
use crate::core::Fault;
use crate::replay::pools::{Pools, TYPES, Type, ZONES};
use crate::scenario::SEVERAL;
use async_trait::async_trait;
use model::{Arch, CapacityReservation, CloudError, Offers, Subnet, TypeFacts, Usd};
use std::collections::{BTreeMap, BTreeSet};

/// The zones of other worlds.
const TWO_ZONES: [&str; 2] = ["zone-a", "zone-b"];
const ONE_ZONE: [&str; 1] = ["zone-a"];

struct Offer {
    name: &'static str,
    vcpus: u32,
    memory_mib: u64,
    zones: &'static [&'static str],
    /// The price on demand an hour, in millionths of a dollar, if it is known.
    micros: Option<u64>,
    /// The spot price in each zone of the region.
    spot: Vec<(&'static str, u64)>,
}

/// The offers in a world that compares policies.
fn pooled(pools: Pools, hour: u64) -> Vec<Offer> {
    let offer = |of: &Type| Offer {
        name: of.name,
        vcpus: of.vcpus,
        memory_mib: of.memory_mib,
        zones: &ZONES,
        micros: Some(of.micros),
        spot: ZONES.iter().map(|zone| (*zone, pools.spot_micros(of, zone, hour))).collect(),
    };
    TYPES.iter().map(offer).collect()
}

/// The offers in other worlds. The price of the second type is not known, and the last type is in one zone only.
fn several(hour: u64) -> Vec<Offer> {
    let offer = |(n, (name, vcpus)): (usize, &(&'static str, u32))| {
        let percent = |z: u64| 40 + (hour * 7 + n as u64 * 5 + z * 11) % 40;
        Offer {
            name,
            vcpus: *vcpus,
            memory_mib: u64::from(*vcpus) * 2048,
            zones: if n + 1 == SEVERAL.len() { &ONE_ZONE } else { &TWO_ZONES },
            micros: (n != 1).then_some(u64::from(*vcpus) * 52_000),
            spot: (0..).zip(TWO_ZONES).map(|(z, zone)| (zone, u64::from(*vcpus) * 520 * percent(z))).collect(),
        }
    };
    SEVERAL.iter().enumerate().map(offer).collect()
}

impl Seen {
    async fn offer<T>(
        &self,
        operation: &'static str,
        of: impl Fn(&Offer) -> Option<T>,
    ) -> Result<BTreeMap<String, T>, CloudError> {
        self.0.call(operation).await?;
        let hour = self.0.hour();
        let offered = self.0.core.scenario.pools().map_or_else(|| several(hour), |pools| pooled(pools, hour));
        Ok(offered.iter().filter_map(|offer| Some((offer.name.to_owned(), of(offer)?))).collect())
    }
}

#[async_trait]
impl Offers for Seen {
    async fn types(&self, _: &BTreeSet<String>) -> Result<BTreeMap<String, TypeFacts>, CloudError> {
        let facts = |offer: &Offer| {
            Some(TypeFacts {
                vcpus: offer.vcpus,
                memory_mib: offer.memory_mib,
                arch: [Arch::X86_64].into(),
                is_current: true,
                ..TypeFacts::default()
            })
        };
        self.offer("DescribeInstanceTypes", facts).await
    }

    async fn zones(&self, _: &BTreeSet<String>) -> Result<BTreeMap<String, BTreeSet<String>>, CloudError> {
        let zones = |offer: &Offer| Some(offer.zones.iter().map(|zone| (*zone).to_owned()).collect());
        self.offer("DescribeInstanceTypeOfferings", zones).await
    }

    async fn prices(&self, _: &BTreeSet<String>) -> Result<BTreeMap<String, Usd>, CloudError> {
        self.offer("GetProducts", |offer| offer.micros.map(Usd::from_micros)).await
    }

    async fn spot_prices(&self, _: &BTreeSet<String>) -> Result<BTreeMap<String, BTreeMap<String, Usd>>, CloudError> {
        let price = |(zone, micros): &(&'static str, u64)| ((*zone).to_owned(), Usd::from_micros(*micros));
        let prices = |offer: &Offer| Some(offer.spot.iter().map(price).collect());
        self.offer("DescribeSpotPriceHistory", prices).await
    }

    async fn subnets(&self, ids: &BTreeSet<String>) -> Result<BTreeMap<String, Subnet>, CloudError> {
        self.0.call("DescribeSubnets").await?;
        let (core, gone) = (&self.0.core, self.0.core.scenario.gone_subnet.as_ref());
        let subnet = |id: &String| {
            let zone = self.0.zone_of(Some(id)).to_owned();
            let free = if core.happens(Fault::SubnetFull) {
                0
            } else if core.scenario.replay.is_some() {
                4000
            } else {
                50
            };
            (id.clone(), Subnet { zone, free })
        };
        Ok(ids.iter().filter(|id| Some(*id) != gone).map(subnet).collect())
    }

    async fn reservations(&self, ids: &BTreeSet<String>) -> Result<BTreeMap<String, CapacityReservation>, CloudError> {
        self.0.call("DescribeCapacityReservations").await?;
        Ok(self.0.reservations().into_iter().filter(|(id, _)| ids.contains(id)).collect())
    }

    async fn quotas(&self) -> Result<BTreeMap<String, u64>, CloudError> {
        Ok(BTreeMap::new())
    }
}
