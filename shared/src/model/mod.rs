//! The things nodekeeper keeps track of and how they may change: pure state machines.
//!
//! A transition takes the record as read, what happened and the time, and returns the record
//! as it must become, or says why not. The store writes the difference, conditional on the
//! version that was read.
//!
//! Guarantees: a state holds just what that state has; final allocs do not change; `desired`
//! never goes back from stop to run.
//! Does not: read a clock, do I/O, or know how a record is stored.

mod alloc;
#[cfg(any(test, feature = "fixtures"))]
pub mod fixtures;
mod handle;
mod job;
mod money;
mod node;
mod words;

pub use alloc::{Alloc, AllocSummary, Ending, HistoryEntry, MAX_HISTORY, Report};
pub use handle::{Handle, MAX_DUE_S, cache_handle};
pub use job::{
    BadJob, Job, JobSpec, JobSummary, MAX_COMMAND_BYTES, MAX_NODES, MAX_PRIORITY, MAX_TRANSACTION_ITEMS, Terms, Work,
    counts_for,
};
pub use money::{BadAmount, Usd};
pub use node::{
    ABSENCE_CONFIRM, Caller, Capacity, Contact, InUse, LAUNCH_CLAIM, Life, MAX_REASON_BYTES, NewLife, NodeRecord,
    NodeState, NotPossible, Offering, ShuttingDown, Version, short_reason,
};
pub use words::{
    ClientStatus, Desired, HandleKind, HandleState, Intent, JobState, Market, NodeStateName, NodeStatus, Reconcile,
    UnknownWord,
};
