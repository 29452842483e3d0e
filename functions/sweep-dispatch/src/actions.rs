//! The actions of a scheduled sweep: what each needs to be carried out, and what it is about.

use model::action::{About, Describe};
use model::{ActionName, Handle};

/// Something to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Mark it for destruction: its node is told.
    MarkDestroying(Handle),
    /// Look at it again later: the row as read and as it must become.
    LookLater(Handle, Box<Handle>),
    /// Delete a tombstone.
    ForgetHandle(Handle),
    /// Delete the row of a node that is no more.
    Purge(Handle),
}

impl Action {
    /// The handle, as read.
    pub const fn handle(&self) -> &Handle {
        match self {
            Self::MarkDestroying(h) | Self::LookLater(h, _) | Self::ForgetHandle(h) | Self::Purge(h) => h,
        }
    }
}

impl Describe for Action {
    fn name(&self) -> ActionName {
        match self {
            Self::MarkDestroying(_) => ActionName::MarkDestroying,
            Self::LookLater(..) => ActionName::LookLater,
            Self::ForgetHandle(_) => ActionName::ForgetHandle,
            Self::Purge(_) => ActionName::Purge,
        }
    }

    fn about(&self) -> About {
        let handle = self.handle();
        About::Handle { node_id: handle.node_id, handle: handle.handle.clone(), alloc_id: handle.alloc_id }
    }
}
