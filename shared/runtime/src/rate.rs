//! A limit on how often one node may call: a faulty or stolen agent must not cost more than a few nodes do.
//!
//! Guarantees: a node below [`PER_SECOND`] is never refused; the memory is bounded. The limit counts per process, and
//! Lambda runs several, so a node may reach a multiple of it.
//! Does not: limit strangers, who are refused before. Nothing is stored: a lost count allows a few more calls.

use model::ids::NodeId;
use model::time::Time;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// The calls that a node may make in a second, on average. An agent makes at most five heartbeats and a few reports.
pub const PER_SECOND: u32 = 20;

/// The calls that a node may make at once.
const AT_ONCE: u32 = 200;

/// The most nodes that are remembered. Beyond that, the nodes that called least are forgotten, and if that is not
/// enough, all.
const MOST_NODES: usize = 20_000;

#[derive(Debug, Default)]
pub struct RateLimit(Mutex<BTreeMap<NodeId, CallBucket>>);

#[derive(Clone, Copy, Debug)]
struct CallBucket {
    /// Thousandths of calls that the node may make now.
    left: i64,
    filled_at: Time,
}

impl CallBucket {
    const FULL: i64 = AT_ONCE as i64 * 1000;

    fn at(self, now: Time) -> Self {
        let gained = now.since(self.filled_at).as_ms().max(0).saturating_mul(i64::from(PER_SECOND));
        Self { left: self.left.saturating_add(gained).min(Self::FULL), filled_at: self.filled_at.max(now) }
    }
}

impl RateLimit {
    /// Whether the node may call now. Counts the call.
    pub fn allows(&self, node: NodeId, now: Time) -> bool {
        let mut buckets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if buckets.len() >= MOST_NODES && !buckets.contains_key(&node) {
            // A full bucket is not needed, because an unknown node gets a full one.
            buckets.retain(|_, b| b.at(now).left < CallBucket::FULL);
            if buckets.len() >= MOST_NODES {
                buckets.clear();
            }
        }
        let bucket = buckets.entry(node).or_insert(CallBucket { left: CallBucket::FULL, filled_at: now });
        *bucket = bucket.at(now);
        if bucket.left < 1000 {
            return false;
        }
        bucket.left -= 1000;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::time::Span;

    fn node(n: u128) -> NodeId {
        NodeId::new(model::ids::Slot::new(1).unwrap(), model::ids::Ulid::from_parts(1, n))
    }

    #[test]
    fn a_node_that_calls_too_often_is_refused_and_its_neighbour_is_not() {
        let (limit, start) = (RateLimit::default(), Time::from_ms(1_000_000));
        let allowed = |at: Time| (0..1000).filter(|_| limit.allows(node(1), at)).count() as u32;
        assert_eq!(allowed(start), AT_ONCE);
        assert!(limit.allows(node(2), start));
        assert_eq!(allowed(start + Span::from_s(1)), PER_SECOND);
        assert_eq!(allowed(start + Span::from_ms(1050)), 1);
        assert_eq!(allowed(start), 0, "an earlier time gives nothing");
        assert_eq!(allowed(start + Span::from_s(1000)), AT_ONCE);
    }

    #[test]
    fn the_memory_is_bounded() {
        let (limit, now) = (RateLimit::default(), Time::from_ms(1));
        for n in 0..(MOST_NODES as u128 + 10) {
            assert!(limit.allows(node(n), now));
        }
        assert!(limit.0.lock().unwrap().len() <= MOST_NODES);
    }
}
