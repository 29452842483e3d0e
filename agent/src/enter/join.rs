//! The process that becomes a command inside of an alloc.
//!
//! Guarantees: if a step fails, the command is not run; nothing is read of a later process with the same pid.
//! Does not: make namespaces or groups. It joins those of the alloc's process.

use super::caller::VARIABLE;
use super::live::{LiveAlloc, failed, not_running};
use crate::isolation::helper::restrict;
use crate::runtime::ProcessEnv;
use crate::work::job_command::JobCommand;
use crate::work::program;
use nix::sched::{CloneFlags, setns};
use nix::sys::signal::Signal;
use process_table::ProcessEntry;
use std::fs::File;
use std::io::{self, IsTerminal};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Becomes the command. Returns only if that fails. The process must have only one thread: otherwise it cannot change its view of
/// the file system.
pub(super) fn run(live: &LiveAlloc, command: &[String], mark: &str, term: Option<String>) -> anyhow::Error {
    match prepare(live, command, mark, term) {
        Ok(command) => {
            let Some((name, args)) = command.words.split_first() else {
                return not_running(live.task.order.alloc_id, "has no command");
            };
            let error = Command::new(name).args(args).env_clear().envs(&command.env).exec();
            anyhow::Error::msg(program::why_not(name, command.path(), &live.dir.work(), &error))
        }
        Err(error) => error,
    }
}

fn prepare(live: &LiveAlloc, command: &[String], mark: &str, term: Option<String>) -> anyhow::Result<JobCommand> {
    // A session of its own, apart from the caller's terminal. The process that started this one passes on what the caller types.
    nix::unistd::setsid().map_err(|e| failed("leave the caller's session")(e.into()))?;
    if io::stdin().is_terminal() {
        // The first terminal that the leader of a session opens becomes its own. One that belongs to another session stays there.
        File::open("/proc/self/fd/0").map_err(failed("open the terminal"))?;
    }
    let (task, id) = (&live.task, live.task.order.alloc_id);
    let mut process = first_process(live.start.pid).ok_or_else(|| not_running(id, "has no process"))?;
    if task.order.work.pack.is_some() {
        process = first_process(process.pid).ok_or_else(|| not_running(id, "runs no element now: try again"))?;
    }
    let path = |file: &str| format!("/proc/{}/{file}", process.pid);
    let environ = std::fs::read(path("environ")).map_err(failed("read the environment of the alloc"))?;
    let mut env = variables(&environ);
    env.insert(VARIABLE.to_owned(), mark.to_owned());
    env.extend(term.filter(|_| io::stdin().is_terminal()).map(|term| ("TERM".to_owned(), term)));
    let has_view = task.isolation.as_ref().is_some_and(|isolation| isolation.private_mounts);
    let view = if has_view {
        let open = |name: &str| File::open(path(name)).map_err(failed("find the alloc's view of the file system"));
        Some([(open("ns/ipc")?, CloneFlags::CLONE_NEWIPC), (open("ns/mnt")?, CloneFlags::CLONE_NEWNS)])
    } else {
        None
    };
    let uid = task.uid().map_err(failed("find out who runs the alloc"))?;
    if uid.is_some_and(|uid| !process_table::of_user(uid).contains(&process.pid)) {
        return Err(not_running(id, "is just starting: try again"));
    }
    if !process_table::is_alive(process.pid, process.start_ticks) {
        return Err(not_running(id, "has just ended"));
    }
    // A job that runs as the agent's own user is not restricted.
    if let Some(isolation) = &task.isolation {
        let enter_view = || view.iter().flatten().try_for_each(|(file, kind)| Ok(setns(file, *kind)?));
        restrict(Some(isolation), enter_view).map_err(failed("join the alloc"))?;
    }
    // This comes after the change of the user, which would undo it. The process that watches the caller may not run yet.
    nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)
        .map_err(|e| failed("make the command end with its caller")(e.into()))?;
    std::env::set_current_dir(live.dir.work()).map_err(failed("enter the directory of the alloc"))?;
    Ok(JobCommand { words: command.to_vec(), env, input: None })
}

/// The process that the supervisor started for the command: the oldest of its children. The other children were adopted. In a pack,
/// the same rule finds the first element among the children of the process that runs the elements.
fn first_process(supervisor: i32) -> Option<ProcessEntry> {
    let all = process_table::all().into_iter().filter(|p| p.parent == supervisor && !p.zombie);
    all.min_by_key(|p| (p.start_ticks, p.pid))
}

/// The variables in the environment of a process. Those that are not UTF-8 are left out.
fn variables(environ: &[u8]) -> ProcessEnv {
    let texts = environ.split(|byte| *byte == 0).filter_map(|entry| std::str::from_utf8(entry).ok());
    texts.filter_map(|entry| entry.split_once('=')).map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_of_a_process_is_read_as_it_is() {
        let read = variables(b"A=1\0B=x=y\nz\0\0no\0C=\0D=\xff\0");
        let want = [("A", "1"), ("B", "x=y\nz"), ("C", "")].map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(read, want.into());
    }
}
