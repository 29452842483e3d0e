//! Jobs and nodes by parts of their ids and by names; filters; `--watch`.

use super::*;
use crate::commands::show::{jobs, nodes, status};
use crate::commands::watch::repeat;
use model::JobSpec;
use model::ids::Ulid;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Stores a queued job with this id and name.
async fn put(world: &World, id: &str, name: &str) -> JobId {
    let id = JobId::new(id.parse::<Ulid>().unwrap());
    let spec = JobSpec { name: Some(name.into()), ..JobSpec::running(["true"]) };
    let job = Job::submit(id, spec, at(0)).unwrap();
    world.store().write(None, &job, Vec::new()).await.unwrap();
    id
}

async fn end(world: &World, id: JobId) {
    let job = world.store().job(id).await.unwrap().unwrap();
    let ended = job.cancel("ann", Span::from_s(9), at(940)).unwrap();
    world.store().write(Some(&job), &ended, Vec::new()).await.unwrap();
}

/// The id of the job that `job` shows for this text.
async fn shown(world: &World, text: &str) -> String {
    world.run(&["job", text, "--json"]).await.json()["job_id"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_job_is_found_by_a_part_of_its_id_in_either_case_and_by_its_name() {
    let world = World::with_policy().await;
    let first = put(&world, "01JD0000000000000AAAAAAAAA", "train").await;
    let second = put(&world, "01JD0000000000000BBBBBBBBB", "eval").await;
    for text in ["AAAAAAAA", "aaaa", "job#AAAA", "train", &first.to_string(), &first.to_string().to_lowercase()] {
        assert_eq!(shown(&world, text).await, first.to_string(), "{text}");
    }
    assert_eq!(shown(&world, "eval").await, second.to_string());
    let error = world.run(&["job", "01JD0000"]).await.error();
    assert!(error.starts_with("2 jobs fit `01JD0000`: ") && error.ends_with(": give more of the id"), "{error}");
    assert!(error.contains(&format!("{second} eval (queued), {first} train (queued)")), "{error}");
    for (text, says) in [("CCCC", "no stored job"), ("AAA", "at least 4 characters"), ("x y", "no stored job")] {
        assert!(world.run(&["job", text]).await.error().contains(says), "{text}");
    }
    // An id from a table can be given to a command.
    let table = world.run(&["jobs"]).await.done();
    let pasted = table.lines().nth(1).unwrap().split(' ').next().unwrap().to_owned();
    assert_eq!(shown(&world, &pasted).await, second.to_string());
}

#[tokio::test]
async fn live_jobs_come_first_and_of_ended_ones_with_a_name_the_newest() {
    let world = World::with_policy().await;
    let old = put(&world, "01JD0000000000000AAAAAAAAA", "nightly").await;
    end(&world, old).await;
    assert_eq!(shown(&world, "nightly").await, old.to_string());
    let newer = put(&world, "01JD1111111111111AAAAAAAAA", "nightly").await;
    assert_eq!(shown(&world, "AAAAAAAA").await, newer.to_string(), "it is live");
    end(&world, newer).await;
    assert_eq!(shown(&world, "nightly").await, newer.to_string());
    assert!(world.run(&["job", "AAAAAAAA"]).await.error().starts_with("2 jobs fit"));
    let both =
        [put(&world, "01JD2222222222222AAAAAAAAA", "x").await, put(&world, "01JD3333333333333AAAAAAAAA", "x").await];
    let (said, changed) = world.changes(&["cancel", "x"]).await;
    let (_, err) = said.failed();
    assert!(both.iter().all(|id| err.contains(&id.to_string())) && changed.is_empty(), "{err}");
}

#[tokio::test]
async fn ids_come_before_names_and_a_text_that_is_both_is_refused() {
    let world = World::with_policy().await;
    let meant = put(&world, "01JD0000000000000AAAAAAAAA", "train").await;
    let decoy = put(&world, "01JD0000000000000BBBBBBBBB", "AAAAAAAA").await;
    for text in ["AAAAAAAA", "aaaaaaaa"] {
        assert_eq!(shown(&world, text).await, meant.to_string(), "{text}");
    }
    let out = world.run(&["cancel", "AAAAAAAA"]).await.done();
    assert!(out.starts_with(&meant.to_string()), "{out}");
    // The short id still means the job that has ended, and not the live one of this name.
    assert_eq!(shown(&world, "AAAAAAAA").await, meant.to_string());
    assert_eq!(shown(&world, &decoy.to_string()).await, decoy.to_string());
    // A part that is not the short id may fit by chance.
    let part = put(&world, "01JD0000000000000CCCCCCCCC", "BBBBBB").await;
    let (said, changed) = world.changes(&["cancel", "BBBBBB"]).await;
    let (_, err) = said.failed();
    assert!(err.contains("2 jobs fit `BBBBBB`") && changed.is_empty(), "{err}");
    assert!([part, decoy].iter().all(|id| err.contains(&id.to_string())), "{err}");
    // The jobs of `--after` are found by the same rules.
    let out = world.run(&["submit", "--after-any", "AAAAAAAA", "--json", "--", "true"]).await.json();
    assert_eq!(out[0]["after"], serde_json::json!({ meant.to_string(): "any" }));
    assert!(world.run(&["submit", "--after", "BBBBBB", "--", "true"]).await.error().contains("2 jobs fit"));
}

#[tokio::test]
async fn a_node_is_found_by_its_instance_its_id_and_its_address() {
    let world = World::with_policy().await;
    let (_, alloc) = world.put_running(1).await;
    world.put_node(&fixtures::ready(1)).await;
    let record = world.store().node(fixtures::slot(1)).await.unwrap().unwrap();
    let life = record.life().unwrap();
    let node_id = life.node_id.to_string();
    for text in ["1", "slot#1", &node_id, &node_id.to_lowercase(), &node_id[8..]] {
        assert_eq!(world.run(&["node", text, "--json"]).await.json()["slot"], 1, "{text}");
    }
    assert!(
        world.run(&["hold", "i-99"]).await.failed().1.contains("no node has the slot, the id or the instance `i-99`")
    );
    let shared = life.address.as_deref().unwrap();
    assert!(world.run(&["node", shared]).await.error().starts_with("2 nodes fit"));
    // An alloc is found by its short id.
    let short = &alloc.id().to_string()[18..];
    assert!(world.run(&["logs", short]).await.err.contains(&alloc.id().to_string()));
    assert!(world.run(&["history", short]).await.done().contains("place"));
    let error = world.run(&["history", "nothing"]).await.result.unwrap_err();
    assert!(error.is::<UsageError>(), "{error}");
}

#[tokio::test]
async fn jobs_are_filtered_and_the_newest_come_first() {
    let world = World::with_policy().await;
    let names = async |line: &[&str]| {
        let rows = world.run(line).await.json();
        rows.as_array().unwrap().iter().map(|j| j["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>().join(" ")
    };
    for (n, name) in ["a1", "a2", "b1"].iter().enumerate() {
        put(&world, &format!("01JD000000000000000000000{n}"), name).await;
    }
    end(&world, "01JD0000000000000000000001".parse().unwrap()).await;
    assert_eq!(names(&["jobs", "--json"]).await, "b1 a1");
    assert_eq!(names(&["jobs", "--json", "--all"]).await, "b1 a2 a1");
    assert_eq!(names(&["jobs", "--json", "--all", "--name", "a*"]).await, "a2 a1");
    assert_eq!(names(&["jobs", "--json", "--state", "cancelled"]).await, "a2");
    assert_eq!(names(&["jobs", "--json", "--state", "pending,cancelled", "--limit", "2"]).await, "b1 a2");
    // The jobs were submitted 1000 s ago.
    assert_eq!(names(&["jobs", "--json", "--since", "20m"]).await, "b1 a1");
    assert_eq!(names(&["jobs", "--json", "--since", "10m"]).await, "");
    assert_eq!(
        world.run(&["jobs", "--name", "z"]).await.done(),
        "no job is like that (--all looks at those that have ended too)\n"
    );
    assert_eq!(parse(&["jobs", "--state", "lost"]).unwrap_err().exit_code(), 2);
}

#[tokio::test]
async fn jobs_that_a_filter_describes_are_cancelled_after_a_yes() {
    let world = World::with_policy().await;
    let a1 = put(&world, "01JD0000000000000AAAAAAAAA", "a1").await;
    put(&world, "01JD0000000000000BBBBBBBBB", "b").await;
    let a2 = put(&world, "01JD0000000000000CCCCCCCCC", "a2").await;
    let before = world.rows().await;
    for answer in ["", "n\n", "maybe\n"] {
        let (out, err) = world.run_with(&["cancel", "--name", "a*"], answer).await.failed();
        assert!(out.is_empty() && err.contains("Cancel these 2 jobs? [y/N]"), "{err}");
        assert!(err.contains("AAAAAAAA  a1") && err.contains("CCCCCCCC  a2") && !err.contains("BBBB"), "{err}");
    }
    assert_eq!(world.rows().await, before);
    let said = world.run_with(&["cancel", "--name", "a*"], "y\n").await;
    assert_eq!(said.result.unwrap(), Exit::Done);
    assert_eq!(said.out, format!("{a1} cancelled\n{a2} cancelled\n"), "in the order of the queue");
    let said = world.run(&["cancel", "--all", "--yes"]).await;
    assert!(said.out.ends_with("BBBBBBBBB cancelled\n") && said.out.lines().count() == 1, "{said:?}");
    let none = world.run(&["cancel", "--all"]).await;
    assert_eq!(none.done(), "no job that could be cancelled is like that\n");
    for line in [&["cancel"][..], &["cancel", "x", "--all"], &["cancel", "--state", "failed"]] {
        assert!(world.run(line).await.result.unwrap_err().is::<UsageError>(), "{line:?}");
    }
}

#[tokio::test]
async fn a_thousand_jobs_are_cancelled_each_once() {
    let world = World::with_policy().await;
    let out = world.run(&["submit", "--count", "300", "--", "true"]).await.done();
    let said = world.run(&["cancel", "--state", "queued", "--yes"]).await;
    assert_eq!(said.result.unwrap(), Exit::Done);
    let mut cancelled: Vec<&str> = said.out.lines().map(|line| line.strip_suffix(" cancelled").unwrap()).collect();
    let mut submitted: Vec<&str> = out.lines().collect();
    cancelled.sort_unstable();
    submitted.sort_unstable();
    assert_eq!(cancelled, submitted);
    assert!(said.err.ends_with("and 280 more\n"), "{}", said.err);
}

#[tokio::test]
async fn a_drain_has_a_deadline() {
    let world = World::with_policy().await;
    world.put_node(&fixtures::ready(0)).await;
    let by = async || world.store().node(fixtures::slot(0)).await.unwrap().unwrap().life().unwrap().drain_by_at;
    world.run(&["drain", "0"]).await.done();
    assert_eq!(by().await, None);
    let said = world.run(&["drain", "0", "--by", "30m"]).await.done();
    assert!(said.contains("by 2027-01-15T08:46:40.000Z (in 30 min): nothing runs there"), "{said}");
    assert_eq!(by().await, Some(at(2800)));
    // A drain without a deadline keeps the old one.
    assert!(world.run(&["drain", "0"]).await.done().starts_with("nothing changed"));
    world.run(&["drain", "0", "--by", "1h"]).await.done();
    assert_eq!(by().await, Some(at(4600)));
    world.run(&["resume", "0"]).await.done();
    assert_eq!(by().await, None);
    assert_eq!(parse(&["drain", "0", "--by", "soon"]).unwrap_err().exit_code(), 2);
    // A wrong year, and a local time that is given as UTC.
    for over in ["2020-01-01T00:00:00Z", "2027-01-15", "2027-01-15T08:16:39Z"] {
        let (said, changed) = world.changes(&["drain", "0", "--by", over]).await;
        let error = said.result.unwrap_err();
        assert!(error.is::<UsageError>() && error.to_string().contains("that time is over: leave --by out"), "{error}");
        assert!(changed.is_empty());
    }
    world.run(&["drain", "0", "--by", "0s"]).await.done();
    assert_eq!(by().await, Some(at(1000)));
}

/// Runs a command with `--watch`, for this many looks. `happens` changes the world after each look.
async fn watched(world: &World, screen: Screen, line: &[&str], looks: usize, happens: impl AsyncFn(usize)) -> Said {
    let cluster = world.cluster.clone();
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let seen = AtomicUsize::new(0);
    let pause = async || {
        let n = seen.fetch_add(1, Ordering::Relaxed) + 1;
        happens(n).await;
        n < looks
    };
    let mut context = Context {
        screen,
        colours: false,
        err_screen: Screen::Pipe,
        in_screen: Screen::Pipe,
        connect: Box::new(move || {
            let cluster = cluster.clone();
            Box::pin(async move { Ok(cluster) })
        }),
        clock: Arc::new(|| at(1000)),
        input: &mut &b""[..],
        out: &mut out,
        err: &mut err,
    };
    let result = match parse(line).unwrap() {
        Command::Jobs(args) => repeat(&mut context, async |page| jobs::list(page, &args).await, || 12, pause).await,
        Command::Nodes(args) => repeat(&mut context, async |page| nodes::list(page, &args).await, || 12, pause).await,
        Command::Status(args) => repeat(&mut context, async |page| status::run(page, &args).await, || 12, pause).await,
        other => panic!("{other:?} is not watched"),
    };
    Said { result, out: String::from_utf8(out).unwrap(), err: String::from_utf8(err).unwrap() }
}

#[tokio::test]
async fn a_watched_list_shows_what_has_changed() {
    let world = World::with_policy().await;
    let happens = async |n| _ = world.put_job(u32::try_from(n).unwrap()).await;
    let out = watched(&world, Screen::Pipe, &["jobs", "--watch"], 3, happens).await.done();
    assert_eq!(out.matches("2027-01-15T08:16:40.000Z").count(), 3, "{out}");
    assert_eq!(out.matches("queued  ").count(), 3, "one in the second look and two in the third: {out}");
    let out = watched(&world, Screen::Terminal, &["nodes", "--watch"], 2, async |_| {}).await.done();
    assert!(out.starts_with("\x1b[?7l\x1b[2J\x1b[H") && out.ends_with("no nodes yet\x1b[K\n\x1b[J\x1b[?7h"), "{out:?}");
    assert_eq!(out.matches("\x1b[2J").count(), 1, "later looks replace the first without a flicker");
    for n in 10..30 {
        world.put_job(n).await;
    }
    // A terminal of 12 lines shows the head of the list.
    let out = watched(&world, Screen::Terminal, &["jobs", "--watch"], 1, async |_| {}).await.done();
    assert!(out.contains("JOB ") && out.matches('\n').count() == 10, "{out:?}");
    assert!(out.ends_with("and 15 more lines\x1b[K\x1b[J\x1b[?7h"), "{out:?}");
    let out = watched(&world, Screen::Pipe, &["status", "--watch"], 2, async |_| {}).await.done();
    assert_eq!(out.matches("jobs: 23 queued").count(), 2, "{out}");
}

#[tokio::test]
async fn a_watch_survives_failed_looks_and_ends_after_many() {
    let world = World::empty().await;
    let said = watched(&world, Screen::Pipe, &["jobs", "--watch"], 99, async |n| {
        if n == 2 {
            tables::make(&world.cluster.dynamo).await.unwrap();
        }
    });
    let failing = World::empty().await;
    let never = watched(&failing, Screen::Pipe, &["jobs", "--watch"], 99, async |_| {}).await;
    assert_eq!(never.out.matches("looking again").count(), 4, "{}", never.out);
    assert!(never.error().contains("nodekeeper up"));
    let said = said.await;
    assert_eq!(said.out.matches("looking again").count(), 2, "{}", said.out);
    assert_eq!(said.result.unwrap(), Exit::Done);
}
