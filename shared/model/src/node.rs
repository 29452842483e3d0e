//! The node record: one row of the nodes table, and every way it may change.
//!
//! ```text
//!             assign                first heartbeat             shut down
//!  cleaned ───────────▶ assigned ───────────────────▶ in_use ───────────────▶ shutting_down
//!     ▲                   │   │  boot timed out                                    ▲   │
//!     │ launch refused    │   └────────────────────────────────────────────────────┘   │
//!     ├───────────────────┘                                                            │
//!     ├── instance listed terminated (from any state) ─────────────────────────────────┤
//!     └── stale, or missing twice and unknown by id (from any state) ──────────────────┘
//! ```
//!
//! Guarantees: each transition starts only from the states the picture allows; a new life
//! has nothing of the old one but the slot; the pulse moves only forward.
//! Does not: check versions (the store does, in the write) or decide *when* a transition is
//! due (each function does, in its plan). Rules: Arvados #12073 for the states, Nomad
//! PR 15068 for `status` and the gate.

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

/// How a run saw a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// Idle, and nothing needs it.
    Idle,
    /// Busy, or something needs it.
    Needed,
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

/// What a registration or a heartbeat says of the caller.
#[derive(Clone, Debug)]
pub struct Caller<'a> {
    /// The instance it runs on.
    pub instance_id: &'a str,
    /// Its boot.
    pub boot_id: &'a str,
    /// Whether it is busy with something other than allocs.
    pub busy: bool,
    /// Where it is reached.
    pub address: Option<&'a str>,
}

impl NodeRecord {
    /// `absent or cleaned → assigned`: a new life, with the whole launch request and the claim.
    /// `previous` is the slot's row as read, `None` where it has none.
    pub fn assign(
        slot: Slot,
        previous: Option<&NodeRecord>,
        launch: NewLife,
        now: Time,
        reason: &str,
    ) -> Result<Self, NotPossible> {
        if let Some(record) = previous
            && !record.is_cleaned()
        {
            return Err(record.not_possible("be assigned"));
        }
        let life = Life {
            node_id: launch.node_id,
            attempt: 1,
            launch_claim_until_at: now + LAUNCH_CLAIM,
            offering: launch.offering,
            request_digest: launch.request_digest,
            key_version: launch.key_version,
            instance_id: None,
            address: None,
            assigned_at: now,
            seq: 0,
            intent: Intent::Run,
            drain_by_at: None,
            absent_since_at: None,
            allocs: BTreeSet::new(),
        };
        Ok(Self {
            slot,
            version: previous.map_or(Version::UNWRITTEN, |r| r.version),
            modified_at: now,
            reason: short_reason(reason),
            state: NodeState::Assigned(Box::new(life)),
        })
    }

    fn not_possible(&self, wanted: &'static str) -> NotPossible {
        NotPossible { slot: self.slot, state: self.state_name(), wanted }
    }

    /// The state's word.
    pub fn state_name(&self) -> NodeStateName {
        match self.state {
            NodeState::Cleaned { .. } => NodeStateName::Cleaned,
            NodeState::Assigned(_) => NodeStateName::Assigned,
            NodeState::InUse(_) => NodeStateName::InUse,
            NodeState::ShuttingDown(_) => NodeStateName::ShuttingDown,
        }
    }

    /// Whether the slot is free.
    pub fn is_cleaned(&self) -> bool {
        matches!(self.state, NodeState::Cleaned { .. })
    }

    /// The current life, unless cleaned.
    pub fn life(&self) -> Option<&Life> {
        match &self.state {
            NodeState::Cleaned { .. } => None,
            NodeState::Assigned(life) => Some(life),
            NodeState::InUse(node) => Some(&node.life),
            NodeState::ShuttingDown(node) => Some(&node.life),
        }
    }

    fn life_mut(&mut self) -> Option<&mut Life> {
        match &mut self.state {
            NodeState::Cleaned { .. } => None,
            NodeState::Assigned(life) => Some(life),
            NodeState::InUse(node) => Some(&mut node.life),
            NodeState::ShuttingDown(node) => Some(&mut node.life),
        }
    }

    /// What its heartbeats told, if there were any in this life.
    pub fn contact(&self) -> Option<&Contact> {
        match &self.state {
            NodeState::Cleaned { .. } | NodeState::Assigned(_) => None,
            NodeState::InUse(node) => Some(&node.contact),
            NodeState::ShuttingDown(node) => node.contact.as_ref(),
        }
    }

    fn contact_mut(&mut self) -> Option<&mut Contact> {
        match &mut self.state {
            NodeState::Cleaned { .. } | NodeState::Assigned(_) => None,
            NodeState::InUse(node) => Some(&mut node.contact),
            NodeState::ShuttingDown(node) => node.contact.as_mut(),
        }
    }

    /// The current life's id, unless cleaned.
    pub fn node_id(&self) -> Option<NodeId> {
        self.life().map(|l| l.node_id)
    }

    /// Its connectivity, while in use.
    pub fn status(&self) -> Option<NodeStatus> {
        match &self.state {
            NodeState::InUse(node) => Some(node.contact.status),
            _ => None,
        }
    }

    /// Whether it may be given work: in use, ready, and the operator has nothing against it.
    pub fn takes_work(&self) -> bool {
        self.status() == Some(NodeStatus::Ready) && self.life().is_some_and(|l| l.intent == Intent::Run)
    }

    /// Whether its node may call alloc updates its own: syncing, ready, or shutting down (to
    /// say how its last allocs ended).
    pub fn may_update_allocs(&self) -> bool {
        match &self.state {
            NodeState::InUse(n) => matches!(n.contact.status, NodeStatus::Syncing | NodeStatus::Ready),
            NodeState::ShuttingDown(n) => n.contact.is_some(),
            _ => false,
        }
    }

    fn touched(mut self, now: Time, reason: &str) -> Self {
        self.modified_at = now;
        if !reason.is_empty() {
            self.reason = short_reason(reason);
        }
        self
    }

    /// The launch was answered, or its instance seen: the life is bound to the instance.
    pub fn bind(&self, instance_id: &str, zone: Option<&str>, now: Time) -> Result<Self, NotPossible> {
        let mut new = self.clone();
        let bound = "be bound to another instance";
        let life = new.life_mut().ok_or_else(|| self.not_possible("be bound"))?;
        if life.instance_id.as_deref().is_some_and(|known| known != instance_id) {
            return Err(self.not_possible(bound));
        }
        life.instance_id = Some(instance_id.to_owned());
        if let Some(zone) = zone {
            life.offering.zone = Some(zone.to_owned());
        }
        life.absent_since_at = None;
        Ok(new.touched(now, &format!("launched as {instance_id}")))
    }

    /// Another run takes over an unanswered launch: it renews the claim, for the same token.
    pub fn reclaim(&self, now: Time) -> Result<Self, NotPossible> {
        let mut new = self.clone();
        let NodeState::Assigned(life) = &mut new.state else { return Err(self.not_possible("be launched")) };
        if life.instance_id.is_some() || life.launch_claim_until_at > now {
            return Err(self.not_possible("be launched again yet"));
        }
        life.launch_claim_until_at = now + LAUNCH_CLAIM;
        Ok(new.touched(now, "launch repeated: its answer never came"))
    }

    /// After a definite refusal the claimant tries another offering, under another token.
    pub fn next_attempt(&self, offering: Offering, request_digest: String, now: Time) -> Result<Self, NotPossible> {
        let mut new = self.clone();
        let NodeState::Assigned(life) = &mut new.state else { return Err(self.not_possible("change its offering")) };
        if life.instance_id.is_some() {
            return Err(self.not_possible("change its offering: it is launched"));
        }
        life.attempt = life.attempt.saturating_add(1);
        life.launch_claim_until_at = now + LAUNCH_CLAIM;
        let reason = format!("{} was refused, trying {}", life.offering.size, offering.size);
        life.offering = offering;
        life.request_digest = request_digest;
        Ok(new.touched(now, &reason))
    }

    /// `assigned → in_use`, or a new incarnation of a node in use: a registration. The node
    /// becomes `syncing` and passes the gate only with a complete report of this `seq`.
    pub fn register(
        &self,
        caller: &Caller<'_>,
        incarnation: &str,
        lease_expires_at: Time,
        now: Time,
    ) -> Result<Self, NotPossible> {
        let mut new = self.clone();
        let life = new.life_mut().ok_or_else(|| self.not_possible("register"))?;
        life.seq = life.next_seq(now);
        if life.instance_id.is_none() {
            life.instance_id = Some(caller.instance_id.to_owned());
        }
        if let Some(address) = caller.address {
            life.address = Some(address.to_owned());
        }
        let gate_seq = life.seq;
        let syncing = self.contact().filter(|c| c.status == NodeStatus::Syncing);
        let contact = Contact {
            first_ping_at: self.contact().map_or(now, |c| c.first_ping_at),
            last_ping_at: self.contact().map_or(now, |c| c.last_ping_at.max(now)),
            // No lease gets shorter: a registration may come twice, and its node may have been told to call later.
            lease_expires_at: self.contact().map_or(lease_expires_at, |c| c.lease_expires_at.max(lease_expires_at)),
            status: NodeStatus::Syncing,
            incarnation: incarnation.to_owned(),
            boot_id: caller.boot_id.to_owned(),
            gate_seq,
            alloc_report_no: 0,
            handle_report_no: 0,
            settled: None,
            busy: caller.busy,
            idle_since_at: None,
            idle_seen: 0,
            // On entry: a node that registers again and again is stuck all the same.
            syncing_since_at: syncing.and_then(|c| c.syncing_since_at).or(Some(now)),
        };
        new.state = match new.state {
            NodeState::Assigned(life) => NodeState::InUse(Box::new(InUse { life: *life, contact })),
            NodeState::InUse(node) => NodeState::InUse(Box::new(InUse { life: node.life, contact })),
            NodeState::ShuttingDown(node) => {
                NodeState::ShuttingDown(Box::new(ShuttingDown { life: node.life, contact: Some(contact) }))
            }
            NodeState::Cleaned { .. } => return Err(self.not_possible("register")),
        };
        let first = self.contact().is_none();
        Ok(new.touched(now, if first { "first heartbeat" } else { "registered again" }))
    }

    /// A heartbeat that finds something changed: a miss that ended, another `busy`.
    pub fn heartbeat(&self, caller: &Caller<'_>, lease_expires_at: Time, now: Time) -> Result<Self, NotPossible> {
        let mut new = self.clone();
        let mut reason = "";
        let in_use = matches!(new.state, NodeState::InUse(_));
        let contact = new.contact_mut().ok_or_else(|| self.not_possible("heartbeat: it must register first"))?;
        contact.last_ping_at = contact.last_ping_at.max(now);
        contact.lease_expires_at = contact.lease_expires_at.max(lease_expires_at);
        if contact.busy != caller.busy {
            contact.busy = caller.busy;
            contact.idle_since_at = None;
            contact.idle_seen = 0;
            reason = if caller.busy { "busy, says the agent" } else { "no longer busy, says the agent" };
        }
        let missed = in_use && matches!(contact.status, NodeStatus::Disconnected | NodeStatus::Down);
        if missed {
            contact.status = NodeStatus::Syncing;
            contact.syncing_since_at = Some(now);
            reason = "heard from again";
        }
        if let (true, Some(life)) = (missed, new.life_mut()) {
            life.seq = life.next_seq(now);
            let seq = life.seq;
            if let Some(contact) = new.contact_mut() {
                contact.gate_seq = seq;
            }
        }
        if let (Some(address), Some(life)) = (caller.address, new.life_mut()) {
            life.address = Some(address.to_owned());
        }
        Ok(new.touched(now, reason))
    }

    /// `syncing → ready`, by a complete report that knows the gate. Written last, after all
    /// of the report's updates.
    pub fn open_gate(&self, now: Time) -> Result<Self, NotPossible> {
        let mut new = self.clone();
        let NodeState::InUse(node) = &mut new.state else { return Err(self.not_possible("become ready")) };
        if node.contact.status != NodeStatus::Syncing {
            return Err(self.not_possible("become ready: it is not syncing"));
        }
        node.contact.status = NodeStatus::Ready;
        node.contact.syncing_since_at = None;
        node.contact.idle_since_at = node.life.allocs.is_empty().then_some(now);
        node.contact.idle_seen = 0;
        Ok(new.touched(now, "ready: its allocs are known"))
    }

    /// The lease is over: `disconnected` if some alloc may wait for the node, else `down`.
    /// Raises `seq` and the gate. The write must also require `last_ping_at` as read.
    pub fn expire_lease(&self, status: NodeStatus, now: Time, reason: &str) -> Result<Self, NotPossible> {
        let mut new = self.clone();
        let NodeState::InUse(node) = &mut new.state else { return Err(self.not_possible("expire its lease")) };
        if !matches!(status, NodeStatus::Disconnected | NodeStatus::Down) {
            return Err(self.not_possible("become that by silence"));
        }
        node.life.seq = node.life.next_seq(now);
        node.contact.gate_seq = node.life.seq;
        node.contact.status = status;
        node.contact.syncing_since_at = None;
        node.contact.idle_since_at = None;
        node.contact.idle_seen = 0;
        Ok(new.touched(now, reason))
    }

    /// Counts that a run saw the node idle, or forgets the count because the node is needed.
    pub fn seen_by_run(&self, seen: Seen, now: Time) -> Result<Self, NotPossible> {
        let mut new = self.clone();
        let NodeState::InUse(node) = &mut new.state else { return Err(self.not_possible("be idle")) };
        let (idle_since_at, idle_seen, reason) = match seen {
            Seen::Idle => {
                let since = node.contact.idle_since_at.or(Some(now));
                (since, node.contact.idle_seen.saturating_add(1), "idle")
            }
            Seen::Needed => (None, 0, "needed"),
        };
        node.contact.idle_since_at = idle_since_at;
        node.contact.idle_seen = idle_seen;
        Ok(new.touched(now, reason))
    }

    /// Notes since when EC2's list misses the instance, or that it shows it again.
    pub fn absent(&self, since: Option<Time>, now: Time) -> Result<Self, NotPossible> {
        let mut new = self.clone();
        let life = new.life_mut().ok_or_else(|| self.not_possible("be absent"))?;
        life.absent_since_at = since;
        Ok(new.touched(now, if since.is_some() { "not listed by EC2" } else { "listed by EC2 again" }))
    }

    /// `assigned or in_use → shutting_down`. Why this node and why now is the plan's business;
    /// that no live alloc is left is checked here and again in the write, except where the
    /// drain's deadline has passed.
    pub fn shut_down(&self, now: Time, reason: &str) -> Result<Self, NotPossible> {
        let mut new = self.clone();
        let deadline = self.life().and_then(|l| l.drain_by_at).is_some_and(|by| now >= by);
        if self.life().is_some_and(|l| !l.allocs.is_empty()) && !deadline {
            return Err(self.not_possible("be shut down: it has live allocs"));
        }
        new.state = match new.state {
            NodeState::Assigned(life) if life.instance_id.is_some() => {
                NodeState::ShuttingDown(Box::new(ShuttingDown { life: *life, contact: None }))
            }
            NodeState::InUse(node) => {
                NodeState::ShuttingDown(Box::new(ShuttingDown { life: node.life, contact: Some(node.contact) }))
            }
            _ => return Err(self.not_possible("be shut down")),
        };
        Ok(new.touched(now, reason))
    }

    /// `any → cleaned`: keeps only the slot, the reason and whose life it was. A record is not
    /// clean while something still points at its node: its allocs are ended first.
    pub fn clean(&self, now: Time, reason: &str) -> Result<Self, NotPossible> {
        let life = self.life().ok_or_else(|| self.not_possible("be cleaned"))?;
        if !life.allocs.is_empty() {
            return Err(self.not_possible("be cleaned: it has live allocs"));
        }
        let new = Self { state: NodeState::Cleaned { last_node_id: Some(life.node_id) }, ..self.clone() };
        Ok(new.touched(now, reason))
    }

    /// What the operator wants of the node from now on. What is being terminated can no longer be
    /// held or wanted back: the reason it was shut down for stays on the record.
    pub fn with_intent(&self, intent: Intent, drain_by_at: Option<Time>, now: Time) -> Result<Self, NotPossible> {
        if let NodeState::ShuttingDown(_) = self.state {
            return Err(self.not_possible("be held or drained"));
        }
        let mut new = self.clone();
        let life = new.life_mut().ok_or_else(|| self.not_possible("be held or drained"))?;
        life.intent = intent;
        life.drain_by_at = if intent == Intent::Drain { drain_by_at } else { None };
        // The agent is told the intent with every answer; it is no order, so `seq` stays.
        Ok(new.touched(now, &format!("intent {intent}")))
    }

    /// Drained by that moment at the latest, for its instance will be taken away then; `None` where it
    /// is already, or is being terminated.
    pub fn interrupted(&self, by: Time, now: Time) -> Option<Self> {
        let drains = self.life().is_some_and(|l| l.intent == Intent::Drain && l.drain_by_at.is_some_and(|at| at <= by));
        if drains { None } else { self.with_intent(Intent::Drain, Some(by), now).ok() }
    }

    /// A live alloc more. Raises `seq`: the agent must know.
    pub fn with_alloc(&self, alloc: AllocId, now: Time) -> Result<Self, NotPossible> {
        if !self.takes_work() {
            return Err(self.not_possible("take work"));
        }
        let mut new = self.clone();
        let life = new.life_mut().ok_or_else(|| self.not_possible("take work"))?;
        life.allocs.insert(alloc);
        life.seq = life.next_seq(now);
        if let Some(contact) = new.contact_mut() {
            contact.idle_since_at = None;
            contact.idle_seen = 0;
        }
        Ok(new.touched(now, &format!("runs {alloc}")))
    }

    /// A live alloc less. Raises `seq`, also for an end that the agent reported itself: it forgets
    /// what was taken over, and must notice when a restored table takes that back.
    pub fn without_alloc(&self, alloc: AllocId, now: Time) -> Result<Self, NotPossible> {
        let mut new = self.clone();
        let life = new.life_mut().ok_or_else(|| self.not_possible("lose an alloc"))?;
        life.allocs.remove(&alloc);
        life.seq = life.next_seq(now);
        let idle = life.allocs.is_empty();
        if let Some(contact) = new.contact_mut()
            && idle
        {
            contact.idle_since_at = Some(now);
            contact.idle_seen = 0;
        }
        Ok(new.touched(now, &format!("{alloc} ended")))
    }

    /// An order about one of its allocs or handles changed: raises `seq`.
    pub fn bump_seq(&self, now: Time) -> Result<Self, NotPossible> {
        let mut new = self.clone();
        let life = new.life_mut().ok_or_else(|| self.not_possible("be told anything"))?;
        life.seq = life.next_seq(now);
        Ok(new.touched(now, ""))
    }
}

/// What a new life begins with.
#[derive(Clone, Debug)]
pub struct NewLife {
    /// Freshly minted.
    pub node_id: NodeId,
    /// What will be launched.
    pub offering: Offering,
    /// Digest of the rendered request.
    pub request_digest: String,
    /// Which master key its token is made with.
    pub key_version: u32,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{self, at};

    #[test]
    fn a_cleaned_record_keeps_nothing_of_the_life_but_its_name() {
        let assigned = fixtures::assigned(0);
        let cleaned = assigned.clean(at(9), "refused").unwrap();
        let json = serde_json::to_value(&cleaned).unwrap();
        let keys: Vec<_> = json.as_object().unwrap().keys().cloned().collect();
        assert_eq!(keys, ["last_node_id", "modified_at", "reason", "slot", "state", "version"]);
    }

    #[test]
    fn a_record_survives_the_table_in_every_state() {
        for record in [
            fixtures::assigned(0),
            fixtures::ready(1),
            fixtures::ready(2).shut_down(at(5), "idle").unwrap(),
            fixtures::assigned(3).bind("i-1", None, at(1)).unwrap().shut_down(at(5), "boot timed out").unwrap(),
            fixtures::assigned(4).clean(at(5), "refused").unwrap(),
        ] {
            let json = serde_json::to_value(&record).unwrap();
            let back: NodeRecord = serde_json::from_value(json.clone()).unwrap();
            assert_eq!(back, record, "{json}");
        }
    }

    #[test]
    fn only_a_complete_report_after_the_miss_makes_ready() {
        // NS-08: a heartbeat brings a disconnected node to syncing, never to ready.
        let node = fixtures::ready(0);
        let missed = node.expire_lease(NodeStatus::Disconnected, at(200), "lease over").unwrap();
        let back = missed.heartbeat(&fixtures::caller("i-0"), at(400), at(300)).unwrap();
        assert_eq!(back.status(), Some(NodeStatus::Syncing));
        let (life, contact) = (back.life().unwrap(), back.contact().unwrap());
        assert_eq!(contact.gate_seq, life.seq);
        assert!(life.seq > node.life().unwrap().seq);
        assert!(!back.takes_work());
        assert!(back.open_gate(at(301)).unwrap().takes_work());
    }

    #[test]
    fn a_node_that_registers_again_and_again_is_syncing_since_the_first_time() {
        let since = |r: &NodeRecord| r.contact().unwrap().syncing_since_at;
        let again = |r: &NodeRecord, s| r.register(&fixtures::caller("i-0"), "anew", at(s + 90), at(s)).unwrap();
        let first = again(&fixtures::ready(0), 100);
        assert_eq!(since(&again(&first, 200)), Some(at(100)));
        let missed = first.expire_lease(NodeStatus::Down, at(300), "lease over").unwrap();
        assert_eq!(since(&again(&missed, 400)), Some(at(400)), "what was silent enters anew");
    }

    #[test]
    fn a_restored_record_never_gets_a_seq_that_was_given_out_before() {
        let restored = fixtures::ready(0);
        let undone = restored.with_alloc(fixtures::alloc_id(0), at(200)).unwrap();
        let undone = undone.without_alloc(fixtures::alloc_id(0), at(200)).unwrap();
        let anew = restored.bump_seq(at(201)).unwrap();
        let seqs = [&restored, &undone, &anew].map(|r| r.life().unwrap().seq);
        assert!(seqs.is_sorted_by(|a, b| a < b), "{seqs:?}");
    }

    #[test]
    fn wrong_starting_states_are_refused() {
        let cleaned = fixtures::assigned(0).clean(at(1), "x").unwrap();
        assert!(cleaned.clean(at(2), "x").is_err());
        assert!(cleaned.bind("i-1", None, at(2)).is_err());
        assert!(fixtures::ready(0).bind("i-other", None, at(2)).is_err());
        assert!(fixtures::assigned(0).shut_down(at(2), "unbound").is_err());
        let working = fixtures::ready(0).with_alloc(fixtures::alloc_id(0), at(1)).unwrap();
        assert!(working.shut_down(at(2), "has work").is_err());
        assert!(working.clean(at(2), "has work").is_err());
        assert!(NodeRecord::assign(working.slot, Some(&working), fixtures::new_life(0), at(3), "x").is_err());
    }

    #[test]
    fn the_pulse_never_moves_back() {
        let node = fixtures::ready(0);
        let ping = node.contact().unwrap().last_ping_at;
        let early = node.heartbeat(&fixtures::caller("i-0"), at(0), Time::from_ms(0)).unwrap();
        assert_eq!(early.contact().unwrap().last_ping_at, ping);
    }
}
