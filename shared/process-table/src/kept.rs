//! Reads from pipes in place of processes that are halted or have ended, so that those who write there can save their work.
//!
//! Guarantees: while a process that handles the signal writes to a pipe, the pipe has a reader and never stays full. Nothing is read while
//! another process of the command may read it.
//! Does not: see sockets, or keep what was printed. An agent without the right to look into the job's processes reads nothing.

use super::{ProcessEntry, is_alive, is_halted, text};
use nix::libc::O_NONBLOCK;
use nix::sys::signal::Signal;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};

/// The most pipes that are kept.
const MAX: usize = 64;
/// How much of a pipe is read at a time, in bytes: as much as one usually holds.
const PIPE_BYTES: usize = 64 << 10;

/// The device and the inode of a pipe.
pub(super) type Pipe = (u64, u64);

#[derive(Default)]
pub(super) struct KeptReaders(BTreeMap<Pipe, KeptPipe>);

struct KeptPipe {
    file: File,
    /// The processes of the command that read from it.
    readers: Vec<ProcessEntry>,
}

impl KeptReaders {
    /// Call this before the signal is sent. `found` are the processes that get it.
    pub(super) fn keep(&mut self, found: &[ProcessEntry], signal: Signal) {
        let saving: Vec<i32> = found.iter().map(|p| p.pid).filter(|pid| handles(*pid, signal)).collect();
        if saving.is_empty() {
            return;
        }
        let to: BTreeSet<Pipe> = saving.into_iter().flat_map(written).collect();
        for process in found {
            for (fd, path) in open_files(process.pid) {
                if self.0.len() >= MAX {
                    return;
                }
                if let Some(pipe) = pipe(process.pid, &fd, 0o400).filter(|pipe| to.contains(pipe)) {
                    // A file of its own, so that it can be read without a wait.
                    let Ok(file) = File::options().read(true).custom_flags(O_NONBLOCK).open(&path) else { continue };
                    let kept = self.0.entry(pipe).or_insert(KeptPipe { file, readers: Vec::new() });
                    kept.readers.push(*process);
                }
            }
        }
    }

    /// Reads what nobody else will read. Call this again and again.
    pub(super) fn go_on(&mut self) {
        let mut bytes = vec![0; if self.0.is_empty() { 0 } else { PIPE_BYTES }];
        self.0.retain(|_, kept| {
            kept.readers.retain(|p| is_alive(p.pid, p.start_ticks));
            if !kept.readers.iter().all(|p| is_halted(p.pid)) {
                return true;
            }
            // The end of the file says that nobody writes any more.
            kept.file.read(&mut bytes).map_or_else(|e| e.kind() == ErrorKind::WouldBlock, |read| read > 0)
        });
    }
}

/// The descriptors of a process, and their paths.
pub(super) fn open_files(pid: i32) -> impl Iterator<Item = (String, String)> {
    let open = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    open.filter_map(|fd| Some((fd.file_name().to_str()?.to_owned(), fd.path().to_str()?.to_owned())))
}

/// Whether this is the end of a terminal that `script`, `tmux` and others read from.
pub(super) fn is_terminal(path: &str) -> bool {
    fs::read_link(path).is_ok_and(|file| file.ends_with("ptmx"))
}

pub(super) fn handles(pid: i32, signal: Signal) -> bool {
    has(pid, signal, &["SigCgt:"])
}

/// Whether one of these sets of a process has the signal.
pub(super) fn has(pid: i32, signal: Signal, sets: &[&str]) -> bool {
    let status = text(pid, "status").unwrap_or_default();
    sets.iter().any(|set| super::signals(&status, set).contains(&(signal as i32)))
}

/// The pipes that a process has open for writing.
pub(super) fn written(pid: i32) -> BTreeSet<Pipe> {
    let open = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    open.filter_map(|fd| pipe(pid, fd.file_name().to_str()?, 0o200)).collect()
}

/// The pipe behind a descriptor that is open in this way.
pub(super) fn pipe(pid: i32, fd: &str, way: u32) -> Option<Pipe> {
    let path = format!("/proc/{pid}/fd/{fd}");
    let is_open = fs::symlink_metadata(&path).ok()?.mode() & way != 0;
    let file = fs::metadata(&path).ok().filter(|file| is_open && file.file_type().is_fifo())?;
    Some((file.dev(), file.ino()))
}
