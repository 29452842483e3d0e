//! The commands of operators: submit and list jobs, hold and drain nodes, release brakes, ask why.
//!
//! Each group of commands has its own file. A command reads by `view`, writes by `changes`, and prints by `console`: tables for
//! people or, with `--json`, JSON for programs.
//!
//! Guarantees: every write is conditional, as in the functions. A change leaves an event that names the operator, except for
//! submissions: the row of the job says all. Nothing is printed as done before it is written. An error is one line that says what
//! is wrong, why, and what to do.
//! Does not: read the clock or the environment (`main.rs` does), or do the work of the functions: their next run acts on what a
//! command wrote.

pub(crate) mod batch;
mod filter;
pub(crate) mod operate;
mod others;
pub(crate) mod output;
pub(crate) mod set_up;
pub(crate) mod show;
pub(crate) mod submit;
#[cfg(test)]
pub(crate) mod tests;
pub(crate) mod watch;
