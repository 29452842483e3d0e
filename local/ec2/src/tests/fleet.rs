//! CreateFleet.

use super::*;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use model::Market;

/// Three types: the first is the cheapest on demand, and the second on the spot market. The third is in one zone only.
pub(super) fn types() -> Ec2Settings {
    let kind = |name: &str, price: &str, spot: &str| InstanceType {
        name: name.into(),
        vcpus: 2,
        on_demand: Some(price.into()),
        spot: ["z1", "z2"].map(|zone| (zone.to_owned(), spot.to_owned())).into(),
        ..InstanceType::default()
    };
    let version = TemplateVersion { version: 1, user_data: Some("of the template".into()), ..Default::default() };
    Ec2Settings {
        instance_types: vec![
            kind("a.large", "0.1", "0.06"),
            kind("b.large", "0.2", "0.03"),
            InstanceType { zones: vec!["z2".into()], ..kind("c.large", "0.3", "0.09") },
        ],
        launch_templates: vec![LaunchTemplate {
            id: "lt-1".into(),
            name: "node".into(),
            default_version: 1,
            versions: vec![version],
        }],
        ..two_zones()
    }
}

/// CreateFleet for these overrides (type, subnet, priority), with these parameters added.
pub(super) async fn fleet(bench: &Bench, overrides: &[(&str, &str, &str)], more: &[(&str, &str)]) -> Reply {
    let config = "LaunchTemplateConfigs.1";
    let mut params = vec![
        ("Type".to_owned(), "instant"),
        (format!("{config}.LaunchTemplateSpecification.LaunchTemplateName"), "node"),
        (format!("{config}.LaunchTemplateSpecification.Version"), "1"),
    ];
    for (n, (kind, subnet, priority)) in overrides.iter().enumerate() {
        let given = [("InstanceType", kind), ("SubnetId", subnet), ("Priority", priority)];
        params.extend(given.map(|(name, value)| (format!("{config}.Overrides.{}.{name}", n + 1), *value)));
    }
    params.retain(|(name, _)| !more.iter().any(|(given, _)| given == name));
    params.extend(more.iter().map(|(name, value)| ((*name).to_owned(), *value)));
    let params: Vec<(&str, &str)> = params.iter().map(|(name, value)| (name.as_str(), *value)).collect();
    bench.call("CreateFleet", &params).await
}

pub(super) const TOTAL: &str = "TargetCapacitySpecification.TotalTargetCapacity";
pub(super) const SPOT: (&str, &str) = ("TargetCapacitySpecification.DefaultTargetCapacityType", "spot");
pub(super) const BOTH: [(&str, &str, &str); 2] = [("a.large", "subnet-a", "2"), ("b.large", "subnet-c", "1")];

/// Type, zone and market of all instances, in launch order.
pub(super) fn launched(bench: &Bench) -> Vec<(String, String, Market)> {
    bench.ec2.instances().into_iter().map(|i| (i.instance_type, i.zone, i.market)).collect()
}

#[tokio::test]
async fn the_strategy_orders_the_ways() {
    // The strategy, whether the market is spot, and the type that is launched.
    for (strategy, is_spot, expected) in [
        ("", false, "a.large"),
        ("lowest-price", false, "a.large"),
        ("prioritized", false, "b.large"),
        ("", true, "b.large"),
        ("price-capacity-optimized", true, "b.large"),
        ("capacity-optimized-prioritized", true, "b.large"),
    ] {
        let bench = Bench::new(types()).await;
        let mut more = vec![(TOTAL, "2")];
        more.extend(is_spot.then_some(SPOT));
        let name = if is_spot { "SpotOptions.AllocationStrategy" } else { "OnDemandOptions.AllocationStrategy" };
        more.push((name, strategy));
        let reply = fleet(&bench, &BOTH, &more).await.ok();
        let market = if is_spot { Market::Spot } else { Market::OnDemand };
        let zone = if expected == "a.large" { "z1" } else { "z2" };
        assert_eq!(launched(&bench), vec![(expected.to_owned(), zone.to_owned(), market); 2], "{strategy}");
        assert!(reply.one("fleetId").starts_with("fleet-"));
        assert_eq!(reply.one("lifecycle"), if is_spot { "spot" } else { "on-demand" });
        let ids: Vec<String> = bench.ec2.instances().into_iter().map(|i| i.instance_id).collect();
        let shown: String = ids.iter().map(|id| format!("<item>{id}</item>")).collect();
        assert!(reply.body.contains(&format!("<instanceIds>{shown}</instanceIds>")), "{reply:?}");
        assert!(reply.body.contains("<errorSet></errorSet>"), "{reply:?}");
    }
}

#[tokio::test]
async fn what_one_way_cannot_launch_another_does() {
    let bench = Bench::new(types()).await;
    let short = |kind: &str, left| Shortage { instance_type: Some(kind.into()), left, ..Shortage::default() };
    bench.ec2.set_faults(Faults { shortages: vec![short("a.large", 2), short("c.large", 0)], ..Faults::default() });
    let ways =
        [("c.large", "subnet-a", "0"), ("c.large", "subnet-c", "1"), ("a.large", "subnet-x", "2"), BOTH[0], BOTH[1]];
    let reply = fleet(&bench, &ways, &[(TOTAL, "5"), ("OnDemandOptions.AllocationStrategy", "prioritized")]).await.ok();
    let names: Vec<String> = launched(&bench).into_iter().map(|(name, ..)| name).collect();
    assert_eq!(names, ["b.large"; 5], "b.large is in front of a.large");
    assert_eq!(reply.all("errorCode"), ["InvalidFleetConfiguration", "InsufficientInstanceCapacity"]);

    let reply = fleet(&bench, &ways, &[(TOTAL, "5")]).await.ok();
    let names: Vec<String> = launched(&bench).into_iter().skip(5).map(|(name, ..)| name).collect();
    assert_eq!(names, ["a.large", "a.large", "b.large", "b.large", "b.large"], "by price");
    assert_eq!(reply.all("errorCode"), ["InvalidSubnetID.NotFound"], "c.large is not tried");
    let overrides = reply.body.contains("<overrides><instanceType>a.large</instanceType><subnetId>subnet-a</subnetId>");
    assert!(overrides && reply.body.contains("<launchTemplateName>node</launchTemplateName><version>1</version>"));
}

#[tokio::test]
async fn a_fleet_of_one_type_launches_its_least_or_nothing() {
    let bench = Bench::new(types()).await;
    let shortage = Shortage { instance_type: Some("a.large".into()), left: 2, ..Shortage::default() };
    bench.ec2.set_faults(Faults { shortages: vec![shortage], ..Faults::default() });
    let (single, least) = (("OnDemandOptions.SingleInstanceType", "true"), "OnDemandOptions.MinTargetCapacity");
    fleet(&bench, &BOTH, &[(TOTAL, "4"), (least, "3")]).await.is_refused(400, "InvalidParameterCombination");
    fleet(&bench, &BOTH[..1], &[(TOTAL, "4"), (least, "3"), single]).await.ok();
    assert_eq!(launched(&bench), []);
    fleet(&bench, &BOTH, &[(TOTAL, "4"), (least, "3"), single]).await.ok();
    let names: Vec<String> = launched(&bench).into_iter().map(|(name, ..)| name).collect();
    assert_eq!(names, ["b.large"; 4], "a.large has only two");
    fleet(&bench, &BOTH, &[(TOTAL, "4"), (least, "2"), single]).await.ok();
    assert_eq!(launched(&bench).len(), 6, "two of a.large, and none of another type");
}

#[tokio::test]
async fn a_fleets_token_answers_as_the_first_call() {
    let bench = Bench::new(types()).await;
    let params = [(TOTAL, "2"), ("ClientToken", "t")];
    let first = fleet(&bench, &BOTH, &params).await.ok();
    let again = fleet(&bench, &BOTH, &params).await.ok();
    assert_eq!((again.one("fleetId"), bench.ec2.instances().len()), (first.one("fleetId"), 2));
    let other = fleet(&bench, &BOTH, &[(TOTAL, "3"), ("ClientToken", "t")]).await;
    other.is_refused(400, "IdempotentParameterMismatch");
    bench.ec2.set_faults(Faults { lose_run_answers: 1, lost_as: LostAs::InternalError, ..Faults::default() });
    let lost = [(TOTAL, "1"), ("ClientToken", "u")];
    fleet(&bench, &BOTH, &lost).await.is_refused(500, "InternalError");
    fleet(&bench, &BOTH, &lost).await.ok();
    assert_eq!(bench.ec2.instances().len(), 3, "the lost call launched, and the next one did not");
}

#[tokio::test]
async fn instances_have_the_fleets_tags_and_user_data() {
    let bench = Bench::new(types()).await;
    let user_data = STANDARD.encode("of the fleet");
    let own =
        ("LaunchTemplateConfigs.1.LaunchTemplateSpecification.LaunchTemplateSpecificationUserData", user_data.as_str());
    let tags = [
        ("TagSpecification.1.ResourceType", "fleet"),
        ("TagSpecification.1.Tag.1.Key", "of"),
        ("TagSpecification.1.Tag.1.Value", "fleet"),
        ("TagSpecification.2.ResourceType", "instance"),
        ("TagSpecification.2.Tag.1.Key", "of"),
        ("TagSpecification.2.Tag.1.Value", "instance"),
    ];
    fleet(&bench, &BOTH, &[&[(TOTAL, "1"), own][..], &tags].concat()).await.ok();
    fleet(&bench, &BOTH, &[(TOTAL, "1")]).await.ok();
    bench.wait(1_500);
    bench.ec2.advance();
    let started = bench.machines.started.lock().unwrap();
    let seen: Vec<_> = started.iter().map(|m| (m.user_data.as_str(), m.tags.get("of").map(String::as_str))).collect();
    assert_eq!(seen, [("of the fleet", Some("instance")), ("of the template", None)]);
}

#[tokio::test]
async fn a_fleet_that_cannot_be_read_is_refused() {
    let bench = Bench::new(types()).await;
    let version = "LaunchTemplateConfigs.1.LaunchTemplateSpecification.Version";
    for (params, code) in [
        (vec![], "MissingParameter"),
        (vec![(TOTAL, "0")], "MissingParameter"),
        (vec![(TOTAL, "x")], "InvalidParameterValue"),
        (vec![(TOTAL, "1"), ("Type", "maintain")], "InvalidParameterValue"),
        (vec![(TOTAL, "1"), (version, "")], "MissingParameter"),
        (vec![(TOTAL, "1"), (version, "7")], "InvalidLaunchTemplateId.VersionNotFound"),
        (vec![(TOTAL, "1"), (SPOT.0, "cheap")], "InvalidParameterValue"),
        (vec![(TOTAL, "1"), ("OnDemandOptions.AllocationStrategy", "dear")], "InvalidParameterValue"),
        (vec![(TOTAL, "2"), ("TargetCapacitySpecification.SpotTargetCapacity", "1")], "InvalidParameterValue"),
    ] {
        fleet(&bench, &BOTH, &params).await.is_refused(400, code);
    }
    bench.call("CreateFleet", &[("Type", "instant"), (TOTAL, "1")]).await.is_refused(400, "MissingParameter");
    assert_eq!(launched(&bench), []);
}

#[tokio::test]
async fn a_fleet_launches_in_the_reservation_that_it_names() {
    let bench = Bench::new(types()).await;
    let reservation = serde_json::json!({"id": "cr-1", "kind": "on-demand-capacity-reservation", "instance_type": "a.large",
                                         "zone": "z1", "total": 2, "free": 0});
    let faults = serde_json::json!({ "capacity_reservations": [reservation] });
    bench.ec2.set_faults(serde_json::from_value(faults).unwrap());
    let of = |id: &'static str| {
        let more = [
            (TOTAL, "3"),
            ("TargetCapacitySpecification.DefaultTargetCapacityType", "reserved-capacity"),
            ("ReservedCapacityOptions.AllocationStrategy", "prioritized"),
            ("ReservedCapacityOptions.CapacityReservationTarget.CapacityReservationId.1", id),
        ];
        let bench = &bench;
        async move { fleet(bench, &[("a.large", "subnet-a", "0")], &more).await }
    };
    of("cr-1").await.ok();
    let launched: Vec<_> = bench.ec2.instances().into_iter().map(|i| i.capacity_reservation).collect();
    assert_eq!(launched, vec![Some("cr-1".to_owned()); 2], "as many as there are");
    assert_eq!(of("cr-1").await.ok().one("errorCode"), "ReservationCapacityExceeded");
    assert_eq!(of("cr-x").await.ok().one("errorCode"), "InvalidCapacityReservationId.NotFound");
    let none = [(TOTAL, "1"), ("TargetCapacitySpecification.DefaultTargetCapacityType", "reserved-capacity")];
    fleet(&bench, &BOTH, &none).await.is_refused(400, "InvalidParameterValue");
}
