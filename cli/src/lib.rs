//! The `nodekeeper` command: operators' commands, and the whole system on one machine.
//!
//! Guarantees: the same commands work against AWS and against local endpoints; an error is
//! one line that says what, why and what to do. Does not: change anything behind the back of
//! the functions: every write is conditional, like theirs.

pub mod commands;
pub mod local;
