//! The messages of a node, and how each answer changes its state.
//!
//! ```text
//! orders    the state that survives the agent, and how a list of orders changes it
//! handles   reports of handles, and their parts
//! gpus      which GPUs an alloc gets
//! node      heartbeats, reports, and what is to be done on the machine
//! ```
//!
//! Guarantees: pure, without files, sockets or clocks, so that a simulation can drive it as the agent does. Everything in
//! [`Durable`] must be on disk before the changed [`Node`] is used: clone the node, change the clone, save it, and then replace the
//! node (`SharedNode::update` does that). Orders and `as_of` are saved together, so `as_of` never names orders that are not on disk.
//! A report is repeated with the same number and the same body until an answer shows whether it was applied.
//! Does not: decide when to call; the loops in `control` and `sweep` do.

mod gpus;
mod handles;
mod node;
pub mod orders;

pub use gpus::{Gpu, Holder, Lacking, assign, sick};
pub use handles::{HandleList, HandleRound, SettledHandles};
pub use node::{AllocProgress, Identity, MachineTask, Node, Observed, Refusals, tail};
pub use orders::{Durable, LocalAlloc};

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
