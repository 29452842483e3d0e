//! The whole system on one machine, without AWS: `nodekeeper local`.
//!
//! The functions run here in this process, as they are deployed (`functions`), with an embedded DynamoDB and a stand-in for
//! EC2 ([`ec2_stand_in`]). Its instances are real agent processes ([`machines`]) that run real jobs. A page shows everything
//! live (`page`).
//!
//! Guarantees: every process that it starts ends with it, also daemons of jobs. It writes below one directory only. It listens on
//! the loopback address only, and only programs of its user that have the credentials of this start can change anything
//! (`access`).
//! Does not: limit a machine to its size, or keep machines over a restart.
//! With `--data` the tables stay, and the functions launch a new fleet.
//!
//! | where | what |
//! | --- | --- |
//! | `args`, `error`, `terminal` | options, texts of errors, and output |
//! | `run`, `end_signals` | the life of the command, from start to end, and the signals that end it |
//! | `stack` | starts and stops the parts |
//! | `ports` | the addresses of the parts |
//! | `agent_program` | finds the agent, and builds it in a source tree |
//! | `directory`, `environment` | the working directory and its lock, the environment file |
//! | `access` | the credentials of this start, and the checks at every port |
//! | `dynamo` | the embedded DynamoDB over HTTP |
//! | `database`, [`tables`], `region` | the embedded DynamoDB, its tables, what EC2 offers |
//! | `functions`, `function_urls` | the functions: their runs and schedules, and the URLs that agents call |
//! | `wake` | the schedules of functions that run elsewhere |
//! | `triggers` | what AWS does with the tables' streams |
//! | [`machines`], `processes` | agents, and every process that belongs to one |
//! | `page` | the page and the machines' metadata service |

mod access;
mod args;
mod database;
mod directory;
mod dynamo;
mod end_signals;
mod environment;
mod error;
mod functions;
pub mod machines;
mod page;
mod ports;
mod region;
mod run;
mod stack;
pub mod tables;
mod terminal;

pub use args::{LocalArgs, LocalEnv};
pub use run::run;

/// What tests of other modules need.
#[cfg(test)]
pub(crate) mod testing {
    use super::directory::working_directory;
    use crate::running::DIRECTORY;
    use std::fs::{self, File};
    use std::path::Path;

    /// Makes the files of a running system in this current directory. It runs until the file is dropped.
    pub(crate) fn running_in(current: &Path) -> File {
        let (dir, lock) = working_directory(&current.join(DIRECTORY)).unwrap();
        fs::write(dir.join("env"), "").unwrap();
        lock
    }
}
