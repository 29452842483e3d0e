//! How the node reaches the control plane, AWS and the services of its machine.
//!
//! Does not: decide what an answer changes on the node; `protocol` does.

pub mod backoff;
pub(crate) mod binding;
pub mod client;
pub mod control;
pub mod imds;
pub mod role_keys;
pub mod s3_access;
pub mod shared_node;
pub mod signer;
