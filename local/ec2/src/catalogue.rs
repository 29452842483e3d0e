//! The instance types of a region whose settings list none.
//!
//! The types are real. Their prices on demand are those that AWS published for us-east-1 at some time, and are only
//! examples: no cost can be computed from them. Spot prices are made up: about a third of these, by type and zone.
//! Source of the shapes: "Amazon EC2 instance types", EC2 Instance Types guide.

use std::borrow::Cow;

use crate::settings::{Ec2Settings, Gpus, InstanceType};

/// Families whose sizes are multiples of their `large`, which has two vCPUs: name, architecture, memory in GiB for each vCPU,
/// and the price of the `large` in millionths of a dollar an hour.
const FAMILIES: [(&str, &str, u64, u64); 9] = [
    ("m7a", "x86_64", 4, 115_920),
    ("m7i", "x86_64", 4, 100_800),
    ("m6a", "x86_64", 4, 86_400),
    ("m5", "x86_64", 4, 96_000),
    ("c7a", "x86_64", 2, 102_640),
    ("c7i", "x86_64", 2, 89_250),
    ("r7a", "x86_64", 8, 152_150),
    ("m7g", "arm64", 4, 81_600),
    ("c7g", "arm64", 2, 72_500),
];

/// The sizes of each family, and how many `large` each is.
const SIZES: [(&str, u32); 5] = [("large", 1), ("xlarge", 2), ("2xlarge", 4), ("4xlarge", 8), ("8xlarge", 16)];

/// A type that is in no family: name, vCPUs, memory in GiB, price in millionths of a dollar an hour.
type Single<'a> = (&'a str, u32, u64, u64);

const SMALLEST: Single<'static> = ("m7a.medium", 1, 4, 57_960);
const BURSTABLE: Single<'static> = ("t3.medium", 2, 4, 41_600);
const PREVIOUS: Single<'static> = ("m4.large", 2, 8, 100_000);
const BARE_METAL: Single<'static> = ("m7i.metal-24xl", 96, 384, 4_838_400);
/// A type with a local disk, and the size of the disk in GB.
const WITH_DISK: (Single<'static>, u64) = (("i4i.large", 2, 16, 172_000), 468);
/// Types with GPUs of one model, each with its local disk in GB and the number of its GPUs.
const WITH_GPUS: [(Single<'static>, u64, u32); 3] = [
    (("g5.xlarge", 4, 16, 1_006_000), 250, 1),
    (("g5.2xlarge", 8, 32, 1_212_000), 450, 1),
    (("g5.12xlarge", 48, 192, 5_672_000), 3_800, 4),
];

/// The types of lists: those of the settings, or the built-in ones.
pub(crate) fn types(settings: &Ec2Settings) -> Cow<'_, [InstanceType]> {
    if settings.instance_types.is_empty() {
        return built_in().into();
    }
    settings.instance_types.as_slice().into()
}

fn built_in() -> Vec<InstanceType> {
    let of_families = FAMILIES.into_iter().flat_map(|(family, architecture, gib, micros)| {
        SIZES.into_iter().map(move |(size, larges)| {
            let (name, vcpus) = (format!("{family}.{size}"), larges * 2);
            let of = single((name.as_str(), vcpus, gib * u64::from(vcpus), micros * u64::from(larges)));
            InstanceType { architectures: vec![architecture.to_owned()], ..of }
        })
    });
    let gpus = |count| Gpus { count, manufacturer: "NVIDIA".into(), name: "A10G".into(), memory_mib: 24 * 1024 };
    let with_gpus = WITH_GPUS.iter().map(|(of, local_disk_gb, count)| InstanceType {
        gpus: Some(gpus(*count)),
        local_disk_gb: *local_disk_gb,
        ..single(*of)
    });
    let others = [
        single(SMALLEST),
        InstanceType { is_burstable: true, ..single(BURSTABLE) },
        InstanceType { is_previous_generation: true, ..single(PREVIOUS) },
        InstanceType { is_bare_metal: true, ..single(BARE_METAL) },
        InstanceType { local_disk_gb: WITH_DISK.1, ..single(WITH_DISK.0) },
    ];
    of_families.chain(with_gpus).chain(others).collect()
}

fn single((name, vcpus, memory_gib, micros): Single<'_>) -> InstanceType {
    InstanceType {
        name: name.to_owned(),
        vcpus,
        memory_mib: memory_gib * 1024,
        // The price list writes ten decimal places.
        on_demand: Some(format!("{}.{:06}0000", micros / 1_000_000, micros % 1_000_000)),
        ..InstanceType::default()
    }
}

impl InstanceType {
    /// The zones that offer it; by default all of the region.
    pub(crate) fn zones_of<'a>(&'a self, settings: &'a Ec2Settings) -> Vec<&'a str> {
        if !self.zones.is_empty() {
            return self.zones.iter().map(String::as_str).collect();
        }
        let mut zones: Vec<&str> = settings.subnets.iter().map(|subnet| subnet.zone.as_str()).collect();
        zones.sort_unstable();
        zones.dedup();
        zones
    }

    /// The spot price in a zone, as EC2 writes it; `None` if there is none.
    pub(crate) fn spot_price(&self, zone: &str) -> Option<String> {
        if let Some(told) = self.spot.get(zone) {
            return Some(told.clone()).filter(|told| !told.is_empty());
        }
        let on_demand = self.on_demand.as_ref()?;
        let Ok(price) = on_demand.parse::<f64>() else { return Some(on_demand.clone()) };
        let scattered: u32 = self.name.bytes().chain(zone.bytes()).map(u32::from).sum();
        // From 28 to 39 percent of the price on demand.
        Some(format!("{:.6}", price * f64::from(28 + scattered % 12) / 100.0))
    }
}
