//! The interface between the agent and the commands that it starts, as processes or in containers.
//!
//! Guarantees: what a supervisor asks for has one form, whichever runtime starts the command.
//! Does not: know alloc directories, exit records or the protocol.

use crate::isolation::TaskIsolation;
use crate::isolation::helper::StartResult;
use model::wire::AllocOrder;
use model::{EndCause, NodeId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;

pub type ProcessEnv = BTreeMap<String, String>;

/// A command that runs containers, by its name on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ContainerRuntime {
    Docker,
    Podman,
}

/// The file with the members' addresses, in the directory of an alloc: a line for each member, as `mpirun` reads them.
pub const HOSTS_FILE: &str = "hosts";

#[derive(Clone, Copy, Debug)]
pub struct CommandSpec<'a> {
    /// The node that runs the command. Containers are labelled with this id.
    pub node_id: NodeId,
    pub order: &'a AllocOrder,
    pub image: Option<&'a str>,
    /// Name and directory of each cache.
    pub caches: &'a [(String, PathBuf)],
    /// The directory of the alloc, with its work directory and with what is made for its command: its token, its secrets and its hosts.
    pub alloc_dir: &'a Path,
    pub gpus: &'a [String],
    pub env: &'a ProcessEnv,
    pub input: Option<&'a [u8]>,
    /// What restricts the command; `None` if the agent's own user runs it.
    pub isolation: Option<&'a TaskIsolation>,
    /// The agent's own environment, for helpers that are not the job's.
    pub agent_env: &'a ProcessEnv,
    /// The agent's own program, to start helpers with.
    pub agent_program: &'a Path,
}

pub struct Invocation {
    pub program: PathBuf,
    pub args: Vec<String>,
    /// The whole environment of the process. A client has the agent's environment too.
    pub env: ProcessEnv,
    pub stdin: Stdio,
    pub process: Process,
}

/// The role of the process of an invocation.
pub enum Process {
    /// A helper that becomes the command, or says in the verdict why it did not.
    Helper(StartResult),
    /// The client of this container runtime, and a file that it inherits.
    Client(ContainerRuntime, File),
}

/// The end of an order that can never be started.
pub(super) fn rejected(why: impl Into<String>) -> EndCause {
    EndCause::Rejected { why: why.into() }
}

/// Only containers have an image, and they need one.
pub(super) const OTHER_RUNTIME: &str =
    "the job and its runtime do not fit: a container needs an image, and a process has none";

/// The end of a command whose environment could not be handed to its process. The machine is to blame, and not the job.
pub(super) fn not_passed_on(error: io::Error) -> EndCause {
    EndCause::NotStarted { why: format!("cannot pass on the environment: {error}") }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FirstProcess {
    /// Its pid, as the container runtime sees it.
    pub pid: i32,
    pub container: String,
}
