//! What a runtime provides: how the command of an alloc is started, stopped and cleaned up.
//!
//! The supervisor claims the alloc, waits for the command, kills what is left and writes the exit record. The runtime
//! has only the steps that differ between process groups and containers.
//! Guarantees: a runtime that has nothing to do for a step keeps the default, which does nothing.
//! Does not: know alloc directories, exit records or the protocol.

use crate::isolation::JobUser;
use crate::isolation::helper::{Sandbox, StartResult};
use async_trait::async_trait;
use model::ids::{AllocId, NodeId};
use model::wire::AllocOrder;
use model::{EndCause, Signal};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

pub type ProcessEnv = BTreeMap<String, String>;

/// The file with the members' addresses, in the directory of an alloc: a line for each member, as `mpirun` reads them.
pub const HOSTS_FILE: &str = "hosts";

#[derive(Clone, Copy, Debug)]
pub struct CommandSpec<'a> {
    /// The node that runs the command. Containers are labelled with this id.
    pub node_id: NodeId,
    pub order: &'a AllocOrder,
    pub image: Option<&'a str>,
    pub work_dir: &'a Path,
    /// Name and directory of each cache.
    pub caches: &'a [(String, PathBuf)],
    /// The directory of the alloc, with what is made for its command: its token, its secrets and its hosts.
    pub alloc_dir: &'a Path,
    pub gpus: &'a [String],
    pub env: &'a ProcessEnv,
    pub input: Option<&'a [u8]>,
    /// The user who runs the command; the agent's own user if absent.
    pub user: Option<&'a JobUser>,
    /// What else restricts the command; `None` unless its alloc has a user id of its own.
    pub sandbox: Option<&'a Sandbox>,
    /// The agent's own environment, for helpers that are not the job's.
    pub agent_env: &'a ProcessEnv,
    /// The agent's own program, to start helpers with.
    pub agent_program: &'a Path,
}

#[derive(Debug)]
pub struct Invocation {
    pub program: PathBuf,
    pub args: Vec<String>,
    /// The whole environment of the process. A client has the agent's environment too.
    pub env: ProcessEnv,
    pub stdin: Stdio,
    pub process: Process,
}

/// The role of the process of an invocation.
#[derive(Debug)]
pub enum Process {
    /// The command itself.
    Command,
    /// A helper that becomes the command, or says in the verdict why it did not.
    Helper(StartResult),
    /// The client of a container runtime, and a file that it inherits.
    Client(File),
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
pub struct Container {
    /// The name of the container: the alloc id, if the agent made the container.
    pub name: String,
    /// The node id on its label.
    pub label: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FirstProcess {
    /// Its pid, as the container runtime sees it.
    pub pid: i32,
    pub container: String,
}

/// A way to run commands.
#[async_trait]
pub trait Runtime: Debug + Send + Sync {
    /// The name of the runtime on the command line and in task files. It is stored on disk: never change it.
    fn name(&self) -> &'static str;

    /// Tries whether the runtime works on this machine.
    async fn try_out(&self) -> io::Result<()> {
        Ok(())
    }

    /// The variables that a command has before the job's own are added.
    fn base_environment(&self, agent_env: &ProcessEnv, user: Option<&JobUser>, work_dir: &Path) -> ProcessEnv;

    /// Where the command finds the cache `name`, which is at `on_node` on the node.
    fn cache_path(&self, name: &str, on_node: &Path) -> PathBuf;

    /// Where the command finds its work directory, which is at `on_node` on the node.
    fn work_path(&self, on_node: &Path) -> PathBuf {
        on_node.to_owned()
    }

    /// Where the command finds its token, its secrets and its hosts, which are in the directory `on_node` on the node.
    fn alloc_path(&self, on_node: &Path) -> PathBuf {
        on_node.to_owned()
    }

    /// The names of this image in registries, with digests (`NAME@DIGEST`); there may be none. An error if the machine does not
    /// have the image.
    async fn digests(&self, _image: &str) -> io::Result<Vec<String>> {
        Ok(Vec::new())
    }

    /// The id of this image. An error if the machine does not have it.
    async fn image_id(&self, image: &str) -> io::Result<String> {
        Ok(image.to_owned())
    }

    /// The ids of all images of the machine.
    async fn image_ids(&self) -> io::Result<BTreeSet<String>> {
        Ok(BTreeSet::new())
    }

    /// Pulls this image. `login` is a directory with docker's `config.json`.
    async fn pull(&self, _image: &str, _login: Option<&Path>) -> io::Result<()> {
        Ok(())
    }

    /// Removes this name of an image that no container uses, and the image with its last name.
    async fn remove_image(&self, _image: &str) -> io::Result<()> {
        Ok(())
    }

    /// How this command is started, or why it cannot be.
    fn invocation(&self, spec: &CommandSpec<'_>) -> Result<Invocation, EndCause>;

    /// Sends a signal to the first process of the container of this order, and returns at once.
    fn notify(&self, _order: &AllocOrder, _signal: Signal) {}

    /// How long the client of a container may take to end after everything in the container was killed.
    fn stop_grace(&self) -> Duration {
        Duration::ZERO
    }

    /// The time beyond its kill timeout that an alloc may take to end, with everything that is removed after the
    /// command.
    fn end_grace(&self) -> Duration {
        Duration::ZERO
    }

    /// Whether the runtime itself enforces the memory limit. Otherwise the supervisor does.
    fn enforces_memory_limit(&self) -> bool {
        false
    }

    /// What the exit code of the invocation means if it is not the command's own. `output` is the end of what was printed.
    /// `is_out_of_memory`: the kernel has killed one of its processes for its memory limit.
    async fn judge(&self, _order: &AllocOrder, _code: i32, _output: &str, _is_out_of_memory: bool) -> Option<EndCause> {
        None
    }

    /// The command line that runs this command in the container of an alloc, with this variable more; `None` if its command is a
    /// process of the machine.
    fn inside(&self, _alloc: AllocId, _is_terminal: bool, _more: &str, _command: &[String]) -> Option<Vec<String>> {
        None
    }

    /// The first process of the container of an alloc; `None` if it does not run (yet).
    async fn first_process(&self, _alloc: AllocId) -> io::Result<Option<FirstProcess>> {
        Ok(None)
    }

    /// Removes the container with this name, running or not. Succeeds if there is no such container.
    async fn remove(&self, _name: &str) -> io::Result<()> {
        Ok(())
    }

    /// Every container of the allocs in this directory, running or not.
    async fn list(&self, _allocs: &Path) -> io::Result<Vec<Container>> {
        Ok(Vec::new())
    }
}
