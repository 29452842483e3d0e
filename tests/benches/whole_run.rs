//! One whole run of a scheduled function on a large cluster: its calls, bytes, CPU time and peak memory.
//!
//! ```text
//! cargo bench --workspace --bench whole_run                          1,000 nodes, each case
//! cargo bench --workspace --bench whole_run -- 10000 idle            10,000 nodes, one case
//! cargo bench --workspace --bench whole_run -- 10000 idle --latency  EC2 answers as slowly as in a large account
//! cargo bench --workspace --bench whole_run -- 10000 1000000 queue   100 busy nodes, and so many jobs that wait
//! ```
//!
//! The run has a process of its own and talks through the AWS SDK to the embedded DynamoDB and to the EC2 stand-in, which
//! this process has filled before. So CPU time and memory are those of the run alone.
#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::indexing_slicing, reason = "a benchmark may fail loudly")]

mod meter;

use crate::meter::{Meter, Metered, cpu_ms, peak_mib};
use cloud::Ec2;
use futures::StreamExt;
use model::control::{RunNote, RunRow};
use model::fixtures::{self, at};
use model::functions::POLL_AND_SCALE;
use model::ids::Ulid;
use model::policy::example_json;
use model::{
    AllocId, ClientStatus, Cloud, ClusterName, Job, JobId, JobSpec, LaunchRequest, LaunchSettings, Needs, NodeRecord,
    NodeState, Policy, Span, Time,
};
use runtime::answer::ActionOutcome;
use runtime::clock::RunClock;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;
use store::Retention;
use store::placing::{Placing, place};
use store::{Db, Dynamo, Item, Store, Table};

const CASES: [&str; 6] = ["idle", "busy", "launch", "shut down", "orphans", "queue"];
/// How many rows the benchmark writes at the same time when it fills the cluster.
const AT_ONCE: usize = 32;
/// The nodes of the case `queue`.
const QUEUE_NODES: u32 = 100;
/// When the run takes place, in seconds; the nodes were launched at 0.
const NOW_S: i64 = 7200;

fn cluster() -> ClusterName {
    "large".parse().unwrap()
}

fn settings() -> LaunchSettings {
    let url = |name: &str| format!("https://{name}");
    LaunchSettings { cluster: cluster(), key: None, heartbeat_url: url("heartbeat"), sweep_url: url("sweep") }
}

fn dynamo(url: &str) -> Dynamo {
    meter::dynamo(url, cluster())
}

fn ec2(url: &str) -> Ec2 {
    let credentials = aws_sdk_ec2::config::Credentials::new("local", "local", None, None, "bench");
    let config = aws_sdk_ec2::Config::builder()
        .behavior_version(aws_sdk_ec2::config::BehaviorVersion::latest())
        .http_client(store::http_client())
        .region(aws_sdk_ec2::config::Region::new("us-east-1"))
        .credentials_provider(credentials)
        .endpoint_url(url);
    Ec2::new(aws_sdk_ec2::Client::from_conf(config.build()), cluster())
}

/// Carries out one run in this process, and prints what it used.
async fn measure(case: &str, dynamo_url: &str, ec2_url: &str) {
    let meter = Arc::new(Meter::default());
    let store = Store::new(Arc::new(Metered { inner: dynamo(dynamo_url), meter: Arc::clone(&meter) }));
    let cloud = Metered { inner: ec2(ec2_url), meter: Arc::clone(&meter) };
    let clock = RunClock::new(at(NOW_S), None, Duration::from_secs(50));
    let (before, input) = (cpu_ms(), json!({}));
    let answer = match case {
        "orphans" => clean_stale_records::tick(&store, &cloud, &input, clock).await.unwrap(),
        _ => poll_and_scale::tick(&store, &cloud, &settings(), &input, clock).await.unwrap(),
    };
    let outcomes: BTreeMap<String, usize> = answer.outcomes.iter().map(|(o, n)| (format!("{o:?}"), *n)).collect();
    let (calls, bytes) = meter.take();
    let done = answer.outcomes.get(&ActionOutcome::Done).copied().unwrap_or(0);
    println!(
        "{}",
        json!({"cpu_ms": cpu_ms() - before, "peak_mib": peak_mib(), "calls": calls, "bytes": bytes, "outcomes": outcomes,
            "done": done, "took_ms": answer.duration_ms})
    );
}

/// A ready node on a running instance.
async fn node(cloud: &Ec2, policy: &Policy, n: u32) -> NodeRecord {
    let request = LaunchRequest::render(&settings(), policy, fixtures::node_id(n), &[fixtures::offering()]);
    let instance = cloud.launch(&request, &format!("token-{n}")).await.unwrap().instances.remove(0);
    let id = instance.instance_id;
    let record = fixtures::assigned(n).bind(&fixtures::new_instance(&id), at(1)).unwrap();
    let lease = at(NOW_S) + Span::from_s(60);
    record.register(&fixtures::heartbeat(&id), "inc-1", lease, at(NOW_S - 10)).unwrap().open_gate(at(60)).unwrap()
}

async fn fill(case: &str, size: u32, dynamo: &Dynamo, cloud: &Ec2, policy: &Policy) {
    let store = &Store::new(Arc::new(dynamo.clone()));
    let row = model::control::PolicyRow::of_policy(policy);
    store.write(None, &row, Vec::new()).await.unwrap();
    let nodes = if case == "queue" { QUEUE_NODES } else { size };
    if !matches!(case, "launch" | "orphans") {
        // The last run has counted the nodes.
        let run = RunNote { in_use: Some(nodes.into()), ..RunNote::default() };
        let run = RunRow::of_function(POLL_AND_SCALE.name).with(run);
        store.write(None, &run, Vec::new()).await.unwrap();
    }
    let job = |n: u32| {
        let spec = JobSpec { needs: Needs { vcpus: 2, ..Needs::default() }, ..JobSpec::running(["true"]) };
        Job::submit(JobId::new(Ulid::from_parts(u64::from(n), u128::from(n) * 0x9E37_79B9)), spec, at(0)).unwrap()
    };
    if case == "queue" {
        let first = |part: u32| nodes + part * 1000;
        let parts = (0..size.div_ceil(1000)).map(|part| async move {
            let jobs = first(part)..first(part + 1).min(nodes + size);
            let rows: Vec<Item> = jobs.map(|n| store::row(&job(n))).collect();
            dynamo.put_new(Table::Jobs, &rows).await.unwrap();
        });
        futures::stream::iter(parts).buffer_unordered(2).collect::<Vec<()>>().await;
    }
    let keep = Retention::of(policy);
    let each = |n: u32| async move {
        match case {
            "launch" => drop(store.write(None, &job(n), Vec::new()).await.unwrap()),
            "orphans" => drop(node(cloud, policy, n).await),
            _ => {
                let mut record = node(cloud, policy, n).await;
                if let (NodeState::InUse(node), "shut down") = (&mut record.state, case) {
                    (node.contact.idle_since_at, node.contact.idle_runs) = (Some(at(100)), 9);
                }
                let record = store.write(None, &record, Vec::new()).await.unwrap();
                if matches!(case, "busy" | "queue") {
                    let job = store.write(None, &job(n), Vec::new()).await.unwrap();
                    let placing = Placing { replaces: None, output: None, keep, now: at(70), only_if: None };
                    place(store, &job, &[(0, &record)], &placing).await.unwrap();
                    let id = AllocId { job_id: job.summary.job_id, member: 0, copy: 0 };
                    let alloc = store.alloc(id).await.unwrap().unwrap();
                    let mut running = alloc.clone();
                    running.summary.client = ClientStatus::Running;
                    store.write(Some(&alloc), &running, Vec::new()).await.unwrap();
                }
            }
        }
    };
    futures::stream::iter((0..nodes).map(each)).buffer_unordered(AT_ONCE).collect::<Vec<()>>().await;
}

/// Fills a new cluster, carries out one run in a process of its own, and returns what the run used.
async fn case(case: &str, nodes: u32, latency: Option<ec2_stand_in::Latency>) -> Value {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let dynamo_url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { dynoxide::server::serve_on(listener, dynoxide::Database::memory().unwrap()).await });
    let clock_ms = Arc::new(AtomicI64::new(at(0).as_ms()));
    let clock = {
        let now = Arc::clone(&clock_ms);
        Arc::new(move || Time::from_ms(now.load(Ordering::SeqCst)))
    };
    let template = json!({"id": "lt-0123456789abcdef0", "name": "nodekeeper", "versions": [{"version": 1}]});
    let config = ec2_stand_in::Ec2Settings {
        launch_templates: vec![serde_json::from_value(template).unwrap()],
        latency,
        ..ec2_stand_in::Ec2Settings::default()
    };
    let stand_in = ec2_stand_in::Ec2Region::new(config, clock, Arc::new(ec2_stand_in::NoMachines));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let ec2_url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(ec2_stand_in::serve(listener, Arc::clone(&stand_in)));
    let mut document = example_json();
    let most = if case == "queue" { QUEUE_NODES } else { nodes.max(1) };
    document["nodes"] = json!({"max": most, "min": if case == "idle" { nodes } else { 0 }});
    document["launch"]["max_per_run"] = json!(most);
    document["stale"] = json!({"orphan_brake_min": nodes});
    let policy = Policy::from_json(&document).unwrap();
    let tables = dynamo(&dynamo_url);
    nodekeeper_cli::local::tables::make(&tables).await.unwrap();
    fill(case, nodes, &tables, &ec2(&ec2_url), &policy).await;
    clock_ms.store(at(NOW_S).as_ms(), Ordering::SeqCst);
    stand_in.advance();
    let mut run = tokio::process::Command::new(std::env::current_exe().unwrap());
    run.args(["--measure", case, &dynamo_url, &ec2_url]).env("RUST_LOG", "off");
    let output = run.output().await.unwrap();
    assert!(output.status.success(), "{case}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn main() {
    let (flags, args): (Vec<String>, Vec<String>) =
        std::env::args().skip(1).filter(|a| a != "--bench").partition(|a| a == "--latency");
    let latency = (!flags.is_empty()).then(ec2_stand_in::Latency::default);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    if let [measured, case, dynamo_url, ec2_url] = args.as_slice()
        && measured == "--measure"
    {
        // As in Lambda: one thread.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        return runtime.block_on(measure(case, dynamo_url, ec2_url));
    }
    let nodes: Vec<u32> = args.iter().filter_map(|a| a.parse().ok()).collect();
    let words: Vec<&String> = args.iter().filter(|a| a.parse::<u32>().is_err()).collect();
    let nodes = if nodes.is_empty() { vec![1000] } else { nodes };
    println!(
        "{:>7}  {:<10} {:>8} {:>9} {:>8} {:>8}  outcomes; calls",
        "nodes", "case", "CPU ms", "peak MiB", "read KiB", "took ms"
    );
    for n in nodes {
        for name in CASES.into_iter().filter(|c| words.is_empty() || words.iter().any(|w| c.contains(w.as_str()))) {
            let used = runtime.block_on(case(name, n, latency));
            let number = |field: &str| used[field].as_u64().unwrap_or(0);
            println!(
                "{n:>7}  {name:<10} {:>8} {:>9} {:>8} {:>8}  {}; {}",
                number("cpu_ms"),
                number("peak_mib"),
                number("bytes") / 1024,
                number("took_ms"),
                used["outcomes"],
                used["calls"]
            );
        }
    }
}
