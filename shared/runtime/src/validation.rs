//! Rows that cannot be used: those that cannot be read, and those that contradict the contract.
//!
//! Guarantees: such a row is quarantined before any decision, with its subject and what is wrong with it, and its
//! subject is left alone. A node record's slot stays taken and its allocs stay as they are. A job waits, and its allocs
//! run on. An alloc makes its node only partially read: nothing is placed or stopped there. A handle is not judged. An
//! entry of the control table counts as never written. An attribute that this code does not know is no contradiction.
//! Does not: repair anything, or delete a row that it does not understand.

use model::action::{EventPolicy, Plan};
use model::control::Control;
use model::events::Subject;
use model::ids::{AllocId, JobId, NodeId, Slot};
use model::reason::Reason;
use model::time::Span;
use model::{AllocSummary, Handle, JobSummary, NodeRecord};
use std::collections::{BTreeMap, BTreeSet};
use store::{Table, Unreadable};

/// What a person must correct, and what lasts until then, leaves at most one event in this time.
pub const A_DAY: Span = Span::from_s(86_400);

#[derive(Clone, Debug, PartialEq)]
pub struct InvalidRow {
    pub table: Table,
    pub subject: Subject,
    pub what: String,
}

/// The quarantined rows, and what they are about.
#[derive(Clone, Debug, Default)]
pub struct Quarantined {
    /// In no particular order.
    pub rows: Vec<InvalidRow>,
    /// The slots of quarantined node records. They stay taken.
    pub slots: BTreeSet<Slot>,
    pub jobs: BTreeSet<JobId>,
    pub allocs: BTreeSet<AllocId>,
}

impl InvalidRow {
    /// The row that cannot be read.
    pub fn unreadable(row: &Unreadable) -> Self {
        let of_node = || row.node_id().map(|node_id| Subject::Slot(node_id.slot()));
        let subject = row.slot().map(Subject::Slot).or_else(|| row.job_id().map(Subject::Job));
        let subject = subject.or_else(|| row.alloc_id().map(Subject::Alloc)).or_else(of_node);
        Self { table: row.table, subject: subject.unwrap_or(Subject::Cluster), what: row.to_string() }
    }
}

impl Quarantined {
    /// Quarantines the entries of the control table that cannot be read.
    pub fn entries(&mut self, control: &Control) {
        let row = |what: String| InvalidRow { table: Table::Control, subject: Subject::Cluster, what };
        self.rows.extend(control.unreadable.iter().map(|entry| row(entry.to_string())));
    }

    /// Quarantines rows that cannot be read, each once.
    pub fn unreadable(&mut self, rows: impl IntoIterator<Item = Unreadable>) {
        for row in rows.into_iter().map(|row| InvalidRow::unreadable(&row)) {
            if self.notes(&row) {
                self.rows.push(row);
            }
        }
    }

    /// Notes what the row is about. Returns whether that is new. Of the handles of a node, and of rows whose key has the wrong
    /// form, each is new.
    fn notes(&mut self, row: &InvalidRow) -> bool {
        match (row.table, &row.subject) {
            (Table::Nodes, Subject::Slot(slot)) => self.slots.insert(*slot),
            (Table::Jobs, Subject::Job(job_id)) => self.jobs.insert(*job_id),
            (Table::Allocs, Subject::Alloc(alloc_id)) => self.allocs.insert(*alloc_id),
            _ => true,
        }
    }
}

/// Plans a warning about each quarantined row of this table, which one function reads. Each leaves one event a day.
pub fn warn<A>(plan: &mut Plan<A>, quarantined: &Quarantined, table: Table, warning: fn(Subject) -> A) {
    for row in quarantined.rows.iter().filter(|row| row.table == table) {
        let reason = Reason::RowInvalid { what: row.what.clone() };
        plan.push(warning(row.subject.clone()), reason, EventPolicy::Once(A_DAY));
    }
}

/// Takes the rows that contradict the contract out of these lists.
pub fn quarantine(
    quarantined: &mut Quarantined,
    nodes: &mut Vec<NodeRecord>,
    jobs: &mut Vec<JobSummary>,
    allocs: &mut Vec<AllocSummary>,
    handles: &mut Vec<Handle>,
) {
    let slots = counts(nodes.iter().map(|n| n.slot));
    nodes.retain(|node| keeps(quarantined, Table::Nodes, Subject::Slot(node.slot), wrong_node(node, &slots)));
    let ids = counts(jobs.iter().map(|j| j.job_id));
    jobs.retain(|job| {
        let what = is_twice(&ids, &job.job_id).then(|| "it is in the table twice".to_owned());
        keeps(quarantined, Table::Jobs, Subject::Job(job.job_id), what)
    });
    quarantine_allocs(quarantined, allocs);
    let ids = counts(handles.iter().map(key_of));
    handles.retain(|handle| {
        let is_wrong = is_twice(&ids, &key_of(handle));
        let what = is_wrong.then(|| format!("handle {} is in the table twice", handle.handle));
        keeps(quarantined, Table::Handles, Subject::Slot(handle.node_id.slot()), what)
    });
    quarantined.rows.dedup();
}

/// Takes the allocs that contradict the contract out of this list. The node of such an alloc is only partially read: nothing is
/// placed or stopped on it.
pub fn quarantine_allocs(quarantined: &mut Quarantined, allocs: &mut Vec<AllocSummary>) {
    let ids = counts(allocs.iter().map(|a| a.alloc_id));
    allocs.retain(|alloc| {
        let what = is_twice(&ids, &alloc.alloc_id).then(|| "it is in the table twice".to_owned());
        keeps(quarantined, Table::Allocs, Subject::Alloc(alloc.alloc_id), what)
    });
}

/// Returns whether the row stays. If not, notes what is wrong with it.
fn keeps(quarantined: &mut Quarantined, table: Table, subject: Subject, wrong: Option<String>) -> bool {
    let Some(what) = wrong else { return true };
    let row = InvalidRow { table, subject, what };
    quarantined.notes(&row);
    quarantined.rows.push(row);
    false
}

fn wrong_node(node: &NodeRecord, slots: &BTreeMap<Slot, usize>) -> Option<String> {
    match node.node_id() {
        _ if is_twice(slots, &node.slot) => Some("its slot is in the table twice".to_owned()),
        Some(id) if id.slot() != node.slot => Some(format!("its node id {id} belongs to slot {}", id.slot())),
        _ => None,
    }
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
