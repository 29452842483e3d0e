//! The node's side of nodekeeper: heartbeats, runs allocs, reports, sweeps.
//!
//! ```text
//! protocol ─ orders   pure: what to say next, and how an answer changes what the node knows
//! state ─ durable     the one state file; every change of it is on disk before it is believed
//! runner ─ task       alloc directories, and the supervisors that run in them
//! shim ─ process      one supervisor: a process of its own, so that it outlives the agent
//! docker              the same through the docker command
//! control ─ backoff   the loop of heartbeats and alloc reports
//! sweep ─ handles     the loop of handle reports, and destroying what an answer names
//! client              HTTP, and what a refusal means
//! imds ─ busy         what the machine itself says: identity, interruption, other work
//! agent ─ config      the parts put together
//! ```
//!
//! Guarantees: an alloc is started at most once, whatever is killed when; its own restart
//! loses no running alloc; nothing but 410 `gone` (and, if asked for, long silence) makes it
//! stop work on its own account.
//! Deliberately absent: the node's clock (only lengths of time are measured here), any choice
//! of what to run, and any retry of an alloc: the control plane decides.

pub mod agent;
pub mod backoff;
pub mod busy;
pub mod client;
pub mod config;
pub mod control;
pub mod docker;
pub mod durable;
pub mod handles;
pub mod imds;
pub mod orders;
pub mod process;
pub mod protocol;
pub mod runner;
pub mod shim;
pub mod state;
pub mod sweep;
pub mod task;
