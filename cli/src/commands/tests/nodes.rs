//! `nodes`, `node`, intents, handles and brakes.

use super::*;
use model::BrakeKind;
use model::control::Release;

#[tokio::test]
async fn intents_change_the_record_and_not_its_pulse() {
    let world = World::with_policy().await;
    let before = world.put_node(&fixtures::ready(0)).await;
    world.put_node(&fixtures::assigned(1)).await;
    for (command, intent, said) in [
        ("hold", Intent::Hold, "slot 0 held: it stays up and takes no new work\n"),
        ("drain", Intent::Drain, "slot 0 drains: it takes no new work and is shut down when idle\n"),
        ("resume", Intent::Run, "slot 0 takes work again\n"),
    ] {
        let (out, changed) = world.changes(&[command, "0"]).await;
        assert_eq!(out.done(), said);
        assert_eq!(changed, [format!("events/slot#0/{command}"), "nodes/0".to_owned()]);
        let record = world.store().node(fixtures::slot(0)).await.unwrap().unwrap();
        assert_eq!(record.life().unwrap().intent, intent);
        assert_eq!((record.contact(), record.status()), (before.contact(), Some(NodeStatus::Ready)));
    }
    let (said, changed) = world.changes(&["resume", "0"]).await;
    assert_eq!((said.done().as_str(), changed.len()), ("nothing changed: slot 0 is neither held nor drained\n", 0));
    let (said, changed) = world.changes(&["hold", "3", "1"]).await;
    let (out, err) = said.failed();
    assert!(out.starts_with("slot 1 held") && err.starts_with("nodekeeper: slot 3 has never had a node"), "{out}{err}");
    assert_eq!(changed, ["events/slot#1/hold", "nodes/1"]);
    world.put_node(&fixtures::assigned(2).clean(at(5), "refused").unwrap()).await;
    for (command, what) in [("hold", "be held"), ("drain", "be drained"), ("resume", "be resumed")] {
        let (_, err) = world.run(&[command, "2"]).await.failed();
        assert!(err.contains(&format!("cannot {what}")), "{err}");
    }
}

#[tokio::test]
async fn a_shutdown_cannot_be_undone() {
    let world = World::with_policy().await;
    world.put_node(&fixtures::ready(0).shut_down(at(990), "idle").unwrap()).await;
    for command in ["hold", "drain", "resume"] {
        let (said, changed) = world.changes(&[command, "0"]).await;
        let (out, err) = said.failed();
        assert!(out.is_empty() && err.contains("slot 0 is shutting down already"), "{command}: {err}");
        assert_eq!(changed, Vec::<String>::new());
    }
}

#[tokio::test]
async fn a_drain_with_a_deadline_keeps_it() {
    let world = World::with_policy().await;
    let interrupted = fixtures::ready(0).with_intent(Intent::Drain, Some(at(1100)), at(990)).unwrap();
    world.put_node(&interrupted).await;
    let (said, changed) = world.changes(&["drain", "0"]).await;
    assert_eq!((said.done().as_str(), changed.len()), ("nothing changed: slot 0 is being drained already\n", 0));
}

#[tokio::test]
async fn a_drain_says_when_it_stops_what_still_runs() {
    let world = World::with_policy().await;
    world.put_running(0).await;
    // It takes up to 30 s to stop.
    let said = world.run(&["drain", "0", "--by", "30m"]).await.done();
    let at_1770 =
        "what still runs in the minute before 2027-01-15T08:46:10.000Z (in 29 min) is told to stop, and runs elsewhere";
    assert!(said.contains(at_1770), "{said}");
    let said = world.run(&["drain", "0", "--by", "20s"]).await.done();
    assert!(said.contains("what runs there is told to stop now, and its jobs run elsewhere"), "{said}");
}

#[tokio::test]
async fn nodes_are_listed_and_shown() {
    let world = World::with_policy().await;
    world.put_running(1).await;
    let free = fixtures::assigned(1).clean(at(5), "refused").unwrap();
    world.put_node(&free).await;
    let out = world.run(&["nodes"]).await.done();
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(
        lines[0],
        "SLOT  STATE   STATUS  SIZE   TYPE       MARKET     INSTANCE  INTENT  ALLOCS  HEARD FROM  REASON                               NEXT"
    );
    assert!(
        lines[1].starts_with(
            "0     in_use  ready   small  m7a.large  on_demand  i-0               1       15 min ago  runs "
        )
    );
    assert_eq!(lines[2..], ["1 free slot not shown (--all)"]);
    assert_eq!(world.run(&["nodes", "--all"]).await.done().lines().count(), 3);
    assert_eq!(world.run(&["nodes", "--json"]).await.json()[1]["state"], "cleaned");
    let out = world.run(&["node", "0"]).await.done();
    assert!(out.contains("size              small: m7a.large, 2 vCPU, 8 GiB\n"), "{out}");
    assert!(out.contains("market            on_demand, $0.10 an hour\n"), "{out}");
    assert!(out.contains(&fixtures::alloc_id(1).to_string()[18..]) && out.ends_with("15 min ago  true\n"), "{out}");
    assert_eq!(world.run(&["node", "0", "--json"]).await.json()["record"]["status"], "ready");
    assert!(world.run(&["node", "3"]).await.error().contains("slot 3 has never had a node"));
}

#[tokio::test]
async fn a_release_names_what_is_held_now_and_frees_nothing_else() {
    let mut world = World::with_policy().await;
    let mut instances = Vec::new();
    for slot in 0..4 {
        world.put_node(&fixtures::ready(slot)).await;
        instances.push(Instance {
            instance_id: format!("i-{slot}"),
            state: model::cloud::InstanceState::Running,
            launched_at: at(0),
            zone: None,
            instance_type: None,
            subnet_id: None,
            tags: BTreeMap::from([(model::cloud::NODE_TAG.to_owned(), fixtures::node_id(slot).to_string())]),
        });
    }
    world.cluster.cloud = Arc::new(Listed { instances, ..Listed::default() });
    let held = |plan: &str| plan.contains("hold_back");
    let plan = world.run(&["plan"]).await.done();
    assert!(held(&plan) && plan.contains("nodekeeper release leases"), "{plan}");
    let node = |slot| fixtures::node_id(slot).to_string();
    world.put_entry(fixtures::brake(BrakeKind::Leases, "poll-and-scale", (0..2).map(node).collect(), at(900))).await;
    let (said, changed) = world.changes(&["release", "leases", "--show"]).await;
    let shown = said.done();
    assert!(shown.starts_with("the brake leases holds 2 (many):\n") && changed.is_empty(), "{shown}");
    assert!(shown.contains(&node(0)) && shown.contains(&node(1)), "{shown}");
    let (said, changed) = world.changes(&["release", "leases"]).await;
    let said = said.done();
    assert!(said.starts_with("the next run carries out what the brake leases holds back (many): 2 in all\n"), "{said}");
    assert_eq!(changed, ["control/release#leases", "events/cluster/release"]);
    let key = ControlKey::Release(BrakeKind::Leases);
    let release: Release = world.store().entry(&key).await.unwrap();
    assert_eq!((release.since_at, release.until_at), (Some(at(1000)), Some(at(4600))));
    let plan = world.run(&["plan"]).await.done();
    let down: Vec<&str> = plan.lines().filter(|line| line.contains("mark_down")).collect();
    assert_eq!(down.len(), 2, "{plan}");
    assert!(down.iter().all(|line| line.contains("slot#0") || line.contains("slot#1")), "{plan}");
    // The brake holds nothing any more.
    world.now = at(1500);
    let (said, changed) = world.changes(&["release", "leases"]).await;
    assert_eq!(said.done(), "the brake leases holds nothing: there is nothing to release\n");
    assert_eq!(changed, Vec::<String>::new());
}
