//! What the queue needs of the nodes that are there. The stage `demand` fills it in, `relaunch` takes off the nodes that will
//! not come, and `shutdown` decides by it.
//!
//! Does not: decide which node is shut down.

use model::{JobId, NodeId, Usd};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug, Default)]
pub(super) struct QueueNeeds {
    /// Nodes on which something is placed or reserved, and the first job that this run reserves the node for.
    pub(super) used: BTreeMap<NodeId, Option<JobId>>,
    /// Nodes that satisfy a demand set, and the name of the first such set.
    pub(super) for_sets: BTreeMap<NodeId, String>,
    /// How many nodes count for `nodes.min`, including the launches of this plan.
    pub(super) usable: u32,
    /// The room that idle nodes must make. They are shut down even if `nodes.min` would keep them.
    pub(super) room: CapExcess,
    /// Idle nodes that fill the maximum of their size, but do not fit the job that waits for that size, because they
    /// were launched before the size was changed, or on demand in place of spot. They are shut down too.
    pub(super) outgrown: BTreeSet<NodeId>,
    /// The job that waits for this room. `None`: it is for the minimum, which can wait.
    pub(super) room_for: Option<JobId>,
    /// Whether some jobs were not read, and some of those that were read were served. Then the jobs that were not read may
    /// need the idle nodes.
    pub(super) more_may_come: bool,
}

/// How far the wanted launches would exceed the caps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct CapExcess {
    /// How many records are too many for `nodes.max`.
    pub(super) nodes: u32,
    /// How much the price is above `nodes.max_price_per_hour`.
    pub(super) price: Usd,
}
