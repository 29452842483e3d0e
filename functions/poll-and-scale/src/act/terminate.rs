//! Terminating instances: all of a run with one call.
//!
//! Guarantees: an instance is terminated only if it has its node's tag, or if EC2 does not know it.
//! Does not: decide which; the plan does.

use super::acting::Acting;
use crate::plan::{Action, PlannedAction};
use futures::FutureExt;
use model::{ActionName, Instance, InstanceState, NodeId, Reason, Subject};
use runtime::answer::{ActError, ActionResult};
use runtime::instances;
use std::collections::HashMap;
use std::sync::PoisonError;

impl Acting<'_> {
    /// Terminates the instances of this call, and those of the nodes that this run has shut down.
    pub(super) async fn terminate(&self, call: &[&PlannedAction]) -> Vec<ActionResult> {
        let wanted = call.iter().filter_map(|planned| match &planned.action {
            Action::Terminate { node_id, instance_id } => Some((*node_id, instance_id.clone())),
            _ => None,
        });
        // If one of these is not terminated, the next run plans it.
        let shut_down = std::mem::take(&mut *self.ending.lock().unwrap_or_else(PoisonError::into_inner));
        let wanted: Vec<(NodeId, String)> = wanted.chain(shut_down).collect();
        let asked = match self.ask(&wanted).await {
            Ok(instances) => instances,
            Err(failed) => return vec![failed; call.len()],
        };
        let listed = self.run.observed.instances.iter().chain(&asked);
        let listed: HashMap<&str, &Instance> = listed.map(|i| (i.instance_id.as_str(), i)).collect();
        let checks = wanted.into_iter().map(|(node_id, id)| self.to_terminate(node_id, id, &listed).boxed());
        let mut results = instances::terminate(self.cloud, checks.collect()).await;
        results.truncate(call.len());
        results
    }

    /// The wanted instances about which this run has not asked EC2 yet.
    async fn ask(&self, wanted: &[(NodeId, String)]) -> Result<Vec<Instance>, ActionResult> {
        let is_unasked = |node_id: NodeId| {
            self.run.observed.node(node_id).is_some_and(|record| !self.run.observed.was_queried(record))
        };
        let ids: Vec<String> =
            wanted.iter().filter(|(node_id, _)| is_unasked(*node_id)).map(|(_, id)| id.clone()).collect();
        self.cloud.instances_by_id(&ids).await.map_err(|e| ActError::from(e).into())
    }

    /// The id of the instance, if the instance is the node's. Otherwise the result of the action.
    async fn to_terminate(
        &self,
        node_id: NodeId,
        instance_id: String,
        listed: &HashMap<&str, &Instance>,
    ) -> Result<String, ActionResult> {
        self.record(node_id)?;
        let foreign = match listed.get(instance_id.as_str()) {
            Some(instance) => Some((*instance).clone()).filter(|i| i.is_foreign_to(node_id)),
            None => {
                let known = self.cloud.instance(&instance_id).await.map_err(ActError::from)?;
                known.filter(|i| !i.may_be(node_id))
            }
        };
        match foreign.filter(|i| i.state != InstanceState::Terminated) {
            None => Ok(instance_id),
            Some(foreign) => Err(self.keep_foreign(node_id, &foreign).await),
        }
    }

    /// Leaves an instance that is not the node's, and writes an event.
    async fn keep_foreign(&self, node_id: NodeId, foreign: &Instance) -> ActionResult {
        let reason = Reason::ForeignInstance { instance_id: foreign.instance_id.clone(), owner: foreign.owner() };
        self.run.record_event(&Subject::Slot(node_id.slot()), ActionName::Warn, &reason).await;
        ActionResult::kept_back(reason.to_string())
    }
}
