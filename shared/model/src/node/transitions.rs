//! Every way a node record may change: each transition returns the record as it must become, or
//! says why it is not possible.

use super::{
    Contact, InUse, LAUNCH_CLAIM, Life, NodeRecord, NodeState, NotPossible, Offering, ShuttingDown, Version,
    short_reason,
};
use crate::ids::{AllocId, NodeId, Slot};
use crate::time::Time;
use crate::words::{Intent, NodeStatus};
use std::collections::BTreeSet;

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

/// How a run saw a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// Idle, and nothing needs it.
    Idle,
    /// Busy, or something needs it.
    Needed,
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
