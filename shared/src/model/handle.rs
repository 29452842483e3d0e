//! The handle: a container or volume that lives on a node and must one day be destroyed.
//!
//! Marked here, swept there (Concourse #1959): `creating → live → destroying → gone`.
//!
//! Guarantees: what a report cannot have seen is never judged by it.
//! Does not: decide what is to be destroyed; sweep-dispatch does.

use crate::ids::{AllocId, NodeId};
use crate::model::{HandleKind, HandleState};
use crate::time::Time;
use serde::{Deserialize, Serialize};

/// The furthest ahead a handle's next look may be, in seconds.
pub const MAX_DUE_S: i64 = 86_400;

/// A row of the handles table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Handle {
    /// The node it lives on.
    pub node_id: NodeId,
    /// Its name on the node.
    pub handle: String,
    /// What it is.
    pub kind: HandleKind,
    /// The alloc it was made for; absent for a cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alloc_id: Option<AllocId>,
    /// What must be destroyed after it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    /// Where it stands.
    pub state: HandleState,
    /// The node's `seq` at the row's last order: an older report proves nothing about it.
    pub seq: u64,
    /// Until when it may be `creating`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_at: Option<Time>,
    /// For how long accepted reports have missed it, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing_ms: Option<i64>,
    /// The last accepted report that missed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing_seen_at: Option<Time>,
    /// The report that first listed it unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unknown_report_no: Option<u64>,
    /// An operator keeps it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub keep: bool,
    /// When sweep-dispatch looks at it next; at most a day ahead.
    pub due_at: Time,
    /// Epoch **seconds**, of tombstones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<i64>,
}

impl Handle {
    /// A row that says what must be said of each.
    pub const fn new(
        node_id: NodeId,
        handle: String,
        kind: HandleKind,
        state: HandleState,
        seq: u64,
        due_at: Time,
    ) -> Self {
        Self {
            node_id,
            handle,
            kind,
            alloc_id: None,
            parent: None,
            state,
            seq,
            deadline_at: None,
            missing_ms: None,
            missing_seen_at: None,
            unknown_report_no: None,
            keep: false,
            due_at,
            expires_at: None,
        }
    }
}

/// The name of a cache's volume on its node.
pub fn cache_handle(cache: &str) -> String {
    format!("cache:{cache}")
}
