//! The stage for leases: a node whose lease expired becomes disconnected or down.
//!
//! Guarantees: nothing is done about a lease that has not expired, or about silence that this run does not believe
//! (`failure_detector`). A disconnected node that no alloc waits for any longer becomes down.
//! Does not: end allocs. The next stage does, by the status of the node. Source: Nomad PR 15068.

use super::actions::{Action, FleetPlan};
use super::liveness::window_over;
use super::view::View;
use model::{AllocSummary, ClientStatus, Desired, NodeStatus, Reason, Time};

pub(super) fn plan(view: &mut View<'_>, plan: &mut FleetPlan) {
    let lives: Vec<_> = view.lives().filter_map(|(r, l)| Some((l, r.contact()?, r.status()?))).collect();
    for (life, contact, status) in lives {
        // Nodes that an earlier stage has decided about, such as terminated ones, are left out.
        if view.decided.contains(&life.node_id) {
            continue;
        }
        let waits = view.allocs_on(life.node_id).iter().any(|a| may_wait(a, view.now));
        let is_over = view.allocs_on(life.node_id).iter().any(|a| window_over(a, view.now));
        let silent = view.now.since(contact.last_ping_at);
        match status {
            NodeStatus::Syncing | NodeStatus::Ready if view.suspicion.is_silent(life.node_id) => {
                view.lose(life.node_id);
                if waits {
                    plan.add(Action::Disconnect(life.node_id), Reason::SilentWithWaitingAllocs { silent });
                } else {
                    plan.add(Action::MarkDown(life.node_id), Reason::SilentWithoutWaitingAllocs { silent });
                }
            }
            // The allocs stage loses allocs whose window is over, in this run. The status follows when they have ended.
            NodeStatus::Disconnected if !waits && !view.is_partially_read(life.node_id) && !is_over => {
                view.lose(life.node_id);
                plan.add(Action::MarkDown(life.node_id), Reason::LastWindowClosed {});
            }
            NodeStatus::Syncing | NodeStatus::Ready | NodeStatus::Disconnected | NodeStatus::Down => {}
        }
    }
}

/// Whether this alloc may wait for its silent node.
pub(super) fn may_wait(alloc: &AllocSummary, now: Time) -> bool {
    alloc.desired == Desired::Run
        && alloc.failure_policy.lost_after_s > 0
        && match alloc.client {
            ClientStatus::Pending | ClientStatus::Running => alloc.has_begun(),
            ClientStatus::Unknown => !window_over(alloc, now),
            ClientStatus::Complete | ClientStatus::Failed | ClientStatus::Lost => false,
        }
}
