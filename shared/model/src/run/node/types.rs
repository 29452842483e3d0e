//! The types of a node record, in the form of the nodes table, and questions about a record.
//!
//! Guarantees: each state holds only the data of that state; the rules for "takes work" and "may update allocs" are only here.
//! Does not: change anything; `transitions` does.

use crate::enums::{Intent, Market, NodeStateName, NodeStatus};
use crate::wire::NodeHealth;
use crate::{
    AllocId, AllocIds, Batch, Capacity, EndCause, Ending, MachineKind, Needs, NewInstance, NodeId, Reserved, Slot,
    Span, Time, Usd,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// How long a launch claim lasts. The launch call ends before the claim does.
pub const LAUNCH_CLAIM: Span = Span::from_s(60);

/// Two observations that do not list an instance count only if they are at least this far apart.
pub const ABSENCE_CONFIRM: Span = Span::from_s(60);

/// The longest uptime that is believed, in milliseconds: a hundred years. Only a person can have written a longer one.
pub const LONGEST_UPTIME_MS: u64 = 100 * 366 * 86_400_000;

/// The version of a record as read. Other crates do not make versions: they take them from the records that they
/// read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Version(pub(crate) u64);

impl Version {
    /// The version of a record that was never written.
    pub const UNWRITTEN: Self = Self(0);

    /// The version after the next write.
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }

    /// The version after that of a row that cannot be read. `None`: not even its version can be read.
    pub fn after(number: Option<u64>) -> Self {
        number.map_or(Self::UNWRITTEN, Self).next()
    }

    pub const fn number(self) -> u64 {
        self.0
    }
}

/// A row of the nodes table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeRecord {
    pub slot: Slot,
    /// Raised by every write except a steady heartbeat's: `docs/rules.md#R4`.
    pub version: Version,
    /// When the record was last written. Writes of the pulse do not count.
    pub modified_at: Time,
    /// Why the record was last changed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// The beginning of the month in which earlier lives have cost `spent_usd`.
    #[serde(default, skip_serializing_if = "crate::left_out::is_default")]
    pub spent_month_at: Option<Time>,
    #[serde(default, skip_serializing_if = "crate::left_out::is_default")]
    pub spent_usd: Usd,
    #[serde(flatten)]
    pub state: NodeState,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum NodeState {
    /// The slot is free.
    Cleaned {
        /// The last life; `None` if there was none.
        last_node_id: Option<NodeId>,
    },
    /// The instance is launching or booting.
    Assigned(Box<Life>),
    /// The node has registered.
    InUse(Box<InUse>),
    /// The instance is being terminated.
    ShuttingDown(Box<ShuttingDown>),
}

/// A life that has registered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InUse {
    #[serde(flatten)]
    pub life: Life,
    #[serde(flatten)]
    pub contact: Contact,
}

/// A life whose instance is being terminated.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ShuttingDown {
    #[serde(flatten)]
    pub life: Life,
    /// `None` if the node never registered.
    #[serde(flatten)]
    pub contact: Option<Contact>,
}

/// One life of a slot, from `assigned` to `cleaned`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Life {
    pub node_id: NodeId,
    /// The batch of the launch call, while the node has no instance; `None` if the call is for this node alone.
    pub batch: Option<Batch>,
    /// Whether the launch call is for all nodes of the batch or for none.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_whole: bool,
    /// The number of the current launch call, from 1. Part of its client token.
    pub attempt: u32,
    /// Until this time, only the run that wrote the claim may make the launch call: `docs/rules.md#R5`.
    pub launch_claim_until_at: Time,
    #[serde(flatten)]
    pub offering: Offering,
    /// The other ways of the launch call, while the node has no instance.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<Offering>,
    /// Digest of the rendered launch request: it shows whether another run would repeat the same call.
    pub request_digest: String,
    /// `None` until it is known. A node has at most one instance, ever.
    pub instance_id: Option<String>,
    /// Where other nodes reach this one, as the agent says.
    pub address: Option<String>,
    pub assigned_at: Time,
    /// The counter of the node's orders, raised with everything the agent must know: see [`Life::next_seq`].
    #[serde(default)]
    pub seq: u64,
    #[serde(default = "run", skip_serializing_if = "is_run")]
    pub intent: Intent,
    /// When a drain no longer waits for the node's allocs.
    pub drain_by_at: Option<Time>,
    /// When EC2 takes the instance away, as it announced.
    pub interrupt_at: Option<Time>,
    /// Since when the instance is unlisted.
    pub absent_since_at: Option<Time>,
    /// The node's live allocs.
    #[serde(default, skip_serializing_if = "crate::left_out::is_default")]
    pub allocs: AllocIds,
    /// The live allocs whose output somebody follows, and until when.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub follows: BTreeMap<AllocId, Time>,
}

impl Life {
    /// The ways of the launch call: once the node has an instance, the one by which it was launched.
    pub fn ways(&self) -> Vec<Offering> {
        std::iter::once(&self.offering).chain(&self.others).cloned().collect()
    }

    /// What the node costs at most: until it has an instance, the price of the dearest way.
    pub fn most_per_hour(&self) -> Usd {
        let others = self.others.iter().map(|way| way.price_per_hour).max();
        self.offering.price_per_hour.max(others.unwrap_or_default())
    }

    /// The way of the launch call by which this instance was launched; the first way if none matches.
    pub fn way_of(&self, instance: &NewInstance) -> &Offering {
        let is = |known: Option<&String>, wanted: &str| known.is_none_or(|known| known == wanted);
        let is_its = |way: &&Offering| {
            let subnet = way.subnet_id.as_deref().is_none_or(|subnet| is(instance.subnet_id.as_ref(), subnet));
            subnet && is(instance.instance_type.as_ref(), &way.instance_type)
        };
        std::iter::once(&self.offering).chain(&self.others).find(is_its).unwrap_or(&self.offering)
    }

    /// Notes the instance, and keeps of the ways only the one by which it was launched.
    pub(super) fn bind(&mut self, instance: &NewInstance) {
        let mut offering = self.way_of(instance).clone();
        offering.zone = instance.zone.clone().or(offering.zone);
        self.offering = offering;
        self.instance_id = Some(instance.instance_id.clone());
        (self.batch, self.is_whole, self.others) = (None, false, Vec::new());
        self.absent_since_at = None;
    }

    /// The `seq` of the next order. It is the age of the life in milliseconds, or one more than the last
    /// `seq` if that is higher. Counting by one alone would not be safe: after the table is restored from a
    /// backup, the count could reach a number that the agent has from the lost history, and neither side
    /// would notice the difference.
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

/// One way to launch a size. It defines the launch request, and is written before EC2 is called, so that another run can repeat the
/// same call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Offering {
    /// The name of the size in the policy.
    pub size: String,
    /// Like `m7a.large`.
    pub instance_type: String,
    pub market: Market,
    /// The capacity reservation, if the market is [`Market::Reserved`].
    pub reservation: Option<Reserved>,
    /// `None` where the launch template names the subnet.
    pub subnet_id: Option<String>,
    /// The subnet's zone; `None` until an instance has shown it.
    pub zone: Option<String>,
    /// The id or the name of the launch template.
    pub template: String,
    /// `None` for the template's default version.
    pub template_version: Option<u64>,
    pub price_per_hour: Usd,
    #[serde(flatten)]
    pub capacity: Capacity,
    #[serde(flatten)]
    pub kind: MachineKind,
}

impl Offering {
    /// What one member of a job costs an hour on such a node.
    pub fn price_of(&self, needs: &Needs) -> Usd {
        needs.price_on(self.capacity, self.price_per_hour)
    }
}

impl fmt::Display for Offering {
    /// For people: `spot m7a.large in eu-west-1a $0.0432`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.market, self.instance_type)?;
        if let Some(place) = self.zone.as_ref().or(self.subnet_id.as_ref()) {
            write!(f, " in {place}")?;
        }
        if let Some(reservation) = &self.reservation {
            write!(f, " ({})", reservation.id)?;
        }
        write!(f, " ${:.4}", f64::from(self.price_per_hour))
    }
}

/// The state of the contact with a node, by its heartbeats.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Contact {
    /// When the node first registered in this life.
    pub first_ping_at: Time,
    /// The time of the last heartbeat. Part of the pulse.
    pub last_ping_at: Time,
    /// Until when the node is believed alive. Part of the pulse.
    pub lease_expires_at: Time,
    pub status: NodeStatus,
    /// Whether the node has not been `ready` yet in this life: it still boots.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub never_ready: bool,
    /// Names the agent's registration. Each registration gets a new one.
    pub incarnation: String,
    /// The boot of the machine, as the agent reports it.
    pub boot_id: String,
    /// How long the machine had been up when it made its newest heartbeat, in milliseconds; `None` if the agent does not
    /// say. Part of the pulse.
    pub uptime_ms: Option<u64>,
    /// A report with an `as_of` below this does not make the node `ready`.
    pub gate_seq: u64,
    /// The number of the last alloc report taken. It is written without raising `version`.
    #[serde(default)]
    pub alloc_report_no: u64,
    /// The number of the last handle report taken. It is written without raising `version`.
    #[serde(default)]
    pub handle_report_no: u64,
    /// `seq` and digest of the last handle report that changed nothing. If the same report comes again, it is
    /// skipped.
    pub settled: Option<String>,
    #[serde(flatten)]
    pub health: NodeHealth,
    /// Since when the node takes no work.
    pub refuses_since_at: Option<Time>,
    pub idle_since_at: Option<Time>,
    /// How many runs saw the node idle.
    #[serde(default, skip_serializing_if = "crate::left_out::is_default")]
    pub idle_runs: u32,
    pub syncing_since_at: Option<Time>,
    /// Which part of the complete report of a `syncing` node could not be taken: a row cannot be read, for instance. `None` if no such
    /// report came.
    pub untaken: Option<String>,
}

impl Contact {
    /// Restarts the idle time: from `since_at`, or with no idle time if the node is not idle.
    pub(super) fn idle_from(&mut self, since_at: Option<Time>) {
        (self.idle_since_at, self.idle_runs) = (since_at, 0);
    }
}

/// Why a transition does not apply to a record as it is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("slot {slot} is {state}: it cannot {wanted}")]
pub struct NotPossible {
    pub slot: Slot,
    pub state: NodeStateName,
    /// What was tried, as the end of the sentence "it cannot …".
    pub wanted: &'static str,
}

/// Why a node takes no work if its size has GPUs and its agent can use none.
const NO_GPU: &str = "none of its GPUs can be used: is the driver installed, and does `nvidia-smi` list them?";

impl NodeRecord {
    pub fn state_name(&self) -> NodeStateName {
        match self.state {
            NodeState::Cleaned { .. } => NodeStateName::Cleaned,
            NodeState::Assigned(_) => NodeStateName::Assigned,
            NodeState::InUse(_) => NodeStateName::InUse,
            NodeState::ShuttingDown(_) => NodeStateName::ShuttingDown,
        }
    }

    /// The end of an alloc that is lost with this node: taken by EC2 if that was announced, and moved by the operator once the drain's
    /// deadline is over. A node that fails before is lost as any other.
    pub fn loses(&self, why: &str, now: Time) -> Ending {
        let Some(life) = self.life() else { return Ending::lost(why) };
        let is_before = |by: Time| life.interrupt_at.is_none_or(|at| by < at);
        let by_operator = life.drain_by_at.is_some_and(|by| by <= now && is_before(by));
        Ending::new(match (life.interrupt_at, life.offering.market) {
            _ if by_operator => EndCause::Moved { why: format!("an operator drains its node: {why}") },
            (Some(_), Market::Spot) => EndCause::Interrupted { why: why.to_owned() },
            (Some(_), _) => EndCause::Moved { why: format!("EC2 takes its instance: {why}") },
            (None, _) => EndCause::Lost { why: why.to_owned() },
        })
    }

    /// What the nodes of this slot have cost in the month of this time until then.
    pub fn cost_of_month(&self, now: Time) -> Usd {
        let month = now.month();
        let earlier = if self.spent_month_at == Some(month) { self.spent_usd } else { Usd::ZERO };
        // A launch without an instance costs nothing.
        let life = self.life().filter(|life| life.instance_id.is_some());
        let cost = |life: &Life| life.offering.price_per_hour.in_time(now.since(life.assigned_at.max(month)));
        earlier + life.map_or(Usd::ZERO, cost)
    }

    /// Whether the slot is free.
    pub fn is_cleaned(&self) -> bool {
        matches!(self.state, NodeState::Cleaned { .. })
    }

    /// The current life; `None` if the slot is free.
    pub fn life(&self) -> Option<&Life> {
        match &self.state {
            NodeState::Cleaned { .. } => None,
            NodeState::Assigned(life) => Some(life),
            NodeState::InUse(node) => Some(&node.life),
            NodeState::ShuttingDown(node) => Some(&node.life),
        }
    }

    pub(super) fn life_mut(&mut self) -> Option<&mut Life> {
        match &mut self.state {
            NodeState::Cleaned { .. } => None,
            NodeState::Assigned(life) => Some(life),
            NodeState::InUse(node) => Some(&mut node.life),
            NodeState::ShuttingDown(node) => Some(&mut node.life),
        }
    }

    /// The contact of this life; `None` if the node never registered.
    pub fn contact(&self) -> Option<&Contact> {
        match &self.state {
            NodeState::Cleaned { .. } | NodeState::Assigned(_) => None,
            NodeState::InUse(node) => Some(&node.contact),
            NodeState::ShuttingDown(node) => node.contact.as_ref(),
        }
    }

    pub(super) fn contact_mut(&mut self) -> Option<&mut Contact> {
        match &mut self.state {
            NodeState::Cleaned { .. } | NodeState::Assigned(_) => None,
            NodeState::InUse(node) => Some(&mut node.contact),
            NodeState::ShuttingDown(node) => node.contact.as_mut(),
        }
    }

    /// The id of the current life, or of the last one if the slot is free; `None` if it was never taken.
    pub fn latest_node_id(&self) -> Option<NodeId> {
        if let NodeState::Cleaned { last_node_id } = &self.state { *last_node_id } else { self.node_id() }
    }

    /// The id of the current life; `None` if the slot is free.
    pub fn node_id(&self) -> Option<NodeId> {
        self.life().map(|l| l.node_id)
    }

    /// How well the node is connected; `None` unless it is in use.
    pub fn status(&self) -> Option<NodeStatus> {
        match &self.state {
            NodeState::InUse(node) => Some(node.contact.status),
            NodeState::Assigned(_) | NodeState::ShuttingDown(_) | NodeState::Cleaned { .. } => None,
        }
    }

    /// Whether the node may be given work: it is in use and ready, the operator neither holds nor drains it, and its
    /// agent does not refuse.
    pub fn takes_work(&self) -> bool {
        self.status() == Some(NodeStatus::Ready)
            && self.life().is_some_and(|l| l.intent == Intent::Run)
            && self.refuses().is_none()
    }

    /// Whether the node is in use and heard: its lease is valid, and no run has noted a silence that is not over.
    pub fn is_heard(&self, now: Time) -> bool {
        matches!(self.status(), Some(NodeStatus::Syncing | NodeStatus::Ready))
            && self.contact().is_some_and(|c| c.lease_expires_at >= now)
    }

    /// Whether the node has reported what runs on it, and is not ready only because a part of the report could not be taken. The node
    /// is well, so none of its work is given up.
    pub fn has_untaken(&self) -> bool {
        self.status() == Some(NodeStatus::Syncing) && self.contact().is_some_and(|c| c.untaken.is_some())
    }

    /// Why the node takes no work; `None` if it does, or if the node never registered. A node whose size has GPUs, and that has lost
    /// all of them, takes no other work either: its price is paid for the GPUs.
    pub fn refuses(&self) -> Option<&str> {
        let contact = self.contact()?;
        let has_lost_all =
            self.life().is_some_and(|life| life.offering.capacity.gpus > 0) && contact.health.gpus_usable == 0;
        // The agent's own words about each GPU say more than `NO_GPU`.
        let why =
            || (has_lost_all && !contact.never_ready).then(|| contact.health.gpus_sick.as_deref().unwrap_or(NO_GPU));
        contact.health.refuses.as_deref().or_else(why)
    }

    /// What a node that has not been ready yet still lacks of what its size promises. It becomes ready with all of it: GPUs that the
    /// driver shows some time after the boot are waited for.
    pub fn awaits(&self) -> Option<String> {
        self.contact().filter(|contact| contact.never_ready)?;
        self.sick_gpus()
    }

    /// The GPUs that a plan may count on: those that can be used, or, while the node is awaited, those of its size.
    pub fn expected_gpus(&self) -> u32 {
        let of_size = self.life().map_or(0, |life| life.offering.capacity.gpus);
        if self.contact().is_some_and(|contact| contact.never_ready) { of_size } else { self.usable_gpus() }
    }

    /// How many GPUs of the node jobs may use: those of its size, without those that its agent cannot use.
    pub fn usable_gpus(&self) -> u32 {
        let of_size = self.life().map_or(0, |life| life.offering.capacity.gpus);
        self.contact().map_or(of_size, |contact| contact.health.gpus_usable.min(of_size))
    }

    /// Which GPUs of the node cannot be used, and why; `None` if all can.
    pub fn sick_gpus(&self) -> Option<String> {
        let (of_size, usable) = (self.life()?.offering.capacity.gpus, self.usable_gpus());
        let sick = self.contact()?.health.gpus_sick.as_deref();
        let why = sick.unwrap_or("is the driver installed, and does `nvidia-smi` list them?");
        (of_size > usable).then(|| format!("{usable} of its {of_size} GPUs can be used: {why}"))
    }

    /// The remark about the node in lists: that it takes no work, otherwise what it waits for or which GPUs are sick, otherwise why
    /// its record was last changed.
    pub fn why(&self) -> String {
        let refuses = self.refuses().map(|why| format!("it takes no work: {why}"));
        let awaits = || self.awaits().map(|what| format!("it boots: {what}"));
        refuses.or_else(awaits).or_else(|| self.sick_gpus()).unwrap_or_else(|| self.reason.clone())
    }

    /// Whether alloc updates from the node are taken: while it is syncing or ready, and while it is
    /// shutting down, to learn how its last allocs ended.
    pub fn may_update_allocs(&self) -> bool {
        match &self.state {
            NodeState::InUse(n) => matches!(n.contact.status, NodeStatus::Syncing | NodeStatus::Ready),
            NodeState::ShuttingDown(n) => n.contact.is_some(),
            NodeState::Assigned(_) | NodeState::Cleaned { .. } => false,
        }
    }
}
