//! Pure demand: jobs without a command, by which another scheduler gets nodes for its own work.

use crate::raw::{Item, Raw, item, s};
use crate::world::{World, quick_policy};
use aws_sdk_dynamodb::types::AttributeValue;
use model::time::Span;
use model::{Job, JobSpec, JobState};
use serde_json::json;
use std::collections::BTreeSet;

/// A demand for a whole node of the smallest size.
fn whole_node() -> JobSpec {
    JobSpec { demand: true, vcpus: 2, ..JobSpec::default() }
}

/// Whether the other scheduler has work for every machine, from its first heartbeat on.
fn foreign_work(world: &mut World, runs: bool) {
    world.foreign_work = runs;
    world.nodes.values_mut().for_each(|node| node.protocol.busy = Some(runs));
}

/// So many steps, in which the other scheduler has work for every node.
async fn steps(world: &mut World, steps: u32) {
    foreign_work(world, true);
    for _ in 0..steps {
        world.step().await;
        world.check().await;
    }
}

async fn of(max: u32, demands: u32, spec: JobSpec) -> World {
    let mut policy = quick_policy();
    policy["nodes"] = json!({"max": max});
    let world = World::with(policy, ec2_stand_in::Ec2Settings::default()).await;
    for _ in 0..demands {
        world.submit(spec.clone()).await;
    }
    world
}

async fn only_job(world: &World) -> Job {
    world.look.jobs().await.unwrap().remove(0)
}

/// The nodes that are up.
fn up(world: &World) -> usize {
    world.ec2.instances().iter().filter(|i| i.state != ec2_stand_in::State::Terminated).count()
}

/// The ids of the instances that EC2 lists. It forgets those that ended a while ago.
fn ids(world: &World) -> Vec<String> {
    world.ec2.instances().into_iter().map(|i| i.instance_id).collect()
}

#[tokio::test]
async fn each_demand_has_one_node_although_its_own_work_makes_the_node_busy() {
    for (max, demands, instances) in [(20, 2, 2), (4, 12, 4), (20, 12, 12)] {
        let mut world = of(max, demands, whole_node()).await;
        steps(&mut world, 40).await;
        let all = world.ec2.instances().len();
        assert_eq!(all, instances, "{demands} demands and at most {max} nodes");
        let jobs = world.look.jobs().await.unwrap();
        let satisfied = jobs.iter().filter(|job| job.summary.state == JobState::Placed).count();
        assert_eq!(satisfied, instances);
        // A job that runs something needs another node than those that are busy.
        assert!(world.nodes.values().all(|node| node.protocol.unfinished().len() == 1));
    }
}

/// A node stays while its demand lives, whether the other scheduler has work for it or not.
#[tokio::test]
async fn a_node_goes_by_the_idle_rule_after_its_demand_has_ended() {
    let mut world = of(4, 1, whole_node()).await;
    steps(&mut world, 20).await;
    foreign_work(&mut world, false);
    for _ in 0..40 {
        world.step().await;
    }
    assert_eq!((up(&world), only_job(&world).await.summary.state), (1, JobState::Placed), "the demand lives");
    foreign_work(&mut world, true);
    world.step().await;
    world.operate(&["cancel", &only_job(&world).await.summary.job_id.to_string()]).await;
    steps(&mut world, 40).await;
    assert_eq!(up(&world), 1, "what it was for still runs");
    foreign_work(&mut world, false);
    world.until_quiet(60).await;
    assert_eq!(world.ec2.instances().len(), 1, "no other node was launched");
}

#[tokio::test]
async fn work_of_a_demand_that_has_ended_does_not_satisfy_the_next_one() {
    let mut world = of(4, 1, whole_node()).await;
    steps(&mut world, 20).await;
    world.operate(&["cancel", &only_job(&world).await.summary.job_id.to_string()]).await;
    steps(&mut world, 6).await;
    world.submit(whole_node()).await;
    steps(&mut world, 20).await;
    assert_eq!(world.ec2.instances().len(), 2);
    let placed = world.look.jobs().await.unwrap().iter().filter(|j| j.summary.state == JobState::Placed).count();
    assert_eq!(placed, 1);
}

#[tokio::test]
async fn a_demand_whose_node_dies_gets_one_other_node() {
    let mut world = of(4, 1, JobSpec { retry_lost: 0, ..whole_node() }).await;
    let mut ever = BTreeSet::new();
    for instances in 1..=3 {
        for _ in 0..40 {
            steps(&mut world, 1).await;
            ever.extend(ids(&world));
        }
        assert_eq!((ever.len(), up(&world)), (instances, 1));
        assert_eq!(only_job(&world).await.summary.state, JobState::Placed);
        world.cloud.terminate(&ids(&world)).await.unwrap();
    }
}

#[tokio::test]
async fn a_demand_ends_when_its_time_is_over_also_if_it_never_got_a_node() {
    let timed = || JobSpec { timeout_s: 300, ..whole_node() };
    let mut world = of(1, 2, timed()).await;
    let over = world.now() + Span::from_s(300);
    while world.now() < over {
        assert!(world.look.jobs().await.unwrap().iter().all(|job| !job.summary.state.is_ended()));
        steps(&mut world, 1).await;
    }
    let jobs = world.look.jobs().await.unwrap();
    assert!(jobs.iter().all(|job| job.summary.state == JobState::Complete), "{jobs:?}");
    assert!(jobs.iter().all(|job| job.reason.as_deref() == Some("its time of 5 min is over")), "{jobs:?}");
    foreign_work(&mut world, false);
    world.until_quiet(60).await;
    assert_eq!(world.ec2.instances().len(), 1);
}

/// Another program writes a row with an empty command, and does not know the attributes of the index.
#[tokio::test]
async fn a_row_without_a_command_is_a_demand_whoever_wrote_it() {
    let mut world = of(4, 1, JobSpec { timeout_s: 600, ..whole_node() }).await;
    let (raw, job) = (Raw::of(&world), only_job(&world).await);
    let key = item(&[("job_id", s(job.summary.job_id))]);
    let mut row: Item = raw.get("jobs", &key).await.unwrap();
    assert_eq!(row.remove("demand"), Some(AttributeValue::Bool(true)));
    let until = row.remove("demand_until_at");
    row.insert("command".into(), AttributeValue::L(Vec::new()));
    raw.put("jobs", &row).await;
    world.clean().await;
    let put_right = raw.get("jobs", &key).await.unwrap();
    assert_eq!(put_right.get("demand"), Some(&AttributeValue::Bool(true)));
    assert_eq!((put_right.get("demand_until_at").cloned(), until.is_some()), (until, true));
    steps(&mut world, 20).await;
    assert_eq!((world.ec2.instances().len(), only_job(&world).await.summary.state), (1, JobState::Placed));
    // Nothing is left to correct.
    assert!(world.clean().await.unwrap().actions.is_empty());
}

/// Three demands, of which one ends by itself and two are cancelled.
async fn life(world: &mut World) -> Vec<JobState> {
    for timeout_s in [0, 200, 0] {
        world.submit(JobSpec { timeout_s, ..whole_node() }).await;
    }
    foreign_work(world, true);
    for _ in 0..60 {
        world.step().await;
    }
    for job in world.look.jobs().await.unwrap() {
        if !job.summary.state.is_ended() {
            world.operate(&["cancel", &job.summary.job_id.to_string()]).await;
        }
    }
    foreign_work(world, false);
    world.until_quiet(120).await;
    world.look.jobs().await.unwrap().iter().map(|job| job.summary.state).collect()
}

#[tokio::test]
async fn a_run_killed_after_any_write_launches_no_second_node_for_a_demand() {
    let mut world = World::new().await;
    let ends = life(&mut world).await;
    let cancelled = |ends: &[JobState]| ends.iter().filter(|state| **state == JobState::Cancelled).count();
    assert_eq!((ends.len(), cancelled(&ends), world.ec2.instances().len()), (3, 2, 3), "{ends:?}");
    let points = world.switch.calls();
    for point in 1..=points {
        let mut world = World::new().await;
        world.switch.kill_after(point);
        let ends = life(&mut world).await;
        let killed = world.switch.log().get(point - 1).cloned();
        assert_eq!(
            (cancelled(&ends), world.ec2.instances().len()),
            (2, 3),
            "killed after {point} ({killed:?}): {ends:?}"
        );
    }
}

/// Says how many whole nodes the controller wants.
async fn want(world: &World, count: &str) {
    world.operate(&["demand", "set", "ci", "--size", "small", "--count", count]).await;
}

/// The slots of the nodes that are up.
async fn slots(world: &World) -> Vec<u32> {
    let nodes = world.look.nodes().await.unwrap();
    nodes.iter().filter(|node| !node.is_cleaned()).map(|node| node.slot.number()).collect()
}

#[tokio::test]
async fn a_set_has_its_nodes_while_it_is_renewed_and_none_afterwards() {
    let mut world = World::new().await;
    for _ in 0..10 {
        want(&world, "3").await;
        // Two and a half minutes.
        for _ in 0..30 {
            world.step().await;
            world.check().await;
            assert!(world.ec2.instances().len() <= 3);
        }
    }
    assert_eq!((up(&world), world.ec2.instances().len()), (3, 3));
    let row = async |world: &World| {
        world.look.control().await.unwrap().entries().any(|(key, _)| key.to_string() == "demand#ci")
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
    world.nodes.get_mut(&busy).unwrap().protocol.busy = Some(true);
    world.step().await;
    want(&world, "1").await;
    for _ in 0..30 {
        world.step().await;
    }
    assert_eq!(slots(&world).await, [1], "the set is for what keeps it busy");
    world.operate(&["demand", "delete", "ci"]).await;
    for _ in 0..30 {
        world.step().await;
    }
    assert_eq!(slots(&world).await, [1], "its agent says busy");
    world.nodes.get_mut(&busy).unwrap().protocol.busy = Some(false);
    world.until_quiet(60).await;
}

#[tokio::test]
async fn a_set_and_jobs_and_demands_each_have_their_own_nodes() {
    let mut policy = quick_policy();
    policy["nodes"] = json!({"max": 8});
    let mut world = World::with(policy, ec2_stand_in::Ec2Settings::default()).await;
    world.submit(JobSpec { vcpus: 2, ..crate::world::job(&["forever"]) }).await;
    world.submit(whole_node()).await;
    want(&world, "2").await;
    for _ in 0..30 {
        world.step().await;
        world.check().await;
    }
    assert_eq!(world.ec2.instances().len(), 4);
    // A node of the set dies.
    let nodes = world.look.nodes().await.unwrap();
    let free = nodes.iter().filter_map(|node| node.life()).find(|life| life.allocs.is_empty()).unwrap();
    world.cloud.terminate(&[free.instance_id.clone().unwrap()]).await.unwrap();
    let mut ever: BTreeSet<String> = ids(&world).into_iter().collect();
    for _ in 0..30 {
        world.step().await;
        ever.extend(ids(&world));
    }
    assert_eq!((ever.len(), up(&world)), (5, 4));
}
