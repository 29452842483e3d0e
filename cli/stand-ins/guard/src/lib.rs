//! Checks the requests to a service on the loopback address of this machine.
//!
//! Every program of this machine can connect to a port there. The crate `listener` keeps out the programs of other users. What it
//! lets in passes up to two checks:
//!
//! | check | keeps out |
//! | --- | --- |
//! | [`origin`]: the names and headers that a browser sends | pages of other sites |
//! | [`Signatures`]: AWS Signature Version 4 ([`sigv4`]) | programs without the credentials |
//!
//! Guarantees: a refused request has no effect.
//! Does not: guard against the programs of the same user, who can read the credentials and end the programs anyway.

pub mod origin;
mod signatures;
pub mod sigv4;

pub use signatures::{Credentials, Refusal, Signatures};
