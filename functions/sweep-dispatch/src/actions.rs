//! The actions of a scheduled sweep: the data that each action needs, and its subject.
//!
//! Guarantees: an action holds everything that is needed to carry it out.
//! Does not: decide (`plan` does) or carry anything out (`act` does).

use model::action::About;
use model::{ActionName, BrakeChange, Describe, Handle};

/// One thing that a run can do.
#[derive(Clone, Debug, PartialEq)]
pub enum SweepAction {
    /// Mark a handle for destruction: its node is told to destroy it.
    MarkDestroying(Handle),
    /// Look at a handle again later. The row as read, and the row to write.
    Postpone(Handle, Box<Handle>),
    /// Delete a tombstone.
    ForgetHandle(Handle),
    /// Delete the row of a handle, because the life of its node is over.
    Purge(Handle),
}

impl Describe for SweepAction {
    fn name(&self) -> ActionName {
        match self {
            Self::MarkDestroying(_) => ActionName::MarkDestroying,
            Self::Postpone(..) => ActionName::LookLater,
            Self::ForgetHandle(_) => ActionName::ForgetHandle,
            Self::Purge(_) => ActionName::Purge,
        }
    }

    fn about(&self) -> About {
        let handle = match self {
            Self::MarkDestroying(h) | Self::Postpone(h, _) | Self::ForgetHandle(h) | Self::Purge(h) => h,
        };
        About::Handle { node_id: handle.node_id, handle: handle.handle.clone(), alloc_id: handle.alloc_id }
    }

    fn brake(&self) -> Option<&BrakeChange> {
        None
    }
}
