//! When a node may be shut down: the one place that says so.
//!
//! | node | may be shut down |
//! | --- | --- |
//! | live allocs, or the agent says busy and it is not silent | never, except at a drain's deadline |
//! | intent `hold` | never |
//! | intent `drain` | as soon as idle |
//! | size no longer in the policy | as soon as idle |
//! | idle and ready | not reserved, above `nodes.min` or in the way of a launch, idle for `idle.timeout_s` in `idle.confirmations` runs, window open |
//! | never heard from | after `boot.timeout_s`, in any window; not while the ingest accepts no heartbeat at all |
//! | `syncing` for `boot.timeout_s` | once its allocs are lost, in any window |
//! | down | after `shutdown.down_after_s` of silence, window open |
//!
//! Guarantees: all of it is checked again in the write itself, by the record's version.
//! Rules: Arvados #2881 (windows, "a sunk cost until then").

use super::allocs::stuck_syncing;
use super::demand::Needs;
use super::{Action, Note, Plan, View};
use shared::events::Subject;
use shared::ids::NodeId;
use shared::model::{Contact, Intent, Life, NodeRecord, NodeState, NodeStatus, Usd};
use shared::time::{Span, Time};
use std::collections::BTreeSet;

pub(super) fn plan(view: &mut View<'_>, plan: &mut Plan, needs: &Needs) {
    let surplus = surplus(view, needs);
    let lives: Vec<_> = view.lives().collect();
    for (record, life) in lives {
        if view.decided.contains(&life.node_id) || view.is_unclear(life.node_id) {
            continue;
        }
        one(view, plan, record, life, surplus.contains(&life.node_id));
    }
    plan.surplus = surplus.iter().map(|n| n.slot()).collect();
    plan.surplus.sort_unstable();
}

/// Idle nodes that nothing is placed or reserved on, above `nodes.min` or in the way of what is to
/// be launched; the dearest first.
fn surplus(view: &View<'_>, needs: &Needs) -> BTreeSet<NodeId> {
    let mut idle: Vec<&Life> = view
        .lives()
        .filter(|(r, l)| r.takes_work() && is_idle(r, l, view.now))
        .map(|(_, l)| l)
        .filter(|l| {
            !needs.used.contains(&l.node_id) && !view.decided.contains(&l.node_id) && !view.is_unclear(l.node_id)
        })
        .collect();
    // What goes anyway first: it makes room as well.
    idle.sort_by_key(|l| {
        let goes = needs.outgrown.contains(&l.node_id);
        (!goes, std::cmp::Reverse((l.offering.price_per_hour, l.node_id.slot())))
    });
    let above = needs.usable.saturating_sub(view.seen.policy.nodes.min);
    let (mut nodes, mut price) = (0, Usd::ZERO);
    let in_the_way = idle.iter().take_while(|life| {
        let more = nodes < needs.room.nodes || price < needs.room.price;
        nodes += 1;
        price = price + life.offering.price_per_hour;
        more
    });
    let most = in_the_way.count().max(above as usize);
    let outgrown = idle.iter().skip(most).filter(|l| needs.outgrown.contains(&l.node_id));
    idle.iter().take(most).chain(outgrown).map(|l| l.node_id).collect()
}

/// Nothing runs on it, and its agent does not say busy. While a brake keeps its silence from being
/// believed (its lease is over, its status as it was), its word holds.
fn is_idle(record: &NodeRecord, life: &Life, now: Time) -> bool {
    let silent =
        |c: &Contact| matches!(c.status, NodeStatus::Disconnected | NodeStatus::Down) && c.lease_expires_at < now;
    life.allocs.is_empty() && !record.contact().is_some_and(|c| c.busy && !silent(c))
}

fn one(view: &View<'_>, plan: &mut Plan, record: &NodeRecord, life: &Life, surplus: bool) {
    let (now, policy) = (view.now, &view.seen.policy);
    let node_id = life.node_id;
    let shut_down = |silent, failed_start| Action::ShutDown { node_id, silent, failed_start };
    if life.intent == Intent::Hold {
        return;
    }
    match &record.state {
        NodeState::Assigned(_) if life.instance_id.is_some() => {
            let waited = now.since(life.assigned_at);
            if life.intent == Intent::Drain {
                plan.add(shut_down(true, false), "drained before it was heard from");
            } else if waited >= Span::from_s(policy.boot.timeout_s) {
                let blackout = Span::from_s(policy.boot.timeout_s) + Span::from_s(policy.heartbeat.blackout_s);
                if view.ingest_is_silent() && waited < blackout {
                    plan.say(
                        Action::HoldBack { subject: Subject::Slot(record.slot), note: Note::Nothing },
                        "never heard from, but no node is heard from: rather heartbeat-ingest than the node",
                        false,
                    );
                } else {
                    plan.add(shut_down(true, true), format!("no heartbeat within {waited} of its assignment"));
                }
            }
        }
        NodeState::InUse(node) => {
            let contact = &node.contact;
            let idle = is_idle(record, life, now);
            let deadline = life.drain_by_at.is_some_and(|by| now >= by);
            if life.intent == Intent::Drain && (idle || deadline) {
                plan.add(
                    shut_down(false, false),
                    if idle { "drained and idle" } else { "its drain's deadline is over" },
                );
            } else if !idle {
                seen(plan, node_id, contact, false);
            } else if contact.status == NodeStatus::Down {
                down(view, plan, life, contact);
            } else if stuck_syncing(view, record) {
                plan.add(shut_down(false, false), "it never said what runs on it");
            } else if matches!(contact.status, NodeStatus::Ready | NodeStatus::Syncing)
                && policy.size_named(&life.offering.size).is_none()
            {
                let reason = format!("idle, and size {} is no longer in the policy", life.offering.size);
                plan.add(shut_down(false, false), reason);
            } else if contact.status == NodeStatus::Ready {
                idle_node(view, plan, life, contact, surplus);
            }
        }
        _ => {}
    }
}

fn down(view: &View<'_>, plan: &mut Plan, life: &Life, contact: &Contact) {
    let silent = view.now.since(contact.last_ping_at);
    let policy = &view.seen.policy.shutdown;
    if silent >= Span::from_s(policy.down_after_s) && window_open(&policy.windows_min, life.assigned_at, view.now) {
        let action = Action::ShutDown { node_id: life.node_id, silent: true, failed_start: false };
        plan.add(action, format!("down: silent for {silent}"));
    }
}

fn idle_node(view: &View<'_>, plan: &mut Plan, life: &Life, contact: &Contact, surplus: bool) {
    if !surplus {
        seen(plan, life.node_id, contact, false);
        return;
    }
    let policy = &view.seen.policy;
    let long = contact.idle_since_at.is_some_and(|since| view.now.since(since) >= Span::from_s(policy.idle.timeout_s));
    if contact.idle_seen < policy.idle.confirmations || contact.idle_since_at.is_none() {
        seen(plan, life.node_id, contact, true);
    } else if long && window_open(&policy.shutdown.windows_min, life.assigned_at, view.now) {
        let since = contact.idle_since_at.map_or(Span::ZERO, |s| view.now.since(s));
        let action = Action::ShutDown { node_id: life.node_id, silent: false, failed_start: false };
        plan.add(action, format!("idle for {since}, and nothing in the queue needs it"));
    }
}

/// Counts the runs that see a node idle; forgets them when it is needed.
fn seen(plan: &mut Plan, node_id: NodeId, contact: &Contact, idle: bool) {
    if idle || contact.idle_seen > 0 {
        let reason = if idle { "idle and not needed" } else { "needed again" };
        plan.say(Action::SetIdle(node_id, idle), reason, false);
    }
}

/// Whether a shutdown window is open: minutes alternately closed and open since the launch,
/// repeated. `[54, 5, 1]` opens from minute 54 to 59 of every hour; empty is always open.
pub(crate) fn window_open(windows_min: &[u32], launched_at: Time, now: Time) -> bool {
    let total: i64 = windows_min.iter().map(|m| i64::from(*m)).sum();
    if total == 0 {
        return true;
    }
    let mut phase = now.since(launched_at).as_ms().rem_euclid(total.saturating_mul(60_000));
    for (n, minutes) in windows_min.iter().enumerate() {
        let length = i64::from(*minutes).saturating_mul(60_000);
        if phase < length {
            return n % 2 == 1;
        }
        phase -= length;
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn w01_windows_alternate_from_the_launch() {
        let launch = Time::from_ms(1000);
        let at = |s: i64| window_open(&[8, 2], launch, launch + Span::from_s(s));
        assert!(!at(0) && !at(479) && at(480) && at(599) && !at(600) && at(1080) && !at(1200));
        assert!(window_open(&[], launch, launch));
        let hour = |m: i64| window_open(&[54, 5, 1], launch, launch + Span::from_s(60 * m));
        assert!(!hour(53) && hour(54) && hour(58) && !hour(59) && !hour(60) && hour(114));
    }
}
