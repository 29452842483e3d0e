//! Standard input: as the file `-` of a command, and as the input of a job (`--stdin`).
//!
//! Guarantees: an input is passed on whole or refused. Without `--stdin`, `run` refuses an input that it would drop.
//! Does not: pass on data that comes after the submission, or wait for an input that nobody asked for: in cron and CI, standard
//! input may be a pipe that never ends.

use crate::console::{Context, UsageError, bounded};
use anyhow::bail;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use model::{INPUT_VARIABLE, JobSpec};
use nix::poll::{PollFd, PollFlags, poll};
use std::fs::File;
use std::io::{self, BufRead, BufReader, IsTerminal, Seek};
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

/// The most bytes of an input. In base64 they leave a KiB of [`model::MAX_COMMAND_BYTES`] for the command and its environment.
const MOST_INPUT: u64 = 11 << 10;

/// How long to wait for the program before the pipe to write something.
const WRITES_WITHIN_MS: u8 = 200;

/// Opens a file, or standard input if the path is `-`.
pub(crate) fn open<'a>(input: &'a mut (dyn BufRead + Send), file: &Path) -> io::Result<Box<dyn BufRead + 'a>> {
    if file.as_os_str() == "-" {
        return Ok(Box::new(input));
    }
    Ok(Box::new(BufReader::new(File::open(file)?)))
}

/// Reads standard input to its end, and makes it the input of this job.
pub(crate) fn pass_on(context: &mut Context<'_>, spec: &mut JobSpec) -> anyhow::Result<()> {
    let input = bounded::bytes(&mut *context.input, "standard input", MOST_INPUT)
        .map_err(|e| e.context("give more by --in or a URL: standard input becomes a part of the job"))?;
    spec.env.insert(INPUT_VARIABLE.to_owned(), BASE64_STANDARD.encode(input));
    Ok(())
}

/// Refuses a standard input, a file or a pipe, that has unread data. Reads none of it.
#[allow(clippy::disallowed_methods, reason = "whether there is an input can only be seen at standard input itself")]
pub(crate) fn refuse_unread() -> anyhow::Result<()> {
    let stdin = std::io::stdin();
    if stdin.is_terminal() {
        return Ok(());
    }
    // Without a standard input, there is nothing to read.
    let Ok(file) = stdin.as_fd().try_clone_to_owned().map(File::from) else { return Ok(()) };
    if has_data(file)? {
        let why = "standard input has data, and the job would not get it: give --stdin to pass it on, or < /dev/null to \
                   leave it";
        bail!(UsageError(why.to_owned()));
    }
    Ok(())
}

fn has_data(mut file: File) -> std::io::Result<bool> {
    let metadata = file.metadata()?;
    if metadata.is_file() {
        return Ok(file.stream_position()? < metadata.len());
    }
    if !metadata.file_type().is_fifo() {
        return Ok(false);
    }
    // At the end of a pipe, POLLHUP is set and POLLIN is not.
    let mut fds = [PollFd::new(file.as_fd(), PollFlags::POLLIN)];
    poll(&mut fds, WRITES_WITHIN_MS)?;
    Ok(fds.iter().any(|fd| fd.revents().is_some_and(|is| is.contains(PollFlags::POLLIN))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write, pipe};
    use std::os::fd::OwnedFd;

    #[test]
    fn an_input_is_seen_before_it_is_read_and_a_pipe_that_says_nothing_is_not_waited_for() {
        let of = |fd: OwnedFd| has_data(File::from(fd)).unwrap();
        let (reader, mut writer) = pipe().unwrap();
        assert!(!of(reader.try_clone().unwrap().into()), "nobody has written, and the pipe is open");
        writer.write_all(b"x").unwrap();
        assert!(of(reader.try_clone().unwrap().into()));
        drop(writer);
        assert!(of(reader.try_clone().unwrap().into()));
        let mut all = Vec::new();
        (&reader).read_to_end(&mut all).unwrap();
        assert_eq!(all, b"x", "nothing of it was read");
        assert!(!of(reader.into()), "it has ended");
        assert!(!of(File::open("/dev/null").unwrap().into()));
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("input");
        for (text, expected) in [("", false), ("exit 4", true)] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(of(File::open(&path).unwrap().into()), expected, "{text:?}");
        }
        let mut read = File::open(&path).unwrap();
        read.read_to_end(&mut all).unwrap();
        assert!(!of(read.into()), "all of it was read before");
    }
}
