//! Tests of the plan: capacity reservations.

use super::*;
use model::enums::ReservationKind;
use model::{CapacityReservation, Catalogue, CataloguePart, Market, MarketNeed, Offering, PartState, Reserved, Subnet};

/// A reservation of `m7a.large` in zone a, with this many free machines.
fn of(free: u32) -> CapacityReservation {
    CapacityReservation {
        kind: ReservationKind::OnDemand,
        instance_type: "m7a.large".into(),
        zone: "a".into(),
        total: 3,
        free,
        ends_at: None,
    }
}

/// The example policy in subnet-a and subnet-b, with these reservations as EC2 told them at second 0.
fn reserved(policy: Value, reservations: &[(&str, CapacityReservation)]) -> Given {
    let mut given = given(policy);
    let policy = &mut given.seen.policy;
    policy.launch.subnets = ["a", "b"].map(|zone| format!("subnet-{zone}")).into();
    policy.launch.reservations = reservations.iter().map(|(id, _)| (*id).to_owned()).collect();
    let subnet = |zone: &str| (format!("subnet-{zone}"), Subnet { zone: zone.into(), free: 100 });
    let read = PartState { read_at: Some(at(0)), ..PartState::default() };
    let catalogue = Catalogue {
        subnets: ["a", "b"].map(subnet).into(),
        reservations: reservations.iter().map(|(id, it)| ((*id).to_owned(), it.clone())).collect(),
        parts: CataloguePart::ALL.into_iter().map(|part| (part, read.clone())).collect(),
        wanted: policy.catalogue_wanted(),
        ..Catalogue::default()
    };
    given.seen.policy = given.seen.policy.clone().with_catalogue(catalogue);
    given
}

/// The best way of each launch, and how many other ways it has.
fn launches(given: &Given) -> Vec<String> {
    let word = |o: &Offering| {
        let place = o.reservation.as_ref().map_or_else(|| o.zone.clone().unwrap(), |r| r.id.clone());
        format!("{} {} {place} {}", o.size, o.market, o.price_per_hour.micros() / 1000)
    };
    let plan = plan(&given.seen, at(100));
    let ways = plan.actions.iter().filter_map(|planned| match &planned.action {
        Action::Launch { offerings, .. } => Some(format!("{}, {} more", word(&offerings[0]), offerings.len() - 1)),
        _ => None,
    });
    ways.collect()
}

const IN_IT: &str = "small reserved cr-1 0, 4 more";
const BOUGHT: &str = "small on_demand a 116, 3 more";

#[test]
fn a_reservation_is_used_first_and_up_to_what_is_free() {
    let four = |given: Given| (5..9).fold(given, |given, n| given.job(n, whole));
    let given = four(reserved(json!({}), &[("cr-1", of(2))]));
    assert_eq!(launches(&given), [IN_IT, IN_IT, BOUGHT, BOUGHT]);
    // EC2 told the number of free machines before this node was launched.
    let mut record = fixtures::assigned(0);
    if let NodeState::Assigned(life) = &mut record.state {
        life.offering.market = Market::Reserved;
        life.offering.reservation = Some(Reserved { id: "cr-1".into(), kind: ReservationKind::OnDemand });
        life.launch_claim_until_at = at(200);
    }
    let later = four(reserved(json!({}), &[("cr-1", of(2))]).unlisted(record.clone()));
    assert_eq!(launches(&later), [IN_IT, BOUGHT, BOUGHT], "a fourth job is for the node that boots");
    if let NodeState::Assigned(life) = &mut record.state {
        life.launch_claim_until_at = at(-1);
    }
    let known = four(reserved(json!({}), &[("cr-1", of(2))]).unlisted(record));
    assert_eq!(launches(&known), [IN_IT, IN_IT, BOUGHT]);
}

#[test]
fn a_reservation_is_used_in_its_zone_and_for_every_market() {
    for market in [MarketNeed::OnDemand, MarketNeed::Spot, MarketNeed::SpotFirst] {
        let given = reserved(json!({}), &[("cr-1", of(1))]);
        let given = given.job(5, |spec| spec.needs.machine.market = Some(market));
        let first = launches(&given).remove(0);
        assert!(first.starts_with("small reserved cr-1 0"), "{market}: {first}");
    }
    let elsewhere = CapacityReservation { zone: "c".into(), ..of(3) };
    assert_eq!(launches(&reserved(json!({}), &[("cr-1", elsewhere)]).job(5, whole)), [BOUGHT]);
}

#[test]
fn the_smallest_reserved_machine_comes_first() {
    let large = CapacityReservation { instance_type: "m7a.2xlarge".into(), ..of(1) };
    let given = reserved(json!({}), &[("cr-0", large), ("cr-1", of(1))]).job(5, whole).job(6, whole);
    let launches = launches(&given);
    assert!(launches[0].starts_with("small reserved cr-1"), "{launches:?}");
    assert!(launches[1].starts_with("large reserved cr-0"), "{launches:?}");
}

/// Reserved GPUs cost nothing, and are kept for jobs that need GPUs.
#[test]
fn reserved_gpus_are_for_jobs_that_need_gpus() {
    let sizes = json!([
        {"name": "small", "instance_type": "m7a.large", "vcpus": 2, "memory_mib": 8192, "price_per_hour": 0.116},
        {"name": "gpu", "instance_type": "p5.48xlarge", "vcpus": 192, "memory_mib": 2_000_000, "gpus": 8, "price_per_hour": 50.0},
    ]);
    let block =
        CapacityReservation { kind: ReservationKind::CapacityBlock, instance_type: "p5.48xlarge".into(), ..of(1) };
    // The cap is far below what the machine costs without the block.
    let policy = json!({"size": sizes, "nodes": {"min": 1, "max_price_per_hour": 5.0}});
    let given = |gpus: u32| reserved(policy.clone(), &[("cr-1", block.clone())]).job(5, |spec| spec.needs.gpus = gpus);
    assert_eq!(launches(&given(0)), ["small on_demand a 116, 1 more"]);
    assert_eq!(launches(&given(8)), ["gpu reserved cr-1 0, 0 more"]);
    let two = given(8).job(6, |spec| spec.needs.gpus = 8);
    let waits: Vec<String> = plan(&two.seen, at(100)).explained.waiting.iter().map(|w| w.reason()).collect();
    assert!(waits.iter().any(|why| why.contains("no machine of capacity reservation cr-1 is free, of 3")), "{waits:?}");
}

/// A job of several nodes waits for room below the price cap. Only the free machines of the reservation cost nothing.
#[test]
fn what_is_reserved_counts_once_below_the_price_cap() {
    let policy = json!({"nodes": {"max": 8, "max_price_per_hour": 0.6}});
    let mut dear = idle_long(0);
    if let NodeState::InUse(node) = &mut dear.state {
        node.life.offering.price_per_hour = Usd::from_micros(464_000);
        node.life.offering.size = "large".into();
    }
    let job = |spec: &mut JobSpec| {
        spec.needs.nodes = 4;
        spec.needs.vcpus = 2;
    };
    let given = reserved(policy, &[("cr-1", of(1))]).node(dear).job(5, job);
    assert_eq!(given.actions(at(900)), ["shut_down slot#0"], "three cost 0.348, and beside 0.464 that is too much");
}

/// Sizes of one instance type share its reservation. So the machines of the reservation count once, and the job is too dear.
#[test]
fn a_reservation_counts_once_for_all_sizes_of_its_type() {
    let size = |name: &str| json!({"name": name, "instance_type": "m7a.large", "vcpus": 2, "memory_mib": 8192, "price_per_hour": 0.116});
    let policy = |cap: f64| {
        let nodes = json!({"max": 8, "max_price_per_hour": cap});
        json!({"size": [size("small"), size("other")], "nodes": nodes})
    };
    let job = |spec: &mut JobSpec| spec.needs.nodes = 5;
    let given = |cap| reserved(policy(cap), &[("cr-1", of(3))]).job(5, job);
    assert_eq!(given(0.24).actions(at(100)).len(), 5, "three machines cost nothing, and two cost 0.232");
    let actions = given(0.2).actions(at(100));
    assert!(actions.len() == 1 && actions[0].starts_with("reject"), "{actions:?}");
}

/// Reservation × time × what the operator wants: what is done with its node.
#[test]
fn the_nodes_of_a_reservation_that_ends_are_drained_in_time() {
    use ReservationKind::{CapacityBlock, Interruptible, OnDemand};
    let ends = |kind, ends_at| Some(CapacityReservation { kind, ends_at: Some(at(ends_at)), ..of(1) });
    let drained = |reservation: Option<CapacityReservation>, intent: Intent, now: i64| {
        let named: Vec<(&str, CapacityReservation)> = reservation.into_iter().map(|it| ("cr-1", it)).collect();
        let mut given = reserved(json!({}), &named);
        let mut record = idle_long(0);
        if let NodeState::InUse(node) = &mut record.state {
            node.life.offering.reservation = Some(Reserved { id: "cr-1".into(), kind: OnDemand });
        }
        if intent != Intent::Run {
            record = record.with_intent(intent, None, at(90)).unwrap();
        }
        given = given.node(record);
        let plan = plan(&given.seen, at(now));
        plan.actions.iter().find_map(|p| match &p.action {
            Action::DrainNode { by, .. } => Some(by.map(|by| by.since(at(0)).as_ms() / 1000)),
            _ => None,
        })
    };
    // launch.reservation_drain_s is 900, and a block ends 1800 s early.
    for (reservation, intent, now, expected) in [
        (ends(OnDemand, 5000), Intent::Run, 4099, None),
        (ends(OnDemand, 5000), Intent::Run, 4100, Some(None)),
        (ends(OnDemand, 5000), Intent::Run, 9000, Some(None)),
        (ends(OnDemand, 5000), Intent::Hold, 4100, None),
        (ends(OnDemand, 5000), Intent::Drain, 4100, None),
        (ends(Interruptible, 5000), Intent::Run, 4100, Some(None)),
        (ends(CapacityBlock, 5000), Intent::Run, 2299, None),
        (ends(CapacityBlock, 5000), Intent::Run, 2300, Some(Some(3200))),
        (ends(CapacityBlock, 5000), Intent::Hold, 2300, Some(Some(3200))),
        (ends(CapacityBlock, 5000), Intent::Drain, 2300, Some(Some(3200))),
        (Some(of(1)), Intent::Run, 90_000, None),
        // The reservation is no longer in the policy.
        (None, Intent::Run, 100, Some(None)),
        (None, Intent::Hold, 100, None),
    ] {
        assert_eq!(drained(reservation.clone(), intent, now), expected, "{reservation:?} {intent} at {now}");
    }
}

#[test]
fn nothing_is_launched_in_a_reservation_that_ends_soon() {
    let ends = |ends_at| CapacityReservation { ends_at: Some(at(ends_at)), ..of(1) };
    assert_eq!(launches(&reserved(json!({}), &[("cr-1", ends(1001))]).job(5, whole)), [IN_IT]);
    assert_eq!(launches(&reserved(json!({}), &[("cr-1", ends(1000))]).job(5, whole)), [BOUGHT]);
}

/// A reservation that EC2 no longer tells of is over. One about which EC2 was never asked is not.
#[test]
fn a_reservation_is_over_when_ec2_says_so() {
    let mut given = reserved(json!({}), &[("cr-1", of(1))]);
    let mut record = idle_long(0);
    if let NodeState::InUse(node) = &mut record.state {
        node.life.offering.reservation = Some(Reserved { id: "cr-1".into(), kind: ReservationKind::OnDemand });
    }
    given = given.node(record);
    let mut catalogue = (*given.seen.policy.catalogue).clone();
    catalogue.reservations.clear();
    given.seen.policy = given.seen.policy.clone().with_catalogue(catalogue.clone());
    assert_eq!(given.actions(at(100)), ["drain slot#0"]);
    catalogue.parts.remove(&CataloguePart::Reservations);
    given.seen.policy = given.seen.policy.clone().with_catalogue(catalogue);
    assert_eq!(given.actions(at(100)), Vec::<String>::new());
}
