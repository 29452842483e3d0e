//! Checks the requests to a service on the loopback address of this machine.
//!
//! Every program of this machine can connect to a port there. The crate `listener` keeps out the programs of other users and
//! the pages of other sites. [`Signatures`] keep out programs without the credentials: AWS Signature Version 4 ([`sigv4`]).
//!
//! Guarantees: a refused request has no effect.
//! Does not: guard against the programs of the same user, who can read the credentials and end the programs anyway.

mod signatures;
pub mod sigv4;

pub use signatures::{KeyPair, Refuse, Signatures};
