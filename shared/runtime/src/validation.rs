//! Rows that cannot be used: those that cannot be read, and those that contradict the contract.
//!
//! Guarantees: such a row is quarantined before any decision, with its subject and what is wrong with it, and its
//! subject is left alone. A node record's slot stays taken and its allocs stay as they are. A job waits, and its allocs
//! run on. An alloc makes its node only partially read: nothing is placed or stopped there. A handle is not judged. An
//! entry of the control table counts as never written. An attribute that this code does not know is no contradiction.
//! Does not: repair anything, or delete a row that it does not understand.

use model::{AllocId, Control, JobId, NodeRecord, Slot, Subject};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use store::{Table, Unreadable};

#[derive(Clone, Debug, PartialEq)]
pub struct InvalidRow {
    pub table: Table,
    pub subject: Subject,
    pub what: String,
}

/// The quarantined rows, and what they are about.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Quarantined {
    /// In no particular order.
    #[serde(skip)]
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

/// Takes the node records that contradict the contract out of this list. A key is in a table once, so no row comes twice.
pub fn quarantine_nodes(quarantined: &mut Quarantined, nodes: &mut Vec<NodeRecord>) {
    for node in nodes.extract_if(.., |node| node.node_id().is_some_and(|id| id.slot() != node.slot)) {
        let id = node.node_id().map(|id| id.to_string()).unwrap_or_default();
        quarantined.slots.insert(node.slot);
        let what = format!("its node id {id} is not of slot {}", node.slot);
        quarantined.rows.push(InvalidRow { table: Table::Nodes, subject: Subject::Slot(node.slot), what });
    }
}
