//! Processes as `/proc` shows them: which belong to a machine, and which came from us.
//!
//! A machine's processes are told by their `HOME`, which is the machine's own directory and is
//! handed down to supervisors and jobs alike; with them go their sessions and descendants. What
//! cleared its environment and left its parents is ours to find in the end, because this
//! program adopts what loses its parents ([`adopt_orphans`]).
//!
//! Guarantees: [`kill_all`] returns with nothing left of what it was to kill, or says how much.
//! Does not: use cgroups, which need privileges.

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long the kernel may take to end what was killed.
const DYING: Duration = Duration::from_secs(5);
/// From one look to the next.
const LOOK: Duration = Duration::from_millis(20);

/// One line of the process table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Process {
    pid: i32,
    parent: i32,
    session: i32,
    zombie: bool,
}

impl Process {
    fn read(pid: i32) -> Option<Self> {
        Self::parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    fn parse(stat: &str) -> Option<Self> {
        // The name in parentheses may itself hold spaces and parentheses: count from the last one.
        let (head, tail) = stat.rsplit_once(')')?;
        let field = |n: usize| tail.split_ascii_whitespace().nth(n);
        Some(Self {
            pid: head.split_once(' ')?.0.parse().ok()?,
            zombie: matches!(field(0)?, "Z" | "X"),
            parent: field(1)?.parse().ok()?,
            session: field(3)?.parse().ok()?,
        })
    }

    /// Whether it was started with its `HOME` at or below `dir`.
    fn lives_in(&self, dir: &Path) -> bool {
        let environ = fs::read(format!("/proc/{}/environ", self.pid)).unwrap_or_default();
        let home = environ.split(|byte| *byte == 0).find_map(|variable| variable.strip_prefix(b"HOME="));
        home.is_some_and(|home| Path::new(std::ffi::OsStr::from_bytes(home)).starts_with(dir))
    }
}

fn all() -> Vec<Process> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|e| e.file_name().to_str()?.parse().ok()).filter_map(Process::read).collect()
}

fn own_pid() -> i32 {
    nix::unistd::getpid().as_raw()
}

/// Whatever loses its parents from now on becomes our child instead of init's.
pub(super) fn adopt_orphans() -> io::Result<()> {
    nix::sys::prctl::set_child_subreaper(true).map_err(io::Error::from)
}

/// Waits for the dead whom [`adopt_orphans`] made our children. They are told from our own
/// children, who are waited for where they were started, by their sessions.
pub(super) fn bury_orphans() {
    let (own, processes) = (own_pid(), all());
    let Some(session) = processes.iter().find(|p| p.pid == own).map(|p| p.session) else { return };
    for p in processes.iter().filter(|p| p.zombie && p.parent == own && p.session != session) {
        let _gone_is_fine = waitpid(Pid::from_raw(p.pid), Some(WaitPidFlag::WNOHANG));
    }
}

/// The processes that belong to the machine in `dir`, or to any below it.
pub(super) fn of_machine(dir: &Path) -> Vec<i32> {
    let processes = all();
    let own = own_pid();
    let own_session = processes.iter().find(|p| p.pid == own).map(|p| p.session);
    let alive: Vec<Process> = processes.into_iter().filter(|p| !p.zombie && p.pid != own).collect();
    let mut found: BTreeSet<i32> = alive.iter().filter(|p| p.lives_in(dir)).map(|p| p.pid).collect();
    loop {
        // A supervisor leads a session of its own; an agent shares ours.
        let sessions: BTreeSet<i32> = alive
            .iter()
            .filter(|p| found.contains(&p.pid))
            .map(|p| p.session)
            .filter(|s| Some(*s) != own_session)
            .collect();
        let more: Vec<i32> = alive
            .iter()
            .filter(|p| !found.contains(&p.pid) && (found.contains(&p.parent) || sessions.contains(&p.session)))
            .map(|p| p.pid)
            .collect();
        if more.is_empty() {
            return found.into_iter().collect();
        }
        found.extend(more);
    }
}

/// Everything that came from us and still runs.
pub(super) fn of_ours() -> Vec<i32> {
    let processes = all();
    let mut found = BTreeSet::new();
    let mut parents = BTreeSet::from([own_pid()]);
    while !parents.is_empty() {
        let children: BTreeSet<i32> = processes.iter().filter(|p| parents.contains(&p.parent)).map(|p| p.pid).collect();
        found.extend(processes.iter().filter(|p| children.contains(&p.pid) && !p.zombie).map(|p| p.pid));
        parents = children;
    }
    found.into_iter().collect()
}

/// Kills what `find` finds until it finds nothing, however fast it forks. Returns how many are
/// left all the same. Blocks for as long as that takes.
pub(super) fn kill_all(find: impl Fn() -> Vec<i32>) -> usize {
    let began = Instant::now();
    loop {
        let left = find();
        if left.is_empty() || began.elapsed() > DYING {
            return left.len();
        }
        for pid in left {
            let _gone_is_fine = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
        std::thread::sleep(LOOK);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_name_cannot_confuse_the_parser() {
        let stat = "42 (a) b (c) Z 7 42 41 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 987654 1 2 3";
        assert_eq!(Process::parse(stat), Some(Process { pid: 42, parent: 7, session: 41, zombie: true }));
        for bad in ["", "42", "42 (x", "42 (x) R", "x (x) R 1 1 1"] {
            assert_eq!(Process::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_machine_ends_with_its_daemons_and_nothing_else_does() {
        let dir = tempfile::tempdir().unwrap();
        let run = |home: &Path, script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]).env("HOME", home).stdin(Stdio::null()).stdout(Stdio::null());
            command.spawn().unwrap()
        };
        // Its own session; a session and no environment, but a parent that has one.
        let mut machine = run(&dir.path().join("home"), "setsid sleep 600 & env -i setsid sleep 601 & wait");
        let mut stranger = run(Path::new("/"), "exec sleep 602");
        let until = Instant::now() + Duration::from_secs(10);
        while of_machine(dir.path()).len() < 3 {
            assert!(Instant::now() < until, "{:?}", of_machine(dir.path()));
            std::thread::sleep(LOOK);
        }
        assert_eq!(kill_all(|| of_machine(dir.path())), 0);
        assert!(!machine.wait().unwrap().success());
        assert!(stranger.try_wait().unwrap().is_none(), "somebody else's process was killed");
        stranger.kill().unwrap();
        stranger.wait().unwrap();
    }
}
