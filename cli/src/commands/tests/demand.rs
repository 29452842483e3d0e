//! `demand`: what is written, what is printed, and what is refused.

use super::*;
use model::control::DemandSet;

async fn stored(world: &World, name: &str) -> DemandSet {
    world.store().entry(&ControlKey::Demand(name.to_owned())).await.unwrap()
}

#[tokio::test]
async fn the_same_call_again_only_renews() {
    let mut world = World::with_policy().await;
    let line = ["demand", "set", "ci", "--size", "small", "--count", "3", "--json"];
    let (first, changed) = world.changes(&line).await;
    assert_eq!(changed, ["control/demand#ci", "events/cluster/demand_set"]);
    let first = first.json();
    assert_eq!((&first["version"], &first["changed"], &first["count"]), (&1.into(), &true.into(), &3.into()));
    assert_eq!(first["until_at"], (world.now + Span::from_s(900)).as_ms());
    world.now = world.now + Span::from_s(60);
    let (again, changed) = world.changes(&line).await;
    assert_eq!(changed, ["control/demand#ci"]);
    let again = again.json();
    assert_eq!((&again["version"], &again["changed"]), (&1.into(), &false.into()));
    assert_eq!(again["until_at"], (world.now + Span::from_s(900)).as_ms());
    let said = world.run(&["demand", "set", "ci", "--size", "small", "--count", "4", "--for", "1h"]).await;
    let said = said.done();
    assert!(
        said.starts_with("demand set ci is set to 4 of size small until ") && said.ends_with(", version 2\n"),
        "{said}"
    );
    let set = stored(&world, "ci").await;
    assert_eq!((set.count(world.now), set.until_at), (4, Some(world.now + Span::from_s(3600))));
    // A renewal leaves no event, and a change leaves one.
    let events = world.store().history("cluster", 9).await.unwrap();
    let told: Vec<&str> = events.iter().filter(|e| e.action == "demand_set").map(|e| e.reason.as_str()).collect();
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(told.contains(&"ci: 3 of size small, by ann"), "{told:?}");
}

#[tokio::test]
async fn a_set_is_shown_with_what_it_has_until_it_is_over() {
    let mut world = World::with_policy().await;
    // At this time, the lease of the node is valid.
    world.now = at(100);
    world.run(&["demand", "set", "ci", "--size", "small", "--count", "9"]).await.done();
    world.put_node(&fixtures::ready(0)).await;
    let sets = &world.run(&["plan", "--json"]).await.json()["demand_sets"][0];
    assert_eq!((&sets["name"], &sets["count"], &sets["ready"]), (&"ci".into(), &9.into(), &1.into()));
    assert_eq!((&sets["coming"], &sets["lacking"]), (&3.into(), &5.into()));
    let line = "demand set ci: 1 of 9 ready, 3 to come; demand set ci lacks 5 of 9: ";
    assert!(world.run(&["plan"]).await.done().contains(line));
    assert!(world.run(&["status"]).await.out.contains(line));
    world.put_job(1).await;
    assert!(world.run(&["jobs"]).await.done().contains(line));
    world.now = world.now + Span::from_s(900);
    assert!(!world.run(&["plan"]).await.done().contains("demand set"));
}

#[tokio::test]
async fn what_cannot_be_is_refused_and_nothing_is_written() {
    let world = World::with_policy().await;
    for (line, why) in [
        ("a b --size small --count 1", "cannot be the name of a set"),
        ("a --size small --count 10001", "--count must be at most 10000, it is 10001"),
        ("a --size small --count 1 --for 59s", "--for must be from "),
        ("a --size small --count 1 --for 8d", "--for must be from "),
        ("a --size large --count 1", "the policy has no size \"large\": it has small"),
    ] {
        let (name, rest) = line.split_once(" --").unwrap();
        let rest = format!("--{rest}");
        let words: Vec<&str> = ["demand", "set", name].into_iter().chain(rest.split(' ')).collect();
        let refused = world.run(&words).await.error();
        assert!(refused.contains(why), "{line}: {refused}");
    }
    for line in ["demand set a --count 1", "demand set a --size small"] {
        assert!(parse(&line.split(' ').collect::<Vec<_>>()).is_err(), "{line}");
    }
    assert_eq!(world.store().control().await.unwrap().wanted_sets(world.now).count(), 0);
}

#[tokio::test]
async fn there_are_at_most_a_hundred_sets() {
    let mut world = World::with_policy().await;
    for n in 0..DemandSet::MOST {
        let key = ControlKey::Demand(format!("s{n}"));
        let set = DemandSet::new(&key);
        let until = world.now + Span::from_s(100);
        world.store().write_entry(&set, &set.wanted("small", 0, until, world.now)).await.unwrap();
    }
    let one_more = ["demand", "set", "more", "--size", "small", "--count", "1"];
    assert!(world.run(&one_more).await.error().contains("there are 100 demand sets, which is the most"));
    world.run(&["demand", "set", "s7", "--size", "small", "--count", "1"]).await.done();
    world.now = world.now + Span::from_s(100);
    world.run(&one_more).await.done();
}
