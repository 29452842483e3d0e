//! How commands are run: as processes of the machine, or in containers.
//!
//! A job with an image runs in a container, and one without as a process of the machine.
//! Guarantees: no other file of the agent compares docker with podman.
//! Does not: supervise (`supervisor` does).

mod container;
mod containers;
pub(crate) mod init;
pub(crate) mod interface;
pub(crate) mod process;
pub(crate) mod pulls;

pub(crate) use container::{ALLOC_PATH, CACHES, TIMEOUT, WORK_DIR};
pub use containers::{Containers, NO_CONTAINERS, Pick, WantedRuntime};
pub use interface::{CommandSpec, ContainerRuntime, FirstProcess, HOSTS_FILE, Invocation, Process, ProcessEnv};
