//! The actions of clean-stale-records: the data that each action needs, and its subject.
//!
//! Guarantees: an action holds everything that is needed to carry it out.
//! Does not: decide (`plan` does) or carry anything out (`act` does).

use model::action::{About, Describe};
use model::brake::BrakeChange;
use model::events::Subject;
use model::ids::NodeId;
use model::{ActionName, NodeRecord};

/// One thing that a run can do.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Free a slot.
    Clean {
        /// The node whose life ends.
        node_id: NodeId,
        /// The proof that the node is gone.
        proof: Proof,
    },
    /// Delete the row of a slot that is not below `nodes.max`.
    DeleteRecord(Box<NodeRecord>),
    /// Terminate an instance that no record claims.
    TerminateOrphan {
        /// The instance to terminate.
        instance_id: String,
        /// The node that it was launched as.
        node_id: NodeId,
    },
    /// Tell a person.
    Warn(Subject),
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

impl Describe for Action {
    fn name(&self) -> ActionName {
        match self {
            Self::Clean { .. } => ActionName::Clean,
            Self::DeleteRecord(_) => ActionName::DeleteRecord,
            Self::TerminateOrphan { .. } => ActionName::TerminateOrphan,
            Self::Warn(_) => ActionName::Warn,
            Self::HoldBack(..) => ActionName::HoldBack,
        }
    }

    fn about(&self) -> About {
        match self {
            Self::Clean { node_id, .. } | Self::TerminateOrphan { node_id, .. } => About::Node(*node_id),
            Self::DeleteRecord(record) => About::Slot(record.slot),
            Self::Warn(subject) => About::Said(subject.clone()),
            Self::HoldBack(..) => About::Said(Subject::Cluster),
        }
    }
}
