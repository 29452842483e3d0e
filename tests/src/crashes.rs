//! Killed anywhere: every function, after every single write and EC2 call of a whole life, by
//! enumeration. What follows puts it right.

use crate::world::{World, job, quick_policy};
use nodekeeper_cli::local::ec2;
use serde_json::json;
use shared::model::JobState;

/// A life with a launch, registrations, placements (one of two nodes at once), a failure with a
/// retry, a cache, shutdowns and cleaning.
async fn life(world: &mut World) -> Vec<(String, JobState)> {
    let mut pair = job(&["pair"]);
    pair.nodes = 2;
    pair.caches = vec!["data".into()];
    let mut fails = job(&["fail"]);
    fails.retry_failed = 1;
    for spec in [job(&["one"]), pair, fails] {
        world.submit(spec).await;
    }
    world.until_quiet(120).await;
    let jobs = world.look.jobs().await.unwrap();
    jobs.iter().map(|j| (j.work.command[0].clone(), j.summary.state)).collect()
}

async fn fresh() -> World {
    let mut policy = quick_policy();
    policy["sweep"]["cache_unused_s"] = json!(20);
    World::with(policy, ec2::Config::default()).await
}

fn right(outcome: &[(String, JobState)]) -> bool {
    outcome.len() == 3
        && outcome.iter().all(|(command, state)| match command.as_str() {
            "fail" => *state == JobState::Failed,
            _ => *state == JobState::Complete,
        })
}

#[tokio::test]
async fn killed_after_each_single_write_or_call_the_next_runs_put_it_right() {
    let mut world = fresh().await;
    let outcome = life(&mut world).await;
    assert!(right(&outcome), "{outcome:?}");
    let points = world.switch.calls();
    let kinds = world.switch.log();
    for kind in ["RunInstances", "TerminateInstances", "transact of", "write Nodes", "write Control"] {
        assert!(kinds.iter().any(|k| k.starts_with(kind)), "the life has no {kind}: {kinds:?}");
    }
    println!("{points} points of death");
    for point in 1..=points {
        let mut world = fresh().await;
        world.switch.kill_after(point);
        let outcome = life(&mut world).await;
        assert!(right(&outcome), "killed after call {point} ({:?}): {outcome:?}", world.switch.log().get(point - 1));
        let launched = world.ec2.instances().len();
        assert!(launched <= 4, "killed after call {point}: {launched} instances for two nodes' work");
    }
}

#[tokio::test]
async fn a_second_run_changes_nothing() {
    let mut world = World::new().await;
    world.submit(job(&["forever"])).await;
    for _ in 0..8 {
        world.step().await;
    }
    world.poll().await;
    let before = (world.look.nodes().await.unwrap(), world.look.jobs().await.unwrap());
    let answer = world.poll().await.unwrap();
    assert!(answer.actions.is_empty(), "{answer:?}");
    assert_eq!((world.look.nodes().await.unwrap(), world.look.jobs().await.unwrap()), before);
}

#[tokio::test]
async fn a_launch_whose_answer_is_lost_is_one_instance() {
    for lost_as in ["disconnect", "internal_error"] {
        let mut world = World::new().await;
        let faults = json!({"lose_run_answers": 1, "lost_as": lost_as});
        world.ec2.set_faults(serde_json::from_value(faults).unwrap());
        world.submit(job(&["one"])).await;
        world.until_quiet(120).await;
        assert_eq!(world.ec2.instances().len(), 1, "{lost_as}");
    }
}

#[tokio::test]
async fn slot_0_is_used_first_and_cleaned_like_any_other() {
    let mut world = World::new().await;
    world.submit(job(&["one"])).await;
    world.poll().await;
    let nodes = world.look.nodes().await.unwrap();
    assert_eq!(nodes.iter().map(|n| n.slot.number()).collect::<Vec<_>>(), [0]);
    let first = nodes[0].node_id().unwrap();
    world.until_quiet(120).await;
    assert!(world.look.nodes().await.unwrap()[0].is_cleaned());
    // And again: the same slot, another life.
    world.submit(job(&["two"])).await;
    world.poll().await;
    let again = world.look.nodes().await.unwrap();
    assert_eq!(again.len(), 1);
    assert_ne!(again[0].node_id().unwrap(), first);
    world.until_quiet(120).await;
}
