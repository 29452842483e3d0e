//! `plan`, `history`, `status`.

use super::*;
use aws_sdk_dynamodb::types::AttributeValue;
use model::{ActionName, BrakeKind, Rng};

#[tokio::test]
async fn plan_shows_the_next_run_and_changes_nothing() {
    let world = World::with_policy().await;
    world.put_job(1).await;
    let (said, changed) = world.changes(&["plan"]).await;
    let out = said.done();
    assert!(out.starts_with("ACTION  SUBJECT  REASON\nlaunch  slot#0   "), "{out}");
    assert!(out.ends_with("wanted nodes: 1 small\n"), "{out}");
    assert_eq!(changed, Vec::<String>::new());
    let answer = world.run(&["plan", "--json"]).await.json();
    assert_eq!((&answer["actions"][0]["action"], &answer["wanted"]["small"]), (&"launch".into(), &1.into()));
    let dir = tempfile::tempdir().unwrap();
    // What is saved gives the same plan.
    let saved = dir.path().join("saved").display().to_string();
    let live = world.run(&["plan", "--json", "--save", &saved]).await.json();
    assert_eq!(world.run(&["plan", "--state", &saved]).await.json(), live);
    // With another policy each node costs more than the cap.
    let dear = file(&dir, "p.toml", &POLICY.replace("[nodes]\nmax = 4", "[nodes]\nmax_price_per_hour = 0.1\nmax = 4"));
    let error = world.run(&["plan", "--policy", &dear]).await.error();
    assert!(error.contains("$0.10 allows no node: the cheapest size, small, costs $0.116 an hour"), "{error}");
    // A maximum of 0 pauses the cluster, and rejects nothing.
    let paused = file(&dir, "p.toml", &POLICY.replace("[nodes]\nmax = 4", "[nodes]\nmax = 0"));
    let waits = format!("job {} waits: nodes.max is 0, which pauses the cluster\n", id(1));
    let limit = "limit: nodes.max is 0, which pauses the cluster\n";
    let out = world.run(&["plan", "--policy", &paused]).await.done();
    let change = "the first would start if nodes.max were 1, not 0\n";
    assert_eq!(out, format!("the next run would do nothing\n{waits}{change}{limit}"));
}

#[tokio::test]
async fn an_unreadable_state_does_not_affect_the_others() {
    let world = World::empty().await;
    let dir = tempfile::tempdir().unwrap();
    let job = serde_json::to_value(fixtures::job(1)).unwrap();
    let state = serde_json::json!({"now": at(5).as_ms(), "jobs": [job]}).to_string();
    let states = format!("{state}\n\nnot json\n{{\"jobs\": []}}\n{state}");
    let policy = file(&dir, "p.toml", POLICY);
    let (out, err) = world.run_with(&["plan", "--state", "-", "--policy", &policy], &states).await.failed();
    assert_eq!(out.lines().count(), 2, "{out}");
    let answers: Vec<serde_json::Value> = out.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(answers[0], answers[1]);
    assert_eq!(answers[0]["actions"][0]["action"], "launch");
    let err: Vec<&str> = err.lines().collect();
    assert!(err[0].starts_with("nodekeeper: line 3: the state is not one JSON object: "), "{err:?}");
    assert!(err[1].starts_with("nodekeeper: line 4: the state cannot be read: it has no \"now\""), "{err:?}");
    assert_eq!(err.len(), 2);
    // The same state from a file. Without a policy, the error names the missing option.
    let file = file(&dir, "states", &state);
    let out = world.run(&["plan", "--state", &file, "--policy", &policy]).await.done();
    assert_eq!(serde_json::from_str::<serde_json::Value>(&out).unwrap(), answers[0]);
    let (_, err) = world.run(&["plan", "--state", &file]).await.failed();
    assert!(err.contains("--policy F"), "{err}");
}

#[tokio::test]
async fn a_long_story_is_whole_and_says_what_a_limit_leaves_out() {
    let world = World::with_policy().await;
    world.put_job(1).await;
    // The rows of old allocs expire earlier than events, so a placement may have no row.
    for n in 0..60 {
        let subject = model::events::Subject::Job(fixtures::job_id(1));
        let action = if n % 2 == 0 { ActionName::Place } else { ActionName::Wait };
        let reason = model::reason::Reason::FitsOn { slots: vec![fixtures::slot(n)] }.to_string();
        let keep = model::time::Span::from_s(86_400);
        let event =
            model::events::Event::new(&subject, action, &reason, at(i64::from(n)), keep, &Rng::seeded(u64::from(n)));
        world.store().record_event(&event).await;
    }
    let out = world.run(&["history", &id(1)]).await.done();
    assert_eq!(out.lines().count(), 62, "a head, the submission and sixty events: {out}");
    let out = world.run(&["history", &id(1), "--limit", "10"]).await.done();
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines.len(), 12, "{out}");
    assert!(lines[1].ends_with("51 happenings before this: give a larger --limit"), "{out}");
    assert!(lines[11].ends_with("it fits on slot 59"), "{out}");
}

#[tokio::test]
async fn status_names_what_a_node_does_not_remove() {
    let mut world = World::with_policy().await;
    let node = fixtures::ready(7);
    let row =
        Handle::new(node.node_id().unwrap(), "cache:m2".into(), HandleKind::Volume, HandleState::Live, 1, world.now);
    world.put_node(&node).await;
    world.store().apply(&insert_handle(&row.marked(2, world.now))).await.unwrap();
    let says =
        "handle               slot 7 was told to destroy cache:m2 25 min ago and still has it: `nodekeeper history 7`";
    for (min, told) in [(9, false), (25, true)] {
        world.now = world.now + Span::from_s(min * 60);
        let (out, _) = world.run(&["status"]).await.failed();
        assert_eq!(out.contains("was told to destroy"), told, "{out}");
        assert!(!told || out.contains(says), "{out}");
        world.now = at(1000);
    }
}

#[tokio::test]
async fn history_shows_the_newest_at_the_end() {
    let mut world = World::with_policy().await;
    world.put_node(&fixtures::ready(7)).await;
    world.run(&["hold", "7"]).await.done();
    world.now = at(1120);
    world.run(&["resume", "7"]).await.done();
    let out = world.run(&["history", "7"]).await.done();
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines[0], "WHEN                                  AFTER  WHAT    SUBJECT  REASON");
    assert_eq!(lines[1], "2027-01-15T08:16:40.000Z (2 min ago)  0 ms   hold    slot#7   by ann");
    assert_eq!(lines[2], "2027-01-15T08:18:40.000Z (0 s ago)    2 min  resume  slot#7   by ann");
    assert_eq!(world.run(&["history", "slot#7", "--limit", "1", "--json"]).await.json()[0]["action"], "resume");
    assert_eq!(world.run(&["history", "cluster"]).await.done().lines().count(), 2);
    assert_eq!(world.run(&["history", &id(1)]).await.done(), format!("nothing is stored about job#{}\n", id(1)));
    assert!(world.run(&["history", "nonsense"]).await.result.unwrap_err().is::<UsageError>());
}

#[tokio::test]
async fn status_says_what_is_wrong_and_what_to_do() {
    let world = World::new().await;
    let (out, _) = world.run(&["status"]).await.failed();
    assert!(
        out.contains("WRONG  policy               no policy is stored") && out.contains("policy set FILE"),
        "{out}"
    );
    assert!(out.contains("WRONG  sweep-dispatch       has never run: check its schedule"), "{out}");
    assert!(out.ends_with("nodes: none\njobs: none\nnot all is well: 4 of 5 checks\n"), "{out}");

    let world = World::with_policy().await;
    for function in ["poll-and-scale", "clean-stale-records", "sweep-dispatch"] {
        let run = RunNote { started_at: at(980), last_success_at: Some(at(980)), actions: 2, ..RunNote::default() };
        let run = RunRow::of_function(function).with(run);
        world.store().write(None, &run, Vec::new()).await.unwrap();
    }
    world.put_job(1).await;
    let out = world.run(&["status"]).await.done();
    assert!(out.contains("ok    poll-and-scale       last succeeded 20 s ago, 2 actions done\n"), "{out}");
    assert!(out.ends_with("nodes: none\njobs: 1 queued\nnothing is wrong; 1 of 6 checks to look at\n"), "{out}");

    // Entries that are over are not shown.
    world.put_node(&fixtures::ready(0)).await;
    let until = |key: &str, s: i64| {
        let key: ControlKey = key.parse().unwrap();
        let wait = LaunchWait { until_at: Some(at(s)), message: Some("told".into()), ..LaunchWait::default() };
        EntryRow::<LaunchWait>::new(&key).with(wait)
    };
    for (kind, count) in [(BrakeKind::Missing, None), (BrakeKind::Orphans, Some(0))] {
        let (until_at, message) = (Some(at(1200)), Some("told".into()));
        let state = BrakeState { until_at, count, message, ..BrakeState::default() };
        world.put_entry(BrakeEntry::new(&ControlKey::Brake(kind)).with(state)).await;
    }
    world.put_entry(until("limit#throttled#account", 999)).await;
    world.put_entry(until("limit#short#offering#spot#m7a.large#any", 1120)).await;
    let mut refused = until("limit#refused#subnet#subnet-1", 1240);
    refused.entry.since_at = Some(at(880));
    world.put_entry(refused).await;
    for (template, version) in [("nodes", 1), ("former", 0)] {
        let mut wrong = until(&format!("limit#wrong#template#{template}"), 4600);
        wrong.entry.policy_version = Some(version);
        world.put_entry(wrong).await;
    }
    world.put_entry(until("limit#quota#family#spot#g_vt", 1060)).await;
    let rng = Rng::seeded(1);
    let warn = |s, reason| Event::new(&Subject::Cluster, ActionName::Warn, reason, at(s), Span::from_s(99_999), &rng);
    world.store().record(&warn(940, "instance i-9 has no node")).await.unwrap();
    world.store().record(&warn(900, "instance i-9 has no node")).await.unwrap();
    let (out, _) = world.run(&["status"]).await.failed();
    for line in [
        "WRONG  heartbeat-ingest                         no heartbeat was ever accepted, and 1 node in use: check",
        "WRONG  limit#refused#subnet#subnet-1            EC2 refuses launches with subnet subnet-1, since 2 min ago; next try in 4 min: told: the message says what to correct: ",
        "WRONG  limit#wrong#template#nodes               EC2 refuses launches with launch template nodes; next try in 1 h: told: the message says what to correct: ",
        "look   limit#quota#family#spot#g_vt             the quota \"All G and VT Spot Instance Requests\" is reached; next try in 1 min: told",
        "WRONG  brake#missing                            held back: told: `nodekeeper release missing --show` lists it; wait, or `nodekeeper release missing`",
        "look   limit#short#offering#spot#m7a.large#any  EC2 is short of spot m7a.large any; next try in 2 min: told",
        "look   cluster                                  warned 1 min ago: instance i-9 has no node",
    ] {
        assert!(out.contains(line), "{line}\n{out}");
    }
    assert!(
        !out.contains("orphans")
            && !out.contains("throttled")
            && !out.contains("former")
            && out.matches("i-9").count() == 1,
        "{out}"
    );
    let status = world.run(&["status", "--json"]).await.json();
    assert_eq!((&status["well"], &status["nodes"]["ready"]), (&false.into(), &1.into()));
    assert!(status["checks"].as_array().unwrap().iter().any(|c| c["level"] == "wrong" && c["to_do"] != ""));
}

#[tokio::test]
async fn what_ec2_refused_is_tried_at_once_after_a_release() {
    let world = World::with_policy().await;
    let said = world.run(&["release", "launches"]).await.done();
    assert_eq!(said, "nothing limits launches: there is nothing to release\n");
    for (key, count) in [("limit#refused#subnet#subnet-1", None), ("boot_failures", Some(12))] {
        let wait = LaunchWait { until_at: Some(at(4600)), wait_s: Some(3600), count, ..LaunchWait::default() };
        world.put_entry(EntryRow::<LaunchWait>::new(&key.parse().unwrap()).with(wait)).await;
    }
    let lines = |verb: &str| {
        let all = ["12 starts failed in a row", "EC2 refuses launches with subnet subnet-1"];
        all.iter().map(|limit| format!("{verb}: {limit}\n")).collect::<String>()
    };
    assert_eq!(world.run(&["release", "launches", "--show"]).await.done(), lines("limits launches"));
    let (said, changed) = world.changes(&["release", "launches"]).await;
    assert_eq!(said.done(), lines("is tried again"));
    let expected = ["control/boot_failures", "control/limit#refused#subnet#subnet-1", "events/cluster/release"];
    assert_eq!(changed, expected);
    assert!(world.store().control().await.unwrap().limits(world.now).is_empty());
    // The next refusal waits as briefly as the first one.
    let control = world.store().control().await.unwrap();
    assert!(control.waits.values().all(|row| row.wait_s.is_none()));
    assert_eq!(control.failed_starts().count, Some(0));
}

#[tokio::test]
async fn a_node_that_takes_no_work_is_reported_as_wrong() {
    let world = World::with_policy().await;
    let refuses = Some("jobs reach\u{1b}[2J\u{9b}2J the metadata".to_owned());
    let health = model::wire::NodeHealth { refuses, ..Default::default() };
    let heartbeat = model::wire::Heartbeat { health, ..fixtures::heartbeat("i-3") };
    let node = fixtures::bound(3).register(&heartbeat, "inc-1", at(9000), at(60)).unwrap().open_gate(at(60)).unwrap();
    let node = model::NodeRecord { version: model::Version::UNWRITTEN, ..node };
    world.store().write(None, &node, Vec::new()).await.unwrap();
    let drives = |out: &str| out.contains(['\u{1b}', '\u{9b}']);
    let (out, _) = world.run(&["status"]).await.failed();
    let line = out.lines().find(|l| l.contains("slot 3 takes no work")).unwrap_or_else(|| panic!("{out}"));
    assert!(line.starts_with("WRONG  node") && line.contains("mend the image"), "{line}");
    assert!(!drives(&out), "what a node says cannot drive the terminal: {out:?}");
    for args in [&["node", "3"][..], &["node", "3", "--json"], &["nodes", "--json"]] {
        let out = world.run(args).await.done();
        assert!(out.contains("jobs reach") && !drives(&out), "{out:?}");
    }
}

#[tokio::test]
async fn an_overdue_function_is_reported_as_wrong() {
    let world = World::with_policy().await;
    let row = |function: &str, success: i64| {
        let (last_success_at, error) = (Some(at(success)), Some("no\nway".into()));
        RunRow::of_function(function).with(RunNote { last_success_at, error, ..RunNote::default() })
    };
    // The limit is five periods: 5 minutes for the first two functions, 25 minutes for clean-stale-records. Only the
    // first success is too old.
    for (function, success) in [("poll-and-scale", 699), ("sweep-dispatch", 700), ("clean-stale-records", -499)] {
        world.store().write(None, &row(function, success), Vec::new()).await.unwrap();
    }
    let (out, _) = world.run(&["status"]).await.failed();
    assert!(out.contains("WRONG  poll-and-scale       last succeeded 5 min ago; its last run failed: no way; it should run every 1 min"), "{out}");
    assert!(out.contains("look   sweep-dispatch "), "{out}");
    assert!(out.contains("look   clean-stale-records "), "{out}");
}

/// A row that cannot be read hides nothing else, and every command that reads it says so.
#[tokio::test]
async fn rows_that_cannot_be_read_are_named() {
    let world = World::with_policy().await;
    world.put_job(1).await;
    let text = |text: &str| AttributeValue::S(text.to_owned());
    let number = |n: u32| AttributeValue::N(n.to_string());
    let item = |pairs: &[(&str, AttributeValue)]| -> store::Item {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect()
    };
    let put = async |table, pairs: &[(&str, AttributeValue)]| {
        world.cluster.dynamo.put_new(table, &[item(pairs)]).await.unwrap();
    };
    put(Table::Control, &[("key", text("of_the_future")), ("version", number(1))]).await;
    let out = world.run(&["status"]).await.failed().0;
    assert!(out.contains("look"), "{out}");
    let line =
        |out: &str, part: &str| out.lines().find(|l| l.contains(part)).unwrap_or_else(|| panic!("{out}")).to_owned();
    assert!(line(&out, "row of_the_future of table control").starts_with("look"), "{out}");
    put(Table::Control, &[("key", text("limit#quota#account")), ("version", text("x"))]).await;
    put(Table::Nodes, &[("slot", number(2)), ("state", text("asleep"))]).await;
    let id = "01JD0000000000000000000000";
    put(Table::Jobs, &[("job_id", text(id)), ("queue", text("placed")), ("rank", text("0500#x"))]).await;
    put(Table::Allocs, &[("alloc_id", text(&format!("{id}.0.0"))), ("live_node", text("x"))]).await;
    let (node, due) = (fixtures::node_id(2).to_string(), ("due", text("due")));
    put(Table::Handles, &[("node_id", text(&node)), ("handle", text("h")), due, ("due_at", number(1))]).await;
    let (out, _) = world.run(&["status"]).await.failed();
    for row in [
        "row limit#quota#account of table control",
        "row 2 of table nodes",
        "of table jobs",
        "of table allocs",
        "of table handles",
    ] {
        assert!(line(&out, row).starts_with("WRONG"), "{row}: {out}");
        assert_eq!(out.matches(row).count(), 1, "{row}: {out}");
    }
    let nodes = world.run(&["nodes"]).await;
    let said = "not shown: row 2 of table nodes cannot be read: missing field `version`: repair or delete it";
    assert_eq!(nodes.err.lines().next().unwrap(), said);
    let jobs = world.run(&["jobs", "--json"]).await;
    assert!(jobs.err.contains("not shown: row \"01JD0000000000000000000000\" of table jobs"), "{}", jobs.err);
    assert_eq!(jobs.json().as_array().unwrap().len(), 1);
    let plan = world.run(&["plan"]).await.done();
    assert!(plan.contains("launch"), "{plan}");
}
