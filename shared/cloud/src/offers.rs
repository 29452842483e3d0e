//! What EC2 offers: types, zones, spot prices, subnets and capacity reservations. On-demand prices come from the price
//! list, and quotas from Service Quotas.
//!
//! Guarantees: a list has all pages, or is an error; what cannot be read in an answer is left out.
//! Does not: choose types, or keep what it reads.
//! Source: EC2 API reference, the actions of these names.

use crate::calls::{AT_ONCE, FILTER_VALUES, cloud_error};
use crate::price_list::{GET_PRODUCTS, PriceList, usd};
use crate::{by_id, quotas};
use async_trait::async_trait;
use aws_config::SdkConfig;
use aws_sdk_ec2::Client;
use aws_sdk_ec2::primitives::DateTime;
use aws_sdk_ec2::types::{
    CapacityReservation as EC2Reservation, CapacityReservationState, CapacityReservationType, Filter, GpuDeviceInfo,
    InstanceType, InstanceTypeInfo, LocationType, SpotPrice,
};
use futures::{FutureExt, StreamExt, TryStreamExt};
use model::enums::ReservationKind;
use model::{Arch, CapacityReservation, CloudError, Offers, Subnet, Time, TypeFacts, Usd};
use std::collections::{BTreeMap, BTreeSet};

/// The most types on a page of DescribeInstanceTypes, and the most rows on a page of the other lists.
const TYPES_PAGE: i32 = 100;
const PAGE: i32 = 1000;
/// How many types one call of DescribeSpotPriceHistory names. EC2 documents no limit.
const SPOT_TYPES: usize = 100;
/// How many subnets or capacity reservations one call names.
const IDS: usize = 200;
/// The product of spot prices for Linux.
const LINUX: &str = "Linux/UNIX";

/// What EC2 says of a type; `None` if it does not say how large the type is.
fn facts(kind: &InstanceTypeInfo) -> Option<(String, TypeFacts)> {
    let vcpus = kind.v_cpu_info()?.default_v_cpus()?;
    let memory_mib = kind.memory_info()?.size_in_mib()?;
    let arch = kind.processor_info().map(|p| p.supported_architectures()).unwrap_or_default();
    let gpus = kind.gpu_info().map(|info| info.gpus()).unwrap_or_default();
    let gpu_mib = gpus.first().and_then(|gpu| gpu.memory_info()?.size_in_mib()).unwrap_or(0);
    let disk_gb = kind.instance_storage_info().and_then(|disks| disks.total_size_in_gb()).unwrap_or(0);
    let facts = TypeFacts {
        vcpus: u32::try_from(vcpus).ok().filter(|n| *n > 0)?,
        memory_mib: u64::try_from(memory_mib).ok().filter(|n| *n > 0)?,
        arch: arch.iter().filter_map(|arch| arch.as_str().parse::<Arch>().ok()).collect(),
        gpus: gpus.iter().filter_map(|gpu| u64::try_from(gpu.count()?).ok()).sum(),
        gpu_type: gpus.first().and_then(GpuDeviceInfo::name).map(gpu_type),
        gpu_memory_gib: u64::try_from(gpu_mib).unwrap_or(0) / 1024,
        // EC2 tells sizes of disks in powers of ten.
        local_disk_gib: u64::try_from(disk_gb).unwrap_or(0).saturating_mul(1_000_000_000) >> 30,
        is_current: kind.current_generation().unwrap_or(false),
        is_burstable: kind.burstable_performance_supported().unwrap_or(false),
        is_bare_metal: kind.bare_metal().unwrap_or(false),
    };
    Some((kind.instance_type()?.as_str().to_owned(), facts))
}

/// The name of a model of GPUs as a policy can write it.
fn gpu_type(name: &str) -> String {
    name.trim().to_lowercase().replace(' ', "-")
}

/// The newest price of each type in each zone. If it cannot be read, an older one does not count in its place.
fn newest(rows: Vec<SpotPrice>) -> BTreeMap<String, BTreeMap<String, Usd>> {
    let mut newest: BTreeMap<(String, String), (i64, Option<Usd>)> = BTreeMap::new();
    for row in rows {
        let (Some(kind), Some(zone)) = (row.instance_type(), row.availability_zone()) else { continue };
        let at = row.timestamp().and_then(|at| at.to_millis().ok()).unwrap_or(i64::MIN);
        let told = (at, row.spot_price().and_then(usd));
        let known = newest.entry((kind.as_str().to_owned(), zone.to_owned())).or_insert(told);
        if told.0 > known.0 {
            *known = told;
        }
    }
    let mut prices: BTreeMap<String, BTreeMap<String, Usd>> = BTreeMap::new();
    for ((kind, zone), (_, price)) in newest {
        if let Some(price) = price {
            prices.entry(kind).or_default().insert(zone, price);
        }
    }
    prices
}

/// The filters by name for these patterns: each is for one call.
fn by_name(patterns: &BTreeSet<String>) -> Vec<Filter> {
    let patterns: Vec<String> = patterns.iter().cloned().collect();
    let filter = |values: &[String]| Filter::builder().name("instance-type").set_values(Some(values.to_vec())).build();
    patterns.chunks(FILTER_VALUES).map(filter).collect()
}

/// What AWS offers in the region of its configuration.
pub struct AwsOffers {
    pub(crate) client: Client,
    /// The clients of prices and quotas are made when they are asked, so that no start of a function waits for them.
    pub(crate) aws: SdkConfig,
}

impl AwsOffers {
    /// Clients of this configuration. Nothing is called yet.
    pub fn connect(aws: &SdkConfig) -> Self {
        Self { client: Client::new(aws), aws: aws.clone() }
    }
}

#[async_trait]
impl Offers for AwsOffers {
    async fn types(&self, patterns: &BTreeSet<String>) -> Result<BTreeMap<String, TypeFacts>, CloudError> {
        let mut found = BTreeMap::new();
        for filter in by_name(patterns) {
            let call = self.client.describe_instance_types().filters(filter);
            let mut types = call.into_paginator().page_size(TYPES_PAGE).items().send();
            while let Some(kind) = types.next().await {
                found.extend(facts(&kind.map_err(|e| cloud_error("DescribeInstanceTypes", &e))?));
            }
        }
        Ok(found)
    }

    async fn zones(&self, patterns: &BTreeSet<String>) -> Result<BTreeMap<String, BTreeSet<String>>, CloudError> {
        let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for filter in by_name(patterns) {
            let call = self.client.describe_instance_type_offerings().location_type(LocationType::AvailabilityZone);
            let mut rows = call.filters(filter).into_paginator().page_size(PAGE).items().send();
            while let Some(row) = rows.next().await {
                let row = row.map_err(|e| cloud_error("DescribeInstanceTypeOfferings", &e))?;
                if let (Some(kind), Some(zone)) = (row.instance_type(), row.location()) {
                    found.entry(kind.as_str().to_owned()).or_default().insert(zone.to_owned());
                }
            }
        }
        Ok(found)
    }

    async fn prices(&self, types: &BTreeSet<String>) -> Result<BTreeMap<String, Usd>, CloudError> {
        match PriceList::connect(&self.aws) {
            Some(prices) => prices.prices(types).await,
            None => Err(no_region(GET_PRODUCTS)),
        }
    }

    async fn spot_prices(
        &self,
        types: &BTreeSet<String>,
    ) -> Result<BTreeMap<String, BTreeMap<String, Usd>>, CloudError> {
        let types: Vec<InstanceType> = types.iter().map(|name| InstanceType::from(name.as_str())).collect();
        #[allow(
            clippy::disallowed_methods,
            reason = "EC2 is asked for what holds now, by its clock; nothing is decided by it"
        )]
        let now = DateTime::from_millis(Time::now().as_ms());
        let calls = types.chunks(SPOT_TYPES).map(|types| {
            let call = self.client.describe_spot_price_history().product_descriptions(LINUX).start_time(now);
            let call = call.set_instance_types(Some(types.to_vec()));
            call.into_paginator().page_size(PAGE).items().send().collect::<Result<Vec<SpotPrice>, _>>().boxed()
        });
        let calls: Vec<_> = calls.collect();
        let rows = futures::stream::iter(calls).buffer_unordered(AT_ONCE);
        let rows: Vec<Vec<SpotPrice>> =
            rows.map_err(|e| cloud_error("DescribeSpotPriceHistory", &e)).try_collect().await?;
        Ok(newest(rows.into_iter().flatten().collect()))
    }

    async fn subnets(&self, ids: &BTreeSet<String>) -> Result<BTreeMap<String, Subnet>, CloudError> {
        let ids: Vec<String> = ids.iter().cloned().collect();
        let describe = |ids: Vec<String>| {
            let call = self.client.describe_subnets().set_subnet_ids(Some(ids));
            let rows = call.into_paginator().items().send().collect::<Result<Vec<_>, _>>();
            rows.map(|rows| rows.map_err(|e| cloud_error("DescribeSubnets", &e))).boxed()
        };
        let mut found = BTreeMap::new();
        for ids in ids.chunks(IDS) {
            for subnet in by_id::describe_existing(ids, is_unknown_subnet, &describe).await? {
                if let (Some(id), Some(zone)) = (subnet.subnet_id(), subnet.availability_zone()) {
                    let free = subnet.available_ip_address_count().and_then(|n| u32::try_from(n).ok()).unwrap_or(0);
                    found.insert(id.to_owned(), Subnet { zone: zone.to_owned(), free });
                }
            }
        }
        Ok(found)
    }

    async fn reservations(&self, ids: &BTreeSet<String>) -> Result<BTreeMap<String, CapacityReservation>, CloudError> {
        let ids: Vec<String> = ids.iter().cloned().collect();
        let describe = |ids: Vec<String>| {
            let call = self.client.describe_capacity_reservations().set_capacity_reservation_ids(Some(ids));
            let rows = call.into_paginator().items().send().collect::<Result<Vec<_>, _>>();
            rows.map(|rows| rows.map_err(|e| cloud_error("DescribeCapacityReservations", &e))).boxed()
        };
        let mut found = BTreeMap::new();
        for ids in ids.chunks(IDS) {
            let rows = by_id::describe_existing(ids, is_unknown_reservation, &describe).await?;
            found.extend(rows.iter().filter_map(reservation));
        }
        Ok(found)
    }

    async fn quotas(&self) -> Result<BTreeMap<String, u64>, CloudError> {
        match self.aws.region() {
            Some(_) => quotas::read(&aws_sdk_servicequotas::Client::new(&self.aws)).await,
            None => Err(no_region(quotas::LIST)),
        }
    }
}

/// What EC2 says of a capacity reservation; `None` if it is over, or failed. One that has not begun has no free machine.
fn reservation(told: &EC2Reservation) -> Option<(String, CapacityReservation)> {
    use CapacityReservationState::{Active, Assessing, Delayed, PaymentPending, Pending, Scheduled};
    let is_active = match told.state()? {
        Active => true,
        Assessing | Delayed | PaymentPending | Pending | Scheduled => false,
        _ => return None,
    };
    let number = |n: Option<i32>| n.and_then(|n| u32::try_from(n).ok()).unwrap_or(0);
    let is_block = told.reservation_type() == Some(&CapacityReservationType::CapacityBlock);
    let known = CapacityReservation {
        kind: match (is_block, told.interruptible()) {
            (true, _) => ReservationKind::CapacityBlock,
            (false, Some(true)) => ReservationKind::Interruptible,
            (false, _) => ReservationKind::OnDemand,
        },
        instance_type: told.instance_type()?.to_owned(),
        zone: told.availability_zone()?.to_owned(),
        total: number(told.total_instance_count()),
        free: if is_active { number(told.available_instance_count()) } else { 0 },
        ends_at: told.end_date().and_then(|at| at.to_millis().ok()).map(Time::from_ms),
    };
    Some((told.capacity_reservation_id()?.to_owned(), known))
}

fn no_region(operation: &'static str) -> CloudError {
    CloudError::Unreachable { operation, detail: "no region is configured, so nothing can be asked".into() }
}

/// Whether EC2 does not know a capacity reservation of the call, or its id has a wrong form.
fn is_unknown_reservation(code: &str) -> bool {
    code.to_ascii_lowercase().starts_with("invalidcapacityreservationid.")
}

/// Whether EC2 does not know a subnet of the call, or its id has a wrong form.
fn is_unknown_subnet(code: &str) -> bool {
    code.to_ascii_lowercase().starts_with("invalidsubnetid.")
}

#[cfg(test)]
mod tests {
    use super::*;
    use aws_sdk_ec2::types::{
        ArchitectureType, GpuDeviceMemoryInfo, GpuInfo, InstanceStorageInfo, MemoryInfo, ProcessorInfo, VCpuInfo,
    };

    #[test]
    fn the_newest_price_of_a_zone_counts() {
        let row = |zone: &str, at: i64, price: &str| {
            let row = SpotPrice::builder().instance_type(InstanceType::from("m7i.large")).availability_zone(zone);
            row.timestamp(DateTime::from_secs(at)).spot_price(price).build()
        };
        let rows = vec![
            row("a", 2, "0.2"),
            row("a", 3, "0.3"),
            row("a", 1, "0.1"),
            row("b", 1, "0.1"),
            row("c", 1, "0.1"),
            row("c", 2, "garbage"),
            SpotPrice::builder().spot_price("0.1").build(),
        ];
        let zones = BTreeMap::from([("a".into(), Usd::from_micros(300_000)), ("b".into(), Usd::from_micros(100_000))]);
        assert_eq!(newest(rows), BTreeMap::from([("m7i.large".into(), zones)]), "the newest of c cannot be read");
    }

    #[test]
    fn a_type_is_read_as_ec2_describes_it() {
        let gpu = GpuDeviceInfo::builder().name("Radeon Pro V520").count(2);
        let gpu = gpu.memory_info(GpuDeviceMemoryInfo::builder().size_in_mib(8192).build()).build();
        let arch = ProcessorInfo::builder()
            .supported_architectures(ArchitectureType::X8664)
            .supported_architectures(ArchitectureType::I386);
        let whole = InstanceTypeInfo::builder()
            .instance_type(InstanceType::from("g4ad.8xlarge"))
            .current_generation(true)
            .v_cpu_info(VCpuInfo::builder().default_v_cpus(32).build())
            .memory_info(MemoryInfo::builder().size_in_mib(131_072).build())
            .processor_info(arch.build())
            .instance_storage_info(InstanceStorageInfo::builder().total_size_in_gb(1200).build())
            .gpu_info(GpuInfo::builder().gpus(gpu).build());
        let expected = TypeFacts {
            vcpus: 32,
            memory_mib: 131_072,
            arch: BTreeSet::from([Arch::X86_64]),
            gpus: 2,
            gpu_type: Some("radeon-pro-v520".into()),
            gpu_memory_gib: 8,
            local_disk_gib: 1117,
            is_current: true,
            is_burstable: false,
            is_bare_metal: false,
        };
        assert_eq!(facts(&whole.clone().build()), Some(("g4ad.8xlarge".to_owned(), expected)));
        for unusable in [
            whole.clone().set_v_cpu_info(None),
            whole.clone().v_cpu_info(VCpuInfo::builder().default_v_cpus(-1).build()),
            whole.clone().memory_info(MemoryInfo::builder().size_in_mib(0).build()),
            whole.set_instance_type(None),
        ] {
            assert_eq!(facts(&unusable.build()), None);
        }
    }

    #[test]
    fn an_unknown_subnet_is_told_by_its_code() {
        for (code, expected) in [
            ("InvalidSubnetID.NotFound", true),
            ("InvalidSubnetId.Malformed", true),
            ("InvalidInstanceID.NotFound", false),
            ("UnauthorizedOperation", false),
        ] {
            assert_eq!(is_unknown_subnet(code), expected, "{code}");
        }
    }
}
