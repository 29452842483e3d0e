//! The demonstration: real jobs on real processes, reported as they run, and checked at the end.
//!
//! Flow: `work` makes the jobs and computes what must come of them; `progress` submits them and
//! reports every event while the fleet grows, works and shrinks; `verdict` checks everything.
//! Guarantees: it ends within its time limit, with success or not; the expected results are computed
//! here, not by the system it shows.
//! Does not: use anything but the tables to submit, cancel and watch jobs, as any user would.

mod progress;
mod run;
mod verdict;
mod work;

pub(super) use run::{judge, run};
pub(super) use verdict::Check;
