//! A whole cluster for tests: the embedded DynamoDB in process, the EC2 stand-in over HTTP, the real functions, and
//! nodes with the agent's real protocol. The module `contract` shows that the database answers in process as it does
//! through the SDK.
//!
//! Guarantees: time is an argument. Calls are counted, and a run can be killed after any of them.

pub(crate) mod all_rows;
pub(crate) mod node;
pub(crate) mod raw;
pub(crate) mod switch;

use all_rows::AllRows;
use async_trait::async_trait;
use grant_credentials::Grants;
use grant_credentials::sts::{AssumeRole, Sts, StsError};
use model::cloud::{BATCH_TAG, NODE_TAG};
use model::control::PolicyRow;
use model::functions::{CLEAN_STALE_RECORDS, GRANT_CREDENTIALS, HEARTBEAT_INGEST, POLL_AND_SCALE, SWEEP_DISPATCH};
use model::wire::JobCredentials;
use model::{
    AllocId, Batch, Cloud, ClusterName, Handle, HandleState, Job, JobSpec, LaunchSettings, Needs, NodeId, NodeKey,
    NodeRecord, Policy, Span, Time, Work,
};
use node::Node;
use nodekeeper_simulation::embedded::Embedded;
use runtime::answer::RunAnswer;
use runtime::clock::RunClock;
use runtime::http::NodeCredentials;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;
use store::{Db, Store, insert_handle};
use switch::{Switch, Switched};

pub const START: Time = Time::from_ms(1_800_000_000_000);

/// The URL of this test process's embedded DynamoDB. It has its own thread, because each test has its own runtime.
pub fn dynamo_url() -> &'static str {
    static URL: OnceLock<String> = OnceLock::new();
    URL.get_or_init(|| {
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
            runtime.block_on(async move {
                let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
                tell.send(format!("http://{}", listener.local_addr().unwrap())).unwrap();
                dynoxide::server::serve_on(listener, dynoxide::Database::memory().unwrap()).await;
            });
        });
        told.recv().unwrap()
    })
}

pub fn credentials() -> aws_sdk_dynamodb::config::Credentials {
    aws_sdk_dynamodb::config::Credentials::new("local", "local", None, None, "tests")
}

pub fn dynamo_client(url: &str) -> aws_sdk_dynamodb::Client {
    let config = aws_sdk_dynamodb::Config::builder()
        .behavior_version(aws_sdk_dynamodb::config::BehaviorVersion::latest())
        .http_client(store::http_client())
        .region(aws_sdk_dynamodb::config::Region::new("us-east-1"))
        .credentials_provider(credentials())
        .endpoint_url(url)
        .build();
    aws_sdk_dynamodb::Client::from_conf(config)
}

pub fn ec2_client(url: &str) -> aws_sdk_ec2::Client {
    let config = aws_sdk_ec2::Config::builder()
        .behavior_version(aws_sdk_ec2::config::BehaviorVersion::latest())
        .http_client(store::http_client())
        .region(aws_sdk_ec2::config::Region::new("us-east-1"))
        .credentials_provider(credentials())
        .endpoint_url(url)
        .build();
    aws_sdk_ec2::Client::from_conf(config)
}

pub fn aws(url: &str, region: &'static str) -> aws_config::SdkConfig {
    aws_config::SdkConfig::builder()
        .behavior_version(aws_config::BehaviorVersion::latest())
        .http_client(store::http_client())
        .region(aws_config::Region::new(region))
        .credentials_provider(aws_sdk_dynamodb::config::SharedCredentialsProvider::new(credentials()))
        .endpoint_url(url)
        .build()
}

pub fn s3_client(url: &str, region: &'static str, credentials: aws_sdk_dynamodb::config::Credentials) -> s3::S3 {
    let config = aws_config::SdkConfig::builder()
        .region(aws_config::Region::new(region))
        .credentials_provider(aws_sdk_dynamodb::config::SharedCredentialsProvider::new(credentials))
        .endpoint_url(url)
        .build();
    nodekeeper_cli::aws::s3(&config, None, Arc::new(model::Time::now)).unwrap()
}

pub const NODE_KEY: &str = "5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a";

/// A cluster name that no other test of this process has.
pub fn fresh_cluster() -> ClusterName {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("t{}", NEXT.fetch_add(1, Ordering::Relaxed)).parse().unwrap()
}

/// The machines that booted, and those that stopped. The world puts nodes on them.
#[derive(Default)]
struct Hooks {
    started: Mutex<Vec<ec2_stand_in::MachineStart>>,
    stopped: Mutex<Vec<String>>,
}

impl ec2_stand_in::Machines for Hooks {
    fn start(&self, machine: ec2_stand_in::MachineStart) {
        self.started.lock().unwrap().push(machine);
    }
    fn stop(&self, instance_id: &str) {
        self.stopped.lock().unwrap().push(instance_id.to_owned());
    }
}

/// An STS that grants every role.
#[derive(Debug)]
pub struct EveryRole;

#[async_trait]
impl Sts for EveryRole {
    async fn assume(&self, request: &AssumeRole, lasts: Span, now: Time) -> Result<JobCredentials, StsError> {
        Ok(JobCredentials {
            access_key_id: request.session.clone(),
            secret_access_key: "secret".into(),
            session_token: "token".into(),
            given_at: now,
            expires_at: now + lasts,
            role_arn: request.role_arn.clone(),
        })
    }
}

pub struct World {
    pub cluster: ClusterName,
    pub tables: Embedded,
    /// The store of poll-and-scale, through the switch.
    pub store: Store,
    cleaner: Store,
    /// The store for the test's own reads and writes, without the switch.
    pub look: Store,
    pub cloud: Arc<dyn Cloud>,
    pub ec2: Arc<ec2_stand_in::Ec2Region>,
    pub settings: LaunchSettings,
    pub switch: Arc<Switch>,
    pub nodes: BTreeMap<String, Node>,
    pub ingest: heartbeat_ingest::Ingest,
    pub sweep: sweep_dispatch::Sweep,
    pub grants: Grants,
    pub policy: Policy,
    now: Arc<AtomicI64>,
    hooks: Arc<Hooks>,
    steps: u32,
}

/// A policy with short times: a whole life takes minutes of the world's time.
/// The silence of all nodes is believed at once: these fleets have one or two nodes, and heartbeat-ingest always works.
pub fn quick_policy() -> Value {
    let mut policy = model::policy::example_json();
    policy["nodes"] = json!({"max": 4});
    policy["launch"]["calls_per_second"] = json!(1000);
    policy["boot"] = json!({"timeout_s": 300});
    policy["idle"] = json!({"timeout_s": 10, "confirmations": 2});
    policy["stale"] = json!({"after_s": 900, "orphan_after_s": 120});
    policy["heartbeat"] = json!({"ttl_s": 20, "idle_s": 10, "grace_s": 10, "blackout_s": 0});
    policy["sweep"] = json!({"failed_keep_s": 30, "creating_s": 60});
    policy["retry"] = json!({"pause_s": 0});
    policy
}

/// The quick policy, but with ten minutes until an idle node is shut down.
pub fn patient_policy() -> Value {
    let mut policy = quick_policy();
    policy["idle"] = json!({"timeout_s": 600, "confirmations": 2});
    policy
}

/// A job that never ends, has its node for itself, and uses the cache `data`.
pub fn lonely_job() -> JobSpec {
    JobSpec {
        needs: Needs { exclusive: true, ..job(&["forever"]).needs },
        work: Work { caches: vec!["data".into()], ..job(&["forever"]).work },
        ..job(&["forever"])
    }
}

impl World {
    pub async fn new() -> Self {
        Self::with(quick_policy(), ec2_stand_in::Ec2Settings::default()).await
    }

    pub async fn with(policy: Value, mut config: ec2_stand_in::Ec2Settings) -> Self {
        config.launch_templates.push(
            serde_json::from_value(json!({"id": "lt-0123456789abcdef0", "name": "nodekeeper",
                "versions": [{"version": 1}]}))
            .unwrap_or_else(|e| panic!("{e}")),
        );
        let cluster = fresh_cluster();
        let tables = Embedded::new().unwrap();
        let now = Arc::new(AtomicI64::new(START.as_ms()));
        let clock = {
            let now = Arc::clone(&now);
            Arc::new(move || Time::from_ms(now.load(Ordering::SeqCst)))
        };
        let hooks = Arc::new(Hooks::default());
        let stand_in =
            ec2_stand_in::Ec2Region::new(config, clock, Arc::clone(&hooks) as Arc<dyn ec2_stand_in::Machines>);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(crate::account::recorded::serve_recorded(listener, Arc::clone(&stand_in)));
        let switch = Arc::new(Switch::default());
        let db: Arc<dyn Db> = Arc::new(tables.clone());
        let look = Store::new(Arc::clone(&db));
        let store_of = |function| {
            let (inner, switch) = (Arc::clone(&db), Arc::clone(&switch));
            Store::new(Arc::new(Switched { inner, switch, function }))
        };
        let aws = aws(&url, "us-east-1");
        let real: Arc<dyn Cloud> = Arc::new(cloud::Ec2::connect(&aws, cluster.clone()).with_offers(&aws));
        let cloud = Arc::new(Switched { inner: real, switch: Arc::clone(&switch), function: "" });
        let key = NODE_KEY.parse::<NodeKey>().unwrap();
        let credentials = NodeCredentials::Token(key.clone());
        let settings = LaunchSettings {
            cluster: cluster.clone(),
            key: Some(key),
            heartbeat_url: "http://heartbeat".into(),
            sweep_url: "http://sweep".into(),
        };
        let policy_row = Policy::from_json(&policy).unwrap();
        set_policy(&look, &policy_row).await;
        Self {
            ingest: heartbeat_ingest::Ingest::new(
                store_of(HEARTBEAT_INGEST.name),
                credentials.clone(),
                cluster.clone(),
            ),
            sweep: sweep_dispatch::Sweep::new(store_of(SWEEP_DISPATCH.name), credentials.clone(), cluster.clone()),
            grants: Grants::new(store_of(GRANT_CREDENTIALS.name), Arc::new(EveryRole), credentials, cluster.clone()),
            cluster,
            tables,
            store: store_of(POLL_AND_SCALE.name),
            cleaner: store_of(CLEAN_STALE_RECORDS.name),
            look,
            cloud,
            ec2: stand_in,
            settings,
            switch,
            nodes: BTreeMap::new(),
            policy: policy_row,
            now,
            hooks,
            steps: 0,
        }
    }

    /// A world in which one call launches a batch: user data holds no token. The token that the world gives its nodes
    /// stands for the role of their instances.
    pub async fn batched(policy: Value) -> Self {
        let mut world = Self::with(policy, ec2_stand_in::Ec2Settings::default()).await;
        world.settings.key = None;
        world
    }

    pub fn now(&self) -> Time {
        Time::from_ms(self.now.load(Ordering::SeqCst))
    }

    pub async fn record(&self, node_id: NodeId) -> NodeRecord {
        self.look.node(node_id.slot()).await.unwrap().unwrap()
    }

    pub fn pass(&self, s: i64) {
        self.now.fetch_add(s * 1000, Ordering::SeqCst);
    }

    /// A run takes real milliseconds and writes them into rows. So the next run must not begin before its end.
    pub fn not_before(&self, run: RunClock) {
        self.now.fetch_max(run.now().as_ms(), Ordering::SeqCst);
    }

    pub fn clock(&self) -> RunClock {
        RunClock::new(self.now(), None, Duration::from_secs(50))
    }

    pub async fn submit(&self, spec: JobSpec) -> Job {
        let id = model::ids::JobId::new(self.look.rng().ulid(self.now()));
        let job = Job::submit(id, spec, self.now()).unwrap();
        self.look.write(None, &job, Vec::new()).await.unwrap()
    }

    /// Writes the row of a live alloc's handle, as if an operator had once kept it.
    pub async fn make_row(&self, alloc: AllocId) {
        let alloc = self.look.alloc(alloc).await.unwrap().unwrap();
        let due_at = self.now() + Span::from_s(80_000);
        let row = Handle::of_alloc(alloc.summary.node_id, alloc.id(), alloc.summary.placed_seq, due_at);
        self.look.apply(&insert_handle(&Handle { state: HandleState::Live, ..row })).await.unwrap();
    }

    /// One run of poll-and-scale; `None` if it was killed.
    pub async fn poll(&self) -> Option<RunAnswer> {
        let (input, clock) = (json!({}), self.clock());
        let run = poll_and_scale::tick(&self.store, &*self.cloud, &self.settings, &input, clock);
        let answer = self.switch.guard(run).await;
        self.not_before(clock);
        answer.map(|r| r.unwrap())
    }

    /// One run of clean-stale-records; `None` if it was killed.
    pub async fn clean(&self) -> Option<RunAnswer> {
        let (input, clock) = (json!({}), self.clock());
        let run = clean_stale_records::tick(&self.cleaner, &*self.cloud, &input, clock);
        let answer = self.switch.guard(run).await;
        self.not_before(clock);
        answer.map(|r| r.unwrap())
    }

    /// Puts nodes on machines that booted, and removes nodes whose machines stopped.
    pub fn machines(&mut self) {
        self.ec2.advance();
        for machine in self.hooks.started.lock().unwrap().drain(..) {
            let mut node = Node::boot(&machine);
            node.key = Some(NODE_KEY.parse().unwrap());
            self.nodes.insert(machine.instance_id.clone(), node);
        }
        for instance in self.hooks.stopped.lock().unwrap().drain(..) {
            self.nodes.remove(&instance);
        }
    }

    /// Passes five seconds: the functions run on their schedules, and every node does a round.
    pub async fn step(&mut self) {
        self.pass(5);
        self.steps += 1;
        self.poll().await;
        if self.steps.is_multiple_of(2) {
            let clock = self.clock();
            let event = json!({});
            let run = self.sweep.handle(event, clock);
            if let Some(result) = self.switch.guard(run).await {
                result.unwrap();
            }
        }
        if self.steps.is_multiple_of(6) {
            self.clean().await;
        }
        self.machines();
        self.nodes_live().await;
    }

    /// One round of each node, and no run.
    pub async fn nodes_live(&mut self) {
        let (now, clock) = (self.now(), self.clock());
        let ids: Vec<String> = self.nodes.keys().cloned().collect();
        for id in ids {
            let mut node = self.nodes.remove(&id).unwrap();
            node.live(&self.ingest, &self.sweep, &self.switch, now, clock).await;
            self.nodes.insert(id, node);
        }
    }

    /// Steps until the fleet is quiet: every job has ended, every record is cleaned, and EC2 has no instance.
    /// Checks the invariants after each step.
    pub async fn until_quiet(&mut self, most_steps: u32) {
        for _ in 0..most_steps {
            self.step().await;
            self.check().await;
            if self.is_quiet().await {
                return;
            }
        }
        let nodes = self.look.nodes().await.unwrap();
        let jobs = self.look.jobs().await.unwrap();
        let handles = self.look.handles_due(self.now() + Span::from_s(999_999)).await.unwrap().rows;
        panic!(
            "not quiet after {most_steps} steps.\nnodes: {nodes:#?}\njobs: {jobs:#?}\nhandles: {handles:#?}\nec2: {:#?}",
            self.ec2.instances()
        );
    }

    pub async fn is_quiet(&self) -> bool {
        let live = |i: &ec2_stand_in::Ec2Instance| i.state != ec2_stand_in::InstanceState::Terminated;
        self.look.jobs().await.unwrap().iter().all(|j| j.summary.state.is_ended() && j.summary.allocs.is_empty())
            && self.look.nodes().await.unwrap().iter().all(|n| n.is_cleaned())
            && !self.ec2.instances().iter().any(live)
            && self.look.handles_due(self.now() + Span::from_s(2 * 86_400)).await.unwrap().rows.is_empty()
    }

    /// Checks what must hold at any moment, from the tables and EC2.
    pub async fn check(&self) {
        let nodes = self.look.nodes().await.unwrap();
        let jobs = self.look.jobs().await.unwrap();
        let allocs = self.look.live_allocs().await.unwrap();
        invariant_slots_are_the_cap(&nodes, self.policy.nodes.max);
        invariant_one_record_per_instance(&nodes);
        invariant_one_live_instance_per_node(&self.ec2.instances());
        invariant_sets_are_the_live_allocs(&nodes, &jobs, &allocs);
        invariant_one_copy_of_a_member(&allocs);
    }
}

/// At most `nodes.max` records are not cleaned.
pub fn invariant_slots_are_the_cap(nodes: &[model::NodeRecord], max: u32) {
    let up = nodes.iter().filter(|n| !n.is_cleaned()).count();
    assert!(up <= max as usize, "{up} records are not cleaned, nodes.max is {max}");
}

/// A node id has at most one live instance, and a batch at most as many as it has nodes.
pub fn invariant_one_live_instance_per_node(instances: &[ec2_stand_in::Ec2Instance]) {
    let mut live: BTreeMap<&str, usize> = BTreeMap::new();
    for instance in instances.iter().filter(|i| i.state != ec2_stand_in::InstanceState::Terminated) {
        let owner = instance.tags.get(NODE_TAG).or_else(|| instance.tags.get(BATCH_TAG));
        *live.entry(owner.map_or("", String::as_str)).or_default() += 1;
    }
    for (owner, count) in live {
        let most = owner.parse::<Batch>().map_or(1, |batch| batch.slots().len());
        assert!(count <= most, "{owner} has {count} live instances");
    }
}

/// An instance is named by at most one record.
pub fn invariant_one_record_per_instance(nodes: &[model::NodeRecord]) {
    let mut named = BTreeMap::new();
    for life in nodes.iter().filter_map(|n| n.life()) {
        if let Some(other) = life.instance_id.as_ref().and_then(|id| named.insert(id, life.node_id)) {
            panic!("{other} and {} have the same instance: {:?}", life.node_id, life.instance_id);
        }
    }
}

/// The `allocs` sets of nodes and jobs hold exactly the live allocs.
pub fn invariant_sets_are_the_live_allocs(nodes: &[model::NodeRecord], jobs: &[Job], allocs: &[model::AllocSummary]) {
    let mut live: Vec<_> = allocs.iter().map(|a| a.alloc_id).collect();
    live.sort_unstable();
    let mut on_nodes: Vec<_> = nodes.iter().filter_map(|n| n.life()).flat_map(|l| l.allocs.iter().copied()).collect();
    on_nodes.sort_unstable();
    let mut on_jobs: Vec<_> = jobs.iter().flat_map(|j| j.summary.allocs.iter().copied()).collect();
    on_jobs.sort_unstable();
    assert_eq!(on_nodes, live, "the nodes' sets");
    assert_eq!(on_jobs, live, "the jobs' sets");
}

/// At most one copy of a member has `desired` = run and is neither unknown nor awaiting.
pub fn invariant_one_copy_of_a_member(allocs: &[model::AllocSummary]) {
    use model::{ClientStatus, Desired};
    let mut seen = BTreeMap::new();
    for alloc in allocs {
        if alloc.desired == Desired::Run && alloc.client != ClientStatus::Unknown && !alloc.awaiting {
            let member = (alloc.alloc_id.job_id, alloc.alloc_id.member);
            if let Some(other) = seen.insert(member, alloc.alloc_id) {
                panic!("two copies of a member run: {other} and {}", alloc.alloc_id);
            }
        }
    }
}

pub async fn set_policy(store: &Store, policy: &Policy) {
    let old = store.control().await.unwrap().policy;
    let row = match &old {
        Some(old) => old.with(PolicyRow::of_document(&policy.to_json(), Some(old), Time::from_ms(0)).entry),
        None => PolicyRow::of_policy(policy),
    };
    store.write(old.as_ref(), &row, Vec::new()).await.unwrap();
}

/// A job of one vCPU that succeeds after a step.
pub fn job(command: &[&str]) -> JobSpec {
    JobSpec::running(command.iter().copied())
}
