//! A cluster in virtual time that counts its calls: the real functions, and nodes with the agent's real protocol and
//! its times.
//!
//! Guarantees: each invocation of a function is noted with its use; nodes call when the answers tell them to, and
//! report as soon as they have news, like the agent; new jobs, ended allocs, ready nodes and ended
//! instances wake poll-and-scale.
//! Does not: fail. The cost of faults is not counted.

use super::account::{Account, Ec2};
use super::meter::{Meter, Tables, Use};
use crate::world::node::{answer, http};
use crate::world::{START, set_policy};
use model::functions::{CLEAN_STALE_RECORDS, FUNCTIONS, POLL_AND_SCALE, SWEEP_DISPATCH};
use model::launch::node_file_in;
use model::wire::{AllocOrder, HandleReportAnswer, NodeFile, ReportedHandle};
use model::{
    AllocId, Ending, HandleKind, Job, JobId, JobSpec, LaunchSettings, NodeKey, Policy, Rng, RunReport, Span, Time,
    Usage,
};
use nodekeeper_agent::protocol::{Durable, HandleList, Identity, MachineTask, Node as Protocol, Observed};
use nodekeeper_agent::work::progress::ProgressSampler;
use runtime::answer::{Ran, RunAnswer};
use runtime::clock::RunClock;
use runtime::http::NodeCredentials;
use runtime::lambda::Reply;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use store::Store;
use tokio::task::JoinSet;

/// The time from the launch of an instance to its first heartbeat.
const BOOT_S: i64 = 60;
pub const JOB_S: i64 = 900;
/// How often the agent asks whether a running alloc is to be looked at.
const SAMPLE_S: i64 = 10;
/// The agent's wait before a handle report that follows a change (`agent/src/handles/sweep.rs`).
const CHANGE_MS: i64 = 500;

/// What was invoked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A run of poll-and-scale that the schedule started.
    Poll,
    /// A run of poll-and-scale that an event started.
    Woken,
    /// An event that came so soon after a run that another run does its work.
    Left,
    Clean,
    Sweep,
    Heartbeat,
    AllocReport,
    HandleReport,
    /// `nodekeeper submit`: no function, but calls of DynamoDB.
    Submit,
}

#[derive(Clone, Copy, Debug)]
pub struct Invocation {
    pub kind: Kind,
    pub used: Use,
    /// How long it waited for its turn, in seconds.
    pub waited_s: f64,
    /// How many nodes had an instance.
    pub nodes: usize,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    Run(&'static str),
    Beat(String),
    Handles(String),
    Ends(String, AllocId),
    Sample(String, AllocId),
    Submit,
    Event,
}

/// After this time, the agent reports its handles without a request.
const AT_LEAST_EVERY_MS: i64 = 3_600_000;

struct Node {
    file: NodeFile,
    protocol: Protocol,
    handles: BTreeSet<String>,
    /// When the agent looks at what its allocs use.
    sampler: ProgressSampler,
    running: BTreeMap<AllocId, AllocOrder>,
    /// When the next handle report is due.
    handles_at: i64,
    /// When a report was last sent.
    reported_at: Option<i64>,
    /// The time between two looks at the handles.
    look_ms: i64,
}

pub struct Fleet {
    pub tables: Tables,
    pub policy: Policy,
    pub log: Arc<Mutex<Vec<Invocation>>>,
    /// The last answer of a run, from which its lines in the log are made.
    pub answered: Arc<Mutex<Option<RunAnswer>>>,
    /// The job that is submitted.
    pub spec: JobSpec,
    rng: Rng,
    settings: LaunchSettings,
    account: Arc<Account>,
    ingest: (heartbeat_ingest::Ingest, Meter),
    sweep: (sweep_dispatch::Sweep, Meter),
    nodes: BTreeMap<String, Node>,
    due: BTreeSet<(i64, Due)>,
    runs: JoinSet<()>,
    began: tokio::time::Instant,
}

impl Fleet {
    pub async fn new(policy: &Value, spec: JobSpec) -> Self {
        let (tables, rng) = (Tables::default(), Rng::seeded(1));
        let store = |meter: &Meter| Store::with_rng(Arc::new(meter.clone()), rng.clone());
        let (of_ingest, of_sweep) = (Meter::new(&tables), Meter::new(&tables));
        let cluster: model::ids::ClusterName = "cost".parse().unwrap();
        let key = "5a".repeat(32).parse::<NodeKey>().unwrap();
        let credentials = NodeCredentials::Token(key.clone());
        let settings = LaunchSettings {
            cluster: cluster.clone(),
            key: Some(key),
            heartbeat_url: "https://heartbeat".into(),
            sweep_url: "https://sweep".into(),
        };
        let policy = Policy::from_json(policy).unwrap();
        set_policy(&store(&Meter::new(&tables)), &policy).await;
        let ingest = heartbeat_ingest::Ingest::new(store(&of_ingest), credentials.clone(), cluster.clone());
        let sweep = sweep_dispatch::Sweep::new(store(&of_sweep), credentials, cluster);
        let mut fleet = Self {
            tables,
            policy,
            log: Arc::default(),
            answered: Arc::default(),
            spec,
            rng,
            settings,
            account: Arc::default(),
            ingest: (ingest, of_ingest),
            sweep: (sweep, of_sweep),
            nodes: BTreeMap::new(),
            due: BTreeSet::new(),
            runs: JoinSet::new(),
            began: tokio::time::Instant::now(),
        };
        // As on AWS, the functions do not start in the same second.
        for (function, at) in [(POLL_AND_SCALE, 1000), (SWEEP_DISPATCH, 21_000), (CLEAN_STALE_RECORDS, 41_000)] {
            fleet.due.insert((at, Due::Run(function.name)));
        }
        fleet
    }

    fn ms(&self) -> i64 {
        i64::try_from(self.began.elapsed().as_millis()).unwrap()
    }

    fn now(&self) -> Time {
        START + Span::from_ms(self.ms())
    }

    fn clock(&self) -> RunClock {
        RunClock::new(self.now(), None, Duration::from_secs(50))
    }

    /// Submits `jobs` jobs, one in each `every_s`.
    pub fn submit(&mut self, jobs: i64, every_s: i64) {
        for n in 0..jobs {
            self.due.insert((self.ms() + 1 + n * every_s * 1000, Due::Submit));
        }
    }

    /// Wakes poll-and-scale at random times, on average `rate` times in a second.
    pub fn events(&mut self, rate: f64, seconds: f64) {
        let mut at_s = 0.0;
        while at_s < seconds {
            at_s -= self.rng.between(f64::MIN_POSITIVE, 1.0).ln() / rate;
            self.due.insert((self.ms() + (at_s * 1000.0) as i64, Due::Event));
        }
    }

    pub async fn set_policy(&mut self, policy: &Value) {
        self.policy = Policy::from_json(policy).unwrap();
        let tables = Meter::new(&self.tables);
        set_policy(&Store::new(Arc::new(tables)), &self.policy).await;
    }

    /// The invocations since the last call of this function.
    pub fn take(&self) -> Vec<Invocation> {
        std::mem::take(&mut *self.log.lock().unwrap())
    }

    pub fn up(&self) -> usize {
        self.nodes.len()
    }

    pub async fn pass(&mut self, s: i64) {
        let end = self.ms() + s * 1000;
        while let Some((at, due)) = self.due.first().cloned().filter(|(at, _)| *at <= end) {
            self.due.pop_first();
            tokio::time::sleep_until(self.began + Duration::from_millis(at.unsigned_abs())).await;
            self.machines();
            self.happen(at, due).await;
            while let Some(ended) = self.runs.try_join_next() {
                ended.unwrap();
            }
        }
        tokio::time::sleep_until(self.began + Duration::from_millis(end.unsigned_abs())).await;
    }

    /// Puts nodes on new instances, and removes those whose instances have ended.
    fn machines(&mut self) {
        for (instance_id, user_data) in self.account.started() {
            let file = node_file_in(&user_data).unwrap();
            let node_id = file.node_id.unwrap();
            let file = file.of(node_id);
            let identity = Identity { instance_id: instance_id.clone(), address: Some("10.0.123.234".into()) };
            let boot_id = "123e4567-e89b-12d3-a456-426614174000".to_owned();
            let protocol = Protocol::new(identity, Durable::new(file.node_id, boot_id));
            let node = Node {
                file,
                protocol,
                handles: BTreeSet::new(),
                sampler: ProgressSampler::new("/nowhere".into()),
                running: BTreeMap::new(),
                handles_at: 0,
                reported_at: None,
                look_ms: 30_000,
            };
            self.due.insert((self.ms() + BOOT_S * 1000, Due::Beat(instance_id.clone())));
            self.nodes.insert(instance_id, node);
        }
        for instance_id in self.account.stopped() {
            self.nodes.remove(&instance_id);
            self.wake(json!({"detail-type": "EC2 Instance State-change Notification"}));
        }
    }

    async fn happen(&mut self, at: i64, due: Due) {
        match due {
            Due::Run(name) => {
                let function = FUNCTIONS.iter().find(|function| function.name == name).unwrap();
                self.due.insert((at + function.period.unwrap().as_ms(), Due::Run(name)));
                self.scheduled(name).await;
            }
            Due::Submit => self.submit_now().await,
            Due::Event => self.wake(json!({"Records": [{"eventName": "INSERT"}]})),
            Due::Beat(id) => self.with(id, async |f, id, node| f.beat(id, node).await).await,
            Due::Handles(id) => {
                if self.nodes.get(&id).is_some_and(|n| n.handles_at == at) {
                    self.with(id, async |f, id, node| f.report_handles(id, node).await).await;
                }
            }
            Due::Sample(id, alloc) => {
                self.with(id, async |f, id, node| f.sample(id, node, alloc, at).await).await;
            }
            Due::Ends(id, alloc) => {
                self.with(id, async |f, id, node| {
                    let run = RunReport { log_tail: Some(printed()), usage: Some(used(JOB_S)), ..RunReport::default() };
                    let cause = model::EndCause::Exited { code: 0 };
                    let ended = Ending { run, ..Ending::new(cause) };
                    node.running.remove(&alloc);
                    node.protocol.observe(alloc, Observed::Ended(Box::new(ended)));
                    f.report(id, node).await;
                })
                .await;
            }
        }
    }

    /// Reports what a running alloc uses, if the agent's own schedule says so.
    async fn sample(&mut self, id: &str, node: &mut Node, alloc: AllocId, at: i64) {
        let Some(order) = node.running.get(&alloc) else { return };
        if let Some(mut progress) = node.sampler.sample(order, tokio::time::Instant::now()) {
            progress.run.usage = Some(used(at / 1000));
            node.protocol.observe_progress(alloc, progress);
            self.report(id, node).await;
        }
        self.due.insert((at + SAMPLE_S * 1000, Due::Sample(id.to_owned(), alloc)));
    }

    async fn with(&mut self, id: String, act: impl AsyncFnOnce(&mut Self, &str, &mut Node)) {
        let Some(mut node) = self.nodes.remove(&id) else { return };
        act(self, &id, &mut node).await;
        self.nodes.insert(id, node);
    }

    fn note(&self, kind: Kind, used: Use) {
        // A node that calls is not in the map at that moment.
        let nodes = self.account.running();
        self.log.lock().unwrap().push(Invocation { kind, used, waited_s: 0.0, nodes });
    }

    async fn scheduled(&mut self, name: &str) {
        let meter = Meter::new(&self.tables);
        let store = Store::with_rng(Arc::new(meter.clone()), self.rng.clone());
        let cloud = Ec2 { account: Arc::clone(&self.account), meter: meter.clone(), now: self.now() };
        if name == POLL_AND_SCALE.name {
            self.poll(json!({}), Kind::Poll);
        } else if name == CLEAN_STALE_RECORDS.name {
            clean_stale_records::tick(&store, &cloud, &json!({}), self.clock()).await.unwrap();
            self.note(Kind::Clean, meter.take());
        } else {
            let Reply::Run(_) = self.sweep.0.handle(json!({}), self.clock()).await.unwrap() else { panic!("no run") };
            self.note(Kind::Sweep, self.sweep.1.take());
        }
    }

    /// Invokes poll-and-scale with an event.
    fn wake(&mut self, event: Value) {
        self.poll(event, Kind::Woken);
    }

    fn poll(&mut self, input: Value, kind: Kind) {
        let meter = Meter::new(&self.tables);
        let store = Store::with_rng(Arc::new(meter.clone()), self.rng.clone());
        let cloud = Ec2 { account: Arc::clone(&self.account), meter: meter.clone(), now: self.now() };
        let (settings, clock, log) = (self.settings.clone(), self.clock(), Arc::clone(&self.log));
        let answered = Arc::clone(&self.answered);
        self.runs.spawn(async move {
            let began = tokio::time::Instant::now();
            let run = poll_and_scale::tick(&store, &cloud, &settings, &input, clock).await.unwrap();
            let kind = if run.ran == Ran::NotItsTurn { Kind::Left } else { kind };
            let (waited_s, nodes) = (began.elapsed().as_secs_f64(), cloud.account.running());
            log.lock().unwrap().push(Invocation { kind, used: meter.take(), waited_s, nodes });
            if run.ran == Ran::Whole {
                *answered.lock().unwrap() = Some(run);
            }
        });
    }

    async fn submit_now(&mut self) {
        let (now, meter) = (self.now(), Meter::new(&self.tables));
        let store = Store::with_rng(Arc::new(meter.clone()), self.rng.clone());
        let job = Job::submit(JobId::new(self.rng.ulid(now)), self.spec.clone(), now).unwrap();
        store.write(None, &job, Vec::new()).await.unwrap();
        self.note(Kind::Submit, meter.take());
        self.wake(json!({"Records": [{"eventName": "INSERT"}]}));
    }

    fn post(node: &Node, what: &str, body: &impl Serialize) -> Value {
        http(&format!("/v1/nodes/{}/{what}", node.file.node_id), node.file.token.as_deref(), body)
    }

    async fn beat(&mut self, id: &str, node: &mut Node) {
        let event = Self::post(node, "heartbeat", &node.protocol.heartbeat(Some(self.ms().unsigned_abs())));
        let answer: model::wire::HeartbeatAnswer = good(&self.ingest.0.handle(&event, self.now()).await);
        self.note(Kind::Heartbeat, self.ingest.1.take());
        self.due.insert((self.ms() + (answer.next_heartbeat_s * 1000.0) as i64, Due::Beat(id.to_owned())));
        if node.protocol.on_heartbeat(&answer) {
            self.report_handles_in(id, node, CHANGE_MS);
        }
        self.work(id, node);
        self.report(id, node).await;
    }

    fn work(&mut self, id: &str, node: &mut Node) {
        for work in node.protocol.work() {
            let MachineTask::Run(order) = work else { continue };
            node.handles.insert(order.alloc_id.to_string());
            node.protocol.observe(order.alloc_id, Observed::Running);
            self.due.insert((self.ms(), Due::Sample(id.to_owned(), order.alloc_id)));
            if order.work.command.first().is_some_and(|c| c != "forever") {
                self.due.insert((self.ms() + JOB_S * 1000, Due::Ends(id.to_owned(), order.alloc_id)));
            }
            node.running.insert(order.alloc_id, order);
        }
    }

    /// Reports until there is no more news.
    async fn report(&mut self, id: &str, node: &mut Node) {
        while let Some(report) = node.protocol.report() {
            let ended = report.allocs.iter().filter(|a| a.client.is_final()).map(|a| a.alloc_id).collect::<Vec<_>>();
            let event = Self::post(node, "allocs", &report);
            let answer = good(&self.ingest.0.handle(&event, self.now()).await);
            self.note(Kind::AllocReport, self.ingest.1.take());
            let was_ready = node.protocol.is_ready;
            node.protocol.on_report(&answer);
            self.work(id, node);
            self.report_handles_in(id, node, CHANGE_MS);
            let store = Store::new(Arc::new(Meter::new(&self.tables)));
            let rows = store.allocs(ended).await.unwrap();
            if (node.protocol.is_ready && !was_ready)
                || rows.iter().any(|alloc| alloc.summary.client.is_final() && !alloc.handed_on)
            {
                self.wake(json!({"Records": [{"eventName": "MODIFY"}]}));
            }
        }
    }

    /// Makes the next reports of handles due, as if an hour had passed.
    pub fn reports_are_due(&mut self) {
        self.nodes.values_mut().for_each(|node| node.reported_at = Some(-AT_LEAST_EVERY_MS));
    }

    fn report_handles_in(&mut self, id: &str, node: &mut Node, ms: i64) {
        node.handles_at = self.ms() + ms;
        self.due.insert((node.handles_at, Due::Handles(id.to_owned())));
    }

    async fn report_handles(&mut self, id: &str, node: &mut Node) {
        let label = Some(node.file.node_id.to_string());
        let listed = |h: &String| ReportedHandle {
            handle: h.clone(),
            kind: HandleKind::Container,
            label: label.clone(),
            stays: None,
        };
        let list = HandleList { handles: node.handles.iter().map(listed).collect(), complete: true };
        // The agent reports all handles once an hour. Otherwise it only looks for changes.
        let hour = node.reported_at.is_some_and(|at| self.ms() - at >= AT_LEAST_EVERY_MS);
        if hour {
            node.protocol.report_handles_again();
        }
        let Some(round) = node.protocol.handle_round(node.protocol.durable.as_of, list) else {
            self.report_handles_in(id, node, node.look_ms);
            return;
        };
        node.reported_at = Some(self.ms());
        let Some(report) = node.protocol.handle_report(&round) else { return };
        let event = Self::post(node, "handles", &report);
        let Reply::Http(response) = self.sweep.0.handle(event, self.clock()).await.unwrap() else { panic!("a run") };
        self.note(Kind::HandleReport, self.sweep.1.take());
        let answer: HandleReportAnswer = good(&response);
        let destroyed = answer.destroy.iter().filter(|h| node.handles.remove(*h)).count();
        node.protocol.end_handle_round(&round, &answer);
        let next_ms = (answer.next_report_s * 1000.0) as i64;
        node.look_ms = next_ms;
        self.report_handles_in(id, node, if destroyed > 0 { next_ms.min(CHANGE_MS) } else { next_ms });
    }
}

/// The answer of a function to a node. Nothing may fail here.
fn good<T: DeserializeOwned>(response: &Value) -> T {
    let (status, body) = answer(response);
    assert_eq!(status, 200, "{body}");
    serde_json::from_value(body).unwrap()
}

/// What a job has used after so many seconds.
fn used(s: i64) -> Usage {
    let ran_ms = s.unsigned_abs() * 1000;
    let (read_bytes, written_bytes) = (Some(ran_ms * 70_001), Some(ran_ms * 3003));
    Usage { ran_ms, cpu_ms: ran_ms - 1, memory_mib: Some(1517), read_bytes, written_bytes, ..Usage::default() }
}

/// The last lines that a training job prints, as many as are kept.
fn printed() -> String {
    let random = |n: usize| n.wrapping_mul(2_654_435_761) % 100_003;
    let line = |n: usize| {
        let (loss, per_s) = (random(n), random(n + 7) % 977);
        format!(
            "2026-11-26 18:{:02}:{:02} INFO step {n} of 5000: loss 0.{loss:05}, {per_s} images a second\n",
            n / 60 % 60,
            n % 60
        )
    };
    let text: String = (0..200).map(line).collect();
    text.get(text.len() - model::wire::MAX_LOG_TAIL_BYTES..).unwrap_or_default().to_owned()
}
