//! The decision of clean-stale-records: what is stale, what is orphaned, who is overdue. Pure.
//!
//! Guarantees: presence is strong: nothing that EC2 lists as live is cleaned; absence is weak:
//! a record must also have been silent and unwritten for `stale.after_s`, and an unusual share of
//! the records at once waits; an unusual number of orphans waits for an operator.
//! Does not: act on instances whose node-id tag is missing or makes no sense; they are a warning.

use shared::brake::{Brake, Look};
use shared::cloud::{Instance, InstanceState};
use shared::events::Subject;
use shared::ids::NodeId;
use shared::model::{Life, NodeRecord, NodeState};
use shared::observation::Observation;
use shared::run::{PlanAnswer, PlanRow};
use shared::store::Memory;
use shared::time::{Span, Time};
use std::collections::{BTreeMap, BTreeSet};

/// How long an overdue function is news.
const EPISODE: Span = Span::from_s(900);

/// The scheduled functions, and how far apart their runs are meant to be.
const SCHEDULED: &[(&str, Span)] = &[("poll-and-scale", Span::from_s(60)), ("sweep-dispatch", Span::from_s(60))];

/// Something to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Free a slot.
    Clean {
        /// Whose life ends.
        node_id: NodeId,
        /// Whether it rests on silence rather than on EC2's word.
        stale: bool,
    },
    /// Delete the row of a slot beyond `nodes.max`.
    DeleteRecord(Box<NodeRecord>),
    /// Terminate an instance that no record claims.
    TerminateOrphan {
        /// Which.
        instance_id: String,
        /// The life it was launched as.
        node_id: NodeId,
    },
    /// Something a person should see.
    Warn(Subject),
    /// Records or orphans that wait.
    HoldBack(Memory),
}

/// One action and its reason.
#[derive(Clone, Debug, PartialEq)]
pub struct Planned {
    /// What.
    pub action: Action,
    /// Why.
    pub reason: String,
    /// Whether it was not so before.
    pub news: bool,
}

/// What one run decided.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// In order.
    pub actions: Vec<Planned>,
}

impl Plan {
    fn add(&mut self, action: Action, reason: impl Into<String>) {
        self.actions.push(Planned { action, reason: reason.into(), news: true });
    }

    /// Whether a brake holds back so many; says so, and remembers since when.
    fn holds(
        &mut self,
        seen: &Observation,
        now: Time,
        brake: Brake,
        hold: Option<Span>,
        count: usize,
        why: &str,
    ) -> bool {
        let (memory, release) = (seen.control.memory(brake.memory()), seen.control.holding(brake.release(), now));
        let Look { held, news, note, reason } = brake.look(&memory, release, hold, count, why, now);
        if let Some(note) = note {
            self.say(Action::HoldBack(note), reason, news);
        }
        held
    }

    fn say(&mut self, action: Action, reason: impl Into<String>, news: bool) {
        self.actions.push(Planned { action, reason: reason.into(), news });
    }

    /// As `plan` answers it.
    pub fn answer(&self) -> PlanAnswer {
        PlanAnswer { actions: self.actions.iter().map(Planned::row).collect(), ..PlanAnswer::default() }
    }
}

impl Planned {
    /// What its event is about.
    pub fn subject(&self) -> Subject {
        match &self.action {
            Action::Clean { node_id, .. } | Action::TerminateOrphan { node_id, .. } => Subject::Slot(node_id.slot()),
            Action::DeleteRecord(record) => Subject::Slot(record.slot),
            Action::Warn(subject) => subject.clone(),
            Action::HoldBack(_) => Subject::Cluster,
        }
    }

    /// As a row of a plan.
    pub fn row(&self) -> PlanRow {
        let subject = self.subject();
        let (action, node_id) = match &self.action {
            Action::Clean { node_id, .. } => ("clean", Some(*node_id)),
            Action::TerminateOrphan { node_id, .. } => ("terminate_orphan", Some(*node_id)),
            Action::DeleteRecord(_) => ("delete_record", None),
            Action::Warn(_) => ("warn", None),
            Action::HoldBack(_) => ("hold_back", None),
        };
        let slot = if let Subject::Slot(slot) = &subject { Some(*slot) } else { None };
        PlanRow {
            action,
            subject: subject.to_string(),
            slot,
            node_id,
            reason: self.reason.clone(),
            ..PlanRow::default()
        }
    }
}

/// Decides. `now` is the time of the decision.
pub fn plan(seen: &Observation, now: Time) -> Plan {
    let mut plan = Plan::default();
    let mut live: BTreeMap<NodeId, Vec<&Instance>> = BTreeMap::new();
    let by_id: BTreeMap<&str, &Instance> = seen.instances.iter().map(|i| (i.instance_id.as_str(), i)).collect();
    for instance in seen.instances.iter().filter(|i| i.state != InstanceState::Terminated) {
        match instance.node_id() {
            Some(node_id) => live.entry(node_id).or_default().push(instance),
            None => plan.say(
                Action::Warn(Subject::Cluster),
                format!(
                    "instance {} has our cluster tag but no node id that makes sense: left alone",
                    instance.instance_id
                ),
                false,
            ),
        }
    }
    let mut silent = Vec::new();
    for record in &seen.nodes {
        match record.life() {
            Some(life) => silent.extend(stale(seen, now, &mut plan, record, life, &by_id, &live)),
            None => surplus(seen, &mut plan, record, &live),
        }
    }
    clean_silent(seen, now, &mut plan, &silent);
    orphans(seen, now, &mut plan, &live);
    watchdog(seen, now, &mut plan);
    plan
}

/// A record that is stale: whose, whether its node should be up, and for how long it was silent.
struct Silent {
    node_id: NodeId,
    up: bool,
    quiet: Span,
}

/// What EC2 lists as terminated is cleaned; what it does not list, and nobody heard of, is silent.
fn stale(
    seen: &Observation,
    now: Time,
    plan: &mut Plan,
    record: &NodeRecord,
    life: &Life,
    by_id: &BTreeMap<&str, &Instance>,
    live: &BTreeMap<NodeId, Vec<&Instance>>,
) -> Option<Silent> {
    let node_id = life.node_id;
    if live.get(&node_id).is_some_and(|i| !i.is_empty()) {
        return None;
    }
    let bound = life.instance_id.as_deref().and_then(|id| by_id.get(id));
    if bound.is_some_and(|i| i.state != InstanceState::Terminated) {
        return None;
    }
    if let Some(instance) = bound {
        let reason = format!("instance {} is terminated", instance.instance_id);
        plan.add(Action::Clean { node_id, stale: false }, reason);
        return None;
    }
    let pinged = record.contact().map(|c| c.last_ping_at);
    let touched = pinged.map_or(record.modified_at, |at| at.max(record.modified_at));
    // Its launch may still be under way.
    let touched = touched.max(life.launch_claim_until_at);
    let quiet = now.since(touched);
    (quiet >= Span::from_s(seen.policy.stale.after_s)).then(|| Silent { node_id, up: is_up(record), quiet })
}

/// Whether its node should be up. What is being shut down is meant to go.
fn is_up(record: &NodeRecord) -> bool {
    matches!(record.state, NodeState::Assigned(_) | NodeState::InUse(_))
}

/// A mass disappearance is more often the list's fault than the nodes'.
fn clean_silent(seen: &Observation, now: Time, plan: &mut Plan, silent: &[Silent]) {
    let policy = &seen.policy.stale;
    let up = seen.nodes.iter().filter(|r| is_up(r)).count();
    let gone = silent.iter().filter(|s| s.up).count();
    let unusual = gone as f64 > policy.brake_fraction * up as f64 && gone > policy.brake_min as usize;
    let why = format!("{gone} of {up} records are stale at once: rather EC2's list than all of their instances");
    let held = unusual && plan.holds(seen, now, Brake::MISSING, Some(Span::from_s(policy.brake_hold_s)), gone, &why);
    for Silent { node_id, quiet, .. } in silent.iter().filter(|s| !(held && s.up)) {
        let reason = format!("stale: EC2 has no instance of it, and nothing was heard or written for {quiet}");
        plan.add(Action::Clean { node_id: *node_id, stale: true }, reason);
    }
}

/// Rows beyond `nodes.max`, after the maximum was lowered.
fn surplus(seen: &Observation, plan: &mut Plan, record: &NodeRecord, live: &BTreeMap<NodeId, Vec<&Instance>>) {
    if record.slot.number() < seen.policy.nodes.max {
        return;
    }
    let NodeState::Cleaned { last_node_id } = &record.state else { return };
    if last_node_id.is_some_and(|last| live.contains_key(&last)) {
        return;
    }
    let reason = format!("slot {} is beyond nodes.max = {}", record.slot, seen.policy.nodes.max);
    plan.add(Action::DeleteRecord(Box::new(record.clone())), reason);
}

/// Whether an instance is nobody's: its life is over, or its record is bound to another one.
pub(crate) fn is_orphan(record: Option<&NodeRecord>, node_id: NodeId, instance_id: &str) -> bool {
    match record.and_then(NodeRecord::life) {
        Some(life) if life.node_id == node_id => life.instance_id.as_deref().is_some_and(|bound| bound != instance_id),
        _ => true,
    }
}

fn orphans(seen: &Observation, now: Time, plan: &mut Plan, live: &BTreeMap<NodeId, Vec<&Instance>>) {
    let policy = &seen.policy.stale;
    let records: BTreeMap<_, _> = seen.nodes.iter().map(|n| (n.slot, n)).collect();
    let mut found = Vec::new();
    for (node_id, instances) in live {
        for instance in instances {
            let old = now.since(instance.launched_at) >= Span::from_s(policy.orphan_after_s);
            let leaving = instance.state == InstanceState::ShuttingDown;
            let record = records.get(&node_id.slot()).copied();
            if old && !leaving && is_orphan(record, *node_id, &instance.instance_id) {
                found.push((*node_id, instance));
            }
        }
    }
    if found.len() > policy.orphan_brake_min as usize {
        let ids: BTreeSet<&str> = found.iter().map(|(_, i)| i.instance_id.as_str()).collect();
        let shown: Vec<&str> = ids.iter().take(5).copied().collect();
        let why = format!("{} orphaned instances at once ({}…)", found.len(), shown.join(", "));
        if plan.holds(seen, now, Brake::ORPHANS, None, found.len(), &why) {
            return;
        }
    }
    for (node_id, instance) in found {
        let action = Action::TerminateOrphan { instance_id: instance.instance_id.clone(), node_id };
        plan.add(action, format!("{} runs as {node_id}, which no record claims", instance.instance_id));
    }
}

/// A last success that is older than so many periods. Slow is not overdue, and a cloud that is
/// down restarts nothing: a person is told.
fn watchdog(seen: &Observation, now: Time, plan: &mut Plan) {
    for (function, planned) in SCHEDULED {
        let Some(run) = seen.control.runs.get(*function) else { continue };
        let Some(success) = run.last_success_at else { continue };
        // The planned period and not the last gap: runs woken by events come seconds apart.
        let limit = Span::from_ms((planned.as_ms() as f64 * seen.policy.watchdog.multiplier) as i64);
        let quiet = now.since(success);
        if quiet > limit {
            let reason = format!("{function} has not succeeded for {quiet}; it should run every {planned}");
            plan.say(Action::Warn(Subject::Function((*function).to_owned())), reason, quiet <= limit + EPISODE);
        }
    }
}
