//! Keeps a job apart from the node, from the agent, and from other jobs.
//!
//! | what | how |
//! | --- | --- |
//! | the agent's files, other jobs' files | a user id of its own for each alloc, or for all that share a cache; directories that only this user enters |
//! | the agent's rights | given up before the job's environment is applied, and never regained |
//! | other jobs' processes | the user id; `/proc` shows the job only its own |
//! | `/tmp`, `/var/tmp`, `/dev/shm` | private, and gone with the alloc |
//! | GPUs of other jobs | their device files cannot be opened, where the machine allows a view of the file system |
//! | keyrings of the kernel | denied: they outlive the alloc |
//! | descriptors of whoever starts the agent | closed when the agent starts |
//! | memory, tasks, CPU | a control group for each alloc; else the supervisor measures memory, and the kernel counts tasks by user id |
//! | what a job leaves behind | the processes of its user id are ended, and its files in places that are open to everybody are removed |
//! | the instance metadata | a rule of the machine, tried with a job's rights |
//!
//! Guarantees: `docs/rules.md#isolation`.
//! Does not: keep the addresses of the network apart; members of a job must reach each other.

pub mod cgroup;
pub mod end;
pub mod helper;
pub mod ids;
mod keyrings;
mod left;
pub mod metadata;
pub mod probe;

use crate::machine::atomic_file::{self, if_there};
use ids::IdRange;
use nix::unistd::{Gid, Uid};
use serde::{Deserialize, Serialize};
use std::io;
use std::path::{Path, PathBuf};

/// The ids that allocs get, and the limits of their isolation on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnIds {
    /// The ids of users. No job has the first or the last one: probes run as both, and the helper that ends jobs runs as the last
    /// one.
    pub uids: IdRange,
    pub max_tasks: u64,
    /// Whether jobs have their own view of the file system.
    pub private_mounts: bool,
    /// The group that has the control groups of allocs; `None` if the machine has none.
    pub cgroups: Option<PathBuf>,
}

impl OwnIds {
    pub fn job_uids(&self) -> IdRange {
        IdRange { first: self.uids.first.saturating_add(1), last: self.uids.last.saturating_sub(1) }
    }
}

/// How one alloc is kept apart: part of `task.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskIsolation {
    /// The user id of the alloc, and its group id.
    pub uid: u32,
    /// The user id of the helper that ends the alloc.
    pub reaper: u32,
    pub max_tasks: u64,
    pub private_mounts: bool,
    /// The device files that the alloc must not open: those of the GPUs that it does not have.
    pub closed: Vec<PathBuf>,
    pub cgroup: Option<PathBuf>,
}

impl TaskIsolation {
    /// Ends everything that runs for the alloc in `dir`. If it `is_last` with its user id, ends all that runs as this user, and removes what
    /// the user left in places that are open to everybody. `program` is the agent's own.
    pub async fn end(&self, program: &Path, dir: &Path, is_last: bool) {
        // Only root takes a process out of its group. So a group without processes proves that nothing of the alloc runs.
        let has_ended = match &self.cgroup {
            Some(cgroup) => {
                let removed = cgroup::remove(cgroup).await.inspect_err(|error| {
                    tracing::warn!(%error, cgroup = %cgroup.display(), "the control group of the alloc is left behind");
                });
                removed.is_ok()
            }
            None => false,
        };
        if !is_last {
            return;
        }
        if !has_ended {
            end::end_user(program, self.uid, self.reaper).await;
        }
        let (uid, view) = (self.uid, self.private_mounts.then(|| dir.to_owned()));
        if let Err(error) = tokio::task::spawn_blocking(move || left::remove_of_user(uid, view.as_deref())).await {
            tracing::error!(%error, "the removal of what a job left failed");
        }
    }
}

/// The name that an alloc's user id has in its own view of the file system.
pub const JOB_NAME: &str = "job";

/// The file of an alloc that nobody but root may open. It is mounted in the place of each file that is closed to the alloc.
pub const CLOSED: &str = "closed";

pub fn write_closed(dir: &Path) -> io::Result<()> {
    atomic_file::write(&dir.join(CLOSED), b"")?;
    std::fs::set_permissions(dir.join(CLOSED), std::os::unix::fs::PermissionsExt::from_mode(0o000))
}

/// Pairs of a path and the place where a job sees it.
pub type PrivateMounts = Vec<(PathBuf, PathBuf)>;

/// The private mounts of an alloc, which close these files to it: a job has no right to undo them, or to make a device file of its own.
/// `dir` is the directory of the alloc, with the files that [`write_user_files`] made. If a temporary directory contains the data
/// directory, the alloc sees the machine's one. Otherwise the alloc would not find its own files.
pub fn private_mounts(dir: &Path, closed: &[PathBuf]) -> PrivateMounts {
    let temporary = left::TEMPORARY.iter().map(Path::new).filter(|t| t.is_dir() && !dir.starts_with(t));
    let mut binds: Vec<_> = temporary.map(|t| (dir.join("tmp"), t.to_owned())).collect();
    binds.extend(USER_FILES.map(|name| (dir.join(name), Path::new("/etc").join(name))));
    binds.extend(closed.iter().map(|path| (dir.join(CLOSED), path.clone())));
    binds.retain(|(_, to)| to.exists());
    binds
}

/// The files that give users and groups their names.
pub const USER_FILES: [&str; 2] = ["passwd", "group"];

/// Writes the users and groups of the machine, and those of the alloc, into the alloc's directory. Programs such as `ssh`
/// and `git` fail for a user without a name.
pub fn write_user_files(dir: &Path, uid: u32, home: &Path) -> io::Result<()> {
    let name = JOB_NAME;
    let lines =
        [format!("{name}:x:{uid}:{uid}:nodekeeper job:{}:/bin/sh\n", home.display()), format!("{name}:x:{uid}:\n")];
    for (file, line) in USER_FILES.into_iter().zip(lines) {
        let Some(mut text) = if_there(std::fs::read(Path::new("/etc").join(file)))? else { continue };
        if !text.is_empty() && !text.ends_with(b"\n") {
            text.push(b'\n');
        }
        text.extend(line.bytes());
        write_for_job(&dir.join(file), &text)?;
    }
    Ok(())
}

/// Writes a file of the agent that the job reads.
pub fn write_for_job(path: &Path, bytes: &[u8]) -> io::Result<()> {
    atomic_file::write(path, bytes)?;
    std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o644))
}

/// Gives `path` to this user, and to nobody else.
pub fn give(path: &Path, uid: u32, gid: u32, mode: u32) -> io::Result<()> {
    nix::unistd::chown(path, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?;
    std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(mode))
}
