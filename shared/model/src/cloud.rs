//! The cloud as the functions see it: one trait, and errors by what the caller must do.
//!
//! Guarantees: the boundary has no type of a provider's SDK, so support for another cloud is one more
//! crate that implements [`Cloud`].
//! Does not: call anything. The crate `cloud` implements the trait for EC2.

use crate::catalogue::Offers;
use crate::ids::NodeId;
pub use crate::instance::{BATCH_TAG, CLUSTER_TAG, Instance, InstanceState, NODE_TAG, SIZE_TAG};
use crate::launch::LaunchRequest;
pub use crate::refusal::{CloudError, Refusal};
use async_trait::async_trait;
use std::collections::BTreeSet;

/// Why a launch call gave no instance: one kind for each thing that the caller must do. See `docs/rules.md#section-5`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LaunchError {
    /// EC2 launched nothing for this call: leave what the refusal speaks of, and try another way.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// Too many calls: stop calling in this run. This is not a refusal.
    #[error("throttled: {0}")]
    Throttled(String),
    /// The instance of this client token is terminated: this life of the slot is over.
    #[error("its instance is terminated already: {0}")]
    Spent(String),
    /// It is not known whether EC2 launched an instance: the same call with the same token may be repeated.
    #[error("EC2 did not say whether it launched: {0}")]
    Lost(String),
}

/// What nodekeeper asks of the cloud.
#[async_trait]
pub trait Cloud: Send + Sync {
    /// Every instance with our cluster tag, in any state that EC2 still lists. All pages, or an error.
    async fn instances(&self) -> Result<Vec<Instance>, CloudError>;
    /// The instances with these ids. An instance without our cluster tag is left out. The state may be any that the cloud
    /// still knows, and the order may be any. A cloud that can do this faster than by its whole list has its own method.
    async fn instances_by_id(&self, instance_ids: &[String]) -> Result<Vec<Instance>, CloudError> {
        let wanted: BTreeSet<&str> = instance_ids.iter().map(String::as_str).collect();
        let mut listed = self.instances().await?;
        listed.retain(|i| wanted.contains(i.instance_id.as_str()));
        Ok(listed)
    }
    /// The instances with our cluster tag that were launched as one of these nodes, in any state that the cloud still
    /// knows, in any order. A cloud with a faster way than its whole list makes this method itself.
    async fn instances_of(&self, nodes: &BTreeSet<NodeId>) -> Result<Vec<Instance>, CloudError> {
        let mut listed = self.instances().await?;
        listed.retain(|i| i.node_id().is_some_and(|node_id| nodes.contains(&node_id)));
        Ok(listed)
    }
    /// One instance, asked for by id, whatever its tags are; `None` if EC2 does not know it.
    async fn instance(&self, instance_id: &str) -> Result<Option<Instance>, CloudError>;
    /// One launch call, for at least [`LaunchRequest::least`] and at most [`LaunchRequest::count`] instances. As many are
    /// returned, or an error.
    async fn launch(&self, request: &LaunchRequest, client_token: &str) -> Result<Vec<Instance>, LaunchError>;
    /// Terminates these instances. If EC2 does not know one of them, it still terminates the others.
    async fn terminate(&self, instance_ids: &[String]) -> Result<(), CloudError>;
    /// What the cloud offers; `None` for a cloud that cannot say it.
    fn offers(&self) -> Option<&dyn Offers> {
        None
    }
    /// The end of an instance's console output, if there is any.
    async fn console_output(&self, instance_id: &str) -> Result<Option<String>, CloudError>;
}
