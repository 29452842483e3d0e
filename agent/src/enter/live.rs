//! An alloc that runs on this node, as its files say, and why there is none.
//!
//! Guarantees: an alloc counts as running as long as its supervisor does.
//! Does not: start or join anything.

use crate::alloc_dir::{AllocDir, AllocTask, StartRecord};
use crate::process_table;
use model::EndCause;
use model::ids::AllocId;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Why the command was not run.
#[derive(Debug, thiserror::Error)]
pub enum EnterError {
    /// The alloc is not on this node.
    #[error("there is no alloc {0} below {1}: is this its node, and is --data-dir the agent's?")]
    NoAlloc(AllocId, PathBuf),
    /// The alloc is not running.
    #[error("alloc {0} does not run: it {1}")]
    NotRunning(AllocId, &'static str),
    /// The files of the agent are closed to this user.
    #[error("cannot read what the agent knows of alloc {0}: {1}; be root, or the user of the agent")]
    NotPermitted(AllocId, io::Error),
    /// The agent does not isolate the alloc, and is another user's.
    #[error(
        "alloc {0} is run by the user with the id {1}, who alone can look into it: sudo --user=#{1} nodekeeper-agent enter …"
    )]
    OtherUser(AllocId, u32),
    /// A step failed.
    #[error("cannot {0}: {1}")]
    Failed(String, io::Error),
    /// The command itself is wrong.
    #[error("{0}")]
    Command(EndCause),
}

impl EnterError {
    /// The exit code, as a shell would give it.
    pub fn exit_code(&self) -> u8 {
        let code = match self {
            Self::Command(cause) => cause.exit_code(),
            _ => None,
        };
        code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
    }
}

pub(super) fn failed(what: impl Into<String>) -> impl FnOnce(io::Error) -> EnterError {
    let what = what.into();
    move |error| EnterError::Failed(what, error)
}

/// An alloc that runs.
#[derive(Debug)]
pub(super) struct Live {
    pub(super) task: AllocTask,
    pub(super) dir: AllocDir,
    pub(super) start: StartRecord,
}

impl Live {
    pub(super) fn find(data_dir: &Path, id: AllocId) -> Result<Self, EnterError> {
        let absent = || EnterError::NoAlloc(id, data_dir.to_owned());
        let root = data_dir.canonicalize().map_err(|_| absent())?;
        let dir = AllocDir::of(&root.join("allocs"), id);
        let closed = |error| EnterError::NotPermitted(id, error);
        let task = dir.task().map_err(closed)?.ok_or_else(absent)?;
        if dir.exit_record().map_err(closed)?.is_some() {
            return Err(EnterError::NotRunning(id, "has ended"));
        }
        let start = dir.start_record().map_err(closed)?.ok_or(EnterError::NotRunning(id, "has not started yet"))?;
        let owner = std::fs::metadata(dir.path()).map_err(closed)?.uid();
        if task.isolation.is_none() && owner != nix::unistd::geteuid().as_raw() {
            // Root would be root there.
            return Err(EnterError::OtherUser(id, owner));
        }
        let live = Self { task, dir, start };
        if live.is_running() { Ok(live) } else { Err(EnterError::NotRunning(id, "has ended")) }
    }

    pub(super) fn is_running(&self) -> bool {
        process_table::is_alive(self.start.pid, self.start.start_ticks)
    }
}
