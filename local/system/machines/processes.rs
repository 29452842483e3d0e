//! The processes of this machine: which belong to a machine, and which descend from this program.
//!
//! A process belongs to a machine if its `HOME` is the machine's directory: supervisors and jobs inherit it. The
//! descendants of such a process belong to the machine too, and the whole session that such a process leads. An agent leads no
//! session: it shares the one of the terminal in which its system was started. A process that has cleared its environment and
//! left its parents cannot be found in this way. It is ended when this program ends, because this program adopts
//! orphans ([`adopt_orphans`]).
//!
//! Guarantees: [`kill_all`] returns when every process is dead, or says how many are not.
//! Does not: use cgroups, which need privileges.

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;
use process_table::{ProcessEntry, all, descendants};
use std::collections::BTreeSet;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};
use std::{fs, io};

/// How long killed processes may take to end.
const KILL_LIMIT: Duration = Duration::from_secs(5);
/// How often the process table is read while processes end.
const CHECK: Duration = Duration::from_millis(20);

/// Whether the process was started with a `HOME` at or below `dir`.
fn lives_in(process: &ProcessEntry, dir: &Path) -> bool {
    let of_main_thread = Path::new("/proc").join(process.pid.to_string());
    // The kernel has no environment for a main thread that has ended.
    let of_threads = fs::read_dir(of_main_thread.join("task")).into_iter().flatten().flatten().map(|t| t.path());
    let mut environs = std::iter::once(of_main_thread)
        .chain(of_threads)
        .filter_map(|of| fs::read(of.join("environ")).ok().filter(|environ| !environ.is_empty()));
    let environ = environs.next().unwrap_or_default();
    let home = environ.split(|byte| *byte == 0).find_map(|variable| variable.strip_prefix(b"HOME="));
    home.is_some_and(|home| Path::new(std::ffi::OsStr::from_bytes(home)).starts_with(dir))
}

fn own_pid() -> i32 {
    nix::unistd::getpid().as_raw()
}

/// From now on, a descendant that loses its parent becomes a child of this program, not of init.
pub(in crate::local) fn adopt_orphans() -> io::Result<()> {
    nix::sys::prctl::set_child_subreaper(true).map_err(io::Error::from)
}

/// Reaps adopted children that have ended. An adopted child has another session than this program. A child that this
/// program started has the same session, and the code that started it reaps it.
pub(in crate::local) fn reap_orphans() {
    let (own, processes) = (own_pid(), all());
    let Some(session) = processes.iter().find(|p| p.pid == own).map(|p| p.session) else { return };
    for p in processes.iter().filter(|p| p.zombie && p.parent == own && p.session != session) {
        let _has_ended = waitpid(Pid::from_raw(p.pid), Some(WaitPidFlag::WNOHANG));
    }
}

/// The processes of the machine in `dir`, or of all machines below it.
pub(in crate::local) fn of_machine(dir: &Path) -> Vec<i32> {
    let processes = all();
    let own = own_pid();
    let alive: Vec<ProcessEntry> = processes.into_iter().filter(|p| !p.zombie && p.pid != own).collect();
    let mut found: BTreeSet<i32> = alive.iter().filter(|p| lives_in(p, dir)).map(|p| p.pid).collect();
    loop {
        let belongs = |p: &&ProcessEntry| found.contains(&p.parent) || found.contains(&p.session);
        let more: Vec<i32> = alive.iter().filter(|p| !found.contains(&p.pid)).filter(belongs).map(|p| p.pid).collect();
        if more.is_empty() {
            return found.into_iter().collect();
        }
        found.extend(more);
    }
}

/// All running descendants of this program.
pub(in crate::local) fn of_ours() -> Vec<i32> {
    descendants(own_pid()).into_iter().filter(|p| !p.zombie).map(|p| p.pid).collect()
}

/// Kills the processes that `find` returns, again and again, until `find` returns none or a time limit is over. So
/// processes that keep forking are killed too. Blocks, and returns how many are left.
pub(in crate::local) fn kill_all(find: impl Fn() -> Vec<i32>) -> usize {
    let began = Instant::now();
    loop {
        let left = find();
        if left.is_empty() || began.elapsed() > KILL_LIMIT {
            return left.len();
        }
        for pid in left {
            let _has_ended = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
        std::thread::sleep(CHECK);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_machine_ends_with_its_daemons_and_no_other_process_ends() {
        let dir = tempfile::tempdir().unwrap();
        let run = |home: &Path, script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]).env("HOME", home).stdin(Stdio::null()).stdout(Stdio::null());
            command.spawn().unwrap()
        };
        // One daemon has its own session. Another one also has no environment, but its parent has one.
        let mut machine = run(&dir.path().join("home"), "setsid sleep 600 & env -i setsid sleep 601 & wait");
        let mut stranger = run(Path::new("/"), "exec sleep 602");
        let until = Instant::now() + Duration::from_secs(10);
        while of_machine(dir.path()).len() < 3 {
            assert!(Instant::now() < until, "{:?}", of_machine(dir.path()));
            std::thread::sleep(CHECK);
        }
        assert_eq!(kill_all(|| of_machine(dir.path())), 0);
        assert!(!machine.wait().unwrap().success());
        assert!(stranger.try_wait().unwrap().is_none(), "a process of no machine was killed");
        stranger.kill().unwrap();
        stranger.wait().unwrap();
    }

    #[test]
    fn the_terminal_session_in_which_an_agent_runs_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        // A terminal with an agent, and with something else.
        let script = format!("HOME={}/i-1 sleep 603 & sleep 604 & echo $! && wait", dir.path().display());
        let mut terminal = Command::new("setsid");
        terminal.args(["sh", "-c", &script]).env("HOME", "/").stdin(Stdio::null()).stdout(Stdio::piped());
        let mut terminal = terminal.spawn().unwrap();
        let mut other = String::new();
        let mut said = std::io::BufReader::new(terminal.stdout.take().unwrap());
        std::io::BufRead::read_line(&mut said, &mut other).unwrap();
        let until = Instant::now() + Duration::from_secs(10);
        while of_machine(dir.path()).is_empty() {
            assert!(Instant::now() < until);
            std::thread::sleep(CHECK);
        }
        assert_eq!(of_machine(dir.path()).len(), 1);
        assert_eq!(kill_all(|| of_machine(dir.path())), 0);
        let other: i32 = other.trim().parse().unwrap();
        assert!(process_table::read(other).is_some_and(|p| !p.zombie) && terminal.try_wait().unwrap().is_none());
        kill(Pid::from_raw(other), Signal::SIGKILL).unwrap();
        terminal.wait().unwrap();
    }
}
