//! What is kept of a run for people: its events, and what its plan does not do, with the reasons.

pub mod events;
pub mod explain;
