//! map
pub mod ids;
pub mod auth;
pub mod model;
pub mod policy;
pub mod time;
pub mod wire;
