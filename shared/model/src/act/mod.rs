//! The vocabulary of a run: its actions, the launch request, the limits on launches, and the cloud as a trait.
//!
//! Does not: decide or call anything.

pub mod action;
pub mod cloud;
pub mod launch;
pub mod limits;
