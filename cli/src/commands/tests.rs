//! The commands against an embedded DynamoDB: what they print, and which rows they change.

use super::*;
use async_trait::async_trait;
use aws_sdk_dynamodb::config::{BehaviorVersion, Credentials, Region};
use clap::Parser;
use shared::cloud::{CloudError, Instance, LaunchError, LaunchRequest};
use shared::events::{Event, Subject};
use shared::ids::JobId;
use shared::model::fixtures::{self, at};
use shared::model::{
    Alloc, ClientStatus, Ending, Handle, HandleKind, HandleState, Intent, Job, JobState, NodeRecord, NodeStatus,
};
use shared::observation::Observation;
use shared::store::{
    Answer, Db, DbError, Item, Key, Memory, Page, PageKey, Query, RunRow, TABLES, Table, Write as DbWrite, WriteError,
    change, insert_handle, to_json,
};
use shared::time::Span;
use std::collections::BTreeMap;
use std::sync::Mutex;

#[derive(Parser)]
struct Line {
    #[command(subcommand)]
    command: Command,
}

fn parse(line: &[&str]) -> Result<Command, clap::Error> {
    Line::try_parse_from(std::iter::once(&"nodekeeper").chain(line)).map(|l| l.command)
}

/// EC2 with just these instances, in which nothing can be launched or terminated.
struct Listed(Vec<Instance>);

#[async_trait]
impl Cloud for Listed {
    async fn instances(&self) -> Result<Vec<Instance>, CloudError> {
        Ok(self.0.clone())
    }
    async fn instance(&self, _: &str) -> Result<Option<Instance>, CloudError> {
        Ok(None)
    }
    async fn launch(&self, _: &LaunchRequest, _: &str) -> Result<Instance, LaunchError> {
        panic!("a command launched")
    }
    async fn terminate(&self, _: &[String]) -> Result<(), CloudError> {
        panic!("a command terminated")
    }
    async fn console_output(&self, _: &str) -> Result<Option<String>, CloudError> {
        Ok(None)
    }
}

/// The database, with someone who is faster: before each of our writes one of theirs.
struct Rival {
    db: Dynamo,
    theirs: Mutex<Vec<DbWrite>>,
}

#[async_trait]
impl Db for Rival {
    async fn get(&self, key: &Key) -> Result<Option<Item>, DbError> {
        self.db.get(key).await
    }
    async fn get_many(&self, keys: &[Key]) -> Result<Vec<Item>, DbError> {
        self.db.get_many(keys).await
    }
    async fn query(&self, query: &Query, from: Option<PageKey>) -> Result<Page, DbError> {
        self.db.query(query, from).await
    }
    async fn scan(
        &self,
        table: Table,
        index: Option<shared::store::Index>,
        from: Option<PageKey>,
    ) -> Result<Page, DbError> {
        self.db.scan(table, index, from).await
    }
    async fn write(&self, write: &DbWrite, answer: Answer) -> Result<Option<Item>, WriteError> {
        let theirs = self.theirs.lock().unwrap().pop();
        if let Some(theirs) = theirs {
            self.db.write(&theirs, Answer::None).await?;
        }
        self.db.write(write, answer).await
    }
    async fn transact(&self, writes: &[DbWrite]) -> Result<(), WriteError> {
        self.db.transact(writes).await
    }
}

/// What a command said, and how it came out.
#[derive(Debug)]
struct Said {
    result: anyhow::Result<Outcome>,
    out: String,
    err: String,
}

impl Said {
    fn done(self) -> String {
        assert_eq!(self.err, "");
        assert_eq!(self.result.unwrap(), Outcome::Done, "{}", self.out);
        self.out
    }

    fn failed(self) -> (String, String) {
        assert_eq!(self.result.unwrap(), Outcome::Failed, "{}", self.out);
        (self.out, self.err)
    }

    fn error(self) -> String {
        format!("{:#}", self.result.expect_err("it went well"))
    }

    fn json(self) -> serde_json::Value {
        serde_json::from_str(&self.out).unwrap()
    }
}

#[derive(Clone)]
struct World {
    cluster: Cluster,
    now: Time,
}

impl World {
    /// No tables yet.
    async fn empty() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(dynoxide::server::serve_on(listener, dynoxide::Database::memory().unwrap()));
        let config = aws_sdk_dynamodb::Config::builder()
            .behavior_version(BehaviorVersion::latest())
            .region(Region::new("eu-west-1"))
            .credentials_provider(Credentials::new("local", "local", None, None, "test"))
            .endpoint_url(url)
            .build();
        let dynamo = Dynamo::new(aws_sdk_dynamodb::Client::from_conf(config), "test".parse().unwrap());
        let store = Store::new(Arc::new(dynamo.clone()));
        Self { cluster: Cluster { store, dynamo, cloud: Arc::new(Listed(Vec::new())) }, now: at(1000) }
    }

    async fn new() -> Self {
        let world = Self::empty().await;
        world.cluster.dynamo.create_tables().await.unwrap();
        world
    }

    async fn with_policy() -> Self {
        let world = Self::new().await;
        let dir = tempfile::tempdir().unwrap();
        world.run(&["policy", "set", &file(&dir, "p.toml", POLICY)]).await.done();
        world
    }

    fn store(&self) -> &Store {
        &self.cluster.store
    }

    async fn run(&self, line: &[&str]) -> Said {
        self.run_with(line, "").await
    }

    async fn run_with(&self, line: &[&str], input: &str) -> Said {
        let command = parse(line).unwrap();
        let (cluster, now) = (self.cluster.clone(), self.now);
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let mut context = Context {
            connect: Box::new(move || {
                let cluster = cluster.clone();
                Box::pin(async move { Ok(cluster) })
            }),
            clock: Arc::new(move || now),
            input: &mut input.as_bytes(),
            out: &mut out,
            err: &mut err,
        };
        let result = super::run(command, &mut context).await;
        Said { result, out: String::from_utf8(out).unwrap(), err: String::from_utf8(err).unwrap() }
    }

    /// Every row of every table, by table and key; of an event the subject and action stand for its id.
    async fn rows(&self) -> BTreeMap<String, serde_json::Value> {
        let mut rows = BTreeMap::new();
        for definition in TABLES {
            let page = self.cluster.dynamo.scan(definition.table, None, None).await.unwrap();
            assert!(page.next.is_none());
            for item in &page.items {
                let row = to_json(item);
                let text = |name: &str| row[name].as_str().map_or_else(|| row[name].to_string(), str::to_owned);
                let mut key = format!("{}/{}", definition.table.suffix(), text(definition.key.hash.name));
                if definition.table == Table::Events {
                    key = format!("{key}/{}", text("action"));
                } else if let Some(range) = definition.key.range {
                    key = format!("{key}/{}", text(range.name));
                }
                rows.insert(key, row);
            }
        }
        rows
    }

    /// Runs a command and tells which rows it changed.
    async fn changes(&self, line: &[&str]) -> (Said, Vec<String>) {
        let before = self.rows().await;
        let said = self.run(line).await;
        let after = self.rows().await;
        let mut keys: Vec<String> = before.keys().chain(after.keys()).cloned().collect();
        keys.sort_unstable();
        keys.dedup();
        keys.retain(|k| before.get(k) != after.get(k));
        (said, keys)
    }

    async fn put_node(&self, record: &NodeRecord) -> NodeRecord {
        self.store().write(None, record, Vec::new()).await.unwrap()
    }

    async fn put_job(&self, n: u32) -> Job {
        self.store().write(None, &fixtures::job(n), Vec::new()).await.unwrap()
    }

    /// Job `n` placed on slot 0, running; with a handle.
    async fn put_running(&self, n: u32) -> (Job, Alloc) {
        let (job, node) = (self.put_job(n).await, fixtures::ready(0));
        let alloc = Alloc::place(fixtures::alloc_id(n), &job, &node, at(100)).unwrap();
        let node = self.put_node(&node.with_alloc(alloc.id(), at(100)).unwrap()).await;
        let placed = job.with_placed(&[alloc.id()]).unwrap();
        let placed = self.store().write(Some(&job), &placed, Vec::new()).await.unwrap();
        let alloc = self.store().write(None, &alloc, Vec::new()).await.unwrap();
        self.put_handle(&node, &alloc.id().to_string()).await;
        (placed, alloc)
    }

    async fn put_handle(&self, node: &NodeRecord, name: &str) {
        let handle = Handle {
            node_id: node.node_id().unwrap(),
            handle: name.into(),
            kind: HandleKind::Container,
            alloc_id: None,
            parent: None,
            state: HandleState::Live,
            seq: 1,
            deadline_at: None,
            missing_ms: None,
            missing_seen_at: None,
            unknown_report_no: None,
            keep: false,
            due_at: at(5000),
            expires_at: None,
        };
        self.store().apply(&insert_handle(&handle)).await.unwrap();
    }

    async fn remember(&self, memory: Memory) {
        self.store().remember(&Memory::new(&memory.key), &memory).await.unwrap();
    }
}

const POLICY: &str = r#"
[nodes]
max = 4
[launch]
template = "nodekeeper"
[[size]]
name = "small"
instance_type = "m7a.large"
vcpus = 2
memory_mib = 8192
price_per_hour = 0.116
"#;

fn file(dir: &tempfile::TempDir, name: &str, text: &str) -> String {
    let path = dir.path().join(name);
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

fn id(n: u32) -> String {
    fixtures::job_id(n).to_string()
}

#[tokio::test]
async fn init_makes_what_is_missing_and_only_that() {
    let world = World::empty().await;
    let said = world.run(&["jobs"]).await.error();
    assert!(said.contains("test-jobs") && said.contains("nodekeeper init"), "{said}");
    let made = world.run(&["init"]).await.done();
    assert_eq!(
        made.lines().collect::<Vec<_>>(),
        ["test-nodes", "test-jobs", "test-allocs", "test-handles", "test-control", "test-events"]
    );
    assert_eq!(world.run(&["init"]).await.done(), "nothing changed: every table is there\n");
}

#[tokio::test]
async fn what_needs_no_cluster_asks_for_none() {
    let dir = tempfile::tempdir().unwrap();
    let right = file(&dir, "right.toml", POLICY);
    let state = file(&dir, "state", "");
    for line in [
        &["init", "--print-tables"][..],
        &["policy", "check", &right],
        &["policy", "show", "--defaults"],
        &["plan", "--state", &state],
    ] {
        let mut context = Context {
            connect: Box::new(|| panic!("it asked for a cluster")),
            clock: Arc::new(|| at(0)),
            input: &mut &b""[..],
            out: &mut Vec::new(),
            err: &mut Vec::new(),
        };
        assert_eq!(super::run(parse(line).unwrap(), &mut context).await.unwrap(), Outcome::Done, "{line:?}");
    }
}

#[tokio::test]
async fn a_wrong_policy_is_refused_with_every_mistake_and_nothing_is_stored() {
    let world = World::new().await;
    let dir = tempfile::tempdir().unwrap();
    let wrong = file(&dir, "wrong.toml", &POLICY.replace("max = 4", "max = -1\nmin = \"x\""));
    let (said, changed) = world.changes(&["policy", "set", &wrong]).await;
    let error = said.error();
    assert!(error.contains("wrong.toml") && error.contains("nodes.max") && error.contains("nodes.min"), "{error}");
    assert_eq!(changed, Vec::<String>::new());
    let error = world.run(&["policy", "show"]).await.error();
    assert!(error.contains("nodekeeper policy set FILE"), "{error}");
}

#[tokio::test]
async fn a_policy_is_stored_with_its_difference_once() {
    let world = World::new().await;
    let dir = tempfile::tempdir().unwrap();
    let (said, changed) = world.changes(&["policy", "set", &file(&dir, "p.toml", POLICY)]).await;
    assert_eq!(said.done(), "stored as version 1\n");
    assert_eq!(changed, ["control/policy", "events/cluster/policy_set"]);
    let (said, changed) = world.changes(&["policy", "set", &file(&dir, "same.toml", POLICY)]).await;
    assert_eq!((said.done().as_str(), changed.len()), ("nothing changed: version 1 is the same\n", 0));
    let other = POLICY.replace("max = 4", "max = 8").replace("\"small\"", "\"tiny\"");
    let said = world.run(&["policy", "set", &file(&dir, "other.toml", &other)]).await.done();
    let lines: Vec<&str> = said.lines().collect();
    assert!(lines.contains(&"~ nodes.max: 4 -> 8") && lines.contains(&"- size.small.vcpus: 2"), "{said}");
    assert!(lines.contains(&"+ size.tiny.name: \"tiny\"") && lines.ends_with(&["stored as version 2"]), "{said}");
    // What is shown can be stored again, and changes nothing.
    let shown = world.run(&["policy", "show"]).await.done();
    assert!(shown.starts_with("# version 2\n"), "{shown}");
    let said = world.run(&["policy", "set", &file(&dir, "shown.toml", &shown)]).await.done();
    assert_eq!(said, "nothing changed: version 2 is the same\n");
    let json = world.run(&["policy", "show", "--json"]).await.done();
    let said = world.run(&["policy", "set", &file(&dir, "shown.json", &json)]).await.done();
    assert_eq!(said, "nothing changed: version 2 is the same\n");
}

#[tokio::test]
async fn a_policy_stored_meanwhile_is_not_overwritten() {
    let mut world = World::with_policy().await;
    let row = world.store().control().await.unwrap().policy.unwrap();
    let (theirs, _) = change(Some(&row), &row);
    let rival = Rival { db: world.cluster.dynamo.clone(), theirs: Mutex::new(vec![theirs]) };
    world.cluster.store = Store::new(Arc::new(rival));
    let dir = tempfile::tempdir().unwrap();
    let other = file(&dir, "p.toml", &POLICY.replace("max = 4", "max = 8"));
    let error = world.run(&["policy", "set", &other]).await.error();
    assert!(error.contains("was not stored: someone else"), "{error}");
    assert_eq!(world.store().control().await.unwrap().checked_policy().unwrap().0.nodes.max, 4);
}

#[tokio::test]
async fn submit_writes_the_jobs_it_prints_and_nothing_else() {
    let world = World::new().await;
    let line = "submit --count 3 --name train --priority 700 --vcpus 2 --memory 4G --scratch 20 --gpus 1 \
        --instance-type g6.xlarge --market spot --exclusive --nodes 2 --image busybox --cache data --cache more \
        --env A=1 --env B=x=y --timeout 2h --kill-timeout 5 --lost-after 0 --replace --reconcile keep_original \
        --retry-failed 2 --retry-lost 0 -- sh -c true";
    let (said, changed) = world.changes(&line.split_whitespace().collect::<Vec<_>>()).await;
    let out = said.done();
    let mut expected: Vec<String> = out.lines().map(|id| format!("jobs/{id}")).collect();
    expected.sort_unstable();
    assert_eq!((changed.len(), &changed), (3, &expected));
    let job = world.store().job(out.lines().next().unwrap().parse().unwrap()).await.unwrap().unwrap();
    let row = serde_json::to_value(&job).unwrap();
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
        ("nodes", 2.into()),
        ("image", "busybox".into()),
        ("caches", serde_json::json!(["data", "more"])),
        ("env", serde_json::json!({"A": "1", "B": "x=y"})),
        ("command", serde_json::json!(["sh", "-c", "true"])),
        ("timeout_s", 7200.into()),
        ("kill_timeout_s", 5.into()),
        ("lost_after_s", 0.into()),
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
async fn a_submission_without_options_is_the_documented_default() {
    let world = World::new().await;
    let out = world.run(&["submit", "--", "true"]).await.done();
    let job = world.store().job(out.trim().parse().unwrap()).await.unwrap().unwrap();
    let spec = shared::model::JobSpec { command: vec!["true".into()], ..Default::default() };
    let mut expected = Job::submit(job.summary.job_id, spec, world.now).unwrap();
    expected.summary.version = job.summary.version;
    assert_eq!(job, expected);
}

#[tokio::test]
async fn a_bad_submission_is_wrong_usage_and_writes_nothing() {
    let world = World::new().await;
    let (said, changed) = world.changes(&["submit", "--nodes", "25", "--priority", "1001", "--", "true"]).await;
    let error = said.result.unwrap_err();
    assert!(error.is::<Usage>() && error.to_string().contains("--nodes") && error.to_string().contains("--priority"));
    assert_eq!(changed, Vec::<String>::new());
    for line in [
        &["submit"][..],
        &["submit", "true"],
        &["submit", "--memory", "4X", "--", "true"],
        &["submit", "--count", "0", "--", "true"],
        &["submit", "--market", "cheap", "--", "true"],
        &["submit", "--env", "A", "--", "true"],
        &["hold"],
        &["node", "x"],
        &["job", "7"],
        &["release", "all"],
    ] {
        assert_eq!(parse(line).unwrap_err().exit_code(), 2, "{line:?}");
    }
}

#[tokio::test]
async fn waiting_ends_when_every_job_has_and_says_how() {
    let world = World::new().await;
    let ends = |how: Vec<ClientStatus>| {
        let store = world.store().clone();
        tokio::spawn(async move {
            let mut jobs = Vec::new();
            while jobs.len() < how.len() {
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
                jobs = store.jobs().await.unwrap();
                jobs.retain(|j| !j.summary.state.is_ended());
            }
            for (job, how) in jobs.iter().zip(how) {
                let alloc = shared::ids::AllocId { job_id: job.summary.job_id, member: 0, copy: 0 };
                let placed = job.with_placed(&[alloc]).unwrap();
                let alloc = Alloc::place(alloc, job, &fixtures::ready(0), at(1)).unwrap();
                let after = placed.after_end(&alloc.summary, how, &[], true, Span::from_s(9), at(2));
                store.write(Some(job), &after, Vec::new()).await.unwrap();
            }
        })
    };
    let task = ends(vec![ClientStatus::Complete, ClientStatus::Failed]);
    let (out, err) = world.run(&["submit", "--count", "2", "--wait", "--", "true"]).await.failed();
    task.await.unwrap();
    assert_eq!((out.lines().count(), err.as_str()), (4, ""), "{out}");
    assert_eq!(out.lines().filter(|l| l.ends_with(" complete")).count(), 1, "{out}");
    assert_eq!(out.lines().filter(|l| l.contains(" failed: member 0 failed 1 times")).count(), 1, "{out}");
    let task = ends(vec![ClientStatus::Complete]);
    let jobs = world.run(&["submit", "--wait", "--json", "--", "true"]).await;
    task.await.unwrap();
    assert_eq!(jobs.result.as_ref().unwrap(), &Outcome::Done);
    assert_eq!(jobs.json()[0]["state"], "complete");
}

#[tokio::test]
async fn jobs_are_listed_as_people_and_programs_want() {
    let world = World::new().await;
    assert_eq!(world.run(&["jobs"]).await.done(), "no jobs are queued or placed (--all shows those that have ended)\n");
    world.put_job(1).await;
    let ended = world.put_job(2).await;
    let cancelled = ended.cancel(Span::from_s(9), at(940)).unwrap();
    world.store().write(Some(&ended), &cancelled, Vec::new()).await.unwrap();
    let line = |n, state: &str| format!("{}        {state}", id(n));
    let out = world.run(&["jobs"]).await.done();
    assert_eq!(
        out.lines().collect::<Vec<_>>(),
        [
            "JOB                         NAME  STATE   PRIORITY  NEEDS   ALLOCS  SUBMITTED".to_owned(),
            format!("{}  500       1 vCPU  0       16 min ago", line(1, "queued")),
        ]
    );
    let out = world.run(&["jobs", "--all"]).await.done();
    assert_eq!(out.lines().count(), 3);
    assert!(out.lines().last().unwrap().ends_with("16 min ago  1 min ago  cancelled by the operator"), "{out}");
    assert_eq!(world.run(&["jobs", "--json"]).await.json().as_array().unwrap().len(), 1);
    assert_eq!(world.run(&["jobs", "--all", "--json"]).await.json()[1]["state"], "cancelled");
}

#[tokio::test]
async fn a_job_says_why_it_waits() {
    let world = World::with_policy().await;
    world.put_job(1).await;
    let out = world.run(&["job", &id(1)]).await.done();
    let why = out.lines().find(|l| l.starts_with("waits because")).unwrap();
    assert!(why.contains("no ready node has room for it; the next run would launch 1 nodes"), "{out}");
    world.put_node(&fixtures::ready(0)).await;
    let row = world.run(&["job", &id(1), "--json"]).await.json();
    assert_eq!(row["state"], "queued");
    // The lease is long over by now: the node is rather to be disconnected than to be given work.
    assert!(row["waits_because"].as_str().unwrap().contains("no ready node has room"), "{row}");
    let mut world = world;
    world.now = at(100);
    let row = world.run(&["job", &id(1), "--json"]).await.json();
    assert_eq!(row["waits_because"], "the next run would place: it fits on slot 0");
    let quota = Memory { until_at: Some(at(160)), ..Memory::new("quota") };
    world.remember(quota).await;
    let seen = Observation::read(world.store(), &Listed(Vec::new()), at(100)).await.unwrap();
    let without = Observation { nodes: Vec::new(), ..seen };
    let why = waiting::because(&without, fixtures::job_id(1), at(100)).unwrap();
    assert_eq!(why, "no ready node has room for it; launching waits for 1 min more: quota");
}

#[tokio::test]
async fn a_job_shows_its_allocs_and_their_ends() {
    let world = World::with_policy().await;
    let (job, alloc) = world.put_running(1).await;
    let ending = Ending {
        client: ClientStatus::Failed,
        exit_code: Some(3),
        message: Some("exit code 3".into()),
        log_tail: Some("one\ntwo".into()),
    };
    let end = alloc.end(&ending, Span::from_s(9), at(970));
    world.store().write(Some(&alloc), &end, Vec::new()).await.unwrap();
    let out = world.run(&["job", &id(1)]).await.done();
    assert!(out.contains("command      true\n") && out.contains("failed       0 times, 0 retries allowed\n"), "{out}");
    let row = out.lines().find(|l| l.starts_with(&alloc.id().to_string())).unwrap();
    assert!(
        row.contains("failed") && row.contains("15 min ago") && row.ends_with("30 s ago  3     exit code 3"),
        "{out}"
    );
    assert!(out.lines().last().unwrap().ends_with("client failed   exit code 3"), "{out}");
    let node = fixtures::node_id(0);
    let tail = format!(
        "== {} on slot 0 (failed, exit code 3, 30 s ago)\n== message: exit code 3\n\
         == the end of its output (8 KiB at most), as node {node} reported it:\none\ntwo\n",
        alloc.id()
    );
    assert_eq!(world.run(&["logs", &id(1)]).await.done(), tail);
    assert_eq!(world.run(&["logs", &alloc.id().to_string()]).await.done(), tail);
    let logs = world.run(&["logs", &id(1), "--json"]).await.json();
    assert_eq!((&logs[0]["log_tail"], &logs[0]["exit_code"]), (&"one\ntwo".into(), &3.into()));
    assert!(world.run(&["logs", "x"]).await.result.unwrap_err().is::<Usage>());
    assert!(world.run(&["job", &id(9)]).await.error().contains("nodekeeper jobs --all"));
    assert_eq!(world.run(&["job", &id(1), "--json"]).await.json()["all_allocs"][0]["client"], "failed");
    assert_eq!(job.summary.state, JobState::Placed);
}

#[tokio::test]
async fn cancel_changes_the_job_and_nothing_else() {
    let world = World::with_policy().await;
    world.put_running(1).await;
    world.put_job(2).await;
    let (said, changed) = world.changes(&["cancel", &id(1)]).await;
    assert_eq!(said.done(), format!("{} cancelled: its 1 allocs are told to stop in the next run\n", id(1)));
    assert_eq!(changed, [format!("events/job#{}/cancel", id(1)), format!("jobs/{}", id(1))]);
    let job = world.store().job(fixtures::job_id(1)).await.unwrap().unwrap();
    assert_eq!((job.summary.state, job.summary.allocs.len(), job.expires_at), (JobState::Cancelled, 1, None));
    let event = &world.store().history(&format!("job#{}", id(1)), 9).await.unwrap()[0];
    assert_eq!((event.action.as_str(), event.reason.as_str(), event.at()), ("cancel", "by the operator", world.now));
    assert_eq!(event.expires_at, (world.now + Span::from_s(14 * 86_400)).as_epoch_s());
    // What is not there does not keep the others from being cancelled.
    let (said, changed) = world.changes(&["cancel", &id(9), &id(1), &id(2)]).await;
    let (out, err) = said.failed();
    assert_eq!(out, format!("{} was cancelled already\n{} cancelled\n", id(1), id(2)));
    assert!(err.starts_with(&format!("nodekeeper: there is no job {}", id(9))) && err.lines().count() == 1, "{err}");
    assert_eq!(changed, [format!("events/job#{}/cancel", id(2)), format!("jobs/{}", id(2))]);
}

#[tokio::test]
async fn a_lost_race_is_tried_again_but_not_for_ever() {
    let mut world = World::with_policy().await;
    let mut job = world.put_job(1).await;
    let mut theirs = Vec::new();
    for n in 0..3 {
        let renamed = Job { reason: Some(format!("touched {n}")), ..job.clone() };
        let (write, after) = change(Some(&job), &renamed);
        theirs.insert(0, write);
        job = after;
    }
    let db = world.cluster.dynamo.clone();
    world.cluster.store = Store::new(Arc::new(Rival { db: db.clone(), theirs: Mutex::new(theirs) }));
    world.run(&["cancel", &id(1)]).await.done();
    assert_eq!(world.store().job(fixtures::job_id(1)).await.unwrap().unwrap().summary.state, JobState::Cancelled);

    let mut node = world.put_node(&fixtures::ready(0)).await;
    let mut theirs = Vec::new();
    for _ in 0..4 {
        let (write, after) = change(Some(&node), &node.with_news(at(999)).unwrap());
        theirs.insert(0, write);
        node = after;
    }
    world.cluster.store = Store::new(Arc::new(Rival { db, theirs: Mutex::new(theirs) }));
    let (out, err) = world.run(&["hold", "0"]).await.failed();
    assert!(out.is_empty() && err.contains("someone else changed it 3 times meanwhile"), "{err}");
    assert_eq!(world.store().node(fixtures::slot(0)).await.unwrap().unwrap(), node);
}

#[tokio::test]
async fn intents_change_the_record_and_not_its_pulse() {
    let world = World::with_policy().await;
    let before = world.put_node(&fixtures::ready(0)).await;
    world.put_node(&fixtures::assigned(1)).await;
    for (command, intent, said) in [
        ("hold", Intent::Hold, "slot 0 held: it stays up and takes no new work\n"),
        ("drain", Intent::Drain, "slot 0 drains: it takes no new work and is shut down when idle\n"),
        ("resume", Intent::Run, "slot 0 takes work again\n"),
    ] {
        let (out, changed) = world.changes(&[command, "0"]).await;
        assert_eq!(out.done(), said);
        assert_eq!(changed, [format!("events/slot#0/{command}"), "nodes/0".to_owned()]);
        let record = world.store().node(fixtures::slot(0)).await.unwrap().unwrap();
        assert_eq!(record.life().unwrap().intent, intent);
        assert_eq!((record.contact(), record.status()), (before.contact(), Some(NodeStatus::Ready)));
    }
    let (said, changed) = world.changes(&["resume", "0"]).await;
    assert_eq!((said.done().as_str(), changed.len()), ("nothing changed: slot 0 is neither held nor drained\n", 0));
    let (said, changed) = world.changes(&["hold", "3", "1"]).await;
    let (out, err) = said.failed();
    assert!(out.starts_with("slot 1 held") && err.starts_with("nodekeeper: slot 3 has never had a node"), "{out}{err}");
    assert_eq!(changed, ["events/slot#1/hold", "nodes/1"]);
}

#[tokio::test]
async fn a_drain_with_a_deadline_keeps_it() {
    let world = World::with_policy().await;
    let interrupted = fixtures::ready(0).with_intent(Intent::Drain, Some(at(1100)), at(990)).unwrap();
    world.put_node(&interrupted).await;
    let (said, changed) = world.changes(&["drain", "0"]).await;
    assert_eq!((said.done().as_str(), changed.len()), ("nothing changed: slot 0 is being drained already\n", 0));
}

#[tokio::test]
async fn nodes_are_listed_and_shown() {
    let world = World::with_policy().await;
    world.put_running(1).await;
    let free = fixtures::assigned(1).clean(at(5), "refused").unwrap();
    world.put_node(&free).await;
    let out = world.run(&["nodes"]).await.done();
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines[0], "SLOT  STATE   STATUS  SIZE   MARKET     INSTANCE  INTENT  ALLOCS  HEARD FROM  REASON");
    assert!(
        lines[1].starts_with("0     in_use  ready   small  on_demand  i-0               1       15 min ago  runs ")
    );
    assert_eq!(lines[2..], ["1 free slots are not shown (--all)"]);
    assert_eq!(world.run(&["nodes", "--all"]).await.done().lines().count(), 3);
    assert_eq!(world.run(&["nodes", "--json"]).await.json()[1]["state"], "cleaned");
    let out = world.run(&["node", "0"]).await.done();
    assert!(out.contains("size              small: m7a.large, 2 vCPU, 8 GiB\n"), "{out}");
    assert!(out.contains("market            on_demand, $0.10 an hour\n"), "{out}");
    assert!(out.contains(&fixtures::alloc_id(1).to_string()) && out.ends_with("15 min ago  true\n"), "{out}");
    assert_eq!(world.run(&["node", "0", "--json"]).await.json()["status"], "ready");
    assert!(world.run(&["node", "3"]).await.error().contains("slot 3 has never had a node"));
}

#[tokio::test]
async fn a_handle_is_kept_and_let_go() {
    let world = World::with_policy().await;
    world.put_running(1).await;
    let other = world.put_node(&fixtures::ready(1)).await;
    world.put_handle(&other, "cache:data").await;
    let handle = format!("handles/{}/cache:data", fixtures::node_id(1));
    let (said, changed) = world.changes(&["keep", "cache:data", "--slot", "1"]).await;
    assert_eq!(said.done(), "handle cache:data on slot 1 is kept from now on\n");
    assert_eq!(changed, ["events/slot#1/keep".to_owned(), handle.clone()]);
    assert!(world.run(&["handles", "1"]).await.done().lines().nth(1).unwrap().contains("kept"));
    // Only one node has it: the slot may be left out.
    let (said, changed) = world.changes(&["keep", "cache:data"]).await;
    assert_eq!(
        (said.done().as_str(), changed.len()),
        ("nothing changed: handle cache:data on slot 1 is kept already\n", 0)
    );
    let (_, changed) = world.changes(&["keep", "cache:data", "--undo"]).await;
    assert_eq!(changed, ["events/slot#1/keep_undone".to_owned(), handle]);
    let rows = world.run(&["handles", "1", "--json"]).await.json();
    assert_eq!((&rows[0]["keep"], &rows[0]["due_at"]), (&serde_json::Value::Null, &world.now.as_ms().into()));
    let node = world.store().node(fixtures::slot(0)).await.unwrap().unwrap();
    world.put_handle(&node, "cache:data").await;
    let error = world.run(&["keep", "cache:data"]).await.error();
    assert!(error.starts_with("slots 0, 1 each have a handle cache:data"), "{error}");
    assert!(world.run(&["keep", "x", "--slot", "1"]).await.error().contains("`nodekeeper handles 1`"));
    assert_eq!(world.run(&["handles", "1"]).await.done().lines().count(), 2);
}

#[tokio::test]
async fn what_is_being_destroyed_cannot_be_kept() {
    let world = World::with_policy().await;
    let node = world.put_node(&fixtures::ready(0)).await;
    world.put_handle(&node, "h").await;
    let handle = world.store().handle(fixtures::node_id(0), "h").await.unwrap().unwrap();
    let marked = Handle { state: HandleState::Destroying, ..handle.clone() };
    world.store().apply(&shared::store::change_handle(&handle, &marked)).await.unwrap();
    let (said, changed) = world.changes(&["keep", "h", "--slot", "0"]).await;
    assert_eq!((said.error().as_str(), changed.len()), ("handle h cannot be kept: it is destroying already", 0));
}

#[tokio::test]
async fn a_release_lets_go_what_is_held_now_and_ends() {
    let mut world = World::with_policy().await;
    let mut instances = Vec::new();
    for slot in 0..4 {
        world.put_node(&fixtures::ready(slot)).await;
        instances.push(Instance {
            instance_id: format!("i-{slot}"),
            state: shared::cloud::InstanceState::Running,
            launched_at: at(0),
            zone: None,
            tags: BTreeMap::from([(shared::cloud::NODE_TAG.to_owned(), fixtures::node_id(slot).to_string())]),
        });
    }
    world.cluster.cloud = Arc::new(Listed(instances));
    let held = |plan: &str| plan.contains("hold_back");
    let plan = world.run(&["plan"]).await.done();
    assert!(held(&plan) && plan.contains("nodekeeper release leases"), "{plan}");
    let brake = Memory {
        since_at: Some(at(900)),
        until_at: Some(at(1900)),
        message: Some("all silent".into()),
        ..Memory::new("brake#leases")
    };
    world.remember(brake).await;
    let (said, changed) = world.changes(&["release", "leases"]).await;
    assert_eq!(said.done(), "what is held back of leases is let go in the next run (all silent)\n");
    assert_eq!(changed, ["control/release#leases", "events/cluster/release"]);
    let release = world.store().memory("release#leases").await.unwrap();
    assert_eq!((release.since_at, release.until_at), (Some(at(1000)), Some(at(4600))));
    let plan = world.run(&["plan"]).await.done();
    assert!(!held(&plan) && plan.contains("mark_down"), "{plan}");
    world.now = at(1060);
    assert_eq!(world.changes(&["release", "leases"]).await.1, ["control/release#leases", "events/cluster/release"]);
}

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
    for function in ["clean-stale-records", "sweep-dispatch"] {
        let (said, changed) = world.changes(&["plan", "--function", function]).await;
        assert_eq!((said.done().as_str(), changed.len()), ("the next run would do nothing\n", 0), "{function}");
    }
    // Another policy: nothing fits any more.
    let dir = tempfile::tempdir().unwrap();
    let other = file(&dir, "p.toml", &POLICY.replace("[nodes]\nmax = 4", "[nodes]\nmax = 0"));
    let out = world.run(&["plan", "--policy", &other]).await.done();
    assert!(out.contains("reject  job#"), "{out}");
}

#[tokio::test]
async fn a_state_that_cannot_be_read_loses_no_other() {
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
    assert!(err[1].starts_with("nodekeeper: line 4: the state cannot be read: missing field `now`"), "{err:?}");
    assert_eq!(err.len(), 2);
    // The same from a file; without a policy each says what is missing.
    let file = file(&dir, "states", &state);
    let out = world.run(&["plan", "--state", &file, "--policy", &policy]).await.done();
    assert_eq!(serde_json::from_str::<serde_json::Value>(&out).unwrap(), answers[0]);
    let (_, err) = world.run(&["plan", "--state", &file]).await.failed();
    assert!(err.contains("--policy F"), "{err}");
}

#[tokio::test]
async fn history_shows_the_newest_first() {
    let mut world = World::with_policy().await;
    world.put_node(&fixtures::ready(7)).await;
    world.run(&["hold", "7"]).await.done();
    world.now = at(1120);
    world.run(&["resume", "7"]).await.done();
    let out = world.run(&["history", "7"]).await.done();
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines[0], "WHEN                                  ACTION  REASON");
    assert_eq!(lines[1], "2027-01-15T08:18:40.000Z (0 s ago)    resume  by the operator");
    assert_eq!(lines[2], "2027-01-15T08:16:40.000Z (2 min ago)  hold    by the operator");
    assert_eq!(world.run(&["history", "slot#7", "--limit", "1", "--json"]).await.json()[0]["action"], "resume");
    assert_eq!(world.run(&["history", "cluster"]).await.done().lines().count(), 2);
    assert_eq!(world.run(&["history", &id(1)]).await.done(), format!("no events of job#{}\n", id(1)));
    assert!(world.run(&["history", "nonsense"]).await.result.unwrap_err().is::<Usage>());
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
        let run = RunRow {
            started_at: at(980),
            last_success_at: Some(at(980)),
            actions: 2,
            ..RunRow::new(format!("run#{function}"))
        };
        world.store().write(None, &run, Vec::new()).await.unwrap();
    }
    world.put_job(1).await;
    let out = world.run(&["status"]).await.done();
    assert!(out.contains("ok  poll-and-scale       last succeeded 20 s ago, 2 actions\n"), "{out}");
    assert!(out.ends_with("nodes: none\njobs: 1 queued\nall is well\n"), "{out}");

    // Three things go wrong, two are worth knowing, and what is over is not mentioned.
    world.put_node(&fixtures::ready(0)).await;
    let until = |key: &str, s: i64| Memory { until_at: Some(at(s)), message: Some("told".into()), ..Memory::new(key) };
    world.remember(until("brake#missing", 1200)).await;
    world.remember(until("backoff", 999)).await;
    world.remember(until("shortage#spot#m7a.large#any", 1120)).await;
    world.remember(Memory { policy_version: Some(1), ..until("bad_request#small", 0) }).await;
    world.remember(Memory { policy_version: Some(0), ..until("bad_request#large", 0) }).await;
    let warn = |s, reason| Event::new(&Subject::Cluster, "warn", reason, at(s), Span::from_s(99_999), s as u128);
    world.store().record(&warn(940, "instance i-9 has no node")).await.unwrap();
    world.store().record(&warn(900, "instance i-9 has no node")).await.unwrap();
    let (out, _) = world.run(&["status"]).await.failed();
    for line in [
        "WRONG  heartbeat-ingest             no heartbeat was ever accepted, and 1 nodes are in use: check",
        "WRONG  bad_request#small            EC2 refuses to launch size small: told: correct the policy",
        "WRONG  brake#missing                held back: told: look at `nodekeeper plan`, then wait or `nodekeeper release missing`",
        "note   shortage#spot#m7a.large#any  EC2 is short of spot m7a.large any; next try in 2 min: told",
        "note   cluster                      warned 1 min ago: instance i-9 has no node",
    ] {
        assert!(out.contains(line), "{line}\n{out}");
    }
    assert!(!out.contains("backoff") && !out.contains("large:") && out.matches("i-9").count() == 1, "{out}");
    let status = world.run(&["status", "--json"]).await.json();
    assert_eq!((&status["well"], &status["nodes"]["ready"]), (&false.into(), &1.into()));
    assert!(status["checks"].as_array().unwrap().iter().any(|c| c["level"] == "wrong" && c["to_do"] != ""));
}

#[tokio::test]
async fn a_function_that_is_overdue_is_wrong() {
    let world = World::with_policy().await;
    let row = |function: &str, success: i64| RunRow {
        last_success_at: Some(at(success)),
        error: Some("no\nway".into()),
        ..RunRow::new(format!("run#{function}"))
    };
    // Five periods of a minute, and of five minutes.
    for (function, success) in [("poll-and-scale", 699), ("sweep-dispatch", 700), ("clean-stale-records", -499)] {
        world.store().write(None, &row(function, success), Vec::new()).await.unwrap();
    }
    let (out, _) = world.run(&["status"]).await.failed();
    assert!(out.contains("WRONG  poll-and-scale       last succeeded 5 min ago; its last run failed: no way; it should run every 1 min"), "{out}");
    assert!(out.contains("note   sweep-dispatch "), "{out}");
    assert!(out.contains("note   clean-stale-records "), "{out}");
}

#[tokio::test]
async fn a_cluster_out_of_reach_is_one_line_that_says_what_to_do() {
    let mut world = World::empty().await;
    let config = aws_sdk_dynamodb::Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::new("eu-west-1"))
        .credentials_provider(Credentials::new("local", "local", None, None, "test"))
        .endpoint_url("http://127.0.0.1:9")
        .retry_config(aws_sdk_dynamodb::config::retry::RetryConfig::disabled())
        .build();
    let dynamo = Dynamo::new(aws_sdk_dynamodb::Client::from_conf(config), "test".parse().unwrap());
    world.cluster.store = Store::new(Arc::new(dynamo));
    for line in [&["jobs"][..], &["nodes"], &["status"], &["submit", "--", "true"], &["history", "cluster"]] {
        let error = world.run(line).await.error();
        assert!(error.contains("check AWS_ENDPOINT_URL_DYNAMODB") && error.lines().count() == 1, "{line:?}: {error}");
    }
}

#[test]
fn ids_are_checked_before_anything_is_asked() {
    let command = parse(&["job", &JobId::new(shared::ids::new_ulid(at(0))).to_string()]).unwrap();
    assert!(matches!(command, Command::Job(_)));
    <Line as clap::CommandFactory>::command().debug_assert();
}
