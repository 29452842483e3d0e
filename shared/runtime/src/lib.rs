//! How a function runs: what it reads, how it carries out its plan, what it answers and tells.
//!
//! | where | what |
//! | --- | --- |
//! | [`observation`] | everything one run reads, in the order that makes it safe |
//! | [`run`] | the one run loop: lanes, freshness, deadline, outcome, event |
//! | [`clock`], [`lanes`], [`answer`], [`metrics`] | its parts |
//! | [`http`] | what all requests of nodes have in common |
//! | [`env`], [`lambda`] | the environment, the start and the Lambda loop |
//!
//! Does not: decide anything, or know EC2.

pub mod answer;
pub mod clock;
pub mod env;
pub mod http;
pub mod lambda;
pub mod lanes;
pub mod metrics;
pub mod observation;
pub mod run;
