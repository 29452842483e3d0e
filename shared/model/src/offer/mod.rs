//! What the cloud offers, at which prices, and what its refusals mean.
//!
//! Does not: ask the cloud; the crate `cloud` does.

pub mod catalogue;
pub mod quotas;
pub mod refusal;
