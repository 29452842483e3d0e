//! The cloud as the functions see it: one trait, and errors by what the caller must do.
//!
//! Guarantees: the boundary has no type of a provider's SDK, so support for another cloud is one more
//! crate that implements [`Cloud`].
//! Does not: call anything. The crate `cloud` implements the trait for EC2.

use crate::enums::Class;
pub use crate::enums::InstanceState;
pub use crate::instance::{BATCH_TAG, CLUSTER_TAG, Instance, NODE_TAG, NewInstance, SIZE_TAG};
pub use crate::refusal::{CloudError, Refusal};
use crate::{LaunchRequest, NodeId, Offering, Offers};
use async_trait::async_trait;
use std::collections::BTreeSet;

/// Why a launch call gave no instance: one kind for each thing that the caller must do. See `docs/rules.md#section-5`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LaunchError {
    /// EC2 launched nothing for this call: leave the scope of the refusal, and try another way.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// Too many calls: stop calling in this run. This is not a refusal.
    #[error("throttled: {0}")]
    Throttled(String),
    /// It is not known whether EC2 launched an instance: the same call with the same token may be repeated.
    #[error("EC2 did not say whether it launched: {0}")]
    Lost(String),
}

/// The answer to a launch call that EC2 carried out.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LaunchAnswer {
    /// The launched instances; there may be none.
    pub instances: Vec<NewInstance>,
    /// The ways of the call by which it launched nothing, each with the reason.
    pub refused: Vec<(Offering, LaunchError)>,
    /// The ways that it did not try: it gave up after some of the others.
    pub untried: Vec<Offering>,
}

impl LaunchAnswer {
    /// Why EC2 launched nothing: a quota before anything else, because it may have room for fewer instances.
    pub fn why_nothing(&self) -> LaunchError {
        let is_quota = |e: &&LaunchError| matches!(e, LaunchError::Refused(r) if r.class == Class::Quota);
        let mut errors = self.refused.iter().map(|(_, error)| error);
        let first = errors.clone().find(is_quota).or_else(|| errors.next());
        first.cloned().unwrap_or_else(|| LaunchError::Lost("the answer has no instance and no error".into()))
    }
}

/// What nodekeeper asks of the cloud.
#[async_trait]
pub trait Cloud: Send + Sync {
    /// Every instance with our cluster tag, in any state that EC2 still lists. All pages, or an error.
    async fn instances(&self) -> Result<Vec<Instance>, CloudError>;
    /// The instances with these ids, without those that lack our cluster tag. They may be in any state that the cloud still knows,
    /// and in any order. A cloud that has a faster way than its whole list overrides this method.
    async fn instances_by_id(&self, instance_ids: &[String]) -> Result<Vec<Instance>, CloudError> {
        let wanted: BTreeSet<&str> = instance_ids.iter().map(String::as_str).collect();
        let mut listed = self.instances().await?;
        listed.retain(|i| wanted.contains(i.instance_id.as_str()));
        Ok(listed)
    }
    /// The instances with our cluster tag that were launched for these nodes or for their batches, in any state that the cloud
    /// still knows, and in any order. A cloud that has a faster way than its whole list overrides this method.
    async fn instances_of(&self, nodes: &BTreeSet<NodeId>) -> Result<Vec<Instance>, CloudError> {
        let mut listed = self.instances().await?;
        listed.retain(|instance| nodes.iter().any(|node_id| instance.may_be(*node_id)));
        Ok(listed)
    }
    /// One instance, asked for by id, whatever its tags are; `None` if EC2 does not know it.
    async fn instance(&self, instance_id: &str) -> Result<Option<Instance>, CloudError>;
    /// One launch call, for at least [`LaunchRequest::least`] and at most [`LaunchRequest::count`] instances, or none. The answer to a
    /// dry run that the cloud would carry out is empty.
    async fn launch(&self, request: &LaunchRequest, client_token: &str) -> Result<LaunchAnswer, LaunchError>;
    /// Terminates these instances. If EC2 does not know one of them, it still terminates the others.
    async fn terminate(&self, instance_ids: &[String]) -> Result<(), CloudError>;
    /// The instance types, prices and places that the cloud offers; `None` for a cloud that cannot be asked.
    fn offers(&self) -> Option<&dyn Offers> {
        None
    }
    /// The end of an instance's console output, if there is any.
    async fn console_output(&self, instance_id: &str) -> Result<Option<String>, CloudError>;
}
