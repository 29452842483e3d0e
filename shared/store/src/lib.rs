//! DynamoDB: the only crate that knows tables, attributes, indexes and how a condition is written.
//!
//! | where | what |
//! | --- | --- |
//! | [`Store`] | reads and conditional writes |
//! | [`transactions`] | sequences of writes: place, end, stop, clean; the only place where jobs and allocs end |
//! | [`TABLES`] | tables and indexes, from which local tables are made and the template is checked |
//! | [`Db`] | the boundary: seven operations; [`Dynamo`] implements them through the AWS SDK |
//!
//! Guarantees: every write is conditional (`docs/rules.md#R3`).
//! Does not: decide anything.

mod conditions;
mod db;
mod dynamo;
mod handles;
mod past;
pub mod placing;
mod queue;
mod retention;
mod rows;
mod search;
mod store;
mod tables;
mod together;
pub mod transactions;
mod write;

pub use conditions::{
    change_handle, delete, delete_entry, delete_handle, insert_handle, make_handle, no_job, no_live_allocs,
    silent_since,
};
pub use db::{
    Answer, Db, DbError, Page, PageKey, Query, Row, Scan, Segment, WriteError, ignore_conflict, unless_raced,
};
pub use dynamo::{Dynamo, http_client, http_client_believing};
pub use past::Past;
pub use queue::{Ended, WaitingJobs, placed_last};
pub use retention::Retention;
pub use rows::end::End;
pub use rows::job_event::JOB_EVENT;
pub use rows::json::to_json;
pub use rows::listed::{Listed, Unreadable};
pub use rows::{Record, alloc_key, as_read, change, control_key, handle_key, job_key, node_key, row, unchanged};
pub use search::JobIds;
pub use store::{Pulse, Store};
pub use tables::to_json as tables_json;
pub use tables::{
    DUE, Definition, ENDED, EXPIRES, IDS, Index, KeyAttribute, KeySchema, KeyType, LIVE, NAMES, QUEUE, RECENT, TABLES,
    Table,
};
pub use together::{PartWritten, together};
pub use write::{Aliases, Cond, Effect, Item, Key, Write};
