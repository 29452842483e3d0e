//! What planning needs of jobs and allocs: what the two indexes project, at most 20 attributes each.
//!
//! Does not: change anything. `job` and `alloc` hold the state machines.

use crate::ids::{AllocId, JobId, NodeId, Slot};
use crate::node::{Capacity, Version};
use crate::spec::{FailurePolicy, default_priority, one};
use crate::time::Time;
use crate::words::{ClientStatus, Desired, JobState, Market};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// What planning needs of a job: what the `queue` index projects, so at most 20 attributes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobSummary {
    /// Its key.
    pub job_id: JobId,
    /// Raised by every write.
    pub version: Version,
    /// Where it stands.
    pub state: JobState,
    /// The user's name for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// 0 to 1000, higher first.
    #[serde(default = "default_priority")]
    pub priority: u32,
    /// When it was submitted.
    pub submitted_at: Time,
    /// What one member needs.
    #[serde(flatten)]
    pub capacity: Capacity,
    /// Only this instance type will do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance_type: Option<String>,
    /// Only this market will do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub market: Option<Market>,
    /// Shares its nodes with nobody.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub exclusive: bool,
    /// Its members, each on a node of its own.
    #[serde(default = "one")]
    pub nodes: u32,
    /// Copies ever placed: the next alloc's number.
    #[serde(default)]
    pub copies: u32,
    /// The members that are done.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub done: BTreeSet<u32>,
    /// Its live allocs.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub allocs: BTreeSet<AllocId>,
}

/// What planning needs of an alloc: what the `live` index projects, so at most 20 attributes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AllocSummary {
    /// Its key.
    pub alloc_id: AllocId,
    /// Raised by every write.
    pub version: Version,
    /// Where.
    pub slot: Slot,
    /// On whom.
    pub node_id: NodeId,
    /// What is wanted of it.
    pub desired: Desired,
    /// How it is.
    pub client: ClientStatus,
    /// The node's `seq` at which it was placed.
    pub placed_seq: u64,
    /// When it was placed.
    pub placed_at: Time,
    /// When it was first reported running.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Time>,
    /// Was unknown, and which copy stays is not decided yet.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub awaiting: bool,
    /// Since when it is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unknown_since_at: Option<Time>,
    /// The copy it was placed for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaces: Option<AllocId>,
    /// The copy that was placed for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaced_by: Option<AllocId>,
    /// What it takes of its node.
    #[serde(flatten)]
    pub capacity: Capacity,
    /// Shares its node with nobody.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub exclusive: bool,
    /// How it is treated.
    #[serde(flatten)]
    pub failure_policy: FailurePolicy,
}

/// Whether `other` still stands for the member of `id`: another live copy that is to run.
pub fn counts_for(other: &AllocSummary, id: AllocId) -> bool {
    other.alloc_id != id
        && other.alloc_id.member == id.member
        && other.desired == Desired::Run
        && !other.client.is_final()
}
