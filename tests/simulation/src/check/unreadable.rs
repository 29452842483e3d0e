//! The invariants of rows that cannot be read: such a row stays as it is, its subject is left alone, and everything else goes
//! on (`docs/rules.md#quarantine`).
//!
//! Guarantees: every write, termination and order is checked while a row is spoiled.
//! Does not: spoil rows (`world::spoiling` does).

use super::{Check, RUN, SLACK, alloc_id, is_final, node_id, slot, text};
use crate::caller::{Caller, Kind};
use crate::core::lock;
use crate::database::{Change, Model, key_as_read};
use crate::ec2::Real;
use crate::rules::alike;
use model::{AllocId, JobId, NodeId, Slot, Span, Time};
use runtime::observation::ObserveError;
use store::{DbError, Item, Key, Table, handle_key, node_key};

/// How long a run may act on a row that it read before the row was spoiled. (A list may be old, and an index too.)
const BEHIND: Span = Span::from_s(100);

/// The attributes that a heartbeat or a report writes without reading the row first.
const PULSE: [&str; 6] =
    ["last_ping_at", "lease_expires_at", "uptime_ms", "alloc_report_no", "handle_report_no", "settled"];

pub(super) struct Spoiled {
    key: Key,
    row: Item,
    at: Time,
}

impl Spoiled {
    /// Whether the row is still as it was spoiled.
    pub(super) fn is_still_so(&self, model: &Model) -> bool {
        model.get(&self.key).is_some_and(|row| without_pulse(row) == without_pulse(&self.row))
    }

    /// The node of a record or an alloc. (For agents, everything goes on: a node does not know its record.)
    fn node(&self) -> Option<NodeId> {
        matches!(self.key.table, Table::Nodes | Table::Allocs).then(|| node_id(&self.row)).flatten()
    }

    fn slot(&self) -> Option<Slot> {
        slot(&self.row).filter(|_| self.key.table == Table::Nodes)
    }

    fn job(&self) -> Option<JobId> {
        text(&self.row, "job_id").and_then(|j| j.parse().ok()).filter(|_| self.key.table == Table::Jobs)
    }

    /// The alloc that runs cannot read: their list shows no version, so they can read a row without one.
    fn alloc(&self) -> Option<AllocId> {
        alloc_id(&self.row).filter(|_| self.key.table == Table::Allocs && self.row.contains_key("version"))
    }
}

fn without_pulse(row: &Item) -> Item {
    row.iter().filter(|(name, _)| !PULSE.contains(&name.as_str())).map(|(k, v)| (k.clone(), v.clone())).collect()
}

impl Check {
    /// Called when a row becomes unreadable.
    pub fn spoils(&self, key: &Key, row: &Item) {
        self.core.count(match key.table {
            Table::Nodes => "a node record could not be read",
            Table::Jobs => "a job could not be read",
            Table::Allocs => "an alloc could not be read",
            Table::Handles => "a handle could not be read",
            Table::Control => "an entry of control could not be read",
            Table::Events => "an event could not be read",
        });
        if matches!(key.table, Table::Handles | Table::Allocs) {
            lock(&self.seen).once_spoiled.push(key.clone());
        }
        let spoiled = Spoiled { key: key.clone(), row: row.clone(), at: self.core.now() };
        lock(&self.seen).spoiled.push(spoiled);
    }

    /// Called when a row is about to be repaired.
    pub fn repairs(&self, key: &Key) {
        let (now, mut seen) = (self.core.now(), lock(&self.seen));
        seen.spoiled.retain(|one| !alike(&one.key, key));
        seen.repaired.retain(|(_, at)| now.since(*at) < RUN);
        seen.repaired.push((key.clone(), now));
    }

    /// Whether a row cannot be read now.
    pub fn is_spoiled(&self, key: &Key) -> bool {
        lock(&self.seen).spoiled.iter().any(|one| alike(&one.key, key))
    }

    /// Whether this row could not be read at some time. It lacks what happened then: the end of a handle's alloc, or
    /// the return of an alloc's node.
    pub(super) fn was_spoiled(&self, table: Table, row: &Item) -> bool {
        let key = key_as_read(table, row);
        key.is_some_and(|key| lock(&self.seen).once_spoiled.iter().any(|once| alike(once, &key)))
    }

    /// Whether any row cannot be read now.
    pub fn has_spoiled(&self) -> bool {
        !lock(&self.seen).spoiled.is_empty()
    }

    /// Whether this row cannot be read now.
    pub(super) fn is_row_spoiled(&self, table: Table, row: &Item) -> bool {
        self.has_spoiled() && key_as_read(table, row).is_some_and(|key| self.is_spoiled(&key))
    }

    /// Whether a run that acts now may have found that this row cannot be read.
    pub(super) fn was_unread_lately(&self, table: Table, row: &Item) -> bool {
        let Some(key) = key_as_read(table, row) else { return true };
        let now = self.core.now();
        let was_repaired = |(one, at): &(Key, Time)| now.since(*at) < RUN && alike(one, &key);
        self.is_spoiled(&key) || lock(&self.seen).repaired.iter().any(was_repaired)
    }

    /// Whether there is such an unreadable row, and it was unreadable when the caller read it.
    fn finds(&self, caller: &Caller, is_like_this: impl Fn(&Spoiled) -> bool) -> bool {
        let behind = if matches!(caller.kind, Kind::Run(_)) { BEHIND } else { SLACK };
        lock(&self.seen).spoiled.iter().any(|one| one.at + behind < caller.began() && is_like_this(one))
    }

    /// Whether the record of this node could not be read when the caller read it.
    pub(super) fn finds_record_spoiled(&self, caller: &Caller, node: NodeId) -> bool {
        self.finds(caller, |one| one.slot() == Some(node.slot()))
    }

    pub(super) fn unreadable(&self, caller: &Caller, changes: &[Change]) {
        if !self.has_spoiled() {
            return;
        }
        for change in changes {
            self.invariant_what_cannot_be_read_stays(caller, change);
            self.invariant_a_subject_that_cannot_be_read_is_left_alone(caller, change);
        }
    }

    /// A row that cannot be read stays as it is, until somebody repairs it. Only a steady heartbeat or the number of a report
    /// is written to a record.
    fn invariant_what_cannot_be_read_stays(&self, caller: &Caller, change: &Change) {
        let Some(before) = change.before.as_deref().filter(|row| self.is_row_spoiled(change.table, row)) else {
            return;
        };
        if caller.kind == Kind::Operator {
            // A person repairs the policy by storing one.
            if let Some(key) = key_as_read(change.table, before) {
                self.repairs(&key);
            }
            return;
        }
        if change.table == Table::Control && text(before, "key") == Some("announced") {
            // This row is only a memory of what was announced, so it begins again.
            if let Some(key) = key_as_read(change.table, before) {
                self.repairs(&key);
            }
            return;
        }
        let after = change.after.as_deref();
        let same = after.is_some_and(|row| without_pulse(row) == without_pulse(before));
        if !same || (change.table != Table::Nodes && after != Some(before)) {
            let what = format!("{} changed {before:?} → {after:?}", caller.name());
            self.broken("invariant_what_cannot_be_read_stays", what);
        }
    }

    /// The subject of a row that cannot be read is left alone:
    /// - of a node, no run decides about its allocs (only a copy of an unknown one may be placed elsewhere), or changes the
    ///   rows of its handles;
    /// - of a job, no run stops or ends an alloc;
    /// - of an alloc, no run places or stops an alloc on its node.
    fn invariant_a_subject_that_cannot_be_read_is_left_alone(&self, caller: &Caller, change: &Change) {
        if !matches!(caller.kind, Kind::Run(_)) {
            return;
        }
        let (before, after) = (change.before.as_deref(), change.after.as_deref());
        let Some(row) = after.or(before) else { return };
        let node = node_id(row);
        let of_slot = |one: &Spoiled| node.is_some_and(|node| one.slot() == Some(node.slot()));
        let stops = |row: Option<&Item>| row.map(|r| text(r, "desired").map(ToOwned::to_owned));
        // (An alloc ends with its node's instance, even if another alloc on the node is unreadable.)
        let decided = change.table == Table::Allocs && stops(before) != stops(after);
        let orders = decided && !after.is_some_and(is_final);
        let client = |row: Option<&Item>| row.map(|r| text(r, "client").map(ToOwned::to_owned));
        let judged = decided || client(before) != client(after);
        let touched = match change.table {
            Table::Handles => self.finds(caller, of_slot),
            Table::Allocs => {
                let job = alloc_id(row).map(|id| id.job_id);
                let of_node = |one: &Spoiled| one.alloc().is_some() && node.is_some() && one.node() == node;
                (judged && self.finds(caller, of_slot))
                    || (decided && self.finds(caller, |one| job.is_some() && one.job() == job))
                    || (orders && self.finds(caller, of_node))
            }
            _ => false,
        };
        if touched {
            let what = format!("{} changed {before:?} → {after:?}", caller.name());
            self.broken("invariant_a_subject_that_cannot_be_read_is_left_alone", what);
        }
    }

    /// No instance is terminated if its record, or an alloc on it, cannot be read. (An alloc does not keep the instance of a
    /// life that is over: EC2 did not list the instance, so the record was cleaned, and now the instance is an orphan.)
    pub(super) fn invariant_no_unreadable_node_is_terminated(&self, model: &Model, caller: &Caller, real: &Real) {
        let record = real.owners().iter().any(|node| self.finds_record_spoiled(caller, *node));
        let Some(node) = real.node else {
            if record {
                let what = format!("{} terminates {real:?}", caller.name());
                self.broken("invariant_no_unreadable_node_is_terminated", what);
            }
            return;
        };
        let alloc = self.finds(caller, |one| one.alloc().is_some() && one.node() == Some(node));
        // A drain's deadline, or EC2, may end an alloc that cannot be read.
        let row = model.get(&node_key(node.slot())).cloned().filter(|row| node_id(row) == Some(node));
        let is_kept = row.is_some_and(|row| !row.contains_key("drain_by_at"));
        if record || (alloc && is_kept) {
            let what = format!("{} terminates {real:?}", caller.name());
            self.broken("invariant_no_unreadable_node_is_terminated", what);
        }
    }

    /// No answer names a handle for destruction whose row cannot be read.
    pub(super) fn invariant_no_unreadable_handle_is_destroyed(&self, caller: &Caller, node: NodeId, handle: &str) {
        let key = handle_key(node, handle);
        if self.finds(caller, |one| alike(&one.key, &key)) {
            let what = format!("{} names {handle} on {node}", caller.name());
            self.broken("invariant_no_unreadable_handle_is_destroyed", what);
        }
    }

    /// A row that cannot be read stops no run. (Only the policy does.)
    pub fn invariant_an_unreadable_row_stops_no_run(&self, caller: &Caller, error: &ObserveError) {
        if let ObserveError::Db(DbError::Corrupt { .. }) = error {
            self.broken("invariant_an_unreadable_row_stops_no_run", format!("{}: {error}", caller.name()));
        }
    }
}
