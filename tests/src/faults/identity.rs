//! A record may name the instance of another node, because a row was copied or because a node claimed the instance. The
//! tag of the instance decides to which node it belongs.

use crate::world::{World, job};
use model::{ActionName, Handle, Intent, JobSpec, NodeId, NodeRecord, NodeState, Slot, Span, Time};
use std::collections::BTreeSet;

fn alone() -> JobSpec {
    let mut spec = job(&["forever"]);
    spec.needs.exclusive = true;
    spec
}

fn live(world: &World) -> BTreeSet<String> {
    let live = world.ec2.instances().into_iter().filter(|i| i.state != ec2_stand_in::InstanceState::Terminated);
    live.map(|i| i.instance_id).collect()
}

/// Two nodes with a job each.
async fn two_at_work() -> (World, NodeRecord, NodeRecord) {
    let mut world = World::new().await;
    world.submit(alone()).await;
    world.submit(alone()).await;
    for _ in 0..60 {
        world.step().await;
        let at_work: Vec<NodeRecord> = world.look.nodes().await.unwrap();
        let at_work: Vec<_> = at_work.into_iter().filter(|n| n.life().is_some_and(|l| !l.allocs.is_empty())).collect();
        if let [first, second] = at_work.as_slice() {
            let both = (first.clone(), second.clone());
            return (world, both.0, both.1);
        }
    }
    panic!("no two nodes at work: {:#?}", world.look.nodes().await.unwrap());
}

/// All functions run for ten minutes, which is longer than every time-out for cleaning and terminating. Then the victim
/// must still work, and no machine may be gone.
async fn nothing_ends(mut world: World, victim: &NodeRecord) {
    let before = live(&world);
    assert_eq!(before.len(), 2, "{before:?}");
    for _ in 0..120 {
        world.step().await;
    }
    assert_eq!(live(&world), before, "no machine was terminated");
    let kept = world.look.node(victim.slot).await.unwrap().unwrap();
    assert_eq!(kept.life().unwrap().allocs, victim.life().unwrap().allocs, "the victim still works");
}

#[tokio::test]
async fn a_drained_record_that_names_the_instance_of_another_node_ends_nothing() {
    let (world, victim, wrong) = two_at_work().await;
    let mut named = wrong.clone();
    if let NodeState::InUse(node) = &mut named.state {
        node.life.instance_id = victim.life().unwrap().instance_id.clone();
        node.life.intent = Intent::Drain;
    }
    world.look.write(Some(&wrong), &named, Vec::new()).await.unwrap();
    nothing_ends(world, &victim).await;
}

#[tokio::test]
async fn a_copied_row_that_is_shutting_down_ends_nothing() {
    let (world, victim, _) = two_at_work().await;
    let mut copy = victim.clone();
    copy.slot = Slot::new(9).unwrap();
    if let NodeState::InUse(node) = &mut copy.state {
        node.life.node_id = NodeId::new(copy.slot, world.look.rng().ulid(world.now()));
        node.life.allocs.clear();
    }
    copy = copy.shut_down(world.now(), "a copied row").unwrap();
    world.look.write(None, &copy, Vec::new()).await.unwrap();
    nothing_ends(world, &victim).await;
}

#[tokio::test]
async fn the_handles_of_a_record_that_contradicts_the_contract_are_only_put_off() {
    let (world, victim, _) = two_at_work().await;
    let node_id = victim.node_id().unwrap();
    world.make_row(*victim.life().unwrap().allocs.first().unwrap()).await;
    let handles = async || world.look.handles_of(node_id).await.unwrap().rows;
    let before = handles().await;
    assert!(!before.is_empty());
    // Somebody has put the record of another slot in its place.
    let mut wrong = victim.clone();
    if let NodeState::InUse(node) = &mut wrong.state {
        node.life.node_id = NodeId::new(Slot::new(9).unwrap(), node_id.ulid());
    }
    let wrong = world.look.write(Some(&victim), &wrong, Vec::new()).await.unwrap();
    world.pass(100_000);
    let sweep = async || sweep_dispatch::tick(&world.look, &serde_json::json!({}), world.clock()).await.unwrap();
    let slot = format!("slot#{}", victim.slot);
    let done: Vec<_> = sweep().await.actions.iter().map(|a| (a.action, a.subject.clone())).collect();
    assert!(done.iter().all(|(action, subject)| *subject != slot || *action == ActionName::LookLater), "{done:?}");
    let due_at = |rows: &[Handle]| rows.iter().map(|row| row.due_at).collect::<Vec<_>>();
    let put_off = handles().await;
    // A handle that was not due yet stays as it was. The run's clock may be some milliseconds ahead.
    let is_off = |(at, was): (&Time, &Time)| at == was || at.since(world.now()) <= Span::from_s(3601);
    assert!(due_at(&put_off).iter().zip(&due_at(&before)).all(is_off), "{put_off:?}");
    let as_before: Vec<Handle> =
        put_off.iter().zip(due_at(&before)).map(|(row, due_at)| Handle { due_at, ..row.clone() }).collect();
    assert_eq!(as_before, before, "none is destroyed, and none expires");
    // After the row is corrected, the handles are looked at again.
    let right = NodeRecord { state: victim.state, ..wrong.clone() };
    world.look.write(Some(&wrong), &right, Vec::new()).await.unwrap();
    world.pass(3602);
    sweep().await;
    let now = world.now();
    let after = handles().await;
    assert!(after.iter().all(|h| h.due_at > now && h.expires_at.is_none()), "{after:?} at {now}");
}
