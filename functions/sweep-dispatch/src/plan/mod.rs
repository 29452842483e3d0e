//! The decision of a scheduled sweep: which handles are due, and what happens to each. Pure.
//!
//! Guarantees: a container is marked only after its alloc is final, and a cache only after it was unused for
//! its time; the next look at a row is at most a day ahead.
//! Does not: contain the rule for one handle (`model::handle` does), or apply reports (`report` does).

use crate::actions::SweepAction;
use model::handle::{Due, NodeFact, cache_name};
use model::{Handle, NodeId, NodeRecord, NodeState, Slot, Span, Time};
use runtime::observation::Observation;
use std::collections::BTreeMap;

/// The plan of one run.
pub type SweepPlan = model::action::Plan<SweepAction>;

/// Makes the plan. `now` is the time of the decision.
pub fn plan(seen: &Observation, now: Time) -> SweepPlan {
    let records: BTreeMap<Slot, &NodeRecord> = seen.nodes.iter().map(|n| (n.slot, n)).collect();
    let cache_unused = Span::from_s(seen.policy.sweep.cache_unused_s);
    let mut plan = SweepPlan::default();
    // The node of a slot whose record is quarantined is not known, so nothing is decided about its handles.
    let is_known = |handle: &&Handle| !seen.quarantined.slots.contains(&handle.node_id.slot());
    for handle in seen.handles.iter().filter(|h| h.due_at <= now).filter(is_known).cloned() {
        let record = records.get(&handle.node_id.slot()).copied();
        match handle.due(node_fact(&handle, record, seen), cache_unused, now) {
            Due::Mark(reason) => plan.add(SweepAction::MarkDestroying(handle), reason),
            Due::Later(after, reason) => plan.add_quietly(SweepAction::Postpone(handle, after), reason),
            Due::Forget(reason) => plan.add_quietly(SweepAction::ForgetHandle(handle), reason),
            Due::Purge(reason) => plan.add_quietly(SweepAction::Purge(handle), reason),
        }
    }
    plan
}

fn node_fact(handle: &Handle, record: Option<&NodeRecord>, seen: &Observation) -> NodeFact {
    let Some(life) = record.and_then(NodeRecord::life).filter(|l| l.node_id == handle.node_id) else {
        return if record.is_some_and(|r| is_over(r, handle.node_id)) { NodeFact::Over } else { NodeFact::Lost };
    };
    let is_alloc_live = handle.alloc_id.is_some_and(|id| life.allocs.contains(&id));
    let named = |cache| seen.used_caches.get(&handle.node_id).is_some_and(|named| named.contains(cache));
    let is_cache_named = seen.partially_read.contains(&handle.node_id) || cache_name(&handle.handle).is_some_and(named);
    NodeFact::Lives { is_alloc_live, is_cache_named }
}

/// Whether this life is certainly over: the slot has a later life, or the slot is free and its last life was this one
/// or a later one.
pub(crate) fn is_over(record: &NodeRecord, node_id: NodeId) -> bool {
    match (&record.state, record.life()) {
        (_, Some(life)) => life.node_id.ulid() > node_id.ulid(),
        (NodeState::Cleaned { last_node_id }, None) => last_node_id.is_some_and(|l| l.ulid() >= node_id.ulid()),
        _ => false,
    }
}

#[cfg(test)]
mod tests;
