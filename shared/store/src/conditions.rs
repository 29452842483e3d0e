//! Conditions and conditional writes that need more than a version.
//!
//! Guarantees: a handle row changes only if everything that the decision was based on is still as it was read.
//! Does not: write anything; the store does.

use crate::rows::{self, Record, as_read, control_key, handle_key, handle_row, job_key, n, s};
use crate::write::{Cond, Effect, Write};
use aws_sdk_dynamodb::types::AttributeValue;
use model::{ControlKey, Handle, HandleState, JobId, NodeRecord, Version};

/// The condition that no heartbeat has arrived since the record was read. If one has arrived, the write fails.
pub fn silent_since(record: &NodeRecord) -> Cond {
    Cond::is("last_ping_at", record.contact().map(|contact| n(contact.last_ping_at.as_ms())))
}

/// The condition that no live alloc is on a node.
pub fn no_live_allocs() -> Cond {
    Cond::Any(vec![Cond::Absent("allocs"), Cond::Eq("allocs", AttributeValue::L(Vec::new()))])
}

/// Writes a new handle row, only if the handle has no row.
pub fn insert_handle(handle: &Handle) -> Write {
    Write {
        key: handle_key(handle.node_id, &handle.handle),
        when: vec![Cond::Absent("handle")],
        effect: Effect::Put(handle_row(handle)),
    }
}

/// Writes the handle row of an order, only if there is no row or one without a newer order.
pub(crate) fn replace_handle(handle: &Handle) -> Write {
    let older = Cond::Lt("seq", n(handle.seq.saturating_add(1)));
    Write { when: vec![Cond::Any(vec![Cond::Absent("handle"), older])], ..insert_handle(handle) }
}

/// Writes the handle row of an order, only if there is no row or only a tombstone. An older report cannot change the
/// new row, because the row has a higher `seq` than the report's `as_of`. (After the tables were restored from a
/// backup, an alloc id may be used a second time. Then its first use may have left a tombstone.)
pub fn make_handle(handle: &Handle) -> Write {
    let gone = Cond::Eq("state", s(HandleState::Gone));
    Write { when: vec![Cond::Any(vec![Cond::Absent("handle"), gone])], ..insert_handle(handle) }
}

/// The change of a handle row, only if nobody else has changed it since it was read.
pub fn change_handle(before: &Handle, after: &Handle) -> Write {
    // The row may lack the attribute of the index, so each write sets it.
    let effect = rows::difference(rows::to_item(before), handle_row(after));
    Write { key: handle_key(before.node_id, &before.handle), when: handle_as_read(before), effect }
}

/// The deletion of a handle row, only if nobody else has changed it since it was read.
pub fn delete_handle(before: &Handle) -> Write {
    Write { key: handle_key(before.node_id, &before.handle), when: handle_as_read(before), effect: Effect::Delete }
}

/// A handle has no version. Instead, the condition compares the attributes that decisions use.
fn handle_as_read(handle: &Handle) -> Vec<Cond> {
    vec![
        Cond::Eq("state", s(handle.state)),
        Cond::Eq("seq", n(handle.seq)),
        Cond::Eq("due_at", n(handle.due_at.as_ms())),
        Cond::is("missing_reported_at", handle.missing_reported_at.map(|at| n(at.as_ms()))),
    ]
}

/// The deletion of a record, only if it is as it was read.
pub fn delete<R: Record>(record: &R) -> Write {
    Write { key: record.key(), when: vec![as_read(record)], effect: Effect::Delete }
}

/// The deletion of the entry with this key and version of the control table.
pub fn delete_entry(key: &ControlKey, version: Version) -> Write {
    let when = vec![Cond::Eq("version", n(version.number()))];
    Write { key: control_key(key), when, effect: Effect::Delete }
}

/// The check that a job has no row. Such a job counts as ended.
pub fn no_job(job: JobId) -> Write {
    Write { key: job_key(job), when: vec![Cond::Absent("job_id")], effect: Effect::Check }
}
