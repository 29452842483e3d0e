//! The transitions of a node record: each returns the new record, or [`NotPossible`] if the record's state does not allow it.
//!
//! Guarantees: only these transitions change the state of a record; every transition sets `modified_at`, and most
//! give a reason.
//! Does not: write anything (the store does), or decide when a transition is due (the plans do).

use super::{
    Contact, InUse, LAUNCH_CLAIM, LONGEST_UPTIME_MS, Life, NodeRecord, NodeState, NotPossible, Offering, ShuttingDown,
    Version,
};
use crate::enums::{Intent, NodeStatus};
use crate::error_chain::short_reason;
use crate::wire::Heartbeat;
use crate::{AllocId, AllocIds, Batch, NewInstance, NodeId, Slot, Time, Usd};
use std::collections::BTreeMap;

/// A new life of a slot, and its launch call.
#[derive(Clone, Debug)]
pub struct NewLife {
    /// A new id, never used before.
    pub node_id: NodeId,
    pub offering: Offering,
    pub others: Vec<Offering>,
    /// Digest of the rendered launch request.
    pub request_digest: String,
    /// The batch of the launch call; `None` if the call is for this node alone.
    pub batch: Option<Batch>,
    /// Whether the launch call is for all nodes of the batch or for none.
    pub is_whole: bool,
}

/// Whether a run found a node idle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Idleness {
    /// Idle, and nothing needs it.
    Idle,
    /// Not idle, or something needs it.
    Needed,
}

impl NodeRecord {
    /// `no row or cleaned → assigned`: a new life, with the whole launch request and the claim.
    /// `previous` is the slot's row as read; `None` if the slot has no row.
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
            batch: launch.batch,
            is_whole: launch.is_whole,
            attempt: 1,
            launch_claim_until_at: now + LAUNCH_CLAIM,
            offering: launch.offering,
            others: launch.others,
            request_digest: launch.request_digest,
            instance_id: None,
            address: None,
            assigned_at: now,
            seq: 0,
            intent: Intent::Run,
            drain_by_at: None,
            interrupt_at: None,
            absent_since_at: None,
            allocs: AllocIds::default(),
            follows: BTreeMap::new(),
        };
        Ok(Self {
            slot,
            version: previous.map_or(Version::UNWRITTEN, |r| r.version),
            modified_at: now,
            reason: short_reason(reason),
            spent_month_at: previous.and_then(|r| r.spent_month_at),
            spent_usd: previous.map_or(Usd::ZERO, |r| r.spent_usd),
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

    /// Binds the life to its instance: the launch call answered, or EC2 lists the instance.
    pub fn bind(&self, instance: &NewInstance, now: Time) -> Result<Self, NotPossible> {
        let mut new = self.clone();
        let life = new.life_mut().ok_or_else(|| self.not_possible("be bound"))?;
        if life.instance_id.as_ref().is_some_and(|known| *known != instance.instance_id) {
            return Err(self.not_possible("be bound to another instance"));
        }
        life.bind(instance);
        Ok(new.touched(now, &format!("launched as {}", instance.instance_id)))
    }

    /// Takes over a launch of another run that got no answer: renews the claim. The repeated call uses the same
    /// token.
    pub fn reclaim(&self, now: Time) -> Result<Self, NotPossible> {
        let mut new = self.clone();
        let NodeState::Assigned(life) = &mut new.state else { return Err(self.not_possible("be launched")) };
        if life.instance_id.is_some() || life.launch_claim_until_at > now {
            return Err(self.not_possible("be launched again yet"));
        }
        life.launch_claim_until_at = now + LAUNCH_CLAIM;
        Ok(new.touched(now, "launch repeated: its answer never came"))
    }

    /// Changes the ways of the launch, or the batch, after a definite refusal. The run with the claim then makes another
    /// launch call, with another token.
    pub fn next_attempt(
        &self,
        (offering, others): (Offering, Vec<Offering>),
        batch: Option<Batch>,
        request_digest: String,
        now: Time,
    ) -> Result<Self, NotPossible> {
        let mut new = self.clone();
        let NodeState::Assigned(life) = &mut new.state else { return Err(self.not_possible("change its offering")) };
        if life.instance_id.is_some() {
            return Err(self.not_possible("change its offering: it is launched"));
        }
        life.attempt = life.attempt.saturating_add(1);
        life.launch_claim_until_at = now + LAUNCH_CLAIM;
        let reason = format!("{} was refused; next attempt with {}", life.offering.size, offering.size);
        (life.offering, life.others, life.batch) = (offering, others, batch);
        life.request_digest = request_digest;
        Ok(new.touched(now, &reason))
    }

    /// A registration: `assigned → in_use`, or a new incarnation of a node in use. The node
    /// becomes `syncing`. Only a complete report that knows this `seq` makes it `ready`.
    pub fn register(
        &self,
        heartbeat: &Heartbeat,
        incarnation: &str,
        lease_expires_at: Time,
        now: Time,
    ) -> Result<Self, NotPossible> {
        let mut new = self.clone();
        let life = new.life_mut().ok_or_else(|| self.not_possible("register"))?;
        life.seq = life.next_seq(now);
        if life.instance_id.is_none() {
            life.instance_id = Some(heartbeat.instance_id.clone());
        }
        if heartbeat.address.is_some() {
            life.address.clone_from(&heartbeat.address);
        }
        let gate_seq = life.seq;
        let syncing = self.contact().filter(|c| c.status == NodeStatus::Syncing);
        let contact = Contact {
            first_ping_at: self.contact().map_or(now, |c| c.first_ping_at),
            last_ping_at: self.contact().map_or(now, |c| c.last_ping_at.max(now)),
            // A registration never shortens the lease. The same registration may arrive twice, and the first answer
            // may have told the node a later time for its next call.
            lease_expires_at: self.contact().map_or(lease_expires_at, |c| c.lease_expires_at.max(lease_expires_at)),
            status: NodeStatus::Syncing,
            never_ready: self.contact().is_none_or(|c| c.never_ready),
            incarnation: incarnation.to_owned(),
            boot_id: heartbeat.boot_id.clone(),
            uptime_ms: heartbeat.uptime_ms,
            gate_seq,
            alloc_report_no: 0,
            handle_report_no: 0,
            settled: None,
            health: heartbeat.health.clone(),
            refuses_since_at: self.refuses_since(heartbeat, now),
            idle_since_at: None,
            idle_runs: 0,
            // A repeated registration keeps this time, because a node that only registers again and again is stuck
            // too. A node that has reported meanwhile is not.
            syncing_since_at: syncing.filter(|c| c.untaken.is_none()).and_then(|c| c.syncing_since_at).or(Some(now)),
            untaken: None,
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

    /// A heartbeat that changes more than the pulse: the node was disconnected or down, or the agent reports other facts.
    pub fn heartbeat(&self, heartbeat: &Heartbeat, lease_expires_at: Time, now: Time) -> Result<Self, NotPossible> {
        let mut new = self.clone();
        let mut reason = "";
        let refuses_since_at = self.refuses_since(heartbeat, now);
        let contact = new.contact_mut().ok_or_else(|| self.not_possible("heartbeat: it must register first"))?;
        contact.last_ping_at = contact.last_ping_at.max(now);
        contact.lease_expires_at = contact.lease_expires_at.max(lease_expires_at);
        contact.uptime_ms = contact.uptime_ms.filter(|known| *known <= LONGEST_UPTIME_MS).max(heartbeat.uptime_ms);
        let before = std::mem::replace(&mut contact.health, heartbeat.health.clone());
        let after = &heartbeat.health;
        if before.busy != after.busy {
            reason = if after.busy { "the agent says busy" } else { "the agent no longer says busy" };
        }
        if before.refuses != after.refuses {
            reason = if after.refuses.is_some() { "the agent takes no work" } else { "the agent takes work again" };
            contact.refuses_since_at = refuses_since_at;
        }
        if (before.busy, &before.refuses) != (after.busy, &after.refuses) {
            contact.idle_from(None);
        }
        if (before.gpus_usable, &before.gpus_sick) != (after.gpus_usable, &after.gpus_sick) {
            reason = if after.gpus_sick.is_some() { "GPUs cannot be used" } else { "its GPUs can be used" };
        }
        if before.unended != after.unended {
            reason = if after.unended.is_some() { "allocs cannot be ended" } else { "its allocs end" };
        }
        if before.fails != after.fails {
            reason = if after.fails.is_some() { "it cannot reach a service" } else { "it reaches all services" };
        }
        if let NodeState::InUse(node) = &mut new.state
            && matches!(node.contact.status, NodeStatus::Disconnected | NodeStatus::Down)
        {
            node.life.seq = node.life.next_seq(now);
            node.contact.gate_seq = node.life.seq;
            node.contact.status = NodeStatus::Syncing;
            (node.contact.syncing_since_at, node.contact.untaken) = (Some(now), None);
            reason = "heartbeats again";
        }
        if let (Some(address), Some(life)) = (&heartbeat.address, new.life_mut()) {
            life.address = Some(address.clone());
        }
        Ok(new.touched(now, reason))
    }

    /// Since when the agent takes no work; `None` if it takes work. A changed reason keeps the time.
    fn refuses_since(&self, heartbeat: &Heartbeat, now: Time) -> Option<Time> {
        let known = self.contact().and_then(|c| c.refuses_since_at);
        heartbeat.health.refuses.as_ref().map(|_| known.unwrap_or(now))
    }

    /// `syncing → ready`, by a complete report whose `as_of` has reached `gate_seq`. This is written after all
    /// updates of the report. The first time, the node also needs what its size promises.
    pub fn open_gate(&self, now: Time) -> Result<Self, NotPossible> {
        let mut new = self.clone();
        let NodeState::InUse(node) = &mut new.state else { return Err(self.not_possible("become ready")) };
        if node.contact.status != NodeStatus::Syncing {
            return Err(self.not_possible("become ready: it is not syncing"));
        }
        if self.awaits().is_some() {
            return Err(self.not_possible("become ready: it lacks GPUs of its size"));
        }
        node.contact.status = NodeStatus::Ready;
        (node.contact.syncing_since_at, node.contact.untaken) = (None, None);
        node.contact.never_ready = false;
        node.contact.idle_from(node.life.allocs.is_empty().then_some(now));
        Ok(new.touched(now, "ready: what runs on it is known"))
    }

    /// The node stays `syncing` although its complete report came: this part of it could not be taken.
    pub fn with_untaken(&self, untaken: &str, now: Time) -> Result<Self, NotPossible> {
        let mut new = self.clone();
        let contact = new.contact_mut().filter(|c| c.status == NodeStatus::Syncing);
        let contact = contact.ok_or_else(|| self.not_possible("hold its gate: it is not syncing"))?;
        contact.untaken = Some(short_reason(untaken));
        Ok(new.touched(now, "a part of its report could not be taken"))
    }

    /// The lease expired: the status becomes `disconnected` if some alloc may wait for the node, else `down`.
    /// Raises `seq` and `gate_seq`. The write must also require `last_ping_at` as read, so that a heartbeat
    /// that arrives first wins.
    pub fn expire_lease(&self, status: NodeStatus, now: Time, reason: &str) -> Result<Self, NotPossible> {
        let mut new = self.clone();
        let NodeState::InUse(node) = &mut new.state else { return Err(self.not_possible("expire its lease")) };
        if !matches!(status, NodeStatus::Disconnected | NodeStatus::Down) {
            return Err(self.not_possible("take that status when its lease expires"));
        }
        node.life.seq = node.life.next_seq(now);
        node.contact.gate_seq = node.life.seq;
        node.contact.status = status;
        (node.contact.syncing_since_at, node.contact.untaken) = (None, None);
        node.contact.idle_from(None);
        Ok(new.touched(now, reason))
    }

    /// Counts a run that saw the node idle, or resets the count because the node is needed.
    pub fn counted_by_run(&self, seen: Idleness, now: Time) -> Result<Self, NotPossible> {
        let mut new = self.clone();
        let NodeState::InUse(node) = &mut new.state else { return Err(self.not_possible("be idle")) };
        let (idle_since_at, idle_runs, reason) = match seen {
            Idleness::Idle => {
                let since = node.contact.idle_since_at.or(Some(now));
                (since, node.contact.idle_runs.saturating_add(1), "idle")
            }
            Idleness::Needed => (None, 0, "needed"),
        };
        node.contact.idle_since_at = idle_since_at;
        node.contact.idle_runs = idle_runs;
        Ok(new.touched(now, reason))
    }

    /// Notes since when the instance is unlisted; `None`: EC2 lists it again.
    pub fn note_unlisted(&self, since: Option<Time>, now: Time) -> Result<Self, NotPossible> {
        let mut new = self.clone();
        let life = new.life_mut().ok_or_else(|| self.not_possible("be noted as unlisted"))?;
        life.absent_since_at = since;
        Ok(new.touched(now, if since.is_some() { "not listed by EC2" } else { "listed by EC2 again" }))
    }

    /// `assigned or in_use → shutting_down`. The plan decides which node, when and why. The node must have
    /// no live alloc, unless the drain's deadline has passed; the write checks this again.
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
            NodeState::Assigned(_) | NodeState::ShuttingDown(_) | NodeState::Cleaned { .. } => {
                return Err(self.not_possible("be shut down"));
            }
        };
        Ok(new.touched(now, reason))
    }

    /// `any → cleaned`: keeps only the slot, the version, the reason, the node id of the life and what its month has cost. The node's
    /// allocs must have been ended before.
    pub fn clean(&self, now: Time, reason: &str) -> Result<Self, NotPossible> {
        let life = self.life().ok_or_else(|| self.not_possible("be cleaned"))?;
        if !life.allocs.is_empty() {
            return Err(self.not_possible("be cleaned: it has live allocs"));
        }
        let state = NodeState::Cleaned { last_node_id: Some(life.node_id) };
        let spent_usd = self.cost_of_month(now);
        let spent_month_at = (!spent_usd.is_zero()).then(|| now.month());
        let new = Self { spent_month_at, spent_usd, state, ..self.clone() };
        Ok(new.touched(now, reason))
    }

    /// Sets what the operator wants of the node. A node that is shutting down cannot be held or drained any more, and
    /// its record keeps the reason for the shutdown.
    pub fn with_intent(&self, intent: Intent, drain_by_at: Option<Time>, now: Time) -> Result<Self, NotPossible> {
        let wanted = match intent {
            Intent::Hold => "be held",
            Intent::Drain => "be drained",
            Intent::Run => "be resumed",
        };
        if let NodeState::ShuttingDown(_) = self.state {
            return Err(self.not_possible(wanted));
        }
        let mut new = self.clone();
        let life = new.life_mut().ok_or_else(|| self.not_possible(wanted))?;
        life.intent = intent;
        life.drain_by_at = if intent == Intent::Drain { drain_by_at } else { None };
        // Every answer tells the agent the intent. The intent is not an order, so `seq` stays as it is.
        Ok(new.touched(now, &format!("intent {intent}")))
    }

    /// Drains the node until `by`, when its instance will be taken away. `None` if the node already drains until then
    /// or earlier, or is shutting down.
    pub fn interrupted(&self, by: Time, now: Time) -> Option<Self> {
        let drains = self.life().is_some_and(|l| l.intent == Intent::Drain && l.drain_by_at.is_some_and(|at| at <= by));
        let mut new = self.with_intent(Intent::Drain, Some(by), now).ok().filter(|_| !drains)?;
        new.life_mut()?.interrupt_at = Some(by);
        Some(new)
    }

    /// Drains the node without a deadline, because EC2 may soon take its instance away. `None` unless the intent is `run`, so that
    /// no decision of a person or of EC2 is changed.
    pub fn at_risk(&self, now: Time) -> Option<Self> {
        let runs = self.life().is_some_and(|l| l.intent == Intent::Run);
        self.with_intent(Intent::Drain, None, now).ok().filter(|_| runs)
    }

    /// Adds a live alloc. Raises `seq`: the agent must know of it.
    pub fn with_alloc(&self, alloc: AllocId, now: Time) -> Result<Self, NotPossible> {
        if !self.takes_work() {
            return Err(self.not_possible("take work"));
        }
        self.listing_again(alloc, now)
    }

    /// Adds a live alloc that was placed here and that a restored record does not list. The node need not take work now. Raises
    /// `seq`.
    pub fn listing_again(&self, alloc: AllocId, now: Time) -> Result<Self, NotPossible> {
        let mut new = self.clone();
        let life = new.life_mut().ok_or_else(|| self.not_possible("run an alloc"))?;
        life.allocs.insert(alloc);
        life.seq = life.next_seq(now);
        if let Some(contact) = new.contact_mut() {
            contact.idle_from(None);
        }
        Ok(new.touched(now, &format!("runs {alloc}")))
    }

    /// Notes that somebody follows the output of this live alloc until then, and forgets the follows that are over.
    pub fn with_follow(&self, alloc: AllocId, until_at: Time, now: Time) -> Result<Self, NotPossible> {
        let mut new = self.clone();
        let life = new.life_mut().filter(|life| life.allocs.contains(&alloc));
        let life = life.ok_or_else(|| self.not_possible("store the output of an alloc that does not run there"))?;
        life.follows.retain(|_, until_at| *until_at > now);
        life.follows.insert(alloc, until_at);
        Ok(new.touched(now, ""))
    }

    /// Removes a live alloc. Raises `seq`, even if the agent itself reported the end. The agent forgets an end that
    /// was accepted. If the table is then restored from a backup without this end, the agent notices this only
    /// because its `as_of` is higher than the table's `seq`.
    pub fn without_alloc(&self, alloc: AllocId, now: Time) -> Result<Self, NotPossible> {
        let mut new = self.clone();
        let life = new.life_mut().ok_or_else(|| self.not_possible("lose an alloc"))?;
        life.allocs.remove(&alloc);
        life.follows.remove(&alloc);
        life.seq = life.next_seq(now);
        if life.allocs.is_empty()
            && let Some(contact) = new.contact_mut()
        {
            contact.idle_from(Some(now));
        }
        Ok(new.touched(now, &format!("{alloc} ended")))
    }

    /// Raises `seq`, because an order about one of the node's allocs or handles changed.
    pub fn bump_seq(&self, now: Time) -> Result<Self, NotPossible> {
        let mut new = self.clone();
        let life = new.life_mut().ok_or_else(|| self.not_possible("be told anything"))?;
        life.seq = life.next_seq(now);
        Ok(new.touched(now, ""))
    }
}
