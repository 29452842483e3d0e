//! `submit`, `jobs`, `job`, `logs`, `cancel`.

use super::*;
use model::JobSet;

#[tokio::test]
async fn submit_writes_the_jobs_it_prints_and_nothing_else() {
    let world = World::new().await;
    let line = "submit --count 3 --name train --priority 700 --vcpus 2 --memory 4G --scratch 20 --gpus 1 \
        --instance-type g6.xlarge --market spot --exclusive --nodes 1 --image busybox --cache data --cache more \
        --env A=1 --env B=x=y --timeout 2h --kill-timeout 5 --lost-after 60 --replace --reconcile keep_original \
        --retry-failed 2 --retry-lost 0 -- sh -c true";
    let (said, changed) = world.changes(&line.split_whitespace().collect::<Vec<_>>()).await;
    let out = said.done();
    let expected: Vec<String> = out.lines().map(|id| format!("jobs/{id}")).collect();
    assert_eq!((changed.len(), &changed), (3, &expected));
    let job = world.store().job(out.lines().next().unwrap().parse().unwrap()).await.unwrap().unwrap();
    let row = crate::console::show::flat(serde_json::json!(job));
    for (name, value) in [
        ("state", serde_json::json!("queued")),
        ("name", "train".into()),
        ("priority", 700.into()),
        ("vcpus", 2.into()),
        ("memory_mib", 4096.into()),
        ("scratch_gib", 20.into()),
        ("gpus", 1.into()),
        ("instance_type", "g6.xlarge".into()),
        ("market", "spot".into()),
        ("exclusive", true.into()),
        ("nodes", 1.into()),
        ("image", "busybox".into()),
        ("caches", serde_json::json!(["data", "more"])),
        (
            "env",
            serde_json::json!({"A": "1", "B": "x=y", "NODEKEEPER_ARRAY_INDEX": "0", "NODEKEEPER_ARRAY_COUNT": "3"}),
        ),
        ("command", serde_json::json!(["sh", "-c", "true"])),
        ("timeout_s", 7200.into()),
        ("kill_timeout_s", 5.into()),
        ("lost_after_s", 60.into()),
        ("replace", true.into()),
        ("reconcile", "keep_original".into()),
        ("retry_failed", 2.into()),
        ("retry_lost", 0.into()),
        ("submitted_at", 1_800_001_000_000_i64.into()),
    ] {
        assert_eq!(row[name], value, "{name}");
    }
}

#[tokio::test]
async fn the_jobs_of_an_array_have_their_numbers_and_its_limit() {
    let world = World::new().await;
    let out = world.run(&["submit", "--array", "7,3-5%2", "--env", "A=1", "--", "true"]).await.done();
    let mut indexes = Vec::new();
    for id in out.lines() {
        let job = world.store().job(id.parse().unwrap()).await.unwrap().unwrap();
        assert_eq!(job.summary.array_limit, std::num::NonZeroU32::new(2));
        assert_eq!((job.env["A"].as_str(), job.env["NODEKEEPER_ARRAY_COUNT"].as_str()), ("1", "4"));
        assert_eq!(
            id,
            model::array::Array::of(job.summary.job_id)
                .job(job.env["NODEKEEPER_ARRAY_INDEX"].parse().unwrap())
                .to_string()
        );
        indexes.push(job.env["NODEKEEPER_ARRAY_INDEX"].clone());
    }
    assert_eq!(indexes, ["3", "4", "5", "7"]);
    // The index of the queue has what the plan needs.
    assert!(world.store().queue_listed(usize::MAX).await.unwrap().jobs.iter().all(|job| job.array_limit.is_some()));
    let one = out.lines().next().unwrap();
    assert!(world.run(&["job", one]).await.done().contains("2 of its array placed at the same time"));
}

#[tokio::test]
async fn a_submission_without_options_uses_the_documented_defaults() {
    let world = World::new().await;
    let out = world.run(&["submit", "--", "true"]).await.done();
    let job = world.store().job(out.trim().parse().unwrap()).await.unwrap().unwrap();
    let spec = model::JobSpec::running(["true"]);
    let mut expected = Job::submit(job.summary.job_id, spec, world.now).unwrap();
    (expected.summary.version, expected.summary.by) = (job.summary.version, Some("ann".to_owned()));
    assert_eq!(job, expected);
}

#[tokio::test]
async fn a_bad_submission_is_wrong_usage_and_writes_nothing() {
    let world = World::new().await;
    let (said, changed) = world.changes(&["submit", "--nodes", "257", "--priority", "1001", "--", "true"]).await;
    let error = said.result.unwrap_err();
    assert!(
        error.is::<UsageError>() && error.to_string().contains("--nodes") && error.to_string().contains("--priority")
    );
    assert_eq!(changed, Vec::<String>::new());
    for line in [
        &["submit"][..],
        &["submit", "true"],
        &["submit", "--memory", "4X", "--", "true"],
        &["submit", "--count", "0", "--", "true"],
        &["submit", "--market", "cheap", "--", "true"],
        &["submit", "--env", "=A", "--", "true"],
        &["hold"],
        &["node"],
        &["job"],
        &["submit", "--array", "3-1", "--", "true"],
        &["submit", "--array", "0-3", "--count", "4", "--", "true"],
        &["release", "all"],
    ] {
        assert_eq!(parse(line).unwrap_err().exit_code(), 2, "{line:?}");
    }
}

#[tokio::test]
async fn submit_wait_ends_when_every_job_has_ended_and_says_how() {
    let world = World::new().await;
    let ends = |how: Vec<Ending>| {
        let store = world.store().clone();
        tokio::spawn(async move {
            let mut jobs = Vec::new();
            while jobs.len() < how.len() {
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
                jobs = store.jobs().await.unwrap();
                jobs.retain(|j| !j.summary.state.is_ended());
            }
            for (job, how) in jobs.iter().zip(how) {
                let alloc = model::ids::AllocId { job_id: job.summary.job_id, member: 0, copy: 0 };
                let placed = job.with_placed(&[alloc]).unwrap();
                let alloc = Alloc::place(alloc, job, &fixtures::ready(0), at(1)).unwrap();
                let after = placed.after_end(&alloc.summary, &how, &[], JobSet::Leaves, Span::from_s(9).into(), at(2));
                store.write(Some(job), &after, Vec::new()).await.unwrap();
            }
        })
    };
    let task = ends(vec![Ending::exited(0), Ending::exited(1)]);
    let (out, err) = world.run(&["submit", "--count", "2", "--wait", "--", "true"]).await.failed();
    task.await.unwrap();
    assert_eq!(out.lines().count(), 4, "{out}");
    assert!(err.starts_with("of 2 jobs: 2 waiting\n"), "{err}");
    assert_eq!(out.lines().filter(|l| l.ends_with(" complete")).count(), 1, "{out}");
    assert_eq!(out.lines().filter(|l| l.contains(" failed: exit code 1; no retry is allowed")).count(), 1, "{out}");
    let task = ends(vec![Ending::exited(0)]);
    let jobs = world.run(&["submit", "--wait", "--json", "--", "true"]).await;
    task.await.unwrap();
    assert_eq!(jobs.result.as_ref().unwrap(), &Exit::Done);
    assert_eq!(jobs.json()[0]["state"], "complete");
}

#[tokio::test]
async fn jobs_are_listed_as_a_table_and_as_json() {
    let world = World::with_policy().await;
    assert_eq!(world.run(&["jobs"]).await.done(), "no jobs are queued or placed (--all shows those that have ended)\n");
    world.put_job(1).await;
    let ended = world.put_job(2).await;
    let cancelled = ended.cancel("ann", Span::from_s(9), at(940)).unwrap();
    world.store().write(Some(&ended), &cancelled, Vec::new()).await.unwrap();
    let line = |n, state: &str| format!("{}        {state}", &id(n)[18..]);
    let out = world.run(&["jobs"]).await.done();
    assert_eq!(
        out.lines().collect::<Vec<_>>(),
        [
            "JOB       NAME  STATE   PRIORITY  NEEDS   ALLOCS  SUBMITTED   REASON".to_owned(),
            format!("{}  500       1 vCPU  0       16 min ago  this run launches for it: slot 0", line(1, "queued")),
        ]
    );
    let out = world.run(&["jobs", "--all"]).await.done();
    assert_eq!(out.lines().count(), 3);
    assert!(out.lines().nth(1).unwrap().ends_with("16 min ago  1 min ago  cancelled by ann"), "{out}");
    assert_eq!(world.run(&["jobs", "--json"]).await.json().as_array().unwrap().len(), 1);
    world.put_job(3).await;
    let some = world.run(&["jobs", "--limit", "1", "--json"]).await;
    let told = some.err.clone();
    let listed: Vec<String> =
        some.json().as_array().unwrap().iter().map(|j| j["job_id"].as_str().unwrap().into()).collect();
    assert_eq!(listed, [id(3)]);
    assert_eq!(told, "the newest 1 are shown, and there are more: --limit N shows N of them\n");
    let head = world.run(&["jobs", "--queue", "--limit", "1", "--json"]).await;
    let told = head.err.clone();
    assert_eq!(head.json()[0]["job_id"], id(1));
    assert_eq!(told, "the first 1 are shown, and there are more: --limit N shows N of them\n");
    assert_eq!(world.run(&["jobs", "--limit", "2"]).await.done().lines().count(), 3);
    assert_eq!(world.run(&["jobs", "--all", "--json"]).await.json()[1]["state"], "cancelled");
}

#[tokio::test]
async fn a_job_says_why_it_waits() {
    let mut world = World::with_policy().await;
    world.put_job(1).await;
    let out = world.run(&["job", &id(1)]).await.done();
    let why = out.lines().find(|l| l.starts_with("waits because")).unwrap();
    assert!(why.ends_with("this run launches for it: slot 0"), "{out}");
    world.put_node(&fixtures::ready(0)).await;
    world.now = at(100);
    let row = world.run(&["job", &id(1), "--json"]).await.json();
    assert_eq!(row["state"], "queued");
    assert_eq!(row["waits_because"], "next run: place: it fits on slot 0");
    let wait = LaunchWait { until_at: Some(at(160)), ..LaunchWait::default() };
    let quota = EntryRow::<LaunchWait>::new(&"limit#quota#account".parse().unwrap()).with(wait);
    world.put_entry(quota).await;
    let seen = Observation::read(world.store(), &Listed::default(), at(100)).await.unwrap();
    let without = Observation { nodes: Vec::new(), ..seen };
    let next = NextRun::of(without, at(100));
    let why = next.of_job(fixtures::job_id(1)).unwrap();
    assert_eq!(why, "launching pauses for 1 min: a limit of the account is reached");
}

#[tokio::test]
async fn a_job_shows_its_allocs_and_their_ends() {
    let world = World::with_policy().await;
    let (job, alloc) = world.put_running(1).await;
    let ending =
        Ending { run: RunReport { log_tail: Some("one\ntwo".into()), ..RunReport::default() }, ..Ending::exited(3) };
    let end = alloc.end(&ending, Span::from_s(9), at(970));
    world.store().write(Some(&alloc), &end, Vec::new()).await.unwrap();
    let out = world.run(&["job", &id(1)]).await.done();
    assert!(
        out.contains("command      true\n")
            && out.contains("failed       0 times\n")
            && out.contains("retries      failed=fail: used 0 times\n"),
        "{out}"
    );
    let row = out.lines().find(|l| l.starts_with(&alloc.id().to_string()[18..])).unwrap();
    assert!(
        row.contains("failed") && row.contains("15 min ago") && row.ends_with("30 s ago  3     exit code 3"),
        "{out}"
    );
    let mut story = out.lines().rev();
    assert!(story.next().is_some_and(|last| last.contains("  end_alloc  alloc#")), "{out}");
    assert!(story.next().is_some_and(|line| line.contains("  place ") && line.contains("  on slot 0 (")), "{out}");
    let head = format!("== {} on slot 0 (failed, 30 s ago)\n== exit code 3\n", alloc.id());
    for id in [id(1), alloc.id().to_string()] {
        let said = world.run(&["logs", &id]).await;
        assert_eq!(
            (said.out.as_str(), said.err.as_str()),
            ("one\ntwo", head.as_str()),
            "the output as it is, and alone"
        );
    }
    assert!(world.run(&["logs", "x"]).await.error().contains("no stored job has the id or the name `x`"));
    assert!(world.run(&["job", &id(9)]).await.error().contains("nodekeeper jobs --all"));
    let alloc = &world.run(&["job", &id(1), "--json"]).await.json()["all_allocs"][0];
    assert_eq!((&alloc["client"], &alloc["log_tail"]), (&"failed".into(), &"one\ntwo".into()));
    assert_eq!((&alloc["exit_code"], &alloc["message"]), (&3.into(), &"exit code 3".into()));
    assert_eq!(job.summary.state, JobState::Placed);
}

#[tokio::test]
async fn job_output_cannot_control_the_terminal_and_is_unchanged_in_a_pipe() {
    let mut world = World::with_policy().await;
    let (job, alloc) = world.put_running(1).await;
    let printed = "\u{1b}[2J\u{1b}]0;title\u{7}plain\ttab\r\n\u{9b}31m";
    let ending = Ending {
        run: RunReport { log_tail: Some(printed.to_owned()), ..RunReport::default() },
        ..Ending::lost("gone")
    };
    let end = alloc.end(&ending, Span::from_s(9), at(970));
    world.store().write(Some(&alloc), &end, Vec::new()).await.unwrap();
    let id = job.summary.job_id.to_string();
    let piped = world.run(&["logs", &id]).await.out;
    assert_eq!(piped, printed);
    world.screen = Screen::Terminal;
    let shown = world.run(&["logs", &id]).await.out;
    assert!(shown.contains("\\x1b[2J\\x1b]0;title\\x07plain\ttab\\x0d\n\\x9b31m"), "{shown:?}");
    assert!(!shown.chars().any(|c| c.is_control() && c != '\n' && c != '\t'), "{shown:?}");
}

#[tokio::test]
async fn cancel_changes_the_job_and_nothing_else() {
    let world = World::with_policy().await;
    world.put_running(1).await;
    world.put_job(2).await;
    let (said, changed) = world.changes(&["cancel", &id(1)]).await;
    assert_eq!(said.done(), format!("{} cancelled: 1 live alloc will stop in the next run\n", id(1)));
    assert_eq!(changed, [format!("events/job#{}/cancel", id(1)), format!("jobs/{}", id(1))]);
    let job = world.store().job(fixtures::job_id(1)).await.unwrap().unwrap();
    assert_eq!((job.summary.state, job.summary.allocs.len(), job.expires_at), (JobState::Cancelled, 1, None));
    let event = &world.store().history(&format!("job#{}", id(1)), 9).await.unwrap()[0];
    assert_eq!((event.action.as_str(), event.reason.as_str(), event.at()), ("cancel", "by ann", world.now));
    assert_eq!(event.expires_at, (world.now + Span::from_s(14 * 86_400)).as_epoch_s());
    // A job that does not exist does not stop the others.
    let (said, changed) = world.changes(&["cancel", &id(9), &id(1), &id(2)]).await;
    let (out, err) = said.failed();
    assert_eq!(out, format!("{} was cancelled already\n{} cancelled\n", id(1), id(2)));
    assert!(err.starts_with(&format!("nodekeeper: there is no job {}", id(9))) && err.lines().count() == 1, "{err}");
    assert_eq!(changed, [format!("events/job#{}/cancel", id(2)), format!("jobs/{}", id(2))]);
}

#[tokio::test]
async fn a_lost_race_is_tried_again_a_few_times() {
    let mut world = World::with_policy().await;
    let mut job = world.put_job(1).await;
    let mut theirs = Vec::new();
    for n in 0..3 {
        let renamed = Job { reason: Some(format!("touched {n}")), ..job.clone() };
        let (write, after) = change(Some(&job), &renamed);
        theirs.push(write);
        job = after;
    }
    let db = world.cluster.dynamo.clone();
    world.cluster.store = Watched::rival(db.clone(), theirs);
    world.run(&["cancel", &id(1)]).await.done();
    assert_eq!(world.store().job(fixtures::job_id(1)).await.unwrap().unwrap().summary.state, JobState::Cancelled);

    let mut node = world.put_node(&fixtures::ready(0)).await;
    let mut theirs = Vec::new();
    for _ in 0..4 {
        let (write, after) = change(Some(&node), &node.bump_seq(at(999)).unwrap());
        theirs.push(write);
        node = after;
    }
    world.cluster.store = Watched::rival(db, theirs);
    let (out, err) = world.run(&["hold", "0"]).await.failed();
    assert!(out.is_empty() && err.contains("someone else changed it 3 times meanwhile"), "{err}");
    assert_eq!(world.store().node(fixtures::slot(0)).await.unwrap().unwrap(), node);
}

#[tokio::test]
async fn commands_about_a_job_go_on_beside_an_alloc_that_cannot_be_read() {
    use aws_sdk_dynamodb::types::AttributeValue::{N, S};
    let world = World::with_policy().await;
    let (job, alloc) = world.put_running(1).await;
    let row = [("alloc_id", S(alloc.id().to_string())), ("version", N("many".into()))];
    world.put_raw(store::alloc_key(alloc.id()), &row[..1]).await;
    let id = job.summary.job_id.to_string();
    for line in [&["job", &id][..], &["logs", &id], &["node", "0"]] {
        let said = world.run(line).await;
        assert_eq!(said.result.unwrap(), Exit::Done, "{line:?}");
        assert!(said.err.contains("not shown") && said.err.contains(&alloc.id().to_string()), "{line:?}: {}", said.err);
    }
    assert!(world.run(&["history", &id]).await.result.is_ok());
}

/// The market of the policy × its fallback × the rule: a rule that can never be followed is refused on each way in, and `plan --if`
/// says that a job would be rejected if the policy has changed since.
#[tokio::test]
async fn a_retry_rule_that_can_never_be_followed_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let policy = |market: &str, fallback: &str| {
        file(&dir, "p.toml", &format!("{POLICY}market = \"{market}\"\nfallback = \"{fallback}\"\n"))
    };
    for (market, fallback, rule, is_possible) in [
        ("spot", "on_demand", "lost=again*5,on-demand", true),
        ("on_demand", "none", "lost=again*5,on-demand", true),
        ("spot", "none", "lost=again*5,on-demand", false),
        ("spot", "none", "lost=again*5", true),
        ("spot", "on_demand", "lost=again*5,memory*4", false),
    ] {
        let (world, what) = (World::new().await, format!("{market} {fallback} {rule}"));
        let line = ["submit", "--memory", "4G", "--retry", rule, "--", "true"];
        let of_file = file(
            &dir,
            "jobs.jsonl",
            &format!("{{\"command\": [\"true\"], \"memory_mib\": 4096, \"retry\": [\"{rule}\"]}}\n"),
        );
        world.run(&["policy", "set", &policy(market, fallback)]).await.done();
        for line in [&line[..], &["submit", "--file", &of_file]] {
            let (said, changed) = world.changes(line).await;
            assert_eq!(changed.iter().any(|row| row.starts_with("jobs/")), is_possible, "{what}: {changed:?}");
            if !is_possible {
                let error = said.error();
                assert!(error.contains("can never be followed: no size fits: it needs 1 vCPU"), "{what}: {error}");
            }
        }
    }
}

#[tokio::test]
async fn what_no_size_of_the_policy_has_is_refused_with_the_most_that_there_is() {
    let (world, dir) = (World::with_policy().await, tempfile::tempdir().unwrap());
    for (options, says) in [
        (&["--vcpus", "3"][..], "--vcpus 3: the largest size of the policy has 2 for jobs: `nodekeeper sizes`"),
        (&["--memory", "1T"], "--memory 1024 GiB: the largest size of the policy has 7782 MiB for jobs"),
        (&["--scratch", "1G"], "--scratch 1 GiB: the largest size of the policy has 0 GiB for jobs"),
        (&["--gpus", "1"], "--gpus 1: the largest size of the policy has 0 for jobs"),
        (&["--arch", "arm64"], "--arch: no size of the policy has arm64"),
        (&["--instance-type", "m9.huge"], "--instance-type: no size of the policy has m9.huge"),
        (&["--market", "spot"], "--market: no size of the policy has spot"),
        (&["--require", "nvme"], "--require: no size of the policy has label nvme"),
        (&["--nodes", "99"], "it needs 99 nodes at once and nodes.max is"),
    ] {
        let line: Vec<&str> = ["submit"].into_iter().chain(options.iter().copied()).chain(["--", "true"]).collect();
        let (said, changed) = world.changes(&line).await;
        let error = said.result.unwrap_err();
        assert!(error.is::<UsageError>() && error.to_string().contains(says) && changed.is_empty(), "{error}");
    }
    let path = file(&dir, "jobs.jsonl", "{\"command\": \"true\"}\n{\"command\": \"true\", \"vcpus\": 3}\n");
    let (said, changed) = world.changes(&["submit", "--file", &path]).await;
    let error = said.error();
    assert!(error.contains("line 2: vcpus 3: the largest size of the policy has 2") && changed.is_empty(), "{error}");
    // Nothing is known without a policy, so the job waits for one.
    let (_, changed) = World::new().await.changes(&["submit", "--vcpus", "3", "--", "true"]).await;
    assert!(changed.iter().any(|row| row.starts_with("jobs/")), "{changed:?}");
}

/// What was submitted with a key is the same job under any policy.
#[tokio::test]
async fn a_key_is_the_same_job_although_no_size_offers_it_any_more() {
    let (world, dir) = (World::with_policy().await, tempfile::tempdir().unwrap());
    let of_file = file(&dir, "jobs.jsonl", "{\"key\": \"line\", \"command\": \"one\", \"vcpus\": 2}\n");
    let lines: [&[&str]; 2] =
        [&["submit", "--key", "k", "--vcpus", "2", "--", "true"], &["submit", "--file", &of_file]];
    let mut first = Vec::new();
    for line in lines {
        first.push(world.run(line).await.done());
    }
    let small = file(&dir, "p.toml", &POLICY.replace("vcpus = 2", "vcpus = 1"));
    world.run(&["policy", "set", "--yes", &small]).await.done();
    for (line, first) in lines.iter().zip(first) {
        let again = world.run(line).await;
        assert_eq!((again.result.unwrap(), again.out), (Exit::Done, first), "{line:?}");
    }
    assert!(world.run(&["submit", "--vcpus", "2", "--", "true"]).await.error().contains("--vcpus 2"));
}

/// The limit is one of lines.
#[tokio::test]
async fn a_large_array_hides_no_other_job_and_is_counted_whole() {
    let mut world = World::with_policy().await;
    world.run(&["submit", "--name", "old", "--", "true"]).await.done();
    world.now = world.now + Span::from_s(9);
    world.run(&["submit", "--name", "wide", "--array", "0-39", "--", "true"]).await.done();
    for more in [&[][..], &["--all"], &["--queue"]] {
        let line = [&["jobs", "--limit", "2"], more].concat();
        let said = world.run(&line).await;
        assert!(said.out.contains(" 40 queued ") && said.out.contains(" old "), "{line:?}: {}", said.out);
        assert_eq!((said.out.lines().count(), said.err.as_str()), (3, ""), "{line:?}: {}", said.out);
    }
    let said = world.run(&["jobs", "--limit", "1"]).await;
    assert!(said.out.contains(" 40 queued ") && !said.out.contains(" old "), "{}", said.out);
    assert_eq!(said.err, "the newest 1 are shown, and there are more: --limit N shows N of them\n");
    assert_eq!(world.run(&["jobs", "--limit", "5", "--json"]).await.json().as_array().unwrap().len(), 5);
    world.run(&["cancel", "wide", "--yes"]).await.done();
    let said = world.run(&["jobs", "--state", "cancelled", "--limit", "1"]).await;
    assert!(said.out.contains(" 40 cancelled "), "{}", said.out);
}

#[tokio::test]
async fn an_array_is_one_line_of_a_list_and_one_thing_to_look_at() {
    let world = World::with_policy().await;
    world.run(&["submit", "--name", "alone", "--", "true"]).await.done();
    world.run(&["submit", "--name", "sweep", "--array", "0-4", "--", "work"]).await.done();
    let list = world.run(&["jobs"]).await.done();
    let line = list.lines().find(|line| line.contains("sweep")).unwrap();
    assert!(list.lines().count() >= 3 && list.matches("sweep").count() == 1 && line.contains("5 queued"), "{list}");
    let id = line.split_whitespace().next().unwrap();
    assert!(id.ends_with("[*]"), "{line}");
    let rows = world.run(&["jobs", "--json", "--name", "sweep"]).await.json();
    let of = |field: &str| rows.as_array().unwrap().iter().map(|row| row[field].as_u64().unwrap()).collect::<Vec<_>>();
    assert_eq!((of("array_index"), of("array_count")), (vec![4, 3, 2, 1, 0], vec![5; 5]));
    world.run(&["cancel", "sweep[1-2]"]).await.done();
    for name in ["sweep[*]", id] {
        let shown = world.run(&["job", name]).await.done();
        assert!(shown.contains("3 queued, 2 cancelled") && shown.contains("1-2"), "{shown}");
    }
    let shape = world.run(&["job", "sweep", "--json"]).await.json();
    assert_eq!((&shape["array_count"], &shape["states"]["queued"]), (&5.into(), &3.into()));
    assert_eq!(shape["alike"][0]["elements"], "1-2");
    world.run(&["pause", "sweep[4]"]).await.done();
    let shown = world.run(&["job", "sweep"]).await.done();
    assert!(shown.contains("\n4         queued     it is paused: "), "{shown}");
    let one = world.run(&["job", "sweep[3]", "--json"]).await.json();
    assert_eq!(one["env"]["NODEKEEPER_ARRAY_INDEX"], "3");
    world.run(&["submit", "--name", "packs", "--count", "6", "--pack", "3", "--", "work"]).await.done();
    let list = world.run(&["jobs", "--name", "packs"]).await.done();
    assert!(list.contains("6 queued"), "{list}");
    assert!(world.run(&["job", "packs[9]"]).await.error().contains("no stored job with the number 9"));
    let pack = world.run(&["job", "packs[4]"]).await.done();
    let lines: Vec<&str> = pack.lines().collect();
    assert!(lines.ends_with(&["ELEMENTS  STATE   CAUSE", "4         queued"]), "element 4 alone: {pack}");
    assert_eq!(world.run(&["job", "packs[4]", "--json"]).await.json()["pack"]["elements"], "3-5");
}
