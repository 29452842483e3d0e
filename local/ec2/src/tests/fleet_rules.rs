//! The rules of CreateFleet: each of them with a call that breaks it, and what EC2 says of single ways.

use super::fleet::{BOTH, SPOT, TOTAL, fleet, launched, types};
use super::*;
use crate::fleet::rules::RULES;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use std::collections::BTreeSet;

const CONFIG: &str = "LaunchTemplateConfigs.1";
const LEAST: &str = "OnDemandOptions.MinTargetCapacity";

/// Types in two subnets of z1, and in one of z2.
fn region() -> Ec2Settings {
    let mut settings = types();
    settings.subnets.push(Ec2Subnet { subnet_id: "subnet-b".into(), zone: "z1".into(), addresses: None });
    settings
}

/// A rule, a call that breaks it (its ways, and its parameters beside a total of one), the code, and a part of the message.
type Case<'a> = (&'a str, Vec<(&'a str, &'a str, &'a str)>, Vec<(&'a str, &'a str)>, &'a str, &'a str);

#[tokio::test]
async fn each_rule_refuses_the_call_that_breaks_it() {
    let both = || BOTH.to_vec();
    let user_data = STANDARD.encode("x".repeat(16 * 1024 + 1));
    let own = format!("{CONFIG}.LaunchTemplateSpecification.LaunchTemplateSpecificationUserData");
    let configs: Vec<(String, &str)> =
        (2..=51).map(|n| (format!("LaunchTemplateConfigs.{n}.LaunchTemplateSpecification.Version"), "1")).collect();
    let many = configs.iter().map(|(name, value)| (name.as_str(), *value)).collect();
    let requirements = [("LaunchTemplateConfigs.1.Overrides.1.InstanceRequirements.VCpuCount.Min", "2")];
    let capacity = "InvalidParameterCombination";
    let value = "InvalidParameterValue";
    let cases: Vec<Case<'_>> = vec![
        (
            "every parameter",
            both(),
            vec![("SpotOptions.Colour", "red")],
            "UnknownParameter",
            "SpotOptions.Colour is not",
        ),
        (
            "no two ways",
            vec![("a.large", "subnet-a", "0"), ("a.large", "subnet-b", "1")],
            vec![],
            "InvalidFleetConfig",
            "duplicate instance pools",
        ),
        ("no two ways", vec![("a.large", "subnet-a", "0"); 2], vec![], "InvalidFleetConfig", "duplicate"),
        ("no two ways", vec![("a.large", "", "0"); 2], vec![], "InvalidFleetConfig", "duplicate"),
        (
            "no two ways",
            vec![("a.large", "subnet-a", "0"), ("b.large", "subnet-b", "1")],
            vec![SPOT],
            "InvalidFleetConfig",
            "duplicate",
        ),
        ("at most 50", both(), many, value, "at most 50"),
        ("a way names one subnet", vec![("a.large", "subnet-a,subnet-c", "0")], vec![], value, "one subnet"),
        ("a way names an instance type", both(), requirements.to_vec(), capacity, "InstanceRequirements"),
        ("a priority", vec![("a.large", "subnet-a", "0.5")], vec![], value, "whole number"),
        ("a priority", vec![("a.large", "subnet-a", "-1")], vec![], value, "whole number"),
        ("user data", both(), vec![(&own, &user_data)], "InvalidUserData.Malformed", "limited to 16384"),
        ("user data", both(), vec![(&own, "!")], "InvalidUserData.Malformed", "BASE64"),
        ("at most 10,000", both(), vec![(TOTAL, "10001")], value, "at most 10000"),
        ("a least number of instances is", both(), vec![(LEAST, "1001")], value, "at most 1000"),
        ("a least number of instances needs", both(), vec![(LEAST, "1")], capacity, "SingleInstanceType"),
        (
            "an interrupted",
            both(),
            vec![SPOT, ("SpotOptions.InstanceInterruptionBehavior", "stop")],
            value,
            "must be null or \"terminate\"",
        ),
        ("what keeps", both(), vec![("ReplaceUnhealthyInstances", "true")], capacity, "maintain"),
        (
            "what keeps",
            both(),
            vec![("SpotOptions.MaintenanceStrategies.CapacityRebalance.ReplacementStrategy", "launch")],
            capacity,
            "maintain",
        ),
        (
            "a number of spot pools",
            both(),
            vec![
                SPOT,
                ("SpotOptions.InstancePoolsToUseCount", "2"),
                ("SpotOptions.AllocationStrategy", "price-capacity-optimized"),
            ],
            capacity,
            "lowest-price",
        ),
        (
            "options of reserved",
            both(),
            vec![("ReservedCapacityOptions.AllocationStrategy", "prioritized")],
            capacity,
            "reserved-capacity",
        ),
        ("a fleet tags", both(), vec![("TagSpecification.1.ResourceType", "vpc")], value, "'vpc' is not a valid"),
    ];
    let bench = Bench::new(region()).await;
    let mut met = BTreeSet::new();
    for (text, ways, more, code, part) in cases {
        let rule = RULES.iter().find(|rule| rule.text.starts_with(text)).unwrap();
        met.insert(rule.text);
        let reply = fleet(&bench, &ways, &[&[(TOTAL, "1")][..], &more].concat()).await;
        reply.is_refused(400, code);
        assert!(reply.one("Message").contains(part), "{text}: {reply:?}");
    }
    let all: BTreeSet<&str> = RULES.iter().map(|rule| rule.text).collect();
    assert_eq!((met, launched(&bench)), (all, vec![]));
    assert!(RULES.iter().all(|rule| rule.source.len() > 5));
}

#[tokio::test]
async fn a_region_may_not_know_the_user_data_of_a_fleet() {
    let bench = Bench::new(Ec2Settings { knows_fleet_user_data: false, ..types() }).await;
    let own = format!("{CONFIG}.LaunchTemplateSpecification.LaunchTemplateSpecificationUserData");
    let reply = fleet(&bench, &BOTH, &[(TOTAL, "1"), (&own, "eA==")]).await;
    reply.is_refused(400, "UnknownParameter");
    assert!(reply.one("Message").contains("LaunchTemplateSpecificationUserData is not recognized"));
    fleet(&bench, &BOTH, &[(TOTAL, "1")]).await.ok();
}

#[tokio::test]
async fn an_image_does_not_run_on_every_type() {
    let image = |id: &str, change: fn(&mut Image)| {
        let mut image = Image { id: id.into(), ..Image::default() };
        change(&mut image);
        image
    };
    let mut settings = types();
    settings.images = vec![
        image("ami-arm", |i| i.architecture = "arm64".into()),
        image("ami-bios", |i| i.boot_mode = Some("legacy-bios".into())),
        image("ami-pv", |i| i.is_hvm = false),
        image("ami-old", |i| i.has_ena = false),
        image("ami-fits", |i| i.boot_mode = Some("uefi".into())),
    ];
    for kind in &mut settings.instance_types {
        (kind.boot_modes, kind.needs_ena) = (vec!["uefi".into()], kind.name == "a.large");
    }
    let bench = Bench::new(settings).await;
    for (image, errors, part) in [
        ("ami-arm", vec!["InvalidParameterValue"; 2], "does not match the architecture 'arm64'"),
        ("ami-bios", vec!["InvalidParameterValue"; 2], "boot mode 'legacy-bios'"),
        ("ami-pv", vec!["InvalidParameterCombination"; 2], "Virtualization type 'hvm' is required"),
        ("ami-old", vec!["InvalidParameterCombination"], "(ENA) is required for the 'a.large'"),
        ("ami-fits", vec![], ""),
    ] {
        let [one, two] = [1, 2].map(|n| format!("{CONFIG}.Overrides.{n}.ImageId"));
        let reply = fleet(&bench, &BOTH, &[(TOTAL, "1"), (&one, image), (&two, image)]).await.ok();
        assert_eq!(reply.all("errorCode"), errors, "{image}");
        assert!(reply.all("errorMessage").iter().all(|message| message.contains(part)), "{reply:?}");
    }
    assert_eq!(launched(&bench).len(), 2, "by ami-old and by ami-fits");
}

/// EC2 gives up after some ways. The others are not tried, whatever it has of them.
#[tokio::test]
async fn a_fleet_gives_up() {
    let ways = [("a.large", "subnet-a", "0"), ("b.large", "subnet-a", "1"), ("c.large", "subnet-c", "2")];
    let none = |kind: &str| Shortage { instance_type: Some(kind.into()), ..Shortage::default() };
    let bench = Bench::new(Ec2Settings { pools_tried: Some(1), ..types() }).await;
    bench.ec2.set_faults(Faults { shortages: vec![none("a.large")], ..Faults::default() });
    let reply = fleet(&bench, &ways, &[(TOTAL, "1")]).await.ok();
    let untried = "UnfulfillableCapacity";
    assert_eq!(reply.all("errorCode"), ["InsufficientInstanceCapacity", untried, untried]);
    // Too many instances in a short time: the call itself is answered.
    let bucket = TokenBucket { size: 1, refill_per_s: 0 };
    let throttle = Some(Throttle { run_instances: bucket, ..Throttle::default() });
    let bench = Bench::new(Ec2Settings { throttle, ..types() }).await;
    let reply = fleet(&bench, &ways, &[(TOTAL, "2")]).await.ok();
    assert_eq!(reply.all("errorCode"), ["RequestLimitExceeded", untried, untried]);
    fleet(&bench, &ways, &[(TOTAL, "1")]).await.ok();
    assert_eq!(launched(&bench).len(), 1);
}

#[tokio::test]
async fn spot_requests_are_tagged_only_where_there_are_some() {
    let bench = Bench::new(types()).await;
    let tags = [
        (TOTAL, "1"),
        ("TagSpecification.1.ResourceType", "spot-instances-request"),
        ("TagSpecification.1.Tag.1.Key", "k"),
        ("TagSpecification.1.Tag.1.Value", "v"),
    ];
    let reply = fleet(&bench, &BOTH, &tags).await.ok();
    assert_eq!(reply.all("errorCode"), ["InvalidParameterValue"; 2]);
    fleet(&bench, &BOTH, &[&tags[..], &[SPOT]].concat()).await.ok();
    assert_eq!(launched(&bench).len(), 1);
}
