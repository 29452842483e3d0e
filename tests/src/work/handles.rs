//! Reports of handles: without calls when nothing is new, and refused if they would take away too many.

use crate::world::node::Node;
use crate::world::raw::{Raw, item, s as text};
use crate::world::{World, job, quick_policy, set_policy};
use model::handle::cache_handle;
use model::{Handle, HandleKind, HandleState, JobSpec, NodeRecord, Policy, Span, Time, Work};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use store::{delete_handle, insert_handle};

/// A world with this many idle nodes that are ready.
async fn ready(nodes: u32, sweep: Value) -> (World, Vec<NodeRecord>) {
    let mut policy = quick_policy();
    for (knob, value) in sweep.as_object().unwrap() {
        policy["sweep"][knob] = value.clone();
    }
    policy["nodes"] = json!({"max": nodes, "min": nodes});
    let mut world = World::with(policy, ec2_stand_in::Ec2Settings::default()).await;
    for _ in 0..60 {
        world.step().await;
        let records = world.look.nodes().await.unwrap();
        if records.iter().filter(|n| n.takes_work()).count() == nodes as usize {
            return (world, records.into_iter().filter(|n| !n.is_cleaned()).collect());
        }
    }
    panic!("the nodes are not ready");
}

fn instance(record: &NodeRecord) -> String {
    record.life().and_then(|life| life.instance_id.clone()).unwrap()
}

impl World {
    fn node_of(&mut self, record: &NodeRecord) -> &mut Node {
        self.nodes.get_mut(&instance(record)).unwrap()
    }

    async fn handles(&self, record: &NodeRecord) -> Vec<Handle> {
        self.look.handles_of(record.node_id().unwrap()).await.unwrap().rows
    }

    async fn row(&self, record: &NodeRecord, handle: &str) -> Option<Handle> {
        self.look.handle(record.node_id().unwrap(), handle).await.unwrap()
    }

    async fn steps(&mut self, steps: usize) {
        for _ in 0..steps {
            self.step().await;
        }
    }

    /// How many of the cluster's warnings say that a report of handles is refused.
    async fn refusals(&self) -> usize {
        let events = self.look.history("cluster", 50).await.unwrap();
        events.iter().filter(|event| event.reason.contains("raise sweep.cap_min")).count()
    }
}

/// A live row without an alloc.
fn live(record: &NodeRecord, handle: &str, kind: HandleKind, due_at: Time) -> Handle {
    Handle::new(record.node_id().unwrap(), handle.into(), kind, HandleState::Live, 0, due_at)
}

fn states(rows: &[Handle], state: HandleState) -> usize {
    rows.iter().filter(|row| row.state == state).count()
}

/// 450 handles that nobody ordered: none is destroyed, a sign says so, and all go when the policy allows so many.
#[tokio::test]
async fn a_report_that_would_destroy_an_unusual_share_is_refused_until_the_policy_allows_it() {
    let (mut world, nodes) = ready(2, json!({"max_in_flight": 1000})).await;
    world.node_of(&nodes[0]).handles.extend((0..450).map(|n| format!("a-{n:05}")));
    world.steps(6).await;
    let rows = world.handles(&nodes[0]).await;
    assert_eq!((rows.len(), states(&rows, HandleState::Unknown)), (450, 450));
    assert_eq!(world.refusals().await, 1, "once in an hour");
    let shown = world.operate(&["status"]).await;
    assert!(shown.contains("450 of 450 handles would be destroyed"), "{shown}");
    // Another node has few enough.
    world.node_of(&nodes[1]).handles.extend((0..10).map(|n| format!("b-{n:05}")));
    world.steps(6).await;
    assert_eq!((world.node_of(&nodes[0]).handles.len(), world.node_of(&nodes[1]).handles.len()), (450, 0));
    let mut policy = quick_policy();
    policy["nodes"] = json!({"max": 2, "min": 2});
    (policy["sweep"]["max_in_flight"], policy["sweep"]["cap_min"]) = (json!(1000), json!(450));
    set_policy(&world.look, &Policy::from_json(&policy).unwrap()).await;
    world.steps(6).await;
    assert_eq!(world.node_of(&nodes[0]).handles.len(), 0);
}

#[tokio::test]
async fn missing_handles_that_are_too_many_to_drop_are_live_when_they_are_back() {
    let (mut world, nodes) = ready(1, json!({"missing_grace_s": 20})).await;
    let names: Vec<String> = (0..30).map(|n| format!("cache:{n:02}")).collect();
    for name in &names {
        let row = live(&nodes[0], name, HandleKind::Volume, world.now() + Span::from_s(86_000));
        world.look.apply(&insert_handle(&row)).await.unwrap();
        world.node_of(&nodes[0]).handles.insert(name.clone());
    }
    world.steps(3).await;
    // The disk with the handles is away.
    world.node_of(&nodes[0]).handles.clear();
    world.steps(20).await;
    assert_eq!(world.refusals().await, 1);
    world.node_of(&nodes[0]).handles.extend(names);
    world.steps(3).await;
    let rows = world.handles(&nodes[0]).await;
    assert_eq!((states(&rows, HandleState::Live), rows.iter().filter(|r| r.missing_ms.is_some()).count()), (30, 0));
}

#[tokio::test]
async fn a_node_whose_handles_are_settled_reports_only_what_is_new() {
    let (mut world, nodes) = ready(1, json!({})).await;
    world.steps(4).await;
    let sent = world.node_of(&nodes[0]).handle_reports;
    world.steps(30).await;
    assert_eq!(world.node_of(&nodes[0]).handle_reports, sent, "nothing has changed");
    // A new handle.
    let row = live(&nodes[0], "c", HandleKind::Container, world.now() + Span::from_s(600));
    world.look.apply(&insert_handle(&row)).await.unwrap();
    world.node_of(&nodes[0]).handles.insert("c".into());
    world.steps(10).await;
    let sent = world.node_of(&nodes[0]).handle_reports - sent;
    assert!((1..=2).contains(&sent), "{sent}");
    // The node cannot know that the handle is to be destroyed. The answer to its heartbeat makes it report.
    world.pass(600);
    world.steps(10).await;
    assert!(world.node_of(&nodes[0]).handles.is_empty());
    assert_eq!(world.row(&nodes[0], "c").await, None);
}

#[tokio::test]
async fn what_a_running_alloc_uses_stays_with_a_row_and_without() {
    let (mut world, _) = ready(1, json!({"cap_min": 1})).await;
    let id = world
        .submit(JobSpec { work: Work { caches: vec!["data".into()], ..job(&["forever"]).work }, ..job(&["forever"]) })
        .await
        .summary
        .job_id;
    world.steps(8).await;
    let nodes = world.look.nodes().await.unwrap();
    let (container, cache) = (format!("{id}.0.0"), cache_handle("data"));
    world.node_of(&nodes[0]).handles.insert(cache.clone());
    world.steps(4).await;
    let row = world.row(&nodes[0], &cache).await.unwrap();
    world.look.apply(&delete_handle(&row)).await.unwrap();
    assert_eq!(world.row(&nodes[0], &container).await, None);
    world.node_of(&nodes[0]).protocol.report_handles_again();
    world.steps(20).await;
    assert_eq!(world.row(&nodes[0], &cache).await.unwrap().state, HandleState::Live);
    assert_eq!(world.row(&nodes[0], &container).await, None, "the alloc itself says that it is in use");
    for name in [container, cache] {
        assert!(world.node_of(&nodes[0]).handles.contains(&name), "{name}");
    }
}

#[tokio::test]
async fn a_cache_that_its_node_cannot_destroy_is_taken_back_by_a_job() {
    let (mut world, nodes) = ready(1, json!({})).await;
    let name = cache_handle("data");
    // The node lists the cache, but a person has taken its label away. So nobody destroys it.
    let node = world.node_of(&nodes[0]);
    node.handles.insert(name.clone());
    node.relabelled.insert(name.clone(), None);
    let marked = live(&nodes[0], &name, HandleKind::Volume, world.now()).marked(1, world.now());
    world.look.apply(&insert_handle(&marked)).await.unwrap();
    let id = world
        .submit(JobSpec { work: Work { caches: vec!["data".into()], ..job(&["forever"]).work }, ..job(&["forever"]) })
        .await
        .summary
        .job_id;
    world.steps(20).await;
    assert!(world.look.job(id).await.unwrap().unwrap().summary.allocs.is_empty(), "it may still be destroyed");
    world.pass(600);
    world.steps(4).await;
    assert_eq!(world.look.job(id).await.unwrap().unwrap().summary.allocs.len(), 1);
    assert_eq!(world.row(&nodes[0], &name).await.unwrap().state, HandleState::Live);
}

/// One job has just completed on the only node. Returns the node, and the container that the job left.
async fn complete(sticks: bool) -> (World, NodeRecord, String) {
    let (mut world, nodes) = ready(1, json!({})).await;
    let id = world.submit(job(&["true"])).await.summary.job_id;
    let name = format!("{id}.0.0");
    if sticks {
        world.node_of(&nodes[0]).stuck.insert(name.clone());
    }
    for _ in 0..20 {
        world.step().await;
        if world.look.job(id).await.unwrap().unwrap().summary.state == model::JobState::Complete {
            return (world, nodes[0].clone(), name);
        }
    }
    panic!("the job did not complete");
}

#[tokio::test]
async fn what_a_complete_alloc_left_is_destroyed_without_a_row() {
    let (mut world, node, name) = complete(false).await;
    for _ in 0..12 {
        assert_eq!(world.handles(&node).await, []);
        world.step().await;
    }
    assert!(!world.node_of(&node).handles.contains(&name));
}

#[tokio::test]
async fn what_a_complete_alloc_left_gets_a_row_if_it_stays() {
    let (mut world, node, name) = complete(true).await;
    world.steps(4).await;
    assert_eq!(world.handles(&node).await, [], "it may just take a moment");
    world.pass(120);
    world.steps(4).await;
    assert_eq!(world.row(&node, &name).await.unwrap().state, HandleState::Destroying);
    world.pass(600);
    world.steps(8).await;
    assert_eq!(world.warnings(&node).await.len(), 1, "and it is told of");
    world.node_of(&node).stuck.clear();
    world.steps(12).await;
    assert_eq!(world.handles(&node).await, []);
}

#[tokio::test]
async fn a_handle_that_its_node_does_not_destroy_is_told_of_once_a_day_with_the_reason() {
    let (mut world, nodes) = ready(1, json!({})).await;
    let name = cache_handle("data");
    let node = world.node_of(&nodes[0]);
    (_, _) = (node.handles.insert(name.clone()), node.stuck.insert(name.clone()));
    let marked = live(&nodes[0], &name, HandleKind::Volume, world.now()).marked(1, world.now());
    world.look.apply(&insert_handle(&marked)).await.unwrap();
    world.steps(8).await;
    assert_eq!(world.warnings(&nodes[0]).await, [] as [String; 0], "it may just take long");
    world.pass(600);
    world.steps(8).await;
    let said = "its agent cannot remove 1 handles (cache:data): it is mounted";
    assert_eq!(world.warnings(&nodes[0]).await, [said]);
}

#[tokio::test]
async fn every_handle_to_destroy_gets_its_turn() {
    let (mut world, nodes) = ready(1, json!({"max_in_flight": 2})).await;
    let name = |n: usize| format!("h{n:05}");
    // Six of each hundred handles are to be destroyed, and the node can destroy the last four of them.
    let middle = |n: usize| (40..46).contains(&(n % 100));
    let (now, look_at) = (world.now(), world.now() + Span::from_s(80_000));
    for n in 0..300 {
        let row = live(&nodes[0], &name(n), HandleKind::Container, look_at);
        let row = if middle(n) { row.marked(1, now) } else { row };
        world.look.apply(&insert_handle(&row)).await.unwrap();
        let node = world.node_of(&nodes[0]);
        node.handles.insert(name(n));
        if n % 100 == 40 || n % 100 == 41 {
            node.stuck.insert(name(n));
        }
    }
    world.steps(24).await;
    let node = world.node_of(&nodes[0]);
    let left: BTreeSet<String> = node.handles.clone();
    let expected = (0..300).filter(|n| !middle(*n) || n % 100 < 42).map(name).collect::<BTreeSet<_>>();
    assert_eq!(left.symmetric_difference(&expected).collect::<Vec<_>>(), Vec::<&String>::new());
}

#[tokio::test]
async fn no_cache_is_judged_while_the_row_of_an_alloc_that_may_use_it_cannot_be_read() {
    let (mut world, _) = ready(1, json!({"cap_min": 10})).await;
    let id = world
        .submit(JobSpec { work: Work { caches: vec!["data".into()], ..job(&["forever"]).work }, ..job(&["forever"]) })
        .await
        .summary
        .job_id;
    world.steps(8).await;
    let nodes = world.look.nodes().await.unwrap();
    let (alloc, cache) = (format!("{id}.0.0"), cache_handle("data"));
    let node = world.node_of(&nodes[0]);
    node.handles.insert(cache.clone());
    world.steps(4).await;
    // The row of the cache is lost, and that of the alloc cannot be read.
    let row = world.row(&nodes[0], &cache).await.unwrap();
    world.look.apply(&delete_handle(&row)).await.unwrap();
    let (raw, key) = (Raw::of(&world), item(&[("alloc_id", text(&alloc))]));
    let whole = raw.get("allocs", &key).await.unwrap();
    let mut spoiled = whole.clone();
    spoiled.insert("client".into(), text("nonsense"));
    raw.put("allocs", &spoiled).await;
    world.node_of(&nodes[0]).protocol.report_handles_again();
    world.steps(20).await;
    assert_eq!(world.row(&nodes[0], &cache).await, None, "nobody knows whether it is in use");
    assert!(world.node_of(&nodes[0]).handles.contains(&cache));
    // A person corrects the row.
    raw.put("allocs", &whole).await;
    world.node_of(&nodes[0]).protocol.report_handles_again();
    world.steps(4).await;
    assert_eq!(world.row(&nodes[0], &cache).await.unwrap().state, HandleState::Live);
}

#[tokio::test]
async fn a_report_is_settled_only_when_no_handle_is_missing() {
    let (mut world, nodes) = ready(1, json!({"missing_grace_s": 60, "cap_min": 10})).await;
    let name = |n: usize| format!("h{n:05}");
    let look_at = world.now() + Span::from_s(80_000);
    for n in 0..300 {
        world.look.apply(&insert_handle(&live(&nodes[0], &name(n), HandleKind::Container, look_at))).await.unwrap();
    }
    // One handle is missing.
    world.node_of(&nodes[0]).handles.extend((0..300).filter(|n| *n != 150).map(name));
    world.steps(40).await;
    let gone: Vec<String> =
        world.handles(&nodes[0]).await.into_iter().filter(|r| r.state == HandleState::Gone).map(|r| r.handle).collect();
    assert_eq!(gone, [name(150)]);
    let sent = world.node_of(&nodes[0]).handle_reports;
    world.steps(10).await;
    assert_eq!(world.node_of(&nodes[0]).handle_reports, sent, "now it is settled");
}
