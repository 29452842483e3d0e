//! How failures of a job are treated: how its allocs are stopped, what happens when a node is silent, and how often it is
//! tried again.
//!
//! Guarantees: each default stands here, and nowhere else.
//! Does not: carry anything out. `job` and the plan of poll-and-scale do.

use crate::enums::Reconcile;
use serde::{Deserialize, Serialize};

/// Copied from the job to each of its allocs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FailurePolicy {
    /// The time from TERM to KILL, in seconds.
    pub kill_timeout_s: u64,
    /// How long the job waits for a running alloc on a silent node, in seconds; 0 for not at all.
    pub lost_after_s: u64,
    /// Whether a copy is placed on another node while the job waits.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub replace: bool,
    /// Which copy stays if the node comes back and both run.
    pub reconcile: Reconcile,
    /// How often the job is retried after a process of the job failed.
    pub retry_failed: u32,
    /// How often the job is retried after it lost a node.
    pub retry_lost: u32,
}

impl FailurePolicy {
    /// What counts where nothing is said.
    pub const DEFAULT: Self = Self {
        kill_timeout_s: 30,
        lost_after_s: 600,
        replace: false,
        reconcile: Reconcile::Best,
        retry_failed: 0,
        retry_lost: 3,
    };
}

impl Default for FailurePolicy {
    fn default() -> Self {
        Self::DEFAULT
    }
}
