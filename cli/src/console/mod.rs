//! The base of every command: its inputs, its output, and the signals that end it.
//!
//! | where | what |
//! | --- | --- |
//! | `context` | the cluster, the streams and the clock of a command, and its outcome |
//! | [`show`], `tone` | tables and times for people, JSON for programs; the tone of a state |
//! | `signals` | the signals that end the program |
//! | `standard_output` | standard output, whose errors name it |
//!
//! Does not: know a command, or read a cluster.

mod context;
pub mod show;
pub(crate) mod signals;
mod standard_output;
pub(crate) mod tone;

pub(crate) use context::is_yes;
pub use context::{Clock, Cluster, Connect, Context, Outcome, Reach, Usage};
pub use show::Screen;
pub use standard_output::StandardOutput;
