//! The state of a node that survives its agent, and how a list of orders changes it.
//!
//! Guarantees: the JSON form of these types is the state file. Lists are
//! applied in the order of `seq`, and an older list changes nothing; `desired` never changes from stop to run; an alloc that may
//! have run before, here or elsewhere, is not started. Pure: no files, no clock.
//! Does not: start or stop anything, or read or write the file (`data_dir` does).

use model::wire::{AllocOrder, OrderList};
use model::{AllocId, ClientStatus, Desired, NodeId};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// The content of the state file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Durable {
    /// The node that this state belongs to. A cloned disk brings the state of another node.
    pub node_id: NodeId,
    /// The boot that this state belongs to. No process survives a reboot.
    pub boot_id: String,
    /// The incarnation that the control plane issued at registration; `None` before.
    pub incarnation: Option<String>,
    /// The highest `seq` whose orders were applied.
    pub as_of: u64,
    /// No alloc report of this incarnation has a higher number.
    pub report_no: u64,
    /// The number of the last handle report of this incarnation.
    pub handle_report_no: u64,
    /// The allocs of this node. An alloc stays here until the control plane has acknowledged its end.
    pub allocs: BTreeMap<AllocId, LocalAlloc>,
    /// An alloc placed at this `seq` or before is not started, because it may have run on an earlier disk of this node.
    /// On a blank disk this is `u64::MAX` until a registration is answered. The maximum holds back no new alloc: the
    /// control plane places nothing before it has the registration and the complete report that follows.
    pub wiped_at: u64,
    /// The allocs that the last list of orders left out, because the control plane could not read their rows.
    pub unreadable: BTreeSet<AllocId>,
}

impl Durable {
    /// The state of a node with a blank disk.
    pub const fn new(node_id: NodeId, boot_id: String) -> Self {
        let allocs = BTreeMap::new();
        let unreadable = BTreeSet::new();
        let (as_of, report_no, handle_report_no, wiped_at) = (0, 0, 0, u64::MAX);
        Self { node_id, boot_id, incarnation: None, as_of, report_no, handle_report_no, allocs, wiped_at, unreadable }
    }

    /// Makes the next heartbeat register the node. Running allocs go on.
    pub fn register_anew(&mut self) {
        self.incarnation = None;
        self.as_of = 0;
        self.report_no = 0;
        self.handle_report_no = 0;
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LocalAlloc {
    pub order: AllocOrder,
    /// Why the agent stops the alloc on its own decision; `None` if it does not.
    pub stop: Option<String>,
    /// Whether the control plane no longer lists the alloc. The agent then stops the alloc, does not report its end,
    /// and forgets it.
    pub dropped: bool,
    /// Whether the alloc was dropped and is listed again, because a table was restored. The alloc is reported while it
    /// runs. After its end a complete report does not list it, so the control plane counts it as lost.
    pub relisted: bool,
}

impl LocalAlloc {
    pub const fn new(order: AllocOrder) -> Self {
        Self { order, stop: None, dropped: false, relisted: false }
    }

    pub fn stop_reason(&self) -> Option<&str> {
        match (&self.stop, self.dropped, self.order.desired) {
            (Some(why), _, _) => Some(why),
            (None, true, _) => Some("stopped: the control plane no longer lists it"),
            (None, false, Desired::Stop) => Some("stopped as ordered"),
            (None, false, Desired::Run) => None,
        }
    }
}

/// Applies a list of orders. A list that is older than the last one changes nothing.
///
/// Raises `as_of` to the `seq` of the list. But if the order of a new alloc did not come with the list, `as_of` stays just below
/// it, so that the next heartbeat asks for the order. Until it comes, no report says that the alloc is not on the node.
///
/// Returns whether some allocs of the list ran before and are no longer on this node: only a complete report tells the control
/// plane that they are lost.
pub fn apply(known: &mut Durable, seq: u64, list: &OrderList) -> bool {
    let OrderList { allocs, others, unreadable } = list;
    if seq < known.as_of {
        return false;
    }
    let (mut some_are_missing, mut as_of) = (false, seq);
    let statuses = allocs.iter().map(|order| (order.status(), Some(order)));
    let statuses: BTreeMap<AllocId, _> = statuses
        .chain(others.iter().map(|status| (*status, None)))
        .map(|(s, order)| (s.alloc_id, (s, order)))
        .collect();
    for (id, (status, order)) in &statuses {
        let may_be_new = status.client == ClientStatus::Pending && status.placed_seq > known.wiped_at;
        if let Some(alloc) = known.allocs.get_mut(id) {
            if status.desired == Desired::Stop {
                alloc.order.desired = Desired::Stop;
            }
            // A restored table lost the first placement of this alloc, and its id was placed again while the first
            // alloc is still being stopped here.
            alloc.relisted |= alloc.dropped;
        } else if !may_be_new {
            // The alloc may have run: its status is not pending, or it was placed before the disk was wiped. This node
            // has no record of it, so the alloc is not started a second time.
            some_are_missing = true;
        } else if let Some(order) = order {
            // An order with desired = stop is inserted too: the alloc ends without being started, and its end is
            // reported.
            known.allocs.insert(*id, LocalAlloc::new((*order).clone()));
        } else {
            as_of = as_of.min(status.placed_seq.saturating_sub(1));
        }
    }
    for (id, alloc) in &mut known.allocs {
        // A list from before the placement of an alloc says nothing about that alloc.
        let unlisted = !unreadable.contains(id) && !statuses.contains_key(id);
        if unlisted && seq >= alloc.order.placed_seq {
            alloc.dropped = true;
            alloc.relisted = false;
        }
    }
    known.as_of = as_of;
    known.unreadable.clone_from(unreadable);
    some_are_missing
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::testing::{alloc_id, durable, order};
    use model::wire::AllocStatus;

    fn apply(known: &mut Durable, seq: u64, orders: &[AllocOrder], unreadable: &BTreeSet<AllocId>) -> bool {
        let (allocs, unreadable) = (orders.to_vec(), unreadable.clone());
        super::apply(known, seq, &OrderList { allocs, unreadable, others: Vec::new() })
    }

    fn list(orders: &[AllocOrder], others: &[AllocStatus]) -> OrderList {
        OrderList { allocs: orders.to_vec(), others: others.to_vec(), unreadable: BTreeSet::new() }
    }

    #[test]
    fn orders_come_in_parts_and_what_is_not_here_yet_is_neither_dropped_nor_counted_as_known() {
        let mut known = durable();
        let (first, second, third) = (order(0, 3), order(1, 4), order(2, 9));
        let mut part = |orders: &[AllocOrder], others: &[AllocStatus]| {
            assert!(!super::apply(&mut known, 10, &list(orders, others)));
            (known.as_of, known.allocs.values().filter(|a| !a.dropped).count())
        };
        assert_eq!(part(std::slice::from_ref(&first), &[second.status(), third.status()]), (3, 1));
        assert_eq!(part(&[second], &[first.status(), third.status()]), (8, 2));
        // The unreadable row of an alloc was corrected, and names an order that was placed earlier: the next heartbeat asks for it.
        assert_eq!(
            part(&[], &[first.status(), order(3, 2).status(), third.status()]),
            (1, 1),
            "the second is not listed"
        );
        let running = AllocStatus { client: ClientStatus::Running, ..order(4, 5).status() };
        let others = [first.status(), running];
        let some_are_missing = super::apply(&mut known, 10, &list(&[third], &others));
        assert_eq!((some_are_missing, known.as_of), (true, 10));
    }

    #[test]
    fn an_older_list_changes_nothing() {
        let mut known = durable();
        assert!(!apply(&mut known, 5, &[order(0, 5)], &BTreeSet::new()));
        let before = known.clone();
        assert!(!apply(&mut known, 4, &[], &BTreeSet::new()));
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
        assert!(apply(&mut known, 6, &[order(0, 5), order(1, 6)], &BTreeSet::new()));
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
                assert!(apply(&mut known, 1, &[lost], &BTreeSet::new()));
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
