//! The process table, read from `/proc`, and signals to processes.
//!
//! Guarantees: a process is identified by its pid **and** its start time, so that a reused pid is never taken for the
//! old process. A zombie counts as ended, but not a process whose main thread has ended and whose other threads run: the
//! kernel shows it as a zombie too.
//! Does not: use cgroups; a process tree is found through parents and sessions only.

mod kept;
mod notice;

use nix::sys::signal::{self, Signal};
use nix::unistd::Pid;
use std::collections::BTreeSet;
use std::fs;
use std::io;

pub use notice::Notice;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessEntry {
    pub pid: i32,
    pub parent: i32,
    /// The process group.
    pub group: i32,
    /// The session id: the pid of the process that called `setsid`.
    pub session: i32,
    pub has_terminal: bool,
    /// When the process started, in clock ticks since boot.
    pub start_ticks: u64,
    /// Whether every thread of the process has ended but its parent has not waited for it yet.
    pub zombie: bool,
}

pub fn read(pid: i32) -> Option<ProcessEntry> {
    parse(&text(pid, "stat").ok()?)
}

/// The content of `/proc/{pid}/{file}`. It may not be valid UTF-8, because the kernel cuts a process name at 15 bytes,
/// possibly inside a character.
fn text(pid: i32, file: &str) -> io::Result<String> {
    fs::read(format!("/proc/{pid}/{file}")).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

fn parse(stat: &str) -> Option<ProcessEntry> {
    // The process name in parentheses may itself contain spaces and parentheses, so the fields are counted after the
    // last parenthesis.
    let (head, tail) = stat.rsplit_once(')')?;
    let pid = head.split_once(' ')?.0.parse().ok()?;
    let field = |n: usize| tail.split_ascii_whitespace().nth(n);
    Some(ProcessEntry {
        pid,
        zombie: matches!(field(0)?, "Z" | "X") && field(17)?.parse::<u32>().ok()? <= 1,
        parent: field(1)?.parse().ok()?,
        group: field(2)?.parse().ok()?,
        session: field(3)?.parse().ok()?,
        has_terminal: field(4)? != "0",
        start_ticks: field(19)?.parse().ok()?,
    })
}

/// The arguments of a process, each with a zero byte behind it; empty if there are none.
pub fn arguments(pid: i32) -> Vec<u8> {
    fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default()
}

/// The environment that a process was started with: each variable with a zero byte behind it.
pub fn environment(pid: i32) -> Vec<u8> {
    fs::read(format!("/proc/{pid}/environ")).unwrap_or_default()
}

/// The numbers of the signals that this process ignores, and so whatever it starts.
pub fn ignored_signals() -> Vec<i32> {
    signals(&fs::read_to_string("/proc/self/status").unwrap_or_default(), "SigIgn:")
}

/// The signals in the mask that has this name in the status of a process.
fn signals(status: &str, mask: &str) -> Vec<i32> {
    let mask = status.lines().find_map(|line| line.strip_prefix(mask));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    (1..=64).filter(|number| mask >> (number - 1) & 1 == 1).collect()
}

/// Every process of the machine that can be read now, in any order.
pub fn all() -> Vec<ProcessEntry> {
    pids().filter_map(read).collect()
}

fn pids() -> impl Iterator<Item = i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|e| e.file_name().to_str()?.parse().ok())
}

/// Every process below `root`, including zombies.
pub fn descendants(root: i32) -> Vec<ProcessEntry> {
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

/// Like [`descendants`], but reads only the processes below `root`. While processes end, one may be left out. A caller that must
/// find all has to look again.
pub fn descendants_now(root: i32) -> Vec<ProcessEntry> {
    // A kernel without CONFIG_PROC_CHILDREN does not have the file.
    let Ok(mut left) = children(root) else { return descendants(root) };
    let mut found = Vec::new();
    while let Some(pid) = left.pop() {
        found.extend(read(pid));
        left.extend(children(pid).unwrap_or_default());
    }
    found
}

/// The children of all threads of this process.
fn children(pid: i32) -> io::Result<Vec<i32>> {
    let mut found = Vec::new();
    for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
        let listed = fs::read_to_string(thread?.path().join("children"))?;
        found.extend(listed.split_ascii_whitespace().filter_map(|pid| pid.parse::<i32>().ok()));
    }
    Ok(found)
}

/// Whether a signal has halted this process.
pub fn is_halted(pid: i32) -> bool {
    text(pid, "stat").is_ok_and(|stat| stat.rsplit_once(") ").is_some_and(|(_, fields)| fields.starts_with('T')))
}

/// Whether the process with this pid and start time still runs. If the entry in `/proc` cannot be read (no memory or no
/// file handles left), the process counts as running. A missing or unusable entry counts as ended.
pub fn is_alive(pid: i32, start_ticks: u64) -> bool {
    match text(pid, "stat") {
        Ok(stat) => parse(&stat).is_some_and(|p| p.start_ticks == start_ticks && !p.zombie),
        Err(error) => error.kind() != io::ErrorKind::NotFound && error.raw_os_error() != Some(nix::libc::ESRCH),
    }
}

/// The numbers in KiB after these words in a file about the memory of a process; 0 for a word that the file does not have. If the
/// main thread has ended, the file of another thread is read.
pub fn memory_kib<const N: usize>(pid: i32, file: &str, words: [&str; N]) -> [u64; N] {
    let says = |text: &String| ["Rss:", "VmRSS:"].iter().any(|word| text.contains(word));
    let of_thread = || {
        let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        let texts = threads.filter_map(|thread| fs::read(thread.path().join(file)).ok());
        texts.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).find(says)
    };
    let text = text(pid, file).ok().filter(says).or_else(of_thread).unwrap_or_default();
    words.map(|word| {
        let line = text.lines().find_map(|line| line.strip_prefix(word)?.strip_prefix(':'));
        line.and_then(|line| line.split_ascii_whitespace().next()?.parse().ok()).unwrap_or(0)
    })
}

/// The processes that run as this user: with it as the real, effective or saved user id. Without zombies.
pub fn of_user(uid: u32) -> Vec<i32> {
    let runs_as = |pid: i32| {
        let status = text(pid, "status").unwrap_or_default();
        let line = status.lines().find_map(|l| l.strip_prefix("Uid:")).unwrap_or_default();
        // The last number is the id for access to files.
        line.split_ascii_whitespace().take(3).any(|id| id.parse() == Ok(uid))
    };
    let own_pid = std::process::id() as i32;
    let others = pids().filter(|pid| *pid != own_pid && runs_as(*pid));
    others.filter(|pid| read(*pid).is_some_and(|p| !p.zombie)).collect()
}

/// Signals one process; does nothing if the process has ended. A pid of 0 or below is ignored, because it would mean a
/// group.
pub fn send(pid: i32, signal: Signal) {
    if pid > 0 {
        let _ended_is_fine = signal::kill(Pid::from_raw(pid), signal);
    }
}

/// Signals a process group; does nothing if the group has ended.
pub fn send_group(group: i32, signal: Signal) {
    // Group 0 would mean our own group, and group 1 every process.
    if group > 1 {
        let _ended_is_fine = signal::killpg(Pid::from_raw(group), signal);
    }
}

/// Kills every process below `root`.
pub fn kill_descendants(root: i32) {
    for process in descendants(root).iter().filter(|process| !process.zombie) {
        send(process.pid, Signal::SIGKILL);
    }
}

/// Kills the remaining processes of the session whose leader was `leader`, started at `start_ticks`. Returns how many
/// there were.
pub fn kill_session(leader: i32, start_ticks: u64) -> usize {
    // If another process has the pid now, the old session is empty: the kernel does not reuse the id of a session that
    // has members.
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
    fn parentheses_in_a_name_are_parsed() {
        let stat = "42 (a) b (c) R 7 42 41 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 987654 1 2 3";
        let want = ProcessEntry {
            pid: 42,
            parent: 7,
            group: 42,
            session: 41,
            has_terminal: false,
            start_ticks: 987_654,
            zombie: false,
        };
        assert_eq!(parse(stat), Some(want));
        let main_thread_ended = stat.replace("R 7", "Z 7").replace("0 1 0", "0 2 0");
        assert_eq!(parse(&main_thread_ended), Some(want), "another thread runs");
        assert!(parse(&stat.replace("R 7", "Z 7")).unwrap().zombie);
        for bad in ["", "42", "42 (x", "42 (x) R", "x (x) R 1 1 1"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_process_whose_name_is_not_utf8_is_listed() {
        // The kernel makes a process name from the first 15 bytes of the file name.
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("01234567890123é");
        std::os::unix::fs::symlink("/bin/sleep", &program).unwrap();
        let mut child = std::process::Command::new(&program).arg("60").spawn().unwrap();
        let pid = child.id() as i32;
        let found = || all().iter().any(|p| p.pid == pid) && memory_kib(pid, "status", ["VmRSS"]) > [0];
        // Until exec the child is a copy of this process.
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
    fn the_children_of_a_process_and_theirs_are_found_both_ways() {
        let script = "sleep 60 & (sleep 60; true) & wait";
        let mut child = std::process::Command::new("sh").args(["-c", script]).spawn().unwrap();
        let pid = child.id() as i32;
        let pids = |found: Vec<ProcessEntry>| found.iter().map(|p| p.pid).collect::<BTreeSet<_>>();
        while pids(descendants(pid)).len() < 3 {
            std::thread::yield_now();
        }
        let found = pids(descendants(pid));
        assert_eq!(pids(descendants_now(pid)), found);
        assert!(pids(descendants_now(std::process::id() as i32)).is_superset(&found));
        assert_eq!(descendants_now(i32::MAX), []);
        found.into_iter().for_each(|pid| send(pid, Signal::SIGKILL));
        child.wait().unwrap();
    }

    #[test]
    fn a_reused_pid_is_another_process() {
        let me = read(std::process::id() as i32).unwrap();
        assert!(is_alive(me.pid, me.start_ticks));
        assert!(!is_alive(me.pid, me.start_ticks + 1));
        assert_eq!(kill_session(me.pid, me.start_ticks + 1), 0);
        assert!(memory_kib(me.pid, "status", ["VmRSS"]) > [0]);
    }
}
