//! A limit on how often one node may call: a faulty or stolen agent must not cost more than a few nodes do.
//!
//! Guarantees: a node that calls at most [`MOST_CALLS`] times in [`WINDOW`] is never refused; the memory is bounded by the nodes that
//! call within that time. The limit counts per process, and Lambda runs several, so a node may reach a multiple of it.
//! Does not: limit strangers, who are refused before. Nothing is stored: a lost count allows a few more calls.

use model::{NodeId, Span, Time};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// The time in which calls are counted.
pub const WINDOW: Span = Span::from_s(10);

/// The calls that a node may make in this time. An agent makes at most five heartbeats a second and a few reports.
pub const MOST_CALLS: u32 = 200;

/// The calls of each node since the window began.
#[derive(Debug, Default)]
pub struct RateLimit(Mutex<(Time, BTreeMap<NodeId, u32>)>);

impl RateLimit {
    /// Whether the node may call now. Counts the call.
    pub fn allows(&self, node: NodeId, now: Time) -> bool {
        let mut counted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if now.since(counted.0) >= WINDOW {
            *counted = (now, BTreeMap::new());
        }
        let calls = counted.1.entry(node).or_default();
        *calls = calls.saturating_add(1);
        *calls <= MOST_CALLS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(n: u128) -> NodeId {
        NodeId::new(model::ids::Slot::new(1).unwrap(), model::ids::Ulid::from_parts(1, n))
    }

    #[test]
    fn a_node_that_calls_too_often_is_refused_and_its_neighbour_is_not() {
        let (limit, start) = (RateLimit::default(), Time::from_ms(1_000_000));
        let allowed = |at: Time| (0..1000).filter(|_| limit.allows(node(1), at)).count() as u32;
        assert_eq!(allowed(start), MOST_CALLS);
        assert!(limit.allows(node(2), start));
        assert_eq!(allowed(start + Span::from_s(9)), 0);
        assert_eq!(allowed(start + WINDOW), MOST_CALLS);
        assert_eq!(allowed(start), 0, "an earlier time gives nothing");
    }
}
