//! How a list of orders changes what a node has to do.
//!
//! Guarantees: lists are applied in the order of `seq`, and an older list changes nothing; `desired` never changes
//! from stop to run; an alloc that may have run before, here or elsewhere, is not started. Pure: no files, no clock.
//! Does not: start or stop anything.

use crate::protocol::durable::{Durable, LocalAlloc};
use model::ids::AllocId;
use model::wire::AllocOrder;
use model::{ClientStatus, Desired};
use std::collections::BTreeSet;

/// The result of applying a list of orders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applied {
    /// Older than the last applied list: ignored.
    Older,
    /// Applied. Every listed alloc is known here.
    All,
    /// Applied, but the list has allocs that ran before and are no longer on this node. Only a complete report tells
    /// the control plane that they are lost.
    SomeMissing,
}

/// Applies the list of orders of `seq`, and raises `as_of` to it. The control plane cannot read the rows of the `unreadable`
/// allocs: these stay as they are.
pub fn apply(known: &mut Durable, seq: u64, orders: &[AllocOrder], unreadable: &BTreeSet<AllocId>) -> Applied {
    if seq < known.as_of {
        return Applied::Older;
    }
    let mut applied = Applied::All;
    for order in orders {
        if let Some(alloc) = known.allocs.get_mut(&order.alloc_id) {
            if order.desired == Desired::Stop {
                alloc.order.desired = Desired::Stop;
            }
            // A restored table lost the first placement of this alloc, and its id was placed again while the first
            // alloc is still being stopped here.
            alloc.relisted |= alloc.dropped;
        } else if order.client == ClientStatus::Pending && order.placed_seq > known.wiped_at {
            // An order with desired = stop is inserted too: the alloc ends without being started, and its end is
            // reported.
            known.allocs.insert(order.alloc_id, LocalAlloc::new(order.clone()));
        } else {
            // The alloc may have run: its status is not pending, or it was placed before the disk was wiped. This node
            // has no record of it, so the alloc is not started a second time.
            applied = Applied::SomeMissing;
        }
    }
    for (id, alloc) in &mut known.allocs {
        // A list from before the placement of an alloc says nothing about that alloc.
        let unlisted = !unreadable.contains(id) && !orders.iter().any(|o| o.alloc_id == *id);
        if unlisted && seq >= alloc.order.placed_seq {
            alloc.dropped = true;
            alloc.relisted = false;
        }
    }
    known.as_of = seq;
    known.unreadable.clone_from(unreadable);
    applied
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::testing::{alloc_id, durable, order};

    #[test]
    fn an_older_list_changes_nothing() {
        let mut known = durable();
        assert_eq!(apply(&mut known, 5, &[order(0, 5)], &BTreeSet::new()), Applied::All);
        let before = known.clone();
        assert_eq!(apply(&mut known, 4, &[], &BTreeSet::new()), Applied::Older);
        assert_eq!(known, before);
    }

    #[test]
    fn ag_08_an_alloc_absent_from_the_list_is_dropped() {
        let mut known = durable();
        apply(&mut known, 5, &[order(0, 5), order(1, 4)], &BTreeSet::new());
        apply(&mut known, 6, &[order(1, 4)], &BTreeSet::new());
        assert!(known.allocs[&alloc_id(0)].dropped);
        assert!(!known.allocs[&alloc_id(1)].dropped);
    }

    #[test]
    fn a_list_from_before_the_placement_drops_nothing() {
        let mut known = durable();
        apply(&mut known, 5, &[order(0, 5)], &BTreeSet::new());
        // A table was restored: the node registered anew, and seq went back.
        known.as_of = 0;
        apply(&mut known, 4, &[], &BTreeSet::new());
        assert!(!known.allocs[&alloc_id(0)].dropped);
    }

    #[test]
    fn a_stop_is_never_undone() {
        let mut known = durable();
        let stop = AllocOrder { desired: Desired::Stop, ..order(0, 1) };
        apply(&mut known, 1, &[stop], &BTreeSet::new());
        apply(&mut known, 2, &[order(0, 1)], &BTreeSet::new());
        assert_eq!(known.allocs[&alloc_id(0)].order.desired, Desired::Stop);
    }

    #[test]
    fn an_alloc_placed_before_the_disk_was_wiped_is_not_started() {
        let mut known = Durable { wiped_at: 5, ..durable() };
        assert_eq!(apply(&mut known, 6, &[order(0, 5), order(1, 6)], &BTreeSet::new()), Applied::SomeMissing);
        assert_eq!(known.allocs.keys().copied().collect::<Vec<_>>(), [alloc_id(1)], "placed after the wipe");
        // A complete report without alloc 0 shows that alloc 0 is lost.
        assert_eq!(known.as_of, 6);
    }

    #[test]
    fn ag_06_an_alloc_that_ran_before_is_not_started_again() {
        for client in [ClientStatus::Running, ClientStatus::Unknown] {
            for desired in [Desired::Run, Desired::Stop] {
                let mut known = durable();
                let lost = AllocOrder { client, desired, ..order(0, 1) };
                assert_eq!(apply(&mut known, 1, &[lost], &BTreeSet::new()), Applied::SomeMissing);
                assert!(known.allocs.is_empty(), "{client} {desired}");
                assert_eq!(known.as_of, 1);
            }
        }
    }

    #[test]
    fn an_alloc_whose_row_cannot_be_read_stays_as_it_is_and_its_order_is_asked_for_again() {
        let mut known = durable();
        apply(&mut known, 5, &[order(0, 5), order(1, 4)], &BTreeSet::new());
        let unreadable = BTreeSet::from([alloc_id(0)]);
        apply(&mut known, 7, &[order(1, 4), order(2, 7)], &unreadable);
        assert_eq!(known.allocs.values().map(|a| a.dropped).collect::<Vec<_>>(), [false; 3]);
        assert_eq!((known.as_of, &known.unreadable), (7, &unreadable));
        apply(&mut known, 7, &[order(1, 4), order(2, 7)], &BTreeSet::new());
        assert!(known.allocs[&alloc_id(0)].dropped && known.unreadable.is_empty());
    }
}
