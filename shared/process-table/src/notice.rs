//! A signal to all processes of a command, in an order that lets each of them save its work.
//!
//! * A process that the signal would end, and that has one below it which handles the signal, would take much away from it: the reader
//!   of its output (`r=$(…)`, a launcher), its terminal, or its life (PR_SET_PDEATHSIG). So it is halted, and gets the signal when those
//!   below it have ended. What it would read meanwhile is read for it ([`kept`](super::kept)). What keeps a terminal for others goes on
//!   and copies, and gets the signal as late.
//! * The reader of a pipe on its standard input, such as `| tee log`, goes on until its input ends, and gets the signal only if it goes
//!   on after that.
//! * A program such as `timeout` passes each signal on to those below it, which have got it already, and a second one often means "at
//!   once". So it gets none, and ends with what it waits for. A shell with a trap may pass the signal on, too: it gets it when those
//!   below it that handle it have ended, or when its patience is over.
//!
//! Guarantees: each process that was found gets the signal at most once. A reader that handles the signal itself gets it with the others,
//! and so does one that reads only from what the signal ends: it never takes the end of cut input for a whole one.
//! Does not: see that a program which is no shell passes a signal on, or end early what waits for the end of one that is halted.

use super::kept::{KeptReaders, Pipe, handles, has, is_terminal, open_files, pipe, written};
use super::{ProcessEntry, is_alive, send, send_group, text};
use nix::sys::signal::Signal;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// Programs that run another one and pass on to it, or to its process group, the signals that they get.
const PASS_ON: [&str; 6] = ["timeout", "script", "tini", "docker-init", "dumb-init", "catatonit"];
const SHELLS: [&str; 7] = ["sh", "bash", "dash", "ash", "ksh", "zsh", "busybox"];
/// How long a reader has to end with its input.
const WITH_INPUT: Duration = Duration::from_secs(2);

/// What was sent to a command, and who gets it later.
#[derive(Default)]
pub struct Notice {
    /// The longest that a shell waits for those below it.
    patience: Duration,
    signal: Option<Signal>,
    /// When the patience is over.
    shells_until: Option<Instant>,
    later: Vec<Later>,
    kept: KeptReaders,
}

/// A process that gets the signal later.
struct Later {
    process: ProcessEntry,
    after: After,
    /// Since when nothing keeps the signal from it.
    free_since: Option<Instant>,
}

/// After what a process gets the signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum After {
    /// The end of its input, and the time to end with it.
    Input,
    /// The ends of those below it that handle the signal.
    Below,
}

impl Notice {
    /// For a command that is killed this long after it is asked to stop.
    pub fn new(kill_timeout: Duration) -> Self {
        Self { patience: kill_timeout / 2, ..Self::default() }
    }

    /// Sends this signal to all of these processes, and then CONT: a stopped process takes a signal only when it goes on. A process
    /// group is signalled in one step, which no fork can outrun. `shared` is a group that others are in too: its processes are
    /// signalled one by one.
    pub fn send(&mut self, found: &[ProcessEntry], shared: i32, signal: model::Signal) {
        self.signal = Signal::try_from(signal.number()).ok();
        let Some(signal) = self.signal else { return };
        self.kept.keep(found, signal);
        self.shells_until = Some(Instant::now() + self.patience);
        let later = |after| move |process: &ProcessEntry| Later { process: *process, after, free_since: None };
        let with_input = readers(found, found, signal);
        let above = above(found, signal);
        let is_later = |p: &&ProcessEntry| above.contains(&p.pid) && !with_input.contains(p);
        let of_others =
            found.iter().filter(is_later).filter(|p| would_end(p.pid, signal) || is_trapping_shell(p.pid, signal));
        self.later = with_input.iter().map(later(After::Input)).chain(of_others.map(later(After::Below))).collect();
        for Later { process, after, .. } in &self.later {
            if *after == After::Below && would_end(process.pid, signal) && !keeps_terminal(process) {
                send(process.pid, Signal::SIGSTOP);
            }
        }
        let waits = self.later.iter().map(|later| later.process);
        let apart: Vec<ProcessEntry> = found.iter().filter(|p| passes_on(p, found)).copied().chain(waits).collect();
        let parted: BTreeSet<i32> = apart.iter().map(|p| p.group).chain([shared]).collect();
        let (single, grouped): (Vec<&ProcessEntry>, Vec<&ProcessEntry>) =
            found.iter().partition(|p| parted.contains(&p.group));
        let groups: BTreeSet<i32> = grouped.iter().map(|p| p.group).collect();
        for signal in [signal, Signal::SIGCONT] {
            groups.iter().for_each(|group| send_group(*group, signal));
            single.iter().filter(|p| !apart.contains(p)).for_each(|p| send(p.pid, signal));
        }
    }

    /// Sends the signal to those whom nothing keeps from it any more, and who go on. `found` are all processes of the command. Call this
    /// again and again.
    pub fn go_on(&mut self, found: impl FnOnce() -> Vec<ProcessEntry>, now: Instant) {
        self.kept.go_on();
        self.later.retain(|later| is_alive(later.process.pid, later.process.start_ticks));
        let Some(signal) = self.signal.filter(|_| !self.later.is_empty()) else { return };
        let (of, all): (Vec<ProcessEntry>, _) = (self.later.iter().map(|later| later.process).collect(), found());
        let (readers, above) = (readers(&of, &all, signal), above(&all, signal));
        let are_shells_patient = self.shells_until.is_some_and(|until| now < until);
        self.later.retain_mut(|later| {
            let Later { process, after, .. } = later;
            let (waits, time) = match after {
                After::Input => (readers.contains(process), WITH_INPUT),
                After::Below => {
                    let is_patient = are_shells_patient || would_end(process.pid, signal);
                    (above.contains(&process.pid) && is_patient, Duration::ZERO)
                }
            };
            later.free_since = if waits { None } else { later.free_since.or(Some(now)) };
            let is_due = later.free_since.is_some_and(|since| now.duration_since(since) >= time);
            if is_due {
                send(later.process.pid, signal);
                send(later.process.pid, Signal::SIGCONT);
            }
            !is_due
        });
    }
}

struct PipeWriter {
    pid: i32,
    lives_on: bool,
    to: BTreeSet<Pipe>,
}

/// Those of these processes that the signal would end while others, which live on, write to them.
fn readers(of: &[ProcessEntry], all: &[ProcessEntry], signal: Signal) -> Vec<ProcessEntry> {
    let reads = of.iter().filter_map(|p| Some((p, pipe(p.pid, "0", 0o400)?))).filter(|(p, _)| would_end(p.pid, signal));
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

/// The processes that have one below them which handles the signal.
fn above(all: &[ProcessEntry], signal: Signal) -> BTreeSet<i32> {
    let parents: BTreeMap<i32, i32> = all.iter().map(|p| (p.pid, p.parent)).collect();
    let mut above = BTreeSet::new();
    for saving in all.iter().filter(|p| handles(p.pid, signal) && is_alive(p.pid, p.start_ticks)) {
        let mut at = saving.parent;
        while above.insert(at)
            && let Some(parent) = parents.get(&at)
        {
            at = *parent;
        }
    }
    above
}

/// Whether this is a shell with a trap for the signal.
fn is_trapping_shell(pid: i32, signal: Signal) -> bool {
    is_named(pid, &SHELLS) && handles(pid, signal)
}

/// Whether others have their terminal of this process: it leads their session, or copies what they write.
fn keeps_terminal(process: &ProcessEntry) -> bool {
    process.pid == process.session && process.has_terminal
        || open_files(process.pid).any(|(_, path)| is_terminal(&path))
}

fn would_end(pid: i32, signal: Signal) -> bool {
    !lives_on(pid, signal)
}

/// Whether a process handles or ignores this signal.
fn lives_on(pid: i32, signal: Signal) -> bool {
    has(pid, signal, &["SigCgt:", "SigIgn:"])
}

/// Whether a process passes on to others below it what it gets.
fn passes_on(process: &ProcessEntry, all: &[ProcessEntry]) -> bool {
    is_named(process.pid, &PASS_ON) && all.iter().any(|p| p.parent == process.pid && !p.zombie)
}

fn is_named(pid: i32, names: &[&str]) -> bool {
    text(pid, "comm").is_ok_and(|name| names.contains(&name.trim_end()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::descendants;
    use std::fs;
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
        // It prints more than a pipe holds before it saves.
        let prints = "trap \"printf %0200000d 1; echo saved >out; exit\" TERM; echo a >log; while :; do echo a; sleep 0.01; done";
        let passes = |program: &str| format!("trap 'kill -TERM $p' TERM; {program} & p=$!; wait $p; wait $p");
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
            (format!("ln -s $(command -v timeout) tini; ./tini 100 {twice}"), "saved\n"),
            (passes(&twice), "saved\n"),
            (passes(&format!("timeout 100 {twice}")), "saved\n"),
            // A shell that must save itself gets the signal after its program.
            (format!("trap 'cat out >>all; mv all out; exit' TERM; {twice} & while :; do sleep 0.01; done"), "saved\n"),
            // Who reads is halted.
            (format!("r=$(sh -c '{prints}'); echo $r"), "saved\n"),
            (format!("echo '{prints}' >prints; script -qefc 'sh prints; true' typed >typed2"), "saved\n"),
            // What a terminal holds is less than a pipe.
            (
                format!(
                    "echo '{prints}' | sed s/00000d/d/ >prints; python3 -c 'import pty; pty.spawn([\"sh\", \"-c\", \"sh prints; true\"])' >typed"
                ),
                "saved\n",
            ),
            // The next line never begins.
            (format!("{twice}; echo next >>out"), "saved\n"),
            // It would die with its parent.
            (format!("setpriv --pdeathsig KILL {twice} & wait"), "saved\n"),
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
            let (mut notice, mut all) = (Notice::new(Duration::from_secs(60)), descendants(root));
            all.extend(crate::read(root));
            notice.send(&all, 0, model::Signal::TERM);
            wait_until(&line, || {
                notice.go_on(|| all.clone(), Instant::now());
                all.iter().all(|p| !is_alive(p.pid, p.start_ticks))
            });
            child.wait().unwrap();
            let text = |file: &str| fs::read_to_string(dir.path().join(file)).unwrap_or_default();
            assert_eq!(text("out"), left, "{line}");
            assert!(!line.starts_with(saves) || text("log").ends_with("late\n"), "{line}: {:?}", text("log"));
        }
    }
}
