//! DescribeInstanceTypes, DescribeInstanceTypeOfferings, DescribeSpotPriceHistory and DescribeSubnets.
//!
//! Does not: know prices of the past (each price began an hour ago), or filters of subnets.
//! Source: the actions of these names, EC2 API Reference.

use model::Span;
use std::ops::RangeInclusive;

use super::filters;
use crate::api_error::{ApiError, clip};
use crate::call::Ec2Call;
use crate::catalogue;
use crate::instance::InstanceState;
use crate::settings::{Ec2Subnet, InstanceType};
use crate::wire::Xml;

/// The allowed values of `MaxResults`: for types, and for the other lists.
const TYPES_PAGE: RangeInclusive<usize> = 5..=100;
const PAGE: RangeInclusive<usize> = 5..=1_000;
/// The product for which there are spot prices.
const LINUX: &str = "Linux/UNIX";
/// The addresses of a subnet without a limit: a /16 network, without the five that EC2 keeps.
const ADDRESSES: u32 = 65_531;

impl Ec2Call<'_> {
    pub(crate) fn describe_instance_types(&mut self, xml: &mut Xml) -> Result<(), ApiError> {
        let known = ["instance-type", "processor-info.supported-architecture", "current-generation"];
        let filters = filters::read(self.params, &known)?;
        let named = self.params.list("InstanceType");
        let types = catalogue::types(self.settings);
        let unknown: Vec<&str> = named.iter().copied().filter(|name| !types.iter().any(|t| t.name == *name)).collect();
        if !unknown.is_empty() {
            let names = clip(&unknown.join(", "));
            let message = format!("The following supplied instance types do not exist: [{names}]");
            return Err(ApiError::new("InvalidInstanceType", message));
        }
        let takes = |kind: &InstanceType| {
            filters.iter().all(|filter| match filter.name.as_str() {
                "instance-type" => filter.takes([kind.name.as_str()]),
                "current-generation" => filter.takes([(!kind.is_previous_generation).to_string().as_str()]),
                _ => filter.takes(architectures(kind)),
            }) && (named.is_empty() || named.contains(&kind.name.as_str()))
        };
        let rows = types.iter().filter(|kind| takes(kind)).collect();
        self.write_page(xml, "instanceTypeSet", rows, TYPES_PAGE, write_type)
    }

    pub(crate) fn describe_instance_type_offerings(&mut self, xml: &mut Xml) -> Result<(), ApiError> {
        if self.params.filled("LocationType") != Some("availability-zone") {
            return Err(ApiError::invalid("The stand-in knows offerings by availability-zone only"));
        }
        let filters = filters::read(self.params, &["instance-type", "location"])?;
        let types = catalogue::types(self.settings);
        let mut rows: Vec<(&str, &str)> = types
            .iter()
            .flat_map(|t| t.zones_of(self.settings).into_iter().map(|zone| (t.name.as_str(), zone)))
            .collect();
        rows.retain(|(name, zone)| filters.iter().all(|f| f.takes([if f.name == "location" { *zone } else { *name }])));
        self.write_page(xml, "instanceTypeOfferingSet", rows, PAGE, |xml, (name, zone)| {
            xml.text("instanceType", name);
            xml.text("locationType", "availability-zone");
            xml.text("location", zone);
        })
    }

    /// The price of each type in each zone that has it.
    pub(crate) fn describe_spot_price_history(&mut self, xml: &mut Xml) -> Result<(), ApiError> {
        filters::read(self.params, &[])?;
        let products = self.params.list("ProductDescription");
        let named = self.params.list("InstanceType");
        let since = self.now - Span::from_s(3_600);
        let types = catalogue::types(self.settings);
        let mut rows: Vec<(&str, &str, String)> = Vec::new();
        if products.is_empty() || products.contains(&LINUX) {
            for kind in types.iter().filter(|t| named.is_empty() || named.contains(&t.name.as_str())) {
                let zones = kind.zones_of(self.settings).into_iter();
                rows.extend(zones.filter_map(|zone| Some((kind.name.as_str(), zone, kind.spot_price(zone)?))));
            }
        }
        self.write_page(xml, "spotPriceHistorySet", rows, PAGE, |xml, (name, zone, price)| {
            xml.text("instanceType", name);
            xml.text("productDescription", LINUX);
            xml.text("spotPrice", &price);
            xml.value("timestamp", since);
            xml.text("availabilityZone", zone);
        })
    }

    /// One unknown id fails the whole call.
    pub(crate) fn describe_subnets(&mut self, xml: &mut Xml) -> Result<(), ApiError> {
        filters::read(self.params, &[])?;
        let named = self.params.list("SubnetId");
        let subnets = &self.settings.subnets;
        if let Some(unknown) = named.iter().find(|id| !subnets.iter().any(|subnet| subnet.subnet_id == **id)) {
            return Err(ApiError::no_subnet(unknown));
        }
        let is_asked = |subnet: &Ec2Subnet| named.is_empty() || named.contains(&subnet.subnet_id.as_str());
        let rows: Vec<(usize, &Ec2Subnet)> =
            subnets.iter().enumerate().filter(|(_, subnet)| is_asked(subnet)).collect();
        self.write_page(xml, "subnetSet", rows, PAGE, |xml, (n, subnet)| {
            xml.text("subnetId", &subnet.subnet_id);
            xml.text("state", "available");
            xml.text("vpcId", "vpc-local");
            xml.text("cidrBlock", &format!("10.{}.0.0/16", n % 256));
            xml.value("availableIpAddressCount", self.free_addresses(subnet));
            xml.text("availabilityZone", &subnet.zone);
        })
    }

    /// How many more instances have room in a subnet. An instance keeps its address until it is terminated.
    pub(crate) fn free_addresses(&self, subnet: &Ec2Subnet) -> u32 {
        let has_one =
            |i: &crate::instance::Ec2Instance| i.subnet_id == subnet.subnet_id && i.state != InstanceState::Terminated;
        let used = self.world.listed(None).filter(|(_, instance)| has_one(instance)).count();
        subnet.addresses.unwrap_or(ADDRESSES).saturating_sub(u32::try_from(used).unwrap_or(u32::MAX))
    }
}

fn architectures(kind: &InstanceType) -> Vec<&str> {
    if kind.architectures.is_empty() { vec!["x86_64"] } else { kind.architectures.iter().map(String::as_str).collect() }
}

fn write_type(xml: &mut Xml, kind: &InstanceType) {
    xml.text("instanceType", &kind.name);
    xml.value("currentGeneration", !kind.is_previous_generation);
    xml.items("supportedUsageClasses", ["on-demand", "spot"], Xml::content);
    xml.value("bareMetal", kind.is_bare_metal);
    xml.element("processorInfo", |xml| {
        xml.items("supportedArchitectures", architectures(kind), Xml::content);
    });
    xml.element("vCpuInfo", |xml| xml.value("defaultVCpus", kind.vcpus));
    xml.element("memoryInfo", |xml| xml.value("sizeInMiB", kind.memory_mib));
    xml.value("instanceStorageSupported", kind.local_disk_gb > 0);
    if kind.local_disk_gb > 0 {
        xml.element("instanceStorageInfo", |xml| xml.value("totalSizeInGB", kind.local_disk_gb));
    }
    if let Some(gpus) = &kind.gpus {
        xml.element("gpuInfo", |xml| {
            xml.items("gpus", [gpus], |xml, gpus| {
                xml.text("name", &gpus.name);
                xml.text("manufacturer", &gpus.manufacturer);
                xml.value("count", gpus.count);
                xml.element("memoryInfo", |xml| xml.value("sizeInMiB", gpus.memory_mib));
            });
            xml.value("totalGpuMemoryInMiB", gpus.memory_mib.saturating_mul(u64::from(gpus.count)));
        });
    }
    xml.value("burstablePerformanceSupported", kind.is_burstable);
}
