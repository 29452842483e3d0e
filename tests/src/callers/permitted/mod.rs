//! The functions run with exactly the permissions of `infra/template.yaml`, in an account that checks permissions.
//!
//! Guarantees: a whole life of a node needs nothing that a role does not allow, and makes on the wire only calls of
//! `infra/calls.json`. Every other call is refused.
//! Does not: show that a role allows nothing superfluous. `infra/check.py` does.

mod outputs;

use crate::account::{Account, CLUSTER};
use crate::second_opinions::root;
use crate::work::story::operate;
use crate::world::node::Node;
use crate::world::switch::Switch;
use crate::world::{NODE_KEY, quick_policy, set_policy};
use aws_sdk_dynamodb::config::Credentials as Keys;
use base64::Engine;
use cloud::Ec2;
use ec2_stand_in::MachineStart;
use model::cloud::CLUSTER_TAG;
use model::control::BrakeEntry;
use model::functions::POLL_AND_SCALE;
use model::{
    BrakeKind, Class, ClientStatus, Cloud, ClusterName, ControlKey, InstanceState, JobId, LaunchError, LaunchRequest,
    LaunchSettings, Market, Policy, Span, Time, fixtures,
};
use nodekeeper_cli::console::{Cluster, ClusterAccess};
use nodekeeper_cli::local::tables;
use runtime::clock::RunClock;
use runtime::http::NodeCredentials;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use store::Store;

/// A cluster in the account: the functions with their roles, and nodes with the agent's real protocol.
pub struct Fleet {
    pub account: Account,
    cluster: ClusterName,
    policy: Value,
    settings: LaunchSettings,
    now: Time,
    steps: u32,
    nodes: BTreeMap<String, Node>,
    /// Instances whose machine never boots.
    dead: BTreeSet<String>,
}

impl Fleet {
    pub async fn new() -> Self {
        let cluster: ClusterName = CLUSTER.parse().unwrap();
        let account = Account::new(&cluster).await;
        let mut policy = quick_policy();
        policy["launch"]["template"] = json!(format!("{cluster}-node"));
        policy["launch"]["subnets"] = json!([account.made("subnet")]);
        policy["boot"] = json!({"timeout_s": 60, "failures_before_pause": 1});
        policy["size"][0]["market"] = json!("spot");
        let settings = LaunchSettings {
            cluster: cluster.clone(),
            key: Some(NODE_KEY.parse().unwrap()),
            heartbeat_url: "http://heartbeat".into(),
            sweep_url: "http://sweep".into(),
        };
        let now = Time::from_ms(jiff::Timestamp::now().as_millisecond());
        let (nodes, dead) = (BTreeMap::new(), BTreeSet::new());
        let fleet = Self { account, cluster, policy, settings, now, steps: 0, nodes, dead };
        tables::make(&fleet.account.dynamo(&Account::owner())).await.unwrap();
        fleet.set_policy().await;
        fleet
    }

    fn policy(&self) -> Policy {
        Policy::from_json(&self.policy).unwrap()
    }

    async fn set_policy(&self) {
        set_policy(&self.store(&Account::owner()), &self.policy()).await;
    }

    pub fn store(&self, keys: &Keys) -> Store {
        Store::new(Arc::new(self.account.dynamo(keys)))
    }

    pub fn cloud(&self, keys: &Keys) -> Ec2 {
        Ec2::new(self.account.ec2(keys), self.cluster.clone())
    }

    fn clock(&self) -> RunClock {
        RunClock::new(self.now, None, Duration::from_secs(50))
    }

    fn credentials(&self) -> NodeCredentials {
        NodeCredentials::Token(self.settings.key.clone().unwrap())
    }

    fn ingest(&self, keys: &Keys) -> heartbeat_ingest::Ingest {
        heartbeat_ingest::Ingest::new(self.store(keys), self.credentials(), self.cluster.clone())
    }

    fn sweep(&self, keys: &Keys) -> sweep_dispatch::Sweep {
        sweep_dispatch::Sweep::new(self.store(keys), self.credentials(), self.cluster.clone())
    }

    pub fn request(&self, offering: model::Offering) -> LaunchRequest {
        LaunchRequest::render(&self.settings, &self.policy(), fixtures::node_id(1), &[offering])
    }

    async fn poll(&self, keys: &Keys) -> Result<(), String> {
        let (store, cloud) = (self.store(keys), self.cloud(keys));
        let run = poll_and_scale::tick(&store, &cloud, &self.settings, &json!({}), self.clock()).await;
        run.map(|_| ()).map_err(|e| e.to_string())
    }

    async fn clean(&self, keys: &Keys) -> Result<(), String> {
        let run = clean_stale_records::tick(&self.store(keys), &self.cloud(keys), &json!({}), self.clock()).await;
        run.map(|_| ()).map_err(|e| e.to_string())
    }

    /// Runs a command of an operator who has these permissions.
    pub async fn operate(&self, keys: &Keys, line: &[&str]) -> Result<String, String> {
        let dynamo = self.account.dynamo(keys);
        let cloud = Arc::new(self.cloud(keys));
        let (outputs, reach) = (self.account.s3(keys), ClusterAccess::default());
        let cluster = Cluster { store: self.store(keys), dynamo, cloud, outputs, reach };
        operate(cluster, self.now, line).await
    }

    /// Writes the entry of a brake that holds actions back, so that there is something to release.
    pub async fn hold_back(&self) {
        let store = self.store(&Account::owner());
        let before: BrakeEntry = store.entry(&ControlKey::Brake(BrakeKind::Missing)).await.unwrap();
        let row = fixtures::brake(BrakeKind::Missing, POLL_AND_SCALE.name, vec!["0-x".into()], self.now);
        store.write_entry(&before, &before.with(row.entry)).await.unwrap();
    }

    /// Boots nodes on the instances that run now.
    async fn machines(&mut self) {
        let ec2 = self.account.ec2(&Account::owner());
        let running = self.cloud(&Account::owner()).instances().await.unwrap();
        let running: Vec<_> = running.into_iter().filter(|i| i.state == InstanceState::Running).collect();
        self.nodes.retain(|id, _| running.iter().any(|i| i.instance_id == *id));
        for instance in running {
            let id = instance.instance_id;
            if self.nodes.contains_key(&id) || self.dead.contains(&id) {
                continue;
            }
            let asked = ec2.describe_instance_attribute().instance_id(&id).attribute("userData".into());
            let found = asked.send().await.unwrap().user_data.unwrap().value.unwrap();
            let user_data = base64::engine::general_purpose::STANDARD.decode(found).unwrap();
            let machine = MachineStart {
                instance_id: id.clone(),
                private_ip: "10.0.0.1".into(),
                instance_type: String::new(),
                user_data: String::from_utf8(user_data).unwrap(),
                tags: instance.tags,
            };
            self.nodes.insert(id, Node::boot(&machine));
        }
    }

    /// Whether every job has ended, every record is cleaned, and nothing is left in EC2 and on the nodes.
    async fn is_quiet(&self) -> bool {
        let look = self.store(&Account::owner());
        look.jobs().await.unwrap().iter().all(|j| j.summary.state.is_ended() && j.summary.allocs.is_empty())
            && look.nodes().await.unwrap().iter().all(|n| n.is_cleaned())
            && look.handles_due(self.now + Span::from_s(2 * 86_400)).await.unwrap().rows.is_empty()
            && self
                .cloud(&Account::owner())
                .instances()
                .await
                .unwrap()
                .iter()
                .all(|i| i.state == InstanceState::Terminated)
    }
}

/// The logical id of a function's role: poll-and-scale has PollAndScaleRole.
fn role_of(function: &str) -> String {
    let capital = |word: &str| format!("{}{}", word[..1].to_uppercase(), &word[1..]);
    function.split('-').map(capital).collect::<String>() + "Role"
}

fn only(role: &str, call: &str) -> BTreeSet<(String, String)> {
    BTreeSet::from([(role.to_owned(), call.to_owned())])
}

/// The functions with these roles.
pub struct Functions {
    poll: Keys,
    clean: Keys,
    ingest: heartbeat_ingest::Ingest,
    sweep: sweep_dispatch::Sweep,
}

impl Fleet {
    pub fn functions(&self) -> Functions {
        let role = |name| self.account.role(name);
        Functions {
            poll: role("PollAndScaleRole"),
            clean: role("CleanStaleRecordsRole"),
            ingest: self.ingest(&role("HeartbeatIngestRole")),
            sweep: self.sweep(&role("SweepDispatchRole")),
        }
    }

    /// Passes five seconds: the functions run on their schedules, and every node does a round.
    pub async fn step(&mut self, functions: &Functions) {
        self.now = self.now + Span::from_s(5);
        self.steps += 1;
        self.poll(&functions.poll).await.unwrap();
        if self.steps.is_multiple_of(2) {
            functions.sweep.handle(json!({}), self.clock()).await.unwrap();
        }
        if self.steps.is_multiple_of(6) {
            self.clean(&functions.clean).await.unwrap();
        }
        self.machines().await;
        let (switch, now, clock) = (Switch::default(), self.now, self.clock());
        for node in self.nodes.values_mut() {
            node.live(&functions.ingest, &functions.sweep, &switch, now, clock).await;
        }
        // A function may go on after a refusal, for instance without an event. So each step checks for refusals.
        refused_nothing(self);
    }

    async fn until_quiet(&mut self, functions: &Functions) {
        let end = self.steps + 100;
        while !self.is_quiet().await {
            assert!(self.steps < end, "not quiet: {:#?}", self.store(&Account::owner()).nodes().await.unwrap());
            self.step(functions).await;
        }
    }

    /// Submits a job that runs for ever, and terminates the instances as the account's owner as soon as it runs.
    async fn lose_a_node(&mut self, functions: &Functions) -> JobId {
        let owner = Account::owner();
        let line = ["submit", "--retry-lost", "0", "--cache", "models", "--", "forever"];
        let id = self.operate(&owner, &line).await.unwrap().trim().parse().unwrap();
        let end = self.steps + 100;
        while !self.allocs(id).await.iter().any(|a| a.summary.client == ClientStatus::Running) {
            assert!(self.steps < end, "the job does not run");
            self.step(functions).await;
        }
        let instances: Vec<String> = self.nodes.keys().cloned().collect();
        self.cloud(&owner).terminate(&instances).await.unwrap();
        id
    }

    async fn allocs(&self, id: JobId) -> Vec<model::Alloc> {
        let look = self.store(&Account::owner());
        look.allocs_of(&look.job(id).await.unwrap()).await.unwrap().rows
    }
}

/// Jobs complete on nodes that are launched, registered, swept, shut down and cleaned. One machine never boots, two
/// instances are terminated from outside, and one belongs to nobody. The functions need no permission that their roles
/// lack. grant-credentials does not run here.
#[tokio::test]
async fn nightly_a_whole_life_needs_only_what_the_roles_allow() {
    let mut fleet = Fleet::new().await;
    let (owner, functions) = (Account::owner(), fleet.functions());
    let orphan = LaunchRequest::render(&fleet.settings, &fleet.policy(), fixtures::node_id(3), &[offering(&fleet)]);
    let orphan = fleet.cloud(&owner).launch(&orphan, "orphan").await.unwrap().instances.remove(0);
    fleet.dead.insert(orphan.instance_id.clone());
    let submitted = fleet.operate(&owner, &["submit", "--cache", "models", "--", "work"]).await.unwrap();
    let completes = submitted.trim().parse().unwrap();
    fleet.poll(&functions.poll).await.unwrap();
    let launched = fleet.cloud(&owner).instances().await.unwrap().into_iter().map(|i| i.instance_id);
    fleet.dead.extend(launched);
    assert_eq!(fleet.dead.len(), 2, "the orphan, and a machine that never comes up");
    fleet.until_quiet(&functions).await;
    assert!(fleet.allocs(completes).await.iter().any(|a| a.summary.client == ClientStatus::Complete));

    // poll-and-scale notices that an instance is gone.
    let lost = fleet.lose_a_node(&functions).await;
    fleet.until_quiet(&functions).await;
    assert!(fleet.allocs(lost).await.iter().all(|a| a.summary.client == ClientStatus::Lost));
    // While poll-and-scale does not run, clean-stale-records notices it.
    fleet.lose_a_node(&functions).await;
    for _ in 0..2 {
        fleet.now = fleet.now + Span::from_s(1000);
        fleet.clean(&functions.clean).await.unwrap();
    }
    assert!(fleet.store(&owner).nodes().await.unwrap().iter().all(|n| n.is_cleaned()));
    fleet.until_quiet(&functions).await;
    // The fleet becomes smaller, so the rows of the other slots are deleted when the month is over whose cost they have.
    fleet.now = fleet.now + Span::from_s(32 * 86_400);
    fleet.policy["nodes"] = json!({"max": 0});
    fleet.set_policy().await;
    fleet.clean(&functions.clean).await.unwrap();
    assert_eq!(fleet.store(&owner).nodes().await.unwrap(), []);

    refused_nothing(&fleet);
    let listed = std::fs::read_to_string(root().join("infra/calls.json")).unwrap();
    let listed: BTreeMap<String, BTreeSet<String>> = serde_json::from_str(&listed).unwrap();
    // No job here has a role. The module `rights` asks for credentials, with the STS of moto.
    for (function, listed) in listed.into_iter().filter(|(function, _)| function != "grant-credentials") {
        let mut made = fleet.account.calls_of(&role_of(&function));
        // The permissions are a part of a launch, and the recorder of calls.json sees none of these calls.
        made.retain(|call| call != "iam:PassRole" && !call.starts_with("ssm:"));
        let more: Vec<_> = made.difference(&listed).collect();
        assert!(more.is_empty(), "{function} makes calls that infra/calls.json does not list: {more:?}");
        let never: Vec<_> = listed.difference(&made).collect();
        println!("{function}: {} of {} kinds of calls; not {never:?}", made.len(), listed.len());
        assert!(never.len() * 2 <= listed.len(), "the story of {function} leaves out too much: {never:?}");
    }
}

pub fn offering(fleet: &Fleet) -> model::Offering {
    let subnet_id = Some(fleet.account.made("subnet").to_owned());
    model::Offering { template: format!("{}-node", fleet.cluster), subnet_id, ..fixtures::offering() }
}

/// A call that only another function may make, or that a condition forbids, is refused.
#[tokio::test]
async fn nightly_what_a_role_does_not_allow_is_refused() {
    let fleet = Fleet::new().await;
    let role = |name: &str| fleet.account.role(name);
    let [clean, ingest, sweep] = ["CleanStaleRecordsRole", "HeartbeatIngestRole", "SweepDispatchRole"].map(role);
    let refused = |name: &str, call: &str| assert_eq!(fleet.account.refused(), only(name, call));

    let error = fleet.store(&sweep).jobs().await.unwrap_err().to_string();
    assert!(error.contains("AccessDenied"), "{error}");
    refused("SweepDispatchRole", "dynamodb:Scan jobs");
    let error = fleet.store(&ingest).write(None, &fixtures::job(1), Vec::new()).await.unwrap_err().to_string();
    assert!(error.contains("AccessDenied"), "{error}");
    refused("HeartbeatIngestRole", "dynamodb:PutItem jobs");
    let error = fleet.cloud(&clean).launch(&fleet.request(offering(&fleet)), "a").await.unwrap_err();
    assert!(matches!(&error, LaunchError::Refused(r) if r.class == Class::Refused), "{error:?}");
    refused("CleanStaleRecordsRole", "ec2:CreateFleet");
    every_part_of_a_launch_is_needed(&fleet, &role("PollAndScaleRole")).await;
    conditions_are_kept(&fleet, &role("PollAndScaleRole"), &clean).await;
}

/// A launch needs every one of these permissions, and together they are enough.
async fn every_part_of_a_launch_is_needed(fleet: &Fleet, poll: &Keys) {
    for (sid, action, market) in [
        ("Fleet", "ec2:CreateFleet", Market::OnDemand),
        ("Launch", "ec2:RunInstances", Market::OnDemand),
        ("LaunchTemplates", "ec2:RunInstances", Market::OnDemand),
        ("LaunchFrom", "ec2:RunInstances", Market::OnDemand),
        ("LaunchWith", "ec2:RunInstances", Market::OnDemand),
        ("LaunchSpot", "ec2:RunInstances", Market::Spot),
        ("TagAtLaunch", "ec2:CreateTags", Market::OnDemand),
        ("NodeRole", "iam:PassRole", Market::OnDemand),
    ] {
        let request = fleet.request(model::Offering { market, ..offering(fleet) });
        let (name, keys) = fleet.account.role_without("PollAndScaleRole", sid, action);
        let error = fleet.cloud(&keys).launch(&request, sid).await.unwrap_err();
        assert!(matches!(&error, LaunchError::Refused(r) if r.class == Class::Refused), "{sid}: {error:?}");
        assert_eq!(fleet.account.refused(), only(&name, action));
        fleet.cloud(poll).launch(&request, sid).await.unwrap();
        refused_nothing(fleet);
    }
}

/// A function may use only the cluster's tag, its template and the template's image, and may set tags only at a launch.
async fn conditions_are_kept(fleet: &Fleet, poll: &Keys, clean: &Keys) {
    let refused = |name: &str, call: &str| assert_eq!(fleet.account.refused(), only(name, call));
    let mut foreign = fleet.request(offering(fleet));
    foreign.tags.insert(CLUSTER_TAG.into(), "other".into());
    let owners = fleet.account.ec2(&Account::owner());
    let data = aws_sdk_ec2::types::RequestLaunchTemplateData::builder().image_id("ami-12c6146b").build();
    owners.create_launch_template().launch_template_name("other").launch_template_data(data).send().await.unwrap();
    let elsewhere = fleet.request(model::Offering { template: "other".into(), ..offering(fleet) });
    for request in [&foreign, &elsewhere] {
        let error = fleet.cloud(poll).launch(request, "b").await.unwrap_err();
        assert!(matches!(&error, LaunchError::Refused(r) if r.class == Class::Refused), "{request:?}: {error:?}");
        refused("PollAndScaleRole", "ec2:RunInstances");
    }
    let id = fleet.cloud(&Account::owner()).launch(&foreign, "c").await.unwrap().instances.remove(0).instance_id;
    for (name, keys) in [("PollAndScaleRole", poll), ("CleanStaleRecordsRole", clean)] {
        fleet.cloud(keys).terminate(std::slice::from_ref(&id)).await.unwrap_err();
        refused(name, "ec2:TerminateInstances");
    }
    let (ec2, cluster) = (fleet.account.ec2(poll), fleet.cluster.as_str());
    let tag = aws_sdk_ec2::types::Tag::builder().key(CLUSTER_TAG).value(cluster).build();
    ec2.create_tags().resources(&id).tags(tag.clone()).send().await.unwrap_err();
    refused("PollAndScaleRole", "ec2:CreateTags");
    let template = aws_sdk_ec2::types::LaunchTemplateSpecification::builder();
    let template = template.launch_template_id(fleet.account.made("template")).build();
    let tags = aws_sdk_ec2::types::TagSpecification::builder().resource_type("instance".into()).tags(tag).build();
    let call = ec2.run_instances().launch_template(template).tag_specifications(tags).min_count(1).max_count(1);
    call.clone().image_id("ami-12c6146b").send().await.unwrap_err();
    refused("PollAndScaleRole", "ec2:RunInstances");
    call.send().await.unwrap();
    refused_nothing(fleet);
}

fn refused_nothing(fleet: &Fleet) {
    assert_eq!(fleet.account.refused(), BTreeSet::new());
}

/// Each function stops at the first call that its role does not allow, and its error names the call.
#[tokio::test]
async fn nightly_without_one_permission_a_function_fails() {
    let mut fleet = Fleet::new().await;
    fleet.operate(&Account::owner(), &["submit", "--", "forever"]).await.unwrap();
    let refused = |fleet: &Fleet, result: Result<(), String>, name: &str, call: &str| {
        let error = result.unwrap_err();
        assert!(error.contains("AccessDenied") || error.contains("UnauthorizedOperation"), "{error}");
        assert_eq!(fleet.account.refused(), only(name, call));
    };
    let (name, keys) = fleet.account.role_without("PollAndScaleRole", "AllocsLive", "dynamodb:Scan");
    refused(&fleet, fleet.poll(&keys).await, &name, "dynamodb:Scan allocs/live");
    let (name, keys) = fleet.account.role_without("CleanStaleRecordsRole", "Observe", "ec2:DescribeInstances");
    refused(&fleet, fleet.clean(&keys).await, &name, "ec2:DescribeInstances");
    let (name, keys) = fleet.account.role_without("SweepDispatchRole", "HandlesDue", "dynamodb:Query");
    let swept = fleet.sweep(&keys).handle(json!({}), fleet.clock()).await;
    refused(&fleet, swept.map(|_| ()).map_err(|e| e.to_string()), &name, "dynamodb:Query handles/due");

    // A node cannot register. As soon as the role allows it, the same node can.
    fleet.poll(&fleet.account.role("PollAndScaleRole")).await.unwrap();
    fleet.machines().await;
    let (name, keys) = fleet.account.role_without("HeartbeatIngestRole", "Nodes", "dynamodb:UpdateItem");
    let [without, with] = [keys, fleet.account.role("HeartbeatIngestRole")].map(|keys| fleet.ingest(&keys));
    let sweep = fleet.sweep(&fleet.account.role("SweepDispatchRole"));
    let (switch, now, clock) = (Switch::default(), fleet.now, fleet.clock());
    let mut node = fleet.nodes.pop_first().unwrap().1;
    node.live(&without, &sweep, &switch, now, clock).await;
    let status = async || fleet.store(&Account::owner()).nodes().await.unwrap()[0].status();
    assert_eq!((fleet.account.refused(), status().await), (only(&name, "dynamodb:UpdateItem nodes"), None));
    node.live(&with, &sweep, &switch, now, clock).await;
    assert!(status().await.is_some());
    refused_nothing(&fleet);
}

/// Commands, each with the logical id of a role or managed policy of the template, and whether its permissions are
/// enough. A new policy needs only new rows here.
const COMMANDS: &[(&str, &[&str], bool)] = &[
    ("PollAndScaleRole", &["nodes"], true),
    ("PollAndScaleRole", &["submit", "--", "true"], false),
    ("SweepDispatchRole", &["jobs"], false),
    ("ReaderPolicy", &["nodes"], true),
    ("ReaderPolicy", &["jobs"], true),
    ("ReaderPolicy", &["plan"], true),
    ("ReaderPolicy", &["history", "cluster"], true),
    ("ReaderPolicy", &["policy", "show"], true),
    ("ReaderPolicy", &["cost"], true),
    ("ReaderPolicy", &["jobs", "--all"], true),
    ("ReaderPolicy", &["jobs", "--state", "failed"], true),
    ("ReaderPolicy", &["jobs", "--name", "none"], true),
    ("ReaderPolicy", &["submit", "--", "true"], false),
    ("ReaderPolicy", &["release", "missing"], false),
    ("SubmitterPolicy", &["submit", "--", "true"], true),
    ("SubmitterPolicy", &["submit", "--array", "0-2%2", "--", "true"], true),
    ("SubmitterPolicy", &["cancel", "--name", "none", "--yes"], true),
    ("SubmitterPolicy", &["jobs", "--all"], true),
    ("SubmitterPolicy", &["demand", "set", "ci", "--size", "small", "--count", "1"], false),
    ("SubmitterPolicy", &["release", "missing"], false),
    ("OperatorPolicy", &["submit", "--", "true"], true),
    ("OperatorPolicy", &["release", "missing"], true),
    ("OperatorPolicy", &["demand", "set", "ci", "--size", "small", "--count", "1"], true),
    ("OperatorPolicy", &["teardown", "CLUSTER", "--terminate", "--timeout-s", "0"], true),
];

#[tokio::test]
async fn nightly_commands_are_allowed_what_their_policy_says() {
    let fleet = Fleet::new().await;
    for (policy, line, allowed) in COMMANDS {
        fleet.hold_back().await;
        let dynamo = fleet.account.dynamo(&Account::owner());
        let word = |word: &&str| match *word {
            "CLUSTER" => dynamo.cluster.to_string(),
            other => other.to_owned(),
        };
        let words: Vec<String> = line.iter().map(word).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let result = fleet.operate(&fleet.account.role(policy), &words).await;
        // Calls of an earlier command that was refused may arrive only now. So only this policy's refusals count.
        let refused: Vec<_> = fleet.account.refused().into_iter().filter(|(role, _)| role == policy).collect();
        assert_eq!(
            (result.is_ok(), refused.is_empty()),
            (*allowed, *allowed),
            "{policy}: {line:?}: {result:?} {refused:?}"
        );
    }
}
