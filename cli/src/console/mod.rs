//! The base of every command: its inputs, its output, and the signals that end it.
//!
//! | where | what |
//! | --- | --- |
//! | `aws_cli` | calls of AWS that are made once for a cluster |
//! | `context` | the cluster, the streams and the clock of a command, and its outcome |
//! | `bounded` | files and standard input of a person, read up to a bound |
//! | [`show`], `tone` | tables and times for people, JSON for programs; the tone of a state |
//! | `signals` | the signals that end the program |
//! | `standard_output` | standard output, whose errors name it |
//! | `usage` | the error of a wrong command line |
//!
//! Does not: know a command, or read a cluster.

pub(crate) mod aws_cli;
pub(crate) mod bounded;
mod context;
pub mod show;
pub(crate) mod signals;
mod standard_output;
pub(crate) mod tone;
mod usage;

pub use aws_cli::AwsCli;
pub use context::{Cluster, Connect, Context, ErrorKind, Exit, Reach, WallClock};
pub(crate) use context::{NoAnswer, is_yes};
pub use show::Screen;
pub use standard_output::{StandardOutput, is_closed};
pub use usage::UsageError;
