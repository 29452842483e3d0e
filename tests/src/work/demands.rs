//! Demand sets: another scheduler gets nodes for its own work.

use crate::world::{World, quick_policy};
use model::JobSpec;
use serde_json::json;
use std::collections::BTreeSet;

/// The nodes that are up.
fn up(world: &World) -> usize {
    world.ec2.instances().iter().filter(|i| i.state != ec2_stand_in::InstanceState::Terminated).count()
}

/// The ids of the instances that EC2 lists. EC2 forgets instances that ended a while ago.
fn ids(world: &World) -> Vec<String> {
    world.ec2.instances().into_iter().map(|i| i.instance_id).collect()
}

/// Sets how many whole nodes the controller wants.
async fn want(world: &World, count: &str) {
    world.operate(&["demand", "set", "ci", "--size", "small", "--count", count]).await;
}

async fn slots(world: &World) -> Vec<u32> {
    let nodes = world.look.nodes().await.unwrap();
    nodes.iter().filter(|node| !node.is_cleaned()).map(|node| node.slot.number()).collect()
}

#[tokio::test]
async fn a_set_has_its_nodes_while_it_is_renewed_and_none_afterwards() {
    let mut world = World::new().await;
    for _ in 0..10 {
        want(&world, "3").await;
        // Two and a half minutes pass.
        for _ in 0..30 {
            world.step().await;
            world.check().await;
            assert!(world.ec2.instances().len() <= 3);
        }
    }
    assert_eq!((up(&world), world.ec2.instances().len()), (3, 3));
    let row = async |world: &World| {
        world.look.control().await.unwrap().demand_sets.keys().any(|key| key.to_string() == "demand#ci")
    };
    assert!(row(&world).await);
    // The controller has died.
    for _ in 0..180 {
        world.step().await;
    }
    assert!(!row(&world).await, "its row is deleted");
    world.until_quiet(60).await;
}

#[tokio::test]
async fn when_the_count_falls_the_idle_nodes_go_and_the_busy_one_stays() {
    let mut world = World::new().await;
    want(&world, "3").await;
    for _ in 0..20 {
        world.step().await;
    }
    assert_eq!(slots(&world).await, [0, 1, 2]);
    let of_slot = |world: &World, slot: u32| {
        let node = world.nodes.iter().find(|(_, node)| node.file.node_id.slot().number() == slot);
        node.unwrap().0.clone()
    };
    let busy = of_slot(&world, 1);
    world.nodes.get_mut(&busy).unwrap().protocol.health.busy = true;
    world.step().await;
    want(&world, "1").await;
    for _ in 0..30 {
        world.step().await;
    }
    assert_eq!(slots(&world).await, [1], "the set is for what keeps it busy");
    want(&world, "0").await;
    for _ in 0..30 {
        world.step().await;
    }
    assert_eq!(slots(&world).await, [1], "its agent says busy");
    world.nodes.get_mut(&busy).unwrap().protocol.health.busy = false;
    world.until_quiet(60).await;
}

#[tokio::test]
async fn a_set_and_jobs_have_their_own_nodes() {
    let mut policy = quick_policy();
    policy["nodes"] = json!({"max": 8});
    let mut world = World::with(policy, ec2_stand_in::Ec2Settings::default()).await;
    world
        .submit(JobSpec {
            needs: model::Needs { vcpus: 2, ..crate::world::job(&["forever"]).needs },
            ..crate::world::job(&["forever"])
        })
        .await;
    want(&world, "2").await;
    for _ in 0..30 {
        world.step().await;
        world.check().await;
    }
    assert_eq!(world.ec2.instances().len(), 3);
    // A node of the set dies.
    let nodes = world.look.nodes().await.unwrap();
    let free = nodes.iter().filter_map(|node| node.life()).find(|life| life.allocs.is_empty()).unwrap();
    world.cloud.terminate(&[free.instance_id.clone().unwrap()]).await.unwrap();
    let mut ever: BTreeSet<String> = ids(&world).into_iter().collect();
    for _ in 0..30 {
        world.step().await;
        ever.extend(ids(&world));
    }
    assert_eq!((ever.len(), up(&world)), (4, 3));
}
