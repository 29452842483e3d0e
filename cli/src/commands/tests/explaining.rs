//! Why a job waits, why a node stays, and which limit applies: every command says the same. What it costs.

use super::*;
use model::ControlKey;
use model::control::{Totals, TotalsRow};

/// A world in which job 1 waits, because its only node is held. `nodes` and `small` change the policy.
async fn waiting(nodes: &str, small: &str, entry: Option<FailedStarts>) -> World {
    let mut world = World::new().await;
    world.now = at(100);
    let dir = tempfile::tempdir().unwrap();
    let policy = POLICY.replace("max = 4", nodes) + small;
    world.run(&["policy", "set", &file(&dir, "p.toml", &policy)]).await.done();
    world.put_job(1).await;
    world.put_node(&fixtures::ready(0).with_intent(Intent::Hold, None, at(95)).unwrap()).await;
    if let Some(entry) = entry {
        world.put_entry(entry).await;
    }
    world
}

#[tokio::test]
async fn each_limit_is_said_the_same_everywhere() {
    let waits = LaunchWait { until_at: Some(at(280)), wait_s: Some(180), ..LaunchWait::default() };
    let row =
        |key: &str, wait: &LaunchWait| Some(EntryRow::<LaunchWait>::new(&key.parse().unwrap()).with(wait.clone()));
    let entry = |key: &str| row(key, &waits);
    let of_policy = LaunchWait { policy_version: Some(1), ..waits.clone() };
    let refused = row("limit#refused#request#on_demand#small#any", &of_policy);
    let failed = row("boot_failures", &LaunchWait { count: Some(12), ..waits.clone() });
    for (nodes, small, entry, why) in [
        ("max = 0", "", None, "nodes.max is 0, which pauses the cluster"),
        ("max = 1", "", None, "the 1 node that nodes.max allows is there"),
        (
            "max_price_per_hour = 0.2",
            "",
            None,
            "one more node costs $0.116 an hour, the nodes cost $0.10, and nodes.max_price_per_hour is $0.20",
        ),
        ("max = 4", "max = 1", None, "the 1 node that the maximum of size small allows is there"),
        ("max = 4", "", entry("limit#quota#account"), "launching pauses for 3 min: a limit of the account is reached"),
        ("max = 4", "", entry("limit#throttled#account"), "launching pauses for 3 min: EC2 throttles launches"),
        ("max = 4", "", entry("limit#refused#account"), "launching pauses for 3 min: EC2 refuses every launch"),
        ("max = 4", "", failed, "launching pauses for 3 min: 12 starts failed in a row"),
        (
            "max = 4",
            "",
            entry("limit#short#offering#on_demand#m7a.large#any"),
            "EC2 is short of on_demand m7a.large any: the next try is in 3 min",
        ),
        ("max = 4", "", refused, "EC2 refuses launches with size small on_demand any: the next try is in 3 min"),
    ] {
        let world = waiting(nodes, small, entry).await;
        let line = format!("job {} waits: {why}", id(1));
        let plan = world.run(&["plan"]).await.done();
        assert!(plan.contains(&format!("{line}\n")) && plan.contains(&format!("limit: {why}\n")), "{plan}");
        let jobs = world.run(&["jobs"]).await.done();
        assert!(jobs.lines().nth(1).unwrap().ends_with(&format!("  {why}")), "{jobs}");
        assert_eq!(world.run(&["jobs", "--json"]).await.json()[0]["waits_because"], why);
        let job = world.run(&["job", &id(1)]).await.done();
        assert!(job.contains(&format!("waits because  {why}\n")), "{job}");
        let status = world.run(&["status"]).await.out;
        assert!(status.contains(&line), "{status}");
        // The page reads the same.
        let (store, cloud) = (world.store(), world.cluster.cloud.as_ref());
        let next = NextRun::read(store, cloud, world.now).await.unwrap();
        assert_eq!(next.of_job(fixtures::job_id(1)), Some(why));
        assert_eq!(next.plan.explained.waiting[0].line(), line);
    }
}

#[tokio::test]
async fn a_quota_that_a_job_waits_for_is_wrong_and_has_its_name() {
    let entry = |market: &str| {
        let key: ControlKey = format!("limit#quota#family#{market}#standard").parse().unwrap();
        let (since_at, until_at, message) = (Some(at(40)), Some(at(280)), Some("told".into()));
        EntryRow::<LaunchWait>::new(&key).with(LaunchWait { since_at, until_at, message, ..LaunchWait::default() })
    };
    let name = "the quota \"Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances\" is reached";
    let world = waiting("max = 4", "", Some(entry("on_demand"))).await;
    // No job waits for this quota.
    world.put_entry(entry("spot")).await;
    let (status, _) = world.run(&["status"]).await.failed();
    let line = |what: &str| status.lines().find(|l| l.contains(what)).unwrap_or_else(|| panic!("{what}: {status}"));
    let (wrong, note) = (line("limit#quota#family#on_demand#standard"), line("limit#quota#family#spot#standard"));
    let says = format!("{name}, since 1 min ago; next try in 3 min; job {} waits for it: told: raise it", id(1));
    assert!(wrong.starts_with("WRONG  ") && wrong.contains(&says), "{wrong}");
    assert!(note.starts_with("look   ") && !note.contains("waits"), "{note}");
}

#[tokio::test]
async fn a_node_that_stays_says_why_in_every_list() {
    let world = waiting("max = 1", "", None).await;
    let why = "an operator holds it: `nodekeeper resume 0` ends that";
    let nodes = world.run(&["nodes"]).await.done();
    assert!(nodes.lines().nth(1).unwrap().ends_with(why), "{nodes}");
    assert_eq!(world.run(&["nodes", "--json"]).await.json()[0]["next"], why);
    assert_eq!(world.run(&["node", "0", "--json"]).await.json()["next"], why);
    for (command, line) in [
        (&["node", "0"][..], format!("next              {why}\n")),
        (&["plan"], format!("slot 0 stays: {why}\n")),
        (&["status"], format!("slot 0 stays: {why}\n")),
    ] {
        let out = world.run(command).await.out;
        assert!(out.contains(&line), "{out}");
    }
}

#[tokio::test]
async fn a_job_whose_node_takes_no_work_any_more_says_so() {
    let mut world = World::with_policy().await;
    world.now = at(100);
    world.put_running(1).await;
    let says = async |refuses: Option<&str>| {
        let node = world.store().node(fixtures::slot(0)).await.unwrap().unwrap();
        let refuses = refuses.map(str::to_owned);
        let health = model::wire::NodeHealth { refuses, ..Default::default() };
        let heartbeat = model::wire::Heartbeat { health, ..fixtures::heartbeat("i-0") };
        let told = node.heartbeat(&heartbeat, at(150), at(100)).unwrap();
        world.store().write(Some(&node), &told, Vec::new()).await.unwrap();
        let job = world.run(&["job", &id(1)]).await.done();
        job.lines().find(|line| line.starts_with("now ")).map(|line| line.trim_start_matches("now").trim().to_owned())
    };
    let why = "its node in slot 0 takes no work: the disk is full";
    assert_eq!(says(Some("the disk is full")).await.as_deref(), Some(why));
    assert_eq!(world.run(&["jobs", "--json"]).await.json()[0]["waits_because"], why);
    assert!(world.run(&["plan"]).await.done().contains(why));
    assert_eq!(says(None).await, None);
}

/// The shape with this name in `docs/shapes.schema.json`.
fn shape(name: &str) -> serde_json::Value {
    let schema: serde_json::Value = serde_json::from_str(include_str!("../../../../docs/shapes.schema.json")).unwrap();
    schema["$defs"][name].clone()
}

#[tokio::test]
async fn jobs_and_nodes_have_the_documented_attributes() {
    let world = World::with_policy().await;
    world.put_running(1).await;
    world.put_job(2).await;
    for (command, name) in [("jobs", "job"), ("nodes", "node")] {
        let (rows, shape) = (world.run(&[command, "--all", "--json"]).await.json(), shape(name));
        assert!(!rows.as_array().unwrap().is_empty());
        for row in rows.as_array().unwrap() {
            let unknown = row.as_object().unwrap().keys().find(|key| shape["properties"].get(*key).is_none());
            assert_eq!(unknown, None, "{row:#}");
            let required = shape["required"].as_array().unwrap();
            let absent = required.iter().find(|key| row.get(key.as_str().unwrap()).is_none());
            assert_eq!(absent, None, "{row:#}");
        }
    }
}

#[tokio::test]
async fn cost_says_what_ran_and_for_whom() {
    let mut world = World::with_policy().await;
    let mut job = fixtures::job(1);
    job.summary.name = Some("train\u{1b}[2J".into());
    let (job, node) = (world.store().write(None, &job, Vec::new()).await.unwrap(), fixtures::ready(0));
    let alloc = Alloc::place(fixtures::alloc_id(1), &job, &node, at(100)).unwrap();
    let node = world.put_node(&node.with_alloc(alloc.id(), at(100)).unwrap()).await;
    let placed = job.with_placed(&[alloc.id()]).unwrap();
    world.store().write(Some(&job), &placed, Vec::new()).await.unwrap();
    let alloc = world.store().write(None, &alloc, Vec::new()).await.unwrap();

    // While the job runs, its time counts until now.
    world.now = at(3700);
    let out = world.run(&["cost", "--by", "job"]).await.done();
    assert!(!out.contains('\u{1b}'), "a name cannot drive the terminal: {out:?}");
    let line = out.lines().nth(1).unwrap();
    assert!(line.starts_with(&id(1)) && line.ends_with("1 h ago  1.00 h     $0.10"), "{out}");
    assert!(out.contains("without work: $0.0028 for 1 min of node time"), "{out}");
    assert!(out.contains("total: $0.10 for 1 node, 1.03 h of node time, since "), "{out}");
    assert!(out.ends_with("an estimate from the list prices in the policy, not a bill\n"), "{out}");

    // After the end of the job, the event has what the row had.
    let ending = Ending::exited(0);
    let keep = store::Retention::of(&model::policy::Policy::from_json(&model::policy::example_json()).unwrap());
    store::transactions::end_alloc(
        world.store(),
        Some(&node),
        &alloc,
        &ending,
        store::transactions::EndExtras::default(),
        keep,
        at(3700),
    )
    .await
    .unwrap();
    world.now = at(7300);
    let report = world.run(&["cost", "--json"]).await.json();
    assert_eq!((&report["lines"][0]["node_s"], &report["lines"][0]["usd"]), (&3600.into(), &0.1.into()));
    assert_eq!((&report["total_usd"], &report["without_work_usd"]), (&0.202_778.into(), &0.102_778.into()));
    let size = world.run(&["cost", "--by", "size", "--since", "1h", "--json"]).await.json();
    assert_eq!((&size["lines"][0]["what"], &size["lines"][0]["usd"]), (&"small".into(), &0.1.into()));
    let of_day = world.run(&["cost", "--since", "2027-01-15", "--json"]).await.json();
    assert_eq!((&of_day["since"], &of_day["lines"]), (&1_799_971_200_000_u64.into(), &report["lines"]));
    let said = world.run(&["history", &alloc.id().to_string()]).await.done();
    assert!(!said.contains("placed_at="), "people do not read what is there for `cost`: {said}");

    let (out, _) = world.run(&["status"]).await.failed();
    assert!(out.contains("cost: $0.10 an hour by the policy's list prices"), "{out}");
}

#[tokio::test]
async fn without_nodes_nothing_cost_anything() {
    let world = World::with_policy().await;
    let out = world.run(&["cost"]).await.done();
    assert!(out.starts_with("without work: $0.00 for 0 s") && out.contains("total: $0.00 for 0 nodes"), "{out}");
    for bad in ["100d", "0s", "2999-01-01", "1970-01-01"] {
        let error = world.run(&["cost", "--since", bad]).await.error();
        assert!(error.starts_with("--since: give a time of the last "), "{bad}: {error}");
    }
    assert!(
        world
            .run(&["cost", "--by", "colour"])
            .await
            .error()
            .starts_with("--by: it must be name, job, size, reason, person, share")
    );
}

const SHARES: &str = "\n[limits]\nlicences = {matlab = 2}\n[[share]]\nname = \"a\"\nmembers = [\"a*\"]\nweight = 3\nrunning = 4\n\
    [[share]]\nname = \"b\"\nmembers = [\"ann\", \"bob\"]\n[[share]]\nname = \"c\"\nmembers = [\"eve\"]\n";

/// A world with three shares. Ann, who gives the commands, is a member of two.
async fn world() -> (World, tempfile::TempDir) {
    let (world, dir) = (World::new().await, tempfile::tempdir().unwrap());
    world.run(&["policy", "set", &file(&dir, "p.toml", &format!("{POLICY}{SHARES}"))]).await.done();
    (world, dir)
}

impl World {
    /// The share of the job that this line submits.
    async fn share_of(&self, line: &[&str]) -> String {
        let jobs = self.run(&[&["submit", "--json"], line].concat()).await.json();
        jobs[0]["share"].as_str().unwrap_or("none").to_owned()
    }
}

#[tokio::test]
async fn a_job_counts_for_the_first_share_of_its_submitter_or_the_one_that_is_named() {
    let (world, dir) = world().await;
    assert_eq!(world.share_of(&["--", "true"]).await, "a");
    assert_eq!(world.share_of(&["--share", "b", "--", "true"]).await, "b");
    let line = file(&dir, "jobs", "{\"command\": [\"true\"], \"share\": \"b\"}\n");
    assert_eq!(world.share_of(&["--file", &line]).await, "b");
    for (share, says) in [
        ("c", "--share c: ann is no member of it, and may submit to: a, b"),
        ("d", "--share d: the policy has no such share; ann may submit to: a, b"),
    ] {
        let error = world.run(&["submit", "--share", share, "--", "true"]).await.error();
        assert_eq!(error, says);
    }
    assert_eq!(world.store().queue_listed(usize::MAX).await.unwrap().jobs.len(), 3, "the others were not written");
    let none = World::with_policy().await;
    let error = none.run(&["submit", "--share", "a", "--", "true"]).await.error();
    assert_eq!(error, "--share a: the policy has no shares, so leave it out");
}

#[tokio::test]
async fn more_of_a_licence_than_there_is_is_refused_with_what_there_is() {
    let (world, _dir) = world().await;
    let job = &world.run(&["submit", "--json", "--needs", "matlab=2", "--", "true"]).await.json()[0];
    assert_eq!(job["licences"], serde_json::json!({"matlab": 2}));
    for (needs, says) in [
        ("matlab=3", "it needs 3 of matlab, and limits.licences has 2"),
        ("fluent", "it needs fluent, and limits.licences of the policy has: matlab"),
    ] {
        let error = world.run(&["submit", "--needs", needs, "--", "true"]).await.error();
        assert_eq!(error, says);
    }
    for bad in ["matlab=0", "matlab=x", "matlab=-1"] {
        assert!(parse(&["submit", "--needs", bad, "--", "true"]).is_err(), "{bad}");
    }
}

#[tokio::test]
async fn jobs_of_a_share_that_the_policy_lost_still_wait_where_everybody_reads() {
    let (world, dir) = world().await;
    world.run(&["submit", "--share", "b", "--", "true"]).await.done();
    world.run(&["policy", "set", &file(&dir, "q.toml", POLICY)]).await.done();
    assert_eq!(world.run(&["jobs", "--json"]).await.json().as_array().unwrap().len(), 1);
    let seen = runtime::observation::Observation::read(world.store(), &Listed::default(), at(1000)).await.unwrap();
    assert_eq!(seen.jobs.len(), 1);
}

/// Names of shares are not used up: after a day, those are forgotten that no job is of, wherever it waits.
#[tokio::test]
async fn a_share_that_is_gone_is_forgotten_after_a_day_if_no_job_is_of_it() {
    let (mut world, dir) = world().await;
    world.run(&["submit", "--share", "b", "--not-before", "30d", "--", "true"]).await.done();
    let named = |n: usize| format!("\n[[share]]\nname = \"s{n}\"\nmembers = [\"*\"]\n");
    let policy = |first: usize, count: usize| {
        let shares: String = (first..first + count).map(named).collect();
        file(&dir, "p.toml", &format!("{POLICY}{shares}"))
    };
    world.run(&["policy", "set", &policy(0, 60)]).await.done();
    world.now = world.now + Span::from_s(3600);
    let error = world.run(&["policy", "set", &policy(100, 60)]).await.error();
    assert!(error.contains("these are 123 shares: at most 100"), "{error}");
    world.run(&["policy", "set", &policy(100, 30)]).await.done();
    // Of the first policy, b has a job.
    world.now = world.now + Span::from_s(86_400);
    world.run(&["policy", "set", &policy(200, 60)]).await.done();
    let shares = world.store().control().await.unwrap().policy.unwrap().shares.clone();
    let has = |name: &str| shares.contains(name);
    assert_eq!(
        (shares.len(), has("b"), has("a"), has("s0"), has("s100"), has("s200")),
        (91, true, false, false, true, true)
    );
    assert_eq!(world.run(&["jobs", "--json"]).await.json().as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn what_a_share_has_used_that_is_gone_fades_as_that_of_others_and_then_leaves() {
    let (world, dir) = world().await;
    let used = [("a", 1000.0), ("b", 1000.0), ("c", 0.001)].map(|(name, used)| (name.to_owned(), used)).into();
    let empty = TotalsRow::new(&ControlKey::Totals);
    let totals = empty.with(Totals { until_at: Some(at(0)), used, ..Totals::default() });
    world.store().write_entry(&empty, &totals).await.unwrap();
    let only = "\n[[share]]\nname = \"a\"\nmembers = [\"*\"]\n";
    world.run(&["policy", "set", &file(&dir, "q.toml", &format!("{POLICY}{only}"))]).await.done();
    let seen = runtime::observation::Observation::read(world.store(), &Listed::default(), at(1000)).await.unwrap();
    let after = seen.shares.totals.unwrap().1.entry.used;
    assert_eq!(after.keys().collect::<Vec<_>>(), ["a", "b"]);
    assert!(after["a"] < 1000.0 && after["a"] == after["b"], "{after:?}");
}

#[tokio::test]
async fn shares_are_shown_in_their_turn_with_what_waits_and_what_is_allowed() {
    let (world, _dir) = world().await;
    for share in ["a", "b", "b"] {
        world.run(&["submit", "--share", share, "--", "true"]).await.done();
    }
    let shares = world.run(&["shares", "--json"]).await.json();
    let of = |name: &str| shares.as_array().unwrap().iter().find(|share| share["share"] == name).unwrap().clone();
    assert_eq!(
        (&of("a")["part"], &of("a")["waiting"], &of("a")["limits"]["running"]),
        (&0.6.into(), &1.into(), &4.into())
    );
    assert_eq!((&of("b")["waiting"], &of("c")["waiting"]), (&2.into(), &0.into()));
    let out = world.run(&["shares"]).await.done();
    assert!(out.starts_with("SHARE  WEIGHT  PART  USED  PLACED"), "{out}");
    assert!(out.contains("a      3       60 %  0 %   0 of 4"), "{out}");
    let none = World::with_policy().await;
    assert!(none.run(&["shares"]).await.error().starts_with("the policy has no shares: add [[share]]"));
}

#[tokio::test]
async fn a_policy_without_the_size_of_a_waiting_job_is_stored_after_a_yes() {
    let (world, dir) = (World::with_policy().await, tempfile::tempdir().unwrap());
    world.run(&["submit", "--name", "waits", "--vcpus", "2", "--", "true"]).await.done();
    world.run(&["submit", "--name", "both", "--nodes", "2", "--exclusive", "--", "true"]).await.done();
    let fewer = world.run(&["policy", "check", &file(&dir, "q.toml", &POLICY.replace("max = 4", "max = 1"))]).await;
    assert!(fewer.err.contains("would reject 1 waiting job,") && fewer.err.contains("both ("), "{}", fewer.err);
    let smaller = file(&dir, "p.toml", &POLICY.replace("vcpus = 2", "vcpus = 1"));
    let said = world.run(&["policy", "check", &smaller]).await;
    assert!(said.err.contains("would reject 1 waiting job,") && said.err.contains("waits ("), "{}", said.err);
    let before = world.rows().await;
    let (_, err) = world.run(&["policy", "set", &smaller]).await.failed();
    assert!(err.contains("nothing was stored: answer y, or give --yes"), "{err}");
    assert_eq!(world.rows().await, before);
    world.run(&["policy", "set", "--yes", &smaller]).await.done();
    world.run(&["policy", "set", &smaller]).await.done();
}
