//! The `nodekeeper` command: operators' commands, and the whole system on one machine (the feature `local`, which
//! no released program has).
//!
//! Guarantees: the same commands work with AWS and with local endpoints; an error is one line that says what is wrong,
//! why, and what to do. Does not: overwrite what a function wrote: every write is conditional, as in the functions.

pub mod aws;
mod changes;
pub mod command;
mod commands;
pub mod console;
pub mod given;
pub mod help;
#[cfg(feature = "local")]
#[path = "../../local/system/mod.rs"]
pub mod local;
pub mod no_cluster;
mod running;
mod view;
mod web;

pub use view::when;
