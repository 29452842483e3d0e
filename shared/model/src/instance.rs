//! An instance as EC2 lists it, and the tags that tie it to a cluster, a node and a size.
//!
//! Guarantees: nothing here is a type of a provider's SDK.
//! Does not: call anything. `crate::cloud` has the calls and re-exports these names.

use crate::ids::NodeId;
use crate::time::Time;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// The tag that names the cluster of an instance.
pub const CLUSTER_TAG: &str = "nodekeeper:cluster";
/// The tag that ties an instance to its node.
pub const NODE_TAG: &str = "nodekeeper:node-id";
/// The tag that names the size an instance was launched as.
pub const SIZE_TAG: &str = "nodekeeper:size";

/// The state of an instance, as EC2 lists it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs, reason = "the names say it")]
pub enum InstanceState {
    Pending,
    Running,
    ShuttingDown,
    Terminated,
    /// Someone else is stopping the instance. nodekeeper never stops an instance, it terminates it.
    Stopping,
    /// Someone else has stopped the instance.
    Stopped,
}

impl fmt::Display for InstanceState {
    /// The state in EC2's word for it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pending => "pending",
            Self::Running => "running",
            Self::ShuttingDown => "shutting-down",
            Self::Terminated => "terminated",
            Self::Stopping => "stopping",
            Self::Stopped => "stopped",
        })
    }
}

/// An instance as EC2 lists it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Instance {
    pub instance_id: String,
    pub state: InstanceState,
    pub launched_at: Time,
    /// `None` if EC2 does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    #[serde(default)]
    pub tags: BTreeMap<String, String>,
}

impl Instance {
    /// The node that the instance was launched as; `None` if it has no node id tag, or the tag is not a node id.
    pub fn node_id(&self) -> Option<NodeId> {
        self.tags.get(NODE_TAG).and_then(|t| t.parse().ok())
    }

    /// Whether the instance has tags, but not the tag of this node. A list without tags, as a person may write one for
    /// `plan --state`, says nothing about owners.
    pub fn is_foreign_to(&self, node_id: NodeId) -> bool {
        !self.tags.is_empty() && self.node_id() != Some(node_id)
    }

    /// The owner by the tag, for people.
    pub fn owner(&self) -> String {
        self.tags.get(NODE_TAG).map_or_else(|| "no node of the cluster".to_owned(), |tag| format!("node {tag}"))
    }
}
