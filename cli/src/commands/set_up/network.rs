//! The network of the nodes of a new cluster.
//!
//! Does not: make a network; the stack does, if the account has none.

use crate::console::UsageError;
use crate::console::aws_cli::{AwsCli, list, text};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// Where the nodes of a new cluster are.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Network {
    /// These subnets by their zones, in this VPC.
    There { vpc: String, subnets: BTreeMap<String, String> },
    /// The stack makes one.
    OfStack,
}

impl Network {
    /// The network of these subnets, or the default network of the account if it has one.
    pub(super) async fn find(aws: &AwsCli, given: &[String]) -> anyhow::Result<Self> {
        let begin = ["ec2", "describe-subnets"];
        let given: Vec<&str> = given.iter().map(String::as_str).collect();
        let which = if given.is_empty() {
            vec!["--filters", "Name=default-for-az,Values=true"]
        } else {
            [&["--subnet-ids"][..], &given].concat()
        };
        let answer = aws.call(&[&begin[..], &which].concat()).await?;
        let all = list(&answer, "/Subnets");
        let vpcs: BTreeSet<String> = all.iter().map(|subnet| text(subnet, "/VpcId").to_owned()).collect();
        let vpc = match Vec::from_iter(vpcs).as_slice() {
            [] => return Ok(Self::OfStack),
            [one] => one.clone(),
            several => {
                let why = format!("the subnets are in {}: give those of one network", several.join(" and "));
                return Err(UsageError(why).into());
            }
        };
        // A launch call takes one subnet of each zone: that with the most free addresses.
        let mut best: BTreeMap<String, (u64, String)> = BTreeMap::new();
        for subnet in all {
            let free = subnet.get("AvailableIpAddressCount").and_then(Value::as_u64).unwrap_or_default();
            let one = (free, text(subnet, "/SubnetId").to_owned());
            let zone = best.entry(text(subnet, "/AvailabilityZone").to_owned()).or_default();
            *zone = one.max(zone.clone());
        }
        Ok(Self::There { vpc, subnets: best.into_iter().map(|(zone, (_, id))| (zone, id)).collect() })
    }

    /// The parameters of the template.
    pub(super) fn parameters(&self) -> String {
        match self {
            Self::There { vpc, .. } => format!("VpcId={vpc}"),
            Self::OfStack => "MakeNetwork=true".to_owned(),
        }
    }
}
