//! Followers of an output: the node hears of them while they follow.

use crate::world::all_rows::AllRows;
use crate::world::node::{answer, http};
use crate::world::{World, job};
use model::output::FOLLOW_LASTS;
use model::{AllocId, JobSpec, NodeId, Span, Time};
use serde_json::{Value, json};

struct Working {
    node: NodeId,
    instance: String,
    token: String,
    alloc: AllocId,
}

/// A world with this many working nodes.
async fn working(nodes: usize) -> (World, Vec<Working>) {
    let mut world = World::new().await;
    for _ in 0..nodes {
        world
            .submit(JobSpec { needs: model::Needs { vcpus: 2, ..job(&["forever"]).needs }, ..job(&["forever"]) })
            .await;
    }
    for _ in 0..6 {
        world.step().await;
    }
    let allocs = world.look.live_allocs().await.unwrap();
    assert_eq!(allocs.len(), nodes);
    let of = |alloc: &model::AllocSummary| {
        let (instance, node) = world.nodes.iter().find(|(_, n)| n.file.node_id == alloc.node_id).unwrap();
        let token = node.file.token.clone().unwrap();
        Working { node: alloc.node_id, instance: instance.clone(), token, alloc: alloc.alloc_id }
    };
    let working = allocs.iter().map(of).collect();
    (world, working)
}

impl World {
    /// Notes on the node's record that somebody follows its alloc.
    async fn follow(&self, of: &Working, until_at: Time) {
        let record = self.record(of.node).await;
        let after = record.with_follow(of.alloc, until_at, self.now()).unwrap();
        self.look.write(Some(&record), &after, Vec::new()).await.unwrap();
    }

    /// What the answer to the node's next heartbeat says.
    async fn followed(&mut self, by: &Working) -> Value {
        self.pass(5);
        let beat = self.nodes[&by.instance].protocol.heartbeat(None);
        let path = format!("/v1/nodes/{}/heartbeat", by.node);
        let request = http(&path, Some(&by.token), &serde_json::to_value(beat).unwrap());
        let (status, answer) = answer(&self.ingest.handle(&request, self.now()).await);
        assert_eq!(status, 200, "{answer}");
        answer["follows"].clone()
    }
}

#[tokio::test]
async fn a_node_hears_of_the_followers_of_its_own_allocs_until_their_time_is_over() {
    let (mut world, nodes) = working(2).await;
    let (own, other) = (&nodes[0], &nodes[1]);
    assert_eq!(world.followed(own).await, Value::Null);
    world.follow(own, world.now() + Span::from_s(20)).await;
    assert_eq!(world.followed(own).await, json!([own.alloc]));
    assert_eq!(world.followed(other).await, Value::Null);
    world.pass(15);
    assert_eq!(world.followed(own).await, Value::Null);
    // It costs nothing: a heartbeat is one write, the pulse, also while somebody follows.
    world.follow(own, world.now() + FOLLOW_LASTS).await;
    let (version, calls) = (world.record(own.node).await.version, world.switch.log().len());
    assert_eq!(world.followed(own).await, json!([own.alloc]));
    // Once a minute, each process also writes that heartbeats are accepted. This write is not counted.
    let mut writes = world.switch.log().split_off(calls);
    writes.retain(|write| !write.starts_with("write Control"));
    assert_eq!((world.record(own.node).await.version, writes.len()), (version, 1), "{writes:?}");
}
