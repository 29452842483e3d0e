//! The crate `cloud` reads what EC2 offers, here from the stand-in.

use crate::second_opinions::free_url;
use crate::world::{aws, dynamo_client, dynamo_url, fresh_cluster, set_policy};
use cloud::AwsOffers;
use ec2_stand_in::{Ec2Settings, Ec2Subnet, Faults, Gpus, InstanceType, NoMachines};
use model::catalogue;
use model::fixtures::at;
use model::policy::example_json;
use model::quotas::quota_of;
use model::{Arch, CloudError, Market, Offers, Policy, Time, TypeFacts, Usd};
use nodekeeper_cli::local::tables;
use runtime::clock::RunClock;
use runtime::env::FunctionEnvironment;
use runtime::http::NodeCredentials;
use runtime::lambda::Parts;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use store::{Dynamo, Store};
use tokio::net::TcpListener;

/// A stand-in with these settings, and a client of it.
async fn region(settings: Ec2Settings) -> (Arc<ec2_stand_in::Ec2Region>, AwsOffers) {
    let (stand_in, url) = serve(settings).await;
    (stand_in, offers(&url, "eu-west-1"))
}

async fn serve(settings: Ec2Settings) -> (Arc<ec2_stand_in::Ec2Region>, String) {
    let stand_in =
        ec2_stand_in::Ec2Region::new(settings, Arc::new(|| Time::from_ms(1_700_000_000_000)), Arc::new(NoMachines));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(crate::account::recorded::serve_recorded(listener, Arc::clone(&stand_in)));
    (stand_in, url)
}

fn offers(url: &str, region: &'static str) -> AwsOffers {
    AwsOffers::connect(&aws(url, region))
}

fn two_zones() -> Ec2Settings {
    let subnet = |id: &str, zone: &str, addresses| Ec2Subnet { subnet_id: id.into(), zone: zone.into(), addresses };
    Ec2Settings {
        subnets: vec![subnet("subnet-a", "z1", Some(7)), subnet("subnet-b", "z2", None)],
        ..Ec2Settings::default()
    }
}

/// A type with two vCPUs and 8 GiB that costs 0.10 USD an hour.
fn dime(name: &str) -> InstanceType {
    let price = Some("0.1000000000".into());
    InstanceType { name: name.into(), vcpus: 2, memory_mib: 8192, on_demand: price, ..InstanceType::default() }
}

fn set<const N: usize>(texts: [&str; N]) -> BTreeSet<String> {
    texts.map(str::to_owned).into()
}

#[tokio::test]
async fn what_ec2_offers_is_read_in_pages() {
    let (_, ec2) = region(Ec2Settings { page_size: 5, ..two_zones() }).await;
    let types = ec2.types(&set(["*"])).await.unwrap();
    assert_eq!(types.len(), 53);
    let names: BTreeSet<String> = types.keys().cloned().collect();
    let zones = ec2.zones(&set(["*"])).await.unwrap();
    assert_eq!(zones.keys().cloned().collect::<BTreeSet<_>>(), names);
    assert!(zones.values().all(|zones| *zones == set(["z1", "z2"])));
    let prices = ec2.prices(&names).await.unwrap();
    assert_eq!(prices.keys().cloned().collect::<BTreeSet<_>>(), names);
    assert_eq!(prices["g5.xlarge"], Usd::from_micros(1_006_000));
    let spot = ec2.spot_prices(&names).await.unwrap();
    assert_eq!(spot.keys().cloned().collect::<BTreeSet<_>>(), names);
    assert!(spot.iter().all(|(name, by_zone)| by_zone.values().all(|price| *price < prices[name])));
    assert_eq!(spot["m7a.large"].len(), 2);
}

#[tokio::test]
async fn types_are_read_by_patterns() {
    let (_, ec2) = region(two_zones()).await;
    let found = ec2.types(&set(["g5.12*", "c7g.large", "m4.*", "t3.medium", "*.metal-24xl"])).await.unwrap();
    let x86 = BTreeSet::from([Arch::X86_64]);
    let plain = TypeFacts { vcpus: 2, memory_mib: 4096, arch: x86.clone(), is_current: true, ..TypeFacts::default() };
    let expected = [
        ("c7g.large", TypeFacts { arch: BTreeSet::from([Arch::Arm64]), ..plain.clone() }),
        (
            "g5.12xlarge",
            TypeFacts {
                vcpus: 48,
                memory_mib: 192 * 1024,
                gpus: 4,
                gpu_type: Some("a10g".into()),
                gpu_memory_gib: 24,
                local_disk_gib: 3539,
                ..plain.clone()
            },
        ),
        ("m4.large", TypeFacts { memory_mib: 8192, is_current: false, ..plain.clone() }),
        ("m7i.metal-24xl", TypeFacts { vcpus: 96, memory_mib: 384 * 1024, is_bare_metal: true, ..plain.clone() }),
        ("t3.medium", TypeFacts { is_burstable: true, ..plain }),
    ];
    assert_eq!(found, expected.map(|(name, facts)| (name.to_owned(), facts)).into());
    assert_eq!(ec2.types(&set(["m9z.*"])).await.unwrap(), BTreeMap::new());
    // More patterns than one call takes.
    let many: BTreeSet<String> = (0..250).map(|n| format!("none{n}")).chain(["m5.large".to_owned()]).collect();
    assert_eq!(ec2.types(&many).await.unwrap().len(), 1);
    assert_eq!(ec2.zones(&many).await.unwrap(), BTreeMap::from([("m5.large".into(), set(["z1", "z2"]))]));
}

#[tokio::test]
async fn what_is_not_offered_or_cannot_be_read_is_left_out() {
    let gpus = Gpus { count: 1, manufacturer: "NVIDIA".into(), name: "A10G".into(), memory_mib: 24_576 };
    let other = "i386 x86_64 x86_64_mac".split(' ').map(str::to_owned).collect();
    let settings = Ec2Settings {
        instance_types: vec![
            InstanceType { zones: vec!["z2".into()], gpus: Some(gpus), ..dime("one.zone") },
            InstanceType { on_demand: None, ..dime("no.price") },
            InstanceType { on_demand: Some("priceless".into()), architectures: other, ..dime("bad.price") },
            InstanceType { on_demand: Some("0.0000000000".into()), memory_mib: 0, ..dime("zero.price") },
            InstanceType { spot: [("z1".into(), String::new())].into(), ..dime("no.spot") },
        ],
        ..two_zones()
    };
    let (_, ec2) = region(settings).await;
    let all = set(["*"]);
    let types = ec2.types(&all).await.unwrap();
    let names: Vec<&str> = types.keys().map(String::as_str).collect();
    assert_eq!(names, ["bad.price", "no.price", "no.spot", "one.zone"], "a type without memory is none");
    assert_eq!(types["bad.price"].arch, BTreeSet::from([Arch::X86_64]));
    let zones = ec2.zones(&all).await.unwrap();
    assert_eq!((&zones["one.zone"], &zones["no.spot"]), (&set(["z2"]), &set(["z1", "z2"])));
    let asked = set(["one.zone", "no.price", "bad.price", "zero.price", "un.known"]);
    let dime = Usd::from_micros(100_000);
    assert_eq!(
        ec2.prices(&asked).await.unwrap(),
        BTreeMap::from([("one.zone".to_owned(), dime)]),
        "only what is asked"
    );
    let asked = set(["one.zone", "no.spot", "bad.price", "un.known"]);
    let spot = ec2.spot_prices(&asked).await.unwrap();
    let where_known: Vec<_> = spot
        .iter()
        .map(|(name, zones)| (name.as_str(), zones.keys().map(String::as_str).collect::<Vec<_>>()))
        .collect();
    assert_eq!(where_known, [("no.spot", vec!["z2"]), ("one.zone", vec!["z2"])]);
    let many = (0..250).map(|n| format!("none{n}.large")).chain(["one.zone".to_owned()]).collect();
    assert_eq!(ec2.spot_prices(&many).await.unwrap().len(), 1, "more types than one call names");
    assert_eq!(
        ec2.spot_prices(&BTreeSet::new()).await.unwrap(),
        BTreeMap::new(),
        "a call without types would list all"
    );
}

#[tokio::test]
async fn quotas_are_those_of_vcpus() {
    let (stand_in, ec2) = region(Ec2Settings { page_size: 3, ..two_zones() }).await;
    assert_eq!(ec2.quotas().await.unwrap(), BTreeMap::new(), "nothing limits the stand-in");
    stand_in.set_faults(Faults { max_vcpus: Some(64), max_spot_vcpus: Some(0), ..Faults::default() });
    let quotas = ec2.quotas().await.unwrap();
    let of = |market, name| quotas.get(&quota_of(market, name)).copied();
    assert_eq!((of(Market::OnDemand, "m7i.large"), of(Market::Spot, "g5.xlarge")), (Some(64), Some(0)), "{quotas:?}");
    assert_eq!(quotas.len(), 22);
}

#[tokio::test]
async fn an_unknown_subnet_is_left_out() {
    let (stand_in, ec2) = region(two_zones()).await;
    let subnet = |zone: &str, free| catalogue::Subnet { zone: zone.into(), free };
    let both = BTreeMap::from([("subnet-a".into(), subnet("z1", 7)), ("subnet-b".into(), subnet("z2", 65_531))]);
    assert_eq!(ec2.subnets(&set(["subnet-a", "subnet-b"])).await.unwrap(), both);
    assert_eq!(ec2.subnets(&set(["subnet-0", "subnet-a", "subnet-b", "subnet-x"])).await.unwrap(), both);
    assert_eq!(ec2.subnets(&set(["subnet-x"])).await.unwrap(), BTreeMap::new());
    assert_eq!(ec2.subnets(&BTreeSet::new()).await.unwrap(), BTreeMap::new(), "a call without ids would list all");
    // EC2 may say that a subnet is unknown, and not which one.
    let unnamed =
        json!({"fail": [{"action": "DescribeSubnets", "code": "InvalidSubnetID.NotFound", "message": "one"}]});
    stand_in.set_faults(serde_json::from_value(unnamed).unwrap());
    assert_eq!(ec2.subnets(&set(["subnet-a", "subnet-b"])).await.unwrap(), both, "each half is asked for alone");
}

/// Each row: the answer of EC2 about a reservation, and what is read from it. A reservation that is over or unknown is
/// left out.
#[tokio::test]
async fn capacity_reservations_are_read_with_what_is_free() {
    let (stand_in, ec2) = region(Ec2Settings { page_size: 1, ..two_zones() }).await;
    let (now, later) = (1_700_000_000_000_i64, 1_700_000_100_000_i64);
    let row = |id: &str, kind: &str, ends_at: Option<i64>| json!({"id": id, "kind": kind, "instance_type": "m7i.large", "zone": "z1", "total": 3, "free": 0, "ends_at": ends_at});
    let rows = [
        row("cr-1", "on-demand-capacity-reservation", None),
        row("cr-2", "capacity-block", Some(later)),
        row("cr-3", "interruptible-capacity-reservation", Some(now)),
        row("cr-4", "interruptible-capacity-reservation", None),
    ];
    stand_in.set_faults(serde_json::from_value(json!({ "capacity_reservations": rows })).unwrap());
    let read = ec2.reservations(&set(["cr-1", "cr-2", "cr-3", "cr-4", "cr-x"])).await.unwrap();
    let of = |id: &str| (read[id].kind.as_str(), read[id].free, read[id].ends_at);
    assert_eq!(read.len(), 3, "{read:?}");
    assert_eq!(of("cr-1"), ("on-demand-capacity-reservation", 3, None));
    assert_eq!(of("cr-2"), ("capacity-block", 3, Some(Time::from_ms(later))));
    assert_eq!(of("cr-4"), ("interruptible-capacity-reservation", 3, None));
    assert_eq!(ec2.reservations(&BTreeSet::new()).await.unwrap(), BTreeMap::new(), "a call without ids would list all");
}

/// Every refused call is an error. Without the error, a type would look as if EC2 did not offer it.
#[tokio::test]
async fn a_refused_call_is_an_error() {
    let (stand_in, ec2) = region(Ec2Settings { page_size: 5, ..two_zones() }).await;
    let (all, named) = (set(["*"]), set(["m7i.large", "m7i.xlarge", "m7i.2xlarge", "m7i.4xlarge"]));
    for action in [
        "DescribeInstanceTypes",
        "DescribeInstanceTypeOfferings",
        "GetProducts",
        "DescribeSpotPriceHistory",
        "DescribeSubnets",
        "DescribeCapacityReservations",
        "ListServiceQuotas",
    ] {
        // Refuses the second page, if there is one.
        let has_one_page = ["DescribeSubnets", "DescribeCapacityReservations"].contains(&action);
        let on_call = if has_one_page { 1 } else { 2 };
        let fail = json!({"action": action, "on_call": on_call, "code": "UnauthorizedOperation", "status": 403, "message": "no"});
        stand_in.set_faults(serde_json::from_value(json!({ "fail": [fail], "max_vcpus": 8 })).unwrap());
        let error = match action {
            "DescribeInstanceTypes" => ec2.types(&all).await.map(drop),
            "DescribeInstanceTypeOfferings" => ec2.zones(&all).await.map(drop),
            "GetProducts" => ec2.prices(&named).await.map(drop),
            "DescribeSpotPriceHistory" => ec2.spot_prices(&named).await.map(drop),
            "ListServiceQuotas" => ec2.quotas().await.map(drop),
            "DescribeCapacityReservations" => ec2.reservations(&set(["cr-1"])).await.map(drop),
            _ => ec2.subnets(&set(["subnet-a"])).await.map(drop),
        };
        let refused = matches!(&error, Err(CloudError::Refused { operation, code, .. })
            if *operation == action && code == "UnauthorizedOperation");
        assert!(refused, "{action}: {error:?}");
        assert_eq!(stand_in.faults().fail, [], "{action}: the call was made");
    }
}

/// Every call is answered with text that is neither XML nor JSON.
#[tokio::test]
async fn garbage_is_an_error() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let router = axum::Router::new().fallback(|| async { "<a><b>{\u{1}" });
    tokio::spawn(async move { axum::serve(listener, router).await });
    let ec2 = offers(&url, "us-east-1");
    let (all, named) = (set(["*"]), set(["m7i.large"]));
    let errors = [
        ec2.types(&all).await.map(drop),
        ec2.zones(&all).await.map(drop),
        ec2.prices(&named).await.map(drop),
        ec2.spot_prices(&named).await.map(drop),
        ec2.subnets(&named).await.map(drop),
        ec2.quotas().await.map(drop),
    ];
    for error in errors {
        assert!(matches!(&error, Err(CloudError::Unreachable { .. })), "{error:?}");
    }
}

/// Nothing listens at the address, so a request would fail with another error.
#[tokio::test]
async fn other_partitions_have_no_prices() {
    for region in ["cn-north-1", "us-gov-west-1", "us-iso-east-1", "eusc-de-east-1"] {
        let ec2 = offers(&free_url(), region);
        let error = ec2.prices(&set(["m7i.large"])).await.unwrap_err().to_string();
        assert!(error.contains("partition") && error.contains(region), "{error}");
    }
}

/// A function gets its clients where it is made for Lambda, and no other test does that.
#[tokio::test]
async fn clean_stale_records_keeps_what_aws_offers() {
    let (cluster, (_stand_in, ec2)) = (fresh_cluster(), serve(two_zones()).await);
    let dynamo = Dynamo::new(dynamo_client(dynamo_url()), cluster.clone());
    tables::make(&dynamo).await.unwrap();
    let store = Store::new(Arc::new(dynamo));
    set_policy(&store, &Policy::from_json(&example_json()).unwrap()).await;
    let env = FunctionEnvironment {
        cluster,
        credentials: NodeCredentials::Nobody,
        heartbeat_url: "http://heartbeat".into(),
        sweep_url: "http://sweep".into(),
        grant_url: None,
    };
    let parts = Parts::new(env, &aws(dynamo_url(), "us-east-1"), aws(&ec2, "eu-west-1"));
    let handler = (clean_stale_records::LAMBDA.make)(parts);
    handler(json!({}), RunClock::new(at(1000), None, Duration::from_secs(50))).await.unwrap();
    assert!(store.control().await.unwrap().catalogue.is_some());
}
