//! The stage for leases: a node whose lease expired becomes disconnected or down.
//!
//! Guarantees: nothing is done about a lease that has not expired, or about silence that this run does not believe
//! (`belief`). A disconnected node that no alloc waits for any longer becomes down.
//! Does not: end allocs. The next stage does, by the status of the node. Source: Nomad PR 15068.

use super::Plan;
use super::actions::Action;
use super::view::View;
use model::reason::Reason;
use model::time::{Span, Time};
use model::{AllocSummary, ClientStatus, Desired, Life, NodeStatus};

pub(super) fn plan(view: &mut View<'_>, plan: &mut Plan) {
    let lives: Vec<_> = view.lives().filter_map(|(r, l)| Some((l, r.contact()?, r.status()?))).collect();
    for (life, contact, status) in lives {
        // Nodes that an earlier stage has decided about, such as terminated ones, are left out.
        if view.decided.contains(&life.node_id) {
            continue;
        }
        let waits = view.allocs_on(life.node_id).iter().any(|a| may_wait(a, view.now));
        let silent = view.now.since(contact.last_ping_at);
        match status {
            NodeStatus::Syncing | NodeStatus::Ready if view.belief.is_silent(life.node_id) => {
                view.lose(life.node_id);
                if waits {
                    plan.add(Action::Disconnect(life.node_id), Reason::SilentWithWaitingAllocs { silent });
                } else {
                    plan.add(Action::MarkDown(life.node_id), Reason::SilentWithoutWaitingAllocs { silent });
                }
            }
            // The allocs stage loses allocs whose window is over, in this run. The status follows when they have ended.
            NodeStatus::Disconnected if !waits && !view.is_unclear(life.node_id) && !has_window_over(view, life) => {
                view.lose(life.node_id);
                plan.add(Action::MarkDown(life.node_id), Reason::LastWindowClosed {});
            }
            _ => {}
        }
    }
}

fn has_window_over(view: &View<'_>, life: &Life) -> bool {
    view.allocs_on(life.node_id).iter().any(|a| window_over(a, view.now))
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
