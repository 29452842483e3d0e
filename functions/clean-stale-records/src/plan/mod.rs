//! The decision of clean-stale-records: stale records, orphans and old entries. Pure.
//!
//! Guarantees: a record whose instance EC2 lists as live is never cleaned; a record whose instance is
//! unlisted is cleaned only if for `stale.after_s` the node sent no heartbeat and nothing changed the record; an
//! unusual share of records at once waits, and an unusual number of orphans waits for an operator
//! (`docs/rules.md#R7`, `docs/rules.md#R10`).
//! Does not: act on an instance without a readable node id tag; the sign `strangers` tells it.

use crate::actions::{CleaningAction, Proof};
use model::brake::{Brake, Incident, Permit, Threshold};
use model::functions::CLEAN_STALE_RECORDS;
use model::{
    BrakeKind, ControlKey, EventPolicy, Instance, InstanceState, Life, NodeId, NodeRecord, NodeState, Reason, Slot,
    Span, Time,
};
use runtime::observation::{Observation, OpenLaunches};
use std::collections::{BTreeMap, HashMap, HashSet};

/// The plan of one run.
pub type CleaningPlan = model::action::Plan<CleaningAction>;

/// Makes the plan. `now` is the time of the decision.
pub fn plan(seen: &Observation, now: Time) -> CleaningPlan {
    let mut plan = CleaningPlan::default();
    let found = Instances::of(seen);
    let mut silent = Vec::new();
    for record in &seen.nodes {
        match record.life() {
            Some(life) => silent.extend(stale(seen, now, &mut plan, record, life, &found)),
            None => surplus(seen, &mut plan, record, &found),
        }
    }
    clean_silent(seen, now, &mut plan, &silent);
    orphans(seen, now, &mut plan, &found);
    over(seen, now, &mut plan);
    read_offers(seen, now, &mut plan);
    plan
}

struct Instances<'a> {
    open: OpenLaunches,
    by_id: BTreeMap<&'a str, &'a Instance>,
    /// The instances that are not terminated, by the node that each is or may become.
    live: BTreeMap<NodeId, Vec<&'a Instance>>,
    /// Those that are not terminated and that no record names.
    unnamed: Vec<&'a Instance>,
}

impl<'a> Instances<'a> {
    fn of(seen: &'a Observation) -> Self {
        let lives = || seen.nodes.iter().filter_map(NodeRecord::life);
        let named: HashMap<&str, NodeId> =
            lives().filter_map(|life| Some((life.instance_id.as_deref()?, life.node_id))).collect();
        let bound: HashSet<NodeId> = lives().filter(|l| l.instance_id.is_some()).map(|life| life.node_id).collect();
        let by_id = seen.instances.iter().map(|i| (i.instance_id.as_str(), i)).collect();
        let mut all = Self { open: seen.open_launches(), by_id, live: BTreeMap::new(), unnamed: Vec::new() };
        for instance in seen.instances.iter().filter(|i| i.state != InstanceState::Terminated) {
            let its = named.get(instance.instance_id.as_str()).filter(|node_id| instance.may_be(**node_id));
            let nodes = its.map_or_else(|| instance.nodes(), |node_id| vec![*node_id]);
            if its.is_none() && !nodes.is_empty() {
                all.unnamed.push(instance);
            }
            // An instance of a batch cannot become a node that already has one.
            let may_become =
                |node_id: &NodeId| its.is_some() || instance.node_id().is_some() || !bound.contains(node_id);
            for node_id in nodes.into_iter().filter(may_become) {
                all.live.entry(node_id).or_default().push(instance);
            }
        }
        all
    }
}

/// A stale record. `up`: the node should be up. `quiet`: the time since the node's last heartbeat or the record's
/// last change, whichever is later.
struct SilentRecord {
    node_id: NodeId,
    up: bool,
    quiet: Span,
}

/// Plans to clean the record if EC2 lists its instance as terminated. Returns the record as silent if EC2 lists no
/// instance for the node, and for `stale.after_s` the node sent no heartbeat and nothing changed the record.
fn stale(
    seen: &Observation,
    now: Time,
    plan: &mut CleaningPlan,
    record: &NodeRecord,
    life: &Life,
    found: &Instances<'_>,
) -> Option<SilentRecord> {
    let node_id = life.node_id;
    if found.live.contains_key(&node_id) || found.open.keep(life) {
        return None;
    }
    let bound = life.instance_id.as_deref().and_then(|id| found.by_id.get(id));
    // If the record names an instance of another node, poll-and-scale tells a person, and nobody cleans the record.
    if bound.is_some_and(|i| i.is_foreign_to(node_id) || i.state != InstanceState::Terminated) {
        return None;
    }
    if let Some(instance) = bound {
        let reason = Reason::InstanceTerminated { instance_id: instance.instance_id.clone() };
        plan.add(CleaningAction::Clean { node_id, proof: Proof::Listed }, reason);
        return None;
    }
    let pinged = record.contact().map(|c| c.last_ping_at);
    let touched = pinged.map_or(record.modified_at, |at| at.max(record.modified_at));
    // Until the claim ends, the launch call may still be under way.
    let touched = touched.max(life.launch_claim_until_at);
    let quiet = now.since(touched);
    (quiet >= Span::from_s(seen.policy.stale.after_s)).then(|| SilentRecord { node_id, up: is_up(record), quiet })
}

/// Whether the node should be up. A node that is shutting down is meant to disappear.
fn is_up(record: &NodeRecord) -> bool {
    matches!(record.state, NodeState::Assigned(_) | NodeState::InUse(_))
}

/// Cleans the silent records. If they are an unusual share, the records of nodes that should be up wait, because it is
/// then more likely that EC2's list is wrong than that all these nodes are gone.
fn clean_silent(seen: &Observation, now: Time, plan: &mut CleaningPlan, silent: &[SilentRecord]) {
    let policy = &seen.policy.stale;
    // Only the records that existed when the trouble began count: later launches would make the share look smaller.
    let brake = seen.control.brake_of(BrakeKind::Missing, CLEAN_STALE_RECORDS.name, now);
    let began_at = brake.began_at();
    let was_there = |r: &&NodeRecord| is_up(r) && r.life().is_some_and(|l| l.assigned_at <= began_at);
    let up = seen.nodes.iter().filter(was_there).count();
    let ids: Vec<String> = silent.iter().filter(|s| s.up).map(|s| s.node_id.to_string()).collect();
    let threshold = Threshold { number: policy.brake_min.into(), share: policy.brake_fraction };
    let unusual = brake.is_unusual(ids.len(), up, threshold);
    let why = Reason::ManyStale { stale: ids.len(), up };
    let hold = Some(Span::from_s(policy.brake_hold_s));
    let permit = braked(plan, &brake, unusual.then_some(Incident { hold, ids, not_before: None, why }));
    let may_go = |s: &&SilentRecord| !s.up || permit.frees(&s.node_id.to_string());
    for SilentRecord { node_id, quiet, .. } in silent.iter().filter(may_go) {
        plan.add(CleaningAction::Clean { node_id: *node_id, proof: Proof::Silence }, Reason::Stale { quiet: *quiet });
    }
}

/// Decides what a brake lets go, and adds the decision to the plan together with the entry to store. Without a trouble, the
/// stored entry says that nothing is held.
fn braked(plan: &mut CleaningPlan, brake: &Brake<'_>, trouble: Option<Incident>) -> Permit {
    let decision = brake.judge(trouble);
    if !decision.change.is_empty() {
        plan.push(
            CleaningAction::HoldBack(Box::new(decision.change)),
            decision.reason,
            EventPolicy::of_news(decision.news),
        );
    }
    decision.permit
}

/// Deletes the row of a free slot that is not below `nodes.max`. Such rows exist after the maximum was lowered.
fn surplus(seen: &Observation, plan: &mut CleaningPlan, record: &NodeRecord, found: &Instances<'_>) {
    if record.slot.number() < seen.policy.nodes.max {
        return;
    }
    let NodeState::Cleaned { last_node_id } = &record.state else { return };
    // The budget counts what its nodes have cost this month.
    if !record.cost_of_month(seen.observed_at).is_zero() {
        return;
    }
    if last_node_id.is_some_and(|last| found.live.contains_key(&last)) {
        return;
    }
    let reason = Reason::SlotBeyondMaximum { slot: record.slot, max: seen.policy.nodes.max };
    plan.add(CleaningAction::DeleteRecord(Box::new(record.clone())), reason);
}

/// Whether an instance that may be one of these nodes belongs to no record: the life of each is over, or its record is
/// bound to another instance.
pub(crate) fn is_orphan<'r>(record: impl Fn(Slot) -> Option<&'r NodeRecord>, nodes: &[NodeId], id: &str) -> bool {
    nodes.iter().all(|node_id| match record(node_id.slot()).and_then(NodeRecord::life) {
        Some(life) if life.node_id == *node_id => life.instance_id.as_deref().is_some_and(|bound| bound != id),
        _ => true,
    })
}

fn orphans(seen: &Observation, now: Time, plan: &mut CleaningPlan, instances: &Instances<'_>) {
    let policy = &seen.policy.stale;
    let records: HashMap<Slot, &NodeRecord> = seen.nodes.iter().map(|n| (n.slot, n)).collect();
    let of_slot = |slot: Slot| records.get(&slot).copied();
    // If the record names an instance of another node, or one that EC2 does not list, then the record may be wrong, and the
    // unnamed instance may be the right one. poll-and-scale tells a person.
    let names_another = |node_id: &NodeId| {
        of_slot(node_id.slot()).and_then(NodeRecord::life).is_some_and(|life| {
            let named = life.instance_id.as_deref().map(|id| instances.by_id.get(id));
            life.node_id == *node_id && named.is_some_and(|i| i.is_none_or(|i| i.is_foreign_to(*node_id)))
        })
    };
    let is_quarantined = |node_id: &NodeId| seen.quarantined.slots.contains(&node_id.slot());
    let mut found: Vec<(Vec<NodeId>, &Instance)> = Vec::new();
    for instance in &instances.unnamed {
        let old = now.since(instance.launched_at) >= Span::from_s(policy.orphan_after_s);
        if !old || instance.state == InstanceState::ShuttingDown {
            continue;
        }
        let nodes = instance.nodes();
        let is_unclear = nodes.iter().any(|node_id| names_another(node_id) || is_quarantined(node_id));
        if !is_unclear && is_orphan(of_slot, &nodes, &instance.instance_id) {
            found.push((nodes, instance));
        }
    }
    found.sort_by(|(_, a), (_, b)| a.instance_id.cmp(&b.instance_id));
    let ids: Vec<String> = found.iter().map(|(_, i)| i.instance_id.clone()).collect();
    let shown = ids.iter().take(5).map(String::as_str).collect::<Vec<_>>().join(", ");
    let why = Reason::ManyOrphans { orphans: ids.len(), shown };
    let brake = seen.control.brake_of(BrakeKind::Orphans, CLEAN_STALE_RECORDS.name, now);
    let unusual = brake.is_unusual(ids.len(), 0, Threshold { number: policy.orphan_brake_min.into(), share: 0.0 });
    let permit = braked(plan, &brake, unusual.then_some(Incident { hold: None, ids, not_before: None, why }));
    found.retain(|(_, instance)| permit.frees(&instance.instance_id));
    for (nodes, instance) in found {
        let instance_id = instance.instance_id.clone();
        let reason = Reason::Orphan { instance_id: instance_id.clone(), owner: instance.owner() };
        plan.add(CleaningAction::TerminateOrphan { instance_id, nodes }, reason);
    }
}

/// Deletes the entries of the control table that ended long ago. Otherwise each instance type and zone that was ever short
/// would keep one.
fn over(seen: &Observation, now: Time, plan: &mut CleaningPlan) {
    for (key, version) in seen.control.over(now) {
        let text = key.to_string();
        let reason = match key {
            ControlKey::Demand(_) => Reason::SetOver { key: text },
            _ => Reason::EntryOver { key: text },
        };
        plan.add_quietly(CleaningAction::ForgetEntry(key.clone(), version), reason);
    }
}

fn read_offers(seen: &Observation, now: Time, plan: &mut CleaningPlan) {
    let due = seen.policy.catalogue.due(&seen.policy.parts_wanted(), &seen.policy.catalogue_wanted(), now);
    if !due.is_empty() {
        let parts = due.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        plan.add_quietly(CleaningAction::ReadOffers(due), Reason::OffersAreOld { parts });
    }
}

#[cfg(test)]
mod tests;
