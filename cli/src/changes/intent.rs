//! What an operator wants of a node: hold it, drain it, or let it work.
//!
//! Guarantees: an intent belongs to the current life of the slot and ends with it.

use super::operate::{BY_OPERATOR, record_event, retried};
use crate::console::Cluster;
use crate::view::find::no_node;
use model::events::Subject;
use model::ids::{NodeId, Slot};
use model::time::Time;
use model::{ActionName, Intent, NodeState};

/// Which node gets an intent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Life {
    /// Whichever node is in the slot.
    Any(Slot),
    /// This node, and no later one of its slot.
    Only(NodeId),
}

/// Gives a node an intent, and a drain this deadline. A drain without a deadline leaves the deadline that the
/// node has. Returns whether that changed anything.
pub(crate) async fn change_intent(
    cluster: &Cluster,
    life: Life,
    intent: Intent,
    by: Option<Time>,
    now: Time,
) -> anyhow::Result<bool> {
    let (slot, only) = match life {
        Life::Any(slot) => (slot, None),
        Life::Only(node) => (node.slot(), Some(node)),
    };
    let changed = retried(async || {
        let record = cluster.store.node(slot).await?.ok_or_else(|| no_node(slot))?;
        if only.is_some() && record.node_id() != only {
            anyhow::bail!("nothing was changed: the node in slot {slot} is gone, or another one is there by now");
        }
        // The termination of this node has begun and cannot be undone.
        if matches!(record.state, NodeState::ShuttingDown(_)) {
            anyhow::bail!("slot {slot} is shutting down already: its intent cannot change any more");
        }
        if record.life().is_some_and(|l| l.intent == intent && (by.is_none() || l.drain_by_at == by)) {
            return Ok(false);
        }
        let after = record.with_intent(intent, by, now)?;
        cluster.store.write(Some(&record), &after, Vec::new()).await?;
        Ok(true)
    });
    let changed = changed.await?;
    if changed {
        let action = match intent {
            Intent::Hold => ActionName::Hold,
            Intent::Drain => ActionName::Drain,
            Intent::Run => ActionName::Resume,
        };
        record_event(cluster, &Subject::Slot(slot), action, BY_OPERATOR, now).await?;
    }
    Ok(changed)
}
