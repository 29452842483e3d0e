//! Conditions and conditional writes that need more than a version.
//!
//! Guarantees: a handle row changes only if everything that its decision was based on is as it was read.
//! Does not: write anything; the store does.

use crate::rows::{self, as_read, handle_key, handle_row, job_key, n, node_key, s};
use crate::write::{Cond, Effect, Write};
use aws_sdk_dynamodb::types::AttributeValue;
use model::ids::JobId;
use model::{Handle, HandleState, NodeRecord};

/// The condition that no heartbeat has arrived since the record was read: a node that has just sent one wins.
pub fn silent_since(record: &NodeRecord) -> Cond {
    record.contact().map_or(Cond::Absent("last_ping_at"), |c| Cond::Eq("last_ping_at", n(c.last_ping_at.as_ms())))
}

/// The condition that no live alloc is on a node.
pub const fn no_live_allocs() -> Cond {
    Cond::Absent("allocs")
}

/// A new handle row, only if there is none.
pub fn insert_handle(handle: &Handle) -> Write {
    Write {
        key: handle_key(handle.node_id, &handle.handle),
        when: vec![Cond::Absent("handle")],
        effect: Effect::Put(handle_row(handle)),
    }
}

/// A handle row made by an order, only if there is none, or a tombstone. An older report cannot change it,
/// because it has a later `seq`. (There can be a tombstone for the alloc's own id after the tables were
/// restored from a backup: then the id is used a second time.)
pub fn make_handle(handle: &Handle) -> Write {
    let gone = Cond::Eq("state", s(HandleState::Gone));
    Write { when: vec![Cond::Any(vec![Cond::Absent("handle"), gone])], ..insert_handle(handle) }
}

/// The change of a handle row, only if nobody else has changed it since it was read.
pub fn change_handle(before: &Handle, after: &Handle) -> Write {
    Write {
        key: handle_key(before.node_id, &before.handle),
        when: handle_as_read(before),
        effect: rows::difference(handle_row(before), handle_row(after)),
    }
}

/// The check that a handle's row is as it was read.
pub fn handle_unchanged(handle: &Handle) -> Write {
    Write { key: handle_key(handle.node_id, &handle.handle), when: handle_as_read(handle), effect: Effect::Check }
}

/// The deletion of a handle row, only if nobody else has changed it since it was read.
pub fn delete_handle(before: &Handle) -> Write {
    Write { key: handle_key(before.node_id, &before.handle), when: handle_as_read(before), effect: Effect::Delete }
}

/// A handle has no version. The attributes that decisions use take its place.
fn handle_as_read(handle: &Handle) -> Vec<Cond> {
    let keep = if handle.keep { Cond::Eq("keep", AttributeValue::Bool(true)) } else { Cond::Absent("keep") };
    vec![
        Cond::Eq("state", s(handle.state)),
        Cond::Eq("seq", n(handle.seq)),
        Cond::Eq("due_at", n(handle.due_at.as_ms())),
        handle.missing_seen_at.map_or(Cond::Absent("missing_seen_at"), |at| Cond::Eq("missing_seen_at", n(at.as_ms()))),
        keep,
    ]
}

/// The deletion of a node record, only if it is as it was read.
pub fn delete_node(record: &NodeRecord) -> Write {
    Write { key: node_key(record.slot), when: vec![as_read(record)], effect: Effect::Delete }
}

/// The check that a job has no row: such a job counts as ended.
pub fn no_job(job: JobId) -> Write {
    Write { key: job_key(job), when: vec![Cond::Absent("job_id")], effect: Effect::Check }
}
