//! A signal to all processes of a command, in an order that lets each of them save its work.
//!
//! A process that the signal ends takes the reader of its output away from a process that lives on: what writes to `| tee log` would
//! then end by SIGPIPE in the middle of its save. So such a reader ends with its input, and gets the signal only if it does not.
//!
//! A program such as `timeout` passes each signal on to those below it, which have got it already, and a second one often means "at
//! once". So it gets none, and ends with what it waits for.
//!
//! Guarantees: each process that was found gets the signal at most once. A reader that handles the signal itself gets it with the others,
//! and so does one that reads only from what the signal ends: it never takes the end of cut input for a whole one.
//! Does not: see a pipe that is not the standard input of its reader, or that a shell passes a signal on.

use super::{ProcessEntry, is_alive, send, send_group, text};
use nix::sys::signal::Signal;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::time::{Duration, Instant};

/// Programs that run another one and pass on to it, or to its process group, the signals that they get.
const PASS_ON: [&str; 5] = ["timeout", "tini", "docker-init", "dumb-init", "catatonit"];
/// How long a reader has to end with its input.
const WITH_INPUT: Duration = Duration::from_secs(2);

/// What was sent to a command, and who gets it later.
#[derive(Debug, Default)]
pub struct Notice {
    signal: Option<Signal>,
    later: Vec<ProcessEntry>,
    /// The time since which no process that lives on writes to these readers.
    free_since: BTreeMap<i32, Instant>,
}

impl Notice {
    /// Sends this signal to all of these processes, and then CONT: a stopped process takes a signal only when it goes on. A process
    /// group is signalled in one step, which no fork can outrun. `shared` is a group that others are in too: its processes are
    /// signalled one by one.
    pub fn send(&mut self, found: &[ProcessEntry], shared: i32, signal: model::Signal) {
        self.signal = Signal::try_from(signal.number()).ok();
        self.later = self.signal.map(|signal| readers(found, found, signal)).unwrap_or_default();
        self.free_since.clear();
        let Some(signal) = self.signal else { return };
        let apart: Vec<ProcessEntry> = found.iter().filter(|p| passes_on(p.pid, signal)).copied().collect();
        let apart = [self.later.as_slice(), &apart].concat();
        let parted: BTreeSet<i32> = apart.iter().map(|p| p.group).chain([shared]).collect();
        let (single, grouped): (Vec<&ProcessEntry>, Vec<&ProcessEntry>) =
            found.iter().partition(|p| parted.contains(&p.group));
        let groups: BTreeSet<i32> = grouped.iter().map(|p| p.group).collect();
        for signal in [signal, Signal::SIGCONT] {
            groups.iter().for_each(|group| send_group(*group, signal));
            single.iter().filter(|p| !apart.contains(p)).for_each(|p| send(p.pid, signal));
        }
    }

    /// Sends the signal to those whose input has ended, and who go on. `found` are all processes of the command. Call this again and
    /// again.
    pub fn go_on(&mut self, found: impl FnOnce() -> Vec<ProcessEntry>, now: Instant) {
        self.later.retain(|p| is_alive(p.pid, p.start_ticks));
        let Some(signal) = self.signal.filter(|_| !self.later.is_empty()) else { return };
        let wait = readers(&self.later, &found(), signal);
        self.later.retain(|process| {
            let is_free = !wait.contains(process);
            let since = *self.free_since.entry(process.pid).or_insert(now);
            if !is_free {
                self.free_since.remove(&process.pid);
            } else if now.duration_since(since) >= WITH_INPUT {
                send(process.pid, signal);
                send(process.pid, Signal::SIGCONT);
                return false;
            }
            true
        });
    }
}

struct PipeWriter {
    pid: i32,
    lives_on: bool,
    to: BTreeSet<Pipe>,
}

/// The device and the inode of a pipe.
type Pipe = (u64, u64);

/// Those of these processes that the signal would end while others, which live on, write to them.
fn readers(of: &[ProcessEntry], all: &[ProcessEntry], signal: Signal) -> Vec<ProcessEntry> {
    let reads = of.iter().filter_map(|p| Some((p, pipe(p.pid, "0", 0o400)?))).filter(|(p, _)| !lives_on(p.pid, signal));
    let mut reads: Vec<(&ProcessEntry, Pipe)> = reads.collect();
    if reads.is_empty() {
        return Vec::new();
    }
    let writer = |p: &ProcessEntry| PipeWriter { pid: p.pid, lives_on: lives_on(p.pid, signal), to: written(p.pid) };
    let writers: Vec<PipeWriter> = all.iter().map(writer).collect();
    let mut later: Vec<ProcessEntry> = Vec::new();
    loop {
        let (wait, rest): (Vec<_>, Vec<_>) = reads.into_iter().partition(|(reader, pipe)| {
            let stays = |pid: i32| later.iter().any(|p| p.pid == pid);
            let writes = |w: &&PipeWriter| w.pid != reader.pid && w.to.contains(pipe);
            writers.iter().filter(writes).any(|w| w.lives_on || stays(w.pid))
        });
        if wait.is_empty() {
            return later;
        }
        later.extend(wait.iter().map(|(p, _)| **p));
        reads = rest;
    }
}

/// Whether a process handles or ignores this signal.
fn lives_on(pid: i32, signal: Signal) -> bool {
    has(pid, signal, &["SigCgt:", "SigIgn:"])
}

/// Whether a process passes this signal on. It handles the signal, or blocks it and waits for it.
fn passes_on(pid: i32, signal: Signal) -> bool {
    let is_named = text(pid, "comm").is_ok_and(|name| PASS_ON.contains(&name.trim_end()));
    is_named && has(pid, signal, &["SigCgt:", "SigBlk:"])
}

/// Whether one of these sets of a process has the signal.
fn has(pid: i32, signal: Signal, sets: &[&str]) -> bool {
    let status = text(pid, "status").unwrap_or_default();
    sets.iter().any(|set| super::signals(&status, set).contains(&(signal as i32)))
}

/// The pipes that a process has open for writing.
fn written(pid: i32) -> BTreeSet<Pipe> {
    let open = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    open.filter_map(|fd| pipe(pid, fd.file_name().to_str()?, 0o200)).collect()
}

/// The pipe behind a descriptor that is open in this way.
fn pipe(pid: i32, fd: &str, way: u32) -> Option<Pipe> {
    let path = format!("/proc/{pid}/fd/{fd}");
    let is_open = fs::symlink_metadata(&path).ok()?.mode() & way != 0;
    let file = fs::metadata(&path).ok().filter(|file| is_open && file.file_type().is_fifo())?;
    Some((file.dev(), file.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::descendants;
    use std::os::unix::process::CommandExt;
    use std::process::{Command, Stdio};

    fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
        let began = Instant::now();
        while !holds() {
            assert!(began.elapsed() < Duration::from_secs(30), "{what}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// A command, and what it leaves in the file `out` when it is asked to end.
    #[test]
    fn what_reads_from_a_process_that_saves_gets_the_signal_after_it() {
        // What reads fills the file `log` when all of the command runs.
        let saves =
            "sh -c 'trap \"echo late; sleep 0.2; echo saved >out; exit\" TERM; while :; do echo a; sleep 0.01; done'";
        let again = "trap \"echo twice >out; exit\" TERM; sleep 0.2; echo saved >out; exit";
        let twice = format!("sh -c 'trap '\\''{again}'\\'' TERM; echo a >log; while :; do sleep 0.01; done'");
        let told = "sh -c 'trap \"echo told >out; exit\" TERM; echo a >log; while :; do sleep 0.01; done'";
        for (line, left) in [
            (format!("{saves} | cat >log"), "saved\n"),
            (format!("{saves} | grep --line-buffered a | tee log"), "saved\n"),
            (format!("{saves} 2>&1 | while read -r line; do echo $line >log; done"), "saved\n"),
            (format!("mkfifo pipe; cat <pipe >log & {saves} >pipe"), "saved\n"),
            // Its input ends, and it goes on.
            (format!("{saves} | sh -c 'cat >log; while :; do sleep 0.01; done'"), "saved\n"),
            // `timeout` would pass the signal on, and a second one cuts the save short.
            (format!("timeout 100 {twice}"), "saved\n"),
            (format!("timeout -k 100 100 {twice} | cat >/dev/null"), "saved\n"),
            // Nothing saves here. Who counts must not believe that the end came by itself.
            ("yes | sh -c 'cat >log; echo whole >out'".to_owned(), ""),
            // Who handles the signal decides for itself, and at once: this writer waits for that.
            (format!("sh -c 'trap \"\" TERM; until [ -e out ]; do sleep 0.01; done' | {told}"), "told\n"),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let mut command = Command::new("sh");
            command.args(["-c", &line]).current_dir(dir.path()).stdin(Stdio::null()).process_group(0);
            let mut child = command.spawn().unwrap();
            let root = child.id() as i32;
            wait_until(&line, || fs::metadata(dir.path().join("log")).is_ok_and(|log| log.len() > 0));
            let (mut notice, mut all) = (Notice::default(), descendants(root));
            all.extend(crate::read(root));
            notice.send(&all, 0, model::Signal::TERM);
            wait_until(&line, || {
                notice.go_on(|| all.clone(), Instant::now());
                all.iter().all(|p| !is_alive(p.pid, p.start_ticks))
            });
            child.wait().unwrap();
            assert_eq!(fs::read_to_string(dir.path().join("out")).unwrap_or_default(), left, "{line}");
        }
    }
}
