//! What a node knows that must survive its agent.
//!
//! Guarantees: the JSON form of these types is the state file; a field may be added with a default, but not renamed.
//! Does not: read or write the file (`data_dir` does).

use model::Desired;
use model::ids::{AllocId, NodeId};
use model::wire::AllocOrder;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What survives the agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Durable {
    /// The node that this state belongs to. A cloned disk brings the state of another node.
    pub node_id: NodeId,
    /// The boot that this state belongs to. No process survives a reboot.
    pub boot_id: String,
    /// Issued by the control plane at registration; absent before.
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
    /// An alloc placed at this `seq` or before may have run on an earlier disk of this node, and is not started. On
    /// a blank disk this is the maximum until a registration is answered. That is safe: the control plane places
    /// nothing before it has the registration and the complete report after it.
    #[serde(default)]
    pub wiped_at: u64,
}

impl Durable {
    /// The state of a node with a blank disk.
    pub const fn new(node_id: NodeId, boot_id: String) -> Self {
        let allocs = BTreeMap::new();
        let wiped_at = u64::MAX;
        Self { node_id, boot_id, incarnation: None, as_of: 0, report_no: 0, handle_report_no: 0, allocs, wiped_at }
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
    /// Why the agent stops it on its own decision, if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop: Option<String>,
    /// The control plane no longer lists it: stop it, do not report its end, forget it.
    #[serde(default)]
    pub dropped: bool,
    /// It was dropped and is listed again, because a table was restored. It is reported while it runs. Once it has
    /// ended it is absent from a complete report, and so lost.
    #[serde(default)]
    pub relisted: bool,
}

impl LocalAlloc {
    /// An alloc that was just ordered.
    pub const fn new(order: AllocOrder) -> Self {
        Self { order, stop: None, dropped: false, relisted: false }
    }

    /// Why it has to stop, if it has to.
    pub fn stop_reason(&self) -> Option<&str> {
        match (&self.stop, self.dropped, self.order.desired) {
            (Some(why), _, _) => Some(why),
            (None, true, _) => Some("stopped: the control plane no longer lists it"),
            (None, false, Desired::Stop) => Some("stopped as ordered"),
            (None, false, Desired::Run) => None,
        }
    }
}
