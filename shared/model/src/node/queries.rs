//! Questions about a node record.
//!
//! Guarantees: the rule for "takes work" and "may update allocs" is only here.
//! Does not: change a record; `transitions` does.

use super::{Contact, Life, NodeRecord, NodeState};
use crate::end_cause::{EndCause, Ending};
use crate::enums::{Intent, Market, NodeStateName, NodeStatus};
use crate::ids::NodeId;
use crate::output::FOLLOW_LASTS;
use crate::time::Time;

/// Why a machine whose size has GPUs takes no work without one.
const NO_GPU: &str = "none of its GPUs can be used: is the driver installed, and does `nvidia-smi` list them?";

impl Life {
    /// Whether somebody reads the output of an alloc of this node now. A follow that lasts longer than one can last is not
    /// believed.
    pub fn is_read(&self, now: Time) -> bool {
        self.follows.iter().any(|follow| follow.until_at > now && follow.until_at <= now + FOLLOW_LASTS)
    }
}

impl NodeRecord {
    pub fn state_name(&self) -> NodeStateName {
        match self.state {
            NodeState::Cleaned { .. } => NodeStateName::Cleaned,
            NodeState::Assigned(_) => NodeStateName::Assigned,
            NodeState::InUse(_) => NodeStateName::InUse,
            NodeState::ShuttingDown(_) => NodeStateName::ShuttingDown,
        }
    }

    /// The end of an alloc that is lost with this node. Of a node that EC2 announced to take away, the cause says so.
    pub fn loses(&self, why: &str) -> Ending {
        let is_interrupted = |l: &&Life| l.offering.market != Market::OnDemand && l.interrupt_at.is_some();
        match self.life().filter(is_interrupted) {
            Some(_) => Ending::new(EndCause::Interrupted { why: why.to_owned() }),
            None => Ending::lost(why),
        }
    }

    /// Whether the slot is free.
    pub fn is_cleaned(&self) -> bool {
        matches!(self.state, NodeState::Cleaned { .. })
    }

    /// The current life; `None` if the slot is free.
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

    /// What is known from the heartbeats of this life; `None` if the node never registered.
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

    /// The id of the current life; `None` if the slot is free.
    pub fn node_id(&self) -> Option<NodeId> {
        self.life().map(|l| l.node_id)
    }

    /// How well the node is connected; `None` unless it is in use.
    pub fn status(&self) -> Option<NodeStatus> {
        match &self.state {
            NodeState::InUse(node) => Some(node.contact.status),
            NodeState::Assigned(_) | NodeState::ShuttingDown(_) | NodeState::Cleaned { .. } => None,
        }
    }

    /// Whether the node may be given work: it is in use and ready, the operator neither holds nor drains it, and its
    /// agent does not refuse.
    pub fn takes_work(&self) -> bool {
        self.status() == Some(NodeStatus::Ready)
            && self.life().is_some_and(|l| l.intent == Intent::Run)
            && self.refuses().is_none()
    }

    /// Whether the node is in use and heard: its lease is valid, and no run has noted a silence that is not over.
    pub fn is_heard(&self, now: Time) -> bool {
        matches!(self.status(), Some(NodeStatus::Syncing | NodeStatus::Ready))
            && self.contact().is_some_and(|c| c.lease_expires_at >= now)
    }

    /// Why the node takes no work; `None` if it does, or if the node never registered. A machine whose size has GPUs, and that
    /// can use none of them, is of no use to whom its price is paid for: it does not take other work either.
    pub fn refuses(&self) -> Option<&str> {
        let contact = self.contact()?;
        let has_lost_all = self.life().is_some_and(|life| life.offering.capacity.gpus > 0) && contact.gpus_usable == 0;
        // What its agent says of each GPU tells more.
        let why = || has_lost_all.then(|| contact.gpus_sick.as_deref().unwrap_or(NO_GPU));
        contact.refuses.as_deref().or_else(why)
    }

    /// How many GPUs of the node work may use: those of its size, without those that its agent cannot use.
    pub fn usable_gpus(&self) -> u32 {
        let of_size = self.life().map_or(0, |life| life.offering.capacity.gpus);
        self.contact().map_or(of_size, |contact| contact.gpus_usable.min(of_size))
    }

    /// Which GPUs of the node cannot be used, and why; `None` if all can.
    pub fn sick_gpus(&self) -> Option<String> {
        let (of_size, usable) = (self.life()?.offering.capacity.gpus, self.usable_gpus());
        let sick = self.contact()?.gpus_sick.as_deref();
        let why = sick.unwrap_or("its agent finds no more: see the driver");
        (of_size > usable).then(|| format!("{usable} of its {of_size} GPUs can be used: {why}"))
    }

    /// What a list says of the node: that it takes no work, or that GPUs are sick, otherwise why its record was last changed.
    pub fn why(&self) -> String {
        let refuses = self.refuses().map(|why| format!("it takes no work: {why}"));
        refuses.or_else(|| self.sick_gpus()).unwrap_or_else(|| self.reason.clone())
    }

    /// Whether alloc updates from the node are taken: while it is syncing or ready, and while it is
    /// shutting down, to learn how its last allocs ended.
    pub fn may_update_allocs(&self) -> bool {
        match &self.state {
            NodeState::InUse(n) => matches!(n.contact.status, NodeStatus::Syncing | NodeStatus::Ready),
            NodeState::ShuttingDown(n) => n.contact.is_some(),
            NodeState::Assigned(_) | NodeState::Cleaned { .. } => false,
        }
    }
}
