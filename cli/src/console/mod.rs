//! The base of every command: its inputs and its output.
//!
//! | where | what |
//! | --- | --- |
//! | `aws_cli` | calls of AWS that are made once for a cluster |
//! | `context` | the cluster, the streams and the clock of a command, and its outcome |
//! | `person` | who gives the command |
//! | `bounded` | files and standard input of a person, read up to a bound |
//! | [`show`] | tables and times for people, JSON for programs |
//! | `standard_output` | standard output, whose errors name it |
//! | `usage` | the errors of a wrong command line, and of what does not answer |
//!
//! Does not: know a command, or read a cluster.

pub(crate) mod aws_cli;
pub(crate) mod bounded;
mod context;
mod person;
pub mod show;
mod standard_output;
mod usage;

pub use aws_cli::AwsCli;
pub(crate) use context::is_yes;
pub use context::{Cluster, ClusterAccess, Connect, Context, ErrorKind, Exit, WallClock};
pub use person::Person;
pub use show::Screen;
pub use standard_output::{StandardOutput, is_closed};
pub(crate) use usage::NoAnswer;
pub use usage::UsageError;
