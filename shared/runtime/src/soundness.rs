//! Rows that contradict the contract, although each of their attributes can be read.
//!
//! Guarantees: such a row is set aside before any decision, with its subject and what is wrong with it. If it is
//! a node record, its slot stays taken. An attribute that this code does not know is no contradiction.
//! Does not: read rows whose attributes cannot be read; the store refuses them.

use model::events::Subject;
use model::ids::{AllocId, JobId, NodeId, Slot};
use model::{AllocSummary, Handle, JobSummary, MAX_NODES, NodeRecord};
use std::collections::{BTreeMap, BTreeSet};

/// A row that was set aside.
#[derive(Clone, Debug, PartialEq)]
pub struct Unsound {
    /// What the row is about.
    pub subject: Subject,
    /// What is wrong with the row.
    pub what: String,
}

/// The rows that were set aside, and the slots that they occupy.
#[derive(Clone, Debug, Default)]
pub struct SetAside {
    /// Each row, in no particular order.
    pub rows: Vec<Unsound>,
    /// The slots of the node records that were set aside. They stay taken.
    pub slots: BTreeSet<Slot>,
    /// The jobs that were set aside.
    pub jobs: BTreeSet<JobId>,
    /// The allocs that were set aside.
    pub allocs: BTreeSet<AllocId>,
}

/// Takes the unsound rows out of these lists.
pub fn set_aside(
    nodes: &mut Vec<NodeRecord>,
    jobs: &mut Vec<JobSummary>,
    allocs: &mut Vec<AllocSummary>,
    handles: &mut Vec<Handle>,
) -> SetAside {
    let mut aside = SetAside::default();
    let slots = counts(nodes.iter().map(|n| n.slot));
    nodes.retain(|node| {
        let what = match node.node_id() {
            _ if is_twice(&slots, &node.slot) => "its slot is in the table twice".to_owned(),
            Some(id) if id.slot() != node.slot => format!("its node id {id} belongs to slot {}", id.slot()),
            _ => return true,
        };
        aside.slots.insert(node.slot);
        aside.rows.push(Unsound { subject: Subject::Slot(node.slot), what });
        false
    });
    let ids = counts(jobs.iter().map(|j| j.job_id));
    jobs.retain(|job| {
        let what = match job.nodes {
            _ if is_twice(&ids, &job.job_id) => "it is in the table twice",
            1..=MAX_NODES => return true,
            n => &format!("it wants {n} nodes: 1 to {MAX_NODES} are possible"),
        };
        aside.jobs.insert(job.job_id);
        aside.rows.push(Unsound { subject: Subject::Job(job.job_id), what: what.to_owned() });
        false
    });
    let ids = counts(allocs.iter().map(|a| a.alloc_id));
    // The node of an alloc that is set aside becomes unclear: nothing is placed or stopped on it.
    allocs.retain(|alloc| {
        if is_twice(&ids, &alloc.alloc_id) {
            aside.allocs.insert(alloc.alloc_id);
            aside
                .rows
                .push(Unsound { subject: Subject::Alloc(alloc.alloc_id), what: "it is in the table twice".into() });
            return false;
        }
        true
    });
    let ids = counts(handles.iter().map(key_of));
    handles.retain(|handle| {
        if is_twice(&ids, &key_of(handle)) {
            let what = format!("handle {} is in the table twice", handle.handle);
            aside.rows.push(Unsound { subject: Subject::Slot(handle.node_id.slot()), what });
            return false;
        }
        true
    });
    aside.rows.dedup();
    aside
}

fn key_of(handle: &Handle) -> (NodeId, String) {
    (handle.node_id, handle.handle.clone())
}

fn counts<K: Ord>(keys: impl Iterator<Item = K>) -> BTreeMap<K, usize> {
    let mut counts = BTreeMap::new();
    for key in keys {
        *counts.entry(key).or_default() += 1;
    }
    counts
}

fn is_twice<K: Ord>(counts: &BTreeMap<K, usize>, key: &K) -> bool {
    counts.get(key).is_some_and(|n| *n > 1)
}
