//! Packs: the command of an alloc runs once for each of its elements.
//!
//! ```text
//! run       the process of the job's user that starts the elements
//! frames    what that process says to the supervisor, on its standard output
//! remains   what is left of an element that is stopped
//! log       the file that says how elements ended, and how much each has printed
//! ```
//!
//! Guarantees: an element is started at most once in an alloc, in the order of the numbers; the output of one element stays
//! together in the output of the alloc; the outcome is on disk before the agent reports it; a failed element stops no other.
//! Does not: try an element again. A later alloc does.

pub mod frames;
mod log;
mod remains;
pub mod run;

pub use log::ElementsLog;
pub(crate) use log::report_in;
