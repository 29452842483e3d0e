//! What silence says of the nodes: disconnected or down.
//!
//! Guarantees: a lease that is not over is never touched; an unusual share of leases over at
//! once waits, and if all are, longer: then our ingest is down rather than the fleet.
//! Does not: end allocs; the next stage does, from the status. Rule: Nomad PR 15068.

use super::instances::hold;
use super::{Action, Plan, View};
use shared::brake::Brake;
use shared::model::{AllocSummary, ClientStatus, Desired, NodeStatus};
use shared::time::{Span, Time};

pub(super) fn plan(view: &mut View<'_>, plan: &mut Plan) {
    let now = view.now;
    let policy = &view.seen.policy.heartbeat;
    let leases: Vec<_> = view
        .lives()
        .filter(|(r, _)| matches!(r.status(), Some(NodeStatus::Syncing | NodeStatus::Ready)))
        .filter_map(|(r, l)| Some((l, r.contact()?)))
        .collect();
    let mut over: Vec<_> = leases.iter().filter(|(_, c)| c.lease_expires_at < now).copied().collect();
    let all = over.len() == leases.len() && leases.len() > policy.brake_min as usize;
    let unusual =
        over.len() as f64 > policy.brake_fraction * leases.len() as f64 && over.len() > policy.brake_min as usize;
    // What EC2 lists as terminated is being cleaned already.
    over.retain(|(life, _)| !view.decided.contains(&life.node_id));
    if all || unusual {
        let span = Span::from_s(if all { policy.blackout_s } else { policy.brake_hold_s });
        let reason = if all {
            format!("all {} nodes are silent: rather heartbeat-ingest than all of them", leases.len())
        } else {
            format!("{} of {} leases are over at once", over.len(), leases.len())
        };
        if hold(view, plan, Brake::LEASES, span, over.len(), &reason) {
            return;
        }
        if all {
            let most = (policy.brake_fraction * leases.len() as f64).ceil().max(1.0) as usize;
            over.sort_by_key(|(_, c)| c.lease_expires_at);
            over.truncate(most);
        }
    }
    for (life, contact) in over {
        view.lose(life.node_id);
        let silent = format!("silent for {}, the lease is over", now.since(contact.last_ping_at));
        if view.allocs_on(life.node_id).iter().any(|a| may_wait(a, now)) {
            plan.add(Action::Disconnect(life.node_id), format!("{silent}; allocs wait for it"));
        } else {
            plan.add(Action::MarkDown(life.node_id), format!("{silent}; nothing waits for it"));
        }
    }
    let waiting: Vec<_> = view.lives().filter(|(r, _)| r.status() == Some(NodeStatus::Disconnected)).collect();
    for (_, life) in waiting {
        let closed = !view.allocs_on(life.node_id).iter().any(|a| may_wait(a, now));
        if closed && !view.decided.contains(&life.node_id) && !view.is_unclear(life.node_id) {
            view.lose(life.node_id);
            plan.add(Action::MarkDown(life.node_id), "the last alloc that waited for it waits no more");
        }
    }
}

/// Whether a silent node is waited for because of this alloc.
pub(super) fn may_wait(alloc: &AllocSummary, now: Time) -> bool {
    alloc.desired == Desired::Run
        && alloc.terms.lost_after_s > 0
        && match alloc.client {
            ClientStatus::Running => true,
            ClientStatus::Unknown => !window_over(alloc, now),
            _ => false,
        }
}

/// Whether an unknown alloc was waited for long enough. Equality counts.
pub(crate) fn window_over(alloc: &AllocSummary, now: Time) -> bool {
    let window = Span::from_s(i64::try_from(alloc.terms.lost_after_s).unwrap_or(i64::MAX));
    alloc.client == ClientStatus::Unknown && alloc.unknown_since_at.is_some_and(|since| now.since(since) >= window)
}
