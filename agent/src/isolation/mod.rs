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
use nix::unistd::{Gid, Uid, User, getgrouplist};
use serde::{Deserialize, Serialize};
use std::ffi::CString;
use std::io;
use std::path::{Path, PathBuf};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobUsers {
    /// A user id of its own for each alloc.
    Own(OwnIds),
    /// This user, for all allocs.
    Named(String),
    /// The agent's own user, for all allocs.
    Agent,
}

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
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub closed: Vec<PathBuf>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
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
        let (uid, places) = (self.uid, left::places(self.private_mounts.then_some(dir)));
        if !places.is_empty()
            && let Err(error) = tokio::task::spawn_blocking(move || left::remove_of_user(uid, &places)).await
        {
            tracing::error!(%error, "the removal of what a job left failed");
        }
    }
}

/// A view of the file system that only the processes of one alloc have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrivateMounts {
    /// Pairs of a path and the place where the job sees it.
    pub binds: Vec<(PathBuf, PathBuf)>,
    /// Whether `/proc` hides the processes of others.
    pub hide_processes: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobUser {
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
    /// The name. A user id of an alloc has this name only in the alloc's own view of the file system.
    pub name: String,
    /// The home directory; `None` for the directory in which the command runs.
    pub home: Option<PathBuf>,
}

/// The name that an alloc's user id has in its own view of the file system.
pub const JOB_NAME: &str = "job";

impl JobUser {
    /// The user of an alloc with a user id of its own.
    pub fn own(uid: u32) -> Self {
        Self { uid, gid: uid, groups: Vec::new(), name: JOB_NAME.to_owned(), home: None }
    }

    pub fn of_this_process() -> Self {
        let (uid, gid) = (nix::unistd::geteuid().as_raw(), nix::unistd::getegid().as_raw());
        Self { gid, ..Self::own(uid) }
    }

    /// The user with this name, with the user's own groups. `None` if there is no such user.
    pub fn named(name: &str) -> io::Result<Option<Self>> {
        let Some(user) = User::from_name(name)? else { return Ok(None) };
        let groups = getgrouplist(&CString::new(name)?, user.gid)?;
        Ok(Some(Self {
            uid: user.uid.as_raw(),
            gid: user.gid.as_raw(),
            groups: groups.into_iter().map(Gid::as_raw).collect(),
            name: user.name,
            home: Some(user.dir),
        }))
    }
}

/// The file of an alloc that nobody but root may open. It is mounted in the place of each file that is closed to the alloc.
pub const CLOSED: &str = "closed";

pub fn write_closed(dir: &Path) -> io::Result<()> {
    atomic_file::write(&dir.join(CLOSED), b"")?;
    std::fs::set_permissions(dir.join(CLOSED), std::os::unix::fs::PermissionsExt::from_mode(0o000))
}

/// The mounts that close these files to an alloc. A job has no right to undo them, or to make a device file of its own.
pub fn closing<'a>(dir: &'a Path, closed: &'a [PathBuf]) -> impl Iterator<Item = (PathBuf, PathBuf)> {
    closed.iter().filter(|path| path.exists()).map(|path| (dir.join(CLOSED), path.clone()))
}

/// The private mounts of an alloc. `dir` is the directory of the alloc, with the files that [`write_user_files`] made. If a
/// temporary directory contains the data directory, the alloc sees the machine's one. Otherwise the alloc would not find
/// its own files.
pub fn private_mounts(dir: &Path) -> PrivateMounts {
    let temporary = left::TEMPORARY.iter().map(Path::new).filter(|t| t.is_dir() && !dir.starts_with(t));
    let mut binds: Vec<_> = temporary.map(|t| (dir.join("tmp"), t.to_owned())).collect();
    binds.extend(USER_FILES.map(|name| (dir.join(name), Path::new("/etc").join(name))));
    binds.retain(|(_, to)| to.exists());
    PrivateMounts { binds, hide_processes: proc_options_are_private() }
}

/// The files that give users and groups their names.
pub const USER_FILES: [&str; 2] = ["passwd", "group"];

/// Writes the users and groups of the machine, and those of the alloc, into the alloc's directory. Programs such as `ssh`
/// and `git` fail for a user without a name.
pub fn write_user_files(dir: &Path, user: &JobUser, home: &Path) -> io::Result<()> {
    let (uid, gid, name) = (user.uid, user.gid, &user.name);
    let lines =
        [format!("{name}:x:{uid}:{gid}:nodekeeper job:{}:/bin/sh\n", home.display()), format!("{name}:x:{gid}:\n")];
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

/// Whether a mount of `/proc` has options of its own. Before Linux 5.8 they would be the machine's.
fn proc_options_are_private() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release.split(['.', '-']).map_while(|n| n.trim().parse::<u32>().ok());
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= (5, 8)
}

/// Gives `path` to this user, and to nobody else.
pub fn give(path: &Path, uid: u32, gid: u32, mode: u32) -> io::Result<()> {
    nix::unistd::chown(path, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?;
    std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(mode))
}
