//! The next jobs start on the room that an end frees, in the transaction of the end, without a run.

use crate::world::raw::{Raw, item, s};
use crate::world::{World, job, patient_policy};
use model::{JobSpec, JobState, Needs, Source};
use serde_json::json;

/// One node, its job, and three jobs that wait for its whole room.
async fn full() -> (World, Vec<model::JobId>) {
    full_of(world().await, [const { None }; 4]).await
}

async fn world() -> World {
    let mut policy = patient_policy();
    policy["nodes"] = json!({"max": 1});
    World::with(policy, ec2_stand_in::Ec2Settings::default()).await
}

/// The same, with the inputs of the four jobs.
async fn full_of(mut world: World, inputs: [Option<Source>; 4]) -> (World, Vec<model::JobId>) {
    let mut ids = Vec::new();
    for input in inputs {
        let mut spec = JobSpec { needs: Needs { vcpus: 2, ..Needs::default() }, ..job(&["work"]) };
        spec.work.inputs.extend(input.map(|source| ("in".to_owned(), source)));
        ids.push(world.submit(spec).await.summary.job_id);
        world.pass(1);
    }
    for _ in 0..50 {
        world.step().await;
        if world.look.job(ids[0]).await.unwrap().unwrap().summary.state == JobState::Placed {
            return (world, ids);
        }
    }
    panic!("no job was placed");
}

async fn states(world: &World, ids: &[model::JobId]) -> Vec<JobState> {
    let mut states = Vec::new();
    for id in ids {
        states.push(world.look.job(*id).await.unwrap().unwrap().summary.state);
    }
    states
}

#[tokio::test]
async fn each_end_starts_the_next_job_and_the_last_one_wakes_a_run() {
    let (mut world, ids) = full().await;
    for _ in 0..8 {
        world.pass(1);
        world.nodes_live().await;
        world.check().await;
    }
    assert_eq!(states(&world, &ids).await, [JobState::Complete; 4], "no run was made");
    let mut handed_on = Vec::new();
    for id in &ids {
        let alloc = model::AllocId { job_id: *id, member: 0, copy: 0 };
        handed_on.push(world.look.alloc(alloc).await.unwrap().unwrap().handed_on);
        let story = world.operate(&["history", &id.to_string()]).await;
        assert!(
            ["submit", "place", "start", "end_alloc", "end_job"].iter().all(|told| story.contains(told)),
            "{story}"
        );
        let events = world.look.history(&format!("job#{id}"), 10).await.unwrap();
        assert!(events.iter().all(|event| event.action == "wait"), "rows tell the rest: {events:?}");
    }
    // Three jobs wait at first: after the third draw, less than a quarter of them is left.
    assert_eq!(handed_on, [true, true, false, false]);
}

#[tokio::test]
async fn a_job_that_has_changed_since_it_was_listed_is_passed_over() {
    let (mut world, ids) = full().await;
    world.operate(&["cancel", "--yes", &ids[1].to_string()]).await;
    world.operate(&["pause", &ids[2].to_string()]).await;
    for _ in 0..3 {
        world.pass(1);
        world.nodes_live().await;
    }
    let is = states(&world, &ids).await;
    assert_eq!(is[..3], [JobState::Complete, JobState::Cancelled, JobState::Queued]);
    assert!(matches!(is[3], JobState::Placed | JobState::Complete), "{is:?}");
}

#[tokio::test]
async fn an_old_list_starts_nothing_and_a_run_does() {
    let (mut world, ids) = full().await;
    world.pass(121);
    for _ in 0..3 {
        world.nodes_live().await;
    }
    assert_eq!(states(&world, &ids).await[..2], [JobState::Complete, JobState::Queued]);
    world.step().await;
    assert_ne!(states(&world, &ids).await[1], JobState::Queued);
}

#[tokio::test]
async fn an_unreadable_row_of_the_next_job_keeps_no_alloc_from_its_end() {
    let world = world().await;
    let earlier = world.submit(job(&["earlier"])).await.summary.job_id;
    world.operate(&["cancel", "--yes", &earlier.to_string()]).await;
    let input = Source::Output { job_id: earlier, member: 0, path: "out".into() };
    let (mut world, ids) = full_of(world, [None, Some(input), None, None]).await;
    let raw = Raw::of(&world);
    let mut row = raw.get("jobs", &item(&[("job_id", s(earlier))])).await.unwrap();
    row.insert("state".to_owned(), s("no such state"));
    raw.put("jobs", &row).await;
    // A run caches its list for two seconds.
    for _ in 0..3 {
        world.pass(1);
        world.nodes_live().await;
    }
    assert_eq!(states(&world, &ids).await[..2], [JobState::Complete, JobState::Queued]);
    let ended = model::AllocId { job_id: ids[0], member: 0, copy: 0 };
    assert!(!world.look.alloc(ended).await.unwrap().unwrap().handed_on);
}
