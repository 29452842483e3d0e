//! The machine itself: what it has, whether it can take work, and its files.
//!
//! Does not: start or stop allocs.

pub mod atomic_file;
pub(crate) mod blocking;
pub mod busy;
pub mod data_dir;
pub mod end_pipe;
pub mod fitness;
pub mod gpus;
pub mod guard;
pub(crate) mod locks;
pub mod memory_file;
pub mod watch;
