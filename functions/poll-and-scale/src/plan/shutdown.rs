//! The stage for shutdowns: the one place that decides when a node may be shut down.
//!
//! | node | may be shut down |
//! | --- | --- |
//! | has live allocs, or is not silent and its agent says busy | never, except at a drain's deadline |
//! | intent `hold` | never |
//! | intent `drain` | as soon as idle |
//! | size no longer in the policy | as soon as idle |
//! | idle and ready | not reserved, above `nodes.min`, idle for `idle.timeout_s` in `idle.confirmations` runs, window open |
//! | idle and ready, and a job waits for its room | not reserved, idle in `idle.confirmations` runs, window open |
//! | no heartbeat yet | after `boot.timeout_s`, in any window; if heartbeat-ingest has not shown since then that it works, `heartbeat.blackout_s` later |
//! | suspected (`failure_detector`) | never, except at a drain's deadline |
//! | `syncing` for `boot.timeout_s` | once its allocs are lost, in any window; if it lacks GPUs of its size, this is a failed start |
//! | its agent takes no work, or it cannot reach a service that others reach | idle for `idle.timeout_s` in `idle.confirmations` runs, in any window; this is a failed start |
//! | down | after `shutdown.down_after_s` of silence, window open |
//!
//! Guarantees: the write checks everything again, by the version of the record.
//! Does not: terminate instances; carrying out the action does.
//! Rules: `docs/rules.md#shutdown`. Source: Arvados #2881 (windows, "a sunk cost until then").

use super::actions::{Action, FleetPlan, Note, ShutdownBasis};
use super::liveness::{boot_is_over, stuck_syncing};
use super::needs::QueueNeeds;
use super::view::View;
use model::explain::name_of;
use model::node::Idleness;
use model::{
    Contact, Intent, JobId, Life, NodeId, NodeRecord, NodeState, NodeStatus, Reason, Span, Subject, Time, Usd,
};
use std::collections::BTreeSet;

pub(super) fn plan(view: &View<'_>, plan: &mut FleetPlan, needs: &QueueNeeds) {
    let (in_the_way, surplus) = surplus(view, needs);
    let lives: Vec<_> = view.lives().collect();
    let placed: BTreeSet<NodeId> = plan.actions.iter().flat_map(|p| p.action.placed_on()).collect();
    for (record, life) in lives {
        let node_id = life.node_id;
        let stays = if view.is_partially_read(node_id) {
            Some(Reason::AllocsUnclear {})
        } else if view.is_suspected(node_id) && !(view.suspicion.is_suspected(node_id) && drain_is_over(view, life)) {
            // The node may be busy by now, because its last report may be old. Only a drain's deadline shuts it down.
            Some(Reason::NodeSuspected {})
        } else if view.decided.contains(&node_id) {
            None
        } else {
            let makes_way = needs.room_for.filter(|_| in_the_way.contains(&node_id));
            let need = if let Some(job) = makes_way {
                Need::InTheWay(job)
            } else if surplus.contains(&node_id) {
                Need::Surplus
            } else {
                match needs.used.get(&node_id) {
                    None if needs.more_may_come => Need::Unread,
                    job => Need::Needed(job.copied().flatten()),
                }
            };
            let stays = one(view, plan, record, life, need);
            match (stays, needs.for_sets.get(&node_id)) {
                (Some(Reason::KeptForMinimum { .. }), Some(set)) => Some(Reason::KeptForSet { set: set.clone() }),
                (stays, _) => stays,
            }
        };
        let has_work = !life.allocs.is_empty() || !matches!(record.state, NodeState::InUse(_));
        if let Some(why) = stays.filter(|_| !has_work && !placed.contains(&node_id)) {
            plan.explained.stays(node_id, why);
        }
    }
    plan.surplus = surplus.iter().map(|node_id| node_id.slot()).collect();
}

/// The idle nodes that are in the way of a launch, and all that are not needed: nothing is placed or reserved on them, and they are
/// above `nodes.min` or in the way. The most expensive ones are chosen first.
fn surplus(view: &View<'_>, needs: &QueueNeeds) -> (BTreeSet<NodeId>, BTreeSet<NodeId>) {
    let mut idle: Vec<&Life> = view
        .lives()
        .filter(|(r, l)| r.takes_work() && view.reached.refusal(r).is_none() && is_idle(r, l, view.now))
        .map(|(_, l)| l)
        .filter(|l| {
            let is_free = !needs.used.contains_key(&l.node_id) && !view.decided.contains(&l.node_id);
            is_free && !view.is_partially_read(l.node_id) && !view.is_leaving(l)
        })
        .collect();
    // Nodes that this plan shuts down in any case come first, because they make room too.
    idle.sort_by_key(|l| {
        let goes = needs.outgrown.contains(&l.node_id);
        (!goes, std::cmp::Reverse((l.offering.price_per_hour, l.node_id.slot())))
    });
    let above = if needs.more_may_come { 0 } else { needs.usable.saturating_sub(view.minimum()) };
    let (mut nodes, mut price) = (0, Usd::ZERO);
    let makes_room = idle.iter().take_while(|life| {
        let more = nodes < needs.room.nodes || price < needs.room.price;
        nodes += 1;
        price = price + life.offering.price_per_hour;
        more
    });
    let makes_room = makes_room.count();
    let outgrown = idle.iter().filter(|l| needs.outgrown.contains(&l.node_id));
    let in_the_way: BTreeSet<NodeId> = idle.iter().take(makes_room).chain(outgrown).map(|l| l.node_id).collect();
    let surplus = idle.iter().take(above as usize).map(|l| l.node_id).chain(in_the_way.iter().copied()).collect();
    (in_the_way, surplus)
}

/// Whether the node has no live alloc, and its agent does not say busy. The agent's busy flag no longer counts once the node is
/// disconnected or down and its lease has expired. While a brake holds, the status stays as it was, so the flag still counts.
fn is_idle(record: &NodeRecord, life: &Life, now: Time) -> bool {
    let silent =
        |c: &Contact| matches!(c.status, NodeStatus::Disconnected | NodeStatus::Down) && c.lease_expires_at < now;
    life.allocs.is_empty() && !record.contact().is_some_and(|c| c.health.busy && !silent(c))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Need {
    /// Nobody needs the node.
    Surplus,
    /// This job waits for its room.
    InTheWay(JobId),
    /// The node is needed for this job. `None`: it is needed for the minimum.
    Needed(Option<JobId>),
    /// Jobs that this run did not read may need the node.
    Unread,
}

fn drain_is_over(view: &View<'_>, life: &Life) -> bool {
    life.drain_by_at.is_some_and(|by| view.now >= by)
}

/// Decides about one node. Returns why the node is not shut down; `None` if it is, or if it has work or boots.
fn one(view: &View<'_>, plan: &mut FleetPlan, record: &NodeRecord, life: &Life, need: Need) -> Option<Reason> {
    if life.intent == Intent::Hold {
        return Some(Reason::IntentIsHold { slot: record.slot });
    }
    match &record.state {
        NodeState::Assigned(_) if life.instance_id.is_some() => {
            unheard(view, plan, record, life);
            None
        }
        NodeState::InUse(node) => in_use(view, plan, record, life, &node.contact, need),
        NodeState::Assigned(_) | NodeState::ShuttingDown(_) | NodeState::Cleaned { .. } => None,
    }
}

fn shut_down(plan: &mut FleetPlan, life: &Life, because: ShutdownBasis, reason: Reason) {
    plan.add(Action::ShutDown { node_id: life.node_id, because }, reason);
}

/// A node that has an instance but never sent a heartbeat.
fn unheard(view: &View<'_>, plan: &mut FleetPlan, record: &NodeRecord, life: &Life) {
    let waited = view.now.since(life.assigned_at);
    if life.intent == Intent::Drain {
        shut_down(plan, life, ShutdownBasis::Silent, Reason::DrainedUnheard {});
    } else if let Some(state) = view.leaves_as(life) {
        shut_down(plan, life, ShutdownBasis::FailedStart, Reason::InstanceNotRunning { state });
    } else if boot_is_over(view, life) {
        shut_down(plan, life, ShutdownBasis::FailedStart, Reason::BootTimedOut { waited });
    } else if waited >= Span::from_s(view.observed.policy.boot.timeout_s) {
        let action = Action::HoldBack { subject: Subject::Slot(record.slot), note: Note::Nothing };
        plan.add_quietly(action, Reason::BootBlackout {});
    }
}

fn in_use(
    view: &View<'_>,
    plan: &mut FleetPlan,
    record: &NodeRecord,
    life: &Life,
    contact: &Contact,
    need: Need,
) -> Option<Reason> {
    let size = &life.offering.size;
    let idle = is_idle(record, life, view.now);
    let deadline = drain_is_over(view, life);
    let size_left = !view.has_size(life);
    if life.intent == Intent::Drain && (idle || deadline) {
        let reason = if idle { Reason::DrainedAndIdle {} } else { Reason::DrainDeadlineOver {} };
        shut_down(plan, life, ShutdownBasis::NotNeeded, reason);
    } else if !idle {
        count_idle(plan, life, contact, Idleness::Needed);
        return contact.health.busy.then_some(Reason::AgentSaysBusy {});
    } else if contact.status == NodeStatus::Down {
        return down(view, plan, life, contact);
    } else if stuck_syncing(view, record) {
        match record.awaits() {
            Some(what) => shut_down(plan, life, ShutdownBasis::FailedStart, Reason::NeverWhole { what }),
            None => shut_down(plan, life, ShutdownBasis::NotNeeded, Reason::StuckSyncing {}),
        }
    } else if matches!(contact.status, NodeStatus::Ready | NodeStatus::Syncing) && size_left {
        shut_down(plan, life, ShutdownBasis::NotNeeded, Reason::SizeLeftPolicy { size: size.clone() });
    } else if let Some(state) = view.leaves_as(life) {
        return Some(Reason::InstanceNotRunning { state });
    } else if let (NodeStatus::Ready, Some(why)) = (contact.status, view.reached.refusal(record)) {
        return refusing(view, plan, life, contact, why);
    } else if contact.status == NodeStatus::Ready {
        return idle_node(view, plan, life, contact, need);
    } else if contact.status == NodeStatus::Syncing {
        return Some(record.awaits().map_or(Reason::NotReportedYet {}, |what| Reason::Awaited { what }));
    }
    None
}

fn down(view: &View<'_>, plan: &mut FleetPlan, life: &Life, contact: &Contact) -> Option<Reason> {
    let until = contact.last_ping_at + Span::from_s(view.observed.policy.shutdown.down_after_s);
    let stays = too_early(view, life, until, |left| Reason::DownNotLongEnough { left });
    if stays.is_none() {
        let silent = view.now.since(contact.last_ping_at);
        shut_down(plan, life, ShutdownBasis::Silent, Reason::DownTooLong { silent });
    }
    stays
}

/// An idle node whose agent takes no work. It stays for the idle time-out, in which the agent may find that it can take
/// work again, and a person can look at the machine.
fn refusing(view: &View<'_>, plan: &mut FleetPlan, life: &Life, contact: &Contact, why: String) -> Option<Reason> {
    let reason = Reason::AgentRefuses { why };
    match idle_since(view, contact) {
        None => count_idle(plan, life, contact, Idleness::Idle),
        Some(since) if view.now < since + Span::from_s(view.observed.policy.idle.timeout_s) => {}
        Some(_) => {
            // A failed start: if the image or the boot script is wrong, the next node would refuse work too.
            shut_down(plan, life, ShutdownBasis::FailedStart, reason);
            return None;
        }
    }
    Some(reason)
}

fn idle_node(view: &View<'_>, plan: &mut FleetPlan, life: &Life, contact: &Contact, need: Need) -> Option<Reason> {
    if need == Need::Unread {
        count_idle(plan, life, contact, Idleness::Needed);
        return Some(Reason::KeptForUnread {});
    }
    if let Need::Needed(job) = need {
        count_idle(plan, life, contact, Idleness::Needed);
        let job = job.and_then(|id| view.job(id)).map(name_of);
        let min = view.minimum();
        return Some(job.map_or(Reason::KeptForMinimum { min }, |job| Reason::ReservedFor { job }));
    }
    let policy = &view.observed.policy.idle;
    let Some(since) = idle_since(view, contact) else {
        count_idle(plan, life, contact, Idleness::Idle);
        let seen = contact.idle_runs.saturating_add(1);
        return Some(Reason::IdleUnconfirmed { seen, of: policy.confirmations });
    };
    let idle = view.now.since(since);
    let (until, reason) = match need {
        Need::InTheWay(id) => (since, Reason::MakesWay { job: view.job(id).map(name_of).unwrap_or_default() }),
        _ => (since + Span::from_s(policy.timeout_s), Reason::IdleTooLong { idle }),
    };
    let stays = too_early(view, life, until, |left| Reason::IdleNotLongEnough { left });
    if stays.is_none() {
        shut_down(plan, life, ShutdownBasis::NotNeeded, reason);
    }
    stays
}

/// Since when the node has been idle; `None` if not enough runs have seen it idle.
fn idle_since(view: &View<'_>, contact: &Contact) -> Option<Time> {
    contact.idle_since_at.filter(|_| contact.idle_runs >= view.observed.policy.idle.confirmations)
}

/// Why a node that must stay until `until` is not shut down now: that time has not come, or no shutdown window is open
/// at that time. `None` if the node may be shut down now.
fn too_early(view: &View<'_>, life: &Life, until: Time, wait: impl FnOnce(Span) -> Reason) -> Option<Reason> {
    let at = until.max(view.now);
    let closed = closed_for(&view.observed.policy.shutdown.windows_min, view.launched_at(life), at);
    if closed > Span::ZERO {
        return Some(Reason::WindowClosed { opens: (at + closed).since(view.now) });
    }
    (at > view.now).then(|| wait(at.since(view.now)))
}

fn count_idle(plan: &mut FleetPlan, life: &Life, contact: &Contact, seen: Idleness) {
    let reason = match seen {
        Idleness::Idle => Reason::IdleAndNotNeeded {},
        Idleness::Needed if contact.idle_runs == 0 => return,
        Idleness::Needed => Reason::NeededAgain {},
    };
    plan.add_quietly(Action::SetIdle(life.node_id, seen), reason);
}

/// The time until a shutdown window opens; zero if one is open now.
///
/// The minutes are alternately closed and open, and repeat from the launch by EC2 (`launched_at`) on: `[54, 5, 1]` is open
/// from minute 54 to 59 of every hour. An empty list is always open.
fn closed_for(windows_min: &[u32], launched_at: Time, now: Time) -> Span {
    let total: i64 = windows_min.iter().map(|m| i64::from(*m)).sum();
    if total == 0 {
        return Span::ZERO;
    }
    let total = total.saturating_mul(60_000);
    let phase = now.since(launched_at).as_ms().rem_euclid(total);
    // A window opens in the second round at the latest, because the lengths repeat.
    let (mut from, mut wait) = (0, total);
    for (n, minutes) in windows_min.iter().chain(windows_min).enumerate() {
        let until = from + i64::from(*minutes).saturating_mul(60_000);
        let is_window = (n % windows_min.len()) % 2 == 1;
        if is_window && phase < until {
            wait = (from - phase).max(0);
            break;
        }
        from = until;
    }
    Span::from_ms(wait)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn w01_windows_alternate_from_the_launch() {
        let launch = Time::from_ms(1000);
        let closed = |s: i64| closed_for(&[8, 2], launch, launch + Span::from_s(s)).as_ms() / 1000;
        assert_eq!([0, 479, 480, 599, 600, 1080, 1200].map(closed), [480, 1, 0, 0, 480, 0, 480]);
        assert_eq!(closed_for(&[], launch, launch), Span::ZERO);
        let hour = |m: i64| closed_for(&[54, 5, 1], launch, launch + Span::from_s(60 * m)).as_ms() / 60_000;
        assert_eq!([53, 54, 58, 59, 60, 114].map(hour), [1, 0, 0, 55, 54, 0]);
    }
}
