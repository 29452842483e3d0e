//! The cloud as the functions see it: instances, errors typed by what the caller must do, and one
//! trait.
//!
//! Guarantees: the boundary has no type of any provider's SDK, so another cloud is one more crate
//! that implements [`Cloud`].
//! Does not: call anything. The crate `cloud` implements the trait for EC2.

use crate::ids::NodeId;
use crate::launch::LaunchRequest;
use crate::time::Time;
use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The tag that names the cluster of an instance.
pub const CLUSTER_TAG: &str = "nodekeeper:cluster";
/// The tag that ties an instance to its node.
pub const NODE_TAG: &str = "nodekeeper:node-id";
/// The tag that names the size an instance was launched as.
pub const SIZE_TAG: &str = "nodekeeper:size";

/// What EC2 says an instance is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum InstanceState {
    /// Starting.
    Pending,
    /// Up.
    Running,
    /// On its way to terminated.
    ShuttingDown,
    /// Gone for good.
    Terminated,
    /// Being stopped, by someone else: we never stop.
    Stopping,
    /// Stopped, by someone else.
    Stopped,
}

/// An instance as EC2 lists it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Instance {
    /// EC2's name for it.
    pub instance_id: String,
    /// What it is doing.
    pub state: InstanceState,
    /// When it was launched.
    pub launched_at: Time,
    /// Its zone, where told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// Its tags.
    #[serde(default)]
    pub tags: BTreeMap<String, String>,
}

impl Instance {
    /// The node it was launched as; `None` where the tag is missing or makes no sense.
    pub fn node_id(&self) -> Option<NodeId> {
        self.tags.get(NODE_TAG).and_then(|t| t.parse().ok())
    }
}

/// Why a launch call did not launch, by what the caller must do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LaunchError {
    /// This type, zone and market are short: take another offering.
    #[error("no capacity: {0}")]
    Capacity(String),
    /// The account's limit: launch nothing more for a while.
    #[error("quota: {0}")]
    Quota(String),
    /// Too many calls: stop calling in this run. Not a refusal.
    #[error("throttled: {0}")]
    Throttled(String),
    /// A person must look: the request itself is wrong.
    #[error("bad request: {0}")]
    BadRequest(String),
    /// The token's instance has been terminated: this life is over.
    #[error("its instance is terminated already: {0}")]
    Spent(String),
    /// Whether it launched is not known: the same token may be used again.
    #[error("the answer was lost: {0}")]
    Lost(String),
}

/// Why EC2 did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CloudError {
    /// No answer, or none that makes sense.
    #[error("EC2 did not answer ({operation}): check AWS_ENDPOINT_URL_EC2, the region and the credentials: {detail}")]
    Unreachable {
        /// What was asked.
        operation: &'static str,
        /// What the client says.
        detail: String,
    },
    /// It refused.
    #[error("EC2 refused {operation}: {code}: {message}")]
    Refused {
        /// What was asked.
        operation: &'static str,
        /// Its code.
        code: String,
        /// Its words.
        message: String,
    },
}

/// The cloud.
#[async_trait]
pub trait Cloud: Send + Sync {
    /// Every instance with our cluster tag, in any state EC2 still lists; all pages or an error.
    async fn instances(&self) -> Result<Vec<Instance>, CloudError>;
    /// One instance, asked for by id; `None` if EC2 does not know it.
    async fn instance(&self, instance_id: &str) -> Result<Option<Instance>, CloudError>;
    /// One launch call of one instance.
    async fn launch(&self, request: &LaunchRequest, client_token: &str) -> Result<Instance, LaunchError>;
    /// Terminates these. An id EC2 does not know does not keep the others from being terminated.
    async fn terminate(&self, instance_ids: &[String]) -> Result<(), CloudError>;
    /// The last of an instance's console output, if there is any.
    async fn console_output(&self, instance_id: &str) -> Result<Option<String>, CloudError>;
}
