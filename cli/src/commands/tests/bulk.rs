//! `submit --file`: many jobs, each once.

use super::*;
use std::collections::BTreeSet;

/// A file with this many jobs. Each has its number in its name.
fn lines(jobs: usize) -> String {
    (1..=jobs).map(|n| format!("{{\"name\": \"n{n}\", \"command\": [\"work\", \"{n}\"]}}\n")).collect()
}

/// The ids that a submission printed.
fn ids(out: &str) -> Vec<JobId> {
    out.lines().map(|line| line.parse().unwrap()).collect()
}

async fn count(world: &World, table: &str) -> usize {
    world.rows().await.keys().filter(|key| key.starts_with(table)).count()
}

#[tokio::test]
async fn a_file_is_submitted_in_its_order_and_only_once() {
    let mut world = World::with_policy().await;
    let dir = tempfile::tempdir().unwrap();
    let path = file(&dir, "jobs.ndjson", &lines(120));
    let line = ["submit", "--file", &path, "--vcpus", "2"];
    let first = ids(&world.run(&line).await.done());
    assert!(first.len() == 120 && first.is_sorted());
    for (n, id) in first.iter().enumerate() {
        let job = world.store().job(*id).await.unwrap().unwrap();
        assert_eq!((job.work.command[1].as_str(), job.summary.needs.vcpus), (format!("{}", n + 1).as_str(), 2));
    }
    // The queue has the order of the file.
    let queue: Vec<JobId> =
        world.store().queue_listed(usize::MAX).await.unwrap().jobs.iter().map(|job| job.job_id).collect();
    assert_eq!(queue, first);
    world.now = at(4600);
    let (said, changed) = world.changes(&line).await;
    assert!(
        said.err
            .starts_with("all of it was submitted 1 h ago, and not all of its jobs have ended, so nothing was written"),
        "{}",
        said.err
    );
    assert_eq!((ids(&said.out), changed), (first.clone(), Vec::new()));
    // Other options make other jobs.
    let other = ids(&world.run(&["submit", "--file", &path]).await.done());
    let again = ids(&world.run(&["submit", "--file", &path, "--again"]).await.done());
    let all: BTreeSet<JobId> = first.into_iter().chain(other).chain(again).collect();
    assert_eq!((all.len(), count(&world, "jobs/").await), (360, 360));
}

/// A store in which a transaction of this many writes never succeeds.
fn without(db: Dynamo, writes: usize) -> Store {
    let never = store::Write {
        key: Key::hash(Table::Jobs, aws_sdk_dynamodb::types::AttributeValue::S("none".into())),
        when: vec![store::Cond::Eq("name", aws_sdk_dynamodb::types::AttributeValue::S("none".into()))],
        effect: store::Effect::Delete,
    };
    let before_write = Box::new(move |some: &[DbWrite]| (some.len() == writes).then(|| never.clone()));
    Store::new(Arc::new(Watched { db, before_write, denies: None }))
}

#[tokio::test]
async fn a_broken_submission_says_what_is_missing_and_the_same_file_completes_it() {
    let world = World::with_policy().await;
    let input = format!("# twenty more than two transactions\n{}", lines(120));
    let mut broken = world.clone();
    broken.cluster.store = without(world.cluster.dynamo.clone(), 20);
    let said = broken.run_with(&["submit", "--file", "-"], &input).await;
    let first = ids(&said.out);
    assert_eq!((first.len(), count(&world, "jobs/").await), (100, 100));
    assert_eq!(said.err, "100 of 120 jobs are in; not in: lines 102-121\n");
    assert!(said.error().contains("give the same file again to submit the rest"));
    let said = world.run_with(&["submit", "--file", "-"], &input).await;
    assert_eq!(said.err, "it was begun 0 s ago: only what is missing is written\n");
    assert_eq!(said.result.unwrap(), Exit::Done);
    let all = ids(&said.out);
    assert_eq!((&all[..100], all.len(), count(&world, "jobs/").await), (&first[..], 120, 120));
}

#[tokio::test]
async fn a_broken_submission_leaves_no_job_without_those_that_it_follows() {
    let world = World::with_policy().await;
    let outside = ids(&world.run(&["submit", "--name", "outside", "--", "true"]).await.done())[0];
    // The second transaction has the jobs that follow the first line.
    let input = format!(
        "{{\"name\": \"a\", \"command\": \"true\", \"after_any\": \"outside\"}}\n{}{}",
        lines(49),
        "{\"command\": \"true\", \"after\": \"a\"}\n".repeat(10)
    );
    let line = ["submit", "--file", "-", "--after", "outside"];
    let mut broken = world.clone();
    broken.cluster.store = without(world.cluster.dynamo.clone(), 50);
    assert!(broken.run_with(&line, &input).await.result.is_err());
    assert_eq!(count(&world, "jobs/").await, 1, "nothing is in without the first line");
    // Meanwhile that job fails, and another one gets its name.
    let job = world.store().job(outside).await.unwrap().unwrap();
    let mut failed = job.clone();
    failed.summary.state = model::JobState::Failed;
    world.store().write(Some(&job), &failed, Vec::new()).await.unwrap();
    let later = ids(&world.run(&["submit", "--name", "outside", "--", "true"]).await.done())[0];
    let said = world.run_with(&line, &input).await;
    assert_eq!(said.err, "it was begun 0 s ago: only what is missing is written\n");
    let all = ids(&said.out);
    assert_eq!((all.len(), count(&world, "jobs/").await), (60, 62));
    for (n, id) in all.iter().enumerate() {
        let after = world.store().job(*id).await.unwrap().unwrap().summary.after;
        let first = (n >= 50).then_some(all[0]);
        let want: BTreeSet<JobId> = [later].into_iter().chain(first).collect();
        assert_eq!(after.into_keys().collect::<BTreeSet<_>>(), want, "{n}");
    }
    let again = world.run_with(&line, &input).await;
    assert!(again.err.starts_with("all of it was submitted") && ids(&again.out) == all, "{}", again.err);
}

#[tokio::test]
async fn a_file_whose_jobs_have_all_ended_is_new() {
    let mut world = World::with_policy().await;
    let mut all = BTreeSet::new();
    for night in 0..3 {
        world.now = at(1000 + night * 86_400);
        let said = world.run_with(&["submit", "--file", "-"], &lines(3)).await;
        assert_eq!(said.err.contains("1 day ago") || said.err.contains("24 h ago"), night > 0, "{}", said.err);
        let submitted = ids(&said.out);
        assert!(submitted.len() == 3 && submitted.iter().all(|id| all.insert(*id)), "night {night}: {submitted:?}");
        // Until all of them have ended, the same file is the same submission.
        for id in &submitted {
            let again = world.run_with(&["submit", "--file", "-"], &lines(3)).await;
            assert!(again.err.contains("not all of its jobs have ended, so nothing was written"), "{}", again.err);
            assert_eq!(ids(&again.out), submitted);
            world.run(&["cancel", &id.to_string()]).await.done();
        }
    }
    assert_eq!(count(&world, "jobs/").await, 9);
    // If two programs find at the same time that it has ended, only one of them submits it anew.
    let events = world.store().history(&submission(&world).await, 9).await.unwrap();
    let mut anew = events[0].clone();
    anew.detail.insert("at".into(), 7.into());
    world.store().record_over(&events[0], &anew).await.unwrap();
    assert!(matches!(world.store().record_over(&events[0], &anew).await, Err(WriteError::Conflict(_))));
}

/// The subject of the events about a file.
async fn submission(world: &World) -> String {
    let rows = world.rows().await;
    let key = rows.keys().find_map(|key| key.strip_prefix("events/submission#"));
    format!("submission#{}", key.unwrap().chars().take_while(char::is_ascii_alphanumeric).collect::<String>())
}

#[tokio::test]
async fn an_old_broken_submission_is_not_guessed() {
    let mut world = World::with_policy().await;
    let mut broken = world.clone();
    broken.cluster.store = without(world.cluster.dynamo.clone(), 2);
    assert!(broken.run_with(&["submit", "--file", "-"], &lines(2)).await.result.is_err());
    world.now = at(1000 + 8 * 86_400);
    let error = world.run_with(&["submit", "--file", "-"], &lines(2)).await.error();
    assert!(error.contains("was begun 8 days ago") && error.contains("--again"), "{error}");
    assert_eq!(count(&world, "jobs/").await, 0);
}

#[tokio::test]
async fn a_file_with_a_mistake_submits_nothing() {
    let world = World::with_policy().await;
    let before = world.rows().await;
    for (text, says) in [
        ("{\"command\": \"a\"}\n{\"comand\": \"b\"}", "line 2: \"comand\" is not a field of a job"),
        ("{\"command\": \"a\"}\n{\"command\": \"b\", \"priority\": 9999}", "line 2: priority must be 0 to 1000"),
        ("{\"name\": \"no command\"}", "line 1: it has no command"),
        ("", "standard input has no job"),
    ] {
        let error = world.run_with(&["submit", "--file", "-"], text).await.result.unwrap_err();
        assert!(error.is::<UsageError>() && error.to_string().contains(says), "{error}");
    }
    assert!(world.run(&["submit", "--file", "/nowhere"]).await.error().starts_with("/nowhere cannot be read"));
    assert_eq!(world.rows().await, before);
    for line in [&["submit", "--file", "-", "--count", "2"][..], &["submit", "--again", "--", "true"]] {
        assert_eq!(parse(line).unwrap_err().exit_code(), 2, "{line:?}");
    }
}
