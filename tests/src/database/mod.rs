//! The store on real databases, and rows that no function writes.

pub(crate) mod bounds;
pub(crate) mod broken_states;
pub(crate) mod contract;
pub(crate) mod old_reads;
pub(crate) mod placing;
pub(crate) mod store;
pub(crate) mod store_tables;
