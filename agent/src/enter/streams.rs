//! The streams of a command, apart from those of the caller.
//!
//! ```text
//! the caller's     between                                   the command's
//! two terminals    a new terminal, and a pipe for errors     stdin, stdout, stderr
//! anything else    three pipes                               stdin, stdout, stderr
//! ```
//!
//! Guarantees: the command gets no stream of the caller, whatever each of them is; what it has printed before its end is passed on; the
//! settings of the caller's terminal are restored, however the command ends.
//! Does not: look at what passes, or wait for a process that the command has left behind.

use crate::output::capture::has_data;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::pty::openpty;
use nix::sys::termios::{SetArg, Termios, cfmakeraw, tcgetattr, tcsetattr};
use std::fs::File;
use std::io::{self, IsTerminal, PipeReader, PipeWriter, Read, Write, pipe};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::fchown;
use std::process::{Command, Stdio};
use std::thread::{self, JoinHandle};

/// How much is passed on at a time.
const PART: usize = 16 << 10;

/// Where the output of the command goes.
#[derive(Clone, Copy, Debug)]
enum Caller {
    Out,
    Err,
}

pub(super) struct Streams {
    /// Whether the command gets a terminal.
    pub(super) is_terminal: bool,
    /// Where the command reads what the caller says.
    input: File,
    outputs: Vec<(File, Caller)>,
    /// The sides of the command: its three streams.
    commands: [OwnedFd; 3],
}

impl Streams {
    /// Makes them. The command runs as `uid`, and may open its streams again.
    pub(super) fn open(uid: Option<u32>) -> io::Result<Self> {
        let is_terminal = io::stdin().is_terminal() && io::stdout().is_terminal();
        let (input, out, stdin, stdout) = if is_terminal { terminal()? } else { pipes()? };
        let mut outputs = vec![(out, Caller::Out)];
        let stderr = if is_terminal && io::stderr().is_terminal() {
            stdout.try_clone()?
        } else {
            let (err, writer) = pipe()?;
            outputs.push((File::from(OwnedFd::from(err)), Caller::Err));
            OwnedFd::from(writer)
        };
        let commands = [stdin, stdout, stderr];
        if uid.is_some() {
            commands.iter().try_for_each(|stream| fchown(stream, uid, uid))?;
        }
        Ok(Self { is_terminal, input, outputs, commands })
    }

    /// Gives the command its sides.
    pub(super) fn give_to(&self, command: &mut Command) -> io::Result<()> {
        let [stdin, stdout, stderr] = &self.commands;
        let side = |stream: &OwnedFd| stream.try_clone().map(Stdio::from);
        command.stdin(side(stdin)?).stdout(side(stdout)?).stderr(side(stderr)?);
        Ok(())
    }

    /// Begins to pass on input and output. The sides of the command are closed here.
    pub(super) fn pass_on(self) -> io::Result<Passage> {
        let Self { is_terminal, mut input, outputs, commands } = self;
        drop(commands);
        let terminal = if is_terminal { Some(OurTerminal::of(input.try_clone()?)?) } else { None };
        // This thread waits for input of the caller, so it ends only with this process.
        thread::spawn(move || copy(&mut io::stdin(), &mut input));
        let (told, ended) = pipe()?;
        let mut passing = Passage { terminal, pumps: Vec::new(), ended };
        for (from, to) in outputs {
            let told = told.try_clone()?;
            passing.pumps.push(thread::spawn(move || match to {
                Caller::Out => pump(from, &told, &mut io::stdout()),
                Caller::Err => pump(from, &told, &mut io::stderr()),
            }));
        }
        Ok(passing)
    }
}

/// Our sides for input and output, and those of the command.
type Pair = (File, File, OwnedFd, OwnedFd);

fn terminal() -> io::Result<Pair> {
    let pair = openpty(None, None)?;
    for side in [&pair.master, &pair.slave] {
        fcntl(side, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
    }
    let ours = File::from(pair.master);
    take_size(&ours);
    Ok((ours.try_clone()?, ours, pair.slave.try_clone()?, pair.slave))
}

fn pipes() -> io::Result<Pair> {
    let (stdin, input) = pipe()?;
    let (out, stdout) = pipe()?;
    let ours = |fd: OwnedFd| File::from(fd);
    Ok((ours(input.into()), ours(out.into()), stdin.into(), stdout.into()))
}

pub(super) struct Passage {
    terminal: Option<OurTerminal>,
    pumps: Vec<JoinHandle<()>>,
    /// Closing this end tells the pumps that the command has ended.
    ended: PipeWriter,
}

impl Passage {
    /// Takes over the new size of the caller's terminal.
    pub(super) fn resize(&self) {
        if let Some(terminal) = &self.terminal {
            take_size(&terminal.side);
        }
    }

    /// Passes on the last output of a command that has ended.
    pub(super) fn end(self) {
        drop(self.ended);
        for pump in self.pumps {
            let _lost_is_lost = pump.join();
        }
    }
}

/// Our side of the terminal, and the settings of the caller's one.
struct OurTerminal {
    side: File,
    before: Termios,
}

impl OurTerminal {
    fn of(side: File) -> io::Result<Self> {
        let before = tcgetattr(io::stdin())?;
        let mut raw = before.clone();
        cfmakeraw(&mut raw);
        tcsetattr(io::stdin(), SetArg::TCSANOW, &raw)?;
        Ok(Self { side, before })
    }
}

impl Drop for OurTerminal {
    fn drop(&mut self) {
        let _closed_is_fine = tcsetattr(io::stdin(), SetArg::TCSANOW, &self.before);
    }
}

/// Copies until the command has ended and everything is passed on, or nobody has the other side open, or the caller takes no more.
fn pump(mut from: File, told: &PipeReader, to: &mut impl Write) {
    let mut part = vec![0; PART];
    loop {
        let mut fds = [from.as_fd(), told.as_fd()].map(|fd| PollFd::new(fd, PollFlags::POLLIN));
        let _interrupted_is_fine = poll(&mut fds, PollTimeout::NONE);
        // This comes before the output is read, so that all that was printed before the end is there.
        let has_ended = has_data(told.as_fd());
        if has_data(from.as_fd()) {
            if !pass_part(&mut from, to, &mut part) {
                return;
            }
        } else if has_ended {
            return;
        }
    }
}

/// Copies as it comes.
fn copy(from: &mut impl Read, to: &mut impl Write) {
    let mut part = vec![0; PART];
    while pass_part(from, to, &mut part) {}
}

/// Returns whether there may be more. An error is an end: a terminal whose other side is closed cannot be read.
fn pass_part(from: &mut impl Read, to: &mut impl Write, part: &mut [u8]) -> bool {
    let read = match from.read(part) {
        Ok(bytes) => bytes,
        Err(error) => return error.kind() == io::ErrorKind::Interrupted,
    };
    let read = part.get(..read).unwrap_or_default();
    !read.is_empty() && to.write_all(read).and_then(|()| to.flush()).is_ok()
}

/// Gives this terminal the size of the caller's. Without a size, programs take 80 by 24.
fn take_size(terminal: &File) {
    let size = Command::new("stty").arg("size").stdin(Stdio::inherit()).stderr(Stdio::null()).output();
    let size = size.map(|out| String::from_utf8_lossy(&out.stdout).into_owned()).unwrap_or_default();
    if let (Some((rows, columns)), Ok(side)) = (size.trim().split_once(' '), terminal.try_clone()) {
        let mut stty = Command::new("stty");
        stty.args(["rows", rows, "cols", columns]).stdin(side).stdout(Stdio::null()).stderr(Stdio::null());
        let _no_size_is_fine = stty.status();
    }
}
