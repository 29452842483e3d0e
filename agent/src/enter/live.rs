//! Finds an alloc that runs on this node by its files, or says why there is none.
//!
//! Guarantees: an alloc counts as running as long as its supervisor does.
//! Does not: start or join anything.

use crate::work::alloc_dir::{AllocDir, AllocTask, StartRecord};
use anyhow::{anyhow, bail};
use model::{AllocId, EndCause};
use std::fmt::Display;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The exit code for this error, as a shell would give it: that of the command, if the command itself is wrong.
pub fn exit_code(error: &anyhow::Error) -> u8 {
    let code = error.downcast_ref::<EndCause>().and_then(EndCause::exit_code);
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}

pub(super) fn not_running(id: AllocId, why: &str) -> anyhow::Error {
    anyhow!("alloc {id} does not run: it {why}")
}

pub(super) fn failed(what: impl Display) -> impl FnOnce(io::Error) -> anyhow::Error {
    move |error| anyhow!("cannot {what}: {error}")
}

pub(super) struct LiveAlloc {
    pub(super) task: AllocTask,
    pub(super) dir: AllocDir,
    pub(super) start: StartRecord,
}

impl LiveAlloc {
    pub(super) fn find(data_dir: &Path, id: AllocId) -> anyhow::Result<Self> {
        let below = data_dir.display();
        let absent =
            || anyhow!("there is no alloc {id} below {below}: is this its node, and is --data-dir the agent's?");
        let root = data_dir.canonicalize().map_err(|_| absent())?;
        let dir = AllocDir::of(&root.join("allocs"), id);
        let closed = |error: io::Error| {
            anyhow!("cannot read what the agent knows of alloc {id}: {error}; be root, or the user of the agent")
        };
        let task = dir.task().map_err(closed)?.ok_or_else(absent)?;
        if dir.exit_record().map_err(closed)?.is_some() {
            return Err(not_running(id, "has ended"));
        }
        let start = dir.start_record().map_err(closed)?.ok_or_else(|| not_running(id, "has not started yet"))?;
        let owner = std::fs::metadata(dir.path()).map_err(closed)?.uid();
        if task.isolation.is_none() && owner != nix::unistd::geteuid().as_raw() {
            // The command would be root in the alloc too.
            bail!(
                "alloc {id} is run by the user with the id {owner}, who alone can look into it: sudo --user=#{owner} \
                 nodekeeper-agent enter …"
            );
        }
        let live = Self { task, dir, start };
        if live.is_running() { Ok(live) } else { Err(not_running(id, "has ended")) }
    }

    pub(super) fn is_running(&self) -> bool {
        process_table::is_alive(self.start.pid, self.start.start_ticks)
    }
}
