//! A process that outlives the caller of a command, and then ends the command with everything that it started.
//!
//! The caller tells it on a pipe what it wants: a byte for each signal, and 0 when the command has ended by itself. If the pipe is
//! closed without that, the caller is gone, whatever killed it.
//!
//! Guarantees: a command in a container is found too, although the runtime of the container has started it: by a mark in its environment;
//! what a command that ended by itself has left goes on, until the alloc ends.
//! Does not: find what has left the session of the command and its environment.

use crate::OWN_PROGRAM;
use crate::output::capture::has_data;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use process_table::{self, ProcessEntry};
use std::fs::File;
use std::io::{self, PipeWriter, Read, Write, pipe};
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The variable with the mark of a command and of everything that it starts.
pub(super) const VARIABLE: &str = "NODEKEEPER_INSIDE";

/// The byte that says that the command has ended by itself.
const DONE: u8 = 0;

/// How often the command is looked for until it is found, and its processes are killed until none is left.
const STEP_MS: u16 = 50;

/// How often the processes are killed. A process that hangs in the kernel ends later.
const ROUNDS: u32 = 200;

/// A mark that no other command has.
pub(super) fn mark() -> String {
    let own = process_table::read(std::process::id() as i32);
    format!("{}-{}", std::process::id(), own.map_or(0, |own| own.start_ticks))
}

/// The caller's side.
pub(super) struct CallerWatch {
    pipe: Option<PipeWriter>,
    process: Child,
}

impl CallerWatch {
    /// Starts the process. `first` is the first process of the command, if the caller has started it itself.
    pub(super) fn start(mark: &str, first: Option<i32>) -> io::Result<Self> {
        let (told, pipe) = pipe()?;
        let mut command = Command::new(OWN_PROGRAM);
        command.args(["end-entered", mark]).args(first.map(|pid| pid.to_string())).env_clear().current_dir("/");
        let process = command.stdin(told).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        Ok(Self { pipe: Some(pipe), process })
    }

    /// Sends this signal to the command.
    pub(super) fn signal(&self, signal: Signal) {
        self.say(u8::try_from(signal as i32).unwrap_or(DONE));
    }

    /// Kills the command, and everything that it started.
    pub(super) fn kill(&mut self) {
        self.pipe = None;
    }

    /// The command has ended.
    pub(super) fn end(mut self) {
        self.say(DONE);
        self.pipe = None;
        let _ended_is_fine = self.process.wait();
    }

    fn say(&self, byte: u8) {
        if let Some(mut pipe) = self.pipe.as_ref() {
            let _ended_is_fine = pipe.write_all(&[byte]);
        }
    }
}

/// The process itself.
pub fn run(mark: &str, first: Option<i32>) -> io::Result<()> {
    // Apart from the caller's terminal, whose end ends the caller.
    nix::unistd::setsid()?;
    // Without a buffer, which would hide bytes from `poll`.
    let mut caller = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    let mark = format!("{VARIABLE}={mark}");
    let mut first = first.and_then(process_table::read);
    let (mut byte, mut unsent) = ([DONE], None);
    loop {
        first = first.or_else(|| marked(&mark).into_iter().min_by_key(|p| p.start_ticks));
        if let Some(first) = first
            && let Some(signal) = unsent.take()
        {
            process_table::send_group(first.pid, signal);
        }
        let wait = if first.is_some() { PollTimeout::NONE } else { PollTimeout::from(STEP_MS) };
        let _interrupted_is_fine = poll(&mut [PollFd::new(caller.as_fd(), PollFlags::POLLIN)], wait);
        if !has_data(caller.as_fd()) {
            continue;
        }
        match (caller.read(&mut byte)?, byte) {
            (0, _) => return end(&mark, first),
            (_, [DONE]) => return Ok(()),
            (_, [number]) => unsent = Signal::try_from(i32::from(number)).ok(),
        }
    }
}

/// Kills the session of the command, and everything that has the mark.
fn end(mark: &str, first: Option<ProcessEntry>) -> io::Result<()> {
    for _ in 0..ROUNDS {
        let session = first.map_or(0, |first| process_table::kill_session(first.pid, first.start_ticks));
        let found = marked(mark);
        found.iter().for_each(|p| process_table::send(p.pid, Signal::SIGKILL));
        if session == 0 && found.is_empty() {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(u64::from(STEP_MS)));
    }
    Err(io::Error::other("a command does not end"))
}

fn marked(mark: &str) -> Vec<ProcessEntry> {
    let has_mark =
        |p: &ProcessEntry| process_table::environment(p.pid).split(|b| *b == 0).any(|v| v == mark.as_bytes());
    process_table::all().into_iter().filter(|p| !p.zombie && has_mark(p)).collect()
}
