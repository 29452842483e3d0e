//! Jobs that follow other jobs: they run after those have ended in the wanted way, and cost nothing before.

use crate::world::raw::{Raw, item, s};
use crate::world::{World, quick_policy};
use model::{AfterEnd, Job, JobId, JobSpec, JobState};
use runtime::observation::Observation;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};

pub(super) async fn world() -> World {
    let mut policy = quick_policy();
    policy["nodes"] = json!({"max": 4});
    World::with(policy, ec2_stand_in::Ec2Settings::default()).await
}

pub(super) async fn submit(world: &World, args: &[&str]) -> Vec<JobId> {
    let line: Vec<&str> = ["submit"].iter().chain(args).copied().collect();
    world.operate(&line).await.lines().map(|id| id.parse().unwrap()).collect()
}

async fn jobs(world: &World) -> BTreeMap<JobId, Job> {
    world.look.jobs().await.unwrap().into_iter().map(|job| (job.summary.job_id, job)).collect()
}

#[tokio::test]
async fn a_chain_and_an_array_run_one_after_the_other() {
    let mut world = world().await;
    let first = submit(&world, &["--name", "first", "--", "work"]).await[0];
    let array = submit(&world, &["--name", "middle", "--array", "0-2", "--after", "first", "--", "work"]).await;
    let last = submit(&world, &["--after", "middle", "--", "work"]).await[0];
    let mut order: Vec<JobId> = Vec::new();
    for _ in 0..200 {
        world.step().await;
        world.check().await;
        for (id, job) in jobs(&world).await {
            let begun = job.summary.state != JobState::Queued;
            if begun && !order.contains(&id) {
                order.push(id);
            }
            if begun && id == last {
                assert!(array.iter().all(|id| order.contains(id)));
            }
        }
        if jobs(&world).await.values().all(|job| job.summary.state == JobState::Complete) {
            assert_eq!((order[0], order[4], order.len()), (first, last, 5));
            assert!(world.look.following(None, 10).await.unwrap().jobs.is_empty());
            return;
        }
    }
    panic!("not all ended: {:?}", jobs(&world).await);
}

#[tokio::test]
async fn no_node_is_there_for_a_job_that_follows_others() {
    let mut world = world().await;
    let first = submit(&world, &["--name", "first", "--", "forever"]).await[0];
    // Each of these needs a whole node.
    submit(&world, &["--count", "3", "--exclusive", "--after", "first", "--", "forever"]).await;
    for _ in 0..40 {
        world.step().await;
    }
    assert_eq!(world.ec2.instances().len(), 1);
    let story = world.operate(&["history", &first.to_string()]).await;
    assert!(story.contains("place"), "{story}");
    // If the followed job does not complete, the following job is rejected, and its reason says why.
    world.operate(&["cancel", "first"]).await;
    for _ in 0..4 {
        world.step().await;
    }
    let all = jobs(&world).await;
    let rejected: Vec<&Job> = all.values().filter(|job| job.summary.job_id != first).collect();
    for job in rejected {
        let reason = job.reason.clone().unwrap_or_default();
        let why = format!("it runs only if job {first} is complete, and that job is cancelled");
        assert_eq!((job.summary.state, reason), (JobState::Rejected, why));
    }
}

#[tokio::test]
async fn a_job_waits_while_the_row_of_one_that_it_follows_cannot_be_read_and_goes_on_afterwards() {
    let mut world = world().await;
    let first = submit(&world, &["--", "forever"]).await[0];
    let last = submit(&world, &["--after-any", &first.to_string(), "--", "forever"]).await[0];
    for _ in 0..20 {
        world.step().await;
    }
    let (raw, key) = (Raw::of(&world), item(&[("job_id", s(first))]));
    world.operate(&["cancel", &first.to_string()]).await;
    let mut row = raw.get("jobs", &key).await.unwrap();
    row.insert("failed_count".into(), s("many"));
    raw.put("jobs", &row).await;
    // This is longer than a run waits for a followed job without a row.
    for _ in 0..140 {
        world.step().await;
    }
    let state = async |world: &World| world.look.job(last).await.unwrap().unwrap().summary.state;
    assert_eq!(state(&world).await, JobState::Queued);
    let status = world.operate(&["status"]).await;
    assert!(status.contains(&first.to_string()), "{status}");
    let mut row = raw.get("jobs", &key).await.unwrap();
    row.remove("failed_count");
    raw.put("jobs", &row).await;
    for _ in 0..20 {
        world.step().await;
    }
    assert_eq!(state(&world).await, JobState::Placed);
}

#[tokio::test]
async fn a_job_without_a_row_is_waited_for_and_then_counts_as_ended() {
    let mut world = world().await;
    let first = submit(&world, &["--", "forever"]).await[0];
    let any = submit(&world, &["--after-any", &first.to_string(), "--", "forever"]).await[0];
    let success = submit(&world, &["--after", &first.to_string(), "--", "forever"]).await[0];
    Raw::of(&world).delete("jobs", &item(&[("job_id", s(first))])).await;
    // The ten minutes count from the submission.
    for _ in 0..100 {
        world.step().await;
        assert!(jobs(&world).await.values().all(|job| job.summary.state == JobState::Queued));
    }
    for _ in 0..40 {
        world.step().await;
    }
    let all = jobs(&world).await;
    assert_eq!(all[&any].summary.state, JobState::Placed);
    assert_eq!(all[&success].summary.state, JobState::Rejected);
    assert!(all[&success].reason.as_ref().is_some_and(|why| why.contains("nobody knows how it ended")));
}

/// More jobs follow others than one run reads.
#[tokio::test]
async fn a_long_list_of_jobs_that_follow_others_is_looked_at_part_by_part() {
    let mut world = world().await;
    let first = submit(&world, &["--priority", "900", "--", "forever"]).await[0];
    submit(&world, &["--count", "1500", "--after", &first.to_string(), "--", "forever"]).await;
    let second = submit(&world, &["--priority", "900", "--", "work"]).await[0];
    // It is the last of the list.
    let line = ["--priority", "1", "--after", &second.to_string(), "--", "work"];
    let last = submit(&world, &line).await[0];
    for _ in 0..100 {
        world.step().await;
        if world.look.job(last).await.unwrap().unwrap().summary.state == JobState::Complete {
            let all = jobs(&world).await;
            let waiting = all.values().filter(|job| job.summary.state == JobState::Queued).count();
            assert_eq!(waiting, 1500);
            return;
        }
    }
    panic!("the last job was not looked at");
}

/// A run also reads the rows of followed jobs, and a job may follow a hundred others.
#[tokio::test]
async fn a_run_reads_a_bounded_number_of_followed_jobs() {
    let world = world().await;
    let mut unread = BTreeSet::new();
    for _ in 0..30 {
        let ids: Vec<JobId> = (0..100).map(|_| JobId::new(world.look.rng().ulid(world.now()))).collect();
        let after = ids.iter().map(|id| (*id, AfterEnd::Any)).collect();
        world.submit(JobSpec { after, ..crate::world::job(&["work"]) }).await;
        unread.extend(ids);
    }
    for run in 1..=2 {
        let seen = Observation::read(&world.look, &*world.cloud, world.now()).await.unwrap();
        assert!(seen.ends.len() <= 2000, "run {run} read {} rows", seen.ends.len());
        unread.retain(|id| !seen.ends.contains_key(id));
        // The run reads the same jobs, and moves the place on.
        world.poll().await.unwrap();
    }
    assert_eq!(unread.len(), 0, "the next run reads what the first one left");
}

#[tokio::test]
async fn jobs_that_follow_the_same_jobs_are_all_looked_at_in_one_run() {
    let world = world().await;
    let new_id = || JobId::new(world.look.rng().ulid(world.now()));
    let after: BTreeMap<JobId, AfterEnd> = (0..100).map(|_| (new_id(), AfterEnd::Any)).collect();
    for _ in 0..50 {
        world.submit(JobSpec { after: after.clone(), ..crate::world::job(&["work"]) }).await;
    }
    let seen = Observation::read(&world.look, &*world.cloud, world.now()).await.unwrap();
    assert_eq!((seen.jobs.len(), seen.ends.len()), (50, 100));
}
