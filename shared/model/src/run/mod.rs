//! The records, each with its state machine, and what planning reads of them.
//!
//! Does not: store a record, or decide which change is made.

pub mod after;
pub mod alloc;
pub(crate) mod alloc_ids;
pub mod handle;
pub(crate) mod instance;
pub(crate) mod job_record;
pub mod node;
pub mod reason;
pub mod summary;
