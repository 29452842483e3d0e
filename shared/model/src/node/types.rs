//! What a node record holds, as the nodes table keeps it.

use crate::ids::{AllocId, NodeId, Slot};
use crate::money::Usd;
use crate::time::{Span, Time};
use crate::words::{Intent, Market, NodeStateName, NodeStatus};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// The longest `reason` kept on a record, in bytes: a heartbeat must cost one write unit.
pub const MAX_REASON_BYTES: usize = 120;

/// How long a launch claim lasts. The launch call is over before that.
pub const LAUNCH_CLAIM: Span = Span::from_s(60);

/// How far apart two observations must be that both miss an instance, before that counts.
pub const ABSENCE_CONFIRM: Span = Span::from_s(60);

/// A record's version as read. It cannot be made up: only reading a record gives one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Version(pub(crate) u64);

impl Version {
    /// The version of a record that was never written.
    pub const UNWRITTEN: Self = Self(0);

    /// The version after the next write.
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }

    /// Its number, for people.
    pub const fn number(self) -> u64 {
        self.0
    }
}

/// A row of the nodes table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeRecord {
    /// Its key.
    pub slot: Slot,
    /// Raised by every write but the steady heartbeat's.
    pub version: Version,
    /// When it was last written, the pulse aside.
    pub modified_at: Time,
    /// Why it is as it is, in words.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// What it holds in its state.
    #[serde(flatten)]
    pub state: NodeState,
}

/// The state of a record, with what that state has.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum NodeState {
    /// Free.
    Cleaned {
        /// The last life, if there was one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        last_node_id: Option<NodeId>,
    },
    /// Launching or booting.
    Assigned(Box<Life>),
    /// Heard from.
    InUse(Box<InUse>),
    /// Being terminated.
    ShuttingDown(Box<ShuttingDown>),
}

/// In use: a life that was heard from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InUse {
    /// The life.
    #[serde(flatten)]
    pub life: Life,
    /// What is known from its heartbeats.
    #[serde(flatten)]
    pub contact: Contact,
}

/// Being terminated, heard from or not.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ShuttingDown {
    /// The life.
    #[serde(flatten)]
    pub life: Life,
    /// What is known from its heartbeats, if there were any.
    #[serde(flatten)]
    pub contact: Option<Contact>,
}

/// One life of a slot, from `assigned` to `cleaned`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Life {
    /// Who it is.
    pub node_id: NodeId,
    /// Which launch call is the current one; part of its client token.
    pub attempt: u32,
    /// Until when the claimant alone may call.
    pub launch_claim_until_at: Time,
    /// What is launched.
    #[serde(flatten)]
    pub offering: Offering,
    /// Digest of the rendered launch request.
    pub request_digest: String,
    /// Which master key its token is made with.
    pub key_version: u32,
    /// Its instance, once known. A node has at most one, ever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance_id: Option<String>,
    /// Where other nodes reach it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// When the life began.
    pub assigned_at: Time,
    /// Raised with everything the agent must know: see [`Life::next_seq`].
    #[serde(default)]
    pub seq: u64,
    /// What the operator wants of it.
    #[serde(default = "run", skip_serializing_if = "is_run")]
    pub intent: Intent,
    /// When a drain stops waiting.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain_by_at: Option<Time>,
    /// Since when EC2's list has not shown the instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub absent_since_at: Option<Time>,
    /// Its live allocs.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub allocs: BTreeSet<AllocId>,
}

impl Life {
    /// The `seq` of something more that the agent must know. It goes on with the time (milliseconds
    /// since the assignment), not by one: else a restored table could count up to the very number its
    /// agent knows from the history that was undone, and neither would notice that they differ.
    pub fn next_seq(&self, now: Time) -> u64 {
        let age = u64::try_from(now.since(self.assigned_at).as_ms()).unwrap_or(0);
        self.seq.saturating_add(1).max(age)
    }
}

const fn run() -> Intent {
    Intent::Run
}

fn is_run(intent: &Intent) -> bool {
    *intent == Intent::Run
}

/// What defines a launch request: written before EC2 is called, so that another run can
/// repeat the very same call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Offering {
    /// The policy's name for it.
    pub size: String,
    /// EC2's name for it.
    pub instance_type: String,
    /// How it is bought.
    pub market: Market,
    /// Where; absent where the template says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subnet_id: Option<String>,
    /// The subnet's zone, once an instance has told it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// The launch template's id or name.
    pub template: String,
    /// The launch template's version; absent for its default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template_version: Option<u64>,
    /// What it costs.
    pub price_per_hour: Usd,
    /// What it has.
    #[serde(flatten)]
    pub capacity: Capacity,
}

/// What a machine has, or a job needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capacity {
    /// vCPUs.
    pub vcpus: u32,
    /// Memory, in MiB.
    #[serde(default)]
    pub memory_mib: u64,
    /// Scratch space, in GiB.
    #[serde(default)]
    pub scratch_gib: u64,
    /// GPUs.
    #[serde(default)]
    pub gpus: u32,
}

/// What is known from a node's heartbeats.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Contact {
    /// When it was first heard from.
    pub first_ping_at: Time,
    /// When it was last heard from. Pulse.
    pub last_ping_at: Time,
    /// Until when it is believed alive. Pulse.
    pub lease_expires_at: Time,
    /// Connectivity.
    pub status: NodeStatus,
    /// Minted at registration.
    pub incarnation: String,
    /// As the agent says.
    pub boot_id: String,
    /// Reports below this `as_of` do not open the gate to `ready`.
    pub gate_seq: u64,
    /// The last alloc report taken. Not part of what `version` guards.
    #[serde(default)]
    pub alloc_report_no: u64,
    /// The last handle report taken. Not part of what `version` guards.
    #[serde(default)]
    pub handle_report_no: u64,
    /// Seq and digest of the last handle report that changed nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settled: Option<String>,
    /// Something other than allocs keeps it busy.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub busy: bool,
    /// Since when it has had nothing to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_since_at: Option<Time>,
    /// In how many runs it was seen idle.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub idle_seen: u32,
    /// Since when it has been `syncing`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub syncing_since_at: Option<Time>,
}

fn is_zero(n: &u32) -> bool {
    *n == 0
}

/// Why a transition does not apply to a record as it is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("slot {slot} is {state}: it cannot {wanted}")]
pub struct NotPossible {
    /// The slot.
    pub slot: Slot,
    /// Its state.
    pub state: NodeStateName,
    /// What was tried.
    pub wanted: &'static str,
}

/// Shortens `reason` to what a record keeps, on a character boundary.
pub fn short_reason(reason: &str) -> String {
    let mut end = reason.len().min(MAX_REASON_BYTES);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    reason.get(..end).unwrap_or_default().to_owned()
}
