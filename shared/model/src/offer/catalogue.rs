//! The catalogue: what EC2 offers for the sizes of the policy that name several instance types, at which prices, and
//! where; and what the account may have.
//!
//! | part | read anew after | from |
//! | --- | --- | --- |
//! | types and their zones | a day | DescribeInstanceTypes, DescribeInstanceTypeOfferings |
//! | prices on demand | a day | the public price list |
//! | spot prices | an hour | DescribeSpotPriceHistory |
//! | subnets: zone and free addresses | five minutes | DescribeSubnets |
//! | capacity reservations: how many machines are free in them | five minutes | DescribeCapacityReservations |
//! | quotas of vCPUs | an hour | ListServiceQuotas |
//!
//! Guarantees: a price is one that AWS told; a price that is not known is absent, and nothing is bought at it. A part
//! that cannot be read stays as it was, and the catalogue says since when and why.
//! Does not: ask EC2 (the crate `cloud` does), or say when it is asked (`runtime::catalogue` does).

use crate::enums::Arch;
use crate::{CapacityReservation, CloudError, Span, Time, Usd};
use async_trait::async_trait;
use derive_more::Display;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// The most types of a catalogue. With more, its row would come near to DynamoDB's 400 KB, and each run reads it.
pub const MAX_TYPES: usize = 400;

/// The properties of an instance type, which are the same in every zone.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TypeFacts {
    pub vcpus: u32,
    pub memory_mib: u64,
    /// The architectures of its processors that nodekeeper knows.
    pub arch: BTreeSet<Arch>,
    #[serde(skip_serializing_if = "crate::left_out::is_default")]
    pub gpus: u64,
    /// The model of its GPUs in lower case, like `a10g`.
    pub gpu_type: Option<String>,
    /// The memory of each GPU.
    #[serde(skip_serializing_if = "crate::left_out::is_default")]
    pub gpu_memory_gib: u64,
    /// The local disks together.
    #[serde(skip_serializing_if = "crate::left_out::is_default")]
    pub local_disk_gib: u64,
    /// Whether EC2 calls it a current generation.
    pub is_current: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_burstable: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_bare_metal: bool,
}

/// An instance type in the catalogue.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Offered {
    #[serde(flatten)]
    pub facts: TypeFacts,
    /// The zones that have it.
    pub zones: BTreeSet<String>,
    /// The price on demand; `None` if it is not known.
    pub on_demand: Option<Usd>,
    /// The spot price in each zone where it is known.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub spot: BTreeMap<String, Usd>,
}

/// A subnet of the policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Subnet {
    pub zone: String,
    /// How many addresses are free.
    pub free: u32,
}

/// A part of the catalogue, in the order in which the parts are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, Display)]
#[serde(rename_all = "snake_case")]
pub enum CataloguePart {
    #[display("instance types")]
    Types,
    #[display("prices on demand")]
    Prices,
    #[display("spot prices")]
    SpotPrices,
    #[display("subnets")]
    Subnets,
    #[display("capacity reservations")]
    Reservations,
    #[display("quotas")]
    Quotas,
}

impl CataloguePart {
    pub const ALL: [Self; 6] =
        [Self::Types, Self::Prices, Self::SpotPrices, Self::Subnets, Self::Reservations, Self::Quotas];

    /// After how long the part is read anew.
    pub const fn keeps(self) -> Span {
        match self {
            Self::Types | Self::Prices => Span::from_s(86_400),
            Self::SpotPrices | Self::Quotas => Span::from_s(3_600),
            Self::Subnets | Self::Reservations => Span::from_s(300),
        }
    }
}

/// When a part of the catalogue was read, or why it could not be.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PartState {
    /// When the part was last read; `None` if it never was.
    pub read_at: Option<Time>,
    /// Why the last attempt to read it failed; `None` if it did not.
    pub error: Option<String>,
    /// When the last attempt was made.
    pub tried_at: Option<Time>,
}

/// The offers of EC2 for the sizes of the policy.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Catalogue {
    /// The instance types that a size of the policy takes.
    pub types: BTreeMap<String, Offered>,
    /// The subnets of the policy.
    pub subnets: BTreeMap<String, Subnet>,
    /// The capacity reservations of the policy, by their ids.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub reservations: BTreeMap<String, CapacityReservation>,
    /// How many vCPUs the account may have, by the quota's name in Service Quotas.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub quotas: BTreeMap<String, u64>,
    pub parts: BTreeMap<CataloguePart, PartState>,
    /// The wants of the policy for which the catalogue was made: see [`crate::policy::Policy::catalogue_wanted`].
    pub wanted: String,
    /// How many types fit but are left out, because there are more than [`MAX_TYPES`].
    #[serde(skip_serializing_if = "crate::left_out::is_default")]
    pub left_out: u64,
}

impl Catalogue {
    /// Those of these parts that are due now, for a policy that wants `wanted`. EC2 is asked for the prices of the types that were
    /// read, so prices are due until they were read later than the types.
    pub fn due(&self, parts: &[CataloguePart], wanted: &str, now: Time) -> Vec<CataloguePart> {
        let is_other = self.wanted != wanted;
        let read_at = |part: CataloguePart| self.parts.get(&part).and_then(|state| state.read_at);
        let is_due = |part: &CataloguePart| {
            let state = self.parts.get(part);
            let age = |at: Option<Time>| at.map(|at| now.since(at));
            let read = age(state.and_then(|s| s.read_at));
            let is_older = matches!(part, CataloguePart::Prices | CataloguePart::SpotPrices)
                && read_at(*part) < read_at(CataloguePart::Types);
            let is_old = is_other || is_older || read.is_none_or(|age| age >= part.keeps() || age < Span::ZERO);
            // A part that could not be read is tried again as often as subnets are.
            let tried = age(state.filter(|s| s.error.is_some()).and_then(|s| s.tried_at));
            is_old && (is_other || tried.is_none_or(|age| age >= CataloguePart::Subnets.keeps() || age < Span::ZERO))
        };
        parts.iter().copied().filter(is_due).collect()
    }

    /// When the part was read, and why it could not be read. Empty if it was never tried.
    pub fn part(&self, part: CataloguePart) -> PartState {
        self.parts.get(&part).cloned().unwrap_or_default()
    }

    /// The zone of a subnet, if it is known.
    pub fn zone_of(&self, subnet_id: &str) -> Option<&str> {
        self.subnets.get(subnet_id).map(|subnet| subnet.zone.as_str())
    }
}

/// The questions to a provider about its offers.
#[async_trait]
pub trait Offers: Send + Sync {
    /// Every instance type whose name matches one of these patterns, where `*` is any
    /// text. All pages, or an error. At least one pattern is given.
    async fn types(&self, patterns: &BTreeSet<String>) -> Result<BTreeMap<String, TypeFacts>, CloudError>;
    /// The zones of the region that have each of the types that match one of these patterns.
    async fn zones(&self, patterns: &BTreeSet<String>) -> Result<BTreeMap<String, BTreeSet<String>>, CloudError>;
    /// The prices on demand of Linux machines with shared hardware in the region, an hour, of those of these types that
    /// the price list has.
    async fn prices(&self, types: &BTreeSet<String>) -> Result<BTreeMap<String, Usd>, CloudError>;
    /// The newest spot prices of Linux machines an hour, by type and zone.
    async fn spot_prices(
        &self,
        types: &BTreeSet<String>,
    ) -> Result<BTreeMap<String, BTreeMap<String, Usd>>, CloudError>;
    /// These subnets: their zones and how many addresses are free. A subnet that EC2 does not know is left out.
    async fn subnets(&self, ids: &BTreeSet<String>) -> Result<BTreeMap<String, Subnet>, CloudError>;
    /// These capacity reservations. One that EC2 does not know, or that has ended, is left out.
    async fn reservations(&self, ids: &BTreeSet<String>) -> Result<BTreeMap<String, CapacityReservation>, CloudError>;
    /// The quotas of vCPUs of the account in the region: see [`crate::quotas`].
    async fn quotas(&self) -> Result<BTreeMap<String, u64>, CloudError>;
}
