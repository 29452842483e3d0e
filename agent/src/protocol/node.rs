//! A node as its agent knows it: the next heartbeat, the next report, and what is to be done on the machine.
//!
//! Guarantees: an end is final; an alloc is forgotten only when its end was acknowledged, or when the control plane
//! has dropped it; a report whose fate is unknown is sent again unchanged.
//! Does not: start or stop anything, or save itself.

use super::gpus::{Gpu, sick};
use super::handles::{HandleList, HandleRound, SettledHandles};
use super::orders::{self, Durable, LocalAlloc};
use model::wire::{
    AllocOrder, AllocReport, AllocReportAnswer, AllocUpdate, CUT, ErrorCode, HandleReport, HandleReportAnswer,
    Heartbeat, HeartbeatAnswer, MAX_LOG_TAIL_BYTES, MAX_TAIL_SWITCHES, NodeHealth, OrderList,
};
use model::{AllocId, Checkpoint, ClientStatus, EndCause, Ending, Intent, NodeStatus, RunReport, Time};
use std::collections::{BTreeMap, BTreeSet};

/// The longest log text in one report, over all its allocs, in bytes. JSON escapes may make the text six times as long,
/// and the body must stay well below [`model::wire::MAX_BODY_BYTES`].
const MAX_REPORT_LOG_BYTES: usize = 256 * 1024;

/// The most packs in one report. The results of one pack take up to about 30 KB.
const MAX_REPORT_PACKS: usize = 32;

/// How many reports get their numbers with one write to the disk.
const NUMBERS: u64 = 64;

/// The state of an alloc when the agent last checked the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Observed {
    #[default]
    Pending,
    /// The supervisor of the alloc runs, and its command has not been started.
    Preparing,
    /// The command of the alloc runs, or its outputs are stored.
    Running,
    Ended(Box<Ending>),
}

/// What a node reports of an alloc that has not ended, besides its status.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllocProgress {
    /// What the node does for the alloc before its command runs or after it, if that lasts.
    pub phase: Option<String>,
    pub run: RunReport,
}

/// What the agent knows of an alloc besides its order. It is not saved.
#[derive(Clone, Debug, Default)]
struct AllocState {
    observed: Observed,
    progress: AllocProgress,
    /// The status and the progress that the control plane certainly knows. Without them, it knows the order.
    delivered: Option<(ClientStatus, AllocProgress)>,
    /// Whether its last update was neither taken nor refused, because its row cannot be read now. It is reported again
    /// after the next heartbeat.
    is_untaken: bool,
}

impl AllocState {
    /// Whether the control plane does not know the whole state of the alloc yet.
    fn is_news(&self) -> bool {
        let order = (ClientStatus::Pending, AllocProgress::default());
        let (client, progress) = self.delivered.as_ref().unwrap_or(&order);
        // The report of an end says all of the progress.
        let has_progress = !matches!(self.observed, Observed::Ended(_)) && self.progress != *progress;
        self.observed.client() != *client || has_progress
    }
}

/// Why a node takes no work.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refusals {
    /// Jobs could reach the instance metadata, or nobody knows whether they can.
    pub metadata: Option<String>,
    pub starts: Option<String>,
}

impl Refusals {
    /// The reason for the heartbeat; `None` if the node takes work.
    pub fn reason(&self) -> Option<&str> {
        self.metadata.as_deref().or(self.starts.as_deref())
    }
}

impl Observed {
    fn client(&self) -> ClientStatus {
        match self {
            Self::Pending | Self::Preparing => ClientStatus::Pending,
            Self::Running => ClientStatus::Running,
            Self::Ended(end) => end.cause.client(),
        }
    }
}

/// Something to do on the machine, derived anew each time from the orders and the states of the allocs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MachineTask {
    /// Start the alloc, unless it was started before.
    Run(AllocOrder),
    /// Stop the alloc, for this reason, and never start it.
    Stop(AllocOrder, String),
}

/// Which instance this is. It does not change while the agent runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub instance_id: String,
    /// The address at which other members of a job reach this node.
    pub address: Option<String>,
}

#[derive(Clone, Debug)]
pub struct Node {
    pub identity: Identity,
    pub durable: Durable,
    /// What the heartbeats say of the node, besides what it refuses and its GPUs.
    pub health: NodeHealth,
    /// When EC2 will interrupt the instance; `None` if EC2 has announced no interruption.
    pub interrupt_at: Option<Time>,
    /// What the operator wants of the node, by the last answer.
    intent: Intent,
    /// Whether the node is ready, by the last answer.
    pub is_ready: bool,
    /// The uptime of the machine until which its heartbeats only ask, as the last answer says.
    ask_until_ms: Option<u64>,
    pub refuses: Refusals,
    pub gpus: Vec<Gpu>,
    /// The running allocs that cannot be ended.
    pub unended: BTreeSet<AllocId>,
    /// The handles as the control plane last settled them; `None` if a report is due.
    settled_handles: Option<SettledHandles>,
    /// How often a report was made due although the handles had not changed.
    handle_turn: u64,
    /// An alloc without an entry has the state of a new one.
    states: BTreeMap<AllocId, AllocState>,
    complete_due: bool,
    /// The number of the last alloc report.
    report_no: u64,
    /// The report that was sent and not answered yet.
    in_flight: Option<AllocReport>,
}

impl Node {
    /// A node that starts from the state on disk. Its first report is a complete one.
    pub fn new(identity: Identity, durable: Durable) -> Self {
        Self {
            identity,
            report_no: durable.report_no,
            durable,
            health: NodeHealth::default(),
            interrupt_at: None,
            intent: Intent::Run,
            is_ready: false,
            ask_until_ms: None,
            refuses: Refusals { metadata: None, starts: None },
            gpus: Vec::new(),
            unended: BTreeSet::new(),
            settled_handles: None,
            handle_turn: 0,
            states: BTreeMap::new(),
            complete_due: true,
            in_flight: None,
        }
    }

    /// The heartbeat of a machine that has been up for so long.
    pub fn heartbeat(&self, uptime_ms: Option<u64>) -> Heartbeat {
        let unended: Vec<String> = self.unended.iter().map(|id| format!("alloc {id}")).collect();
        Heartbeat {
            instance_id: self.identity.instance_id.clone(),
            boot_id: self.durable.boot_id.clone(),
            incarnation: self.durable.incarnation.clone(),
            // Some orders of the last list could not be read: an older number makes the control plane send the list again.
            as_of: self.durable.as_of.saturating_sub(u64::from(!self.durable.unreadable.is_empty())),
            address: self.identity.address.clone(),
            interrupt_at: self.interrupt_at,
            health: NodeHealth {
                refuses: self.refuses.reason().map(str::to_owned),
                gpus_usable: u32::try_from(self.gpus.iter().filter(|gpu| gpu.is_usable()).count()).unwrap_or(u32::MAX),
                gpus_sick: sick(&self.gpus),
                unended: (!unended.is_empty()).then(|| unended.join(", ")),
                ..self.health.clone()
            },
            uptime_ms,
            handles: self.settled_handles.as_ref().map(|settled| settled.text.clone()),
            asks: uptime_ms.zip(self.ask_until_ms).is_some_and(|(uptime, until)| uptime < until),
        }
    }

    /// Applies the answer to a heartbeat. Returns whether the answer registered the node.
    pub fn on_heartbeat(&mut self, answer: &HeartbeatAnswer) -> bool {
        let registered = self.durable.incarnation.as_deref() != Some(answer.incarnation.as_str());
        if registered {
            self.register_anew();
            self.durable.incarnation = Some(answer.incarnation.clone());
            self.durable.wiped_at = self.durable.wiped_at.min(answer.seq);
        }
        for state in self.states.values_mut() {
            if std::mem::take(&mut state.is_untaken) {
                state.delivered = None;
            }
        }
        self.complete_due |= answer.must_report;
        self.intent = answer.intent;
        self.is_ready = answer.status == NodeStatus::Ready;
        self.ask_until_ms = answer.ask_until_ms;
        self.settled_handles.take_if(|_| answer.report_handles);
        // Gives up a report in flight with an older `as_of`, because it does not make the node ready, even if it was
        // accepted.
        self.in_flight.take_if(|report| answer.must_report && report.as_of < answer.seq);
        self.on_orders(answer.seq, answer.orders.as_ref());
        registered
    }

    /// Forgets the registration. Running allocs go on.
    pub fn register_anew(&mut self) {
        self.durable.register_anew();
        self.report_no = 0;
        self.ask_until_ms = None;
        self.settled_handles = None;
        self.in_flight = None;
        self.states.values_mut().for_each(|state| state.delivered = None);
        self.complete_due = true;
    }

    /// Applies a list of orders. An answer without a list means that the node has the current one.
    fn on_orders(&mut self, seq: u64, list: Option<&OrderList>) {
        let Some(list) = list else { return };
        for status in list.allocs.iter().map(AllocOrder::status).chain(list.others.iter().copied()) {
            // The list shows what the control plane knows. After a restore it may show less than was delivered.
            let state = self.states.get_mut(&status.alloc_id);
            if let Some((client, _)) = state.and_then(|state| state.delivered.as_mut()) {
                *client = status.client;
            }
        }
        self.complete_due |= orders::apply(&mut self.durable, seq, list);
        self.forget_dropped();
    }

    pub fn work(&self) -> Vec<MachineTask> {
        let todo =
            self.durable.allocs.iter().filter_map(|(id, alloc)| match (self.observed(*id), alloc.stop_reason()) {
                (Observed::Ended(_), _) | (Observed::Preparing | Observed::Running, None) => None,
                (Observed::Pending | Observed::Preparing | Observed::Running, Some(why)) => {
                    let why = if self.interrupt_at.is_some() { "stopped: EC2 takes its instance" } else { why };
                    Some(MachineTask::Stop(alloc.order.clone(), why.to_owned()))
                }
                (Observed::Pending, None) => Some(MachineTask::Run(alloc.order.clone())),
            });
        todo.collect()
    }

    /// The running allocs with checkpoints that will end with the node: EC2 interrupts the instance, or the node is drained and they
    /// must stop.
    pub fn leaving(&self) -> Vec<AllocId> {
        let is_drained = |alloc: &LocalAlloc| self.intent == Intent::Drain && alloc.stop_reason().is_some();
        let goes = |alloc: &LocalAlloc| self.interrupt_at.is_some() || is_drained(alloc);
        let keeps = |alloc: &LocalAlloc| alloc.order.work.keep.is_some();
        let runs = self.durable.allocs.iter().filter(|(id, _)| *self.observed(**id) == Observed::Running);
        runs.filter(|(_, alloc)| keeps(alloc) && goes(alloc)).map(|(id, _)| *id).collect()
    }

    pub fn observed(&self, id: AllocId) -> &Observed {
        self.states.get(&id).map_or(&Observed::Pending, |state| &state.observed)
    }

    /// Every alloc that has not ended.
    pub fn unfinished(&self) -> Vec<AllocId> {
        self.durable.allocs.keys().copied().filter(|id| !matches!(self.observed(*id), Observed::Ended(_))).collect()
    }

    /// Applies the state of an alloc. An end is final. Returns whether anything changed.
    pub fn observe(&mut self, id: AllocId, seen: Observed) -> bool {
        let seen = self.judged(id, seen);
        if !self.durable.allocs.contains_key(&id)
            || matches!(self.observed(id), Observed::Ended(_))
            || *self.observed(id) == seen
            || (*self.observed(id) == Observed::Running && seen == Observed::Preparing)
        {
            return false;
        }
        self.states.entry(id).or_default().observed = seen;
        self.forget_dropped();
        true
    }

    /// Whether this progress of an alloc differs from the last one that was noted.
    pub fn has_news(&self, id: AllocId, progress: &AllocProgress) -> bool {
        let none = AllocProgress::default();
        let noted = self.states.get(&id).map_or(&none, |state| &state.progress);
        self.durable.allocs.contains_key(&id) && noted != progress
    }

    /// The checkpoint of an alloc that the control plane has certainly taken last.
    pub fn taken_checkpoint(&self, id: AllocId) -> Option<Checkpoint> {
        let state = self.states.get(&id).filter(|state| !state.is_untaken)?;
        state.delivered.as_ref()?.1.run.checkpoint.clone()
    }

    pub fn observe_progress(&mut self, id: AllocId, progress: AllocProgress) {
        if self.has_news(id, &progress) {
            self.states.entry(id).or_default().progress = progress;
        }
    }

    /// An alloc that the agent stopped on its own decision is lost: nobody ordered it, and its command did not end by itself.
    fn judged(&self, id: AllocId, seen: Observed) -> Observed {
        let own = self.durable.allocs.get(&id).and_then(|alloc| alloc.stop.as_ref());
        match (seen, own) {
            (Observed::Ended(mut end), Some(_)) if matches!(end.cause, EndCause::Stopped { .. }) => {
                if let EndCause::Stopped { why, .. } = end.cause {
                    end.cause = EndCause::Lost { why };
                }
                Observed::Ended(end)
            }
            (seen, _) => seen,
        }
    }

    /// Stops all allocs on the agent's own decision, and returns how many were not stopping before. Nothing undoes
    /// this.
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

    /// The report to send now: the report in flight if there is one; else a complete report if one is due; else a
    /// report of the changes. `None` if there is nothing to report or the node is not registered. [`Node::durable`]
    /// must be saved before the report is sent.
    pub fn report(&mut self) -> Option<AllocReport> {
        if let Some(report) = &self.in_flight {
            return Some(report.clone());
        }
        let incarnation = self.durable.incarnation.clone()?;
        let as_of = self.durable.as_of;
        let complete = self.complete_due;
        let listed: Vec<AllocId> = self.to_report().collect();
        if !complete && listed.is_empty() {
            return None;
        }
        let tail_limit = MAX_LOG_TAIL_BYTES.min(MAX_REPORT_LOG_BYTES / listed.len().max(1));
        let mut packs = 0..MAX_REPORT_PACKS;
        let allocs = listed.into_iter().map(|id| self.update(id, tail_limit, &mut packs)).collect();
        self.report_no += 1;
        self.durable.report_no = self.report_no.next_multiple_of(NUMBERS);
        let report = AllocReport { incarnation, report_no: self.report_no, as_of, complete, allocs };
        self.in_flight = Some(report.clone());
        Some(report)
    }

    /// Whether [`Node::report`] would return a report.
    pub fn has_report(&self) -> bool {
        let registered = self.durable.incarnation.is_some();
        self.in_flight.is_some() || (registered && (self.complete_due || self.to_report().next().is_some()))
    }

    /// The allocs that a report made now would list.
    fn to_report(&self) -> impl Iterator<Item = AllocId> {
        let changed = |id: &AllocId| self.states.get(id).is_some_and(AllocState::is_news);
        let reported = |a: &LocalAlloc| !a.dropped || a.relisted;
        let listed =
            self.durable.allocs.iter().filter(move |(id, a)| reported(a) && (self.complete_due || changed(id)));
        listed.map(|(id, _)| *id)
    }

    /// What a report says of an alloc. `packs` has an entry for each pack for which the report still has room.
    fn update(&self, alloc_id: AllocId, tail_limit: usize, packs: &mut std::ops::Range<usize>) -> AllocUpdate {
        let has_elements = self.durable.allocs.get(&alloc_id).is_some_and(|alloc| alloc.order.work.pack.is_some());
        let has_room = !has_elements || packs.next().is_some();
        let seen = match self.observed(alloc_id) {
            // The report has no room for the end of this pack: the next report has it.
            Observed::Ended(_) if !has_room => &Observed::Running,
            seen => seen,
        };
        let progress = self.states.get(&alloc_id).filter(|_| has_room).map(|state| state.progress.clone());
        let AllocProgress { phase, run } = progress.unwrap_or_default();
        let new = AllocUpdate { alloc_id, client: seen.client(), cause: None, phase, run };
        let Observed::Ended(end) = seen else { return new };
        let Ending { cause, mut run } = (**end).clone();
        shorten(&mut run, tail_limit);
        AllocUpdate { cause: Some(cause.clipped()), phase: None, run, ..new }
    }

    /// Applies the answer to the report in flight. A refused alloc is acknowledged as well: its end is not reported
    /// again.
    pub fn on_report(&mut self, answer: &AllocReportAnswer) {
        let Some(report) = self.in_flight.take() else { return };
        self.is_ready = answer.status == NodeStatus::Ready;
        if report.complete {
            self.complete_due = false;
        }
        let refused = answer.refused.iter().map(|r| r.alloc_id);
        let acknowledged: BTreeSet<AllocId> = answer.accepted.iter().copied().chain(refused).collect();
        for update in &report.allocs {
            let state = self.states.entry(update.alloc_id).or_default();
            let progress = AllocProgress { phase: update.phase.clone(), run: update.run.clone() };
            state.delivered = Some((update.client, progress));
            state.is_untaken |= !acknowledged.contains(&update.alloc_id);
            // An acknowledged `running` says nothing about an end that came later.
            if update.client.is_final() && acknowledged.contains(&update.alloc_id) {
                self.forget(update.alloc_id);
            }
        }
        self.on_orders(answer.seq, answer.orders.as_ref());
    }

    /// Applies the refusal of the whole report in flight: the next report is a new one with a new number. But after a
    /// code that does not show whether the report was applied, the same report is sent again.
    pub fn on_report_refused(&mut self, code: ErrorCode) {
        match code {
            ErrorCode::WrongIncarnation => self.register_anew(),
            // The control plane has seen a higher number. What it stored is not known, so everything is reported
            // again.
            ErrorCode::StaleReport => {
                self.in_flight = None;
                self.complete_due = true;
            }
            // The next report is made anew, because a heartbeat comes first, and the old body has an `as_of` from
            // before that heartbeat.
            ErrorCode::NotReady | ErrorCode::ForeignInstance | ErrorCode::BadRequest | ErrorCode::TooLarge => {
                self.in_flight = None;
            }
            _ => {}
        }
    }

    /// A report of these handles, which were listed after `as_of` was read. `None` if exactly these handles are settled.
    pub fn handle_round(&self, as_of: u64, list: HandleList) -> Option<HandleRound> {
        HandleRound::new(as_of, list, self.handle_turn, self.settled_handles.as_ref())
    }

    /// The report to send. `None` if the node is not registered. The caller must save [`Node::durable`] before it sends the report.
    pub fn handle_report(&mut self, round: &HandleRound) -> Option<HandleReport> {
        let incarnation = self.durable.incarnation.clone()?;
        self.durable.handle_report_no = self.durable.handle_report_no.saturating_add(1);
        Some(round.report(incarnation, self.durable.handle_report_no))
    }

    /// Remembers what a report has settled.
    pub fn end_handle_round(&mut self, round: &HandleRound, answer: &HandleReportAnswer) {
        self.settled_handles = round.settled(answer);
    }

    /// Makes a report of handles due, even if they have not changed. The control plane judges them anew.
    pub fn report_handles_again(&mut self) {
        self.settled_handles = None;
        self.handle_turn = self.handle_turn.wrapping_add(1);
    }

    /// Forgets every dropped alloc that has ended.
    fn forget_dropped(&mut self) {
        let has_ended = |id: &AllocId| matches!(self.observed(*id), Observed::Ended(_));
        let dropped = self.durable.allocs.iter().filter(|(id, alloc)| alloc.dropped && has_ended(id));
        for (id, relisted) in dropped.map(|(id, alloc)| (*id, alloc.relisted)).collect::<Vec<_>>() {
            self.forget(id);
            if relisted {
                self.report_missing();
            }
        }
    }

    /// Makes a complete report due: an alloc that it does not list is lost. A report in flight may still list the
    /// alloc, so that report is not repeated.
    fn report_missing(&mut self) {
        self.in_flight = None;
        self.complete_due = true;
    }

    fn forget(&mut self, id: AllocId) {
        self.durable.allocs.remove(&id);
        self.states.remove(&id);
    }
}

/// Cuts a `log_tail` that is longer than `limit` bytes, or has too many switches, down to its end, after the mark `CUT`.
fn shorten(run: &mut RunReport, limit: usize) {
    let Some(text) = run.log_tail.as_deref() else { return };
    let begin = run.tail_switches.begin_of_last(MAX_TAIL_SWITCHES);
    if text.len() <= limit && begin == 0 {
        return;
    }
    let last = usize::try_from(begin).ok().and_then(|begin| text.get(begin..)).unwrap_or(text);
    let kept = tail(last, limit.saturating_sub(CUT.len_utf8()));
    let cut = text.len().saturating_sub(kept.len());
    run.tail_switches = run.tail_switches.part(cut as u64, CUT.len_utf8() as u64);
    run.log_tail = Some(format!("{CUT}{kept}"));
}

/// The end of `text`, in whole characters: at most `limit` bytes.
pub fn tail(text: &str, limit: usize) -> &str {
    let start = (text.len().saturating_sub(limit)..=text.len()).find(|i| text.is_char_boundary(*i));
    start.and_then(|i| text.get(i..)).unwrap_or_default()
}
