//! A queue that is longer than what a run reads.

use crate::world::all_rows::AllRows;
use crate::world::{World, job, quick_policy};
use model::{JobId, JobSpec, JobState, Needs};
use serde_json::json;

/// The head is 8 jobs long, and each run reads 2 more.
async fn world() -> World {
    let mut policy = quick_policy();
    policy["nodes"] = json!({"max": 2});
    policy["poll"] = json!({"queue_rows": 8});
    World::with(policy, ec2_stand_in::Ec2Settings::default()).await
}

fn with_vcpus(vcpus: u32, memory_mib: u64) -> JobSpec {
    JobSpec { needs: Needs { vcpus, memory_mib, ..job(&["forever"]).needs }, ..job(&["forever"]) }
}

impl World {
    pub async fn state(&self, id: JobId) -> JobState {
        self.look.job(id).await.unwrap().unwrap().summary.state
    }
}

/// Two nodes are half full. Forty jobs need a whole node, and one job behind them needs the other half of a node.
#[tokio::test]
async fn a_job_behind_many_that_cannot_be_placed_is_found_within_the_stated_runs() {
    let mut world = world().await;
    for _ in 0..2 {
        world.submit(with_vcpus(1, 5000)).await;
    }
    for _ in 0..12 {
        world.step().await;
    }
    assert_eq!(world.look.live_allocs().await.unwrap().len(), 2);
    let mut large = Vec::new();
    for _ in 0..40 {
        large.push(world.submit(with_vcpus(2, 0)).await.summary.job_id);
        world.pass(1);
    }
    let small = world.submit(with_vcpus(1, 0)).await.summary.job_id;
    let mut runs = 0;
    while world.state(small).await == JobState::Queued {
        let run = world.poll().await.unwrap();
        // 41 jobs wait, and the run read 8 + 2 of them.
        assert!(run.observed.jobs <= 2 + 8 + 2, "{:?}", run.observed);
        world.step().await;
        runs += 2;
        assert!(runs <= 2 + (41 - 8_u32).div_ceil(2), "not placed after {runs} runs");
    }
    assert!(runs > 10, "it was found after {runs} runs: the head has it");
    let events = world.look.history(&model::Subject::Cluster.to_string(), 100).await.unwrap();
    assert!(events.iter().any(|event| event.reason.contains(" jobs wait, and this run read ")), "{events:?}");
    for id in large {
        assert_eq!(world.state(id).await, JobState::Queued);
    }
}

/// Idle nodes are kept while jobs are placed and others were not read.
#[tokio::test]
async fn a_long_queue_is_worked_off_and_then_nothing_is_left() {
    let mut world = world().await;
    let mut jobs = Vec::new();
    for _ in 0..60 {
        let mut spec = job(&["one"]);
        spec.needs.vcpus = 2;
        jobs.push(world.submit(spec).await.summary.job_id);
        world.pass(1);
    }
    world.until_quiet(400).await;
    for id in jobs {
        assert_eq!(world.state(id).await, JobState::Complete);
    }
    assert_eq!(world.ec2.instances().len(), 2, "no node was let go while jobs waited");
}

/// Forty jobs wait for the only large node. The job behind them needs a small node, which must boot first.
#[tokio::test]
async fn a_node_that_boots_for_a_job_behind_the_head_is_there_for_this_job() {
    let mut policy = quick_policy();
    policy["nodes"] = json!({"max": 4});
    policy["poll"] = json!({"queue_rows": 8});
    let mut large = policy["size"][0].clone();
    (large["name"], large["instance_type"], large["max"]) = (json!("large"), json!("m7a.2xlarge"), json!(1));
    (large["vcpus"], large["memory_mib"], large["price_per_hour"]) = (json!(8), json!(32_768), json!(0.4));
    policy["size"] = json!([policy["size"][0], large]);
    let mut world = World::with(policy, ec2_stand_in::Ec2Settings::default()).await;
    for _ in 0..41 {
        world.submit(with_vcpus(8, 0)).await;
        world.pass(1);
    }
    let small = world.submit(job(&["one"])).await.summary.job_id;
    for _ in 0..60 {
        world.step().await;
        if world.state(small).await == JobState::Complete {
            let mut types: Vec<String> = world.ec2.instances().into_iter().map(|i| i.instance_type).collect();
            types.sort();
            assert_eq!(types.len(), 2, "one small node was launched: {types:?}");
            return;
        }
    }
    panic!("the job behind the head did not run: {:#?}", world.look.nodes().await.unwrap());
}
