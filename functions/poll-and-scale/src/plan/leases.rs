//! The stage for leases: a node whose lease expired becomes disconnected or down.
//!
//! Guarantees: nothing is done about a lease that has not expired; an unusual share of expired leases waits, and
//! waits longer if all leases expired, because then heartbeat-ingest is more likely down than the fleet.
//! Does not: end allocs. The next stage does, by the status of the node. Source: Nomad PR 15068.

use super::Plan;
use super::actions::Action;
use super::brakes;
use super::view::View;
use model::brake::{Hold, Trouble};
use model::reason::Reason;
use model::time::{Span, Time};
use model::{AllocSummary, BrakeKind, ClientStatus, Contact, Desired, Life, NodeStatus};

/// A life, and the contact data from its heartbeats.
type Lease<'a> = (&'a Life, &'a Contact);

pub(super) fn plan(view: &mut View<'_>, plan: &mut Plan) {
    // While the brake holds, no node changes its status because of silence.
    let Some(expired) = believed_expired(view, plan) else { return };
    for (life, contact) in expired {
        view.lose(life.node_id);
        let silent = view.now.since(contact.last_ping_at);
        if view.allocs_on(life.node_id).iter().any(|a| may_wait(a, view.now)) {
            plan.add(Action::Disconnect(life.node_id), Reason::SilentWithWaitingAllocs { silent });
        } else {
            plan.add(Action::MarkDown(life.node_id), Reason::SilentWithoutWaitingAllocs { silent });
        }
    }
    let waiting: Vec<_> = view.lives().filter(|(r, _)| r.status() == Some(NodeStatus::Disconnected)).collect();
    for (_, life) in waiting {
        let closed = !view.allocs_on(life.node_id).iter().any(|a| may_wait(a, view.now));
        if closed && !view.decided.contains(&life.node_id) && !view.is_unclear(life.node_id) {
            view.lose(life.node_id);
            plan.add(Action::MarkDown(life.node_id), Reason::LastWindowClosed {});
        }
    }
}

/// The expired leases that this run acts on; `None` while the brake holds.
fn believed_expired<'a>(view: &View<'a>, plan: &mut Plan) -> Option<Vec<Lease<'a>>> {
    let policy = &view.seen.policy.heartbeat;
    let leases: Vec<Lease<'a>> = view
        .lives()
        .filter(|(r, _)| matches!(r.status(), Some(NodeStatus::Syncing | NodeStatus::Ready)))
        .filter_map(|(r, l)| Some((l, r.contact()?)))
        .collect();
    let mut expired: Vec<Lease<'a>> = leases.iter().filter(|(_, c)| c.lease_expires_at < view.now).copied().collect();
    let above_floor = |count: usize| count > policy.brake_min as usize;
    let all = expired.len() == leases.len() && above_floor(leases.len());
    let unusual = expired.len() as f64 > policy.brake_fraction * leases.len() as f64 && above_floor(expired.len());
    // Nodes that an earlier stage has decided about, such as terminated ones, are left out.
    expired.retain(|(life, _)| !view.decided.contains(&life.node_id));
    if !all && !unusual {
        return Some(expired);
    }
    let (hold_s, why) = if all {
        (policy.blackout_s, Reason::AllSilent { nodes: leases.len() })
    } else {
        (policy.brake_hold_s, Reason::ManyExpired { expired: expired.len(), leases: leases.len() })
    };
    let hold = Some(Span::from_s(hold_s));
    let trouble = Trouble { kind: BrakeKind::Leases, hold, count: expired.len(), why };
    if brakes::decide(view, plan, trouble) == Hold::Held {
        return None;
    }
    if all {
        let most = (policy.brake_fraction * leases.len() as f64).ceil().max(1.0) as usize;
        expired.sort_by_key(|(_, c)| c.lease_expires_at);
        expired.truncate(most);
    }
    Some(expired)
}

/// Whether this alloc may wait for its silent node.
pub(super) fn may_wait(alloc: &AllocSummary, now: Time) -> bool {
    alloc.desired == Desired::Run
        && alloc.failure_policy.lost_after_s > 0
        && match alloc.client {
            ClientStatus::Running => true,
            ClientStatus::Unknown => !window_over(alloc, now),
            _ => false,
        }
}

/// Whether an unknown alloc has waited for its whole window. A wait of exactly the window counts as over.
pub(crate) fn window_over(alloc: &AllocSummary, now: Time) -> bool {
    let window = Span::from_s(i64::try_from(alloc.failure_policy.lost_after_s).unwrap_or(i64::MAX));
    alloc.client == ClientStatus::Unknown && alloc.unknown_since_at.is_some_and(|since| now.since(since) >= window)
}
