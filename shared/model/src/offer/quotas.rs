//! The quotas of vCPUs: which instance families share one, and how AWS calls it.
//!
//! Guarantees: every instance type has a group. A family that is in no group of the table is a group of its own, so that a
//! quota of a new family stops no other one.
//! Does not: know how high a quota is (the catalogue does), which other quotas an account has, or how much of a quota the
//! other instances of the account use.
//! Source: EC2 User Guide, "Amazon EC2 instance type quotas" and "Quotas for Spot Instance requests".

use crate::enums::{Market, ReservationKind};
use crate::{NodeRecord, Offering};
use serde::Serialize;
use std::collections::BTreeMap;

/// A group, its name in Service Quotas, and its families.
type Group = (&'static str, &'static str, &'static [&'static str]);

const GROUPS: &[Group] = &[
    ("standard", "Standard (A, C, D, H, I, M, R, T, Z)", &["a", "c", "d", "h", "i", "im", "is", "m", "r", "t", "z"]),
    ("g_vt", "G and VT", &["g", "gr", "vt"]),
    ("p", "P", &["p"]),
    ("inf", "Inf", &["inf"]),
    ("trn", "Trn", &["trn"]),
    ("x", "X", &["x"]),
    ("f", "F", &["f"]),
    ("dl", "DL", &["dl"]),
    ("high_memory", "High Memory", &["u"]),
    ("hpc", "HPC", &["hpc"]),
];

/// The groups of spot that differ: the generations of P have two quotas.
const SPOT_GROUPS: &[Group] = &[("p4_p3_p2", "P4, P3 and P2", &["p4", "p3", "p2"]), ("p5", "P5", &["p5"])];

/// The group of an instance type. The group of an unknown family is the family.
pub fn group_of(market: Market, instance_type: &str) -> &str {
    let up_to = |end: Option<usize>| end.and_then(|end| instance_type.get(..end)).unwrap_or(instance_type);
    let family = up_to(instance_type.find(|c: char| !c.is_ascii_alphabetic()));
    let digits = instance_type.get(family.len()..).unwrap_or_default().find(|c: char| !c.is_ascii_digit());
    let generation = up_to(digits.map(|digits| family.len() + digits));
    let of = |groups: &'static [Group], name: &str| groups.iter().find(|(_, _, of)| of.contains(&name));
    match market {
        Market::Spot => of(SPOT_GROUPS, generation).or_else(|| of(GROUPS, family)),
        Market::OnDemand | Market::Reserved => of(GROUPS, family),
    }
    .map_or(family, |(group, ..)| group)
}

/// The name of a group's quota in Service Quotas.
pub fn quota_name(market: Market, group: &str) -> String {
    let known = GROUPS.iter().chain(SPOT_GROUPS).find(|(known, ..)| *known == group);
    let name = known.map_or(group, |(_, name, _)| name);
    match market {
        Market::OnDemand | Market::Reserved => format!("Running On-Demand {name} instances"),
        Market::Spot => format!("All {name} Spot Instance Requests"),
    }
}

/// The name in Service Quotas of the quota that machines of this type count against.
pub fn quota_of(market: Market, instance_type: &str) -> String {
    quota_name(market, group_of(market, instance_type))
}

/// The names of the quotas of a market.
pub fn names(market: Market) -> impl Iterator<Item = String> {
    let of_spot: &[Group] = if market == Market::Spot { SPOT_GROUPS } else { &[] };
    GROUPS.iter().chain(of_spot).map(move |(group, ..)| quota_name(market, group))
}

/// Whether this is the name of a quota of vCPUs that the table knows.
pub fn is_of_vcpus(name: &str) -> bool {
    names(Market::OnDemand).chain(names(Market::Spot)).any(|known| known == name)
}

/// How much of a quota the nodes of a cluster use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct QuotaUse {
    /// The name of the quota in Service Quotas.
    pub quota: String,
    /// The vCPUs of this cluster's nodes that count for the quota. Other users of the account are not in it.
    pub used_vcpus: u64,
    /// The vCPUs that the account may have.
    pub vcpus: u64,
}

impl QuotaUse {
    /// Whether nine tenths or more are used.
    pub const fn is_nearly_used(&self) -> bool {
        self.used_vcpus > 0 && self.used_vcpus.saturating_mul(10) >= self.vcpus.saturating_mul(9)
    }
}

/// The market whose quota a machine counts against; `None` for one in a capacity block, which counts against none.
fn counts_as(offering: &Offering) -> Option<Market> {
    let kind = offering.reservation.as_ref().map(|reserved| reserved.kind);
    match (offering.market, kind) {
        (_, Some(ReservationKind::CapacityBlock)) => None,
        (Market::Reserved, _) => Some(Market::OnDemand),
        (market, _) => Some(market),
    }
}

/// How much these records use of each of these quotas, which are given by name.
pub fn used(quotas: &BTreeMap<String, u64>, records: &[NodeRecord]) -> Vec<QuotaUse> {
    let mut used: BTreeMap<(Market, &str), u64> = BTreeMap::new();
    for offering in records.iter().filter_map(|record| Some(&record.life()?.offering)) {
        let Some(market) = counts_as(offering) else { continue };
        let vcpus = used.entry((market, group_of(market, &offering.instance_type))).or_default();
        *vcpus = vcpus.saturating_add(offering.capacity.vcpus.into());
    }
    let used: BTreeMap<String, u64> =
        used.into_iter().map(|((market, group), vcpus)| (quota_name(market, group), vcpus)).collect();
    let of = |(quota, vcpus): (&String, &u64)| QuotaUse {
        quota: quota.clone(),
        used_vcpus: used.get(quota).copied().unwrap_or(0),
        vcpus: *vcpus,
    };
    quotas.iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{assigned, slot};

    #[test]
    fn families_that_share_a_quota_are_one_group() {
        for (instance_type, group) in [
            ("m7a.large", "standard"),
            ("t3.micro", "standard"),
            ("is4gen.large", "standard"),
            ("g5.xlarge", "g_vt"),
            ("gr6.4xlarge", "g_vt"),
            ("vt1.3xlarge", "g_vt"),
            ("p5.48xlarge", "p"),
            ("u-6tb1.metal", "high_memory"),
            ("u7i-12tb.224xlarge", "high_memory"),
            ("trn2.48xlarge", "trn"),
            ("x2idn.16xlarge", "x"),
            ("quantum9.large", "quantum"),
            ("", ""),
        ] {
            assert_eq!(group_of(Market::OnDemand, instance_type), group, "{instance_type}");
        }
        for (instance_type, group, quota) in [
            ("p4d.24xlarge", "p4_p3_p2", "All P4, P3 and P2 Spot Instance Requests"),
            ("p5en.48xlarge", "p5", "All P5 Spot Instance Requests"),
            ("p6-b200.48xlarge", "p", "All P Spot Instance Requests"),
            ("m7a.large", "standard", "All Standard (A, C, D, H, I, M, R, T, Z) Spot Instance Requests"),
        ] {
            assert_eq!(group_of(Market::Spot, instance_type), group, "{instance_type}");
            assert_eq!(quota_of(Market::Spot, instance_type), quota);
            assert!(is_of_vcpus(quota));
        }
        assert_eq!(quota_name(Market::OnDemand, "g_vt"), "Running On-Demand G and VT instances");
        assert_eq!(
            quota_name(Market::Spot, "standard"),
            "All Standard (A, C, D, H, I, M, R, T, Z) Spot Instance Requests"
        );
        assert_eq!(quota_name(Market::Spot, "quantum"), "All quantum Spot Instance Requests");
    }

    #[test]
    fn the_nodes_of_a_group_and_market_use_its_quota() {
        let quotas = [("standard", 8), ("g_vt", 0)].map(|(group, vcpus)| (quota_name(Market::OnDemand, group), vcpus));
        let spot = (quota_name(Market::Spot, "standard"), 100);
        let quotas: BTreeMap<String, u64> = quotas.into_iter().chain([spot]).collect();
        assert!(quotas.keys().all(|name| is_of_vcpus(name)) && !is_of_vcpus("EC2-VPC Elastic IPs"));
        let vcpus = u64::from(assigned(0).life().unwrap().offering.capacity.vcpus);
        let cleaned = assigned(2).clean(crate::fixtures::at(1), "gone").unwrap();
        let used = used(&quotas, &[assigned(0), assigned(1), cleaned]);
        let shown: Vec<(&str, u64)> = used.iter().map(|u| (u.quota.as_str(), u.used_vcpus)).collect();
        assert_eq!(
            shown,
            [
                ("All Standard (A, C, D, H, I, M, R, T, Z) Spot Instance Requests", 0),
                ("Running On-Demand G and VT instances", 0),
                ("Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances", 2 * vcpus),
            ],
            "slot {} is free",
            slot(2)
        );
        for (used_vcpus, vcpus, is_nearly_used) in
            [(0, 0, false), (0, 9, false), (8, 9, false), (9, 10, true), (11, 10, true)]
        {
            let quota = QuotaUse { quota: String::new(), used_vcpus, vcpus };
            assert_eq!(quota.is_nearly_used(), is_nearly_used, "{quota:?}");
        }
    }
}
