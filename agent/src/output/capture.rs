//! Captures the output of a command: two pipes, and a thread that writes what comes out of them to the disk.
//!
//! Guarantees: the command cannot truncate, replace or seek in what it has printed, also if it opens `/dev/stderr` or
//! `/dev/stdout` again; what it printed before it ended is on disk when [`Capture::finish`] returns; a slow disk makes the
//! command wait, and loses nothing; a command that fills the disk finds room for its last words.
//! Does not: wait for ever for a disk that takes nothing: after `PATIENCE` the output is given up, and so is the alloc. What
//! is in the pipes when the supervisor is killed is lost.
//! Standard output and standard error are ordered as the bytes were found in the two pipes.

use super::output_files::OutputFiles;
use crate::elements::ElementsLog;
use crate::machine::atomic_file::Spare;
use model::Stream;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::fs::File;
use std::io::{self, PipeReader, PipeWriter, Read, pipe};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt, fchown};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a disk may take nothing before the output is given up.
const PATIENCE: Duration = Duration::from_secs(600);

/// [`PATIENCE`] after the command has ended. It is shorter, because the end of the alloc waits for it.
const PATIENCE_AT_END: Duration = Duration::from_secs(60);

/// The wait between two attempts to write.
const AGAIN_MS: u16 = 500;

/// Disk space for what is in the pipes when the command has ended. `Spare` takes up twice as much.
const LAST_BYTES: usize = CHUNK + 4096;

/// How much is read at a time. A pipe holds as much.
const CHUNK: usize = 64 << 10;

pub struct Capture {
    /// `None` after the thread was joined.
    thread: Option<JoinHandle<Option<ElementsLog>>>,
    /// The log of the elements, after the thread was joined.
    elements: Option<ElementsLog>,
    /// Closing this end tells the thread that the command has ended.
    ended: Option<PipeWriter>,
    given_up: Arc<OnceLock<String>>,
    /// How many elements were killed for their memory and did not end in the log yet.
    out_of_memory: Arc<AtomicU32>,
}

/// The ends of the pipes that the command gets as its standard output and standard error.
pub struct Printers {
    pub out: PipeWriter,
    pub err: PipeWriter,
}

impl Capture {
    /// Makes the pipes, and writes what comes out of them into these files. The pipes are given to the job's user: a command
    /// that opens `/dev/stderr` opens its pipe again.
    /// With `elements`, standard output is a stream of frames.
    pub fn start(files: &OutputFiles, uid: Option<u32>, elements: Option<ElementsLog>) -> io::Result<(Self, Printers)> {
        let (out, out_writer) = pipe()?;
        let (err, err_writer) = pipe()?;
        let (ended, end) = pipe()?;
        if uid.is_some() {
            [&out_writer, &err_writer].into_iter().try_for_each(|pipe| fchown(pipe, uid, uid))?;
        }
        let given_up = Arc::default();
        let out_of_memory = elements.as_ref().map(ElementsLog::out_of_memory).unwrap_or_default();
        let (spare, given) = (files.spare(), Arc::clone(&given_up));
        let mut writer = Writer { files: Files::create(files)?, spare: None, ended, given_up: given };
        let run = move || {
            writer.spare = Some(Spare::new(spare, LAST_BYTES));
            run(writer, elements, out, err)
        };
        let thread = std::thread::Builder::new().name("output".to_owned()).spawn(run)?;
        let capture = Self { thread: Some(thread), elements: None, ended: Some(end), given_up, out_of_memory };
        Ok((capture, Printers { out: out_writer, err: err_writer }))
    }

    /// Why the output was given up; `None` if it was not.
    pub fn given_up(&self) -> Option<String> {
        self.given_up.get().cloned()
    }

    /// Notes that an element is killed now, because it uses too much memory.
    pub(crate) fn out_of_memory(&self) {
        self.out_of_memory.fetch_add(1, Ordering::SeqCst);
    }

    /// Writes what is left in the pipes. Call this when no process of the command runs: a process that still has a pipe open is not
    /// waited for. Returns why output was lost; `None` if all is on disk.
    pub async fn finish(&mut self) -> Option<String> {
        drop(self.ended.take());
        if let Some(thread) = self.thread.take() {
            match tokio::task::spawn_blocking(|| thread.join()).await {
                Ok(Ok(elements)) => self.elements = elements,
                _ => {
                    let why = || "the end of the output is lost: the thread that writes it failed".to_owned();
                    self.given_up.get_or_init(why);
                }
            }
        }
        self.given_up()
    }

    /// The elements of the alloc, after [`Capture::finish`].
    pub(crate) fn elements(&mut self) -> Option<ElementsLog> {
        self.elements.take()
    }
}

/// Copies from the pipes until the command has ended and they are empty.
fn run(mut writer: Writer, mut elements: Option<ElementsLog>, out: PipeReader, err: PipeReader) -> Option<ElementsLog> {
    let mut pipes = [(Stream::Out, Some(out)), (Stream::Err, Some(err))];
    let mut chunk = vec![0; CHUNK];
    loop {
        // This comes before the reads, so that they find everything that was printed before the end.
        let has_ended = writer.wait(&pipes);
        let mut is_empty = true;
        for (stream, pipe) in &mut pipes {
            let Some(reader) = pipe.as_mut().filter(|reader| has_data(reader.as_fd())) else { continue };
            match reader.read(&mut chunk) {
                // No process has the pipe open any more.
                Ok(0) => *pipe = None,
                Ok(n) => {
                    is_empty = false;
                    let elements = elements.as_mut().filter(|_| *stream == Stream::Out);
                    writer.take(*stream, chunk.get(..n).unwrap_or_default(), elements);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => is_empty = false,
                Err(error) => {
                    writer.give_up(&error);
                    *pipe = None;
                }
            }
        }
        if has_ended && is_empty {
            writer.release();
            return elements;
        }
    }
}

/// Whether a read returns at once.
pub(crate) fn has_data(pipe: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::new(pipe, PollFlags::POLLIN)];
    poll(&mut fds, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
}

struct Writer {
    files: Files,
    /// `None` once its space is given to the output.
    spare: Option<Spare>,
    /// Closed when the command has ended.
    ended: PipeReader,
    given_up: Arc<OnceLock<String>>,
}

impl Writer {
    /// Waits until there is something to do. Returns whether the command has ended.
    fn wait(&self, pipes: &[(Stream, Option<PipeReader>)]) -> bool {
        let open = pipes.iter().filter_map(|(_, pipe)| pipe.as_ref().map(AsFd::as_fd));
        let mut fds: Vec<_> = open.chain([self.ended.as_fd()]).map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        // After a signal the caller looks, finds nothing, and waits again.
        let _interrupted_is_fine = poll(&mut fds, PollTimeout::NONE);
        has_data(self.ended.as_fd())
    }

    /// Writes the bytes; with `elements`, the output in the frames that the bytes contain.
    fn take(&mut self, stream: Stream, bytes: &[u8], elements: Option<&mut ElementsLog>) {
        let Some(log) = elements else { return self.write(stream, bytes) };
        if let Err(error) = log.read(bytes, |stream, bytes| self.write(stream, bytes)) {
            _ = self.given_up.set(error.to_string());
        }
    }

    /// Writes the bytes. While the disk takes nothing, this waits, and so does the command once its pipe is full.
    fn write(&mut self, stream: Stream, bytes: &[u8]) {
        let since = Instant::now();
        let mut left = bytes;
        while !left.is_empty() && self.given_up.get().is_none() {
            match self.files.write(stream, left) {
                Ok(n) => left = left.get(n..).unwrap_or_default(),
                Err(error) => {
                    let mut told = [PollFd::new(self.ended.as_fd(), PollFlags::POLLIN)];
                    let has_ended = poll(&mut told, AGAIN_MS).is_ok_and(|ready| ready > 0);
                    if has_ended && self.release() {
                        continue;
                    }
                    if since.elapsed() > if has_ended { PATIENCE_AT_END } else { PATIENCE } {
                        self.give_up(&error);
                    } else if has_ended {
                        std::thread::sleep(Duration::from_millis(u64::from(AGAIN_MS)));
                    }
                }
            }
        }
    }

    /// Frees the spare space. Returns whether there was some.
    fn release(&mut self) -> bool {
        self.spare.take().inspect(Spare::release).is_some()
    }

    /// From now on what the command prints is dropped, so that it can end.
    fn give_up(&self, error: &io::Error) {
        let at = self.files.at;
        if self.given_up.set(format!("its output after byte {at} is lost: it could not be written: {error}")).is_ok() {
            tracing::error!(%error, at, "the output cannot be written");
        }
    }
}

struct Files {
    output: File,
    switches: File,
    /// How many bytes the output has.
    at: u64,
    /// How many switches there are.
    count: usize,
}

impl Files {
    fn create(files: &OutputFiles) -> io::Result<Self> {
        let create = |path| File::options().write(true).create(true).truncate(true).mode(0o600).open(path);
        Ok(Self { output: create(files.output())?, switches: create(files.switches())?, at: 0, count: 0 })
    }

    /// Writes some of the bytes, and returns how many. The switch is on disk before the bytes after it, so a reader that finds the
    /// bytes finds the switch too.
    fn write(&mut self, stream: Stream, bytes: &[u8]) -> io::Result<usize> {
        if Stream::after(self.count) != stream {
            let place = OutputFiles::place_of_switch(self.count);
            self.switches.write_all_at(&self.at.to_le_bytes(), place)?;
            self.count = self.count.saturating_add(1);
        }
        let written = self.output.write_at(bytes, self.at)?;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        self.at = self.at.saturating_add(written as u64);
        Ok(written)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::output::Switches;
    use std::process::Command;

    /// What a shell prints, and which of it is standard error.
    async fn printed(script: &str) -> (Vec<u8>, Switches) {
        let dir = tempfile::tempdir().unwrap();
        let files = OutputFiles::at(dir.path().to_owned());
        let (mut capture, Printers { out, err }) = Capture::start(&files, None, None).unwrap();
        let mut command = Command::new("sh");
        let mut child = command.args(["-c", script]).stdout(out).stderr(err).spawn().unwrap();
        drop(command);
        child.wait().unwrap();
        assert_eq!(capture.finish().await, None);
        let bytes = std::fs::read(files.output()).unwrap();
        let switches = files.switches_within(0, bytes.len() as u64).unwrap();
        (bytes, switches)
    }

    #[tokio::test]
    async fn what_a_command_printed_stays_whatever_it_does_with_its_output() {
        let script = "echo one; echo two > /dev/stdout; : > /dev/stderr; echo three > /dev/stdout; exec 1>&-; sleep 0";
        assert_eq!(printed(script).await, (b"one\ntwo\nthree\n".to_vec(), Switches::default()));
    }

    #[tokio::test]
    async fn both_streams_are_whole_and_apart() {
        let (bytes, switches) = printed("echo a >&2; seq 1 200000; echo b >&2").await;
        let of =
            |stream| switches.split(&bytes).filter(|(s, _)| *s == stream).map(|(_, part)| part).collect::<Vec<_>>();
        assert_eq!(of(Stream::Err).concat(), b"a\nb\n");
        let numbers: String = (1..=200_000).map(|n| format!("{n}\n")).collect();
        assert!(of(Stream::Out).concat() == numbers.as_bytes());
    }

    #[tokio::test]
    async fn a_process_that_keeps_the_pipe_open_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let files = OutputFiles::at(dir.path().to_owned());
        let (mut capture, Printers { out, err: _held }) = Capture::start(&files, None, None).unwrap();
        io::Write::write_all(&mut &out, b"before the end\n").unwrap();
        assert_eq!(capture.finish().await, None);
        assert_eq!(std::fs::read(files.output()).unwrap(), b"before the end\n");
        drop(out);
    }

    #[test]
    fn a_full_disk_is_waited_for_and_the_rest_is_written_behind_what_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let files = OutputFiles::at(dir.path().to_owned());
        let mut writing = Files::create(&files).unwrap();
        writing.write(Stream::Out, b"a").unwrap();
        let good = std::mem::replace(&mut writing.output, File::options().write(true).open("/dev/full").unwrap());
        // The switch is written once, however often the bytes after it are tried.
        for _ in 0..3 {
            assert_eq!(writing.write(Stream::Err, b"b").unwrap_err().kind(), io::ErrorKind::StorageFull);
        }
        writing.output = good;
        writing.write(Stream::Err, b"b").unwrap();
        assert_eq!(std::fs::read(files.output()).unwrap(), b"ab");
        assert_eq!(files.switches_within(0, 2).unwrap(), Switches::new(vec![1]));
    }
}
