//! What the cloud offers, at which prices, and what its refusals mean.

pub mod catalogue;
pub mod quotas;
pub mod refusal;
