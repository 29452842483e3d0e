//! Commands that show what is, what was, and what would be.

mod arrivals;
pub(crate) mod cost;
pub(crate) mod history;
pub(crate) mod job;
pub(crate) mod jobs;
pub(crate) mod nodes;
pub(crate) mod plan;
pub(crate) mod shares;
pub(crate) mod status;
