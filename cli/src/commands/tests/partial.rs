//! Partial outputs of a try that was lost with its node, as `fetch` gets them.

use super::stored::FakeS3;
use super::*;
use model::{EndCause, StoredOutput, Work};

/// The cause of the end of an alloc, and the outputs in its row.
type End = (EndCause, &'static [&'static str]);

fn lost() -> EndCause {
    EndCause::Lost { why: "gone".into() }
}

fn stopped(code: i32) -> EndCause {
    EndCause::Stopped { why: "the drain ends".into(), code: Some(code) }
}

/// A job with a copy for each of these ends. Each output is a file whose text is its name in `ends`.
async fn job_with(ends: &[End]) -> (World, FakeS3, String) {
    let mut world = World::with_policy().await;
    let dir = tempfile::tempdir().unwrap();
    let with_bucket = file(&dir, "p.toml", &format!("{POLICY}\n[output]\ns3 = \"s3://logs\"\n"));
    world.run(&["policy", "set", &with_bucket]).await.done();
    let s3 = FakeS3::default();
    world.cluster.outputs = s3.serve().await;
    let job = world.put_job(3).await;
    let work = Work { outputs: vec!["f".parse().unwrap()], ..job.work.clone() };
    let mut job = world.store().write(Some(&job), &Job { work, ..job.clone() }, Vec::new()).await.unwrap();
    for ((cause, kept), copy) in ends.iter().zip(0..) {
        let id = model::ids::AllocId { copy, ..fixtures::alloc_id(3) };
        let alloc = Alloc::place(id, &job, &fixtures::ready(0), at(100)).unwrap();
        let ending = Ending { kept: kept.iter().map(|text| stored(&s3, text)).collect(), ..Ending::new(cause.clone()) };
        let output_s3 = Some(format!("s3://logs/3/0-{copy}").parse().unwrap());
        let alloc = Alloc { output_s3, ..alloc.end(&ending, Span::from_s(9), at(200)) };
        world.store().write(None, &alloc, Vec::new()).await.unwrap();
        let mut next = job.with_placed(&[id]).unwrap();
        next.summary.state = model::JobState::Queued;
        job = world.store().write(Some(&job), &next, Vec::new()).await.unwrap();
    }
    (world, s3, job.summary.job_id.to_string())
}

fn stored(s3: &FakeS3, text: &str) -> StoredOutput {
    StoredOutput { path: "f".into(), content: s3.put_file(text), to: None }
}

fn leaves(s3: &FakeS3, copy: u32, text: &str) {
    let list = serde_json::to_string(&[stored(s3, text)]).unwrap();
    s3.put_object(&format!("3/0-{copy}/partial.json"), &list);
}

/// The text of the fetched file, or the error of `fetch`.
async fn fetched(world: &World, job: &str, options: &[&str]) -> Result<String, String> {
    let dir = tempfile::tempdir().unwrap();
    let to = dir.path().display().to_string();
    let line: Vec<&str> = ["fetch", job, ".", &to].iter().chain(options).copied().collect();
    let said = world.run(&line).await;
    said.result.map_err(|error| format!("{error:#}"))?;
    let text = std::fs::read_to_string(dir.path().join("f")).unwrap();
    assert_eq!(said.out.contains("had made it so far"), options.contains(&"--partial"), "{}", said.out);
    Ok(text)
}

#[tokio::test]
async fn what_the_last_lost_try_had_made_is_got_only_with_partial() {
    let (world, s3, job) = job_with(&[(lost(), &[]), (lost(), &[]), (lost(), &[])]).await;
    let refused = fetched(&world, &job, &["--partial"]).await.unwrap_err();
    assert!(refused.contains("no try of it that was lost with its node has stored outputs"), "{refused}");
    leaves(&s3, 0, "older");
    leaves(&s3, 1, "newer");
    let refused = fetched(&world, &job, &[]).await.unwrap_err();
    assert!(refused.contains("has stored no outputs") && refused.contains("--partial"), "{refused}");
    assert_eq!(fetched(&world, &job, &["--partial"]).await.as_deref(), Ok("newer"));
    s3.put_object("3/0-1/partial.json", "nonsense");
    let bad = fetched(&world, &job, &["--partial"]).await.unwrap_err();
    assert!(bad.contains("3/0-1/partial.json"), "{bad}");
}

#[tokio::test]
async fn a_later_try_that_succeeded_has_the_outputs_of_the_job() {
    let ends: [End; 2] = [(stopped(75), &[]), (EndCause::Exited { code: 0 }, &["whole"])];
    let (world, s3, job) = job_with(&ends).await;
    leaves(&s3, 0, "part");
    leaves(&s3, 1, "what it had made before");
    assert_eq!(fetched(&world, &job, &[]).await.as_deref(), Ok("whole"));
    assert_eq!(fetched(&world, &job, &["--partial"]).await.as_deref(), Ok("part"));
}

#[tokio::test]
async fn what_a_try_kept_that_was_told_to_stop_is_not_taken_for_the_outputs_of_the_job() {
    let (world, _s3, job) = job_with(&[(stopped(0), &["so far"])]).await;
    assert!(fetched(&world, &job, &[]).await.is_err());
    assert_eq!(fetched(&world, &job, &["--partial"]).await.as_deref(), Ok("so far"));
}

#[tokio::test]
async fn a_node_cannot_have_other_files_written_than_those_that_the_job_wants() {
    let (world, s3, job) = job_with(&[(lost(), &[])]).await;
    let evil = StoredOutput { path: "../evil".into(), ..stored(&s3, "evil") };
    let elsewhere = StoredOutput { to: Some("s3://logs/other".parse().unwrap()), ..stored(&s3, "other") };
    let list = serde_json::to_string(&[evil, elsewhere, stored(&s3, "wanted")]).unwrap();
    s3.put_object("3/0-0/partial.json", &list);
    let dir = tempfile::tempdir().unwrap();
    let to = dir.path().join("in");
    world.run(&["fetch", "--partial", &job, ".", &to.display().to_string()]).await.done();
    assert_eq!(std::fs::read_to_string(to.join("f")).unwrap(), "wanted");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
}
