//! Words and amounts that all else is made of. They use no other folder of this crate.

pub mod amounts;
pub mod auth;
pub mod batch;
pub mod enums;
pub mod error_chain;
pub mod functions;
pub mod ids;
pub mod left_out;
pub(crate) mod mistakes;
pub mod money;
pub mod names;
pub mod ranges;
pub mod rng;
pub mod signals;
pub(crate) mod text_form;
pub mod time;
