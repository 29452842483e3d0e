//! Commands that set a cluster up and take it down: tables, policy, sizes.

pub(crate) mod init;
pub(crate) mod policy;
pub(crate) mod sizes;
pub(crate) mod teardown;
