//! An instance as EC2 lists it, and the tags that tie it to a cluster, a node and a size.
//!
//! Guarantees: nothing here is a type of a provider's SDK.
//! Does not: call anything. `crate::cloud` has the calls and re-exports these names.

use crate::ids::Ulid;
use crate::{Batch, InstanceState, NodeId, Time};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

pub const CLUSTER_TAG: &str = "nodekeeper:cluster";
/// The tag that ties an instance to its node.
pub const NODE_TAG: &str = "nodekeeper:node-id";
/// The tag that ties an instance to its batch, in place of [`NODE_TAG`]: see [`Batch`].
pub const BATCH_TAG: &str = "nodekeeper:batch";
/// The tag that names the size an instance was launched as.
pub const SIZE_TAG: &str = "nodekeeper:size";

/// An instance as EC2 lists it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Instance {
    pub instance_id: String,
    pub state: InstanceState,
    pub launched_at: Time,
    /// `None` if EC2 does not say.
    pub zone: Option<String>,
    /// `None` if EC2 does not say.
    pub instance_type: Option<String>,
    /// `None` if EC2 does not say.
    pub subnet_id: Option<String>,
    #[serde(default)]
    pub tags: BTreeMap<String, String>,
}

impl Instance {
    /// The node that the instance was launched for, if it was launched for one alone.
    pub fn node_id(&self) -> Option<NodeId> {
        self.tags.get(NODE_TAG)?.parse().ok()
    }

    /// The ULID of the batch that the instance was launched for; `None` if it was launched for one node, or the tag cannot be
    /// read.
    pub fn batch(&self) -> Option<Ulid> {
        if self.tags.contains_key(NODE_TAG) { None } else { Batch::ulid_in(self.tags.get(BATCH_TAG)?) }
    }

    /// The nodes that the instance may be: the one of its tag, or those of its batch. Empty without a readable tag.
    pub fn nodes(&self) -> Vec<NodeId> {
        let batch = || Some(self.tags.get(BATCH_TAG)?.parse::<Batch>().ok()?.nodes().collect());
        if self.tags.contains_key(NODE_TAG) {
            self.node_id().into_iter().collect()
        } else {
            batch().unwrap_or_default()
        }
    }

    /// Whether the instance was launched for this node, or for its batch.
    pub fn may_be(&self, node_id: NodeId) -> bool {
        self.node_id() == Some(node_id) || self.batch() == Some(node_id.ulid())
    }

    /// Whether the instance belongs to somebody else: it has tags, and they name neither this node nor its batch. An instance
    /// without tags may belong to anybody: a person may write such a list for `plan --state`.
    pub fn is_foreign_to(&self, node_id: NodeId) -> bool {
        !self.tags.is_empty() && !self.may_be(node_id)
    }

    /// The node or the batch that the tags name, for people.
    pub fn owner(&self) -> String {
        match (self.tags.get(NODE_TAG), self.tags.get(BATCH_TAG)) {
            (Some(node), _) => format!("node {node}"),
            (None, Some(batch)) => format!("batch {batch}"),
            (None, None) => "no node of the cluster".to_owned(),
        }
    }
}

/// An instance that a launch call made, as much as the answer says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewInstance {
    pub instance_id: String,
    /// `None` if EC2 does not say.
    pub instance_type: Option<String>,
    /// `None` if EC2 does not say.
    pub subnet_id: Option<String>,
    /// `None` if EC2 does not say.
    pub zone: Option<String>,
}

impl From<&Instance> for NewInstance {
    fn from(listed: &Instance) -> Self {
        let Instance { instance_id, instance_type, subnet_id, zone, .. } = listed.clone();
        Self { instance_id, instance_type, subnet_id, zone }
    }
}
