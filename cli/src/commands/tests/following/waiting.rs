//! `pause`, `continue`, `change`, and the options of `submit` about when a job begins.

use crate::commands::tests::*;
use model::{AfterEnd, JobState};
use serde_json::json;
use std::collections::BTreeSet;

async fn submitted(world: &World, args: &[&str]) -> Vec<JobId> {
    let line: Vec<&str> = ["submit"].iter().chain(args).copied().collect();
    world.run(&line).await.done().lines().map(|line| line.parse().unwrap()).collect()
}

async fn job(world: &World, id: JobId) -> Job {
    world.store().job(id).await.unwrap().unwrap()
}

async fn in_state(world: &World, id: JobId, state: JobState) {
    let before = job(world, id).await;
    let mut after = before.clone();
    after.summary.state = state;
    world.store().write(Some(&before), &after, Vec::new()).await.unwrap();
}

async fn actions(world: &World, id: JobId) -> Vec<(String, String)> {
    let events = world.store().history(&format!("job#{id}"), 100).await.unwrap();
    events.into_iter().map(|event| (event.action, event.reason)).collect()
}

#[tokio::test]
async fn a_job_waits_for_its_time_and_says_until_when() {
    let world = World::with_policy().await;
    let id =
        submitted(&world, &["--name", "later", "--not-before", "2h", "--give-up-after", "1d", "--", "true"]).await[0];
    let begins_at = world.now + Span::from_s(7200);
    let why = format!("it begins at {begins_at} at the earliest (--not-before)");
    for line in [&["job", "later"][..], &["jobs"], &["jobs", "--queue"], &["plan"]] {
        let shown = world.run(line).await.done();
        assert!(shown.contains(&why), "{line:?}: {shown}");
    }
    assert!(world.run(&["job", "later"]).await.done().contains("gives up"), "until when");
    let shown = world.run(&["job", "later", "--json"]).await.json();
    assert_eq!((&shown["not_before_at"], &shown["give_up_after_s"]), (&json!(begins_at.as_ms()), &json!(86_400)));
    assert_eq!(world.run(&["jobs", "--json"]).await.json()[0]["not_before_at"], begins_at.as_ms());
    // What JSON shows is a line, which is the same job.
    let line = shown.to_string();
    let again = world.run_with(&["submit", "--file", "-"], &line).await.done();
    let again = job(&world, again.trim().parse().unwrap()).await;
    assert_eq!((again.not_before_at, again.summary.give_up_after_s), (Some(begins_at), 86_400));
    // No run reads it before it is due.
    assert_eq!(world.store().queued(&BTreeSet::new(), None, 10).await.unwrap().jobs.len(), 0);
    let due = async |now| world.store().jobs_due(now, 10).await.unwrap().rows.len();
    assert_eq!((due(begins_at - Span::from_s(1)).await, due(begins_at).await), (0, 2));
    world.run(&["change", &id.to_string(), "--not-before", "0s"]).await.done();
    let queued = world.store().queued(&BTreeSet::new(), None, 10).await.unwrap().jobs;
    assert_eq!(queued.iter().map(|job| job.job_id).collect::<Vec<_>>(), [id], "it may be placed at once");
}

#[tokio::test]
async fn a_line_gives_its_times_as_the_options_do_and_a_mistake_names_its_field() {
    let world = World::with_policy().await;
    let keyed = r#"{"command": "true", "key": "k", "not_before": "2h", "give_up_after": "3h"}"#;
    let first = world.run_with(&["submit", "--file", "-"], keyed).await.done();
    let mut later = world.clone();
    later.now = later.now + Span::from_s(600);
    assert_eq!(later.run_with(&["submit", "--file", "-"], keyed).await.done(), first, "the same key is the same job");
    let stored = job(&world, first.trim().parse().unwrap()).await;
    assert_eq!(stored.not_before_at, Some(world.now + Span::from_s(7200)));
    for (line, says) in [
        (r#"{"command": "true", "not_before": "soon"}"#, "line 1: not_before: it must be a length of time such as 30m"),
        (r#"{"command": "true", "not_before_at": "soon"}"#, "line 1: not_before_at: it must be a length of time"),
        (r#"{"command": "true", "not_before_at": [1]}"#, "line 1: not_before_at: a number of milliseconds, a time"),
        (r#"{"command": "true", "give_up_after": "x"}"#, "line 1: give_up_after: it must be a number of seconds"),
        (r#"{"command": "true", "max_failures": 0}"#, "line 1: max_failures: "),
        (
            r#"{"command": "true", "not_before": "2h", "give_up_after": "1h"}"#,
            "line 1: not_before_at is after the end of give_up_after_s",
        ),
    ] {
        let error = world.run_with(&["submit", "--file", "-"], line).await.error();
        assert!(error.contains(says), "{line}: {error}");
    }
    assert!(world.run(&["submit", "--not-before", "9999d", "--", "true"]).await.error().contains("within a year"));
}

#[tokio::test]
async fn a_key_means_the_same_job_however_late_its_length_of_time_is_given_again() {
    let world = World::with_policy().await;
    let line = ["submit", "--key", "nightly", "--not-before", "2h", "--", "true"];
    let first = world.run(&line).await.done();
    let mut later = world.clone();
    later.now = later.now + Span::from_s(600);
    assert_eq!(later.run(&line).await.out, first);
    let other = later.run(&["submit", "--key", "nightly", "--not-before", "3h", "--", "true"]).await.error();
    assert!(other.contains("with another not_before_at"), "{other}");
}

#[tokio::test]
async fn what_waits_is_paused_and_goes_on_and_what_runs_is_refused() {
    let world = World::with_policy().await;
    let id = submitted(&world, &["--name", "one", "--", "true"]).await[0];
    let before = job(&world, id).await;
    assert_eq!(world.run(&["pause", "one"]).await.done(), format!("{id} paused\n"));
    assert_eq!(world.run(&["pause", "one"]).await.done(), format!("{id} was paused already\n"));
    assert_eq!(world.store().queued(&BTreeSet::new(), None, 10).await.unwrap().jobs.len(), 0);
    for line in [&["job", "one"][..], &["jobs"], &["plan"]] {
        let shown = world.run(line).await.done();
        assert!(shown.contains("it is paused: `nodekeeper continue` lets it go on"), "{line:?}: {shown}");
    }
    assert_eq!(world.run(&["jobs", "--json"]).await.json()[0]["paused"], true);
    let went_on = world.run(&["continue", "one", "--json"]).await.json();
    assert_eq!((&went_on[0]["job_id"], &went_on[0]["paused"]), (&json!(id), &serde_json::Value::Null));
    assert_eq!(world.run(&["continue", "one"]).await.done(), format!("{id} was not paused\n"));
    assert_eq!(job(&world, id).await.summary.rank(), before.summary.rank());
    let by = |action: &str| (action.to_owned(), "by ann".to_owned());
    let mut events = actions(&world, id).await;
    events.sort();
    assert_eq!(events, [by("continue"), by("pause")]);
    in_state(&world, id, JobState::Placed).await;
    let (_, refused) = world.run(&["pause", "one"]).await.failed();
    assert!(refused.contains("one cannot be paused: it is placed already: only what waits can be"), "{refused}");
    in_state(&world, id, JobState::Failed).await;
    for line in [&["pause", "one"][..], &["change", "one", "--priority", "9"]] {
        let (_, refused) = world.run(line).await.failed();
        assert!(refused.contains("it has ended already (failed): `nodekeeper rerun` runs it"), "{refused}");
    }
    let (_, unknown) = world.run(&["pause", "nothing"]).await.failed();
    assert!(unknown.contains("no stored job has the id or the name"), "{unknown}");
}

#[tokio::test]
async fn of_an_array_the_elements_that_wait_are_paused_and_the_answer_counts_the_others() {
    let world = World::with_policy().await;
    let ids = submitted(&world, &["--name", "sweep", "--array", "0-119", "--", "true"]).await;
    in_state(&world, ids[3], JobState::Placed).await;
    in_state(&world, ids[4], JobState::Complete).await;
    let paused = world.run(&["pause", "sweep"]).await.done();
    assert_eq!(paused, "sweep: 118 jobs paused; as they were: 1 placed, 1 complete\n");
    assert_eq!(world.store().queued(&BTreeSet::new(), None, 200).await.unwrap().jobs.len(), 0);
    assert_eq!(
        world.run(&["continue", "sweep[0-9]"]).await.done(),
        "sweep[0-9]: 8 jobs continued; as they were: 1 placed, 1 complete\n"
    );
    assert_eq!(world.store().queued(&BTreeSet::new(), None, 200).await.unwrap().jobs.len(), 8);
}

#[tokio::test]
async fn a_change_is_checked_as_a_submission_is() {
    let world = World::with_policy().await;
    let id = submitted(&world, &["--name", "one", "--env", "A=1", "--", "true"]).await[0];
    let before = job(&world, id).await;
    let changed = world.run(&["change", "one", "--priority", "900", "--memory", "2G", "--timeout", "1h"]).await.done();
    assert_eq!(changed, format!("{id} changed\n"));
    let after = job(&world, id).await;
    assert_eq!((after.summary.priority, after.summary.needs.memory_mib, after.work.timeout_s), (900, 2048, 3600));
    assert_eq!((&after.env, after.summary.submitted_at), (&before.env, before.summary.submitted_at));
    let (action, reason) = actions(&world, id).await.remove(0);
    assert_eq!(action, "change");
    assert_eq!(reason, "by ann: memory_mib = 2048, priority = 900, timeout_s = 3600");
    assert_eq!(world.run(&["change", "one", "--priority", "900"]).await.done(), format!("{id} is like that already\n"));
    let wrong = world.run(&["change", "one", "--priority", "1001", "--vcpus", "0"]).await.error();
    assert!(wrong.starts_with("the job was not changed: "), "{wrong}");
    assert!(wrong.contains("--priority must be 0 to 1000") && wrong.contains("--vcpus must be at least 1"), "{wrong}");
    let stays = world.run(&["change", "one", "--image", "alpine"]).await.error();
    assert!(stays.contains("the image of a job stays"), "{stays}");
    let none = world.run(&["change", "one"]).await.error();
    assert!(none.contains("say what changes"), "{none}");
}

#[tokio::test]
async fn each_element_follows_the_element_with_the_same_number() {
    let world = World::with_policy().await;
    let first = submitted(&world, &["--name", "a", "--array", "1-4", "--", "true"]).await;
    let each = submitted(&world, &["--name", "b", "--array", "1-4", "--after-each", "a", "--", "true"]).await;
    for (n, id) in each.iter().enumerate() {
        assert_eq!(job(&world, *id).await.summary.after, [(first[n], AfterEnd::Success)].into());
    }
    // A pack follows all that its elements follow, and the elements of packs are found by their numbers.
    let packs =
        submitted(&world, &["--name", "c", "--array", "1-4", "--pack", "3", "--after-each", "b", "--", "true"]).await;
    assert_eq!(job(&world, packs[0]).await.summary.after.len(), 3);
    let last = submitted(&world, &["--array", "1-4", "--after-each", "c", "--", "true"]).await;
    assert_eq!(job(&world, last[3]).await.summary.after, [(packs[1], AfterEnd::Success)].into());
    let count = world.run(&["submit", "--array", "1-5", "--after-each", "a", "--", "true"]).await.error();
    assert!(count.contains("the array a has 4 elements, and this one has 5"), "{count}");
    let numbers = world.run(&["submit", "--array", "0-3", "--after-each", "a", "--", "true"]).await.error();
    assert!(numbers.contains("the array a has no stored element with the number 0"), "{numbers}");
    submitted(&world, &["--name", "one", "--", "true"]).await;
    let no_array = world.run(&["submit", "--array", "0-3", "--after-each", "one", "--", "true"]).await.error();
    assert!(no_array.contains("one is no array"), "{no_array}");
}

#[tokio::test]
async fn the_failures_of_an_array_are_counted_by_its_index() {
    let world = World::with_policy().await;
    let ids = submitted(&world, &["--name", "a", "--array", "0-4", "--max-failures", "2", "--", "true"]).await;
    let array = model::array::Array::of(ids[0]);
    let failures = async || world.store().failures(array, 2).await.unwrap();
    assert_eq!(failures().await, 0);
    in_state(&world, ids[0], JobState::Failed).await;
    in_state(&world, ids[1], JobState::Complete).await;
    assert_eq!(failures().await, 1);
    in_state(&world, ids[3], JobState::Failed).await;
    assert_eq!(failures().await, 2);
    let next = world.cluster.next(world.now).await.unwrap();
    assert_eq!(
        next.of_job(ids[2]),
        Some("next run: reject: 2 elements of its array have failed, and --max-failures 2 begins no other one then")
    );
    // A pack counts its elements.
    let pack = submitted(&world, &["--array", "0-9", "--pack", "10", "--max-failures", "2", "--", "true"]).await[0];
    let before = job(&world, pack).await;
    let mut after = before.clone();
    after.summary.state = JobState::Placed;
    after.summary.tries.elements = Some(model::elements::ElementCounts { elements: 10, complete: 0, failed: 3 });
    world.store().write(Some(&before), &after, Vec::new()).await.unwrap();
    assert_eq!(world.store().failures(model::array::Array::of(pack), 2).await.unwrap(), 3);
}

/// Ends a job as a run does: failed, or rejected because the job that it follows did not complete.
async fn ended(world: &World, id: JobId, followed: Option<JobId>) {
    let before = job(world, id).await;
    let after = match followed {
        Some(followed) => {
            let why = model::reason::Reason::FollowedNotComplete { job_id: followed, state: JobState::Failed };
            before.reject(&why.to_string(), Span::from_s(99_999), world.now).unwrap()
        }
        None => {
            let mut after = before.clone();
            (after.summary.state, after.finished_at) = (JobState::Failed, Some(world.now));
            after
        }
    };
    world.store().write(Some(&before), &after, Vec::new()).await.unwrap();
}

#[tokio::test]
async fn a_rerun_brings_along_what_was_rejected_for_it_in_its_order() {
    let world = World::with_policy().await;
    let first = submitted(&world, &["--name", "a", "--", "true"]).await[0];
    let array = submitted(&world, &["--name", "b", "--array", "0-2", "--after", "a", "--", "true"]).await;
    let last = submitted(&world, &["--name", "c", "--after", "b", "--", "true"]).await[0];
    let any = submitted(&world, &["--name", "d", "--after-any", "a", "--", "true"]).await[0];
    let other = submitted(&world, &["--name", "e", "--", "true"]).await[0];
    let both = submitted(&world, &["--name", "f", "--after", "a", "--after", "e", "--", "true"]).await[0];
    let gone = submitted(&world, &["--name", "g", "--after", "a", "--", "true"]).await[0];
    for id in [first, other] {
        ended(&world, id, None).await;
    }
    for id in &array {
        ended(&world, *id, Some(first)).await;
    }
    ended(&world, last, Some(array[1])).await;
    ended(&world, both, Some(first)).await;
    let cancelled = job(&world, gone).await.cancel("ann", Span::from_s(99_999), world.now).unwrap();
    world.store().write(Some(&job(&world, gone).await), &cancelled, Vec::new()).await.unwrap();
    let mut later = world.clone();
    later.now = later.now + Span::from_s(60);
    let first_id = first.to_string();
    let line = ["rerun", &first_id, "--key", "again", "--priority", "900"];
    let said = later.run(&line).await;
    assert!(said.err.contains("4 jobs that followed and were rejected therefore"), "{}", said.err);
    let new: Vec<JobId> = said.out.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(new.len(), 5, "without the follower of any end, that of another failed job, and what was cancelled");
    let mut again = Vec::new();
    for id in &new {
        again.push(job(&world, *id).await);
    }
    let named = |name: &str| again.iter().filter(|job| job.summary.name.as_deref() == Some(name)).collect::<Vec<_>>();
    let [a] = named("a")[..] else { panic!("{again:?}") };
    assert_eq!((a.summary.priority, a.summary.after.len()), (900, 0));
    let elements = named("b");
    assert_eq!(elements.iter().map(|job| job.summary.array_index()).collect::<Vec<_>>(), [Some(0), Some(1), Some(2)]);
    for element in &elements {
        let follows = [(a.summary.job_id, AfterEnd::Success)].into();
        assert_eq!((&element.summary.after, element.summary.priority), (&follows, 500));
    }
    let [c] = named("c")[..] else { panic!("{again:?}") };
    assert_eq!(
        c.summary.after.keys().copied().collect::<Vec<_>>(),
        elements.iter().map(|job| job.summary.job_id).collect::<Vec<_>>()
    );
    assert_eq!(job(&world, any).await.summary.state, JobState::Queued);
    // The same again is the same, also after another follower was rejected.
    let late = submitted(&world, &["--name", "h", "--after-any", "a", "--", "true"]).await[0];
    let mut row = job(&world, late).await;
    row.summary.after = [(first, AfterEnd::Success)].into();
    let mut after = later.clone();
    after.now = after.now + Span::from_s(60);
    world.store().write(Some(&job(&world, late).await), &row, Vec::new()).await.unwrap();
    ended(&after, late, Some(first)).await;
    assert_eq!(after.run(&line).await.out, said.out);
}

#[tokio::test]
async fn what_was_never_started_follows_the_same_when_it_runs_again() {
    let world = World::with_policy().await;
    let first = submitted(&world, &["--name", "a", "--", "true"]).await[0];
    let other = submitted(&world, &["--name", "b", "--", "true"]).await[0];
    let waits = submitted(&world, &["--name", "c", "--after", "a", "--", "true"]).await[0].to_string();
    world.run(&["cancel", &waits]).await.done();
    let follows = async |options: &[&str]| {
        let new = world.run(&[&["rerun", &waits], options].concat()).await.out;
        job(&world, new.trim().parse().unwrap()).await.summary.after
    };
    assert_eq!(follows(&[]).await, [(first, AfterEnd::Success)].into());
    assert_eq!(follows(&["--after-any", "b"]).await, [(other, AfterEnd::Any)].into());
    let keyed = follows(&["--key", "k"]).await;
    ended(&world, first, None).await;
    assert_eq!(follows(&["--key", "k"]).await, keyed, "it is the same, whatever became of the followed job");
    let refused = world.run(&["rerun", &waits]).await.error();
    assert!(refused.contains("is failed") && refused.contains("`nodekeeper rerun"), "{refused}");
    assert_eq!(follows(&["--after", "b"]).await, [(other, AfterEnd::Success)].into());
}
