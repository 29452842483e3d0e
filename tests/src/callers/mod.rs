//! Who may do what: nodes, strangers, operators, functions.

pub(crate) mod attacks;
pub(crate) mod bad_input;
pub(crate) mod example_events;
pub(crate) mod operators_credentials;
pub(crate) mod permissions;
pub(crate) mod permitted;
pub(crate) mod rights;
pub(crate) mod signatures;
