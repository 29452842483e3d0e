//! Who submitted a job, and its labels: what is recorded, shown and filtered.

mod others;

use super::*;

/// The world as somebody else sees it.
fn as_person(world: &World, name: &str) -> World {
    let mut theirs = world.clone();
    theirs.cluster.reach.who = Person::named(name);
    theirs
}

#[tokio::test]
async fn a_job_says_who_submitted_it_however_that_was_done() {
    let world = World::with_policy().await;
    let dir = tempfile::tempdir().unwrap();
    let lines = file(
        &dir,
        "jobs",
        "{\"command\": \"a\", \"by\": \"eve\"}\n{\"command\": \"b\", \"labels\": {\"run\": \"7\"}}\n",
    );
    let keyed = file(&dir, "keyed", "{\"command\": \"c\", \"key\": \"k1\"}\n");
    for line in [
        vec!["submit", "-l", "team=a", "--name", "one", "--", "true"],
        vec!["submit", "-l", "team=a", "--array", "0-2", "--", "true"],
        vec!["submit", "-l", "team=a", "--file", &lines],
        vec!["submit", "-l", "team=a", "--file", &keyed],
        vec!["submit", "-l", "team=a", "--key", "k2", "--", "true"],
    ] {
        for id in world.run(&line).await.done().lines() {
            let job = world.store().job(id.parse().unwrap()).await.unwrap().unwrap();
            assert_eq!(job.summary.by.as_deref(), Some("ann"), "{line:?}");
            assert_eq!(job.summary.labels["team"], "a", "{line:?}");
        }
    }
    // A line's labels come in addition. What it says of its submitter does not count.
    let found = world.run(&["jobs", "-l", "run=7", "-l", "team=*", "--json"]).await.json();
    assert_eq!((found.as_array().unwrap().len(), &found[0]["labels"]["team"]), (1, &"a".into()));
    let eve = as_person(&world, "eve");
    // The same key is the same submission, whoever gives it.
    let said = eve.run(&["submit", "-l", "team=a", "--key", "k2", "--", "true"]).await;
    assert!(said.err.contains("so nothing was written"), "{}", said.err);
    // Whoever runs a job again has it.
    let out = eve.run(&["rerun", "one", "--yes"]).await.done();
    let job = eve.store().job(out.trim().parse().unwrap()).await.unwrap().unwrap();
    assert_eq!((job.summary.by.as_deref(), job.summary.labels["team"].as_str()), (Some("eve"), "a"));
    let shown = eve.run(&["job", out.trim()]).await.done();
    let fields: Vec<&str> = shown.lines().map(str::trim_end).collect();
    let has = |name: &str, value: &str| fields.iter().any(|line| line.split_whitespace().eq([name, value]));
    assert!(has("by", "eve") && has("labels", "team=a"), "{shown}");
    assert!(shown.contains("by eve: priority 500"), "{shown}");
}

#[tokio::test]
async fn lists_show_only_what_is_mine_or_has_a_label() {
    let world = World::with_policy().await;
    let eve = as_person(&world, "eve");
    for (world, name, label) in [(&world, "a1", "team=x"), (&world, "a2", "team=y"), (&eve, "e1", "team=x")] {
        world.run(&["submit", "--name", name, "-l", label, "--", "true"]).await.done();
    }
    let names = async |world: &World, line: &[&str]| {
        let rows = world.run(&[line, &["--json"]].concat()).await.json();
        let name = |row: &serde_json::Value| row["name"].as_str().unwrap_or_default().to_owned();
        let mut names: Vec<String> = rows.as_array().unwrap().iter().map(name).collect();
        names.sort();
        names
    };
    for (line, expected) in [
        (&["jobs"][..], &["a1", "a2", "e1"][..]),
        (&["jobs", "--mine"], &["a1", "a2"]),
        (&["jobs", "--mine", "--queue"], &["a1", "a2"]),
        (&["jobs", "--mine", "--all"], &["a1", "a2"]),
        (&["jobs", "--mine", "--name", "e*"], &[]),
        (&["jobs", "-l", "team=x"], &["a1", "e1"]),
        (&["jobs", "-l", "team=x", "--mine"], &["a1"]),
        (&["jobs", "-l", "team=*", "-l", "team=y"], &["a2"]),
        (&["jobs", "-l", "other=x"], &[]),
    ] {
        assert_eq!(names(&world, line).await, expected, "{line:?}");
    }
    assert_eq!(names(&eve, &["jobs", "--mine"]).await, ["e1"]);
    // A column says whose jobs these are only if they are of several people.
    assert!(world.run(&["jobs"]).await.done().lines().next().unwrap().contains("  BY  "));
    assert!(!world.run(&["jobs", "--mine"]).await.done().contains(" BY "), "an id may have these letters");
    let said = world.run_with(&["cancel", "--mine", "-l", "team=x"], "y\n").await;
    assert!(said.err.contains("Cancel this job?") && said.out.contains(" cancelled"), "{said:?}");
    assert_eq!(names(&world, &["jobs"]).await, ["a2", "e1"]);
}

#[tokio::test]
async fn a_label_that_cannot_be_one_is_refused_by_its_name() {
    let world = World::with_policy().await;
    let dir = tempfile::tempdir().unwrap();
    let many: Vec<String> = (0..9).map(|n| format!("k{n}=v")).collect();
    let many: Vec<&str> = many.iter().flat_map(|label| ["-l", label]).chain(["--", "true"]).collect();
    let line = |name: &str, labels: &str| file(&dir, name, &format!("{{\"command\": \"a\", \"labels\": {labels}}}\n"));
    for (line, says) in [
        (vec!["submit", "-l", "team=a b", "--", "true"], "--label \"team=a b\" must be KEY=VALUE: KEY has 1 to 64"),
        (vec!["submit", "-l", "team=", "--", "true"], "--label \"team=\" must be KEY=VALUE"),
        (vec!["submit", "-l", "a=1", "-l", "a=2", "--", "true"], "--label"),
        ([&["submit"], &*many].concat(), "a job has at most 8 labels (--label), this one has 9"),
        (vec!["submit", "--file", &line("f1", "{\"a\": \"b\\n\"}")], "labels \"a=b\\n\" must be KEY=VALUE"),
        (vec!["submit", "--file", &line("f2", "{\"a\": 1}")], "labels.a: invalid type: integer `1`, expected a string"),
        (vec!["submit", "--file", &line("f3", "[\"a\"]")], "labels: invalid type: sequence"),
    ] {
        let (said, changed) = world.changes(&line).await;
        let error = said.error();
        assert!(error.contains(says), "{line:?}: {error}");
        assert_eq!(changed, [] as [String; 0], "{line:?}");
    }
    assert!(parse(&["submit", "-l", "team", "--", "true"]).unwrap_err().to_string().contains("--label"));
}

#[tokio::test]
async fn costs_have_the_names_of_people_and_labels() {
    let world = World::with_policy().await;
    let (placed, _) = world.put_running(1).await;
    let mut of_bob = placed.clone();
    (of_bob.summary.by, of_bob.summary.labels) = (Some("bob".into()), [("team".into(), "x".into())].into());
    world.store().write(Some(&placed), &of_bob, Vec::new()).await.unwrap();
    let first = async |world: &World, line: &[&str]| {
        let out = world.run(&[&["cost"], line].concat()).await.done();
        out.lines().nth(1).unwrap().split_whitespace().next().unwrap().to_owned()
    };
    for (line, what) in [
        (&["--by", "person"][..], "bob"),
        (&["--by", "label", "team"], "x"),
        (&["--by", "label:team", "--since", "2h"], "x"),
        (&["--by", "label", "no"], "(no"),
        (&["-l", "team=x"], "(no"),
    ] {
        assert_eq!(first(&world, line).await, what, "{line:?}");
    }
    let of = async |world: &World, line: &[&str]| world.run(&[&["cost", "--json"], line].concat()).await.json();
    let (all, mine) = (of(&world, &[]).await, of(&world, &["--mine"]).await);
    assert_eq!((mine["lines"].as_array().unwrap().len(), mine["these_usd"].as_f64()), (0, Some(0.0)));
    assert_eq!((&mine["total_usd"], all.get("these_usd")), (&all["total_usd"], None));
    let of_bob = of(&as_person(&world, "bob"), &["--mine", "--by", "person"]).await;
    assert_eq!((&of_bob["these_usd"], of_bob["lines"][0]["what"].as_str()), (&all["lines"][0]["usd"], Some("bob")));
    assert!(world.run(&["cost", "--mine"]).await.done().starts_with("these jobs: $0.00\n"));
    for (line, says) in [
        (
            &["cost", "--by", "label"][..],
            "--by: it must be name, job, size, reason, person, share, or label with a key",
        ),
        (&["cost", "--by", "people"], "--by: it must be"),
        (&["cost", "--by", "size", "--mine"], "a size and a reason have no person and no label"),
    ] {
        let error = world.run(line).await.result.unwrap_err();
        assert!(error.is::<UsageError>() && error.to_string().starts_with(says), "{line:?}: {error}");
    }
}
