//! The launch request: everything in a launch call except the client token.
//!
//! Guarantees: the same record, policy and settings render the same request, byte for byte, so that
//! any run can repeat the call (`docs/rules.md#R5`).
//! Does not: call anything, or choose what to launch.

use crate::auth::{KeyRing, hex};
use crate::ids::{ClusterName, NodeId};
use crate::instance::{CLUSTER_TAG, NODE_TAG, SIZE_TAG};
use crate::node::{Life, Offering};
use crate::policy::Policy;
use crate::wire::{NODE_FILE, NodeFile};
use serde::Serialize;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;

/// Everything in a launch call except the client token.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[allow(missing_docs, reason = "the names say it")]
pub struct LaunchRequest {
    pub offering: Offering,
    pub tags: BTreeMap<String, String>,
    /// The script for the first boot, not yet encoded.
    pub user_data: String,
}

/// What a launch request needs besides the record and the policy.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub struct LaunchSettings {
    pub cluster: ClusterName,
    /// The keys for node tokens; `None` if IAM authenticates the nodes.
    pub keys: Option<KeyRing>,
    /// Where nodes send heartbeats.
    pub heartbeat_url: String,
    /// Where nodes report handles.
    pub sweep_url: String,
}

impl LaunchSettings {
    /// The number of the key that tokens of new nodes are made with. Without keys it has no meaning.
    pub fn key_version(&self) -> u32 {
        self.keys.as_ref().map_or(1, KeyRing::version)
    }
}

impl LaunchRequest {
    /// Renders the request of a node. `key_version` is that of its record.
    pub fn render(
        settings: &LaunchSettings,
        policy: &Policy,
        node_id: NodeId,
        key_version: u32,
        offering: &Offering,
    ) -> Self {
        let cluster = &settings.cluster;
        let mut tags = policy.launch.tags.clone();
        tags.insert(CLUSTER_TAG.into(), cluster.to_string());
        tags.insert(NODE_TAG.into(), node_id.to_string());
        tags.insert(SIZE_TAG.into(), offering.size.clone());
        tags.insert("Name".into(), format!("{cluster}-{}", node_id.slot()));
        let file = NodeFile {
            cluster: cluster.clone(),
            node_id,
            token: settings.keys.as_ref().map(|k| k.boot_token(cluster, node_id, key_version)),
            heartbeat_url: settings.heartbeat_url.clone(),
            sweep_url: settings.sweep_url.clone(),
        };
        // EC2 says in its answer which zone it chose; the request does not ask for one.
        let offering = Offering { zone: None, ..offering.clone() };
        Self { offering, tags, user_data: user_data(&file, &policy.launch.user_data) }
    }

    /// A digest of the whole request. If a change of the policy changes the request, the digest changes too.
    pub fn digest(&self) -> String {
        let json = serde_json::to_vec(self).unwrap_or_default();
        hex(Sha256::digest(json).get(..8).unwrap_or_default())
    }
}

const USER_DATA_END: &str = "NODEKEEPER_NODE_JSON";

fn user_data(file: &NodeFile, more: &str) -> String {
    let json = serde_json::to_string(file).unwrap_or_default();
    let directory = NODE_FILE.rsplit_once('/').map_or("/", |(d, _)| d);
    format!(
        "#!/bin/sh\n(umask 077; mkdir -p {directory}; cat > {NODE_FILE} <<'{USER_DATA_END}'\n{json}\n{USER_DATA_END}\n)\n{more}\n"
    )
}

/// The node file that this user data would write. The local stack uses it: its machines do not run user data.
pub fn node_file_in(user_data: &str) -> Option<NodeFile> {
    let marker = format!("<<'{USER_DATA_END}'\n");
    let (_, rest) = user_data.split_once(&marker)?;
    let (json, _) = rest.split_once(&format!("\n{USER_DATA_END}\n"))?;
    serde_json::from_str(json).ok()
}

/// The client token of the current launch call of a life.
pub fn client_token(life: &Life) -> String {
    format!("{}-{}", life.node_id, life.attempt)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;
    use crate::policy;

    fn settings() -> LaunchSettings {
        LaunchSettings {
            cluster: "c".parse().unwrap(),
            keys: Some(KeyRing::new("0f".repeat(32).parse().unwrap(), None)),
            heartbeat_url: "http://h".into(),
            sweep_url: "http://s".into(),
        }
    }

    #[test]
    fn the_same_record_and_policy_render_the_same_request() {
        let policy = Policy::from_json(&policy::example_json()).unwrap();
        let node = fixtures::node_id(3);
        let request = LaunchRequest::render(&settings(), &policy, node, 1, &fixtures::offering());
        let mut bound = fixtures::offering();
        bound.zone = Some("eu-1a".into());
        assert_eq!(LaunchRequest::render(&settings(), &policy, node, 1, &bound).digest(), request.digest());
        let mut other = policy.clone();
        other.launch.user_data = "echo hello".into();
        assert_ne!(LaunchRequest::render(&settings(), &other, node, 1, &bound).digest(), request.digest());
        assert_eq!(request.tags["Name"], "c-3");
        assert!(client_token(fixtures::assigned(3).life().unwrap()).len() <= 64);
    }

    #[test]
    fn user_data_carries_the_node_file_and_the_operators_commands() {
        let mut policy = Policy::from_json(&policy::example_json()).unwrap();
        policy.launch.user_data = "systemctl start nodekeeper-agent".into();
        let request = LaunchRequest::render(&settings(), &policy, fixtures::node_id(3), 1, &fixtures::offering());
        let file = node_file_in(&request.user_data).unwrap();
        assert_eq!((file.node_id, file.heartbeat_url.as_str()), (fixtures::node_id(3), "http://h"));
        assert_eq!(file.token.unwrap().len(), 64);
        assert!(request.user_data.ends_with("systemctl start nodekeeper-agent\n"));
        assert!(node_file_in("#!/bin/sh").is_none());
    }
}
