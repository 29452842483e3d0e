//! The actions of clean-stale-records: what each needs to be carried out, and what it is about.

use model::action::{About, Describe};
use model::control::BrakeEntry;
use model::events::Subject;
use model::ids::NodeId;
use model::{ActionName, BrakeKind, NodeRecord};

/// Something to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Free a slot.
    Clean {
        /// Whose life ends.
        node_id: NodeId,
        /// What shows that the node is gone.
        proof: Proof,
    },
    /// Delete the row of a slot beyond `nodes.max`.
    DeleteRecord(Box<NodeRecord>),
    /// Terminate an instance that no record claims.
    TerminateOrphan {
        /// Which.
        instance_id: String,
        /// The life it was launched as.
        node_id: NodeId,
    },
    /// Something a person should see.
    Warn(Subject),
    /// Records or orphans that wait.
    HoldBack(BrakeKind, BrakeEntry),
}

/// What shows that a node is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    /// EC2 lists its instance as terminated.
    Listed,
    /// EC2 lists no instance, and nothing was heard or written for long.
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
