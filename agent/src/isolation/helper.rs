//! The process that becomes a job's command.
//!
//! Flow: a supervisor starts this program again, as the helper `as-user`, with the agent's own environment. The helper
//! reads a [`JobStart`] from its standard input, enters the job's view of the files, gives up the agent's rights, and becomes
//! the command with exactly the job's environment.
//! Guarantees: no variable of a job is in the environment of a process that still has the agent's rights; otherwise a
//! job's `LD_PRELOAD` would run the job's code as root. A command that runs has every restriction of its [`JobStart`]:
//! if one cannot be applied, the command is not run.
//! Does not: know allocs, or wait for the command.

use super::{TaskIsolation, cgroup, keyrings, private_mounts};
use crate::elements::run::{self, ElementsStart};
use crate::machine::memory_file::in_memory;
use crate::work::job_command::JobCommand;
use model::{EndCause, Time};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::stat::{Mode, umask};
use nix::sys::statfs::{FsType, statfs};
use nix::unistd::{Gid, Uid};
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{self, BufReader, Seek, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

/// A badness that makes the kernel kill jobs before the agent, when the machine has no memory left.
const OOM_SCORE: &str = "500";

/// The kernel's number of the file system that shows message queues.
const MESSAGE_QUEUES: FsType = FsType(0x1980_0202);

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobStart {
    pub command: JobCommand,
    /// What restricts the command; `None` for the agent's own user.
    pub isolation: Option<TaskIsolation>,
    pub alloc_dir: PathBuf,
    /// The elements for each of which the command runs; `None` if it runs once.
    pub elements: Option<ElementsStart>,
}

/// The file in which a helper says why it did not become the command. The command cannot reach the file, because it gets another
/// standard input.
pub struct StartResult(File);

impl StartResult {
    /// Why the helper did not become the command; `None` if it did.
    pub fn read(mut self) -> Option<EndCause> {
        self.0.rewind().ok()?;
        // Until the helper writes its result, the file holds the description of the command.
        serde_json::from_reader(BufReader::new(&self.0)).ok()
    }
}

/// The standard input that tells a helper which command to become, and the verdict of the helper.
pub fn start_as(start: &JobStart) -> io::Result<(Stdio, StartResult)> {
    let file = in_memory(&serde_json::to_vec(start)?)?;
    Ok((Stdio::from(file.try_clone()?), StartResult(file)))
}

/// Becomes the command that `stdin` describes, or runs it once for each element. Returns `None` when all elements have ended.
/// Otherwise returns why the command was not run, and writes this cause into `stdin`.
pub fn run(mut stdin: File, clock: fn() -> Time) -> Option<EndCause> {
    let cause = begin(&stdin, clock).err()?;
    let said = serde_json::to_vec(&cause).map_err(io::Error::from);
    let written = said.and_then(|said| {
        stdin.set_len(0)?;
        stdin.rewind()?;
        stdin.write_all(&said)
    });
    // Without a verdict the supervisor has the exit code.
    if let Err(error) = written {
        tracing::warn!(%error, "the helper cannot say why it did not become the command");
    }
    Some(cause)
}

fn begin(stdin: &File, clock: fn() -> Time) -> Result<(), EndCause> {
    let not_started = |why: String| EndCause::NotStarted { why };
    let start: JobStart = serde_json::from_reader(BufReader::new(stdin))
        .map_err(|e| not_started(format!("standard input says nothing to run: {e}")))?;
    let JobStart { command, isolation, alloc_dir, elements } = start;
    let isolation = isolation.as_ref();
    let view = isolation.map(|isolation| private_mounts(&alloc_dir, &isolation.closed)).unwrap_or_default();
    restrict(isolation, || enter_private_mounts(&view)).map_err(|e| not_started(e.to_string()))?;
    if let Some(cause) = command.of_other_machine() {
        return Err(cause);
    }
    if let Some(elements) = elements {
        return run::run(command, elements, clock);
    }
    let error = command.ready()?.exec();
    Err(command.why_not(&error))
}

/// Applies every restriction of a command to this process. `enter_view` leaves the machine's view of the file system.
pub fn restrict(isolation: Option<&TaskIsolation>, enter_view: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    // Fails only on a kernel without the file, where the score does not exist.
    let _best_effort = fs::write("/proc/self/oom_score_adj", OOM_SCORE);
    let Some(isolation) = isolation else { return Ok(()) };
    if let Some(group) = &isolation.cgroup {
        cgroup::enter(group).map_err(|e| failed("enter the control group", &e))?;
    }
    if isolation.private_mounts {
        enter_view().map_err(|e| failed("enter the view of the file system", &e))?;
    }
    setrlimit(Resource::RLIMIT_NPROC, isolation.max_tasks, isolation.max_tasks)
        .map_err(|e| failed("limit the tasks", &e.into()))?;
    umask(Mode::from_bits_truncate(0o022));
    become_user(isolation.uid).map_err(|e| failed("become the job's user", &e))?;
    keyrings::deny().map_err(|e| failed("deny the keyrings", &e))
}

fn failed(what: &str, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("cannot {what}: {error}"))
}

/// Takes the user id and the group id for ever. The groups are changed before the user id, because only root may change groups.
pub(super) fn become_user(uid: u32) -> io::Result<()> {
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(uid));
    nix::unistd::setgroups(&[])?;
    nix::unistd::setresgid(gid, gid, gid)?;
    nix::unistd::setresuid(uid, uid, uid)?;
    // No program that the command runs gives it other rights: not by a set-user-id bit, not by file capabilities.
    Ok(nix::sys::prctl::set_no_new_privs()?)
}

/// Leaves the machine's view of the file system, and makes a private one.
pub(super) fn enter_private_mounts(mounts: &[(PathBuf, PathBuf)]) -> io::Result<()> {
    const NONE: Option<&str> = None;
    unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWIPC)?;
    // Later mounts of the machine appear in this view, and mounts of this view stay in it.
    mount(NONE, "/", NONE, MsFlags::MS_REC | MsFlags::MS_SLAVE, NONE)?;
    for (from, to) in mounts {
        let bound = mount(Some(from.as_path()), to.as_path(), NONE, MsFlags::MS_BIND, NONE);
        bound.map_err(|e| io::Error::other(format!("{} at {}: {e}", from.display(), to.display())))?;
    }
    let plain = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    if Path::new("/dev/shm").is_dir() {
        mount(Some("tmpfs"), "/dev/shm", Some("tmpfs"), plain, Some("mode=1777"))?;
    }
    // The machine's own mount shows the queues of others.
    if statfs("/dev/mqueue").is_ok_and(|fs| fs.filesystem_type() == MESSAGE_QUEUES) {
        mount(Some("mqueue"), "/dev/mqueue", Some("mqueue"), plain | MsFlags::MS_NOEXEC, NONE)?;
    }
    // Jobs see no processes of others.
    Ok(mount(Some("proc"), "/proc", Some("proc"), plain | MsFlags::MS_NOEXEC, Some("hidepid=2"))?)
}
