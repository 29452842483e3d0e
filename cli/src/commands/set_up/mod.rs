//! Commands that set a cluster up and take it down: stack, tables, policy, sizes.

pub(crate) mod contract;
pub(crate) mod doctor;
pub(crate) mod down;
mod network;
pub(crate) mod policy;
mod release;
pub(crate) mod sizes;
mod stack;
pub(crate) mod teardown;
pub(crate) mod up;
