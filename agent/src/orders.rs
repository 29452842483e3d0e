//! How a list of orders changes what a node is to do.
//!
//! Guarantees: orders are applied in the order of `seq`, and an older list changes nothing;
//! `desired` never goes from stop to run; an alloc that may have run before, here or
//! elsewhere, is not started. Pure: no files, no clock.
//! Does not: start or stop anything.

use crate::protocol::{Durable, LocalAlloc};
use shared::model::{ClientStatus, Desired};
use shared::wire::AllocOrder;

/// What a list of orders amounted to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applied {
    /// Older than what is known already: ignored.
    Older,
    /// Taken over; every listed alloc is known here.
    All,
    /// Taken over, but it lists allocs that ran before and are not on this node any more.
    /// Only a complete report tells the control plane so.
    SomeMissing,
}

/// Applies a list that belongs to `seq`, and raises `as_of`.
pub fn apply(known: &mut Durable, seq: u64, orders: &[AllocOrder]) -> Applied {
    if seq < known.as_of {
        return Applied::Older;
    }
    let mut applied = Applied::All;
    for order in orders {
        if let Some(alloc) = known.allocs.get_mut(&order.alloc_id) {
            if order.desired == Desired::Stop {
                alloc.order.desired = Desired::Stop;
            }
            // Placed once more after a restore, while what ran under its id in the history that is undone
            // is stopped here.
            alloc.relisted |= alloc.dropped;
        } else if order.client == ClientStatus::Pending && order.placed_seq > known.wiped_at {
            // Also with desired = stop: it is then ended without being started, and reported.
            known.allocs.insert(order.alloc_id, LocalAlloc::new(order.clone()));
        } else {
            // It ran, or may have (`unknown`, or ordered before our disk was wiped), and we know nothing
            // of it: not started a second time.
            applied = Applied::SomeMissing;
        }
    }
    for (id, alloc) in &mut known.allocs {
        // An answer from before it was placed says nothing about it.
        let unlisted = !orders.iter().any(|o| o.alloc_id == *id);
        if unlisted && seq >= alloc.order.placed_seq {
            alloc.dropped = true;
            alloc.relisted = false;
        }
    }
    known.as_of = seq;
    applied
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::testing::{alloc_id, durable, order};

    #[test]
    fn an_older_list_changes_nothing() {
        let mut known = durable();
        assert_eq!(apply(&mut known, 5, &[order(0, 5)]), Applied::All);
        let before = known.clone();
        assert_eq!(apply(&mut known, 4, &[]), Applied::Older);
        assert_eq!(known, before);
    }

    #[test]
    fn ag_08_an_alloc_absent_from_the_list_is_dropped() {
        let mut known = durable();
        apply(&mut known, 5, &[order(0, 5), order(1, 4)]);
        apply(&mut known, 6, &[order(1, 4)]);
        assert!(known.allocs[&alloc_id(0)].dropped);
        assert!(!known.allocs[&alloc_id(1)].dropped);
    }

    #[test]
    fn a_list_from_before_the_placement_drops_nothing() {
        let mut known = durable();
        apply(&mut known, 5, &[order(0, 5)]);
        // A table restored to an older point: we registered anew, its seq went back.
        known.as_of = 0;
        apply(&mut known, 4, &[]);
        assert!(!known.allocs[&alloc_id(0)].dropped);
    }

    #[test]
    fn stop_is_never_undone() {
        let mut known = durable();
        let stop = AllocOrder { desired: Desired::Stop, ..order(0, 1) };
        apply(&mut known, 1, &[stop]);
        apply(&mut known, 2, &[order(0, 1)]);
        assert_eq!(known.allocs[&alloc_id(0)].order.desired, Desired::Stop);
    }

    #[test]
    fn what_was_ordered_before_the_disk_was_wiped_is_not_started() {
        let mut known = Durable { wiped_at: 5, ..durable() };
        assert_eq!(apply(&mut known, 6, &[order(0, 5), order(1, 6)]), Applied::SomeMissing);
        assert_eq!(known.allocs.keys().copied().collect::<Vec<_>>(), [alloc_id(1)], "it was placed since");
        // A complete report without it tells that it is lost.
        assert_eq!(known.as_of, 6);
    }

    #[test]
    fn ag_06_an_alloc_that_ran_before_is_not_taken_up_again() {
        for client in [ClientStatus::Running, ClientStatus::Unknown] {
            for desired in [Desired::Run, Desired::Stop] {
                let mut known = durable();
                let lost = AllocOrder { client, desired, ..order(0, 1) };
                assert_eq!(apply(&mut known, 1, &[lost]), Applied::SomeMissing);
                assert!(known.allocs.is_empty(), "{client} {desired}");
                assert_eq!(known.as_of, 1);
            }
        }
    }
}
