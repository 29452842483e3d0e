//! Work goes on beside a row that cannot be read: on the same node, in the same queue, of the same job.

use crate::world::all_rows::AllRows;
use crate::world::raw::{Item, Raw, item, m, s as text};
use crate::world::switch::Denied;
use crate::world::{World, quick_policy};
use aws_sdk_dynamodb::types::AttributeValue;
use model::functions::HEARTBEAT_INGEST;
use model::{AllocId, ClientStatus, Handle, HandleKind, HandleState, JobId, JobState, Needs, NodeRecord, Span};
use serde_json::json;
use std::collections::BTreeMap;
use store::{DbError, Effect, Table, WriteError, insert_handle};
use store::{Retention, transactions};

/// A cluster of one node.
async fn small() -> (World, Raw) {
    let mut policy = quick_policy();
    policy["nodes"] = json!({"max": 1});
    let world = World::with(policy, ec2_stand_in::Ec2Settings::default()).await;
    let raw = Raw::of(&world);
    (world, raw)
}

fn job_key(id: JobId) -> Item {
    item(&[("job_id", text(id))])
}

fn alloc_key(id: AllocId) -> Item {
    item(&[("alloc_id", text(id))])
}

impl Raw {
    /// Changes an attribute of a row, or removes it. Returns the row before and after.
    async fn spoil(&self, table: &str, key: &Item, name: &str, value: Option<AttributeValue>) -> (Item, Item) {
        let sound = self.get(table, key).await.unwrap();
        let mut broken = sound.clone();
        broken.remove(name);
        broken.extend(value.map(|value| (name.to_owned(), value)));
        assert_ne!(broken, sound, "nothing is broken");
        self.put(table, &broken).await;
        (sound, broken)
    }
}

impl World {
    async fn add(&self, command: &str) -> JobId {
        self.submit(crate::world::job(&[command])).await.summary.job_id
    }

    async fn takes(&mut self, steps: u32) {
        for _ in 0..steps {
            self.step().await;
        }
    }
}

#[tokio::test]
async fn a_job_ends_although_the_row_of_another_job_on_its_node_cannot_be_read() {
    let (mut world, raw) = small().await;
    let (first, second) = (world.add("forever").await, world.add("forever").await);
    world.takes(16).await;
    let allocs = world.look.live_allocs().await.unwrap();
    assert_eq!(allocs.iter().filter(|a| a.client == ClientStatus::Running).count(), 2, "{allocs:?}");
    assert_eq!(allocs[0].node_id, allocs[1].node_id);
    let (sound, broken) = raw.spoil("jobs", &job_key(first), "version", None).await;
    // Both commands end.
    let node = world.nodes.values_mut().next().unwrap();
    for alloc in &allocs {
        let order = node.protocol.durable.allocs[&alloc.alloc_id].order.clone();
        node.end(&order, 0);
    }
    world.takes(6).await;
    assert_eq!(world.state(second).await, JobState::Complete);
    assert_eq!(raw.get("jobs", &job_key(first)).await.unwrap(), broken, "the broken row stays as it is");
    let live: Vec<JobId> = world.look.live_allocs().await.unwrap().iter().map(|a| a.alloc_id.job_id).collect();
    assert_eq!(live, [first], "its end is not lost, and not taken yet");
    raw.put("jobs", &sound).await;
    world.takes(6).await;
    assert_eq!(world.state(first).await, JobState::Complete);
}

/// What keeps the end of an alloc from being taken.
#[derive(Clone, Copy, Debug)]
enum Obstacle {
    JobRow,
    AllocRow,
    /// A right is missing.
    Denied,
    /// Each attempt loses a race.
    Raced,
}

impl Obstacle {
    const ALL: [Self; 4] = [Self::JobRow, Self::AllocRow, Self::Denied, Self::Raced];

    /// Puts the obstacle in the way, and returns the row to put back.
    async fn rises(self, world: &World, raw: &Raw, alloc: AllocId) -> Option<(&'static str, Item)> {
        let deny = |why| {
            let (function, key) = (HEARTBEAT_INGEST.name, store::job_key(alloc.job_id));
            world.switch.deny(Some(Denied { function, key, why }));
        };
        match self {
            Self::JobRow => Some(("jobs", raw.spoil("jobs", &job_key(alloc.job_id), "version", None).await.0)),
            // The index of live allocs does not show this attribute, so each run sees an alloc that it may lose.
            Self::AllocRow => Some(("allocs", raw.spoil("allocs", &alloc_key(alloc), "work", Some(text("x"))).await.0)),
            Self::Denied => {
                deny(|| {
                    let (code, message) = ("AccessDeniedException".to_owned(), "no".to_owned());
                    DbError::Refused { operation: "TransactWriteItems", code, message }.into()
                });
                None
            }
            Self::Raced => {
                deny(|| WriteError::CONFLICT);
                None
            }
        }
    }
}

/// A node comes back, and the end of one of its two allocs cannot be taken for long. It is not lost when the obstacle is gone,
/// and meanwhile the other alloc goes on and ends as usual.
#[tokio::test]
async fn an_end_that_cannot_be_taken_holds_the_gate_and_stops_no_neighbour() {
    for obstacle in Obstacle::ALL {
        let mut policy = quick_policy();
        (policy["nodes"], policy["boot"]) = (json!({"max": 1}), json!({"timeout_s": 60}));
        let mut world = World::with(policy, ec2_stand_in::Ec2Settings::default()).await;
        let raw = Raw::of(&world);
        let mut spec = crate::world::job(&["forever"]);
        (spec.failure_policy.lost_after_s, spec.failure_policy.retry_lost) = (30, 0);
        let (first, second) = (world.submit(spec.clone()).await, world.submit(spec).await);
        let [first, second] = [first, second].map(|job| job.summary.job_id);
        world.takes(16).await;
        let of = |job_id| AllocId { job_id, member: 0, copy: 0 };
        let orders = [first, second].map(|job| {
            let node = world.nodes.values().next().unwrap();
            node.protocol.durable.allocs[&of(job)].order.clone()
        });
        let node = world.nodes.values_mut().next().unwrap();
        node.silent = true;
        node.end(&orders[0], 0);
        let clients = async |world: &World| {
            let live = world.look.live_allocs().await.unwrap();
            live.iter().map(|alloc| (alloc.alloc_id.job_id, alloc.client)).collect::<BTreeMap<_, _>>()
        };
        let unknown = BTreeMap::from([first, second].map(|job| (job, ClientStatus::Unknown)));
        for _ in 0..16 {
            if clients(&world).await != unknown {
                world.step().await;
            }
        }
        assert_eq!(clients(&world).await, unknown, "{obstacle:?}");
        let sound = obstacle.rises(&world, &raw, of(first)).await;
        world.nodes.values_mut().next().unwrap().silent = false;
        // Longer than the window of the job, two runs more, and the time after which a node that does not report is given up.
        world.takes(60).await;
        let record = world.look.nodes().await.unwrap().remove(0);
        assert!(record.has_untaken(), "{obstacle:?}: {record:?}");
        let runs = [(first, ClientStatus::Unknown), (second, ClientStatus::Running)];
        assert_eq!(clients(&world).await, BTreeMap::from(runs), "{obstacle:?}");
        world.nodes.values_mut().next().unwrap().end(&orders[1], 0);
        world.takes(3).await;
        assert_eq!(world.state(second).await, JobState::Complete, "{obstacle:?}");
        if let Some((table, row)) = sound {
            raw.put(table, &row).await;
        }
        world.switch.deny(None);
        world.takes(3).await;
        assert_eq!(world.state(first).await, JobState::Complete, "{obstacle:?}");
        assert!(world.look.nodes().await.unwrap()[0].takes_work(), "{obstacle:?}");
    }
}

#[tokio::test]
async fn a_dead_node_ends_the_allocs_whose_rows_can_be_read() {
    let (mut world, raw) = small().await;
    let (first, second) = (world.add("forever").await, world.add("forever").await);
    world.takes(16).await;
    let record = world.look.nodes().await.unwrap().remove(0);
    assert_eq!(record.life().unwrap().allocs.len(), 2);
    let (sound, _) = raw.spoil("jobs", &job_key(first), "version", None).await;
    let (keep, now) = (Retention::of(&world.policy), world.now());
    let refused = transactions::clean_node(&world.store, &record, "gone", Vec::new(), keep, now).await.unwrap_err();
    assert!(matches!(refused, WriteError::Db(DbError::Corrupt { .. })), "{refused}");
    let live: Vec<JobId> = world.look.live_allocs().await.unwrap().iter().map(|a| a.alloc_id.job_id).collect();
    assert_eq!((live, world.state(second).await), (vec![first], JobState::Queued));
    raw.put("jobs", &sound).await;
    let record = world.look.nodes().await.unwrap().remove(0);
    transactions::clean_node(&world.store, &record, "gone", Vec::new(), keep, now).await.unwrap();
    assert_eq!((world.look.live_allocs().await.unwrap(), world.state(first).await), (vec![], JobState::Queued));
}

#[tokio::test]
async fn a_node_gets_its_other_orders_while_the_rows_of_some_allocs_cannot_be_read() {
    let (mut world, raw) = small().await;
    let runs = world.add("forever").await;
    world.takes(16).await;
    let running = world.look.live_allocs().await.unwrap()[0].alloc_id;
    // The index of live allocs does not show this attribute, so the row seems to be readable.
    let (sound, broken) = raw.spoil("allocs", &alloc_key(running), "work", Some(text("x"))).await;
    let other = world.add("1").await;
    world.takes(8).await;
    assert_eq!(world.state(other).await, JobState::Complete, "it runs beside it");
    let protocol = |world: &World| world.nodes.values().next().unwrap().protocol.unfinished();
    assert_eq!(protocol(&world), [running], "what runs goes on");
    assert_eq!(raw.get("allocs", &alloc_key(running)).await.unwrap(), broken);
    let waits = world.add("forever").await;
    world.poll().await.unwrap();
    let live = world.look.live_allocs().await.unwrap();
    let pending = live.iter().find(|a| a.alloc_id.job_id == waits).unwrap().alloc_id;
    let (also_sound, _) = raw.spoil("allocs", &alloc_key(pending), "work", Some(text("x"))).await;
    // A run also reads the whole row of a pending alloc that does not start.
    world.takes(16).await;
    assert_eq!(protocol(&world), [running], "what nobody can read is not started");
    let status = world.operate(&["status"]).await;
    assert!(status.contains(&pending.to_string()) && status.contains("cannot be read"), "{status}");
    raw.put("allocs", &sound).await;
    raw.put("allocs", &also_sound).await;
    world.takes(4).await;
    let live = world.look.live_allocs().await.unwrap();
    let mut running: Vec<JobId> =
        live.iter().filter(|a| a.client == ClientStatus::Running).map(|a| a.alloc_id.job_id).collect();
    running.sort_unstable();
    assert_eq!(running, [runs, waits]);
}

#[tokio::test]
async fn a_job_whose_row_cannot_be_read_beyond_the_index_keeps_no_node() {
    let (mut world, raw) = small().await;
    let id = world.add("1").await;
    // The index of the queue does not show the command.
    let (sound, broken) = raw.spoil("jobs", &job_key(id), "work", Some(text("true"))).await;
    world.takes(60).await;
    let up = world.ec2.instances().into_iter().filter(|i| i.state == ec2_stand_in::InstanceState::Running).count();
    assert_eq!(up, 0, "it keeps no node");
    assert_eq!(raw.get("jobs", &job_key(id)).await.unwrap(), broken);
    let status = world.operate(&["status"]).await;
    assert!(status.contains(&id.to_string()) && status.contains("cannot be read"), "{status}");
    raw.put("jobs", &sound).await;
    world.takes(40).await;
    assert_eq!(world.state(id).await, JobState::Complete);
}

#[tokio::test]
async fn the_handles_of_a_dead_node_are_deleted_in_parts() {
    let (mut world, raw) = small().await;
    world.add("forever").await;
    world.takes(16).await;
    let record = world.look.nodes().await.unwrap().remove(0);
    let node_id = record.node_id().unwrap();
    let row = |n: u32| {
        Handle::new(
            node_id,
            format!("h{n:05}"),
            HandleKind::Container,
            HandleState::Live,
            0,
            world.now() + Span::from_s(9),
        )
    };
    let rows: Vec<store::Item> = (0..12_000)
        .map(|n| match insert_handle(&row(n)).effect {
            Effect::Put(item) => item,
            other => panic!("{other:?}"),
        })
        .collect();
    use store::Db;
    world.tables.put_new(Table::Handles, &rows).await.unwrap();
    // One of them cannot be read. It stays until a person corrects it.
    let key = item(&[("node_id", text(node_id)), ("handle", text("h00007"))]);
    raw.spoil("handles", &key, "kind", Some(text("thing"))).await;
    let (keep, now) = (Retention::of(&world.policy), world.now());
    let mut calls = 0;
    let mut record: NodeRecord = record;
    loop {
        calls += 1;
        match transactions::clean_node(&world.store, &record, "gone", Vec::new(), keep, now).await {
            Ok(cleaned) => break assert!(cleaned.is_cleaned()),
            Err(WriteError::Conflict(_)) => record = world.look.nodes().await.unwrap().remove(0),
            Err(other) => panic!("{other}"),
        }
        assert!(calls < 10);
    }
    assert!(calls >= 2, "{calls}");
    let left = world.look.handles_of(node_id).await.unwrap();
    assert_eq!((left.rows.len(), left.unreadable.len()), (0, 1));
}

#[tokio::test]
async fn jobs_that_cannot_be_placed_hold_no_node_however_many_they_are() {
    let (mut world, raw) = small().await;
    let mut bad = Vec::new();
    for n in 0..130 {
        let spec = model::JobSpec {
            priority: 900,
            needs: Needs { exclusive: n % 2 == 0, ..crate::world::job(&["1"]).needs },
            ..crate::world::job(&["1"])
        };
        let id = world.submit(spec).await.summary.job_id;
        // The index shows nothing of the work.
        let (name, value) = ("work", Some(text("true")));
        bad.push((id, raw.spoil("jobs", &job_key(id), name, value).await.1));
    }
    let good = world.add("1").await;
    world.takes(40).await;
    assert_eq!(world.state(good).await, JobState::Complete);
    for (id, row) in bad {
        assert_eq!(raw.get("jobs", &job_key(id)).await.unwrap(), row, "it stays as it is");
    }
}

#[tokio::test]
async fn an_alloc_of_impossible_numbers_keeps_no_orders_from_its_node() {
    let (mut world, raw) = small().await;
    world.add("forever").await;
    world.takes(16).await;
    let running = world.look.live_allocs().await.unwrap()[0].alloc_id;
    // The index of live allocs does not show the number.
    raw.spoil("allocs", &alloc_key(running), "needs", Some(m(&[("nodes", crate::world::raw::n(4_000_000_000_u32))])))
        .await;
    let other = world.add("1").await;
    world.takes(8).await;
    assert_eq!(world.state(other).await, JobState::Complete);
    let node = world.nodes.values().next().unwrap();
    assert_eq!(node.protocol.unfinished(), [running], "what runs goes on");
}

#[tokio::test]
async fn a_member_ends_although_the_row_of_another_member_cannot_be_read() {
    let mut policy = quick_policy();
    policy["nodes"] = json!({"max": 2});
    let mut world = World::with(policy, ec2_stand_in::Ec2Settings::default()).await;
    let raw = Raw::of(&world);
    let spec = model::JobSpec {
        needs: Needs { nodes: 2, exclusive: true, ..crate::world::job(&["forever"]).needs },
        ..crate::world::job(&["forever"])
    };
    world.submit(spec).await;
    world.takes(16).await;
    let mut allocs = world.look.live_allocs().await.unwrap();
    allocs.sort_by_key(|a| a.alloc_id);
    let [first, second] = allocs.iter().map(|a| a.alloc_id).collect::<Vec<_>>()[..] else { panic!("{allocs:?}") };
    let (sound, _) = raw.spoil("allocs", &alloc_key(first), "version", None).await;
    for id in [first, second] {
        let node = world.nodes.values_mut().find(|node| node.protocol.durable.allocs.contains_key(&id)).unwrap();
        let order = node.protocol.durable.allocs[&id].order.clone();
        node.end(&order, 0);
    }
    world.takes(6).await;
    let ended = world.look.alloc(second).await.unwrap().unwrap();
    assert_eq!(ended.summary.client, ClientStatus::Complete, "{ended:?}");
    raw.put("allocs", &sound).await;
    world.takes(8).await;
    assert_eq!(world.state(first.job_id).await, JobState::Complete);
}
