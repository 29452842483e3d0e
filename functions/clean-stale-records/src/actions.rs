//! The actions of clean-stale-records: the data that each action needs, and its subject.
//!
//! Guarantees: an action holds everything that is needed to carry it out.
//! Does not: decide (`plan` does) or carry anything out (`act` does).

use model::action::About;
use model::{ActionName, BrakeChange, CataloguePart, ControlKey, Describe, NodeId, NodeRecord, Subject, Version};

/// One thing that a run can do.
#[derive(Clone, Debug, PartialEq)]
pub enum CleaningAction {
    /// Free a slot.
    Clean { node_id: NodeId, proof: Proof },
    /// Delete the row of a slot that is not below `nodes.max`.
    DeleteRecord(Box<NodeRecord>),
    /// Delete an entry of the control table that ended long ago.
    ForgetEntry(ControlKey, Version),
    /// Ask EC2 what it offers, and store these parts of the catalogue.
    ReadOffers(Vec<CataloguePart>),
    /// Terminate an instance that no record claims.
    TerminateOrphan {
        instance_id: String,
        /// The nodes that the instance may be: one, or those of its batch.
        nodes: Vec<NodeId>,
    },
    /// Keep records or orphans waiting, and store the brake's entry.
    HoldBack(Box<BrakeChange>),
}

/// The proof that a node is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    /// EC2 lists its instance as terminated.
    Listed,
    /// EC2 lists no instance of the node, no heartbeat arrived for a long time, and nobody changed the record either.
    Silence,
}

impl Describe for CleaningAction {
    fn name(&self) -> ActionName {
        match self {
            Self::Clean { .. } => ActionName::Clean,
            Self::DeleteRecord(_) => ActionName::DeleteRecord,
            Self::ForgetEntry(..) => ActionName::ForgetEntry,
            Self::ReadOffers(_) => ActionName::ReadOffers,
            Self::TerminateOrphan { .. } => ActionName::TerminateOrphan,
            Self::HoldBack(..) => ActionName::HoldBack,
        }
    }

    fn about(&self) -> About {
        match self {
            Self::Clean { node_id, .. } => About::Node(*node_id),
            Self::TerminateOrphan { nodes, .. } => {
                nodes.first().map_or(About::Only(Subject::Cluster), |node_id| About::Node(*node_id))
            }
            Self::DeleteRecord(record) => About::Slot(record.slot),
            Self::HoldBack(..) | Self::ForgetEntry(..) | Self::ReadOffers(_) => About::Only(Subject::Cluster),
        }
    }

    fn brake(&self) -> Option<&BrakeChange> {
        if let Self::HoldBack(change) = self { Some(change) } else { None }
    }
}
