//! Arrays: never are more of their jobs placed at the same time than their limit allows.

use crate::world::{World, quick_policy};
use model::{Job, JobState};
use serde_json::json;
use std::collections::BTreeSet;

/// The jobs of the table, and how many of them are placed or have live allocs.
async fn placed(world: &World) -> (Vec<Job>, usize) {
    let jobs = world.look.jobs().await.unwrap();
    let is_there = |job: &&Job| job.summary.state == JobState::Placed || !job.summary.allocs.is_empty();
    let placed = jobs.iter().filter(is_there).count();
    (jobs, placed)
}

#[tokio::test]
async fn an_array_never_has_more_jobs_placed_than_its_limit_and_all_of_them_run() {
    let mut policy = quick_policy();
    policy["nodes"] = json!({"max": 8});
    let mut world = World::with(policy, ec2_stand_in::Ec2Settings::default()).await;
    let ids = world.operate(&["submit", "--array", "3-14%3", "--", "work"]).await;
    assert_eq!(ids.lines().count(), 12);
    let mut most = 0;
    for _ in 0..300 {
        world.step().await;
        let (jobs, now) = placed(&world).await;
        assert!(now <= 3, "{now} are placed");
        most = most.max(now);
        if jobs.iter().all(|job| job.summary.state == JobState::Complete) {
            assert_eq!(most, 3, "the limit is used");
            let indexes: BTreeSet<u32> =
                jobs.iter().map(|job| job.env["NODEKEEPER_ARRAY_INDEX"].parse().unwrap()).collect();
            assert_eq!(indexes, (3..15).collect());
            assert!(jobs.iter().all(|job| job.env["NODEKEEPER_ARRAY_COUNT"] == "12"));
            return;
        }
    }
    panic!("not all ended: {:?}", placed(&world).await);
}

/// The jobs of the array run until the test ends them. Other jobs run beside them, and the waiting jobs say why they
/// wait.
#[tokio::test]
async fn an_array_that_is_full_waits_and_lets_others_pass() {
    let mut policy = quick_policy();
    policy["nodes"] = json!({"max": 8});
    let mut world = World::with(policy, ec2_stand_in::Ec2Settings::default()).await;
    world.operate(&["submit", "--name", "many", "--array", "0-5%2", "--", "forever"]).await;
    let other = world.operate(&["submit", "--priority", "1", "--", "forever"]).await;
    for _ in 0..30 {
        world.step().await;
        assert!(placed(&world).await.1 <= 3);
    }
    let (jobs, now) = placed(&world).await;
    assert_eq!(now, 3);
    let runs = |job: &&Job| job.summary.state == JobState::Placed;
    let running: BTreeSet<String> = jobs.iter().filter(runs).map(|job| job.summary.job_id.to_string()).collect();
    assert!(running.contains(other.trim()), "a job with a lower priority is not held up");
    let listed: serde_json::Value =
        serde_json::from_str(&world.operate(&["jobs", "--json", "--state", "queued"]).await).unwrap();
    let why: Vec<&str> = listed.as_array().unwrap().iter().map(|job| job["waits_because"].as_str().unwrap()).collect();
    assert_eq!(why.len(), 4);
    assert!(why.iter().all(|why| why.starts_with("its array may have 2 jobs placed at once")), "{why:?}");
    // When one job ends, the next job is placed.
    let first = running.iter().find(|id| *id != other.trim()).unwrap().clone();
    world.operate(&["cancel", &first]).await;
    for _ in 0..30 {
        world.step().await;
        assert!(placed(&world).await.1 <= 3);
    }
    let jobs = placed(&world).await.0;
    assert_eq!(jobs.iter().filter(runs).count(), 3);
}
