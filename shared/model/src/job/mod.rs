//! What a user submits, how it ends, and what it used.
//!
//! Does not: know nodes or allocs; `run` has their records.

pub mod array;
pub mod container_env;
pub mod elements;
pub mod end_cause;
pub mod failure_policy;
pub mod files;
pub mod image;
pub mod needs;
pub mod output;
pub(crate) mod pack_progress;
pub mod retry;
pub mod rights;
pub mod spec;
pub mod stored;
pub mod tries;
pub mod usage;
pub mod work;
