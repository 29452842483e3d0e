//! Nodes that go while several copies of one member run: EC2 takes one back, or an operator drains one.
//!
//! Guarantees: this happens in the minutes after a copy came back, in which a run decides which one stays.
//! Does not: say which copy must stay then (`check::allocs` does).

use super::World;
use crate::core::{Fault, lock};
use aws_sdk_dynamodb::types::AttributeValue;
use model::{AllocId, Intent, Market, NodeId, Span};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use store::Table;
use tokio::time::sleep;

impl World {
    pub(super) async fn copies_leave(self: Arc<Self>) {
        let core = &self.core;
        while core.scenario.chance(Fault::CopyLeaves) > 0.0 && !core.is_healed() {
            sleep(Duration::from_secs(10)).await;
            for nodes in self.nodes_of_copies() {
                if core.happens(Fault::CopyLeaves)
                    && let Some(node) =
                        nodes.get(core.of(Fault::CopyLeaves, 0, nodes.len() as i64 - 1).unsigned_abs() as usize)
                {
                    self.leaves(*node).await;
                }
            }
        }
    }

    /// The nodes of the copies of each member that has several and waits for a decision.
    fn nodes_of_copies(&self) -> Vec<Vec<NodeId>> {
        let mut members: BTreeMap<_, (bool, Vec<NodeId>)> = BTreeMap::new();
        for row in lock(&self.tables.model).rows(Table::Allocs) {
            let text = |name: &str| row.get(name).and_then(|value| value.as_s().ok());
            let is_live = !matches!(text("client").map(String::as_str), Some("complete" | "failed" | "lost"));
            let id = text("alloc_id").and_then(|id| id.parse::<AllocId>().ok());
            let node = text("node_id").and_then(|node| node.parse().ok());
            let is_wanted = is_live && text("desired").is_none_or(|desired| desired == "run");
            if let (true, Some(id), Some(node)) = (is_wanted, id, node) {
                let (is_back, nodes) = members.entry((id.job_id, id.member)).or_default();
                let is_awaiting = matches!(row.get("awaiting"), Some(AttributeValue::Bool(true)));
                *is_back |= is_awaiting && text("client").is_some_and(|client| client != "unknown");
                nodes.push(node);
            }
        }
        members.into_values().filter(|(is_back, nodes)| *is_back && nodes.len() > 1).map(|(_, nodes)| nodes).collect()
    }

    async fn leaves(&self, node: NodeId) {
        let core = &self.core;
        let Ok(Some(record)) = self.store.node(node.slot()).await else { return };
        let Some(life) = record.life().filter(|life| life.node_id == node) else { return };
        let way = core.of(Fault::CopyLeaves, 0, 2);
        if let (0, Market::Spot, Some(instance)) = (way, life.offering.market, &life.instance_id) {
            let (ec2, instance) = (Arc::clone(&self.ec2), instance.clone());
            tokio::spawn(async move { ec2.take_back(&instance).await });
            return;
        }
        let by = (way < 2).then(|| core.now() + Span::from_s(core.of(Fault::CopyLeaves, 600, 1800)));
        if life.intent == Intent::Run
            && let Ok(after) = record.with_intent(Intent::Drain, by, core.now())
        {
            // An operator whose write loses a race would try again.
            let _ = self.store.write(Some(&record), &after, Vec::new()).await;
        }
    }
}
