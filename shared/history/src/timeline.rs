//! The lives of the nodes: when each was there, as what, at which price, and in which phase.
//!
//! Guarantees: the lives of a slot never overlap, because a node has at most one instance and a slot one node. The record
//! decides whether the last life is over. A life whose end was not told ends with the next one. The events may begin in the middle
//! of a life.
//! Does not: know when EC2 began or stopped to charge. A life is counted from its launch to its end in the table.

use super::uses::{Use, union};
use model::events::PastLife;
use model::{ActionName, Event, Intent, NodeId, NodeRecord, NodeState, NodeStatus, Slot, Time, Usd};
use serde::Serialize;
use std::collections::BTreeMap;

/// One thing that happened to the node of a slot.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum NodeStep {
    /// A life begins, of this size.
    Launch(Option<String>),
    /// The launch came to nothing: there was no instance.
    Abandon,
    /// The node takes work.
    Ready,
    /// A heartbeat that changed the record.
    Heard,
    Silent,
    Going,
    /// The life is over.
    Clean(Option<Box<PastLife>>),
    /// An operator said so.
    Intent(Intent),
}

/// What happened to the nodes of each slot, as the events tell it.
pub(super) fn steps(events: Vec<Event>) -> BTreeMap<Slot, Vec<(Time, NodeStep)>> {
    let mut slots: BTreeMap<Slot, Vec<(Time, NodeStep)>> = BTreeMap::new();
    for event in events {
        let step = match event.action.parse() {
            Ok(ActionName::Launch) => {
                NodeStep::Launch(event.detail.get("size").and_then(|size| Some(size.as_str()?.to_owned())))
            }
            Ok(ActionName::Abandon) => NodeStep::Abandon,
            Ok(ActionName::Ready) => NodeStep::Ready,
            Ok(ActionName::Heartbeat) => NodeStep::Heard,
            Ok(ActionName::Disconnect | ActionName::MarkDown) => NodeStep::Silent,
            Ok(ActionName::ShutDown | ActionName::Terminate) => NodeStep::Going,
            Ok(ActionName::Clean) => NodeStep::Clean(event.life().map(Box::new)),
            Ok(ActionName::Hold) => NodeStep::Intent(Intent::Hold),
            Ok(ActionName::Drain) => NodeStep::Intent(Intent::Drain),
            Ok(ActionName::Resume) => NodeStep::Intent(Intent::Run),
            _ => continue,
        };
        let slot = event.subject.strip_prefix("slot#").and_then(|slot| slot.parse().ok());
        if let Some(slot) = slot.and_then(|number| Slot::new(number).ok()) {
            slots.entry(slot).or_default().push((event.at(), step));
        }
    }
    slots
}

/// How a node is at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Launched, and not ready yet.
    Booting,
    /// Ready, with allocs.
    Working,
    /// Ready, without allocs.
    Idle,
    /// Its lease is over.
    Silent,
    /// Its instance is being terminated.
    Going,
}

impl Phase {
    /// Every phase, in the order in which people look for them.
    pub const ALL: [Self; 5] = [Self::Working, Self::Idle, Self::Booting, Self::Silent, Self::Going];
}

/// One life of a slot.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeLifetime {
    pub slot: Slot,
    /// `None` if no event and no record names it.
    pub node_id: Option<NodeId>,
    pub size: Option<String>,
    pub instance_type: Option<String>,
    pub market: Option<String>,
    /// `None` if nothing says what it cost.
    pub price: Option<Usd>,
    pub from: Time,
    /// `None` while it lasts.
    pub to: Option<Time>,
    /// The phases and when they began, in the order of time. [`Phase::Idle`] stands for both phases of a ready node.
    phases: Vec<(Time, Phase)>,
    /// The intents that operators set, and when.
    pub(crate) intents: Vec<(Time, Intent)>,
    /// 0 if not known.
    pub vcpus: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PhaseSegment {
    pub phase: Phase,
    pub from: Time,
    pub to: Time,
}

impl NodeLifetime {
    fn begin(slot: Slot, from: Time, size: Option<String>, prices: &BTreeMap<String, Usd>) -> Self {
        let price = size.as_ref().and_then(|size| prices.get(size).copied());
        let phases = vec![(from, Phase::Booting)];
        Self {
            slot,
            node_id: None,
            size,
            instance_type: None,
            market: None,
            price,
            from,
            to: None,
            phases,
            intents: Vec::new(),
            vcpus: 0,
        }
    }

    /// A life whose first known step is this one: its launch was earlier, or left no event.
    fn begin_before(slot: Slot, at: Time, step: &NodeStep) -> Self {
        let mut life = Self::begin(slot, at, None, &BTreeMap::new());
        if matches!(step, NodeStep::Silent | NodeStep::Going | NodeStep::Clean(_)) {
            life.phases = vec![(at, Phase::Idle)];
        }
        life
    }

    /// When it first took work.
    pub(crate) fn ready_at(&self) -> Option<Time> {
        self.phases.iter().find(|(_, phase)| *phase == Phase::Idle).map(|(at, _)| *at)
    }

    /// Whether the life is over, or ends now, and never took work.
    pub(crate) fn never_worked(&self) -> bool {
        self.ready_at().is_none() && (self.to.is_some() || self.phase() == Phase::Going)
    }

    fn phase(&self) -> Phase {
        self.phases.last().map_or(Phase::Booting, |(_, phase)| *phase)
    }

    fn becomes(&mut self, phase: Phase, at: Time) {
        if self.phase() != phase {
            // A record may be older than the newest event.
            let at = self.phases.last().map_or(at, |(last, _)| at.max(*last));
            self.phases.push((at, phase));
        }
    }

    fn ends(&mut self, at: Time, ended: Option<PastLife>) {
        if let Some(ended) = ended {
            self.is(ended);
        }
        self.to = Some(at.max(self.from));
    }

    /// Takes over what is known of the life.
    fn is(&mut self, known: PastLife) {
        let PastLife { node_id, size, instance_type, market, price_per_hour, assigned_at } = known;
        (self.node_id, self.size, self.instance_type) = (Some(node_id), Some(size), Some(instance_type));
        (self.market, self.price, self.from) = (Some(market), Some(price_per_hour), assigned_at);
        if let Some(first) = self.phases.first_mut() {
            first.0 = assigned_at;
        }
        self.phases.iter_mut().for_each(|(at, _)| *at = assigned_at.max(*at));
    }

    /// The phases between two moments, in the order of time.
    pub fn segments(&self, uses: &[Use], from: Time, to: Time) -> Vec<PhaseSegment> {
        let (begin, end) = (self.from.max(from), self.to.unwrap_or(to).min(to));
        let busy = union(uses);
        let mut segments = Vec::new();
        let nexts = self.phases.iter().skip(1).map(|(at, _)| *at).chain([end]);
        for ((at, phase), next) in self.phases.iter().zip(nexts) {
            let (at, next) = ((*at).max(begin), next.min(end));
            if *phase == Phase::Idle {
                split(&mut segments, &busy, at, next);
            } else if next > at {
                segments.push(PhaseSegment { phase: *phase, from: at, to: next });
            }
        }
        segments
    }
}

/// Splits a time of a ready node into working and idle.
fn split(segments: &mut Vec<PhaseSegment>, busy: &[(Time, Time)], from: Time, to: Time) {
    let mut at = from;
    let mut add = |phase, from: Time, to: Time| {
        if to > from {
            segments.push(PhaseSegment { phase, from, to });
        }
    };
    for (begin, end) in busy {
        let (begin, end) = ((*begin).max(at).min(to), (*end).min(to));
        if end <= at {
            continue;
        }
        add(Phase::Idle, at, begin);
        add(Phase::Working, begin, end);
        at = at.max(end);
    }
    add(Phase::Idle, at, to);
}

/// All lives that were not over at `from`.
pub(super) fn of(
    slots: BTreeMap<Slot, Vec<(Time, NodeStep)>>,
    records: &[NodeRecord],
    prices: &BTreeMap<String, Usd>,
    from: Time,
    now: Time,
) -> Vec<NodeLifetime> {
    let records: BTreeMap<Slot, &NodeRecord> = records.iter().map(|r| (r.slot, r)).collect();
    let mut lives = Vec::new();
    for (slot, steps) in slots {
        replay(&mut lives, slot, steps, prices);
    }
    let (mut lives, open): (Vec<_>, Vec<NodeLifetime>) = lives.into_iter().partition(|life| life.to.is_some());
    let mut open: BTreeMap<Slot, NodeLifetime> = open.into_iter().map(|life| (life.slot, life)).collect();
    for (slot, record) in &records {
        match (record.life(), open.remove(slot)) {
            (Some(life), last) => {
                let mut last = last.filter(|last| {
                    // An event of a launch is written after the slot was assigned: this is an older life.
                    let older = last.from < life.assigned_at;
                    if older {
                        lives.push(NodeLifetime { to: Some(life.assigned_at), ..last.clone() });
                    }
                    !older
                });
                let mut known =
                    last.take().unwrap_or_else(|| NodeLifetime::begin(*slot, life.assigned_at, None, prices));
                known.is(PastLife::from(life));
                as_recorded(&mut known, record);
                lives.push(known);
            }
            (None, Some(last)) => lives.push(NodeLifetime { to: Some(record.modified_at.max(last.from)), ..last }),
            (None, None) => {}
        }
    }
    // The records of these slots are gone.
    lives.extend(open.into_values().map(|life| {
        let to = life.phases.last().map(|(at, _)| *at);
        NodeLifetime { to, ..life }
    }));
    lives.retain(|life| life.to.unwrap_or(now) > from);
    lives.sort_by_key(|life| (life.slot, life.from));
    lives
}

/// The lives of a slot, as its events tell them.
fn replay(lives: &mut Vec<NodeLifetime>, slot: Slot, mut steps: Vec<(Time, NodeStep)>, prices: &BTreeMap<String, Usd>) {
    steps.sort_by_key(|(at, _)| *at);
    let mut open: Option<NodeLifetime> = None;
    for (at, step) in steps {
        if let NodeStep::Launch(size) = step {
            if let Some(mut unended) = open.replace(NodeLifetime::begin(slot, at, size, prices)) {
                unended.ends(at, None);
                lives.push(unended);
            }
            continue;
        }
        if step == NodeStep::Abandon {
            open = None;
            continue;
        }
        let mut life = open.take().unwrap_or_else(|| NodeLifetime::begin_before(slot, at, &step));
        match step {
            NodeStep::Ready => life.becomes(Phase::Idle, at),
            NodeStep::Heard if life.phase() == Phase::Silent => life.becomes(Phase::Idle, at),
            NodeStep::Silent => life.becomes(Phase::Silent, at),
            NodeStep::Going => life.becomes(Phase::Going, at),
            NodeStep::Intent(intent) => life.intents.push((at, intent)),
            NodeStep::Clean(ended) => {
                life.ends(at, ended.map(|e| *e));
                lives.push(life);
                continue;
            }
            NodeStep::Heard | NodeStep::Launch(_) | NodeStep::Abandon => {}
        }
        open = Some(life);
    }
    lives.extend(open);
}

/// Corrects the present phase by the record, which knows better than events that may be lost.
fn as_recorded(life: &mut NodeLifetime, record: &NodeRecord) {
    if let NodeState::InUse(in_use) = &record.state
        && in_use.contact.status != NodeStatus::Syncing
        && life.phase() == Phase::Booting
    {
        life.becomes(Phase::Idle, in_use.contact.first_ping_at);
    }
    let intent = record.life().map_or(Intent::Run, |life| life.intent);
    if life.intents.is_empty() && intent != Intent::Run {
        life.intents.push((life.from, intent));
    }
    match &record.state {
        NodeState::InUse(in_use) => match in_use.contact.status {
            NodeStatus::Ready => life.becomes(Phase::Idle, record.modified_at),
            NodeStatus::Disconnected | NodeStatus::Down => life.becomes(Phase::Silent, in_use.contact.lease_expires_at),
            NodeStatus::Syncing => {}
        },
        NodeState::ShuttingDown(_) => life.becomes(Phase::Going, record.modified_at),
        NodeState::Assigned(_) | NodeState::Cleaned { .. } => {}
    }
}
