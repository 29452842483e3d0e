//! The stage for instances: what EC2's list of instances means for the records. The stage binds an instance, abandons a
//! launch, terminates an instance again, and cleans a record.
//!
//! Guarantees: an instance that EC2 lists as terminated is gone at once; an unlisted instance is gone only after
//! two observations a minute apart, with its lease expired and its launch claim long ended, and after EC2
//! was asked for it by id (`docs/rules.md#R7`).
//! Does not: look at the status of nodes (the next stage does), or repeat a launch (`relaunch` does, once it is known
//! who needs the node).

use super::actions::{Action, FleetPlan, Note};
use super::brakes;
use super::view::{View, is_live};
use model::brake::{Incident, Permit, Threshold};
use model::{
    ABSENCE_CONFIRM, BrakeKind, Instance, InstanceState, Life, Limit, NodeRecord, NodeState, NodeStatus, Reason, Span,
    Subject, Time,
};

struct Unlisted<'a> {
    record: &'a NodeRecord,
    life: &'a Life,
    instance_id: &'a str,
}

pub(super) fn plan(view: &mut View<'_>, plan: &mut FleetPlan) {
    let mut unlisted: Vec<Unlisted<'_>> = Vec::new();
    let lives: Vec<_> = view.lives().filter(|(record, _)| view.observed.was_queried(record)).collect();
    let open = view.observed.open_launches();
    for (record, life) in lives {
        if let Some(foreign) = view.foreign_of(life) {
            // An instance belongs to the node whose tag it carries. The record may be a copy, or a caller may have named an
            // instance of another node. The run leaves the instance alone until a person has corrected the record.
            view.lose(life.node_id);
            let reason = Reason::ForeignInstance { instance_id: foreign.instance_id.clone(), owner: foreign.owner() };
            warn(plan, Subject::Slot(record.slot), reason);
            continue;
        }
        // If EC2 lists several instances, the oldest counts, and the others are orphans.
        let live = view.instances_of(life).filter(|i| is_live(i));
        let live = live.min_by(|a, b| (a.launched_at, &a.instance_id).cmp(&(b.launched_at, &b.instance_id)));
        let first = view.instances_of(life).next();
        if let (Some(terminated), None) = (first, live) {
            let instance_id = terminated.instance_id.clone();
            view.lose(life.node_id);
            if !open.keep(life) {
                let action = Action::Clean { node_id: life.node_id, unlisted: None };
                plan.add(action, Reason::InstanceTerminated { instance_id });
            }
            continue;
        }
        match (&life.instance_id, live) {
            (None, Some(instance)) => bind(view, plan, life, instance),
            // The node registered before a run had seen which of its ways EC2 took. The binding notes that way.
            (Some(_), Some(instance)) if !life.others.is_empty() && is_up(record) => bind(view, plan, life, instance),
            (None, None) => unanswered(view, plan, record, life),
            (Some(_), Some(instance)) => listed_as_live(view, plan, record, life, instance),
            (Some(instance_id), None) => unlisted.push(Unlisted { record, life, instance_id }),
        }
    }
    judge_unlisted(view, plan, unlisted);
}

fn bind(view: &mut View<'_>, plan: &mut FleetPlan, life: &Life, instance: &Instance) {
    view.decided.insert(life.node_id);
    let instance_id = instance.instance_id.clone();
    let action = Action::BindInstance { node_id: life.node_id, instance: Box::new(instance.into()) };
    plan.add(action, Reason::CarriesNodeId { instance_id });
}

fn listed_as_live(view: &mut View<'_>, plan: &mut FleetPlan, record: &NodeRecord, life: &Life, instance: &Instance) {
    let node_id = life.node_id;
    if let NodeState::ShuttingDown(_) = &record.state {
        view.decided.insert(node_id);
        let instance_id = instance.instance_id.clone();
        let reason = match instance.state {
            InstanceState::ShuttingDown => Reason::TerminationUnderWay { instance_id: instance_id.clone() },
            _ => Reason::TerminationNotDone { instance_id: instance_id.clone() },
        };
        plan.add_quietly(Action::Terminate { node_id, instance_id }, reason);
    } else if life.absent_since_at.is_some() {
        view.decided.insert(node_id);
        note_absence(plan, record, life, None, Reason::ListedAgain { instance_id: instance.instance_id.clone() });
    }
}

/// Notes on the record since when its instance is unlisted; `None`: EC2 lists it again.
fn note_absence(plan: &mut FleetPlan, record: &NodeRecord, life: &Life, since: Option<Time>, reason: Reason) {
    let note = Note::Unlisted(life.node_id, since);
    plan.add(Action::HoldBack { subject: Subject::Slot(record.slot), note }, reason);
}

/// An assigned record without an instance: the launch call is under way, or its answer was lost.
fn unanswered(view: &mut View<'_>, plan: &mut FleetPlan, record: &NodeRecord, life: &Life) {
    if view.limit_on(&life.offering).is_some_and(Limit::is_unanswered_again) {
        // Another launch serves the jobs of this node, if possible. The record waits for the instance that EC2 may have launched.
        view.lose(life.node_id);
    }
    if life.launch_claim_until_at > view.now || !matches!(record.state, NodeState::Assigned(_)) {
        return;
    }
    let waited = view.now.since(life.assigned_at);
    if waited < Span::from_s(view.observed.policy.boot.timeout_s) {
        view.unanswered.push(life.node_id);
        return;
    }
    view.lose(life.node_id);
    match life.absent_since_at {
        Some(since) if view.now.since(since) >= ABSENCE_CONFIRM => {
            plan.add(Action::Abandon(life.node_id), Reason::LaunchCameToNothing { waited });
        }
        Some(_) => {}
        None => {
            let reason = Reason::LaunchMayHaveFailed { waited, confirm: ABSENCE_CONFIRM };
            note_absence(plan, record, life, Some(view.now), reason);
        }
    }
}

/// Decides about a record whose instance is unlisted while EC2 lists another one with the tag of the node. The record may name
/// a wrong instance, so it is not cleaned before a person has looked. If the node is shutting down, all its instances are
/// terminated.
fn another_is_tagged(view: &View<'_>, plan: &mut FleetPlan, record: &NodeRecord, life: &Life, reason: Reason) {
    if let NodeState::ShuttingDown(_) = &record.state {
        for instance in view.tagged(life.node_id) {
            let action = Action::Terminate { node_id: life.node_id, instance_id: instance.instance_id.clone() };
            plan.add_quietly(action, reason.clone());
        }
    } else {
        warn(plan, Subject::Slot(record.slot), reason);
    }
}

/// Tells a person what to correct: in each plan, and in `status` and the alarms for as long as it lasts.
fn warn(plan: &mut FleetPlan, subject: Subject, reason: Reason) {
    plan.explained.rows.push((subject.clone(), reason.clone()));
    plan.add_quietly(Action::Warn(subject), reason);
}

/// Decides about the records that are bound to an unlisted instance.
fn judge_unlisted(view: &mut View<'_>, plan: &mut FleetPlan, unlisted: Vec<Unlisted<'_>>) {
    let mut gone = Vec::new();
    for Unlisted { record, life, instance_id } in unlisted {
        let instance_id = instance_id.to_owned();
        if let Some(tagged) = view.tagged(life.node_id).next() {
            let reason = Reason::AnotherTagged { named: instance_id, tagged: tagged.instance_id.clone() };
            another_is_tagged(view, plan, record, life, reason);
            continue;
        }
        if let NodeState::ShuttingDown(_) = &record.state {
            let action = Action::Terminate { node_id: life.node_id, instance_id: instance_id.clone() };
            plan.add_quietly(action, Reason::TerminationUnlisted { instance_id: instance_id.clone() });
        }
        let leased = record.contact().is_some_and(|c| c.lease_expires_at >= view.now);
        let suspected = view.suspicion.is_suspected(life.node_id);
        // EC2 may not list a new instance at first, so nothing is noted before the claim is old.
        let orphan_after = Span::from_s(view.observed.policy.stale.orphan_after_s);
        let old = view.now.since(life.launch_claim_until_at) >= orphan_after;
        if leased || suspected {
            if old && leased {
                unlisted_but_heard(view, plan, record, life, instance_id);
            }
            continue;
        }
        match life.absent_since_at {
            Some(since) if old && view.now.since(since) >= ABSENCE_CONFIRM => {
                gone.push((record, life, instance_id, since));
            }
            None if old => {
                // One observation proves nothing. A node that never sent a heartbeat counts as there until the second one.
                let is_gone = matches!(record.status(), Some(NodeStatus::Disconnected | NodeStatus::Down));
                if is_gone || view.suspicion.is_silent(life.node_id) {
                    view.lose(life.node_id)
                } else {
                    view.hold(life.node_id)
                }
                let reason = Reason::Unlisted { instance_id, confirm: ABSENCE_CONFIRM };
                note_absence(plan, record, life, Some(view.now), reason);
            }
            _ => {}
        }
    }
    let permit =
        brake(view, plan, gone.iter().filter(|(record, ..)| is_up(record)).map(|(_, life, ..)| *life).collect());
    let open = view.observed.open_launches();
    for (record, life, instance_id, since) in gone {
        if open.keep(life) || (is_up(record) && !permit.frees(&life.node_id.to_string())) {
            view.hold(life.node_id);
            continue;
        }
        // The node does not count as decided, and not as lost. EC2 may still know the instance by id although its tags are
        // gone. In that case no run cleans the record, and nothing must be launched in its place.
        let reason = Reason::UnlistedFor { instance_id: instance_id.clone(), unlisted: view.now.since(since) };
        plan.add(Action::Clean { node_id: life.node_id, unlisted: Some(instance_id) }, reason);
    }
}

/// Leaves a node alone whose instance is unlisted but whose heartbeats arrive, and tells a person.
fn unlisted_but_heard(
    view: &mut View<'_>,
    plan: &mut FleetPlan,
    record: &NodeRecord,
    life: &Life,
    instance_id: String,
) {
    let reason = Reason::UnlistedButHeard { instance_id };
    if life.absent_since_at.is_none() {
        view.decided.insert(life.node_id);
        note_absence(plan, record, life, Some(view.now), reason);
    } else {
        plan.add_quietly(Action::Warn(Subject::Slot(record.slot)), reason);
    }
}

fn is_up(record: &NodeRecord) -> bool {
    !matches!(record.state, NodeState::ShuttingDown(_))
}

/// The brake `missing`: if the instances of an unusual share of the nodes are unlisted at once, it is more likely that
/// EC2's list is wrong than that all these instances are gone. Only the nodes that existed when the trouble
/// began count for the share: later launches would make the share look smaller.
fn brake(view: &View<'_>, plan: &mut FleetPlan, gone: Vec<&Life>) -> Permit {
    let policy = &view.observed.policy.stale;
    let brake = brakes::of(view, BrakeKind::Missing);
    let began_at = brake.began_at();
    let was_there = |life: &Life| life.assigned_at <= began_at;
    let up = view.lives().filter(|(record, life)| is_up(record) && was_there(life)).count();
    let threshold = Threshold { number: policy.brake_min.into(), share: policy.brake_fraction };
    if !brake.is_unusual(gone.len(), up, threshold) {
        return brakes::decide(plan, &brake, None);
    }
    let why = Reason::ManyUnlisted { unlisted: gone.len(), up };
    let ids = gone.iter().map(|life| life.node_id.to_string()).collect();
    let hold = Some(Span::from_s(policy.brake_hold_s));
    brakes::decide(plan, &brake, Some(Incident { hold, ids, not_before: None, why }))
}
