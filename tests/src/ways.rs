//! Launches by several ways (types and zones) in one call.

use crate::world::{World, job, quick_policy};
use ec2_stand_in::{Ec2Settings, InstanceType, Subnet};
use model::time::Span;
use serde_json::{Value, json};
use std::collections::BTreeMap;

const TYPES: [&str; 10] = [
    "m7a.large",
    "m7i.large",
    "m6a.large",
    "m6i.large",
    "c7a.large",
    "c7i.large",
    "c6a.large",
    "c6i.large",
    "r7a.large",
    "r6i.large",
];
const ZONES: [&str; 3] = ["z1", "z2", "z3"];

/// A cluster that may buy these types on the spot market in three zones. EC2 has exactly so many of each.
async fn world(types: &[&str], pools: &[(&str, &str, u32)]) -> World {
    world_with(types, pools, &[]).await
}

/// The same cluster, with these capacity reservations in the policy.
async fn world_with(types: &[&str], pools: &[(&str, &str, u32)], reservations: &[&str]) -> World {
    let subnet = |zone: &&str| Subnet { subnet_id: format!("subnet-{zone}"), zone: (*zone).into(), addresses: None };
    let mut policy = quick_policy();
    policy["nodes"] = json!({"max": 1000});
    policy["size"] = json!([{"name": "any", "instance_types": types, "market": "spot"}]);
    policy["launch"]["subnets"] = ZONES.iter().map(|zone| format!("subnet-{zone}")).collect();
    policy["launch"]["reservations"] = json!(reservations);
    policy["launch"]["max_per_run"] = json!(1000);
    policy["launch"]["calls_per_second"] = json!(1000);
    let of_type = |(n, kind): (usize, &&str)| {
        let on_demand = Some(format!("0.1{n}00000000"));
        InstanceType { name: (*kind).into(), vcpus: 2, memory_mib: 8192, on_demand, ..InstanceType::default() }
    };
    let instance_types = types.iter().enumerate().map(of_type).collect();
    let subnets = ZONES.iter().map(subnet).collect();
    let settings = Ec2Settings { subnets, instance_types, ..Ec2Settings::default() };
    let mut world = World::with(policy, settings).await;
    world.settings.key = None;
    let short = |(kind, zone, left): &(&str, &str, u32)| json!({"instance_type": kind, "zone": zone, "left": left});
    let shortages: Vec<Value> = pools.iter().map(short).collect();
    world.ec2.set_faults(serde_json::from_value(json!({"shortages": shortages})).unwrap());
    world.clean().await.unwrap();
    world
}

async fn lonely_jobs(world: &World, count: usize) {
    let mut spec = job(&["one"]);
    spec.needs.exclusive = true;
    for _ in 0..count {
        world.submit(spec.clone()).await;
    }
}

fn calls(world: &World) -> usize {
    world.switch.log().iter().filter(|call| *call == "CreateFleet").count()
}

/// For each instance, its real type and zone, and those in its record.
async fn launched(world: &World) -> Vec<((String, String), (String, String))> {
    let instances: BTreeMap<String, (String, String)> = world
        .ec2
        .instances()
        .into_iter()
        .map(|instance| (instance.instance_id, (instance.instance_type, instance.subnet_id)))
        .collect();
    let nodes = world.look.nodes().await.unwrap();
    let lives = nodes.iter().filter_map(|node| node.life());
    let of = |life: &model::Life| {
        let offering = &life.offering;
        let said = (offering.instance_type.clone(), offering.subnet_id.clone().unwrap());
        (instances[life.instance_id.as_ref().unwrap()].clone(), said)
    };
    lives.map(of).collect()
}

#[tokio::test]
async fn one_call_goes_on_with_the_next_way_and_each_record_says_by_which_it_was_launched() {
    let [one, two] = ["m7a.large", "m7i.large"];
    let none = |kind| ZONES.map(|zone| (kind, zone, 0));
    let mut pools = [none(one), none(two)].concat();
    for (kind, zone, left) in &mut pools {
        *left = match (*kind, *zone) {
            (kind, "z1") if kind == one => 1,
            (kind, "z3") if kind == two => 3,
            _ => 0,
        };
    }
    let world = world(&[one, two], &pools).await;
    lonely_jobs(&world, 4).await;
    let answer = world.poll().await.unwrap();
    world.check().await;
    let launched = launched(&world).await;
    assert_eq!((launched.len(), calls(&world)), (4, 1), "{answer:?}");
    assert!(launched.iter().all(|(is, said)| is == said), "{launched:?}");
    let kinds: Vec<&str> = launched.iter().map(|((kind, _), _)| kind.as_str()).collect();
    assert_eq!(kinds.iter().filter(|kind| **kind == two).count(), 3, "{kinds:?}");
    // The event of each launch names the type, the zone and the price.
    let events = world.look.events().await.unwrap();
    let bought: Vec<String> =
        events.iter().filter_map(|e| e.detail.get("launched")?.as_str().map(str::to_owned)).collect();
    assert_eq!(bought.iter().filter(|what| what.starts_with("spot m7i.large in z3 $")).count(), 3, "{bought:?}");
    // A way that ran short is limited. A way that gave instances is not.
    let control = world.look.control().await.unwrap();
    let limits: Vec<String> = control.limits(world.now()).iter().map(|limit| limit.key().to_string()).collect();
    assert!(limits.contains(&format!("limit#short#offering#spot#{two}#z1")), "{limits:?}");
    assert!(!limits.contains(&format!("limit#short#offering#spot#{two}#z3")), "{limits:?}");
}

/// A burst: one run launches a thousand nodes, though no pool has more than a few dozen. Each instance becomes a node,
/// and no call is refused.
#[tokio::test]
async fn a_thousand_nodes_come_from_ten_types_in_three_zones() {
    let of_type = |(n, kind): (usize, &'static str)| {
        ZONES.into_iter().enumerate().map(move |(z, zone)| (kind, zone, 20 + 7 * ((n * 3 + z) % 7) as u32))
    };
    let pools: Vec<_> = TYPES.into_iter().enumerate().flat_map(of_type).collect();
    let most: u32 = pools.iter().map(|(_, _, left)| left).sum();
    assert!((1000..1300).contains(&most), "EC2 has {most}");
    let world = world(&TYPES, &pools).await;
    lonely_jobs(&world, 1000).await;
    world.poll().await.unwrap();
    world.check().await;
    let launched = launched(&world).await;
    assert!(launched.iter().all(|(is, said)| is == said), "{launched:?}");
    assert_eq!((launched.len(), world.ec2.instances().len(), calls(&world)), (1000, 1000, 11));
}

/// The reservation is filled first, and the rest is bought. When the reservation ends, its nodes are drained.
#[tokio::test]
async fn a_reservation_is_used_up_before_anything_is_bought() {
    let world = world_with(&["m7a.large"], &[], &["cr-1"]).await;
    let ends_at = (world.now() + Span::from_s(3_600)).as_ms();
    let reservation = json!({"id": "cr-1", "kind": "on-demand-capacity-reservation", "instance_type": "m7a.large",
                             "zone": "z2", "total": 2, "free": 0, "ends_at": ends_at});
    world.ec2.set_faults(serde_json::from_value(json!({"capacity_reservations": [reservation]})).unwrap());
    world.pass(300);
    world.clean().await.unwrap();
    lonely_jobs(&world, 3).await;
    world.poll().await.unwrap();
    world.check().await;
    let markets = |instances: Vec<ec2_stand_in::Instance>| {
        let mut markets: Vec<_> = instances.into_iter().map(|i| (i.market.as_str(), i.capacity_reservation)).collect();
        markets.sort();
        markets
    };
    let in_it = || ("reserved", Some("cr-1".to_owned()));
    assert_eq!(markets(world.ec2.instances()), [in_it(), in_it(), ("spot", None)]);
    let nodes = world.look.nodes().await.unwrap();
    let prices: Vec<u64> = nodes.iter().filter_map(|n| Some(n.life()?.offering.price_per_hour.micros())).collect();
    assert_eq!(prices.iter().filter(|price| **price == 0).count(), 2, "{prices:?}");
    world.pass(3_000);
    world.poll().await.unwrap();
    let nodes = world.look.nodes().await.unwrap();
    let drains = nodes.iter().filter_map(|n| n.life()).filter(|l| l.intent == model::Intent::Drain).count();
    assert_eq!(drains, 2);
}
