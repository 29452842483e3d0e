//! Large fleets, what they buy, and what they cost.

pub(crate) mod cost;
pub(crate) mod large_fleet;
pub(crate) mod long_queue;
pub(crate) mod offers;
pub(crate) mod ways;
