//! Tests of the plan: sizes of several instance types, and zones.

use super::*;
use model::catalogue::Offered;
use model::control::{EntryRow, LaunchWait};
use model::{Arch, Catalogue, CataloguePart, ControlKey, Market, MarketNeed, Offering, PartState, Subnet, TypeFacts};

/// A type: its name, vCPUs and GiB, zones, price on demand, and spot prices by zone, in micro-dollars.
type Type<'a> = (&'a str, (u32, u64), &'a str, u64, &'a [(&'a str, u64)]);

const M7A: Type<'_> = ("m7a.large", (2, 8), "ab", 100_000, &[("a", 40_000), ("b", 30_000)]);
const C7A: Type<'_> = ("c7a.large", (2, 4), "ab", 80_000, &[("a", 25_000), ("b", 50_000)]);
const M7I: Type<'_> = ("m7i.xlarge", (4, 16), "a", 200_000, &[("a", 70_000)]);

/// Subnet-a is in zone a, and so on. Each has this many free addresses.
fn catalogue(policy: &Policy, types: &[Type<'_>], free: u32) -> Catalogue {
    let offered = |(_, (vcpus, gib), zones, on_demand, spot): &Type<'_>| Offered {
        facts: TypeFacts {
            vcpus: *vcpus,
            memory_mib: gib * 1024,
            arch: [Arch::X86_64].into(),
            is_current: true,
            ..TypeFacts::default()
        },
        zones: zones.chars().map(String::from).collect(),
        on_demand: (*on_demand > 0).then(|| Usd::from_micros(*on_demand)),
        spot: spot.iter().map(|(zone, price)| ((*zone).to_owned(), Usd::from_micros(*price))).collect(),
    };
    let zone = |id: &String| id.strip_prefix("subnet-").unwrap().to_owned();
    let subnets = policy.launch.subnets.iter().map(|id| (id.clone(), Subnet { zone: zone(id), free }));
    let read = PartState { read_at: Some(at(0)), ..PartState::default() };
    Catalogue {
        types: types.iter().map(|of| (of.0.to_owned(), offered(of))).collect(),
        subnets: subnets.collect(),
        parts: CataloguePart::ALL.into_iter().map(|part| (part, read.clone())).collect(),
        wanted: policy.catalogue_wanted(),
        ..Catalogue::default()
    }
}

/// A cluster with one size of several types.
fn several(size: Value, launch: Value, nodes: Value, types: &[Type<'_>]) -> Given {
    let mut any = json!({"name": "any", "instance_types": ["*"]});
    any.as_object_mut().unwrap().extend(size.as_object().unwrap().clone());
    let mut given = given(json!({"size": [any], "launch": launch, "nodes": nodes}));
    let policy = given.seen.policy.clone();
    let offers = catalogue(&policy, types, 100);
    given.seen.policy = policy.with_catalogue(offers);
    given
}

fn spot(types: &[Type<'_>]) -> Given {
    let size = json!({"market": "spot", "fallback": "on_demand"});
    several(size, json!({"subnets": ["subnet-a", "subnet-b"]}), json!({}), types)
}

/// The offerings of each launch, in the order in which they are tried.
fn ways(given: &Given) -> Vec<Vec<String>> {
    let word = |o: &Offering| {
        let market = if o.market == Market::Spot { "spot" } else { "on demand" };
        format!(
            "{} {market} {} {}",
            o.instance_type,
            o.zone.as_deref().unwrap_or("?"),
            o.price_per_hour.micros() / 1000
        )
    };
    let plan = plan(&given.seen, at(100));
    let offerings = plan.actions.iter().filter_map(|planned| match &planned.action {
        Action::Launch { offerings, .. } => Some(offerings.iter().map(word).collect()),
        _ => None,
    });
    offerings.collect()
}

/// What the plan says about waiting and rejected jobs.
fn said(given: &Given) -> String {
    let plan = plan(&given.seen, at(100));
    let rejected = plan
        .actions
        .iter()
        .filter(|p| matches!(p.action, Action::Reject(_)))
        .map(|p| format!("rejected: {}", p.reason));
    let waits = plan.explained.waiting.iter().map(model::explain::Waiting::reason);
    rejected.chain(waits).collect::<Vec<_>>().join("; ")
}

#[test]
fn the_cheapest_type_and_zone_comes_first_and_what_is_packed_fits_on_each_way() {
    let given = spot(&[M7A, C7A, M7I]).job(5, |_| ());
    assert_eq!(
        ways(&given),
        [[
            "c7a.large spot a 25",
            "m7a.large spot b 30",
            "m7a.large spot a 40",
            "c7a.large spot b 50",
            "m7i.xlarge spot a 70",
            "c7a.large on demand a 80",
            "c7a.large on demand b 80",
            "m7a.large on demand a 100",
            "m7a.large on demand b 100",
            "m7i.xlarge on demand a 200",
        ]]
    );
    // A job that needs more memory than the cheapest type has gets the others.
    let large = spot(&[M7A, C7A, M7I]).job(5, |spec| spec.needs.memory_mib = 6000);
    assert_eq!(ways(&large)[0][0], "m7a.large spot b 30");
    assert!(ways(&large)[0].iter().all(|way| !way.starts_with("c7a")));
    // A type with more memory but fewer vCPUs than the first one is no way.
    let r7a = ("r7a.medium", (1, 8), "ab", 90_000, &[("a", 26_000)][..]);
    let given = spot(&[C7A, r7a]).job(5, |_| ());
    assert!(ways(&given)[0].iter().all(|way| way.starts_with("c7a")), "{:?}", ways(&given));
}

#[test]
fn a_type_whose_price_is_not_known_is_not_bought() {
    let unknown = ("m9x.large", (2, 8), "ab", 0, &[][..]);
    let given = spot(&[unknown, M7I]).job(5, |_| ());
    assert_eq!(ways(&given)[0][0], "m7i.xlarge spot a 70");
    // Without a known price on demand, the size does not fall back.
    let no_fallback = ("m9x.large", (2, 8), "ab", 0, &[("a", 20_000)][..]);
    assert_eq!(ways(&spot(&[no_fallback]).job(5, |_| ())), [["m9x.large spot a 20"]]);
}

#[test]
fn the_price_cap_counts_the_dearest_way_that_it_allows() {
    let capped = |cap: f64| {
        let size = json!({"market": "spot", "fallback": "on_demand"});
        let launch = json!({"subnets": ["subnet-a", "subnet-b"]});
        (5..9).fold(several(size, launch, json!({"max_price_per_hour": cap}), &[M7A, C7A]), |given, n| {
            given.job(n, whole)
        })
    };
    // A cap of 60 allows only the cheap ways, each node counts as 50.
    let launches = ways(&capped(0.06));
    assert_eq!(
        launches,
        [["c7a.large spot a 25", "m7a.large spot b 30", "m7a.large spot a 40", "c7a.large spot b 50"]]
    );
    // A cap of 210 allows two nodes that may become the dearest, and a third that may not.
    let launches = ways(&capped(0.21));
    let dearest: Vec<&str> = launches.iter().map(|ways| ways.last().unwrap().as_str()).collect();
    assert_eq!(dearest, ["m7a.large on demand b 100", "m7a.large on demand b 100"]);
    assert_eq!(ways(&capped(0.0)).len(), 4);
}

#[test]
fn the_types_of_a_size_share_its_maximum() {
    let size = json!({"max": 2});
    let two = (5..9).fold(several(size.clone(), json!({}), json!({}), &[M7A, C7A]), |given, n| given.job(n, whole));
    assert_eq!(ways(&two).len(), 2);
    let three = |spec: &mut JobSpec| spec.needs.nodes = 3;
    let said = said(&several(size, json!({}), json!({}), &[M7A, C7A, M7I]).job(5, three));
    assert!(said.contains("rejected: it needs 3 nodes at once and the sizes that fit allow 2"), "{said}");
}

#[test]
fn jobs_wait_for_a_catalogue_that_is_not_there_and_are_rejected_by_one_that_is() {
    let large = |spec: &mut JobSpec| spec.needs.vcpus = 32;
    let known = several(json!({}), json!({}), json!({}), &[M7A]).job(5, large);
    assert!(said(&known).contains("rejected: no size fits"), "{}", said(&known));
    let none = several(json!({"vcpus": [500, 600]}), json!({}), json!({}), &[M7A]).job(5, large);
    assert!(said(&none).contains("no instance type can be bought for size any"), "{}", said(&none));
    let mut missing = known.clone();
    missing.seen.policy = missing.seen.policy.clone().with_catalogue(Catalogue::default());
    let waits = said(&missing);
    assert!(waits.contains("not known: clean-stale-records asks EC2 in its next run"), "{waits}");
    assert!(!waits.contains("rejected"), "{waits}");
    let mut away = known.seen.policy.catalogue.as_ref().clone();
    let part = away.parts.get_mut(&CataloguePart::Types).unwrap();
    (part.read_at, part.error) = (None, Some("AccessDenied".into()));
    missing.seen.policy = missing.seen.policy.clone().with_catalogue(away);
    let waits = said(&missing);
    assert!(waits.contains("not known: instance types: AccessDenied"), "{waits}");
}

#[test]
fn a_subnet_without_free_addresses_is_left_out_and_told() {
    let mut given = spot(&[C7A]).job(5, |_| ());
    let mut offers = given.seen.policy.catalogue.as_ref().clone();
    offers.subnets.get_mut("subnet-a").unwrap().free = 0;
    given.seen.policy = given.seen.policy.clone().with_catalogue(offers.clone());
    assert_eq!(ways(&given), [["c7a.large spot b 50", "c7a.large on demand b 80"]]);
    offers.subnets.get_mut("subnet-b").unwrap().free = 0;
    given.seen.policy = given.seen.policy.clone().with_catalogue(offers);
    assert_eq!(ways(&given), Vec::<Vec<String>>::new());
    assert!(said(&given).contains("subnet subnet-a has no free address; subnet subnet-b has"), "{}", said(&given));
}

#[test]
fn no_zone_gets_more_than_its_share() {
    let launch = |share: f64| json!({"subnets": ["subnet-a", "subnet-b", "subnet-c"], "zone_share": share});
    let c7a = ("c7a.large", (2, 4), "abc", 80_000, &[][..]);
    let zones = |share: f64, jobs: u32| {
        let given =
            (5..5 + jobs).fold(several(json!({}), launch(share), json!({}), &[c7a]), |given, n| given.job(n, whole));
        let mut of: std::collections::BTreeMap<String, u32> = std::collections::BTreeMap::new();
        for ways in ways(&given) {
            *of.entry(ways[0].split(' ').nth(3).unwrap().to_owned()).or_default() += 1;
        }
        of.into_values().collect::<Vec<_>>()
    };
    assert_eq!(zones(1.0, 9), [9], "the first subnet is tried first");
    assert_eq!(zones(0.34, 9), [4, 3, 2]);
    assert_eq!(zones(0.5, 8), [4, 4]);
    assert_eq!(zones(0.34, 1), [1]);
    // With a share of 0.34 and only two zones, the zones cannot take all the nodes.
    let two = json!({"subnets": ["subnet-a", "subnet-b"], "zone_share": 0.34});
    let given = (5..15).fold(several(json!({}), two, json!({}), &[c7a]), |given, n| given.job(n, whole));
    assert!(ways(&given).len() < 10, "{}", ways(&given).len());
    assert!(said(&given).contains("launch.zone_share = 0.34 of the nodes"), "{}", said(&given));
}

#[test]
fn a_launch_has_at_most_32_ways_the_cheapest_ones() {
    let zones = ["a", "b", "c", "d", "e", "f"];
    let spot = zones.map(|zone| (zone, 40_000));
    let of = |name, on_demand| (name, (2, 8), "abcdef", on_demand, &spot[..]);
    let size = json!({"market": "spot", "fallback": "on_demand"});
    let launch = json!({"subnets": zones.map(|zone| format!("subnet-{zone}"))});
    let types = [of("m7a.large", 100_000), of("m7i.large", 110_000), of("m6a.large", 120_000)];
    let all = ways(&several(size, launch, json!({}), &types).job(5, whole)).remove(0);
    assert_eq!(all.len(), 32, "and not 36");
    assert!(all[..18].iter().all(|way| way.contains(" spot ")), "{all:?}");
    assert!(all[18].starts_with("m7a.large on demand") && !all[31].starts_with("m7a"), "{all:?}");
}

/// A ready spot node of `m7a.large` that EC2 takes back at second `by`.
fn taken(n: u32, by: i64) -> NodeRecord {
    let mut record = fixtures::ready(n).interrupted(at(by), at(by - 120)).unwrap();
    if let NodeState::InUse(node) = &mut record.state {
        let offering = &mut node.life.offering;
        (offering.market, offering.subnet_id) = (Market::Spot, Some("subnet-a".into()));
        (offering.instance_type, offering.size) = ("m7a.large".into(), "any".into());
        node.contact.lease_expires_at = at(100_000);
    }
    record
}

#[test]
fn a_pool_that_ec2_empties_is_left_alone_for_a_while() {
    let m7a = ("m7a.large", (2, 8), "ab", 100_000, &[("a", 30_000), ("b", 50_000)][..]);
    let with = |nodes: Vec<NodeRecord>| nodes.into_iter().fold(spot(&[m7a]).job(5, whole), Given::node);
    let first = |given: &Given| ways(given)[0][0].clone();
    assert_eq!(first(&with(vec![])), "m7a.large spot a 30");
    assert_eq!(first(&with(vec![taken(1, 200)])), "m7a.large spot a 30", "one alone says nothing");
    let two = with(vec![taken(1, 200), taken(2, 210)]);
    assert_eq!(first(&two), "m7a.large spot b 50");
    let noted = plan(&two.seen, at(100)).actions.into_iter().find_map(|p| match p.action {
        Action::HoldBack { note: crate::plan::Note::Limit(change), .. } => Some((change, p.reason.to_string())),
        _ => None,
    });
    let (change, why) = noted.unwrap();
    assert!(why.contains("takes 2 instances of spot m7a.large back at once"), "{why}");
    // The limit is noted once, and ends.
    let mut later = two.clone();
    later.seen.control.put(change.after.clone());
    let notes = |given: &Given, s| {
        plan(&given.seen, at(s)).actions.iter().filter(|p| p.reason.word() == "pool_taken_back").count()
    };
    assert_eq!((notes(&two, 100), notes(&later, 101), notes(&later, 500)), (1, 0, 0));
    // It is noted once also if the limit is over before the instances are gone.
    let mut brief = two.clone();
    brief.seen.policy.shortage.ttl_s = 30;
    let wait = LaunchWait { wait_s: Some(30), until_at: Some(at(130)), ..change.after.entry.clone() };
    brief.seen.control.put(change.after.with(wait));
    assert_eq!([120, 140, 205].map(|s| notes(&brief, s)), [0, 0, 0]);
    let again = with(vec![taken(1, 900), taken(2, 910)]);
    let mut again_later = again.clone();
    again_later.seen.control.put(change.after);
    assert_eq!(notes(&again_later, 800), 1, "other interruptions");
}

#[test]
fn spot_first_takes_spot_where_it_is_to_be_had() {
    let size = || json!({"market": "on_demand"});
    let asks = |need: Option<MarketNeed>| {
        let launch = json!({"subnets": ["subnet-a", "subnet-b"]});
        several(size(), launch, json!({}), &[C7A, M7A]).job(5, |spec| spec.needs.machine.market = need)
    };
    assert_eq!(ways(&asks(None))[0][0], "c7a.large on demand a 80");
    let first = &ways(&asks(Some(MarketNeed::SpotFirst)))[0];
    assert_eq!(first[..2], ["c7a.large spot a 25", "m7a.large spot b 30"]);
    let second = first.iter().position(|way| way.contains("on demand")).unwrap();
    assert!(first[second..].iter().all(|way| way.contains("on demand")), "{first:?}");
    assert_eq!(second, 4, "all of spot comes before: {first:?}");
    // A spot size without a fallback falls back for a job that asks for `spot_first`, and not for one that asks for `spot`.
    let typed = json!([{"name": "s", "instance_type": "m7a.large", "vcpus": 2, "memory_mib": 8192, "price_per_hour": 0.03,
                        "market": "spot"}]);
    let markets = |need: Option<MarketNeed>| {
        let given = given(json!({"size": typed.clone()})).job(5, |spec| spec.needs.machine.market = need);
        ways(&given).concat().len()
    };
    assert_eq!([None, Some(MarketNeed::Spot), Some(MarketNeed::SpotFirst)].map(markets), [1, 1, 2]);
}

/// After a shortage, one attempt is allowed. The members of a job are one attempt; the next job has none.
#[test]
fn members_are_one_attempt_and_are_launched_together_or_not_at_all() {
    let mut given = several(json!({}), json!({}), json!({}), &[C7A]).job(5, |spec| spec.needs.nodes = 3).job(6, whole);
    let offering = plan(&given.seen, at(100)).actions.into_iter().find_map(|p| match p.action {
        Action::Launch { offerings, is_member: true, .. } => offerings.first().cloned(),
        _ => None,
    });
    let error = model::cloud::LaunchError::from(model::cloud::Refusal::short("none"));
    let change = given.seen.control.after_refusal(&offering.unwrap(), &error, &given.seen.policy, 1, at(0));
    let until = change.after.until_at.unwrap();
    given.seen.control.put(change.after);
    let later = until + model::time::Span::from_s(1);
    given.seen.observed_at = later;
    let launches = |given: &Given| {
        let actions = plan(&given.seen, later).actions;
        let launches =
            actions.iter().filter_map(|p| if let Action::Launch { job_id, .. } = &p.action { *job_id } else { None });
        launches.collect::<Vec<_>>()
    };
    assert_eq!(launches(&given), [fixtures::job_id(5); 3]);
    // Where there is no room for all of them, none is launched.
    let policy = Policy {
        nodes: model::policy::NodesPolicy { max: 2, ..given.seen.policy.nodes.clone() },
        ..given.seen.policy.clone()
    };
    given.seen.policy = policy;
    assert!(!launches(&given).contains(&fixtures::job_id(5)), "{:?}", launches(&given));
}

/// The members of a job are one attempt. The nodes for the minimum, after a job for which there was no room, are many.
#[test]
fn the_nodes_after_a_job_without_room_are_attempts_of_their_own() {
    let launch = json!({"subnets": ["subnet-a", "subnet-b"], "zone_share": 0.34});
    let nodes = json!({"min": 14, "max": 40});
    let c7a = ("c7a.large", (2, 4), "a", 80_000, &[][..]);
    let busy = (0..10).fold(several(json!({}), launch, nodes, &[c7a]), |given, n| given.working(n));
    let gang = |members: u32| {
        busy.clone().job(20, move |spec| {
            whole(spec);
            spec.needs.nodes = members;
        })
    };
    let offering = plan(&busy.seen, at(100)).actions.into_iter().find_map(|p| match p.action {
        Action::Launch { offerings, .. } => offerings.first().cloned(),
        _ => None,
    });
    let key = ControlKey::shortage_of(&offering.unwrap());
    let launches = |mut given: Given| {
        let wait = LaunchWait { until_at: Some(at(90)), wait_s: Some(180), ..LaunchWait::default() };
        given.seen.control.put(EntryRow::<LaunchWait>::new(&key).with(wait));
        ways(&given).len()
    };
    assert_eq!(launches(gang(6)), 6, "all of them have room in the zone");
    assert_eq!(launches(gang(7)), 1, "they have not, and the minimum makes one attempt");
}

/// The market of the policy × its fallback × what is asked × who asks: a job, a job that a retry rule has changed, a demand set, and
/// the minimum. A size offers a machine in the markets of its ways, and to nobody in another one.
#[test]
fn every_caller_judges_a_size_by_its_ways() {
    let markets = |given: &Given| -> Vec<Vec<Market>> {
        let plan = plan(&given.seen, at(150));
        let launched = plan.actions.iter().filter_map(|planned| match &planned.action {
            Action::Launch { offerings, .. } => Some(offerings.iter().map(|o| o.market).collect()),
            _ => None,
        });
        launched.collect()
    };
    let mut never = 0;
    for (market, fallback) in [("spot", "none"), ("spot", "on_demand"), ("on_demand", "none")] {
        let size = json!([{"name": "small", "instance_type": "m7a.large", "vcpus": 2, "memory_mib": 8192,
                           "price_per_hour": 0.1, "market": market, "fallback": fallback}]);
        let bare = |nodes: Value| given(json!({"size": size, "nodes": nodes}));
        for asked in [None, Some(MarketNeed::Spot), Some(MarketNeed::OnDemand), Some(MarketNeed::SpotFirst)] {
            let none = bare(json!({"max": 2}));
            let expected = none.seen.policy.size[0].markets(asked);
            let launches = if expected.is_empty() { vec![] } else { vec![expected.to_vec()] };
            let need = model::MachineNeed { market: asked, ..model::MachineNeed::default() };
            let what = format!("{market}, {fallback}, {asked:?}");
            let job = none.clone().job(0, |spec| spec.needs.machine = need.clone());
            assert_eq!(markets(&job), launches, "a job: {what}");
            assert_eq!(job.count(at(150), "reject"), usize::from(expected.is_empty()), "a job: {what}");
            // A set takes its size as it is bought.
            let as_bought = none.seen.policy.size[0].markets(None).to_vec();
            assert_eq!(markets(&none.clone().set("ci", 1, "small")), [as_bought], "a set: {what}");
            never += usize::from(expected.is_empty());
        }
        let minimum = bare(json!({"max": 2, "min": 1}));
        assert_eq!(markets(&minimum), [minimum.seen.policy.size[0].markets(None).to_vec()], "{market} {fallback}");
        // A job whose first try was lost asks for a node on demand from then on.
        let mut lost = bare(json!({"max": 2})).job(0, |_| {});
        let retry: model::retry::RetryRule = "lost=again*5,on-demand".parse().unwrap();
        let needs = &mut lost.seen.jobs[0].needs;
        *needs = retry.first(needs).unwrap().needs(needs);
        let on_demand = lost.seen.policy.size[0].markets(Some(MarketNeed::OnDemand)).to_vec();
        let launches = if on_demand.is_empty() { vec![] } else { vec![on_demand] };
        assert_eq!(markets(&lost), launches, "{market} {fallback}");
        let is_rejected = market == "spot" && fallback == "none";
        assert_eq!(lost.count(at(150), "reject"), usize::from(is_rejected), "{market} {fallback}");
    }
    assert_eq!(never, 2, "on demand from a size that is only spot, and spot from one that is only on demand");
}

/// The price cap counts what a machine costs in the market in which it would be bought.
#[test]
fn a_job_that_asks_for_on_demand_is_judged_by_the_price_on_demand() {
    let size = json!({"market": "spot", "fallback": "on_demand"});
    let launch = json!({"subnets": ["subnet-a", "subnet-b"]});
    for (cap, rejected) in [(0.09, 1), (0.1, 0)] {
        let nodes = json!({"max_price_per_hour": cap});
        let on_demand = |spec: &mut JobSpec| spec.needs.machine.market = Some(MarketNeed::OnDemand);
        let given = several(size.clone(), launch.clone(), nodes, &[M7A]).job(0, on_demand);
        assert_eq!((given.count(at(150), "reject"), given.count(at(150), "launch")), (rejected, 1 - rejected), "{cap}");
    }
    // The cheapest on the spot market is not the cheapest on demand.
    let (cheap, dear) =
        (("c.large", (2, 8), "a", 50_000, &[("a", 49_000)][..]), ("d.large", (2, 8), "a", 90_000, &[("a", 9_000)][..]));
    let on_demand = |spec: &mut JobSpec| spec.needs.machine.market = Some(MarketNeed::OnDemand);
    let given = several(size, launch, json!({}), &[cheap, dear]).job(0, on_demand);
    assert!(ways(&given)[0][0].contains("c.large"), "{:?}", ways(&given));
}

/// Of the subnets of a zone, the one with the most free addresses comes first. The zones stay in the order of the policy.
#[test]
fn the_subnet_with_the_most_free_addresses_comes_first_in_its_zone() {
    let launch = json!({"subnets": ["subnet-b1", "subnet-a1", "subnet-x", "subnet-b2", "subnet-a2"]});
    let mut given = several(json!({}), launch, json!({}), &[M7A]).job(0, |_| {});
    let mut catalogue = (*given.seen.policy.catalogue).clone();
    let subnet = |id: &str, free| (id.to_owned(), Subnet { zone: id[7..8].to_owned(), free });
    catalogue.subnets = [("subnet-b1", 3), ("subnet-b2", 9), ("subnet-a1", 5), ("subnet-a2", 4)]
        .map(|(id, free)| subnet(id, free))
        .into();
    given.seen.policy = given.seen.policy.clone().with_catalogue(catalogue);
    let plan = plan(&given.seen, at(150));
    let Action::Launch { offerings, .. } = &plan.actions[0].action else { panic!("{:?}", given.actions(at(150))) };
    let subnets: Vec<&str> = offerings.iter().map(|o| o.subnet_id.as_deref().unwrap()).collect();
    assert_eq!(subnets, ["subnet-b2", "subnet-b1", "subnet-a1", "subnet-a2", "subnet-x"]);
}
