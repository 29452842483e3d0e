//! Reports of many handles: time, calls to DynamoDB, CPU time and memory.
//!
//! ```text
//! cargo bench --workspace --bench reports -- node 100000     one node with so many handles
//! cargo bench --workspace --bench reports -- fleet 1000 250  so many nodes with so many handles each, all at once
//! cargo bench --workspace --bench reports -- alone           an unchanged report of 250 handles: the function alone
//! ```
//!
//! The function has a process of its own and talks through the AWS SDK to the embedded DynamoDB of this process. It shares
//! its process with the nodes of the benchmark, which only make the requests.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a benchmark may fail loudly"
)]
#![allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

mod meter;

use crate::meter::{Meter, Metered, cpu_ms, peak_mib};
use async_trait::async_trait;
use futures::StreamExt;
use model::control::PolicyRow;
use model::policy::example_json;
use model::wire::{HandleReport, HandleReportAnswer, MAX_HANDLES, ReportedHandle};
use model::{ClusterName, Handle, HandleKind, HandleState, NodeId, NodeKey, NodeRecord, Policy, Span, Time, fixtures};
use nodekeeper_cli::local::tables;
use runtime::clock::RunClock;
use runtime::http::NodeCredentials;
use runtime::lambda::Reply;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};
use store::{
    Answer, Db, DbError, Dynamo, Effect, Item, Key, Page, PageKey, Query, Row, Scan, Store, Table, Write, WriteError,
};
use sweep_dispatch::Sweep;

/// How many requests run at the same time.
const AT_ONCE: usize = 32;

fn cluster() -> ClusterName {
    "large".parse().unwrap()
}

fn node_key() -> NodeKey {
    "5a".repeat(32).parse().unwrap()
}

fn dynamo(url: &str) -> Dynamo {
    meter::dynamo(url, cluster())
}

fn sweep(store: Store) -> Sweep {
    Sweep::new(store, NodeCredentials::Token(node_key()), cluster())
}

fn ready(n: u32, now: Time) -> NodeRecord {
    let (instance, hour_ago) = (format!("i-{n}"), now - Span::from_s(3600));
    let record = NodeRecord::assign(fixtures::slot(n), None, fixtures::new_life(n), hour_ago, "").unwrap();
    let record = record.bind(&fixtures::new_instance(&instance), hour_ago).unwrap();
    let record = record.register(&fixtures::heartbeat(&instance), "inc-1", now + Span::from_s(36_000), now).unwrap();
    record.open_gate(now).unwrap()
}

/// A node of the benchmark, which reports its handles.
struct Node {
    id: NodeId,
    token: String,
    as_of: u64,
    handles: BTreeSet<String>,
    report_no: u64,
}

impl Node {
    fn new(n: u32, record: &NodeRecord, handles: usize) -> Self {
        let (id, key) = (fixtures::node_id(n), node_key());
        let handles = (0..handles).map(|h| format!("container-{h:08}")).collect();
        let as_of = record.life().unwrap().seq;
        Self { id, token: key.token(&cluster(), id), as_of, handles, report_no: 0 }
    }

    fn report(&mut self) -> HandleReport {
        let label = Some(self.id.to_string());
        let listed = |handle: &String| ReportedHandle {
            handle: handle.clone(),
            kind: HandleKind::Container,
            label: label.clone(),
            stays: None,
        };
        // The agent's digest differs for other handles. This one does for those of the benchmark.
        let first: String = self.handles.iter().flat_map(|handle| handle.chars().take(5)).take(5).collect();
        self.report_no += 1;
        HandleReport {
            incarnation: "inc-1".into(),
            report_no: self.report_no,
            as_of: self.as_of,
            complete: self.handles.len() <= MAX_HANDLES,
            digest: format!("{first}{:x}", self.handles.len()),
            handles: self.handles.iter().take(MAX_HANDLES).map(listed).collect(),
        }
    }

    fn event(&self, report: &HandleReport) -> Value {
        json!({
            "version": "2.0", "rawPath": format!("/v1/nodes/{}/handles", self.id),
            "requestContext": {"http": {"method": "POST"}},
            "headers": {"authorization": format!("Bearer {}", self.token), "content-type": "application/json"},
            "body": serde_json::to_string(report).unwrap(), "isBase64Encoded": false,
        })
    }
}

async fn send(sweep: &Sweep, event: Value, now: Time) -> HandleReportAnswer {
    let Reply::Http(answer) = sweep.handle(event, RunClock::new(now, None, Duration::from_secs(50))).await.unwrap()
    else {
        panic!("a report was taken for the schedule")
    };
    assert_eq!(answer["statusCode"], 200, "{answer}");
    serde_json::from_str(answer["body"].as_str().unwrap()).unwrap()
}

/// The time at which requests come. Each comes long after the one before, so that no limit on calls applies.
struct Clock(AtomicI64);

impl Clock {
    fn next(&self) -> Time {
        Time::from_ms(self.0.fetch_add(100, Ordering::SeqCst))
    }
}

/// Prints what was used since the last line.
struct Used {
    meter: Arc<Meter>,
    began: Instant,
    cpu_ms: u64,
}

impl Used {
    fn new(meter: Arc<Meter>) -> Self {
        Self { meter, began: Instant::now(), cpu_ms: cpu_ms() }
    }

    fn print(&mut self, what: &str, requests: usize) {
        let (calls, bytes) = self.meter.take();
        println!(
            "{what:<52} {requests:>6} requests {:>7.1} s, CPU {:>6.1} s, peak {:>4} MiB, read {:>7} KiB; {calls:?}",
            self.began.elapsed().as_secs_f64(),
            (cpu_ms() - self.cpu_ms) as f64 / 1000.0,
            peak_mib(),
            bytes / 1024
        );
        (self.began, self.cpu_ms) = (Instant::now(), cpu_ms());
    }
}

fn rows(n: u32, handles: &BTreeSet<String>, now: Time) -> Vec<Item> {
    let kind = HandleKind::Container;
    let row = |name: &String| Handle::new(fixtures::node_id(n), name.clone(), kind, HandleState::Live, 0, now);
    let item = |write: Write| match write.effect {
        Effect::Put(item) => item,
        other => panic!("{other:?}"),
    };
    handles.iter().map(|name| item(store::insert_handle(&row(name)))).collect()
}

/// The handles of no report are unusual: the brake lets all of them go.
async fn set_policy(store: &Store) {
    let mut document = example_json();
    document["sweep"] = json!({"cap_min": 1_000_000});
    let policy = Policy::from_json(&document).unwrap();
    store.write(None, &PolicyRow::of_policy(&policy), Vec::new()).await.unwrap();
}

/// One node whose handles all have rows, and then the same node after all rows were lost: each handle gets a row, is
/// marked, and is destroyed.
async fn node(handles: usize, url: &str) {
    let meter = Arc::new(Meter::default());
    let dynamo = dynamo(url);
    let store = Store::new(Arc::new(Metered { inner: dynamo.clone(), meter: Arc::clone(&meter) }));
    set_policy(&store).await;
    let sweep = sweep(store.clone());
    let clock = Clock(AtomicI64::new(Time::now().as_ms()));
    for (n, have_rows) in [(1, true), (2, false)] {
        let now = clock.next();
        let record = store.write(None, &ready(n, now), Vec::new()).await.unwrap();
        let mut node = Node::new(n, &record, handles);
        if have_rows {
            dynamo.put_new(Table::Handles, &rows(n, &node.handles, now)).await.unwrap();
        }
        let mut used = Used::new(Arc::clone(&meter));
        meter.take();
        let mut rounds = 0;
        loop {
            rounds += 1;
            let report = node.report();
            let answer = send(&sweep, node.event(&report), clock.next()).await;
            assert_eq!(answer.left, 0);
            let destroyed = answer.destroy.len();
            answer.destroy.iter().for_each(|handle| _ = node.handles.remove(handle));
            let (settled, seq) = (answer.settled, answer.seq);
            node.as_of = seq;
            let what = if have_rows { "with rows" } else { "without rows" };
            if rounds <= 3 || settled.is_some() || rounds % 10 == 0 {
                let left = node.handles.len();
                used.print(&format!("{what}, report {rounds}: {destroyed} destroyed, {left} left"), 1);
            }
            // The agent does not send a settled report again.
            if settled.is_some() || node.handles.is_empty() {
                break;
            }
        }
    }
}

/// All nodes report at once: handles that have rows, the same once more, and then handles without rows.
async fn fleet(nodes: u32, handles: usize, url: &str) {
    let meter = Arc::new(Meter::default());
    let dynamo = dynamo(url);
    let store = Store::new(Arc::new(Metered { inner: dynamo.clone(), meter: Arc::clone(&meter) }));
    set_policy(&store).await;
    let (sweep, now) = (Arc::new(sweep(store.clone())), Time::now());
    let mut all = Vec::new();
    for n in 0..nodes {
        let record = store.write(None, &ready(n, now), Vec::new()).await.unwrap();
        let node = Node::new(n, &record, handles);
        dynamo.put_new(Table::Handles, &rows(n, &node.handles, now)).await.unwrap();
        all.push(node);
    }
    let mut used = Used::new(Arc::clone(&meter));
    meter.take();
    for (round, what) in
        ["with rows", "the same again", "250 others, without rows", "the others again"].iter().enumerate()
    {
        if round == 2 {
            for node in &mut all {
                node.handles = (0..handles).map(|h| format!("other-{h:08}")).collect();
            }
        }
        let requests: Vec<Value> = all
            .iter_mut()
            .map(|node| {
                let report = node.report();
                node.event(&report)
            })
            .collect();
        used.print("(the requests are made)", 0);
        let sent = futures::stream::iter(requests).map(|event| {
            let (sweep, now) = (Arc::clone(&sweep), now + Span::from_s(60 * i64::try_from(round).unwrap()));
            async move { tokio::spawn(async move { send(&sweep, event, now).await }).await.unwrap() }
        });
        let answers: Vec<HandleReportAnswer> = sent.buffer_unordered(AT_ONCE).collect().await;
        let settled = answers.iter().filter(|a| a.settled.is_some()).count();
        let destroy: usize = answers.iter().map(|a| a.destroy.len()).sum();
        used.print(&format!("{what}: {settled} settled, {destroy} to destroy"), answers.len());
    }
}

/// A database whose node record says that the report is settled.
struct Settled(Item);

#[async_trait]
impl Db for Settled {
    async fn get(&self, key: &Key) -> Result<Option<Row>, DbError> {
        Ok((key.table == Table::Nodes).then(|| self.0.clone().into()))
    }
    async fn get_many(&self, _: &[Key]) -> Result<Vec<Row>, DbError> {
        panic!("an unchanged report reads the node's record only")
    }
    async fn query(&self, _: &Query, _: Option<PageKey>) -> Result<Page, DbError> {
        panic!("an unchanged report reads the node's record only")
    }
    async fn scan(&self, _: &Scan, _: Option<PageKey>) -> Result<Page, DbError> {
        panic!("an unchanged report reads the node's record only")
    }
    async fn write(&self, _: &Write, _: Answer) -> Result<Option<Row>, WriteError> {
        panic!("an unchanged report writes nothing")
    }
    async fn transact(&self, _: &[Write]) -> Result<(), WriteError> {
        panic!("an unchanged report writes nothing")
    }
    async fn put_new(&self, _: Table, _: &[Item]) -> Result<(), DbError> {
        panic!("an unchanged report writes nothing")
    }
}

/// The time of an unchanged report in the function itself: the event, the token, the body and the digest.
async fn alone() {
    const REPORTS: usize = 2000;
    let now = Time::now();
    let mut record = ready(1, now);
    let mut node = Node::new(1, &record, 250);
    let reports: Vec<HandleReport> = (0..REPORTS).map(|_| node.report()).collect();
    let settled = format!("{}#{}", record.life().unwrap().seq, reports[0].digest);
    if let model::NodeState::InUse(node) = &mut record.state {
        node.contact.settled = Some(settled);
    }
    let mut at = now;
    let mut least = Duration::MAX;
    for _ in 0..5 {
        let sweep = sweep(Store::new(Arc::new(Settled(store::row(&record)))));
        let events: Vec<Value> = reports.iter().map(|report| node.event(report)).collect();
        let began = Instant::now();
        for event in events {
            at = at + Span::from_s(1);
            let answer = send(&sweep, event, at).await;
            assert!(answer.settled.is_some());
        }
        least = least.min(began.elapsed());
    }
    let micros = least.as_secs_f64() * 1e6 / REPORTS as f64;
    println!("an unchanged report of 250 handles, in the function alone: {micros:.0} µs");
}

/// Runs one case in a process of its own against a new embedded DynamoDB of this process.
async fn apart(args: &[String]) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { dynoxide::server::serve_on(listener, dynoxide::Database::memory().unwrap()).await });
    tables::make(&dynamo(&url)).await.unwrap();
    let mut run = tokio::process::Command::new(std::env::current_exe().unwrap());
    let status = run.arg("--measure").arg(&url).args(args).env("RUST_LOG", "off").status().await.unwrap();
    assert!(status.success());
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let number = |text: &str| text.parse::<usize>().unwrap();
    // As in Lambda: one thread.
    let single = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    match words.as_slice() {
        ["--measure", url, "node", handles] => single.block_on(node(number(handles), url)),
        ["--measure", url, "fleet", nodes, handles] => {
            single.block_on(fleet(u32::try_from(number(nodes)).unwrap(), number(handles), url));
        }
        ["alone"] => single.block_on(alone()),
        ["node", ..] | ["fleet", ..] => {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
            runtime.block_on(apart(&args));
        }
        _ => println!("say what to measure: node HANDLES, fleet NODES HANDLES, or alone"),
    }
}
