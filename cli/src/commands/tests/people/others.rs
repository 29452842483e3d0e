//! What one submitter can do to the jobs of another: each command, by each way to name jobs, with and without a terminal.

use super::*;
use model::Array;

/// The answer of a person; without one, nobody can be asked.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Answer {
    NoTerminal,
    Yes,
    No,
    /// `--yes` was given.
    Given,
}

/// How the command names jobs.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Target {
    Own,
    Id,
    Name,
    Array,
    Range,
    /// One of ann's, and one of bob's.
    Both,
}

const COMMANDS: [&str; 5] = ["cancel", "pause", "continue", "change", "rerun"];
const TARGETS: [Target; 6] = [Target::Own, Target::Id, Target::Name, Target::Array, Target::Range, Target::Both];
const ANSWERS: [Answer; 4] = [Answer::NoTerminal, Answer::Yes, Answer::No, Answer::Given];

async fn put(world: &World, job_id: JobId, by: &str, name: &str, elements: Option<u32>, is_paused: bool) -> String {
    let mut job = fixtures::job(0);
    (job.summary.job_id, job.summary.by, job.summary.name) = (job_id, Some(by.into()), Some(name.into()));
    (job.summary.paused, job.summary.array_count) = (is_paused, elements);
    world.store().write(None, &job, Vec::new()).await.unwrap();
    job_id.to_string()
}

/// The jobs of an attempt, as the command names them, and how many of bob's it means.
async fn target(world: &World, n: u32, target: Target, is_paused: bool) -> (Vec<String>, usize) {
    let (first, second) = (fixtures::job_id(10 * n), fixtures::job_id(10 * n + 1));
    let name = format!("job-{n}");
    match target {
        Target::Own => (vec![put(world, first, "ann", &name, None, is_paused).await], 0),
        Target::Id => (vec![put(world, first, "bob", &name, None, is_paused).await], 1),
        Target::Name => {
            put(world, first, "bob", &name, None, is_paused).await;
            (vec![name], 1)
        }
        Target::Array | Target::Range => {
            let array = Array::of(first);
            for k in 0..3 {
                put(world, array.job(k), "bob", &name, Some(3), is_paused).await;
            }
            if target == Target::Array { (vec![name], 3) } else { (vec![format!("{name}[0-1]")], 2) }
        }
        Target::Both => {
            let own = put(world, first, "ann", &name, None, is_paused).await;
            (vec![own, put(world, second, "bob", &name, None, is_paused).await], 1)
        }
    }
}

#[tokio::test]
async fn nothing_of_somebody_else_changes_unless_a_person_agrees() {
    let world = World::with_policy().await;
    let mut attempts = 0;
    for (n, (command, of, answer)) in (0..).zip(COMMANDS.iter().flat_map(|command| {
        TARGETS.iter().flat_map(move |of| ANSWERS.iter().map(move |answer| (*command, *of, *answer)))
    })) {
        // These two take one job or array.
        if of == Target::Both && ["change", "rerun"].contains(&command) {
            continue;
        }
        let (names, others) = target(&world, n, of, command == "continue").await;
        let mut line = vec![command];
        line.extend(names.iter().map(String::as_str));
        line.extend(["--priority", "7"].iter().filter(|_| command == "change"));
        line.extend(["--yes"].iter().filter(|_| answer == Answer::Given));
        let mut here = world.clone();
        if matches!(answer, Answer::Yes | Answer::No) {
            here.in_screen = Screen::Terminal;
        }
        let before = world.rows().await;
        let said = here.run_with(&line, if answer == Answer::Yes { "y\n" } else { "\n" }).await;
        let changed: Vec<_> =
            world.rows().await.into_iter().filter(|(key, row)| before.get(key) != Some(row)).collect();
        let case = format!("{line:?} {of:?} {answer:?}: {said:?}");
        attempts += usize::from(others > 0);
        let asks = said.err.contains("all the same? [y/N]");
        assert_eq!(asks, others > 0 && matches!(answer, Answer::Yes | Answer::No), "{case}");
        if others == 0 || matches!(answer, Answer::Yes | Answer::Given) {
            assert_eq!(said.result.unwrap(), Exit::Done, "{case}");
            assert!(!changed.is_empty(), "{case}");
            for (key, row) in changed {
                // The jobs of a rerun are ann's. Every other change has an event that says who made it.
                let says_ann = if key.starts_with("events/") { &row["reason"] } else { &row["by"] };
                let is_new = command == "rerun" && says_ann == "ann";
                let is_event = says_ann.as_str().is_some_and(|why| why.starts_with("by ann"));
                assert!(is_new || is_event || key.starts_with("jobs/") && command != "rerun", "{case}: {key} {row}");
            }
            continue;
        }
        assert_eq!(changed, [], "{case}");
        let whose = format!("not yours: {others} job{} of bob", if others == 1 { "" } else { "s" });
        match answer {
            Answer::No => assert!(said.result.unwrap() == Exit::Failed && said.err.contains(&whose), "{case}"),
            _ => {
                let error = said.result.unwrap_err();
                let text = error.to_string();
                assert!(text.starts_with(&whose) && text.contains(": give --yes to "), "{case}");
                assert!(error.is::<UsageError>(), "{case}");
            }
        }
    }
    assert!(attempts >= 60, "{attempts}");
}

#[tokio::test]
async fn a_filter_that_means_jobs_of_others_says_whose() {
    let world = World::with_policy().await;
    for n in 0..6 {
        put(
            &world,
            fixtures::job_id(n),
            ["ann", "bob", "eve", "dan", "fay", "\u{1b}[2Jx"][n as usize],
            "x",
            None,
            false,
        )
        .await;
    }
    for line in [&["cancel", "--all"][..], &["cancel", "--name", "x"], &["cancel", "--state", "queued"]] {
        let (said, changed) = world.changes(line).await;
        assert_eq!(changed, [] as [String; 0]);
        let error = said.error();
        assert_eq!(
            error,
            "not yours: 1 job of  [2Jx, 1 of bob, 1 of dan, 2 of others: give --yes to cancel them all the same"
        );
    }
    // A person without jobs of others is asked as ever, also by a pipe.
    let said = world.run_with(&["cancel", "--mine"], "y\n").await;
    assert!(said.err.contains("Cancel this job? [y/N]") && said.out.contains(" cancelled"), "{said:?}");
    let said = world.run(&["cancel", "--all", "--yes"]).await;
    assert_eq!(said.out.lines().count(), 5, "{said:?}");
    assert!(world.run(&["jobs", "--all"]).await.done().contains("cancelled by ann"));
}

#[tokio::test]
async fn nobody_enters_a_job_of_somebody_else_unasked() {
    let mut world = World::with_policy().await;
    let (_, alloc) = world.put_running(1).await;
    let mut reported = alloc.clone();
    (reported.summary.client, reported.summary.by) = (ClientStatus::Running, Some("bob".into()));
    world.store().write(Some(&alloc), &reported, Vec::new()).await.unwrap();
    let machines = tempfile::tempdir().unwrap();
    std::fs::create_dir(machines.path().join("i-0")).unwrap();
    // The file is not executable, so that the command returns.
    std::fs::write(machines.path().join("i-0/agent"), "").unwrap();
    world.cluster.reach.local = Some(machines.path().to_owned());
    let job = id(1);
    for line in [vec!["exec", &job, "--", "true"], vec!["shell", &job]] {
        let (said, changed) = world.changes(&line).await;
        assert_eq!(said.error(), "not yours: 1 job of bob: give --yes to enter it all the same");
        assert_eq!(changed, [] as [String; 0]);
    }
    let said = world.run(&["exec", &job, "--yes", "--", "true"]).await.error();
    assert!(said.contains("cannot run "), "{said}");
}
