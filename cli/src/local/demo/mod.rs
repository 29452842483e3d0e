//! The demonstration: real jobs on real processes, reported as they run, and checked at the end.
//!
//! Flow: `work` makes the jobs and computes their expected results; `progress` submits them and reports every event
//! while the fleet grows, works and shrinks; `verdict` checks everything.
//! Guarantees: it ends within its time limit, with success or not; the expected results are computed
//! here, not by the system it shows.
//! Does not: bypass the tables. Like any user, it submits, cancels and watches jobs through the tables.

mod progress;
mod run;
mod verdict;
mod work;

pub(super) use run::{judge, run};
pub(super) use verdict::Check;
