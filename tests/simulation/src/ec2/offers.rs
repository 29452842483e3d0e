//! What the simulated EC2 offers: types for the size of several, with spot prices that change from hour to hour and from
//! zone to zone.
//!
//! Guarantees: the same time gives the same answers.
//! Does not: refuse anything. Launches are short of what is offered here too.

use super::Seen;
use crate::core::{Fault, START};
use crate::scenario::SEVERAL;
use async_trait::async_trait;
use model::catalogue::{Offers, Subnet, TypeFacts};
use model::cloud::CloudError;
use model::{Arch, Usd};
use std::collections::{BTreeMap, BTreeSet};

const ZONES: [&str; 2] = ["zone-a", "zone-b"];

impl Seen {
    async fn offer<T>(
        &self,
        operation: &'static str,
        of: impl Fn(usize, &str, u32) -> Option<T>,
    ) -> Result<BTreeMap<String, T>, CloudError> {
        self.0.call(operation).await?;
        let offered = SEVERAL.iter().enumerate();
        Ok(offered.filter_map(|(n, (name, vcpus))| Some(((*name).to_owned(), of(n, name, *vcpus)?))).collect())
    }
}

#[async_trait]
impl Offers for Seen {
    async fn types(&self, _: &BTreeSet<String>) -> Result<BTreeMap<String, TypeFacts>, CloudError> {
        let facts = |_, _: &str, vcpus: u32| {
            let arch = [Arch::X86_64].into();
            Some(TypeFacts {
                vcpus,
                memory_mib: u64::from(vcpus) * 2048,
                arch,
                is_current: true,
                ..TypeFacts::default()
            })
        };
        self.offer("DescribeInstanceTypes", facts).await
    }

    async fn zones(&self, _: &BTreeSet<String>) -> Result<BTreeMap<String, BTreeSet<String>>, CloudError> {
        // The last type is in one zone only.
        let zones = |n: usize, _: &str, _| {
            let many = if n + 1 == SEVERAL.len() { 1 } else { ZONES.len() };
            Some(ZONES.iter().take(many).map(|zone| (*zone).to_owned()).collect())
        };
        self.offer("DescribeInstanceTypeOfferings", zones).await
    }

    async fn prices(&self, _: &BTreeSet<String>) -> Result<BTreeMap<String, Usd>, CloudError> {
        // The price of one type is not known.
        let price = |n, _: &str, vcpus: u32| (n != 1).then(|| Usd::from_micros(u64::from(vcpus) * 52_000));
        self.offer("GetProducts", price).await
    }

    async fn spot_prices(&self, _: &BTreeSet<String>) -> Result<BTreeMap<String, BTreeMap<String, Usd>>, CloudError> {
        let hour = self.0.core.now().since(START).as_ms().unsigned_abs() / 3_600_000;
        let prices = |n: usize, _: &str, vcpus: u32| {
            let in_zone = |(z, zone): (usize, &&str)| {
                let percent = 40 + (hour * 7 + n as u64 * 5 + z as u64 * 11) % 40;
                ((*zone).to_owned(), Usd::from_micros(u64::from(vcpus) * 520 * percent))
            };
            Some(ZONES.iter().enumerate().map(in_zone).collect())
        };
        self.offer("DescribeSpotPriceHistory", prices).await
    }

    async fn subnets(&self, ids: &BTreeSet<String>) -> Result<BTreeMap<String, Subnet>, CloudError> {
        self.0.call("DescribeSubnets").await?;
        let (core, gone) = (&self.0.core, self.0.core.scenario.gone_subnet.as_ref());
        let subnet = |id: &String| {
            let zone = if id == "subnet-b" { "zone-b" } else { "zone-a" }.to_owned();
            let free = if core.happens(Fault::SubnetFull) { 0 } else { 50 };
            (id.clone(), Subnet { zone, free })
        };
        Ok(ids.iter().filter(|id| Some(*id) != gone).map(subnet).collect())
    }
}
