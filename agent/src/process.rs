//! Processes as `/proc` shows them, and signals to them.
//!
//! Guarantees: a process is known by its number **and** its start, so that a number used
//! again is never taken for the old process. A zombie counts as dead.
//! Does not: use cgroups; what it sees of a tree is what parents and sessions tell.

use nix::sys::signal::{self, Signal};
use nix::unistd::Pid;
use std::collections::BTreeSet;
use std::fs;
use std::io;

/// One line of the process table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its number.
    pub pid: i32,
    /// Its parent's number.
    pub parent: i32,
    /// Its session: the number of the process that called `setsid`.
    pub session: i32,
    /// When it started, in clock ticks since boot.
    pub start_ticks: u64,
    /// Ended, but not yet waited for.
    pub zombie: bool,
}

/// The process with this number, if there is one.
pub fn read(pid: i32) -> Option<Process> {
    parse(&text(pid, "stat").ok()?)
}

/// A name is cut at 15 bytes, also within a character.
fn text(pid: i32, file: &str) -> io::Result<String> {
    fs::read(format!("/proc/{pid}/{file}")).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

fn parse(stat: &str) -> Option<Process> {
    // The name in parentheses may itself hold spaces and parentheses: count from the last one.
    let (head, tail) = stat.rsplit_once(')')?;
    let pid = head.split_once(' ')?.0.parse().ok()?;
    let field = |n: usize| tail.split_ascii_whitespace().nth(n);
    Some(Process {
        pid,
        zombie: matches!(field(0)?, "Z" | "X"),
        parent: field(1)?.parse().ok()?,
        session: field(3)?.parse().ok()?,
        start_ticks: field(19)?.parse().ok()?,
    })
}

/// Every process there is.
pub fn all() -> Vec<Process> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|e| e.file_name().to_str()?.parse().ok()).filter_map(read).collect()
}

/// Every process below `root`, zombies included.
pub fn descendants(root: i32) -> Vec<Process> {
    let mut left = all();
    let mut found = Vec::new();
    let mut parents = BTreeSet::from([root]);
    while !parents.is_empty() {
        let (children, rest): (Vec<_>, Vec<_>) = left.into_iter().partition(|p| parents.contains(&p.parent));
        parents = children.iter().map(|p| p.pid).collect();
        found.extend(children);
        left = rest;
    }
    found
}

/// Whether the process that started then still runs. What cannot be read (no memory, no file handles
/// left) may: only what is not there has ended.
pub fn is_alive(pid: i32, start_ticks: u64) -> bool {
    match text(pid, "stat") {
        Ok(stat) => parse(&stat).is_some_and(|p| p.start_ticks == start_ticks && !p.zombie),
        Err(error) => error.kind() != io::ErrorKind::NotFound && error.raw_os_error() != Some(nix::libc::ESRCH),
    }
}

/// Resident memory in KiB.
pub fn resident_kib(pid: i32) -> u64 {
    let status = text(pid, "status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:"));
    line.and_then(|l| l.split_ascii_whitespace().next()).and_then(|n| n.parse().ok()).unwrap_or(0)
}

/// Signals one process; one that is gone is no error. Never 0 or a negative number, which
/// would mean a group.
pub fn send(pid: i32, signal: Signal) {
    if pid > 0 {
        let _gone_is_fine = signal::kill(Pid::from_raw(pid), signal);
    }
}

/// Signals a process group; one that is gone is no error.
pub fn send_group(group: i32, signal: Signal) {
    // Group 0 or 1 would mean our own or everything.
    if group > 1 {
        let _gone_is_fine = signal::killpg(Pid::from_raw(group), signal);
    }
}

/// Kills what is left of the session whose leader was the process `leader` that started at
/// `start_ticks`, and answers how many there were.
pub fn kill_session(leader: i32, start_ticks: u64) -> usize {
    // Somebody else has the number now: then nothing of the old session is left, because a
    // session's number is not given away while it has members.
    if leader <= 1 || read(leader).is_some_and(|p| p.start_ticks != start_ticks) {
        return 0;
    }
    let members: Vec<_> = all().into_iter().filter(|p| p.session == leader && !p.zombie).collect();
    for member in &members {
        send(member.pid, Signal::SIGKILL);
    }
    members.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_confuse_the_parser() {
        let stat = "42 (a) b (c) R 7 42 41 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 987654 1 2 3";
        let want = Process { pid: 42, parent: 7, session: 41, start_ticks: 987_654, zombie: false };
        assert_eq!(parse(stat), Some(want));
        for bad in ["", "42", "42 (x", "42 (x) R", "x (x) R 1 1 1"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_name_cut_within_a_character_hides_no_process() {
        // Its name is as much of its file's name as fits into 15 bytes.
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("01234567890123é");
        fs::copy("/bin/sleep", &program).unwrap();
        let mut child = std::process::Command::new(&program).arg("60").spawn().unwrap();
        let pid = child.id() as i32;
        let found = || all().iter().any(|p| p.pid == pid) && resident_kib(pid) > 0;
        // It is a copy of this process until it has become the program.
        let name = || fs::read(format!("/proc/{pid}/comm")).unwrap();
        while !name().starts_with(b"0123456789") {
            std::thread::yield_now();
        }
        assert!(String::from_utf8(name()).is_err(), "{:?}", name());
        assert!(found());
        let start_ticks = read(pid).unwrap().start_ticks;
        assert!(is_alive(pid, start_ticks));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!is_alive(pid, start_ticks));
    }

    #[test]
    fn a_number_used_again_is_another_process() {
        let me = read(std::process::id() as i32).unwrap();
        assert!(is_alive(me.pid, me.start_ticks));
        assert!(!is_alive(me.pid, me.start_ticks + 1));
        assert_eq!(kill_session(me.pid, me.start_ticks + 1), 0);
        assert!(resident_kib(me.pid) > 0);
    }
}
