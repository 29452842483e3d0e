//! The quotas of vCPUs: which instance families share one, and how AWS calls it.
//!
//! Guarantees: every instance type has a group. A family that is in no group of the table is a group of its own, so that a
//! quota of a new family stops no other one.
//! Does not: know how high a quota is, or which other quotas an account has.
//! Source: EC2 User Guide, "Amazon EC2 instance type quotas" and "Quotas for Spot Instance requests".

use crate::enums::Market;

/// The families of each group, and the group's name in Service Quotas.
const GROUPS: &[(&str, &str, &[&str])] = &[
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

/// The group of an instance type. The group of an unknown family is the family.
pub fn group_of(instance_type: &str) -> &str {
    let letters = instance_type.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(instance_type.len());
    let family = instance_type.get(..letters).unwrap_or(instance_type);
    GROUPS.iter().find(|(_, _, families)| families.contains(&family)).map_or(family, |(group, ..)| group)
}

/// The name of a group's quota in Service Quotas.
pub fn quota_name(market: Market, group: &str) -> String {
    let name = GROUPS.iter().find(|(known, ..)| *known == group).map_or(group, |(_, name, _)| name);
    match market {
        Market::OnDemand => format!("Running On-Demand {name} instances"),
        Market::Spot => format!("All {name} Spot Instance Requests"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            assert_eq!(group_of(instance_type), group, "{instance_type}");
        }
        assert_eq!(quota_name(Market::OnDemand, "g_vt"), "Running On-Demand G and VT instances");
        assert_eq!(
            quota_name(Market::Spot, "standard"),
            "All Standard (A, C, D, H, I, M, R, T, Z) Spot Instance Requests"
        );
        assert_eq!(quota_name(Market::Spot, "quantum"), "All quantum Spot Instance Requests");
    }
}
