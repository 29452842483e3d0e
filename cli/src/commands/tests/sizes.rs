//! `sizes`, and the questions of `policy set` to EC2.

use super::*;
use model::fixtures::offered;
use model::quotas::quota_of;
use model::{Catalogue, Market, Subnet, Usd};
use serde_json::Value;

/// Three types in two zones.
fn shop() -> FixedOffers {
    let types = [
        ("m7a.large", offered(2, 8, &[("a", 40_000), ("b", 30_000)])),
        ("m7a.xlarge", offered(4, 16, &[("a", 90_000)])),
        ("m6i.large", offered(2, 8, &[("b", 35_000)])),
    ];
    let types = types.into_iter().map(|(name, offered)| (name.to_owned(), offered)).collect();
    let subnets = [("subnet-1".to_owned(), Subnet { zone: "b".into(), free: 9 })].into();
    FixedOffers { of: Catalogue { types, subnets, ..Catalogue::default() }, is_away: false }
}

const SEVERAL: &str = r#"
[launch]
template = "nodekeeper"
subnets = ["subnet-1"]
[[size]]
name = "any"
instance_types = ["m*"]
market = "spot"
[[size]]
name = "typed"
instance_type = "m6i.large"
vcpus = 2
memory_mib = 8000
price_per_hour = 0.1
"#;

async fn world(offers: FixedOffers) -> World {
    let mut world = World::new().await;
    world.cluster.cloud = Arc::new(Listed { offers: Some(offers), ..Listed::default() });
    world
}

fn lines(text: &str) -> Vec<Vec<&str>> {
    text.lines().map(|line| line.split_whitespace().collect()).collect()
}

#[tokio::test]
async fn sizes_shows_what_a_policy_means_today() {
    let (dir, mut world) = (tempfile::tempdir().unwrap(), world(shop()).await);
    let policy = file(&dir, "p.toml", SEVERAL);
    world.run(&["policy", "set", &policy]).await.done();
    // A type without a zone that has a subnet has no price here.
    let said = world.run(&["sizes"]).await.done();
    let shown = lines(&said);
    assert_eq!(shown[1][..7], ["any", "m7a.large", "x86_64", "2", "8", "GiB", "spot"], "{said}");
    assert_eq!(shown[1][7..], ["$0.0300", "$0.0900", "a", "b"], "{said}");
    assert_eq!(shown[2][..2], ["any", "m6i.large"], "{said}");
    assert!(
        said.contains("m7a.xlarge") && said.contains("its spot price is not known here: it is not bought"),
        "{said}"
    );
    assert!(said.contains("EC2 says 2 vCPU, 8 GiB; AWS says $0.1050"), "the typed size: {said}");

    // One price rises, one type disappears, another one appears.
    let mut later = shop();
    later.of.types.get_mut("m7a.large").unwrap().spot.insert("b".into(), Usd::from_micros(50_000));
    later.of.types.remove("m6i.large");
    later.of.types.insert("m5.large".into(), offered(2, 8, &[("b", 20_000)]));
    world.cluster.cloud = Arc::new(Listed { offers: Some(later), ..Listed::default() });
    let (said, err) = world.run(&["sizes"]).await.failed();
    assert_eq!(err, "", "what cannot be bought stands in its row");
    let types: Vec<&str> = lines(&said).into_iter().filter(|words| words[0] == "any").map(|words| words[1]).collect();
    assert_eq!(types, ["m5.large", "m7a.large", "m7a.xlarge"], "{said}");
    assert!(said.contains("EC2 does not have this type here: it cannot be bought"), "{said}");
    // The stored catalogue of the functions has not changed.
    let known = world.store().control().await.unwrap().catalogue();
    assert!(known.types.contains_key("m6i.large") && !known.types.contains_key("m5.large"), "{known:?}");
}

#[tokio::test]
async fn sizes_shows_the_quotas_of_its_machines_and_what_is_used_of_them() {
    let (dir, mut offers) = (tempfile::tempdir().unwrap(), shop());
    let [standard, gpus] = ["m7a.large", "g5.xlarge"].map(|name| quota_of(Market::Spot, name));
    offers.of.quotas = [(standard.clone(), 64), (gpus, 0)].into();
    let world = world(offers).await;
    world.run(&["policy", "set", &file(&dir, "p.toml", SEVERAL)]).await.done();
    let said = world.run(&["sizes"]).await.done();
    assert!(lines(&said).contains(&"QUOTA VCPUS USED OF".split_whitespace().collect()), "{said}");
    assert!(said.lines().any(|line| line.starts_with(&standard) && line.trim_end().ends_with("64")), "{said}");
    let json: Value = serde_json::from_str(&world.run(&["sizes", "--json"]).await.done()).unwrap();
    assert_eq!(
        json["quotas"],
        serde_json::json!([{"quota": standard, "used_vcpus": 0, "vcpus": 64}]),
        "no size has GPUs"
    );
}

#[tokio::test]
async fn what_cannot_be_bought_or_asked_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let world = world(shop()).await;
    let none = file(&dir, "none.toml", &SEVERAL.replace("[\"m*\"]", "[\"x*\"]"));
    let said = world.run(&["sizes", "--file", &none]).await;
    assert_eq!(said.result.as_ref().ok(), Some(&Exit::Failed), "{said:?}");
    assert!(said.err.contains("size any: no instance type has what it needs"), "{said:?}");
    let nowhere = file(&dir, "nowhere.toml", &SEVERAL.replace("subnet-1", "subnet-9"));
    let said = world.run(&["sizes", "--file", &nowhere]).await;
    assert!(said.err.contains("EC2 does not know subnet subnet-9"), "{said:?}");
    // A policy is stored even if EC2 does not answer.
    let mut away = world.clone();
    away.cluster.cloud =
        Arc::new(Listed { offers: Some(FixedOffers { is_away: true, ..FixedOffers::default() }), ..Listed::default() });
    let said = away.run(&["policy", "set", &file(&dir, "p.toml", SEVERAL)]).await;
    assert!(said.out.contains("stored as version 1"), "{said:?}");
    assert!(said.err.contains("the instance types cannot be read, and were never read"), "{said:?}");
    let mut blind = world.clone();
    blind.cluster.cloud = Arc::new(Listed::default());
    let said = blind.run(&["policy", "set", &none]).await;
    assert!(said.err.contains("what EC2 offers is not known from here"), "{said:?}");
}

/// Which subnets launch calls name one after the other is said, and is no fault.
#[tokio::test]
async fn subnets_of_one_zone_are_named_one_after_the_other() {
    let (dir, mut offers) = (tempfile::tempdir().unwrap(), shop());
    let subnet = |id: &str, zone: &str| (id.to_owned(), Subnet { zone: zone.into(), free: 9 });
    offers.of.subnets = [subnet("subnet-1", "b"), subnet("subnet-2", "b"), subnet("subnet-3", "a")].into();
    let world = world(offers).await;
    let policy = file(&dir, "p.toml", &SEVERAL.replace("[\"subnet-1\"]", "[\"subnet-1\", \"subnet-2\", \"subnet-3\"]"));
    let said = world.run(&["sizes", "--file", &policy]).await;
    let says = "zone b has subnet-1, subnet-2: EC2 takes one subnet of a zone in a launch call";
    assert!(said.err.lines().count() == 1 && said.err.starts_with(says), "{}", said.err);
    assert_eq!(said.result.unwrap(), Exit::Done);
    let checked = world.run(&["policy", "check", &policy]).await.err;
    assert!(checked.contains(says) && !checked.contains("all subnets are in one zone"), "{checked}");
    let one = file(&dir, "one.toml", &SEVERAL.replace("[\"subnet-1\"]", "[\"subnet-1\", \"subnet-2\"]"));
    let checked = world.run(&["policy", "check", &one]).await.err;
    assert!(checked.contains("all subnets are in one zone: "), "{checked}");
    let stored = world.run(&["policy", "set", &policy]).await;
    assert!(stored.err.starts_with(says), "{}", stored.err);
    // `status` says nothing of it.
    let status = world.run(&["status"]).await;
    assert!(!status.out.contains("zone b"), "{}", status.out);
}
