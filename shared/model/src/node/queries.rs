//! What can be asked of a node record. Nothing here changes one.

use super::{Contact, Life, NodeRecord, NodeState};
use crate::ids::NodeId;
use crate::words::{Intent, NodeStateName, NodeStatus};

impl NodeRecord {
    /// The state's word.
    pub fn state_name(&self) -> NodeStateName {
        match self.state {
            NodeState::Cleaned { .. } => NodeStateName::Cleaned,
            NodeState::Assigned(_) => NodeStateName::Assigned,
            NodeState::InUse(_) => NodeStateName::InUse,
            NodeState::ShuttingDown(_) => NodeStateName::ShuttingDown,
        }
    }

    /// Whether the slot is free.
    pub fn is_cleaned(&self) -> bool {
        matches!(self.state, NodeState::Cleaned { .. })
    }

    /// The current life, unless cleaned.
    pub fn life(&self) -> Option<&Life> {
        match &self.state {
            NodeState::Cleaned { .. } => None,
            NodeState::Assigned(life) => Some(life),
            NodeState::InUse(node) => Some(&node.life),
            NodeState::ShuttingDown(node) => Some(&node.life),
        }
    }

    pub(super) fn life_mut(&mut self) -> Option<&mut Life> {
        match &mut self.state {
            NodeState::Cleaned { .. } => None,
            NodeState::Assigned(life) => Some(life),
            NodeState::InUse(node) => Some(&mut node.life),
            NodeState::ShuttingDown(node) => Some(&mut node.life),
        }
    }

    /// What its heartbeats told, if there were any in this life.
    pub fn contact(&self) -> Option<&Contact> {
        match &self.state {
            NodeState::Cleaned { .. } | NodeState::Assigned(_) => None,
            NodeState::InUse(node) => Some(&node.contact),
            NodeState::ShuttingDown(node) => node.contact.as_ref(),
        }
    }

    pub(super) fn contact_mut(&mut self) -> Option<&mut Contact> {
        match &mut self.state {
            NodeState::Cleaned { .. } | NodeState::Assigned(_) => None,
            NodeState::InUse(node) => Some(&mut node.contact),
            NodeState::ShuttingDown(node) => node.contact.as_mut(),
        }
    }

    /// The current life's id, unless cleaned.
    pub fn node_id(&self) -> Option<NodeId> {
        self.life().map(|l| l.node_id)
    }

    /// Its connectivity, while in use.
    pub fn status(&self) -> Option<NodeStatus> {
        match &self.state {
            NodeState::InUse(node) => Some(node.contact.status),
            _ => None,
        }
    }

    /// Whether it may be given work: in use, ready, and the operator has nothing against it.
    pub fn takes_work(&self) -> bool {
        self.status() == Some(NodeStatus::Ready) && self.life().is_some_and(|l| l.intent == Intent::Run)
    }

    /// Whether its node may call alloc updates its own: syncing, ready, or shutting down (to
    /// say how its last allocs ended).
    pub fn may_update_allocs(&self) -> bool {
        match &self.state {
            NodeState::InUse(n) => matches!(n.contact.status, NodeStatus::Syncing | NodeStatus::Ready),
            NodeState::ShuttingDown(n) => n.contact.is_some(),
            _ => false,
        }
    }
}
