//! The first request of a machine: it asks which node of its batch it is.

use crate::check::Watch;
use crate::core::Core;
use crate::ec2::Ec2;
use crate::functions::Functions;
use model::wire::{BindingAnswer, BindingRequest, LaunchFile, NodeFile};
use std::sync::Arc;
use std::time::Duration;

/// What all machines share.
pub(super) struct World {
    pub(super) core: Arc<Core>,
    pub(super) check: Arc<Watch>,
    pub(super) ec2: Arc<Ec2>,
    pub(super) functions: Arc<Functions>,
}

impl World {
    /// Asks which node of its batch the machine is, and returns the file of that node's agent. `None`: the machine is
    /// not a node of the batch any more, and powers off.
    pub(super) async fn bound(&self, told: LaunchFile, instance_id: &str) -> Option<NodeFile> {
        let batch = told.batch.clone()?;
        let any = batch.nodes().next()?;
        let request = BindingRequest { instance_id: instance_id.to_owned(), batch };
        let body = serde_json::to_string(&request).unwrap_or_default();
        let token = self.functions.token_of(any);
        loop {
            match self.functions.post(any, "binding", Some(&token), body.clone()).await {
                Some((200, answer)) => {
                    let answer: Option<BindingAnswer> = serde_json::from_str(&answer).ok();
                    return Some(told.of(answer?.node_id));
                }
                Some((410, _)) => {
                    self.core.count("an instance was none of its batch");
                    self.ec2.end(instance_id, 5, "told that it is no node, it powers off");
                    return None;
                }
                _ => tokio::time::sleep(Duration::from_millis(self.core.between(1000, 5000).unsigned_abs())).await,
            }
        }
    }
}
