//! How a function runs: what it reads, how it carries out its plan, what it answers and logs.
//!
//! | where | what |
//! | --- | --- |
//! | [`observation`] | everything that one run reads, in a safe order |
//! | [`plan_state`] | an observation as JSON: `plan --state` and `--save` |
//! | [`controller`] | a scheduled run from its start to its answer: observe, plan, act |
//! | [`run`] | the one run loop: locks, freshness, deadline, outcome, event |
//! | [`shares`] | what each share has used, and the turn to place what is under a limit |
//! | [`instances`] | what actions of several functions do with instances |
//! | [`clock`], [`record_locks`], [`answer`], [`metrics`] | its parts |
//! | [`signs`] | the one list of what is not well, for `status`, the page and the alarms |
//! | [`watchdog`] | records failed runs, and says how long a function may be without a success |
//! | [`http`], [`rate`] | what all requests of nodes have in common |
//! | [`mod@env`], [`lambda`], `trust` | the environment, the start and the Lambda loop, and whose certificates a function believes |
//!
//! Guarantees: all scheduled functions share one controller, and all requests of nodes one set of checks.
//! Does not: decide anything, or know EC2.

pub mod answer;
pub mod catalogue;
pub mod clock;
pub mod controller;
pub mod env;
pub mod http;
pub mod instances;
pub mod lambda;
pub mod metrics;
pub mod observation;
pub mod plan_state;
mod queue;
pub mod rate;
pub mod record_locks;
pub mod run;
pub mod signs;
mod trust;
pub mod validation;
pub mod watchdog;

pub use queue::shares;
