//! An instance as EC2 lists it, and the tags that tie it to a cluster, a node and a size.
//!
//! Guarantees: nothing here is a type of a provider's SDK.
//! Does not: call anything. `crate::cloud` has the calls and re-exports these names.

use crate::batch::Batch;
use crate::ids::NodeId;
use crate::time::Time;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// The tag that names the cluster of an instance.
pub const CLUSTER_TAG: &str = "nodekeeper:cluster";
/// The tag that ties an instance to its node.
pub const NODE_TAG: &str = "nodekeeper:node-id";
/// The tag that ties an instance to its batch, in place of [`NODE_TAG`]: see [`Batch`].
pub const BATCH_TAG: &str = "nodekeeper:batch";
/// The tag that names the size an instance was launched as.
pub const SIZE_TAG: &str = "nodekeeper:size";

/// The state of an instance, as EC2 lists it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
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
pub struct Instance {
    pub instance_id: String,
    pub state: InstanceState,
    pub launched_at: Time,
    /// `None` if EC2 does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// The number of the instance in its launch call, from 0; `None` if EC2 does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub launch_index: Option<u32>,
    #[serde(default)]
    pub tags: BTreeMap<String, String>,
}

impl Instance {
    /// The node that the instance was launched as; `None` if it has neither the tag of a node nor that of a batch, or the
    /// tag cannot be read.
    pub fn node_id(&self) -> Option<NodeId> {
        match self.tags.get(NODE_TAG) {
            Some(node) => node.parse().ok(),
            None => Batch::node_in(self.tags.get(BATCH_TAG)?, self.launch_index?),
        }
    }

    /// Whether the instance has tags, but not the tag of this node. A list without tags, as a person may write one for
    /// `plan --state`, says nothing about owners.
    pub fn is_foreign_to(&self, node_id: NodeId) -> bool {
        !self.tags.is_empty() && self.node_id() != Some(node_id)
    }

    /// The owner by the tag, for people.
    pub fn owner(&self) -> String {
        let tag = self.node_id().map(|id| id.to_string()).or_else(|| self.tags.get(NODE_TAG).cloned());
        tag.map_or_else(|| "no node of the cluster".to_owned(), |tag| format!("node {tag}"))
    }
}
