//! Allocs on this machine: what is ordered, what runs, and how it ended.
//!
//! Does not: choose which allocs run here; the control plane does.

pub mod alloc_dir;
pub(crate) mod end_tasks;
pub(crate) mod ends;
pub mod image;
pub mod job_command;
pub mod obstacle;
pub(crate) mod over_memory;
pub mod program;
pub mod progress;
pub mod provision;
pub mod reconcile;
pub mod runner;
pub(crate) mod scratch;
pub mod supervised;
pub mod supervisor;
pub mod user_ids;
