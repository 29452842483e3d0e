//! What EC2's list says of the records: bind, repeat, give up, terminate again, clean.
//!
//! Guarantees: an instance that EC2 lists as terminated is gone at once; one that EC2 does not
//! list is gone only after two observations a minute apart, with its lease and its launch
//! claim long over, and after it was asked for by id. Absence is weak, presence is strong.

use super::{Action, Note, Plan, View, is_live};
use shared::brake::Brake;
use shared::cloud::InstanceState;
use shared::events::Subject;
use shared::model::{ABSENCE_CONFIRM, Life, NodeRecord, NodeState};
use shared::time::Span;

pub(super) fn plan(view: &mut View<'_>, plan: &mut Plan) {
    let mut missing: Vec<(&NodeRecord, &Life, &str)> = Vec::new();
    let lives: Vec<_> = view.lives().collect();
    for (record, life) in lives {
        let listed = view.instances_of(life);
        if !listed.is_empty() && listed.iter().all(|i| !is_live(i)) {
            let id = &listed.first().map(|i| i.instance_id.clone()).unwrap_or_default();
            view.lose(life.node_id);
            plan.add(Action::Clean { node_id: life.node_id, missing: None }, format!("instance {id} is terminated"));
            continue;
        }
        // The oldest, should there be several: the others are orphans.
        let live = listed.into_iter().filter(|i| is_live(i)).min_by_key(|i| (i.launched_at, i.instance_id.clone()));
        match (&life.instance_id, live) {
            (None, Some(instance)) => {
                view.decided.insert(life.node_id);
                plan.add(
                    Action::BindInstance {
                        node_id: life.node_id,
                        instance_id: instance.instance_id.clone(),
                        zone: instance.zone.clone(),
                    },
                    format!("instance {} carries its node id", instance.instance_id),
                );
            }
            (None, None) => unanswered(view, plan, record, life),
            (Some(_), Some(instance)) => {
                if let NodeState::ShuttingDown(_) = &record.state {
                    view.decided.insert(life.node_id);
                    let doing = if instance.state == InstanceState::ShuttingDown { "on its way" } else { "still up" };
                    plan.say(
                        Action::Terminate { node_id: life.node_id, instance_id: instance.instance_id.clone() },
                        format!("shutting down, and EC2 lists {} as {doing}", instance.instance_id),
                        false,
                    );
                } else if life.absent_since_at.is_some() {
                    view.decided.insert(life.node_id);
                    let note = Note::Absent(life.node_id, None);
                    let subject = Subject::Slot(record.slot);
                    plan.add(Action::HoldBack { subject, note }, format!("EC2 lists {} again", instance.instance_id));
                }
            }
            (Some(id), None) => missing.push((record, life, id)),
        }
    }
    unlisted(view, plan, &missing);
}

/// Assigned, without an instance: the launch is under way, or its answer was lost.
fn unanswered(view: &mut View<'_>, plan: &mut Plan, record: &NodeRecord, life: &Life) {
    if life.launch_claim_until_at > view.now || !matches!(record.state, NodeState::Assigned(_)) {
        return;
    }
    let waited = view.now.since(life.assigned_at);
    if waited < Span::from_s(view.seen.policy.boot.timeout_s) {
        let pause = ["backoff", "quota"].into_iter().find(|key| view.seen.control.holding(key, view.now).is_some());
        match pause {
            Some(key) => plan.say(
                Action::HoldBack { subject: Subject::Slot(record.slot), note: Note::Nothing },
                format!("its launch is not repeated while {key} holds"),
                false,
            ),
            None => {
                view.decided.insert(life.node_id);
                plan.add(
                    Action::Relaunch(life.node_id),
                    format!("claimed {waited} ago, the claim is over and no instance carries its node id"),
                );
            }
        }
        return;
    }
    view.lose(life.node_id);
    match life.absent_since_at {
        Some(since) if view.now.since(since) >= ABSENCE_CONFIRM => {
            plan.add(Action::Abandon(life.node_id), format!("nothing came of its launch in {waited}"));
        }
        Some(_) => {}
        None => plan.add(
            Action::HoldBack { subject: Subject::Slot(record.slot), note: Note::Absent(life.node_id, Some(view.now)) },
            format!("nothing came of its launch in {waited}: given up if it stays so for {ABSENCE_CONFIRM}"),
        ),
    }
}

/// Bound to instances that EC2 does not list.
fn unlisted(view: &mut View<'_>, plan: &mut Plan, missing: &[(&NodeRecord, &Life, &str)]) {
    let policy = &view.seen.policy.stale;
    let mut gone = Vec::new();
    for (record, life, id) in missing {
        if let NodeState::ShuttingDown(_) = &record.state {
            let again = Action::Terminate { node_id: life.node_id, instance_id: (*id).to_owned() };
            plan.say(again, format!("shutting down, and EC2 does not list {id}"), false);
        }
        let alive = record.contact().is_some_and(|c| c.lease_expires_at >= view.now);
        // A new instance is not listed at first: nothing is noted before the claim is old.
        let old = view.now.since(life.launch_claim_until_at) >= Span::from_s(policy.orphan_after_s);
        if alive {
            // The record says alive and heartbeats arrive: leave it alone, and tell a person.
            let news = life.absent_since_at.is_none();
            let reason = format!("EC2 does not list {id}, but its heartbeats arrive: left alone");
            if news && old {
                view.decided.insert(life.node_id);
                let note = Note::Absent(life.node_id, Some(view.now));
                plan.add(Action::HoldBack { subject: Subject::Slot(record.slot), note }, reason);
            } else if old {
                plan.say(Action::Warn(Subject::Slot(record.slot)), reason, false);
            }
            continue;
        }
        match life.absent_since_at {
            Some(since) if old && view.now.since(since) >= ABSENCE_CONFIRM => gone.push((*record, *life, *id, since)),
            Some(_) => {}
            None if old => {
                view.lose(life.node_id);
                plan.add(
                    Action::HoldBack {
                        subject: Subject::Slot(record.slot),
                        note: Note::Absent(life.node_id, Some(view.now)),
                    },
                    format!("EC2 does not list {id}: cleaned if that stays so for {ABSENCE_CONFIRM}"),
                );
            }
            None => {}
        }
    }
    let braked = brake(view, plan, &gone);
    for (record, life, id, since) in gone {
        if braked && !matches!(record.state, NodeState::ShuttingDown(_)) {
            view.lose(life.node_id);
            continue;
        }
        // Not decided: EC2 may know it by id, without the tags it is listed by. Then it is cleaned by
        // no run, and what follows from its silence goes on.
        view.lost.insert(life.node_id);
        let reason = format!("EC2 has not listed {id} for {}", view.now.since(since));
        plan.add(Action::Clean { node_id: life.node_id, missing: Some(id.to_owned()) }, reason);
    }
}

/// A mass disappearance is more often the list's fault than the nodes'.
fn brake(view: &View<'_>, plan: &mut Plan, gone: &[(&NodeRecord, &Life, &str, shared::time::Time)]) -> bool {
    let policy = &view.seen.policy.stale;
    let up = view.lives().filter(|(r, _)| !matches!(r.state, NodeState::ShuttingDown(_))).count();
    let gone = gone.iter().filter(|(r, ..)| !matches!(r.state, NodeState::ShuttingDown(_))).count();
    let unusual = gone as f64 > policy.brake_fraction * up as f64 && gone > policy.brake_min as usize;
    let reason = format!("{gone} of {up} instances are not listed at once: rather EC2's list than all of them");
    unusual && hold(view, plan, Brake::MISSING, Span::from_s(policy.brake_hold_s), gone, &reason)
}

/// Whether a brake still holds; says so, and remembers since when.
pub(super) fn hold(view: &View<'_>, plan: &mut Plan, brake: Brake, hold: Span, count: usize, reason: &str) -> bool {
    let control = &view.seen.control;
    let release = control.holding(brake.release(), view.now);
    let look = brake.look(&control.memory(brake.memory()), release, Some(hold), count, reason, view.now);
    if let Some(note) = look.note {
        let note = Note::Brake(note);
        plan.say(Action::HoldBack { subject: Subject::Cluster, note }, look.reason, look.news);
    }
    look.held
}
