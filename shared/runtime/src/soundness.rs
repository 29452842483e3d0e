//! Rows that cannot be used: those that cannot be read, and those that contradict the contract.
//!
//! Guarantees: such a row is set aside before any decision, with its subject and what is wrong with it, and its subject is
//! left alone. A node record's slot stays taken and its allocs stay as they are. A job waits, and its allocs run on. An alloc
//! makes its node unclear: nothing is placed or stopped there. A handle is not judged. An entry of the control table counts as
//! never written. An attribute that this code does not know is no contradiction.
//! Does not: repair anything, or delete a row that it does not understand.

use model::control::Control;
use model::events::Subject;
use model::ids::{AllocId, JobId, NodeId, Slot};
use model::time::Time;
use model::{AllocSummary, Handle, JobSummary, MAX_NODES, NodeRecord};
use std::collections::{BTreeMap, BTreeSet};
use store::{Table, Unreadable};

/// A row that was set aside.
#[derive(Clone, Debug, PartialEq)]
pub struct Unsound {
    /// The table of the row.
    pub table: Table,
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

impl SetAside {
    /// Sets aside the entries of the control table that cannot be read.
    pub fn entries(&mut self, control: &Control) {
        let what = |entry: &model::control::UnreadableEntry| entry.to_string();
        self.rows.extend(control.unreadable.iter().map(|e| Unsound {
            table: Table::Control,
            subject: Subject::Cluster,
            what: what(e),
        }));
    }

    /// Sets aside rows that cannot be read, each once.
    pub fn unreadable(&mut self, rows: impl IntoIterator<Item = Unreadable>) {
        for row in rows {
            let (subject, is_new) = if let Some(slot) = row.slot() {
                (Subject::Slot(slot), self.slots.insert(slot))
            } else if let Some(job_id) = row.job_id() {
                (Subject::Job(job_id), self.jobs.insert(job_id))
            } else if let Some(alloc_id) = row.alloc_id() {
                (Subject::Alloc(alloc_id), self.allocs.insert(alloc_id))
            } else {
                // A handle, or a row whose key has the wrong form.
                (row.node_id().map_or(Subject::Cluster, |node_id| Subject::Slot(node_id.slot())), true)
            };
            if is_new {
                self.rows.push(Unsound { table: row.table, subject, what: row.to_string() });
            }
        }
    }
}

/// Takes the rows that contradict the contract out of these lists.
pub fn set_aside(
    aside: &mut SetAside,
    now: Time,
    nodes: &mut Vec<NodeRecord>,
    jobs: &mut Vec<JobSummary>,
    allocs: &mut Vec<AllocSummary>,
    handles: &mut Vec<Handle>,
) {
    let slots = counts(nodes.iter().map(|n| n.slot));
    nodes.retain(|node| {
        let what = match node.node_id() {
            _ if is_twice(&slots, &node.slot) => "its slot is in the table twice".to_owned(),
            Some(id) if id.slot() != node.slot => format!("its node id {id} belongs to slot {}", id.slot()),
            _ => match far_ahead(node, now) {
                Some((what, at)) => format!("{what} is {at}, more than a day ahead"),
                None => return true,
            },
        };
        aside.slots.insert(node.slot);
        aside.rows.push(Unsound { table: Table::Nodes, subject: Subject::Slot(node.slot), what });
        false
    });
    let ids = counts(jobs.iter().map(|j| j.job_id));
    jobs.retain(|job| {
        let what = match job.needs.nodes {
            _ if is_twice(&ids, &job.job_id) => "it is in the table twice",
            1..=MAX_NODES => return true,
            n => &format!("it wants {n} nodes: 1 to {MAX_NODES} are possible"),
        };
        aside.jobs.insert(job.job_id);
        aside.rows.push(Unsound { table: Table::Jobs, subject: Subject::Job(job.job_id), what: what.to_owned() });
        false
    });
    let ids = counts(allocs.iter().map(|a| a.alloc_id));
    // The node of an alloc that is set aside becomes unclear: nothing is placed or stopped on it.
    allocs.retain(|alloc| {
        let times = [
            ("placed_at", Some(alloc.placed_at)),
            ("started_at", alloc.started_at),
            ("unknown_since_at", alloc.unknown_since_at),
        ];
        let what = match first_ahead(times, now) {
            _ if is_twice(&ids, &alloc.alloc_id) => "it is in the table twice".to_owned(),
            Some((what, at)) => format!("{what} is {at}, more than a day ahead"),
            None => return true,
        };
        aside.allocs.insert(alloc.alloc_id);
        aside.rows.push(Unsound { table: Table::Allocs, subject: Subject::Alloc(alloc.alloc_id), what });
        false
    });
    let ids = counts(handles.iter().map(key_of));
    handles.retain(|handle| {
        if is_twice(&ids, &key_of(handle)) {
            let what = format!("handle {} is in the table twice", handle.handle);
            aside.rows.push(Unsound { table: Table::Handles, subject: Subject::Slot(handle.node_id.slot()), what });
            return false;
        }
        true
    });
    aside.rows.dedup();
}

/// A time of the record that is more than a day ahead, with its name. No function gives a lease or claims a launch for so
/// long, so the clock that wrote it was wrong, or a person wrote it. A heartbeat of the node puts a lease right.
fn far_ahead(node: &NodeRecord, now: Time) -> Option<(&'static str, Time)> {
    let (contact, life) = (node.contact(), node.life());
    let times = [
        ("last_ping_at", contact.map(|c| c.last_ping_at)),
        ("lease_expires_at", contact.map(|c| c.lease_expires_at)),
        ("assigned_at", life.map(|l| l.assigned_at)),
        ("launch_claim_until_at", life.map(|l| l.launch_claim_until_at)),
        ("absent_since_at", life.and_then(|l| l.absent_since_at)),
        ("first_ping_at", contact.map(|c| c.first_ping_at)),
        ("idle_since_at", contact.and_then(|c| c.idle_since_at)),
        ("syncing_since_at", contact.and_then(|c| c.syncing_since_at)),
    ];
    first_ahead(times, now)
}

/// The first of these times that is more than a day ahead.
fn first_ahead<const N: usize>(times: [(&'static str, Option<Time>); N], now: Time) -> Option<(&'static str, Time)> {
    times.into_iter().find_map(|(what, at)| Some((what, at.filter(|at| *at > now + model::LONGEST_AHEAD)?)))
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
