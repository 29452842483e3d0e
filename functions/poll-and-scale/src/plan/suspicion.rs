//! What a run believes about silent nodes. The stage `failure_detector` fills it in, and every later stage reads it.
//!
//! Does not: decide what to believe.

use model::{NodeId, Time};
use std::collections::BTreeSet;

#[derive(Debug, Default)]
pub(crate) struct Suspicion {
    /// The silent nodes whose silence is believed.
    pub(super) silent: BTreeSet<NodeId>,
    /// The silent nodes whose silence is not believed.
    pub(super) suspected: BTreeSet<NodeId>,
    /// Whether a node exists whose heartbeats could show that heartbeat-ingest works.
    pub(super) has_witness: bool,
    /// heartbeat-ingest worked at this time and again later. Between the two, every node had the time to call.
    pub(super) proven_at: Option<Time>,
}

impl Suspicion {
    /// Whether the silence of this node is believed.
    pub(crate) fn is_silent(&self, node_id: NodeId) -> bool {
        self.silent.contains(&node_id)
    }

    /// Whether the node is silent and this run does not believe that this is the node's fault.
    pub(crate) fn is_suspected(&self, node_id: NodeId) -> bool {
        self.suspected.contains(&node_id)
    }

    /// Whether heartbeat-ingest has accepted calls since `due`, so that a node could have called. `true` if no node exists that
    /// could show it.
    pub(crate) fn could_call_after(&self, due: Time) -> bool {
        !self.has_witness || self.proven_at.is_some_and(|at| at > due)
    }
}
