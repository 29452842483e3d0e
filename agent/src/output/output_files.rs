//! The files of one output, which are in the directory of its alloc, or kept after that was destroyed.
//!
//! Guarantees: a symbolic link is never followed; the note of how much is stored in S3 is written completely or not at all; pieces that
//! gave their room on the disk back count as stored, also without the note.
//! Does not: say which outputs there are, or how long they are kept (`outputs` does).

use crate::machine::atomic_file::{self, absent_is_fine, if_there};
use crate::protocol::tail;
use model::stored::PIECE_BYTES;
use model::{Stream, Switches};
use nix::fcntl::OFlag;
use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek};
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// How many bytes a switch has on disk.
const SWITCH_BYTES: u64 = 8;

/// How much of an output is in S3.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// The number of bytes from its beginning.
    pub bytes: u64,
    /// Whether S3 knows that these bytes are all.
    pub end: bool,
}

/// The files of one output: those in the directory of an alloc, or the kept ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputFiles(PathBuf);

impl OutputFiles {
    pub const fn at(dir: PathBuf) -> Self {
        Self(dir)
    }

    pub fn output(&self) -> PathBuf {
        self.0.join("output")
    }

    /// Disk space for the end of the output, while the command runs.
    pub fn spare(&self) -> PathBuf {
        self.0.join("output-spare")
    }

    /// Where the stream changes.
    pub fn switches(&self) -> PathBuf {
        self.0.join("switches")
    }

    pub fn is_there(&self) -> bool {
        self.0.exists()
    }

    pub fn dir(&self) -> &Path {
        &self.0
    }

    /// Where the output is to be stored in S3, until all of it is.
    pub fn place(&self) -> PathBuf {
        self.0.join("place")
    }

    /// How much is in S3. If the note cannot be read, everything is stored once more.
    pub fn progress(&self) -> Progress {
        let note = fs::read(self.0.join("stored")).ok();
        let noted: Progress = note.and_then(|note| serde_json::from_slice(&note).ok()).unwrap_or_default();
        Progress { bytes: noted.bytes.max(self.freed().unwrap_or(0)), ..noted }
    }

    /// Gives the room of the whole pieces before this byte back: S3 has them.
    pub fn free(&self, to: u64) -> io::Result<()> {
        let bytes = whole_pieces(to);
        if bytes > 0 {
            let file = File::options().write(true).custom_flags(OFlag::O_NOFOLLOW.bits()).open(self.output())?;
            // Not every file system can.
            let _best_effort = fallocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, bytes);
        }
        Ok(())
    }

    /// How many bytes at the beginning were given back.
    fn freed(&self) -> io::Result<u64> {
        let Some(file) = open_regular(&self.output())? else { return Ok(0) };
        Ok(whole_pieces(seek(&file, SeekFrom::Data(0))?))
    }

    pub fn note(&self, progress: Progress) -> io::Result<()> {
        absent_is_fine(atomic_file::replace(&self.0.join("stored"), &serde_json::to_vec(&progress)?))
    }

    /// Where the switch with this number is on disk.
    pub const fn place_of_switch(no: usize) -> u64 {
        SWITCH_BYTES.saturating_mul(no as u64)
    }

    pub fn size(&self) -> io::Result<u64> {
        open_regular(&self.output())?.map_or(Ok(0), |file| file.metadata().map(|m| m.len()))
    }

    /// Adds this text to the standard error of a command that prints no more.
    pub fn add_to_stderr(&self, text: &str) -> io::Result<()> {
        let (size, open) = (self.size()?, open_regular(&self.switches())?);
        let switches = open.map_or(Ok(0), |file| file.metadata().map(|m| m.len() / SWITCH_BYTES))?;
        if Stream::after(usize::try_from(switches).unwrap_or(usize::MAX)) == Stream::Out {
            append(&self.switches(), &size.to_le_bytes())?;
        }
        append(&self.output(), text.as_bytes())
    }

    /// These bytes of the output. They must be there.
    pub fn bytes_within(&self, from: u64, to: u64) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; usize::try_from(to.saturating_sub(from)).map_err(io::Error::other)?];
        match open_regular(&self.output())? {
            Some(file) => file.read_exact_at(&mut bytes, from).map(|()| bytes),
            None if bytes.is_empty() => Ok(bytes),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    /// The switches of these bytes, with places counted from `from`. Read them after the bytes.
    pub fn switches_within(&self, from: u64, to: u64) -> io::Result<Switches> {
        let Some(file) = open_regular(&self.switches())? else { return Ok(Switches::default()) };
        let count = usize::try_from(file.metadata()?.len() / SWITCH_BYTES).unwrap_or(usize::MAX);
        let at = |no: usize| {
            let mut place = [0; SWITCH_BYTES as usize];
            file.read_exact_at(&mut place, Self::place_of_switch(no)).map(|()| u64::from_le_bytes(place))
        };
        // A binary search for the number of switches up to the first byte.
        let (mut before, mut beyond) = (0, count);
        while before < beyond {
            let middle = before.midpoint(beyond);
            if at(middle)? <= from { before = middle.saturating_add(1) } else { beyond = middle }
        }
        let mut switches = Switches::default();
        switches.note(0, Stream::after(before));
        for no in before..count {
            let place = at(no)?;
            if place >= to {
                break;
            }
            switches.note(place.saturating_sub(from), Stream::after(no.saturating_add(1)));
        }
        Ok(switches)
    }
}

const fn whole_pieces(bytes: u64) -> u64 {
    bytes / PIECE_BYTES * PIECE_BYTES
}

fn append(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut options = File::options();
    options.append(true).create(true).mode(0o600).custom_flags(OFlag::O_NOFOLLOW.bits());
    options.open(path)?.write_all(bytes)
}

/// Opens a regular file; `None` if there is none. A symbolic link is an error.
pub(crate) fn open_regular(path: &Path) -> io::Result<Option<File>> {
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
    let opened = if_there(File::options().read(true).custom_flags(flags.bits()).open(path))?;
    let Some(file) = opened else { return Ok(None) };
    Ok(file.metadata()?.is_file().then_some(file))
}

/// The end of an output as text, at most `limit` bytes, and which of it is standard error.
pub fn output_tail(files: &OutputFiles, limit: usize) -> io::Result<(String, Switches)> {
    let size = files.size()?;
    let start = size.saturating_sub(limit as u64);
    let bytes = files.bytes_within(start, size)?;
    // The start may be inside a character: leave out its remaining bytes, three at most.
    let cut = bytes.iter().take(3).take_while(|b| start > 0 && (0x80..0xC0).contains(*b)).count();
    let switches = files.switches_within(start.saturating_add(cut as u64), size)?;
    let (mut text, mut of_text) = (String::new(), Switches::default());
    for (stream, part) in switches.split(bytes.get(cut..).unwrap_or_default()) {
        of_text.note(text.len() as u64, stream);
        text.push_str(&String::from_utf8_lossy(part));
    }
    // Each invalid byte became a replacement character of three bytes, so cut again.
    let kept = tail(&text, limit);
    let switches = of_text.part(text.len().saturating_sub(kept.len()) as u64, 0);
    Ok((kept.to_owned(), switches))
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::wire::MAX_LOG_TAIL_BYTES;

    #[test]
    fn what_is_added_is_standard_error_behind_all_that_was_printed() {
        let dir = tempfile::tempdir().unwrap();
        let files = OutputFiles::at(dir.path().to_owned());
        let all = || output_tail(&files, 100).unwrap();
        files.add_to_stderr("a\n").unwrap();
        assert_eq!(all(), ("a\n".to_owned(), Switches::new(vec![0])), "the command has printed nothing");
        files.add_to_stderr("b\n").unwrap();
        assert_eq!(all(), ("a\nb\n".to_owned(), Switches::new(vec![0])));
        fs::remove_file(files.switches()).unwrap();
        files.add_to_stderr("c\n").unwrap();
        assert_eq!(all(), ("a\nb\nc\n".to_owned(), Switches::new(vec![4])), "after standard output");
    }

    #[test]
    fn the_end_of_the_output_is_short_and_valid_text() {
        let dir = tempfile::tempdir().unwrap();
        let files = OutputFiles::at(dir.path().to_owned());
        let tail = |output: &[u8], limit| {
            fs::write(files.output(), output).unwrap();
            output_tail(&files, limit).unwrap()
        };
        assert_eq!(tail("é".repeat(10_000).as_bytes(), 101), ("é".repeat(50), Switches::default()));
        let (text, _) = tail(&b"\xFF".repeat(10_000), MAX_LOG_TAIL_BYTES);
        assert!(text.len() <= MAX_LOG_TAIL_BYTES && text.len() > MAX_LOG_TAIL_BYTES - 3);
        assert_eq!(tail(b"short\n", 100), ("short\n".to_owned(), Switches::default()));
        // Standard error begins at the third byte, and standard output again at the fifth. A replacement character is longer than
        // one byte.
        fs::write(files.switches(), [2u64, 4].map(u64::to_le_bytes).concat()).unwrap();
        let text = "a\u{fffd}\u{fffd}bcd".to_owned();
        assert_eq!(tail(b"a\xff\xffbcd", 100), (text, Switches::new(vec![4, 8])));
        assert_eq!(tail(b"a\xff\xffbcd", 3), ("bcd".to_owned(), Switches::new(vec![0, 1])));
    }
}
