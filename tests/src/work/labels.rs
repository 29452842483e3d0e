//! The label of a handle decides who may destroy it, even if the handle has a row.

use crate::world::all_rows::AllRows;
use crate::world::{World, job, quick_policy};
use model::{HandleState, InstanceState, Intent, NodeId, NodeRecord};
use serde_json::json;

/// A job has ended on one of two ready nodes, and its directory is due to be destroyed. Returns the two nodes, this one
/// first, and the handle.
async fn ended(label: impl Fn(NodeId) -> Option<String>) -> (World, [NodeRecord; 2], String) {
    let mut policy = quick_policy();
    policy["nodes"] = json!({"max": 4, "min": 2});
    let mut world = World::with(policy, ec2_stand_in::Ec2Settings::default()).await;
    let job = world.submit(job(&["forever"])).await.summary.job_id;
    for _ in 0..40 {
        world.step().await;
        let nodes = world.look.nodes().await.unwrap();
        let allocs = world.look.live_allocs().await.unwrap();
        let ready = nodes.iter().filter(|n| n.takes_work()).count();
        let Some(alloc) = allocs.first().filter(|a| a.started_at.is_some() && ready == 2) else { continue };
        let (own, other): (Vec<NodeRecord>, Vec<NodeRecord>) =
            nodes.into_iter().filter(|n| !n.is_cleaned()).partition(|n| n.node_id() == Some(alloc.node_id));
        let (own, other) = (own[0].clone(), other[0].clone());
        let handle = alloc.alloc_id.to_string();
        let node = world.nodes.get_mut(&instance(&own)).unwrap();
        node.relabelled.insert(handle.clone(), label(other.node_id().unwrap()));
        let row = world.look.job(job).await.unwrap().unwrap();
        let keep = store::Retention::of(&world.policy);
        let cancel = |job: &model::Job| job.cancel("ann", keep.finished, world.now());
        let event = (model::ActionName::Cancel, "");
        store::transactions::change_jobs(&world.look, &[row], event, cancel, keep, world.now()).await.unwrap();
        return (world, [own, other], handle);
    }
    panic!("the job never ran beside an idle node");
}

fn instance(record: &NodeRecord) -> String {
    record.life().and_then(|life| life.instance_id.clone()).unwrap()
}

impl World {
    /// Steps for five minutes. Returns whether the handle is still on the node.
    async fn keeps(&mut self, record: &NodeRecord, handle: &str) -> bool {
        for _ in 0..60 {
            self.step().await;
        }
        self.nodes[&instance(record)].handles.contains(handle)
    }

    pub(crate) async fn warnings(&self, record: &NodeRecord) -> Vec<String> {
        let events = self.look.history(&format!("slot#{}", record.slot), 100).await.unwrap();
        events.into_iter().filter(|e| e.action == "warn").map(|e| e.reason).collect()
    }
}

#[tokio::test]
async fn a_handle_whose_label_was_taken_away_is_not_destroyed() {
    let (mut world, [own, _], handle) = ended(|_| None).await;
    assert!(world.keeps(&own, &handle).await);
    let row = world.look.handle(own.node_id().unwrap(), &handle).await.unwrap().unwrap();
    assert_eq!(row.state, HandleState::Destroying);
    assert_eq!(world.nodes[&instance(&own)].conflicts, Vec::<String>::new());
    // The label is back.
    world.nodes.get_mut(&instance(&own)).unwrap().relabelled.clear();
    assert!(!world.keeps(&own, &handle).await);
}

#[tokio::test]
async fn a_handle_of_another_node_is_named_and_goes_when_that_node_is_no_more() {
    let (mut world, [own, other], handle) = ended(|other| Some(other.to_string())).await;
    let stray = "stray".to_owned();
    let node = world.nodes.get_mut(&instance(&own)).unwrap();
    node.handles.insert(stray.clone());
    node.relabelled.insert(stray.clone(), other.node_id().map(|id| id.to_string()));
    assert!(world.keeps(&own, &handle).await && world.keeps(&own, &stray).await);
    assert_eq!(world.nodes[&instance(&own)].conflicts, [handle.clone(), stray.clone()]);
    let said = world.warnings(&own).await;
    assert!(said.len() == 1 && said[0].starts_with("2 handles carry the label of another node"), "{said:?}");
    // The other node goes.
    let record = world.look.node(other.slot).await.unwrap().unwrap();
    let drained = record.with_intent(Intent::Drain, None, world.now()).unwrap();
    world.look.write(Some(&record), &drained, Vec::new()).await.unwrap();
    for _ in 0..60 {
        world.step().await;
    }
    let known = world.cloud.instance(&instance(&other)).await.unwrap();
    assert!(known.is_none_or(|i| i.state == InstanceState::Terminated));
    assert!(!world.keeps(&own, &handle).await && !world.keeps(&own, &stray).await);
    assert_eq!(world.nodes[&instance(&own)].conflicts, Vec::<String>::new());
}
