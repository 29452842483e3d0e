//! The heartbeats of a large fleet against the embedded DynamoDB, in real time, with a run of poll-and-scale each minute.
//!
//! ```text
//! cargo bench --workspace --bench heartbeats                 10,000 nodes for ten minutes
//! cargo bench --workspace --bench heartbeats -- 1000 60      1,000 nodes for a minute
//! cargo bench --workspace --bench heartbeats -- client       the CPU of one process: the function, and its calls by the SDK
//! cargo bench --workspace --bench heartbeats -- alone        the function alone: no database, no client of AWS
//! cargo bench --workspace --bench heartbeats -- alone 1000   so many heartbeats, once: to count allocations by valgrind
//! ```
//!
//! Each node calls at the time that the last answer told it. The benchmark fails if a heartbeat is refused, or if the
//! version of a record changes. A steady heartbeat does not change the version, and the loss of a lease does.
#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::indexing_slicing, reason = "a benchmark may fail loudly")]
#![allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

mod meter;

use crate::meter::cpu_ms;
use async_trait::async_trait;
use heartbeat_ingest::Ingest;
use model::policy::example_json;
use model::{
    Cloud, CloudError, ClusterName, Instance, LaunchAnswer, LaunchError, LaunchRequest, LaunchSettings, NodeKey,
    NodeRecord, Policy, Span, Time, fixtures,
};
use nodekeeper_cli::local::tables;
use runtime::clock::RunClock;
use runtime::http::NodeCredentials;
use serde_json::{Value, json};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use store::{Answer, Db, DbError, Item, Key, Page, PageKey, Query, Row, Scan, Store, Table, Write, WriteError};
use tokio::task::JoinSet;

/// How many requests are under way at the same time at most.
const AT_ONCE: usize = 64;
const PERIOD: Duration = Duration::from_secs(60);

/// EC2 with a running instance for each node.
struct Running(Vec<Instance>);

#[async_trait]
impl Cloud for Running {
    async fn instances(&self) -> Result<Vec<Instance>, CloudError> {
        Ok(self.0.clone())
    }
    async fn instance(&self, instance_id: &str) -> Result<Option<Instance>, CloudError> {
        Ok(self.0.iter().find(|i| i.instance_id == instance_id).cloned())
    }
    async fn launch(&self, _: &LaunchRequest, _: &str) -> Result<LaunchAnswer, LaunchError> {
        Err(LaunchError::Lost("nothing is launched here".into()))
    }
    async fn terminate(&self, _: &[String]) -> Result<(), CloudError> {
        Ok(())
    }
    async fn console_output(&self, _: &str) -> Result<Option<String>, CloudError> {
        Ok(None)
    }
}

fn request(n: u32, token: &str, as_of: u64, uptime_ms: u128) -> Value {
    let body = json!({"instance_id": format!("i-{n}"), "boot_id": "boot-1", "incarnation": "inc-1", "as_of": as_of,
        "uptime_ms": u64::try_from(uptime_ms).unwrap()});
    json!({
        "version": "2.0", "rawPath": format!("/v1/nodes/{}/heartbeat", fixtures::node_id(n)),
        "requestContext": {"http": {"method": "POST"}},
        "headers": {"authorization": format!("Bearer {token}"), "content-type": "application/json"},
        "body": body.to_string(), "isBase64Encoded": false,
    })
}

fn cluster() -> ClusterName {
    "large".parse().unwrap()
}

fn key() -> NodeKey {
    "5a".repeat(32).parse().unwrap()
}

/// Starts an embedded DynamoDB in this process, and makes its tables and a policy for so many nodes. Returns its URL, the
/// tables and the policy.
async fn database(nodes: u32) -> (String, Store, Policy) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { dynoxide::server::serve_on(listener, dynoxide::Database::memory().unwrap()).await });
    let dynamo = meter::dynamo(&url, cluster());
    tables::make(&dynamo).await.unwrap();
    let store = Store::new(Arc::new(dynamo));
    let mut document = example_json();
    document["nodes"] = json!({"max": nodes, "min": nodes});
    document["heartbeat"]["idle_s"] = json!(60);
    let policy = Policy::from_json(&document).unwrap();
    store.write(None, &model::control::PolicyRow::of_policy(&policy), Vec::new()).await.unwrap();
    (url, store, policy)
}

const AN_HOUR: Span = Span::from_s(3600);

/// A node that was launched an hour ago, and has just registered.
fn node(n: u32, policy: &Policy, nodes: u64, now: Time) -> NodeRecord {
    let (id, lease) = (format!("i-{n}"), now + policy.heartbeat.lease(nodes));
    let record = NodeRecord::assign(fixtures::slot(n), None, fixtures::new_life(n), now - AN_HOUR, "").unwrap();
    let record = record.bind(&fixtures::new_instance(&id), now - AN_HOUR).unwrap();
    record.register(&fixtures::heartbeat(&id), "inc-1", lease, now).unwrap().open_gate(now).unwrap()
}

async fn whole(nodes: u32, seconds: u64) {
    let (_, store, policy) = database(nodes).await;
    let now = Time::now();
    let (mut instances, mut orders) = (Vec::new(), Vec::new());
    for n in 0..nodes {
        let record = node(n, &policy, u64::from(nodes), now);
        instances.push(Instance { launched_at: now - AN_HOUR, ..fixtures::running(&format!("i-{n}"), &record) });
        orders.push(record.life().unwrap().seq);
        store.write(None, &record, Vec::new()).await.unwrap();
    }
    let versions: Vec<_> = store.nodes().await.unwrap().iter().map(|n| (n.slot, n.version)).collect();
    let tokens: Vec<String> = (0..nodes).map(|n| key().token(&cluster(), fixtures::node_id(n))).collect();
    let ingest = Arc::new(Ingest::new(store.clone(), NodeCredentials::Token(key()), cluster()));
    let settings =
        LaunchSettings { cluster: cluster(), key: Some(key()), heartbeat_url: String::new(), sweep_url: String::new() };
    let cloud = Arc::new(Running(instances));

    let began = Instant::now();
    let end = began + Duration::from_secs(seconds);
    // At first the calls are spread over the time that a node may wait.
    let spread = 60_000 / u64::from(nodes).max(1);
    let mut due: BinaryHeap<Reverse<(Instant, u32)>> =
        (0..nodes).map(|n| Reverse((began + Duration::from_millis(u64::from(n) * spread.max(1)), n))).collect();
    let mut under_way: JoinSet<(u32, f64, Duration)> = JoinSet::new();
    let (mut beats, mut slowest, mut runs, mut next_run) = (0_u64, Duration::ZERO, 0, began + PERIOD);
    let cpu = cpu_ms();
    while Instant::now() < end {
        if Instant::now() >= next_run {
            next_run += PERIOD;
            let clock = RunClock::new(Time::now(), None, Duration::from_secs(50));
            let answer = poll_and_scale::tick(&store, &*cloud, &settings, &json!({}), clock).await.unwrap();
            assert!(answer.actions.is_empty(), "a run has something to do: {:?}", answer.actions.first());
            runs += 1;
        }
        while let Some(Reverse((at, n))) = due.peek().copied()
            && at <= Instant::now()
            && under_way.len() < AT_ONCE
        {
            due.pop();
            let (ingest, event) =
                (Arc::clone(&ingest), request(n, &tokens[n as usize], orders[n as usize], began.elapsed().as_millis()));
            under_way.spawn(async move {
                let asked = Instant::now();
                let answer = ingest.handle(&event, Time::now()).await;
                assert_eq!(answer["statusCode"], 200, "{answer}");
                let body: Value = serde_json::from_str(answer["body"].as_str().unwrap()).unwrap();
                (n, body["next_heartbeat_s"].as_f64().unwrap(), asked.elapsed())
            });
        }
        let wait = due.peek().map_or(end, |Reverse((at, _))| (*at).min(end));
        tokio::select! {
            Some(done) = under_way.join_next(), if !under_way.is_empty() => {
                let (n, next_s, took) = done.unwrap();
                beats += 1;
                slowest = slowest.max(took);
                due.push(Reverse((Instant::now() + Duration::from_secs_f64(next_s), n)));
            }
            () = tokio::time::sleep_until(wait.min(next_run).into()), if under_way.len() < AT_ONCE => {}
        }
    }
    while let Some(done) = under_way.join_next().await {
        done.unwrap();
    }
    let used = cpu_ms() - cpu;
    let after = store.nodes().await.unwrap();
    let now: Vec<_> = after.iter().map(|n| (n.slot, n.version)).collect();
    assert_eq!(now, versions, "a record changed, so a lease was lost");
    let late = after.iter().filter(|n| n.contact().unwrap().lease_expires_at < Time::now()).count();
    assert_eq!(late, 0, "{late} leases are over");
    let left =
        after.iter().map(|n| n.contact().unwrap().lease_expires_at.since(Time::now())).min().unwrap_or(Span::ZERO);
    println!(
        "{nodes} nodes, {seconds} s: {beats} heartbeats ({:.0} a second), {runs} runs, no lease lost; the shortest lease \
         has {} s left; the slowest answer took {} ms; CPU with the database {:.2} ms a heartbeat",
        beats as f64 / seconds as f64,
        left.as_s(),
        slowest.as_millis(),
        used as f64 / beats as f64
    );
}

/// A database that takes every write, and answers with this row.
struct Steady(Item);

#[async_trait]
impl Db for Steady {
    async fn get(&self, _: &Key) -> Result<Option<Row>, DbError> {
        Ok(None)
    }
    async fn get_many(&self, _: &[Key]) -> Result<Vec<Row>, DbError> {
        let mut document = example_json();
        document["heartbeat"]["idle_s"] = json!(60);
        let policy = model::control::PolicyRow::of_policy(&Policy::from_json(&document).unwrap());
        Ok(vec![store::row(&policy).into()])
    }
    async fn query(&self, _: &Query, _: Option<PageKey>) -> Result<Page, DbError> {
        Ok(Page::default())
    }
    async fn scan(&self, _: &Scan, _: Option<PageKey>) -> Result<Page, DbError> {
        Ok(Page::default())
    }
    async fn write(&self, write: &Write, _: Answer) -> Result<Option<Row>, WriteError> {
        Ok((write.key.table == Table::Nodes).then(|| self.0.clone().into()))
    }
    async fn transact(&self, _: &[Write]) -> Result<(), WriteError> {
        Ok(())
    }
    async fn put_new(&self, _: Table, _: &[Item]) -> Result<(), DbError> {
        Ok(())
    }
}

/// Sends heartbeats of the node 1, one after the other. Each comes a second after the one before, so that no limit on
/// calls applies. Returns the time of the last one.
async fn steady(ingest: &Ingest, as_of: u64, beats: u32, mut now: Time) -> Time {
    let token = key().token(&cluster(), fixtures::node_id(1));
    for _ in 0..beats {
        now = now + Span::from_s(1);
        let answer = ingest.handle(&request(1, &token, as_of, now.as_ms().unsigned_abs().into()), now).await;
        assert_eq!(answer["statusCode"], 200, "{answer}");
    }
    now
}

/// The time of one steady heartbeat in the function itself: the event, the token, the body, the write's conditions, the
/// record and the answer.
async fn alone(beats: u32, rounds: u32) {
    let record = fixtures::ready(1);
    let store = Store::new(Arc::new(Steady(store::row(&record))));
    let ingest = Ingest::new(store, NodeCredentials::Token(key()), cluster());
    let (mut now, mut least) = (Time::now(), Duration::MAX);
    for _ in 0..rounds {
        let began = Instant::now();
        now = steady(&ingest, record.life().unwrap().seq, beats, now).await;
        least = least.min(began.elapsed());
    }
    println!("a steady heartbeat in the function alone: {:.1} µs", least.as_secs_f64() * 1e6 / f64::from(beats));
}

/// The CPU time of one steady heartbeat with its call of DynamoDB, which another process answers.
async fn client(beats: u32) {
    let (url, store, policy) = database(1).await;
    store.write(None, &node(1, &policy, 1, Time::now()), Vec::new()).await.unwrap();
    let mut sender = tokio::process::Command::new(std::env::current_exe().unwrap());
    let ended = sender.args(["send", &url, &beats.to_string()]).status().await.unwrap();
    assert!(ended.success());
}

async fn send(url: &str, beats: u32) {
    let store = Store::new(Arc::new(meter::dynamo(url, cluster())));
    let as_of = store.nodes().await.unwrap()[0].life().unwrap().seq;
    let ingest = Ingest::new(store, NodeCredentials::Token(key()), cluster());
    // The first ones connect and read the policy.
    let now = steady(&ingest, as_of, 100, Time::now()).await;
    let before = cpu_ms();
    steady(&ingest, as_of, beats, now).await;
    let each = (cpu_ms() - before) as f64 * 1000.0 / f64::from(beats);
    println!("a steady heartbeat with its call of DynamoDB: {each:.0} µs of CPU, the mean of {beats}");
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let number = |at: usize, usual: u32| words.get(at).map_or(usual, |n| n.parse().unwrap());
    let one_thread = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    match words.first() {
        Some(&"alone") => one_thread().block_on(alone(number(1, 100_000), if words.len() > 1 { 1 } else { 5 })),
        Some(&"client") => one_thread().block_on(client(number(1, 20_000))),
        Some(&"send") => one_thread().block_on(send(words[1], number(2, 0))),
        _ => {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
            runtime.block_on(whole(number(0, 10_000), number(1, 600).into()));
        }
    }
}
