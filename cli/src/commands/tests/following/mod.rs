//! `submit --after`: jobs that follow other jobs.

mod elements;
mod waiting;

use super::*;
use model::{AfterEnd, JobState};
use std::collections::BTreeMap;
use std::collections::BTreeSet;

async fn submitted(world: &World, args: &[&str]) -> Vec<JobId> {
    let out = world.run(args).await.done();
    out.lines().map(|line| line.parse().unwrap()).collect()
}

async fn after(world: &World, id: JobId) -> BTreeMap<JobId, AfterEnd> {
    world.store().job(id).await.unwrap().unwrap().summary.after
}

async fn end(world: &World, id: JobId, state: JobState) {
    let job = world.store().job(id).await.unwrap().unwrap();
    let mut ended = job.clone();
    ended.summary.state = state;
    world.store().write(Some(&job), &ended, Vec::new()).await.unwrap();
}

#[tokio::test]
async fn a_job_follows_jobs_by_id_by_name_and_a_whole_array() {
    let world = World::with_policy().await;
    let first = submitted(&world, &["submit", "--name", "prepare", "--", "true"]).await[0];
    let array = submitted(&world, &["submit", "--name", "train", "--array", "0-2", "--", "true"]).await;
    // A job of the array has ended already.
    end(&world, array[0], JobState::Complete).await;
    let id = first.to_string().to_lowercase();
    let line = ["submit", "--after", &id, "--after", "train", "--after-any", "prepare", "--", "true"];
    let last = submitted(&world, &line).await[0];
    let all = array.iter().chain([&first]).map(|id| (*id, AfterEnd::Success)).collect();
    assert_eq!(after(&world, last).await, all, "named twice, the stricter end counts");
    let any = submitted(&world, &["submit", "--after-any", "prepare", "--", "true"]).await[0];
    assert_eq!(after(&world, any).await, [(first, AfterEnd::Any)].into());
    // The new job is listed with the waiting jobs, and not read with those that may be placed.
    let listed = world.store().waiting(None, 100).await.unwrap().jobs;
    let queued = world.store().queued(&BTreeSet::new(), None, 100).await.unwrap().jobs;
    assert_eq!((listed.len(), queued.len()), (5, 3));
    let shown = world.run(&["job", &any.to_string()]).await.done();
    assert!(shown.contains(&format!("runs after     {first} (must have ended)")), "{shown}");
    let jobs = world.run(&["jobs"]).await.done();
    assert!(jobs.contains(&format!("it runs after job {first}, which has not ended")), "{jobs}");
    world.run(&["cancel", &any.to_string(), "--yes"]).await.done();
    assert_eq!(world.store().following(None, 100).await.unwrap().jobs.len(), 1);
}

#[tokio::test]
async fn a_job_that_could_never_run_or_follows_nothing_that_is_stored_is_refused() {
    let world = World::with_policy().await;
    let first = submitted(&world, &["submit", "--name", "prepare", "--", "true"]).await[0];
    end(&world, first, JobState::Failed).await;
    let never = world.run(&["submit", "--after", "prepare", "--", "true"]).await.error();
    assert!(never.contains("--after-any"), "{never}");
    submitted(&world, &["submit", "--after-any", "prepare", "--", "true"]).await;
    let unknown = world.run(&["submit", "--after", &fixtures::job_id(77).to_string(), "--", "true"]).await.error();
    assert!(unknown.contains("is not stored, so no job can follow it"), "{unknown}");
    let none = world.run(&["submit", "--after", "nothing", "--", "true"]).await.error();
    assert!(none.contains("no stored job has the id or the name"), "{none}");
    let both = world.run(&["submit", "--array", "0-200", "--name", "many", "--", "true"]).await;
    both.done();
    let many = world.run(&["submit", "--after", "many", "--", "true"]).await.error();
    assert!(many.contains("it follows 201 jobs, at most 100 are possible"), "{many}");
}

#[tokio::test]
async fn the_lines_of_a_file_follow_earlier_lines_by_their_names() {
    let world = World::with_policy().await;
    let outside = submitted(&world, &["submit", "--name", "outside", "--", "true"]).await[0];
    let file = r#"{"name": "a", "command": "true"}
{"name": "b", "command": "true", "after": "a"}
{"name": "b", "command": "true", "after": ["a", "outside"]}
{"name": "c", "command": "true", "after": "b", "after_any": "a"}
"#;
    let out = world.run_with(&["submit", "--file", "-"], file).await.done();
    let ids: Vec<JobId> = out.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(after(&world, ids[0]).await, BTreeMap::new());
    assert_eq!(after(&world, ids[1]).await, [(ids[0], AfterEnd::Success)].into());
    assert_eq!(after(&world, ids[2]).await, [ids[0], outside].map(|id| (id, AfterEnd::Success)).into());
    let both = [(ids[1], AfterEnd::Success), (ids[2], AfterEnd::Success), (ids[0], AfterEnd::Any)];
    assert_eq!(after(&world, ids[3]).await, both.into());
    let (wrong, before) = (
        "{\"name\": \"x\", \"command\": \"true\", \"after\": \"y\"}\n{\"name\": \"y\", \"command\": \"true\", \"after\": 7}\n",
        world.rows().await,
    );
    let error = world.run_with(&["submit", "--file", "-"], wrong).await.error();
    assert!(error.contains("line 2: after: it must be the name or the id"), "{error}");
    let wrong =
        "{\"name\": \"x\", \"command\": \"true\", \"after\": \"y\"}\n{\"name\": \"y\", \"command\": \"true\"}\n";
    let error = world.run_with(&["submit", "--file", "-"], wrong).await.error();
    assert!(error.contains("line 1: no earlier line has this name, and no stored job has"), "{error}");
    assert_eq!(world.rows().await, before, "nothing was written");
}
