//! What operators change, whether by a command or by a key of `top`.
//!
//! | where | what |
//! | --- | --- |
//! | `cancel` | ends a job |
//! | `intent` | holds a node, drains it, or lets it work |
//! | `operate` | what all these writes share |
//!
//! Does not: ask a person, or print.

pub(crate) mod cancel;
pub(crate) mod intent;
pub(crate) mod operate;
