//! What a node says next, and how what it hears changes what it knows.
//!
//! Guarantees: pure, without files, sockets or clocks, so that a simulation can drive it as
//! the agent does. Everything in [`Durable`] must be on disk before the changed [`Node`] is
//! used: clone it, change the clone, save, replace (`agent::Shared::update` is that).
//! `as_of` says only what is durable, for the orders and `as_of` are one value. A report is
//! repeated with the same number and the same body until its fate is known.
//! Does not: decide when to call; the loops in `control` and `sweep` do.

use crate::orders::{self, Applied};
use serde::{Deserialize, Serialize};
use shared::ids::{AllocId, NodeId};
use shared::model::{ClientStatus, Desired};
use shared::time::Time;
use shared::wire::{
    AllocOrder, AllocReport, AllocReportAnswer, AllocUpdate, ErrorCode, HandleReport, Heartbeat, HeartbeatAnswer,
    MAX_LOG_TAIL_BYTES, ReportedHandle,
};
use std::collections::{BTreeMap, BTreeSet};

/// All log tails of one report together, in bytes: escaped as JSON they may grow sixfold, and
/// the body must stay well below [`shared::wire::MAX_BODY_BYTES`].
const MAX_REPORT_LOG_BYTES: usize = 256 * 1024;
/// The longest message of an end, in characters: a report of many stays below what is taken.
const MAX_MESSAGE_CHARS: usize = 1024;

/// What outlives the agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Durable {
    /// Whose state this is: a cloned disk brings another node's.
    pub node_id: NodeId,
    /// The boot it belongs to: no process outlives one.
    pub boot_id: String,
    /// As minted at registration; absent until then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incarnation: Option<String>,
    /// The highest `seq` applied.
    pub as_of: u64,
    /// The number of the last alloc report of this incarnation.
    pub report_no: u64,
    /// The number of the last handle report of this incarnation.
    pub handle_report_no: u64,
    /// Every alloc whose end the control plane has not taken over.
    pub allocs: BTreeMap<AllocId, LocalAlloc>,
    /// What was placed up to this `seq` may have run on a disk that was here before this one, and is not
    /// started. On a blank disk everything, until a registration is answered: while that and the complete
    /// report after it are under way, nothing is placed.
    #[serde(default)]
    pub wiped_at: u64,
}

impl Durable {
    /// A node with a blank disk.
    pub const fn new(node_id: NodeId, boot_id: String) -> Self {
        let allocs = BTreeMap::new();
        let wiped_at = u64::MAX;
        Self { node_id, boot_id, incarnation: None, as_of: 0, report_no: 0, handle_report_no: 0, allocs, wiped_at }
    }

    /// The next heartbeat registers. What runs goes on running.
    pub fn register_anew(&mut self) {
        self.incarnation = None;
        self.as_of = 0;
        self.report_no = 0;
        self.handle_report_no = 0;
    }
}

/// An alloc this node has been told of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LocalAlloc {
    /// As ordered.
    pub order: AllocOrder,
    /// Why the agent itself stops it, if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop: Option<String>,
    /// The control plane no longer lists it: stop it, tell nobody, forget it.
    #[serde(default)]
    pub dropped: bool,
    /// It was dropped and is listed again (a table was restored): told as long as it runs, and missing
    /// from a complete report, so lost, only once it has ended.
    #[serde(default)]
    pub relisted: bool,
}

impl LocalAlloc {
    /// As ordered just now.
    pub const fn new(order: AllocOrder) -> Self {
        Self { order, stop: None, dropped: false, relisted: false }
    }

    /// Why it has to stop, if it has to.
    fn stop_reason(&self) -> Option<&str> {
        match (&self.stop, self.dropped, self.order.desired) {
            (Some(why), _, _) => Some(why),
            (None, true, _) => Some("stopped: the control plane no longer lists it"),
            (None, false, Desired::Stop) => Some("stopped as ordered"),
            (None, false, Desired::Run) => None,
        }
    }
}

/// How an alloc was last seen on the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Seen {
    /// Not started.
    #[default]
    Pending,
    /// Its supervisor runs.
    Running,
    /// It ended.
    Ended(Ended),
    /// It ran before the node was rebooted, or this machine had no room to start it, and it is not here
    /// any more: it is lost rather than failed, and only a complete report says so.
    Gone,
}

/// How an alloc ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ended {
    /// 128 + the signal's number for a signal; absent when it never ran to an end.
    pub exit_code: Option<i32>,
    /// Why, in words.
    pub message: Option<String>,
    /// The end of its output.
    pub log_tail: Option<String>,
}

impl Seen {
    fn client(&self) -> ClientStatus {
        match self {
            Self::Pending => ClientStatus::Pending,
            Self::Running => ClientStatus::Running,
            Self::Gone => ClientStatus::Lost,
            Self::Ended(end) if end.exit_code == Some(0) => ClientStatus::Complete,
            Self::Ended(_) => ClientStatus::Failed,
        }
    }
}

/// What is to be done on the machine, derived afresh each time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Work {
    /// Start it, unless it was ever started.
    Run(AllocOrder),
    /// Stop it, for this reason; it is not to be started.
    Stop(AllocOrder, String),
}

/// What the agent is told apart from its orders, once and for all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The EC2 instance.
    pub instance_id: String,
    /// Where other members of a job reach this node.
    pub address: Option<String>,
}

/// A node, as its own agent knows it.
#[derive(Clone, Debug)]
pub struct Node {
    /// Who it is.
    pub identity: Identity,
    /// What outlives the agent.
    pub durable: Durable,
    /// Whether something other than allocs keeps the node busy; absent if nobody asks.
    pub busy: Option<bool>,
    /// When EC2 will take the instance away, if it said so.
    pub interrupt_at: Option<Time>,
    seen: BTreeMap<AllocId, Seen>,
    /// What the control plane is known to know; `pending` where nothing is.
    delivered: BTreeMap<AllocId, ClientStatus>,
    complete_due: bool,
    in_flight: Option<AllocReport>,
}

impl Node {
    /// A node that starts from what was on disk. Its first report is a complete one.
    pub const fn new(identity: Identity, durable: Durable) -> Self {
        Self {
            identity,
            durable,
            busy: None,
            interrupt_at: None,
            seen: BTreeMap::new(),
            delivered: BTreeMap::new(),
            complete_due: true,
            in_flight: None,
        }
    }

    /// The next heartbeat.
    pub fn heartbeat(&self) -> Heartbeat {
        Heartbeat {
            instance_id: self.identity.instance_id.clone(),
            boot_id: self.durable.boot_id.clone(),
            incarnation: self.durable.incarnation.clone(),
            as_of: self.durable.as_of,
            busy: self.busy,
            address: self.identity.address.clone(),
            interrupt_at: self.interrupt_at,
        }
    }

    /// Takes over the answer to a heartbeat. Says whether it was a registration.
    pub fn on_heartbeat(&mut self, answer: &HeartbeatAnswer) -> bool {
        let registered = self.durable.incarnation.as_deref() != Some(answer.incarnation.as_str());
        if registered {
            self.register_anew();
            self.durable.incarnation = Some(answer.incarnation.clone());
            self.durable.wiped_at = self.durable.wiped_at.min(answer.seq);
        }
        self.complete_due |= answer.must_report;
        // From before what it must know of: taken or not, it would not open the gate.
        self.in_flight.take_if(|report| answer.must_report && report.as_of < answer.seq);
        self.on_orders(answer.seq, answer.allocs.as_deref());
        registered
    }

    /// Forgets the registration, but not what runs.
    pub fn register_anew(&mut self) {
        self.durable.register_anew();
        self.in_flight = None;
        self.delivered.clear();
        self.complete_due = true;
    }

    /// Takes over a list of orders. An answer without one means that ours is current.
    fn on_orders(&mut self, seq: u64, orders: Option<&[AllocOrder]>) {
        let Some(orders) = orders else { return };
        for order in orders {
            // What a restored table has forgotten is told again.
            if let Some(delivered) = self.delivered.get_mut(&order.alloc_id) {
                *delivered = order.client;
            }
        }
        if orders::apply(&mut self.durable, seq, orders) == Applied::SomeMissing {
            self.complete_due = true;
        }
        self.forget_dropped();
    }

    /// Every alloc that has something to be done about it.
    pub fn work(&self) -> Vec<Work> {
        let todo = self.durable.allocs.iter().filter_map(|(id, alloc)| match (self.seen(*id), alloc.stop_reason()) {
            (Seen::Ended(_) | Seen::Gone, _) | (Seen::Running, None) => None,
            (Seen::Pending | Seen::Running, Some(why)) => Some(Work::Stop(alloc.order.clone(), why.to_owned())),
            (Seen::Pending, None) => Some(Work::Run(alloc.order.clone())),
        });
        todo.collect()
    }

    /// How an alloc was last seen.
    pub fn seen(&self, id: AllocId) -> &Seen {
        self.seen.get(&id).unwrap_or(&Seen::Pending)
    }

    /// The allocs that have not ended.
    pub fn unfinished(&self) -> Vec<AllocId> {
        self.durable.allocs.keys().copied().filter(|id| !matches!(self.seen(*id), Seen::Ended(_))).collect()
    }

    /// Takes over how an alloc is. An end is final. Says whether that is news.
    pub fn observe(&mut self, id: AllocId, seen: Seen) -> bool {
        if !self.durable.allocs.contains_key(&id) || matches!(self.seen(id), Seen::Ended(_)) || *self.seen(id) == seen {
            return false;
        }
        if seen == Seen::Gone {
            self.forget(id);
            self.tell_missing();
            return true;
        }
        self.seen.insert(id, seen);
        self.forget_dropped();
        true
    }

    /// Stops all work on the agent's own account, and answers how much there was left to
    /// stop. Not undone by anything.
    pub fn stop_all(&mut self, why: &str) -> usize {
        let mut stopped = 0;
        for id in self.unfinished() {
            if let Some(alloc) = self.durable.allocs.get_mut(&id).filter(|a| a.stop_reason().is_none()) {
                alloc.stop = Some(why.to_owned());
                stopped += 1;
            }
        }
        stopped
    }

    /// The report to send now, if there is anything to say: the one whose fate is not known,
    /// else a complete one if due, else what changed. [`Node::durable`] must be saved before
    /// it is sent.
    pub fn report(&mut self) -> Option<AllocReport> {
        if let Some(report) = &self.in_flight {
            return Some(report.clone());
        }
        let incarnation = self.durable.incarnation.clone()?;
        let as_of = self.durable.as_of;
        let complete = self.complete_due;
        let listed: Vec<AllocId> = self.to_say().collect();
        if !complete && listed.is_empty() {
            return None;
        }
        let tail_limit = MAX_LOG_TAIL_BYTES.min(MAX_REPORT_LOG_BYTES / listed.len().max(1));
        let allocs = listed.into_iter().map(|id| self.update(id, tail_limit)).collect();
        self.durable.report_no += 1;
        let report = AllocReport { incarnation, report_no: self.durable.report_no, as_of, complete, allocs };
        self.in_flight = Some(report.clone());
        Some(report)
    }

    /// Whether [`Node::report`] has something to say.
    pub fn has_report(&self) -> bool {
        let registered = self.durable.incarnation.is_some();
        self.in_flight.is_some() || (registered && (self.complete_due || self.to_say().next().is_some()))
    }

    /// The allocs that a report made now would list.
    fn to_say(&self) -> impl Iterator<Item = AllocId> {
        let changed = |id: &AllocId| self.delivered_status(*id) != self.seen(*id).client();
        let told = |a: &LocalAlloc| !a.dropped || a.relisted;
        let listed = self.durable.allocs.iter().filter(move |(id, a)| told(a) && (self.complete_due || changed(id)));
        listed.map(|(id, _)| *id)
    }

    fn update(&self, alloc_id: AllocId, tail_limit: usize) -> AllocUpdate {
        let seen = self.seen(alloc_id);
        let end = if let Seen::Ended(end) = seen { end.clone() } else { Ended::default() };
        AllocUpdate {
            alloc_id,
            client: seen.client(),
            exit_code: end.exit_code,
            message: end.message.map(|m| m.chars().take(MAX_MESSAGE_CHARS).collect()),
            log_tail: end.log_tail.map(|t| tail(&t, tail_limit).to_owned()),
        }
    }

    fn delivered_status(&self, id: AllocId) -> ClientStatus {
        self.delivered.get(&id).copied().unwrap_or(ClientStatus::Pending)
    }

    /// Takes over the answer to the report in flight. What was refused is answered for as
    /// well: an end is told once.
    pub fn on_report(&mut self, answer: &AllocReportAnswer) {
        let Some(report) = self.in_flight.take() else { return };
        if report.complete {
            self.complete_due = false;
        }
        let refused = answer.refused.iter().map(|r| r.alloc_id);
        let answered: BTreeSet<AllocId> = answer.accepted.iter().copied().chain(refused).collect();
        for update in &report.allocs {
            self.delivered.insert(update.alloc_id, update.client);
            // `running` taken over is no receipt for the end that came since.
            if update.client.is_final() && answered.contains(&update.alloc_id) {
                self.forget(update.alloc_id);
            }
        }
        self.on_orders(answer.seq, answer.allocs.as_deref());
    }

    /// The report in flight was refused as a whole, so its number and body are spent. Codes
    /// that leave its fate open change nothing: it is sent again.
    pub fn on_report_refused(&mut self, code: ErrorCode) {
        match code {
            ErrorCode::WrongIncarnation => self.register_anew(),
            // The control plane saw a later number than ours: what it holds may be older, so
            // everything is told again.
            ErrorCode::StaleReport => {
                self.in_flight = None;
                self.complete_due = true;
            }
            // A changed node: the body's `as_of` is from before the heartbeat to come.
            ErrorCode::NotReady | ErrorCode::ForeignInstance | ErrorCode::BadRequest | ErrorCode::TooLarge => {
                self.in_flight = None;
            }
            ErrorCode::Unauthorized
            | ErrorCode::NotFound
            | ErrorCode::MethodNotAllowed
            | ErrorCode::Gone
            | ErrorCode::Internal
            | ErrorCode::Busy => {}
        }
    }

    /// A report of these handles, listed after `as_of` was read. None while unregistered.
    /// [`Node::durable`] must be saved before it is sent.
    pub fn handle_report(&mut self, as_of: u64, complete: bool, handles: Vec<ReportedHandle>) -> Option<HandleReport> {
        let incarnation = self.durable.incarnation.clone()?;
        self.durable.handle_report_no += 1;
        Some(HandleReport { incarnation, report_no: self.durable.handle_report_no, as_of, complete, handles })
    }

    fn forget_dropped(&mut self) {
        let over = |id: &AllocId| matches!(self.seen(*id), Seen::Ended(_));
        let gone = self.durable.allocs.iter().filter(|(id, a)| a.dropped && over(id)).map(|(id, a)| (*id, a.relisted));
        for (id, relisted) in gone.collect::<Vec<_>>() {
            self.forget(id);
            if relisted {
                self.tell_missing();
            }
        }
    }

    /// A complete report is due. What is under way may still list what is missing: not the report that
    /// says so.
    fn tell_missing(&mut self) {
        self.in_flight = None;
        self.complete_due = true;
    }

    fn forget(&mut self, id: AllocId) {
        self.durable.allocs.remove(&id);
        self.seen.remove(&id);
        self.delivered.remove(&id);
    }
}

/// The last at most `limit` bytes of `text`, in whole characters.
pub fn tail(text: &str, limit: usize) -> &str {
    let start = (text.len().saturating_sub(limit)..=text.len()).find(|i| text.is_char_boundary(*i));
    start.and_then(|i| text.get(i..)).unwrap_or_default()
}

#[cfg(test)]
pub(crate) mod testing {
    //! Values the tests of several modules start from.
    use super::*;
    use shared::ids::JobId;

    pub(crate) fn node_id() -> NodeId {
        "3-01JD0000000000000000000000".parse().unwrap()
    }

    pub(crate) fn durable() -> Durable {
        Durable { wiped_at: 0, ..Durable::new(node_id(), "boot-1".into()) }
    }

    pub(crate) fn alloc_id(copy: u32) -> AllocId {
        AllocId { job_id: JobId::new(ulid::Ulid::from_parts(1, 1)), member: 0, copy }
    }

    pub(crate) fn order(copy: u32, placed_seq: u64) -> AllocOrder {
        AllocOrder {
            alloc_id: alloc_id(copy),
            desired: Desired::Run,
            client: ClientStatus::Pending,
            placed_seq,
            command: vec!["true".into()],
            env: BTreeMap::new(),
            image: None,
            caches: Vec::new(),
            timeout_s: 0,
            kill_timeout_s: 30,
            memory_mib: 0,
            vcpus: 1,
            nodes: 1,
            hosts: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests;
