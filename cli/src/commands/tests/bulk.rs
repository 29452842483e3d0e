//! Submissions that are made once: files, and keys.

use super::*;
use futures::future::join_all;
use serde_json::json;
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
    Store::new(Arc::new(Watched { before_write, ..Watched::new(db) }))
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
    anew.detail.insert("complete".into(), false.into());
    world.store().record_over(&events[0], &anew).await.unwrap();
    assert!(matches!(world.store().record_over(&events[0], &anew).await, Err(WriteError::Conflict(_))));
}

/// The subject of the events about a file.
async fn submission(world: &World) -> String {
    let rows = world.rows().await;
    let key = rows.keys().find_map(|key| key.strip_prefix("events/key#"));
    format!("key#{}", key.unwrap().split_once('/').unwrap().0)
}

#[tokio::test]
async fn an_old_broken_submission_is_not_guessed() {
    let mut world = World::with_policy().await;
    let mut broken = world.clone();
    broken.cluster.store = without(world.cluster.dynamo.clone(), 50);
    assert!(broken.run_with(&["submit", "--file", "-"], &lines(60)).await.result.is_err());
    let before = count(&world, "jobs/").await;
    world.now = at(1000 + 8 * 86_400);
    let error = world.run_with(&["submit", "--file", "-"], &lines(60)).await.error();
    assert!(error.contains("was begun 8 days ago") && error.contains("--again"), "{error}");
    assert_eq!(count(&world, "jobs/").await, before);
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

fn id(said: Said) -> JobId {
    said.out.trim().parse().unwrap_or_else(|_| panic!("{said:?}"))
}

#[tokio::test]
async fn the_same_key_with_the_same_job_is_the_same_job_whatever_its_state() {
    let world = World::with_policy().await;
    let line = ["submit", "--key", "nightly-1", "--vcpus", "2", "--", "work"];
    let first = id(world.run(&line).await);
    let (again, changed) = world.changes(&line).await;
    assert_eq!(again.err, "the same was submitted 0 s ago, so nothing was written\n");
    assert_eq!((id(again), changed), (first, Vec::new()));
    world.run(&["cancel", &first.to_string()]).await.done();
    assert_eq!(id(world.run(&line).await), first, "an ended job is the same job too");
    let shown = world.run(&["job", &first.to_string(), "--json"]).await.json();
    assert_eq!(shown["key"], "nightly-1");
    let other = id(world.run(&["submit", "--key", "nightly-2", "--vcpus", "2", "--", "work"]).await);
    assert_ne!(other, first);
    assert_eq!(count(&world, "jobs/").await, 2);
}

#[tokio::test]
async fn a_key_with_other_content_is_an_error_that_names_what_differs() {
    let world = World::with_policy().await;
    world.run(&["submit", "--name", "before", "--", "true"]).await.done();
    world.run(&["submit", "--key", "k", "--after", "before", "--", "work"]).await.done();
    let before = world.rows().await;
    for (options, differs) in [
        (&["--after", "before", "--", "play"][..], "another command:"),
        (&["--after", "before", "--vcpus", "2", "--env", "A=1", "--", "work"], "another env, vcpus:"),
        (&["--after-any", "before", "--", "work"], "another after:"),
        (&["--after", "before", "--count", "2", "--", "work"], "another array:"),
        (&["--", "work"], "another after:"),
    ] {
        let line: Vec<&str> = ["submit", "--key", "k"].iter().chain(options).copied().collect();
        let error = world.run(&line).await.error();
        assert!(error.contains("was submitted with this key and with") && error.contains(differs), "{error}");
    }
    assert_eq!(world.rows().await, before);
}

#[tokio::test]
async fn of_many_programs_that_submit_at_once_with_one_key_one_makes_the_job() {
    let world = World::with_policy().await;
    for (n, line) in [
        (1, &["submit", "--key", "one", "--", "work"][..]),
        (70, &["submit", "--key", "many", "--count", "70", "--", "work"]),
    ] {
        let before = count(&world, "jobs/").await;
        let said = join_all((0..8).map(|_| world.run(line))).await;
        let ids: BTreeSet<String> = said.into_iter().map(|said| said.out).collect();
        assert_eq!(ids.len(), 1, "{ids:?}");
        assert_eq!((ids.first().unwrap().lines().count(), count(&world, "jobs/").await), (n, before + n));
    }
}

#[tokio::test]
async fn a_lost_answer_doubles_nothing() {
    let world = World::with_policy().await;
    let keyed = "{\"key\": \"a\", \"command\": \"true\"}\n{\"key\": \"b\", \"command\": \"true\"}\n";
    for (line, input, n) in [
        (&["submit", "--key", "one", "--", "work"][..], "", 1),
        (&["submit", "--key", "many", "--count", "60", "--", "work"], "", 60),
        (&["submit", "--file", "-"], keyed, 2),
    ] {
        let before = count(&world, "jobs/").await;
        let mut lossy = world.clone();
        let db = Watched { loses: AtomicUsize::new(1), ..Watched::new(world.cluster.dynamo.clone()) };
        lossy.cluster.store = Store::new(Arc::new(db));
        let said = lossy.run_with(line, input).await;
        assert_eq!(said.result.unwrap(), Exit::Done, "{line:?}");
        let again = world.run_with(line, input).await;
        assert_eq!((again.out, count(&world, "jobs/").await), (said.out, before + n), "{line:?}");
    }
}

#[tokio::test]
async fn an_array_with_a_key_that_broke_off_is_completed() {
    let world = World::with_policy().await;
    let line = ["submit", "--key", "sweep", "--count", "120", "--", "work"];
    let mut broken = world.clone();
    broken.cluster.store = without(world.cluster.dynamo.clone(), 20);
    let error = broken.run(&line).await.error();
    assert!(error.starts_with("100 of 120 jobs were submitted"), "{error}");
    let said = world.run(&line).await;
    assert_eq!(said.err, "it was begun 0 s ago: only what is missing is written\n");
    assert_eq!((said.out.lines().count(), count(&world, "jobs/").await), (120, 120));
    let again = world.run(&line).await;
    assert_eq!(again.out, said.out);
}

#[tokio::test]
async fn a_job_that_is_not_stored_any_more_is_not_made_again() {
    let world = World::with_policy().await;
    let line = ["submit", "--key", "k", "--", "work"];
    let first = id(world.run(&line).await);
    let gone = DbWrite { key: store::job_key(first), when: Vec::new(), effect: store::Effect::Delete };
    world.store().apply(&gone).await.unwrap();
    let error = world.run(&line).await.error();
    assert!(error.contains(&first.to_string()) && error.contains("give another key"), "{error}");
    assert_eq!(count(&world, "jobs/").await, 0);
}

#[tokio::test]
async fn each_line_of_a_file_may_have_a_key_and_only_new_lines_are_written() {
    let world = World::with_policy().await;
    let lines = |texts: &[&str]| texts.join("\n");
    let (a, b) = (r#"{"key": "a", "name": "x", "command": "one"}"#, r#"{"key": "b", "after": "x", "command": "two"}"#);
    let first = world.run_with(&["submit", "--file", "-"], &lines(&[a, b])).await;
    let ids: Vec<JobId> = first.out.lines().map(|id| id.parse().unwrap()).collect();
    assert!(ids.is_sorted() && ids.len() == 2);
    // A line before the others is new, and one behind them follows a job of an earlier submission.
    let (new, c) = (r#"{"key": "0", "command": "zero"}"#, r#"{"key": "c", "after": "x", "command": "three"}"#);
    let said = world.run_with(&["submit", "--file", "-"], &lines(&[new, a, b, c])).await;
    let more: Vec<JobId> = said.out.lines().map(|id| id.parse().unwrap()).collect();
    assert_eq!((&more[1..3], more.len(), count(&world, "jobs/").await), (&ids[..], 4, 4));
    let last = world.store().job(more[3]).await.unwrap().unwrap();
    assert_eq!((last.key.as_deref(), last.summary.after.keys().copied().collect()), (Some("c"), vec![ids[0]]));
    let before = world.rows().await;
    let other = r#"{"key": "b", "after": "x", "command": "2"}"#;
    for (texts, says) in [
        (&[a, other][..], "line 2: job"),
        (&[a, other], "another command"),
        (&[a, a], "line 2: line 1 has the same key"),
        (&[a, r#"{"command": "none"}"#], "line 2: it has no key, and other lines have one"),
        (&[r#"{"key": "", "command": "x"}"#], "line 1: key \"\" must be 1 to 128 characters"),
    ] {
        let error = world.run_with(&["submit", "--file", "-"], &lines(texts)).await.error();
        assert!(error.starts_with("nothing of standard input was submitted") && error.contains(says), "{error}");
    }
    assert_eq!(world.rows().await, before);
}

#[tokio::test]
async fn a_key_of_a_line_and_of_an_option_is_the_same_key() {
    let world = World::with_policy().await;
    let line = r#"{"key": "k", "command": ["work", "30"]}"#;
    let first = world.run_with(&["submit", "--file", "-"], line).await.done();
    assert_eq!(world.run(&["submit", "--key", "k", "--", "work", "30"]).await.out, first);
    let other = world.run(&["submit", "--key", "k", "--count", "2", "--", "work", "30"]).await.error();
    assert!(other.contains("with another array"), "{other}");
}

#[tokio::test]
async fn a_file_with_a_key_is_one_submission() {
    let world = World::with_policy().await;
    let input = "{\"command\": \"a\"}\n{\"command\": \"b\"}\n";
    let line = ["submit", "--key", "k", "--file", "-"];
    let first = world.run_with(&line, input).await;
    assert_eq!(first.out.lines().count(), 2);
    for id in first.out.lines() {
        world.run(&["cancel", id]).await.done();
    }
    let again = world.run_with(&line, input).await;
    assert_eq!(
        (again.out, count(&world, "jobs/").await),
        (first.out, 2),
        "its jobs have ended, and it is not submitted anew"
    );
    let error = world.run_with(&line, "{\"command\": \"a\"}\n").await.error();
    assert!(error.contains("another lines or options"), "{error}");
    assert_eq!(parse(&["submit", "--file", "-", "--key", "k", "--again"]).unwrap_err().exit_code(), 2);
}

#[tokio::test]
async fn run_with_a_key_follows_the_job_that_is_there() {
    let world = World::with_policy().await;
    let first = id(world.run(&["submit", "--key", "k", "--", "work"]).await);
    world.run(&["cancel", &first.to_string()]).await.done();
    let said = world.run(&["run", "--key", "k", "--", "work"]).await;
    assert_eq!(said.result.unwrap(), Exit::Code(130), "it was cancelled");
    assert!(said.err.contains(&first.to_string()), "{}", said.err);
}

/// The answers of `batch` to these requests.
pub(super) async fn answers(world: &World, requests: &[&str]) -> Vec<serde_json::Value> {
    let (send, lines) = tokio::sync::mpsc::channel(64);
    for request in requests {
        send.send(Ok(format!("{request}\n").into_bytes())).await.unwrap();
    }
    drop(send);
    let said = world.said("", async |context| crate::commands::batch::answer(context, lines).await).await;
    assert_eq!((said.result.unwrap(), said.err.as_str()), (Exit::Done, ""));
    said.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[tokio::test]
async fn a_program_submits_waits_and_cancels_in_one_process() {
    let world = World::with_policy().await;
    let submit = r#"{"id": "a", "submit": [{"key": "x", "name": "x", "command": "one"}, {"key": "y", "command": "two", "after": "x"}]}"#;
    let answers = answers(
        &world,
        &[
            submit,
            submit,
            r#"{"id": 2, "wait": ["x"]}"#,
            r#"{"id": 3, "cancel": ["--all", "--yes"]}"#,
            r#"{"id": 3, "logs": "--help"}"#,
            r#"{"id": 3, "fetch": {"job": "--force", "path": "x", "dir": "."}}"#,
            r#"{"id": 3, "cancel": {"jobs": ["x"], "yes": true}}"#,
            r#"{"id": 3, "cancel": {"jobs": ["x"], "all": true}}"#,
            r#"{"id": 4, "list": ["x"]}"#,
            r#"{"id": 5, "submit": [{"command": "again"}]}"#,
            r#"{"id": 5, "submit": [{"command": "again"}]}"#,
        ],
    )
    .await;
    let ids: BTreeSet<JobId> = serde_json::from_value(answers[0]["jobs"].clone()).unwrap();
    assert_eq!((ids.len(), &answers[1]), (2, &answers[0]), "the same keys are the same jobs");
    let of = |id: serde_json::Value| answers.iter().filter(move |answer| answer["id"] == id).collect::<Vec<_>>();
    let waited = of(2.into());
    assert_eq!((&waited[0]["ended"]["state"], &waited[0]["ended"]["key"]), (&"cancelled".into(), &"x".into()));
    assert_eq!((&waited[1]["done"], waited.len()), (&true.into(), 2));
    let cancelled = of(3.into());
    assert_eq!(cancelled.iter().filter(|answer| answer["done"] == true).count(), 1);
    for expected in ["the name `--all`", "the name `--help`", "the name `--force`", "cancel takes"] {
        let mut messages = cancelled.iter().filter_map(|answer| answer["error"]["message"].as_str());
        assert!(messages.any(|message| message.contains(expected)), "{expected}: {cancelled:?}");
    }
    assert_eq!(of(4.into())[0]["rows"][0]["state"], "cancelled");
    let fresh = of(5.into());
    assert_ne!(fresh[0]["jobs"], fresh[1]["jobs"], "without a key, each submission makes new jobs");
}

#[tokio::test]
async fn a_program_gets_the_rows_of_the_list() {
    let world = World::with_policy().await;
    world.put_running(1).await;
    let submit = ["submit", "--name", "x", "--count", "4", "--not-before", "2h", "--", "work"];
    world.run(&submit).await.done();
    world.run(&["pause", "x[1]"]).await.done();
    world.run(&["cancel", "x[2]"]).await.done();
    world.run(&["submit", "--name", "waits", "--vcpus", "2", "--", "work"]).await.done();
    let listed = world.run(&["jobs", "--all", "--json"]).await.json();
    let asked =
        json!({"id": 1, "list": listed.as_array().unwrap().iter().map(|row| &row["job_id"]).collect::<Vec<_>>()});
    let answer = answers(&world, &[&asked.to_string()]).await.pop().unwrap();
    let rows = answer["rows"].as_array().unwrap();
    for listed in listed.as_array().unwrap() {
        let mut listed = listed.clone();
        let row = rows.iter().find(|row| row["job_id"] == listed["job_id"]).unwrap();
        // What the next run does is planned for the list only.
        if listed["waits_because"].as_str().is_some_and(|why| why.contains("run")) {
            listed.as_object_mut().unwrap().remove("waits_because");
        }
        assert_eq!(&listed, row);
    }
    let of = |field: &str| rows.iter().filter(|row| !row[field].is_null()).count();
    assert_eq!((rows.len(), of("slots"), of("waits_because")), (6, 1, 3));
}

#[tokio::test]
async fn a_request_that_cannot_be_answered_says_whether_it_is_wrong() {
    let world = World::with_policy().await;
    for (request, kind, says) in [
        ("nonsense", "wrong", "it is no request"),
        (r#"{"submit": []}"#, "wrong", "give it an id"),
        (r#"{"id": 1, "submit": [], "wait": []}"#, "wrong", "it is no request"),
        (r#"{"id": 1, "delete": ["x"]}"#, "wrong", "unknown variant `delete`"),
        (r#"{"id": 1, "submit": [{"command": "a"}, {"comand": "b"}]}"#, "wrong", "line 2: \"comand\" is not a field"),
        (r#"{"id": 1, "wait": ["nothing"]}"#, "failed", "no stored job has the id or the name"),
        (r#"{"id": 1, "cancel": ["nothing"]}"#, "failed", "no stored job has the id or the name"),
        (r#"{"id": 1, "fetch": {"job": "x", "dir": ".", "to": 1}}"#, "wrong", "unknown field `to`"),
    ] {
        let answer = answers(&world, &["", request]).await;
        let error = &answer[0]["error"];
        assert_eq!((answer.len(), error["kind"].as_str()), (1, Some(kind)), "{answer:?}");
        assert!(error["message"].as_str().unwrap().contains(says), "{error}");
    }
    let away = DbError::Unreachable { operation: "GetItem", detail: String::new() };
    let kinds = [
        anyhow::Error::from(away).context("more"),
        WriteError::CONFLICT.into(),
        UsageError("x".into()).into(),
        anyhow::anyhow!("x"),
    ];
    assert_eq!(kinds.map(|e| crate::console::ErrorKind::of(&e).exit_code()), [75, 75, 2, 1]);
}

/// More requests for outputs than are carried out at the same time, and a wait that never ends before them.
#[tokio::test]
async fn each_request_for_outputs_is_answered_beside_a_wait() {
    let world = World::with_policy().await;
    let job = id(world.run(&["submit", "--", "true"]).await);
    let mut requests: Vec<String> = vec![format!(r#"{{"id": "w", "wait": ["{job}"]}}"#)];
    requests.extend((0..40).map(|n| match n % 2 {
        0 => format!(r#"{{"id": {n}, "logs": "{job}"}}"#),
        _ => format!(r#"{{"id": {n}, "fetch": {{"job": "{job}", "dir": "none"}}}}"#),
    }));
    requests.push(format!(r#"{{"id": "c", "cancel": ["{job}"]}}"#));
    let answers = answers(&world, &requests.iter().map(String::as_str).collect::<Vec<_>>()).await;
    for n in 0..40 {
        let of: Vec<_> = answers.iter().filter(|answer| answer["id"] == n).collect();
        let is_as_wanted = if n % 2 == 0 { of[0]["stdout"] == "" } else { of[0]["error"]["kind"] == "failed" };
        assert!(of.len() == 1 && is_as_wanted, "{of:?}");
    }
    assert_eq!(answers.iter().filter(|answer| answer["id"] == "w").count(), 2, "its end, and that all have ended");
}

#[tokio::test]
async fn a_rerun_is_the_same_job_but_for_what_changes() {
    let mut world = World::with_policy().await;
    let submit = ["submit", "--name", "sweep", "--array", "3-5", "--env", "A=1", "--memory", "2G", "--", "work"];
    let first = world.run(&submit).await.done();
    let array = format!("{}[*]", first.lines().next().unwrap());
    world.run(&["cancel", "sweep[4]"]).await.done();
    world.now = world.now + Span::from_s(9);
    let line = ["rerun", "sweep", "--failed", "--key", "r", "--memory", "4G", "--env", "B=2"];
    let again = id(world.run(&line).await);
    assert_eq!(id(world.run(&line).await), again, "the same key is the same rerun, and not one of the new job");
    let new = world.store().job(again).await.unwrap().unwrap();
    let needs = (new.summary.array_index(), new.summary.needs.memory_mib, new.summary.state);
    assert_eq!(needs, (Some(4), 4096, JobState::Queued));
    let env: Vec<&str> = new.env.values().map(String::as_str).collect();
    assert_eq!((new.work.command.as_slice(), env), (&["work".to_owned()][..], vec!["1", "2", "3", "4"]));
    let other = world.run(&["rerun", &array, "--failed", "--key", "r", "--memory", "3G"]).await.error();
    assert!(other.contains("another changes"), "{other}");
    let all = world.run(&["rerun", &array]).await.done();
    assert_eq!(all.lines().count(), 3, "without --failed, all that are stored");
    assert_eq!(parse(&["rerun", "sweep", "--in", "x"]).unwrap_err().exit_code(), 2);
    assert!(world.run(&["rerun", "nothing"]).await.error().contains("no stored job"));
}

#[tokio::test]
async fn the_name_of_an_array_means_the_newest_try_of_each_element() {
    let mut world = World::with_policy().await;
    world.run(&["submit", "--name", "sweep", "--array", "0-3", "--", "work"]).await.done();
    let again = async |world: &World, number: &str, value: &str| {
        world.run(&["cancel", &format!("sweep[{number}]")]).await.done();
        world.run(&["rerun", "sweep", "--failed", "--env", &format!("B={value}")]).await.done();
    };
    world.now = world.now + Span::from_s(9);
    again(&world, "2", "two").await;
    world.now = world.now + Span::from_s(9);
    again(&world, "1", "one").await;
    let seen = async |world: &World, name: &str| {
        let rows = world.run(&["rerun", name, "--json"]).await.json();
        let of = |row: &serde_json::Value| {
            (
                row["env"][model::array::INDEX_VARIABLE].as_str().map(str::to_owned),
                row["env"]["B"].as_str().map(str::to_owned),
            )
        };
        rows.as_array().unwrap().iter().map(of).collect::<Vec<_>>()
    };
    let of = |n: u32, value: Option<&str>| (Some(n.to_string()), value.map(str::to_owned));
    world.now = world.now + Span::from_s(9);
    let expected = [of(0, None), of(1, Some("one")), of(2, Some("two")), of(3, None)];
    assert_eq!(seen(&world, "sweep").await, expected);
    // Now two whole arrays wait.
    assert!(world.run(&["rerun", "sweep"]).await.error().contains("fit `sweep`"));
    world.run(&["submit", "--name", "one", "--count", "1", "--", "work"]).await.done();
    assert_eq!(seen(&world, "one[0]").await, [of(0, None)], "an array of one element is one");
}
