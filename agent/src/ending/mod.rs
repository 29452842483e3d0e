//! How a command ends that is stopped.
//!
//! ```text
//! stops         when it gets its notice, is asked to stop, and is killed
//! remains       what is left of it, and signals that reach all of that
//! command_end   whether it has ended, and why
//! unended       the report of one that does not end
//! ```
//!
//! Guarantees: `docs/rules.md#stops`.
//! Does not: wait for anything (`supervisor` and `elements` do).

pub(crate) mod command_end;
pub(crate) mod remains;
pub(crate) mod stops;
pub(crate) mod unended;
