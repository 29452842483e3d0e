//! What a node knows that must survive its agent.
//!
//! Guarantees: the JSON form of these types is the state file; a field may be added with a default, but not renamed.
//! Does not: read or write the file (`data_dir` does).

use model::Desired;
use model::ids::{AllocId, NodeId};
use model::wire::AllocOrder;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// What survives the agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Durable {
    /// The node that this state belongs to. A cloned disk brings the state of another node.
    pub node_id: NodeId,
    /// The boot that this state belongs to. No process survives a reboot.
    pub boot_id: String,
    /// The incarnation that the control plane issued at registration; `None` before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incarnation: Option<String>,
    /// The highest `seq` whose orders were applied.
    pub as_of: u64,
    /// The number of the last alloc report of this incarnation.
    pub report_no: u64,
    /// The number of the last handle report of this incarnation.
    pub handle_report_no: u64,
    /// The allocs of this node. An alloc stays here until the control plane has acknowledged its end.
    pub allocs: BTreeMap<AllocId, LocalAlloc>,
    /// An alloc placed at this `seq` or before is not started, because it may have run on an earlier disk of this node.
    /// On a blank disk this is `u64::MAX` until a registration is answered. The maximum holds back no new alloc: the
    /// control plane places nothing before it has the registration and the complete report that follows.
    #[serde(default)]
    pub wiped_at: u64,
    /// The allocs that the last list of orders left out, because the control plane could not read their rows.
    #[serde(default)]
    pub unreadable: BTreeSet<AllocId>,
}

impl Durable {
    /// The state of a node with a blank disk.
    pub const fn new(node_id: NodeId, boot_id: String) -> Self {
        let allocs = BTreeMap::new();
        let unreadable = BTreeSet::new();
        let (as_of, report_no, handle_report_no, wiped_at) = (0, 0, 0, u64::MAX);
        Self { node_id, boot_id, incarnation: None, as_of, report_no, handle_report_no, allocs, wiped_at, unreadable }
    }

    /// Makes the next heartbeat register the node. Running allocs go on.
    pub fn register_anew(&mut self) {
        self.incarnation = None;
        self.as_of = 0;
        self.report_no = 0;
        self.handle_report_no = 0;
    }
}

/// An alloc that was ordered on this node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LocalAlloc {
    /// The order of the control plane.
    pub order: AllocOrder,
    /// Why the agent stops the alloc on its own decision; `None` if it does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop: Option<String>,
    /// Whether the control plane no longer lists the alloc. The agent then stops the alloc, does not report its end,
    /// and forgets it.
    #[serde(default)]
    pub dropped: bool,
    /// Whether the alloc was dropped and is listed again, because a table was restored. The alloc is reported while it
    /// runs. After its end a complete report does not list it, so the control plane counts it as lost.
    #[serde(default)]
    pub relisted: bool,
}

impl LocalAlloc {
    /// An alloc that was just ordered.
    pub const fn new(order: AllocOrder) -> Self {
        Self { order, stop: None, dropped: false, relisted: false }
    }

    /// Why the alloc has to stop; `None` if it does not have to.
    pub fn stop_reason(&self) -> Option<&str> {
        match (&self.stop, self.dropped, self.order.desired) {
            (Some(why), _, _) => Some(why),
            (None, true, _) => Some("stopped: the control plane no longer lists it"),
            (None, false, Desired::Stop) => Some("stopped as ordered"),
            (None, false, Desired::Run) => None,
        }
    }
}
