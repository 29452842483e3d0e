//! Emulators from other projects. They find mistakes that our own stand-ins share with the product.
//! The test command installs them from PyPI.
//!
//! Guarantees: the suite of `store` also runs on `ministack`; `moto_server` accepts the EC2 calls.
//! Does not: test what moto does not emulate: client tokens (it starts an instance for each call), the time from
//! pending to running, and capacity.

use crate::world::{World, aws, dynamo_client, dynamo_url, ec2_client, fresh_cluster, job};
use cloud::{AwsOffers, Ec2};
use model::policy::example_json;
use model::{ActionName, Arch, Cloud, InstanceState, LaunchRequest, LaunchSettings, Offers, Policy, Span, fixtures};
use nodekeeper_cli::local::tables;
use runtime::answer::ActionOutcome;
use serde_json::json;
use std::collections::BTreeSet;
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use store::{Dynamo, Store};

pub fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// A program in the Python environment that the test command creates.
pub fn python_tool(name: &str) -> PathBuf {
    let program = root().join("target/venv/bin").join(name);
    assert!(
        program.exists(),
        "{} is missing: run the tests by the README's command, which installs it",
        program.display()
    );
    program
}

pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

pub fn wait_for_port(port: u16, what: &str) {
    let until = Instant::now() + Duration::from_secs(60);
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(Instant::now() < until, "{what} did not come up");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// An emulator process. It is ended when the value is dropped.
pub struct Emulator {
    pub url: String,
    process: Child,
}

impl Emulator {
    fn start(name: &str, configure: impl Fn(&mut Command, u16)) -> Self {
        Self::start_at(free_port(), name, configure)
    }

    fn start_at(port: u16, name: &str, configure: impl Fn(&mut Command, u16)) -> Self {
        let mut command = Command::new(python_tool(name));
        configure(&mut command, port);
        let process = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        wait_for_port(port, name);
        Self { url: format!("http://127.0.0.1:{port}"), process }
    }

    pub fn ministack() -> Self {
        Self::start("ministack", |c, port| _ = c.env("GATEWAY_PORT", port.to_string()))
    }

    /// A MiniStack that checks the caller's identity, and the permissions of the caller's role.
    pub fn ministack_with_permissions() -> Self {
        Self::start("ministack", |c, port| _ = c.env("GATEWAY_PORT", port.to_string()).env("AUTH", "true"))
    }

    pub fn moto() -> Self {
        Self::moto_at(free_port())
    }

    pub fn moto_at(port: u16) -> Self {
        Self::start_at(port, "moto_server", |c, port| _ = c.args(["-H", "127.0.0.1", "-p", &port.to_string()]))
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn settings(cluster: &model::ids::ClusterName) -> LaunchSettings {
    LaunchSettings {
        cluster: cluster.clone(),
        key: None,
        heartbeat_url: "http://heartbeat".into(),
        sweep_url: "http://sweep".into(),
    }
}

#[tokio::test]
async fn nightly_the_ec2_calls_of_a_whole_pass_are_understood_by_moto() {
    let emulator = Emulator::moto();
    let client = ec2_client(&emulator.url);
    let data = aws_sdk_ec2::types::RequestLaunchTemplateData::builder().image_id("ami-12c6146b").build();
    client.create_launch_template().launch_template_name("nodekeeper").launch_template_data(data).send().await.unwrap();
    let cluster = fresh_cluster();
    let (cloud, other) = (Ec2::new(client.clone(), cluster.clone()), Ec2::new(client, "other".parse().unwrap()));
    assert_eq!(cloud.instances().await.unwrap(), []);
    let mut policy = example_json();
    policy["launch"]["tags"] = json!({"team": "a & b <c>"});
    let policy = Policy::from_json(&policy).unwrap();
    let mut launched = Vec::new();
    for n in 0..3 {
        let request =
            LaunchRequest::render(&settings(&cluster), &policy, fixtures::node_id(n), &[fixtures::offering()]);
        let instance = cloud.launch(&request, &format!("token-{n}")).await.unwrap().instances.remove(0);
        let instance = cloud.instance(&instance.instance_id).await.unwrap().unwrap();
        assert_eq!(instance.node_id(), Some(fixtures::node_id(n)));
        assert_eq!(instance.tags["team"], "a & b <c>");
        launched.push(instance.instance_id);
    }
    let mut listed: Vec<_> = cloud.instances().await.unwrap().into_iter().map(|i| i.instance_id).collect();
    listed.sort_unstable();
    let mut expected = launched.clone();
    expected.sort_unstable();
    assert_eq!(listed, expected);
    assert_eq!(other.instances().await.unwrap(), [], "another cluster's are not ours");
    assert!(cloud.instance(&launched[0]).await.unwrap().is_some());
    assert_eq!(cloud.instance("i-0123456789abcdef0").await.unwrap(), None);
    // An unknown id does not stop the termination of the others.
    let ids = [launched[0].clone(), "i-0123456789abcdef0".into(), launched[1].clone()];
    cloud.terminate(&ids).await.unwrap();
    for instance in cloud.instances().await.unwrap() {
        let gone = instance.state == InstanceState::Terminated;
        assert_eq!(gone, instance.instance_id != launched[2], "{instance:?}");
    }
    let mut bad = fixtures::offering();
    bad.template = "no-such-template".into();
    let request = LaunchRequest::render(&settings(&cluster), &policy, fixtures::node_id(9), &[bad]);
    let error = cloud.launch(&request, "token-9").await.unwrap_err();
    assert!(
        matches!(&error, model::cloud::LaunchError::Refused(r) if r.reach == model::enums::Reach::Template),
        "{error:?}"
    );
}

/// The offers of moto are read like those of EC2. moto knows all real types, makes up spot prices, and has no on-demand
/// prices.
#[tokio::test]
async fn nightly_what_moto_offers_is_understood() {
    let emulator = Emulator::moto();
    let ec2 = AwsOffers::connect(&aws(&emulator.url, "us-east-1"));
    let set = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<BTreeSet<String>>();
    let types = ec2.types(&set(&["m5.*", "g4dn.xlarge", "m6g.large"])).await.unwrap();
    assert!(types.keys().filter(|name| name.starts_with("m5.")).count() > 5, "{types:?}");
    let (large, g4dn) = (&types["m5.large"], &types["g4dn.xlarge"]);
    assert_eq!((large.vcpus, large.memory_mib, &large.arch), (2, 8192, &BTreeSet::from([Arch::X86_64])));
    assert_eq!((g4dn.gpus, g4dn.gpu_type.as_deref(), g4dn.gpu_memory_gib), (1, Some("t4"), 16));
    assert_eq!((g4dn.local_disk_gib, types["m6g.large"].arch.contains(&Arch::Arm64)), (116, true));
    let zones = ec2.zones(&set(&["m5.large"])).await.unwrap();
    assert!(zones["m5.large"].contains("us-east-1a") && zones.len() == 1, "{zones:?}");
    let spot = ec2.spot_prices(&set(&["m5.large", "m5.xlarge"])).await.unwrap();
    assert!(spot["m5.large"].values().all(|price| !price.is_zero()), "{spot:?}");
    let client = ec2_client(&emulator.url);
    let known = client.describe_subnets().send().await.unwrap().subnets()[0].clone();
    let id = known.subnet_id().unwrap();
    let subnets = ec2.subnets(&set(&[id])).await.unwrap();
    assert_eq!(subnets[id].zone, known.availability_zone().unwrap());
    assert!(subnets.len() == 1 && subnets[id].free > 0, "{subnets:?}");
    // One call with both ids would show nothing: moto then names either of the two as unknown.
    assert!(ec2.subnets(&set(&["subnet-0123456789abcdef0"])).await.unwrap().is_empty());
}

/// The real function takes a node through its life with moto as EC2: the node is launched and bound, given up after the
/// boot time, terminated and cleaned.
#[tokio::test]
async fn nightly_poll_and_scale_passes_with_moto_for_ec2() {
    let emulator = Emulator::moto();
    let client = ec2_client(&emulator.url);
    let data = aws_sdk_ec2::types::RequestLaunchTemplateData::builder().image_id("ami-12c6146b").build();
    client.create_launch_template().launch_template_name("nodekeeper").launch_template_data(data).send().await.unwrap();
    let world = World::new().await;
    let cloud = Ec2::new(client, world.cluster.clone());
    let pass = async || {
        let run = poll_and_scale::tick(&world.store, &cloud, &world.settings, &json!({}), world.clock()).await;
        run.unwrap().actions.into_iter().map(|a| (a.action, a.outcome == ActionOutcome::Done)).collect::<Vec<_>>()
    };
    let job = world.submit(job(&["one"])).await;
    assert_eq!(pass().await, [(ActionName::Launch, true)]);
    let bound = world.look.nodes().await.unwrap().remove(0);
    let instance = bound.life().unwrap().instance_id.clone().unwrap();
    assert_eq!(cloud.instances().await.unwrap()[0].instance_id, instance);
    let cancelled = job.cancel("ann", Span::from_s(60), world.now()).unwrap();
    world.look.write(Some(&job), &cancelled, Vec::new()).await.unwrap();
    // The 60 s cover the real time of the runs, which depends on the emulator.
    world.pass(world.policy.boot.timeout_s + 60);
    assert_eq!(pass().await, [(ActionName::ShutDown, true)]);
    assert_eq!(cloud.instance(&instance).await.unwrap().unwrap().state, InstanceState::Terminated);
    world.pass(5);
    assert_eq!(pass().await, [(ActionName::Clean, true)]);
    assert!(world.look.nodes().await.unwrap()[0].is_cleaned());
    assert_eq!(pass().await, []);
}

/// The embedded DynamoDB describes the tables as the product defines them.
#[tokio::test]
async fn the_tables_are_as_defined() {
    let (cluster, client) = (fresh_cluster(), dynamo_client(dynamo_url()));
    let dynamo = Dynamo::new(client.clone(), cluster.clone());
    assert_eq!(tables::make(&dynamo).await.unwrap().len(), store::TABLES.len());
    let _ = Store::new(Arc::new(dynamo));
    for definition in store::TABLES {
        let name = format!("{cluster}-{}", definition.table.suffix());
        let described = client.describe_table().table_name(&name).send().await.unwrap().table.unwrap();
        let keys: Vec<_> = described.key_schema().iter().map(|k| k.attribute_name()).collect();
        let expected: Vec<_> =
            std::iter::once(definition.key.hash.name).chain(definition.key.range.map(|r| r.name)).collect();
        assert_eq!(keys, expected, "{name}");
        let indexes: Vec<_> = described.global_secondary_indexes().iter().filter_map(|i| i.index_name()).collect();
        assert_eq!(indexes, definition.indexes.iter().map(|i| i.name).collect::<Vec<_>>(), "{name}");
    }
}

/// A URL at which nothing listens.
pub fn free_url() -> String {
    format!("http://127.0.0.1:{}", free_port())
}
