//! A terminal for a command, connected with the terminal of the caller.
//!
//! Guarantees: the settings of the caller's terminal are restored, however the command ends.
//! Does not: look at what passes.

use nix::pty::openpty;
use nix::sys::termios::{SetArg, Termios, cfmakeraw, tcgetattr, tcsetattr};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

/// How long to wait for the last output of a command, if a process that it left behind holds its terminal.
const LAST_WORDS: Duration = Duration::from_millis(300);

/// A terminal whose other side a command has.
#[derive(Debug)]
pub(super) struct Terminal {
    ours: File,
    commands: OwnedFd,
}

impl Terminal {
    pub(super) fn open() -> io::Result<Self> {
        let pair = openpty(None, None)?;
        let terminal = Self { ours: File::from(pair.master), commands: pair.slave };
        take_size(&terminal.ours);
        Ok(terminal)
    }

    /// Gives the command its side.
    pub(super) fn give_to(&self, command: &mut Command) -> io::Result<()> {
        let side = || self.commands.try_clone().map(Stdio::from);
        command.stdin(side()?).stdout(side()?).stderr(side()?);
        Ok(())
    }

    /// Begins to pass on input and output.
    pub(super) fn pass_on(self) -> io::Result<Passing> {
        let before = tcgetattr(io::stdin())?;
        let mut raw = before.clone();
        cfmakeraw(&mut raw);
        let (mut from_caller, mut from_command) = (self.ours.try_clone()?, self.ours.try_clone()?);
        tcsetattr(io::stdin(), SetArg::TCSANOW, &raw)?;
        let (says_end, ended) = channel();
        let passing = Passing { ours: self.ours, before, ended };
        // This thread waits for input of the caller, so it ends only with this process.
        thread::spawn(move || copy(&mut io::stdin(), &mut from_caller));
        thread::spawn(move || {
            copy(&mut from_command, &mut io::stdout());
            let _nobody_waits = says_end.send(());
        });
        Ok(passing)
    }
}

#[derive(Debug)]
pub(super) struct Passing {
    ours: File,
    before: Termios,
    ended: Receiver<()>,
}

impl Passing {
    /// Takes over the new size of the caller's terminal.
    pub(super) fn resize(&self) {
        take_size(&self.ours);
    }

    /// Waits for the last output of a command that has ended.
    pub(super) fn end(self) {
        let _late_is_fine = self.ended.recv_timeout(LAST_WORDS);
    }
}

impl Drop for Passing {
    fn drop(&mut self) {
        let _closed_is_fine = tcsetattr(io::stdin(), SetArg::TCSANOW, &self.before);
    }
}

/// Copies as it comes. An error is an end: a terminal whose other side is closed cannot be read.
fn copy(from: &mut impl Read, to: &mut impl Write) {
    let mut part = [0; 4096];
    while let Ok(bytes) = from.read(&mut part) {
        let Some(read) = part.get(..bytes).filter(|read| !read.is_empty()) else { return };
        if to.write_all(read).and_then(|()| to.flush()).is_err() {
            return;
        }
    }
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
