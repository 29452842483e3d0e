//! What is kept of a run for people.

pub mod events;
pub mod explain;
