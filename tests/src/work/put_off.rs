//! Jobs that are put off: they cost nothing before they begin, hide nobody, and end if they wait for too long.

use super::followers::{submit, world};
use crate::world::World;
use model::{Job, JobId, JobState, Span};

async fn job(world: &World, id: JobId) -> Job {
    world.look.job(id).await.unwrap().unwrap()
}

/// Steps until this job is in this state.
async fn until(world: &mut World, id: JobId, state: JobState) {
    for _ in 0..200 {
        world.step().await;
        world.check().await;
        if job(world, id).await.summary.state == state {
            return;
        }
    }
    panic!("{:?}", job(world, id).await);
}

#[tokio::test]
async fn a_job_begins_within_a_minute_of_its_time_and_costs_nothing_before() {
    let mut world = world().await;
    let id = submit(&world, &["--not-before", "10m", "--", "work"]).await[0];
    let begins_at = job(&world, id).await.not_before_at.unwrap();
    // A job behind many that are put off runs at once.
    submit(&world, &["--count", "30", "--priority", "1000", "--not-before", "2d", "--", "work"]).await;
    let other = submit(&world, &["--", "work"]).await[0];
    until(&mut world, other, JobState::Complete).await;
    assert_eq!(world.ec2.instances().len(), 1);
    while world.now() < begins_at {
        assert_eq!(job(&world, id).await.summary.state, JobState::Queued);
        world.step().await;
    }
    // A node may have to be launched again. That begins within a minute.
    for _ in 0..200 {
        if let Some(placed_at) =
            world.look.allocs_of([&job(&world, id).await]).await.unwrap().rows.first().map(|a| a.summary.placed_at)
        {
            assert!(placed_at >= begins_at);
            return;
        }
        let row = job(&world, id).await;
        assert!(world.now().since(begins_at) < Span::from_s(70) || !row.summary.is_put_off(), "{row:?}");
        world.step().await;
    }
    panic!("it never began");
}

#[tokio::test]
async fn a_paused_follower_does_not_begin_when_the_job_before_it_ends() {
    let mut world = world().await;
    let first = submit(&world, &["--name", "first", "--", "work"]).await[0];
    let next = submit(&world, &["--name", "next", "--after", "first", "--", "work"]).await[0];
    world.operate(&["pause", "next"]).await;
    until(&mut world, first, JobState::Complete).await;
    for _ in 0..10 {
        world.step().await;
        world.check().await;
    }
    let paused = job(&world, next).await.summary;
    assert_eq!((paused.state, paused.after.len(), paused.is_put_off()), (JobState::Queued, 0, true));
    world.operate(&["continue", "next"]).await;
    until(&mut world, next, JobState::Complete).await;
}

#[tokio::test]
async fn a_job_gives_up_behind_another_one_and_says_so() {
    let mut world = world().await;
    submit(&world, &["--name", "first", "--", "forever"]).await;
    let follower = submit(&world, &["--after", "first", "--give-up-after", "5m", "--", "work"]).await[0];
    let paused = submit(&world, &["--name", "paused", "--give-up-after", "5m", "--", "work"]).await[0];
    world.operate(&["pause", "paused"]).await;
    for id in [follower, paused] {
        until(&mut world, id, JobState::Rejected).await;
        let ended = job(&world, id).await;
        assert_eq!(ended.cause().unwrap().to_string(), "it had not begun 5 min after its submission (--give-up-after)");
        assert!(ended.finished_at.unwrap().since(ended.summary.submitted_at) < Span::from_s(420));
    }
    assert_eq!(world.ec2.instances().len(), 1);
}

#[tokio::test]
async fn an_array_stops_after_so_many_failures() {
    let mut world = world().await;
    let ids = submit(&world, &["--array", "0-19%1", "--max-failures", "2", "--", "fail"]).await;
    until(&mut world, ids[19], JobState::Rejected).await;
    let mut states = Vec::new();
    for id in &ids {
        states.push(job(&world, *id).await.summary.state);
    }
    let count = |state| states.iter().filter(|s| **s == state).count();
    assert!(count(JobState::Failed) >= 2 && count(JobState::Failed) < 6, "{states:?}");
    assert_eq!(count(JobState::Failed) + count(JobState::Rejected), 20, "{states:?}");
    let why = job(&world, ids[19]).await.reason.unwrap();
    assert!(why.contains("elements of its array have failed, and --max-failures 2"), "{why}");
}
