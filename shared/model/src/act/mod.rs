//! What a run does, and the cloud as a trait.

pub mod action;
pub mod cloud;
pub mod launch;
pub mod limits;
