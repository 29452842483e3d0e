//! Launches by several ways (types and zones) in one call.

use crate::world::all_rows::AllRows;
use crate::world::{World, job, quick_policy};
use ec2_stand_in::{Ec2Settings, Ec2Subnet, InstanceType};
use model::{MarketNeed, Rng, Span};
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
    let subnet = |zone: &&str| Ec2Subnet { subnet_id: format!("subnet-{zone}"), zone: (*zone).into(), addresses: None };
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
    count(world, "CreateFleet")
}

fn count(world: &World, name: &str) -> usize {
    world.switch.log().iter().filter(|call| *call == name).count()
}

/// A cluster in these subnets, each with its zone, and a size of one type on demand.
async fn in_subnets(subnets: &[(&str, &str)], settings: Ec2Settings) -> World {
    let mut policy = quick_policy();
    policy["nodes"] = json!({"max": 100});
    policy["launch"]["subnets"] = subnets.iter().map(|(id, _)| *id).collect();
    let subnet =
        |(id, zone): &(&str, &str)| Ec2Subnet { subnet_id: (*id).into(), zone: (*zone).into(), addresses: None };
    let settings = Ec2Settings { subnets: subnets.iter().map(subnet).collect(), ..settings };
    let mut world = World::with(policy, settings).await;
    world.settings.key = None;
    world
}

/// What EC2 refused, as the limits say it.
async fn limits(world: &World) -> Vec<String> {
    let control = world.look.control().await.unwrap();
    control
        .limits(world.now())
        .iter()
        .map(|limit| format!("{} {}", limit.key, limit.row.message.as_deref().unwrap_or("")))
        .collect()
}

const FOUR: [(&str, &str); 4] = [("subnet-a1", "a"), ("subnet-a2", "a"), ("subnet-b1", "b"), ("subnet-b2", "b")];

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
    let limits: Vec<String> = control.limits(world.now()).iter().map(|limit| limit.key.to_string()).collect();
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
    let markets = |instances: Vec<ec2_stand_in::Ec2Instance>| {
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

/// Most VPCs look like this: four subnets in two zones. EC2 takes no call that names two subnets of a zone.
#[tokio::test]
async fn from_nothing_to_the_first_instance_with_four_subnets_in_two_zones_is_one_call() {
    for are_zones_known in [false, true] {
        let world = in_subnets(&FOUR, Ec2Settings::default()).await;
        if are_zones_known {
            world.clean().await.unwrap();
        }
        lonely_jobs(&world, 1).await;
        world.poll().await.unwrap();
        world.check().await;
        assert_eq!((world.ec2.instances().len(), calls(&world)), (1, 1), "{are_zones_known}");
        assert_eq!(limits(&world).await, Vec::<String>::new());
    }
}

/// The first subnet of each zone is full: the next call of the same run names the second ones.
#[tokio::test]
async fn the_other_subnets_of_a_zone_are_named_by_the_next_call() {
    let world = in_subnets(&FOUR, Ec2Settings::default()).await;
    world.clean().await.unwrap();
    let full = |subnet: &str| json!({"action": "RunInstances", "subnet_id": subnet, "code": "InsufficientFreeAddressesInSubnet", "times": 99});
    let faults = json!({"fail": [full("subnet-a1"), full("subnet-b1")]});
    world.ec2.set_faults(serde_json::from_value(faults).unwrap());
    lonely_jobs(&world, 1).await;
    world.poll().await.unwrap();
    world.check().await;
    let subnets: Vec<String> = world.ec2.instances().into_iter().map(|i| i.subnet_id).collect();
    assert_eq!((subnets, calls(&world)), (vec!["subnet-a2".to_owned()], 2));
    let limits = limits(&world).await;
    assert!(limits.iter().all(|limit| limit.starts_with("limit#short#subnet#subnet-")), "{limits:?}");
}

/// EC2 gives up after one way. Another call of the same run names what it did not try, and what it did not try is not limited.
#[tokio::test]
async fn what_ec2_did_not_try_is_tried_by_the_next_call_and_is_not_short() {
    let settings = Ec2Settings { pools_tried: Some(1), ..Ec2Settings::default() };
    let world = in_subnets(&[FOUR[0], FOUR[2]], settings).await;
    world.clean().await.unwrap();
    let short = json!({"shortages": [{"zone": "a", "left": 0}]});
    world.ec2.set_faults(serde_json::from_value(short).unwrap());
    lonely_jobs(&world, 1).await;
    world.poll().await.unwrap();
    world.check().await;
    let zones: Vec<String> = world.ec2.instances().into_iter().map(|i| i.zone).collect();
    assert_eq!((zones, calls(&world)), (vec!["b".to_owned()], 2));
    let limits = limits(&world).await;
    assert!(limits.len() == 1 && limits[0].starts_with("limit#short#offering#on_demand#m7a.large#a "), "{limits:?}");
}

/// Where EC2 does not know the user data of a fleet, each way is a call of its own, and that is remembered for an hour.
#[tokio::test]
async fn a_region_that_does_not_take_a_fleet_is_launched_in_by_the_other_call() {
    let settings = Ec2Settings { knows_fleet_user_data: false, ..Ec2Settings::default() };
    let mut world = in_subnets(&FOUR, settings).await;
    world.clean().await.unwrap();
    let short = json!({"shortages": [{"zone": "a", "left": 0}]});
    world.ec2.set_faults(serde_json::from_value(short).unwrap());
    lonely_jobs(&world, 2).await;
    let answer = world.poll().await.unwrap();
    world.check().await;
    let zones: Vec<String> = world.ec2.instances().into_iter().map(|i| i.zone).collect();
    // The fleet, the way that was short, and the batch by the next way.
    assert_eq!((zones, calls(&world), count(&world, "RunInstances")), (vec!["b".to_owned(); 2], 1, 2), "{answer:?}");
    let limits = limits(&world).await;
    assert!(limits.iter().any(|limit| limit.starts_with("limit#wrong#fleet ") && limit.contains("UnknownParameter")));
    // The nodes come up as others do, and the next launch does not try the fleet.
    lonely_jobs(&world, 1).await;
    world.step().await;
    assert_eq!((calls(&world), world.ec2.instances().len()), (1, 3));
    // An answer that is lost is asked for again with the same token.
    let lost = json!({"lose_run_answers": 1, "lost_as": "internal_error"});
    world.ec2.set_faults(serde_json::from_value(lost).unwrap());
    lonely_jobs(&world, 1).await;
    world.poll().await.unwrap();
    assert_eq!(world.ec2.instances().len(), 4);
    world.pass(70);
    world.poll().await.unwrap();
    world.check().await;
    let named =
        world.look.nodes().await.unwrap().iter().filter(|n| n.life().is_some_and(|l| l.instance_id.is_some())).count();
    assert_eq!((calls(&world), world.ec2.instances().len(), named), (1, 4, 4));
    // After an hour the fleet is tried again, once.
    world.pass(3_600);
    lonely_jobs(&world, 2).await;
    world.poll().await.unwrap();
    assert_eq!(calls(&world), 2);
}

/// A random cluster: its policy, the region, and what the region is short of. Returns its world and the policy as a text.
async fn random_world(rng: &Rng) -> (World, String) {
    let pick = |n: usize| rng.between(0.0, n as f64 - 0.001) as usize;
    let zones = 1 + pick(3);
    let subnets: Vec<(String, String)> =
        (0..pick(7)).map(|n| (format!("subnet-{n}"), format!("z{}", pick(zones)))).collect();
    let types: Vec<&str> = TYPES.into_iter().filter(|_| pick(3) == 0).collect();
    let market = ["spot", "on_demand"][pick(2)];
    let fallback = if market == "spot" { ["none", "on_demand"][pick(2)] } else { "none" };
    let mut sizes = vec![json!({"name": "one", "instance_type": "m7a.large", "vcpus": 2, "memory_mib": 8192,
                                "price_per_hour": 0.1, "market": market, "fallback": fallback})];
    if !types.is_empty() {
        sizes.push(json!({"name": "any", "instance_types": types, "market": market, "fallback": fallback}));
    }
    let mut policy = quick_policy();
    policy["nodes"] = json!({"max": 20});
    policy["size"] = json!(sizes);
    let launch = json!({"subnets": subnets.iter().map(|(id, _)| id).collect::<Vec<_>>(), "max_per_call": 1 + pick(9),
                        "zone_share": if pick(3) == 0 && subnets.len() > 1 { 0.6 } else { 1.0 }});
    policy["launch"].as_object_mut().unwrap().extend(launch.as_object().unwrap().clone());
    let of_type = |kind: &&str| InstanceType {
        name: (*kind).into(),
        vcpus: 2,
        memory_mib: 8192,
        on_demand: Some("0.1000000000".into()),
        ..InstanceType::default()
    };
    let mut region = Ec2Settings {
        instance_types: TYPES.iter().map(of_type).collect(),
        knows_fleet_user_data: pick(5) > 0,
        pools_tried: [None, Some(1), Some(3)][pick(3)],
        ..Ec2Settings::default()
    };
    if !subnets.is_empty() {
        let subnet = |(subnet_id, zone): (String, String)| {
            let addresses = [None, Some(1), Some(4)][pick(3)];
            Ec2Subnet { subnet_id, zone, addresses }
        };
        region.subnets = subnets.into_iter().map(subnet).collect();
    }
    let says = format!("{policy} {region:?}");
    let mut world = World::with(policy, region).await;
    world.settings.key = None;
    let short = |_| json!({"instance_type": TYPES[pick(10)], "zone": format!("z{}", pick(zones)), "left": pick(3)});
    let shortages: Vec<Value> = (0..pick(12)).map(short).collect();
    world.ec2.set_faults(serde_json::from_value(json!({"shortages": shortages})).unwrap());
    // Without this run, neither the zones nor the types are known.
    if pick(4) > 0 {
        world.clean().await.unwrap();
    }
    (world, says)
}

/// Subnets × zones × types × markets × what is known: EC2 refuses no call for what the call itself says.
#[tokio::test]
async fn ec2_takes_every_call_whatever_the_policy_says() {
    let mut launched = 0;
    for seed in 0..150 {
        let rng = Rng::seeded(seed);
        let (world, says) = random_world(&rng).await;
        let markets = [None, Some(MarketNeed::Spot), Some(MarketNeed::OnDemand), Some(MarketNeed::SpotFirst)];
        for n in 0..(1 + seed % 4) {
            let mut spec = job(&["one"]);
            spec.needs.exclusive = true;
            spec.needs.nodes = 1 + (seed as u32 + n as u32) % 3;
            spec.needs.machine.market = markets[(seed as usize + n as usize) % 4];
            world.submit(spec).await;
        }
        for _ in 0..3 {
            world.poll().await.unwrap();
            world.check().await;
            world.pass(200);
        }
        launched += world.ec2.instances().len();
        let events = world.look.events().await.unwrap();
        let is_known = says.contains("knows_fleet_user_data: true");
        for says_ec2 in events.iter().map(|event| &event.reason).chain(&limits(&world).await) {
            let is_wrong = ["Invalid", "Missing", "Malformed"].iter().any(|code| says_ec2.contains(code))
                || (is_known && says_ec2.contains("UnknownParameter"));
            assert!(!is_wrong, "seed {seed}: {says_ec2}\n{says}");
        }
    }
    assert!(launched > 200, "{launched} instances in all worlds");
}
