//! Checks who may use a service on the loopback address of this machine.
//!
//! Every program of this machine can connect to a port there: programs of other users, isolated jobs, and every page in a
//! browser. So each request passes up to three checks:
//!
//! | check | keeps out |
//! | --- | --- |
//! | [`Listener`]: the user of the program at the other end | other users, isolated jobs |
//! | [`origin`]: the names and headers that a browser sends | pages of other sites |
//! | [`Signatures`]: AWS Signature Version 4 ([`sigv4`]) | programs without the credentials |
//!
//! Guarantees: a refused connection gets no byte; a refused request has no effect.
//! Does not: guard against the programs of the same user, who can read the credentials and end the programs anyway.

mod listener;
pub mod origin;
mod signatures;
pub mod sigv4;

pub use listener::{Listener, Owner};
pub use signatures::{Credentials, Refusal, Signatures};
