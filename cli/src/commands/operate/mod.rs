//! Commands that change what runs: jobs, nodes, handles, demand.

pub(crate) mod cancel;
mod changing;
pub(crate) mod demand;
pub(crate) mod exec;
pub(crate) mod handles;
pub(crate) mod waiting;
