//! The launch request: everything in a launch call except the client token.
//!
//! Guarantees: the same record, policy and settings render the same request, byte for byte, so that
//! any run can repeat the call (`docs/rules.md#R5`).
//! Does not: call anything, or choose what to launch.

use crate::auth::hex;
use crate::instance::{BATCH_TAG, CLUSTER_TAG, NODE_TAG, SIZE_TAG};
use crate::policy::{AgentFile, AgentPolicy};
use crate::wire::{LaunchFile, NODE_FILE};
use crate::{Batch, ClusterName, Life, NodeId, NodeKey, Offering, Policy, left_out};
use serde::Serialize;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;

/// The call that makes a launch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub enum LaunchCall {
    /// CreateFleet, which tries several ways.
    #[default]
    Fleet,
    /// RunInstances, by one way: where EC2 does not take a fleet. It knows the user data of a fleet since July 2026, and not in every
    /// region.
    One,
}

/// Everything in a launch call except the client token.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LaunchRequest {
    #[serde(skip_serializing_if = "crate::left_out::is_default")]
    pub call: LaunchCall,
    /// The ways to launch, at least one, all of one size, market and launch template, and with one subnet of each zone. On demand
    /// EC2 takes the first that it has; on the spot market it weighs their prices and its spare capacity.
    pub ways: Vec<Offering>,
    pub tags: BTreeMap<String, String>,
    /// The script for the first boot, not yet encoded.
    pub user_data: String,
    /// The most instances that the call asks for.
    #[serde(skip_serializing_if = "crate::left_out::is_one")]
    pub count: usize,
    /// The fewest instances that help: if EC2 has fewer, it launches none.
    #[serde(skip_serializing_if = "crate::left_out::is_one")]
    pub least: usize,
    /// EC2 launches nothing, and only says whether it takes the call.
    #[serde(skip_serializing_if = "crate::left_out::is_default")]
    pub is_dry_run: bool,
}

/// The nodes that a launch call is for.
#[derive(Clone, Copy, Debug)]
pub enum Launched<'a> {
    Node(NodeId),
    /// The nodes of a batch, as many as EC2 has.
    Batch(&'a Batch),
    /// The nodes of a batch, all or none: they are members of one job.
    Whole(&'a Batch),
}

impl<'a> Launched<'a> {
    /// The launch of this batch, or of this node alone if there is no batch.
    pub fn of(node_id: NodeId, batch: Option<&'a Batch>, is_whole: bool) -> Self {
        batch.map_or(Self::Node(node_id), |batch| if is_whole { Self::Whole(batch) } else { Self::Batch(batch) })
    }
}

impl From<NodeId> for Launched<'_> {
    fn from(node_id: NodeId) -> Self {
        Self::Node(node_id)
    }
}

impl Life {
    /// The nodes that the launch call of this life is for.
    pub fn launched(&self) -> Launched<'_> {
        Launched::of(self.node_id, self.batch.as_ref(), self.is_whole)
    }
}

/// The parts of a launch request that are neither of the record nor of the policy.
#[derive(Clone, Debug)]
pub struct LaunchSettings {
    pub cluster: ClusterName,
    /// The key for node tokens; `None` if nodes sign their requests.
    pub key: Option<NodeKey>,
    /// Where nodes send heartbeats.
    pub heartbeat_url: String,
    /// Where nodes report handles.
    pub sweep_url: String,
}

impl LaunchRequest {
    /// The same inputs give the same request, so that a repeated call has the digest of the first one.
    pub fn render<'a>(
        settings: &LaunchSettings,
        policy: &Policy,
        launched: impl Into<Launched<'a>>,
        ways: &[Offering],
    ) -> Self {
        let cluster = &settings.cluster;
        let mut tags = policy.launch.tags.clone();
        tags.insert(CLUSTER_TAG.into(), cluster.to_string());
        tags.extend(ways.first().map(|first| (SIZE_TAG.into(), first.size.clone())));
        let launched = launched.into();
        let is_whole = matches!(launched, Launched::Whole(_));
        let (node_id, batch, count) = match launched {
            Launched::Node(node_id) => {
                tags.insert(NODE_TAG.into(), node_id.to_string());
                tags.insert("Name".into(), format!("{cluster}-{}", node_id.slot()));
                (Some(node_id), None, 1)
            }
            Launched::Batch(batch) | Launched::Whole(batch) => {
                tags.insert(BATCH_TAG.into(), batch.to_string());
                tags.insert("Name".into(), cluster.to_string());
                (None, Some(batch.clone()), batch.slots().len())
            }
        };
        let token = |id| settings.key.as_ref().map(|key| key.token(cluster, id));
        let file = LaunchFile {
            cluster: cluster.clone(),
            node_id,
            batch,
            token: node_id.and_then(token),
            heartbeat_url: settings.heartbeat_url.clone(),
            sweep_url: settings.sweep_url.clone(),
        };
        Self {
            call: LaunchCall::Fleet,
            ways: ways.to_vec(),
            tags,
            user_data: user_data(&file, &policy.launch.user_data, &boot_commands(&policy.agent)),
            count,
            least: if is_whole { count } else { 1 },
            is_dry_run: false,
        }
    }

    /// A digest of the whole request. If a change of the policy changes the request, the digest changes too. The zone is left out:
    /// it is only what is known of the subnet.
    pub fn digest(&self) -> String {
        let ways = self.ways.iter().map(|way| Offering { zone: None, ..way.clone() }).collect();
        let json = serde_json::to_vec(&Self { ways, ..self.clone() }).unwrap_or_default();
        hex(Sha256::digest(json).get(..8).unwrap_or_default())
    }
}

const USER_DATA_END: &str = "NODEKEEPER_NODE_JSON";

fn user_data(file: &LaunchFile, more: &str, boot: &str) -> String {
    let json = left_out::to_json(file).unwrap_or_default();
    let directory = NODE_FILE.rsplit_once('/').map_or("/", |(d, _)| d);
    format!(
        "#!/bin/sh\n(umask 077; mkdir -p {directory}; cat > {NODE_FILE} <<'{USER_DATA_END}'\n{json}\n{USER_DATA_END}\n)\n{more}\n{boot}"
    )
}

/// What makes an instance a node, after its configuration is written.
const BOOT: &str = include_str!("../../../../infra/boot.sh");

/// The commands that fetch and start the agent; empty if the policy names none.
fn boot_commands(agent: &AgentPolicy) -> String {
    // What `uname -m` prints.
    let files = [("x86_64", &agent.x86_64), ("aarch64", &agent.arm64)];
    let case = |(machine, file): (&str, &Option<AgentFile>)| {
        let file = file.as_ref()?;
        Some(format!("{machine}) AGENT_URL='{}' AGENT_SHA256={} ;;\n", file.url(), file.sha256()))
    };
    let cases: String = files.into_iter().filter_map(case).collect();
    if cases.is_empty() {
        return String::new();
    }
    let options = agent.options.replace('\'', r"'\''");
    format!("case \"$(uname -m)\" in\n{cases}esac\nAGENT_OPTIONS='{options}'\n{BOOT}")
}

/// The node file that this user data would write. The local stack uses it, because its machines have their node files elsewhere.
pub fn node_file_in(user_data: &str) -> Option<LaunchFile> {
    let marker = format!("<<'{USER_DATA_END}'\n");
    let (_, rest) = user_data.split_once(&marker)?;
    let (json, _) = rest.split_once(&format!("\n{USER_DATA_END}\n"))?;
    serde_json::from_str(json).ok()
}

/// The commands after the node file, those of `launch.user_data` and of `[agent]`; empty if there are none.
pub fn commands_in(user_data: &str) -> &str {
    user_data.split_once(&format!("\n{USER_DATA_END}\n)\n")).map_or("", |(_, more)| more)
}

/// The client token of the current launch call of a life.
pub fn client_token(life: &Life) -> String {
    match life.launched() {
        Launched::Node(node_id) => format!("{node_id}-{}", life.attempt),
        Launched::Batch(batch) | Launched::Whole(batch) => format!("{}-{}", batch.ulid(), life.attempt),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;
    use crate::instance::NewInstance;
    use crate::policy::{self, OWN_USER_DATA_BYTES};

    fn settings() -> LaunchSettings {
        LaunchSettings {
            cluster: "c".parse().unwrap(),
            key: Some("0f".repeat(32).parse().unwrap()),
            heartbeat_url: "http://h".into(),
            sweep_url: "http://s".into(),
        }
    }

    #[test]
    fn the_same_record_and_policy_render_the_same_request() {
        let policy = Policy::from_json(&policy::example_json()).unwrap();
        let node = fixtures::node_id(3);
        let request = LaunchRequest::render(&settings(), &policy, node, &[fixtures::offering()]);
        let mut bound = fixtures::offering();
        bound.zone = Some("eu-1a".into());
        assert_eq!(LaunchRequest::render(&settings(), &policy, node, &[bound.clone()]).digest(), request.digest());
        let mut other = policy.clone();
        other.launch.user_data = "echo hello".into();
        assert_ne!(LaunchRequest::render(&settings(), &other, node, &[bound]).digest(), request.digest());
        assert_eq!(request.tags["Name"], "c-3");
        assert!(client_token(fixtures::assigned(3).life().unwrap()).len() <= 64);
    }

    #[test]
    fn the_request_of_a_batch_says_nothing_of_one_of_its_nodes() {
        let policy = Policy::from_json(&policy::example_json()).unwrap();
        let slots = [3, 4, 5, 9].map(fixtures::slot).to_vec();
        let batch = Batch::of_lowest(fixtures::node_id(3).ulid(), slots).unwrap();
        let settings = LaunchSettings { key: None, ..settings() };
        let way = |kind: &str| Offering { instance_type: kind.into(), ..fixtures::offering() };
        let ways = [way("m7a.large"), way("m7i.large")];
        let render = |launched: Launched<'_>| LaunchRequest::render(&settings, &policy, launched, &ways);
        let request = render(Launched::Batch(&batch));
        assert_eq!((request.count, &request.tags[BATCH_TAG]), (4, &batch.to_string()));
        assert!(!request.tags.contains_key(NODE_TAG));
        let file = node_file_in(&request.user_data).unwrap();
        assert_eq!((file.node_id, file.batch.as_ref(), &file.token), (None, Some(&batch), &None));
        assert_ne!(
            LaunchRequest::render(&settings, &policy, Launched::Batch(&batch), &ways[..1]).digest(),
            request.digest()
        );
        // The life of each node renders the same call, with the same token.
        let of = |n: u32| {
            let (offering, others) = (ways[0].clone(), ways[1..].to_vec());
            let life = crate::NewLife { batch: Some(batch.clone()), offering, others, ..fixtures::new_life(n) };
            crate::NodeRecord::assign(fixtures::slot(n), None, life, fixtures::at(0), "").unwrap()
        };
        for record in [of(3), of(9)] {
            let life = record.life().unwrap();
            assert_eq!(life.ways(), ways);
            assert_eq!(render(life.launched()).digest(), request.digest());
            assert_eq!(client_token(life), format!("{}-1", batch.ulid()));
        }
        assert_ne!(render(Launched::Batch(&batch.half().unwrap())).digest(), request.digest());
        let whole = render(Launched::Whole(&batch));
        assert_eq!((whole.count, whole.least, request.least), (4, 4, 1));
        assert_ne!(whole.digest(), request.digest());
        // The record of a bound node has the way that its instance was launched by.
        let instance = |kind: &str| NewInstance { instance_type: Some(kind.into()), ..fixtures::new_instance("i-3") };
        for (kind, known) in [("m7i.large", "m7i.large"), ("t3.nano", "m7a.large")] {
            let bound = of(3).bind(&instance(kind), fixtures::at(1)).unwrap();
            let life = bound.life().unwrap();
            assert_eq!((life.offering.instance_type.as_str(), &life.others, &life.batch), (known, &vec![], &None));
        }
    }

    #[test]
    fn user_data_carries_the_node_file_and_the_operators_commands() {
        let mut policy = Policy::from_json(&policy::example_json()).unwrap();
        policy.launch.user_data = "systemctl start nodekeeper-agent".into();
        let request = LaunchRequest::render(&settings(), &policy, fixtures::node_id(3), &[fixtures::offering()]);
        let file = node_file_in(&request.user_data).unwrap();
        assert_eq!((file.node_id, file.heartbeat_url.as_str()), (Some(fixtures::node_id(3)), "http://h"));
        assert_eq!(file.token.unwrap().len(), 64);
        assert_eq!(commands_in(&request.user_data), "systemctl start nodekeeper-agent\n");
        let without = request.user_data.len();
        policy.agent.arm64 = AgentFile::new("s3://lab/agent", &"ab".repeat(32));
        policy.agent.options = "--name it's".into();
        let request = LaunchRequest::render(&settings(), &policy, fixtures::node_id(3), &[fixtures::offering()]);
        let boot = commands_in(&request.user_data).strip_prefix("systemctl start nodekeeper-agent\n").unwrap();
        let place = format!("in\naarch64) AGENT_URL='s3://lab/agent' AGENT_SHA256={} ;;\nesac\n", "ab".repeat(32));
        assert!(boot.contains(&place) && boot.contains(r"AGENT_OPTIONS='--name it'\''s'"), "{boot}");
        // Not the most that a place may have, but more than any that is usual.
        assert!(request.user_data.len() < OWN_USER_DATA_BYTES - 2 * 1024, "{without} {}", request.user_data.len());
        assert!(node_file_in("#!/bin/sh").is_none());
        assert_eq!(commands_in("#!/bin/sh\nreboot"), "");
    }
}
