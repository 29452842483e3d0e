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
use model::time::{Span, Time};
use model::{AllocSummary, Handle, JobSummary, MAX_NODES, NodeRecord};
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
    now: Time,
    nodes: &mut Vec<NodeRecord>,
    jobs: &mut Vec<JobSummary>,
    allocs: &mut Vec<AllocSummary>,
    handles: &mut Vec<Handle>,
) {
    let slots = counts(nodes.iter().map(|n| n.slot));
    nodes.retain(|node| keeps(quarantined, Table::Nodes, Subject::Slot(node.slot), wrong_node(node, &slots, now)));
    let ids = counts(jobs.iter().map(|j| j.job_id));
    jobs.retain(|job| keeps(quarantined, Table::Jobs, Subject::Job(job.job_id), wrong_job(job, &ids)));
    quarantine_allocs(quarantined, now, allocs);
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
pub fn quarantine_allocs(quarantined: &mut Quarantined, now: Time, allocs: &mut Vec<AllocSummary>) {
    let ids = counts(allocs.iter().map(|a| a.alloc_id));
    allocs.retain(|alloc| {
        keeps(quarantined, Table::Allocs, Subject::Alloc(alloc.alloc_id), wrong_alloc(alloc, &ids, now))
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

fn wrong_node(node: &NodeRecord, slots: &BTreeMap<Slot, usize>, now: Time) -> Option<String> {
    match node.node_id() {
        _ if is_twice(slots, &node.slot) => Some("its slot is in the table twice".to_owned()),
        Some(id) if id.slot() != node.slot => Some(format!("its node id {id} belongs to slot {}", id.slot())),
        _ => far_ahead(node, now).map(|(what, at)| format!("{what} is {at}, more than a day ahead")),
    }
}

fn wrong_job(job: &JobSummary, ids: &BTreeMap<JobId, usize>) -> Option<String> {
    match job.needs.nodes {
        _ if is_twice(ids, &job.job_id) => Some("it is in the table twice".to_owned()),
        1..=MAX_NODES => None,
        n => Some(format!("it wants {n} nodes: 1 to {MAX_NODES} are possible")),
    }
}

fn wrong_alloc(alloc: &AllocSummary, ids: &BTreeMap<AllocId, usize>, now: Time) -> Option<String> {
    if is_twice(ids, &alloc.alloc_id) {
        return Some("it is in the table twice".to_owned());
    }
    let times = [
        ("placed_at", Some(alloc.placed_at)),
        ("started_at", alloc.started_at),
        ("unknown_since_at", alloc.unknown_since_at),
    ];
    first_ahead(times, now).map(|(what, at)| format!("{what} is {at}, more than a day ahead"))
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
