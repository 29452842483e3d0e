//! Who used a node, and when.
//!
//! Does not: know what that costs (`cost` does).

use model::{AllocId, NodeId, Time};

/// The most steps of nodes, uses of nodes and changes of the queue that are kept, each.
pub(crate) const MOST: usize = 300_000;

/// An alloc's time on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Use {
    pub alloc_id: AllocId,
    pub node_id: NodeId,
    pub vcpus: u32,
    pub from: Time,
    /// The end, or now if the alloc is live.
    pub to: Time,
}
