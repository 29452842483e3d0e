//! How long a node or an alloc may take, and whether that time is over.
//!
//! Guarantees: all stages use the same rules.
//! Does not: decide what follows.

use super::view::View;
use model::{AllocSummary, ClientStatus, Contact, Desired, Life, NodeRecord, NodeState, NodeStatus, Span, Time};

/// Whether this plan shuts the node down as soon as the node is idle, even if a job needs it. Such a node gives no room to
/// jobs.
pub(super) fn will_terminate(view: &View<'_>, record: &NodeRecord) -> bool {
    let Some(life) = record.life() else { return false };
    match &record.state {
        NodeState::Assigned(_) => life.instance_id.is_some() && boot_is_over(view, life),
        NodeState::InUse(_) | NodeState::ShuttingDown(_) | NodeState::Cleaned { .. } => {
            view.reached.refusal(record).is_some() || stuck_syncing(view, record) || !view.has_size(life)
        }
    }
}

/// Whether the boot time-out of a node that never sent a heartbeat has passed and counts: the node could have called, or
/// `heartbeat.blackout_s` has passed too.
pub(super) fn boot_is_over(view: &View<'_>, life: &Life) -> bool {
    let policy = &view.observed.policy;
    let (waited, timeout) = (view.now.since(life.assigned_at), Span::from_s(policy.boot.timeout_s));
    if waited < timeout {
        return false;
    }
    // If heartbeat-ingest was down, the node may have called in vain. Then the time-out is not its fault.
    let due = life.assigned_at + timeout - Span::from_s(policy.heartbeat.grace_s);
    view.suspicion.could_call_after(due) || waited >= timeout + Span::from_s(policy.heartbeat.blackout_s)
}

/// Whether a node heartbeats but has been `syncing` for as long as a boot may take. Such a node will not become ready.
/// A node whose lease expired does not count here: the stage `leases` decides about it, with its brakes. A node whose report could not
/// be taken as a whole does not count either.
pub(super) fn stuck_syncing(view: &View<'_>, record: &NodeRecord) -> bool {
    syncing_since(view, record, Span::ZERO).is_some()
}

/// Since when a node that heartbeats is `syncing`, if that time is at least as long as a boot may take, plus `more`. A node that
/// still lacks GPUs does not get more time because its lease expired meanwhile.
pub(super) fn syncing_since(view: &View<'_>, record: &NodeRecord, more: Span) -> Option<Time> {
    let limit = Span::from_s(view.observed.policy.boot.timeout_s) + more;
    let owes = |c: &&Contact| c.status == NodeStatus::Syncing && c.untaken.is_none();
    let contact = record.contact().filter(owes).filter(|c| c.lease_expires_at >= view.now)?;
    let since = contact.syncing_since_at?;
    let since = if record.awaits().is_some() { contact.first_ping_at } else { since };
    Some(since).filter(|since| view.now.since(*since) >= limit)
}

/// Whether the alloc is unknown and its job wants a copy meanwhile.
pub(super) fn wants_copy(alloc: &AllocSummary) -> bool {
    alloc.client == ClientStatus::Unknown && alloc.failure_policy.replace && alloc.desired == Desired::Run
}

/// Whether an unknown alloc has waited for its whole window. A wait of exactly the window counts as over.
pub(crate) fn window_over(alloc: &AllocSummary, now: Time) -> bool {
    let window = Span::from_s(i64::try_from(alloc.failure_policy.lost_after_s).unwrap_or(i64::MAX));
    alloc.client == ClientStatus::Unknown && alloc.unknown_since_at.is_some_and(|since| now.since(since) >= window)
}
