//! The command of a job, for the process that runs it with the rights of the job's user.
//!
//! Guarantees: the command has exactly the environment and the standard input of the job; an error says whether the job is wrong or
//! the machine cannot run it.
//! Does not: give up any rights, or run anything.

use super::program;
use crate::machine::memory_file::as_stdin_bytes;
use model::EndCause;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobCommand {
    /// The program and its arguments.
    pub words: Vec<String>,
    /// The whole environment of the command.
    pub env: BTreeMap<String, String>,
    pub input: Option<Vec<u8>>,
}

impl JobCommand {
    /// The command, to be executed by this process. The job's user makes the standard input, because the command may open
    /// `/dev/stdin` again.
    pub fn ready(&self) -> Result<Command, EndCause> {
        let Some((name, args)) = self.words.split_first() else {
            return Err(EndCause::Rejected { why: "the command is empty".to_owned() });
        };
        let input = self.input.as_deref().map_or(Ok(Stdio::null()), as_stdin_bytes);
        let input =
            input.map_err(|e| EndCause::NotStarted { why: format!("cannot pass on the standard input: {e}") })?;
        let mut command = Command::new(name);
        command.args(args).env_clear().envs(&self.env).stdin(input);
        Ok(command)
    }

    /// The end of a command that this node could not execute.
    pub fn why_not(&self, error: &io::Error) -> EndCause {
        program::why_not(self.name(), self.path(), Path::new("."), error)
    }

    /// The cause, if the program is for machines of another architecture.
    pub fn of_other_machine(&self) -> Option<EndCause> {
        program::of_other_machine(self.name(), self.path(), Path::new("."))
    }

    fn name(&self) -> &str {
        self.words.first().map_or("", String::as_str)
    }

    pub fn path(&self) -> Option<&str> {
        self.env.get("PATH").map(String::as_str)
    }
}
