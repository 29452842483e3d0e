//! What `fetch` gets: outputs, checkpoints, and arrays. An array by its name is whole, or one of its
//! jobs by its number, and never one in silence.

use super::output_store::FakeS3;
use super::*;
use model::array::{COUNT_VARIABLE, INDEX_VARIABLE};
use model::{AfterEnd, AllocId, Checkpoint, EndCause, JobSet, JobSpec, Needs, StoredOutput, Work};

/// The cause of the end of an alloc, the outputs in its row, and its checkpoint.
type End = (EndCause, &'static [&'static str], Option<&'static str>);

fn lost() -> EndCause {
    EndCause::Lost { why: "gone".into() }
}

fn stopped(code: i32) -> EndCause {
    EndCause::Stopped { why: "the drain ends".into(), code: Some(code) }
}

/// A job with a copy for each of these ends. Each output is the file `f`, and each checkpoint the file `c`, whose text is in `ends`.
/// `running` is the checkpoint of one more copy that has not ended.
async fn job_with(ends: &[End], running: Option<&str>) -> (World, String) {
    let mut world = World::with_policy().await;
    let dir = tempfile::tempdir().unwrap();
    let with_bucket = file(&dir, "p.toml", &format!("{POLICY}\n[output]\ns3 = \"s3://logs\"\n"));
    world.run(&["policy", "set", &with_bucket]).await.done();
    let s3 = FakeS3::default();
    world.cluster.outputs = s3.serve().await;
    let job = world.put_job(3).await;
    let work = Work { outputs: vec!["f".parse().unwrap()], keep: Some("c".into()), ..job.work.clone() };
    let mut job = world.store().write(Some(&job), &Job { work, ..job.clone() }, Vec::new()).await.unwrap();
    let times = Span::from_s(99).into();
    let all = ends.iter().map(Some).chain(running.map(|_| None));
    for (end, copy) in all.zip(0..) {
        let id = AllocId { copy, ..fixtures::alloc_id(3) };
        let placed = job.with_placed(&[id]).unwrap_or_else(|| job.clone());
        let alloc = Alloc::place(id, &placed, &fixtures::ready(0), at(100)).unwrap();
        let stored = |text: &&str| StoredOutput { path: "f".into(), content: s3.put_file(text), to: None };
        let Some((cause, kept, checkpoint)) = end else {
            let run = RunReport { checkpoint: running.map(|text| left(&s3, id, text)), ..RunReport::default() };
            world.store().write(None, &Alloc { run, ..alloc }, Vec::new()).await.unwrap();
            job = world.store().write(Some(&job), &placed, Vec::new()).await.unwrap();
            continue;
        };
        let run = RunReport {
            kept: kept.iter().map(stored).collect(),
            checkpoint: checkpoint.map(|text| left(&s3, id, text)),
            ..RunReport::default()
        };
        let ending = Ending { run, ..Ending::new(cause.clone()) };
        let next = placed.after_end(&alloc.summary, &ending, &[], JobSet::Leaves, times, at(200));
        let ended = alloc.end(&ending, Span::from_s(9), at(200));
        world.store().write(None, &ended, Vec::new()).await.unwrap();
        job = world.store().write(Some(&job), &next, Vec::new()).await.unwrap();
    }
    (world, job.summary.job_id.to_string())
}

/// Stores a checkpoint of this alloc.
fn left(s3: &FakeS3, alloc_id: AllocId, text: &str) -> Checkpoint {
    let known = Checkpoint { alloc_id, place: 1, content: s3.put_file(text) };
    s3.put_object(&format!("test/files/{}/0-{}-1", alloc_id.job_id, alloc_id.copy), text);
    known
}

/// The texts of the fetched files and the exit code, or the error of `fetch`.
async fn fetched(world: &World, job: &str, path: &str) -> Result<(String, String, Exit), String> {
    let dir = tempfile::tempdir().unwrap();
    let to = dir.path().display().to_string();
    let exit = world.run(&["fetch", job, path, &to]).await.result.map_err(|error| format!("{error:#}"))?;
    let text = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap_or_default();
    Ok((text("f"), text("c"), exit))
}

#[tokio::test]
async fn what_a_job_left_that_has_not_completed_is_its_newest_checkpoint() {
    let got = |f: &str, c: &str, exit| Ok((f.to_owned(), c.to_owned(), exit));
    let (world, job) = job_with(&[(lost(), &[], None)], None).await;
    let refused = fetched(&world, &job, ".").await.unwrap_err();
    assert!(refused.contains("has stored no outputs"), "{refused}");
    let ends: [End; 3] = [(lost(), &[], Some("older")), (lost(), &[], Some("newer")), (lost(), &[], None)];
    let (world, job) = job_with(&ends, None).await;
    assert_eq!(fetched(&world, &job, ".").await, got("", "newer", Exit::Failed));
    assert_eq!(fetched(&world, &job, "c").await, got("", "newer", Exit::Done));
    let (world, job) = job_with(&ends, Some("now")).await;
    assert_eq!(fetched(&world, &job, "c").await, got("", "now", Exit::Done));
    let complete: [End; 2] = [(lost(), &[], Some("older")), (EndCause::Exited { code: 0 }, &["whole"], Some("last"))];
    let (world, job) = job_with(&complete, None).await;
    assert_eq!(fetched(&world, &job, ".").await, got("whole", "", Exit::Done));
    assert_eq!(fetched(&world, &job, "c").await, got("", "last", Exit::Done));
}

#[tokio::test]
async fn what_a_try_kept_that_was_told_to_stop_is_not_taken_for_the_outputs_of_the_job() {
    let (world, job) = job_with(&[(stopped(0), &["so far"], None)], None).await;
    assert!(fetched(&world, &job, ".").await.is_err());
}

const TEXT: fn(u32, u32) -> String = |n, member| format!("of {n}, member {member}\n");

/// A cluster with a bucket, and the array `arr` of these jobs. Each has so many members and keeps `r`; it ended with this exit code,
/// or has not ended.
async fn array_of(members: u32, ends: &[Option<i32>]) -> (World, FakeS3, Vec<JobId>) {
    let mut world = World::with_policy().await;
    let dir = tempfile::tempdir().unwrap();
    let with_bucket = file(&dir, "p.toml", &format!("{POLICY}\n[output]\ns3 = \"s3://logs\"\n"));
    world.run(&["policy", "set", &with_bucket]).await.done();
    let s3 = FakeS3::default();
    world.cluster.outputs = s3.serve().await;
    let array = model::array::Array::new(at(0), 0x0123_4567_89ab_cdef);
    let mut ids = Vec::new();
    for (n, end) in (0_u32..).zip(ends) {
        let id = array.job(n);
        let env = [(INDEX_VARIABLE, n.to_string()), (COUNT_VARIABLE, ends.len().to_string())];
        let work = Work { outputs: vec!["r".parse().unwrap()], ..JobSpec::running(["true"]).work };
        let needs = Needs { nodes: members, ..Needs::default() };
        let env = env.map(|(name, value)| (name.to_owned(), value)).into();
        let array_count = u32::try_from(ends.len()).ok().filter(|count| *count > 1);
        let spec = JobSpec { name: Some("arr".into()), work, needs, env, array_count, ..JobSpec::default() };
        let mut job = world.store().write(None, &Job::submit(id, spec, at(0)).unwrap(), Vec::new()).await.unwrap();
        let allocs: Vec<_> = (0..members).map(|member| AllocId { job_id: id, member, copy: member }).collect();
        if let Some(code) = end {
            let mut ended = job.with_placed(&allocs).unwrap();
            for alloc in &allocs {
                let placed = Alloc::place(*alloc, &job, &fixtures::ready(0), at(100)).unwrap();
                let content = s3.put_file(&TEXT(n, alloc.member));
                let kept =
                    if *code == 0 { vec![StoredOutput { path: "r".into(), content, to: None }] } else { Vec::new() };
                let ending = Ending {
                    run: RunReport { kept, ..RunReport::default() },
                    ..Ending::new(EndCause::Exited { code: *code })
                };
                let alloc = placed.end(&ending, Span::from_s(9), at(200));
                world.store().write(None, &alloc, Vec::new()).await.unwrap();
            }
            ended.summary.state = if *code == 0 { JobState::Complete } else { JobState::Failed };
            ended.summary.allocs.clear();
            ended.finished_at = Some(at(200));
            job = world.store().write(Some(&job), &ended, Vec::new()).await.unwrap();
        }
        ids.push(job.summary.job_id);
    }
    (world, s3, ids)
}

#[tokio::test]
async fn what_many_requests_to_fetch_need_is_read_together() {
    let (mut world, _, ids) = array_of(1, &[Some(0); 40]).await;
    let reads;
    (world.cluster.store, reads) = Watched::counting(world.cluster.dynamo.clone());
    let dir = tempfile::tempdir().unwrap();
    let to = |id: &JobId| dir.path().join(id.to_string());
    let request = |id| serde_json::json!({"id": id, "fetch": {"job": id, "dir": to(id)}}).to_string();
    let mut requests: Vec<String> = ids.iter().map(request).collect();
    requests.push(r#"{"id": "none", "fetch": {"job": "01KB3ZJ7PRD8Q5B1V1QS3R3M4Z", "dir": "none"}}"#.to_owned());
    let answers = super::bulk::answers(&world, &requests.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let (done, failed): (Vec<_>, Vec<_>) = answers.iter().partition(|answer| answer["done"] == true);
    assert_eq!(done.len(), ids.len());
    assert_eq!(failed[0]["error"]["message"], "job 01KB3ZJ7PRD8Q5B1V1QS3R3M4Z is not stored");
    for (n, id) in (0..).zip(&ids) {
        assert_eq!(std::fs::read_to_string(to(id).join("r")).unwrap(), TEXT(n, 0));
    }
    assert_eq!(reads.load(Ordering::Relaxed), 3, "the jobs, their allocs and the policy");
}

/// The files below a folder, with their texts.
fn files_of(dir: &std::path::Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut folders = vec![dir.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let name = path.strip_prefix(dir).unwrap().display().to_string();
                found.insert(name, std::fs::read_to_string(path).unwrap());
            }
        }
    }
    found
}

async fn all_of(world: &World, job: &str) -> (Said, BTreeMap<String, String>) {
    let dir = tempfile::tempdir().unwrap();
    let said = world.run(&["fetch", job, ".", dir.path().to_str().unwrap()]).await;
    (said, files_of(dir.path()))
}

#[tokio::test]
async fn an_array_is_fetched_whole_each_job_into_a_folder_of_its_own() {
    let (world, _s3, ids) = array_of(1, &[Some(0); 3]).await;
    let (said, files) = all_of(&world, "arr").await;
    assert_eq!(said.done().lines().count(), 3);
    let all = [0, 1, 2].map(|n| (format!("{n}/r"), TEXT(n, 0)));
    assert_eq!(files, all.into());
    for one in ["arr[1]", &format!("{}[1]", ids[0]), &ids[1].to_string()] {
        let (said, files) = all_of(&world, one).await;
        said.done();
        assert_eq!(files, [("r".to_owned(), TEXT(1, 0))].into(), "{one}");
    }
    let (said, files) = all_of(&world, "arr[3]").await;
    assert_eq!((said.error().as_str(), files.len()), ("`arr` has no stored job with the number 3", 0));
}

#[tokio::test]
async fn of_an_array_what_is_there_is_fetched_and_the_rest_is_named() {
    let (world, _s3, ids) = array_of(1, &[Some(0), Some(1), None, Some(0)]).await;
    let (said, files) = all_of(&world, "arr").await;
    assert_eq!(files.keys().collect::<Vec<_>>(), ["0/r", "3/r"]);
    let (_, err) = said.failed();
    for says in ["job arr[1] is failed and has stored no outputs", "job arr[2] is queued and has stored no outputs"] {
        assert!(err.contains(says), "{err}");
    }
    // The row of a job that ended long ago is deleted.
    let gone = world.store().job(ids[3]).await.unwrap().unwrap();
    world.store().apply(&store::delete(&gone)).await.unwrap();
    let (said, files) = all_of(&world, "arr").await;
    assert_eq!(files.keys().collect::<Vec<_>>(), ["0/r"]);
    assert!(said.failed().1.contains("1 of the 4 jobs of arr are not stored any more"));
}

#[tokio::test]
async fn an_array_is_an_input_whole_and_so_are_the_members_of_a_job() {
    let inputs = async |world: &World, option: &str| {
        let said = world.run(&["submit", "--in", option, "--json", "--", "true"]).await;
        match said.result {
            Ok(_) => Ok(serde_json::from_str::<serde_json::Value>(&said.out).unwrap()[0].clone()),
            Err(error) => Err(format!("{error:#}")),
        }
    };
    let names = |job: &serde_json::Value| job["inputs"].as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    let (world, _s3, ids) = array_of(1, &[Some(0), None]).await;
    let job = inputs(&world, "job:arr/r").await.unwrap();
    assert_eq!(names(&job), ["r/0", "r/1"]);
    assert_eq!(job["inputs"]["r/1"], format!("job:{}/0/r", ids[1]));
    let after: BTreeMap<String, AfterEnd> = serde_json::from_value(job["after"].clone()).unwrap();
    assert_eq!(after, ids.iter().map(|id| (id.to_string(), AfterEnd::Success)).collect());
    assert_eq!(names(&inputs(&world, "job:arr/r=parts").await.unwrap()), ["parts/0", "parts/1"]);
    assert_eq!(names(&inputs(&world, "job:arr/r=.").await.unwrap()), ["0", "1"]);
    assert_eq!(names(&inputs(&world, "job:arr[1]/r").await.unwrap()), ["r"]);
    assert!(inputs(&world, "job:arr/x").await.unwrap_err().contains("keeps no x: it keeps r"));
    let (world, _s3, ids) = array_of(1, &[Some(0), Some(1)]).await;
    assert!(inputs(&world, "job:arr/r").await.unwrap_err().contains("is failed, so a job that runs only if"));
    let gone = world.store().job(ids[1]).await.unwrap().unwrap();
    world.store().apply(&store::delete(&gone)).await.unwrap();
    let error = inputs(&world, "job:arr/r").await.unwrap_err();
    assert!(error.contains("1 job of the array arr: not stored any more"), "{error}");
    let (world, _s3, _) = array_of(2, &[Some(0), Some(0)]).await;
    assert_eq!(names(&inputs(&world, "job:arr[0]/r").await.unwrap()), ["r/member-0", "r/member-1"]);
    assert_eq!(
        names(&inputs(&world, "job:arr/r").await.unwrap()).join(" "),
        "r/0/member-0 r/0/member-1 r/1/member-0 r/1/member-1"
    );
    let (said, files) = all_of(&world, "arr").await;
    said.done();
    assert_eq!(files["1/member-1/r"], TEXT(1, 1));
}

/// Each command that names a job, with an array whose jobs have all ended, and with one of which one is live.
#[tokio::test]
async fn no_command_takes_one_job_of_an_array_in_silence() {
    for ends in [&[Some(0), Some(0), Some(0)][..], &[Some(0), None, Some(0)]] {
        let (world, _s3, ids) = array_of(1, ends).await;
        let refused = "`arr` is an array of 3 jobs: name one of them, such as `arr[0]` (its numbers are `0-2`)";
        let cases: [&[&str]; 4] =
            [&["history", "arr"], &["exec", "arr", "--", "true"], &["logs", "arr", "--follow"], &["shell", "arr"]];
        for line in cases {
            let error = world.run(line).await.error();
            assert!(error.contains(refused), "{line:?}: {error}");
        }
        let array = world.run(&["job", "arr", "--json"]).await.json();
        assert_eq!(array["job_ids"].as_array().unwrap().len(), 3);
        let said = world.run(&["logs", "arr"]).await;
        assert_eq!(said.err.matches("== ").count(), ends.iter().flatten().count(), "{}", said.err);
        let job = world.run(&["submit", "--after-any", "arr", "--json", "--", "true"]).await.json();
        assert_eq!(job[0]["after"].as_object().unwrap().len(), 3);
        let live: Vec<_> = ids.iter().zip(ends).filter(|(_, end)| end.is_none()).map(|(id, _)| id).collect();
        let said = world.run(&["cancel", "arr"]).await;
        if live.is_empty() {
            assert!(said.failed().1.contains("arr cannot be cancelled: all its elements have ended ("));
        } else {
            assert!(said.done().starts_with("arr: 1 job cancelled; as they were: "));
        }
    }
}

#[tokio::test]
async fn a_job_whose_name_looks_like_a_number_of_an_array_is_not_taken_for_it() {
    let (world, _s3, ids) = array_of(1, &[Some(0), Some(0)]).await;
    let shown = async |text: &str| world.run(&["job", text, "--json"]).await;
    assert_eq!(shown("arr[1]").await.json()["job_id"], ids[1].to_string());
    for name in ["arr[1]", "other[1]"] {
        world.run(&["submit", "--name", name, "--", "true"]).await.done();
    }
    assert!(shown("arr[1]").await.error().contains("is the name of a job, and a part of the array `arr`: give an id"));
    assert_eq!(shown("other[1]").await.json()["name"], "other[1]");
    for bad in ["[1]", "arr[]", "arr[x]", "arr[-1]", "arr[99999999]", "no[1]"] {
        assert!(shown(bad).await.error().contains("no stored job"), "{bad}");
    }
}

#[tokio::test]
async fn no_link_that_is_here_is_followed_and_what_is_not_whole_has_no_name() {
    let (world, s3, _) = array_of(1, &[Some(0), Some(0)]).await;
    let (dir, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (to, one) = (dir.path().to_str().unwrap(), dir.path().join("1"));
    std::os::unix::fs::symlink(outside.path(), dir.path().join("0")).unwrap();
    std::fs::create_dir(&one).unwrap();
    std::os::unix::fs::symlink(outside.path().join("key"), one.join("r")).unwrap();
    let (_, err) = world.run(&["fetch", "arr", ".", to]).await.failed();
    assert!(err.contains("0 is a link, which is not followed") && err.contains("is another file: --force"), "{err}");
    let (out, err) = world.run(&["fetch", "arr", ".", to, "--force"]).await.failed();
    assert!(err.contains("0 is a link, which is not followed") && out.contains("1/r ("), "{out}{err}");
    assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 0);
    assert_eq!(std::fs::read_to_string(one.join("r")).unwrap(), TEXT(1, 0));
    let fetched = one.join("r").symlink_metadata().unwrap();
    assert!(fetched.is_file() && fetched.modified().unwrap() == std::time::SystemTime::from(at(200)));
    for (text, says) in [
        ("of 1, member 1\n", "does not have the content"),
        ("longer than it was\n", "the object has more than 15 bytes"),
    ] {
        let content = s3.put_content(&TEXT(1, 0));
        s3.put_object(&format!("test/files/{}", content.sha256()), text);
        let said = world.run(&["fetch", "arr[1]", ".", one.to_str().unwrap(), "--force"]).await;
        assert!(said.err.contains(says), "{}", said.err);
        assert_eq!(std::fs::read_to_string(one.join("r")).unwrap(), TEXT(1, 0), "the file that was here stays");
    }
    assert_eq!(std::fs::read_dir(&one).unwrap().count(), 1);
}
