//! Whether this node can start work, and what it tells the control plane if it cannot.
//!
//! Guarantees: a node whose disk takes no files says so before it gets work, or with the first alloc that it cannot start; a
//! node that could not start two allocs one after the other says so too. Both end by themselves: as soon as the disk takes
//! files again, and after a pause that doubles until an alloc is started.
//! Does not: start anything, or stop what runs.

use super::atomic_file::make_dir;
use model::AllocId;
use remove_tree::remove_tree;
use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;
use tokio::time::Instant;

/// After this many failed starts in a row, of different allocs, the node takes no work.
const TOO_MANY: usize = 2;

/// Two failed starts that are longer apart have nothing to do with each other.
const APART: Duration = Duration::from_secs(3600);

/// How long the node takes no work after too many failed starts, at first. This is longer than it usually takes to replace it.
const FIRST_PAUSE: Duration = Duration::from_secs(600);
const LONGEST_PAUSE: Duration = Duration::from_secs(4 * 3600);

/// The time between two tries of the disk: after one that worked, and after one that failed.
const TRY_EVERY: Duration = Duration::from_secs(60);
const TRY_SOON: Duration = Duration::from_secs(2);

/// The room that a start needs, about.
const BYTES: usize = 64 << 10;

/// The results of the last starts, and of tries of the disk.
#[derive(Debug, Default)]
pub struct Fitness {
    /// Why the disk takes no files.
    disk: Option<String>,
    tried_at: Option<Instant>,
    /// The allocs that failed to start since the last one that started.
    failed: BTreeSet<AllocId>,
    failed_at: Option<Instant>,
    /// Why the last of them failed, and until when the node takes no work.
    refuses: Option<(String, Instant)>,
    /// How often the node has refused since an alloc was started.
    pauses: u32,
}

impl Fitness {
    pub fn is_due(&self, now: Instant) -> bool {
        let every = if self.disk.is_some() { TRY_SOON } else { TRY_EVERY };
        self.tried_at.is_none_or(|at| now.saturating_duration_since(at) >= every)
    }

    pub fn disk_tried(&mut self, outcome: io::Result<()>, now: Instant) {
        self.tried_at = Some(now);
        self.disk = outcome.err().map(|e| format!("cannot write below its data directory: {e}"));
    }

    /// Notes that an alloc could not be started. This does not count while the disk takes no files, which is a reason of its own.
    pub fn failed(&mut self, id: AllocId, why: &str, now: Instant) {
        if self.disk.is_some() {
            return;
        }
        if self.failed_at.is_some_and(|at| now.saturating_duration_since(at) > APART) {
            self.worked();
        }
        self.failed_at = Some(now);
        if self.failed.insert(id) && self.failed.len() >= TOO_MANY {
            let pause = FIRST_PAUSE.saturating_mul(2_u32.saturating_pow(self.pauses)).min(LONGEST_PAUSE);
            self.refuses = Some((format!("cannot start work: {why}"), now + pause));
            self.pauses = self.pauses.saturating_add(1);
        }
    }

    /// Notes that an alloc could be started.
    pub fn worked(&mut self) {
        self.failed.clear();
        self.refuses = None;
        self.pauses = 0;
    }

    /// Why the node takes no work; `None` if it may.
    pub fn refusal(&mut self, now: Instant) -> Option<&str> {
        // After the pause, one more alloc that cannot be started is enough to refuse again.
        self.refuses.take_if(|(_, until)| *until <= now);
        self.disk.as_deref().or(self.refuses.as_ref().map(|(why, _)| why.as_str()))
    }
}

/// Does the same with the disk as the start of an alloc.
pub fn try_disk(allocs: &Path) -> io::Result<()> {
    let dir = allocs.join(".try");
    remove_tree(&dir)?;
    make_dir(&dir)?;
    let file = fs::File::options().write(true).create_new(true).mode(0o600).open(dir.join("file"));
    let written = file.and_then(|mut file| {
        file.write_all(&[b' '; BYTES])?;
        file.sync_all()
    });
    let removed = remove_tree(&dir);
    written.and(removed)
}

/// The error of a machine that has no room at this moment.
pub fn no_room(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::WouldBlock, what)
}

/// Whether the machine has no room at this moment: no memory, disk space, processes or file handles, a read-only disk, or a
/// program file that is still being written. This may pass, so the start is tried again for a while.
pub fn is_lack_of_room(error: &io::Error) -> bool {
    use io::ErrorKind::{ExecutableFileBusy, OutOfMemory, QuotaExceeded, ReadOnlyFilesystem, StorageFull, WouldBlock};
    let no_files = [nix::libc::EMFILE, nix::libc::ENFILE];
    matches!(error.kind(), StorageFull | QuotaExceeded | ReadOnlyFilesystem)
        || matches!(error.kind(), OutOfMemory | WouldBlock | ExecutableFileBusy)
        || error.raw_os_error().is_some_and(|code| no_files.contains(&code))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::testing::alloc_id;

    #[test]
    fn a_node_refuses_at_the_second_failed_start_in_a_row_and_tries_again_after_a_growing_pause() {
        let (mut fitness, start) = (Fitness::default(), Instant::now());
        let at = |s: u64| start + Duration::from_secs(s);
        fitness.failed(alloc_id(0), "no daemon", at(0));
        fitness.failed(alloc_id(0), "no daemon", at(1));
        assert_eq!(fitness.refusal(at(1)), None, "it is the same alloc");
        fitness.worked();
        fitness.failed(alloc_id(1), "no daemon", at(2));
        assert_eq!(fitness.refusal(at(2)), None, "one was started in between");
        fitness.failed(alloc_id(2), "no daemon", at(2 + 3601));
        assert_eq!(fitness.refusal(at(2 + 3601)), None, "they are far apart");
        fitness.failed(alloc_id(3), "no daemon", at(4000));
        assert_eq!(fitness.refusal(at(4000)), Some("cannot start work: no daemon"));
        assert!(fitness.refusal(at(4599)).is_some());
        assert_eq!(fitness.refusal(at(4600)), None);
        fitness.failed(alloc_id(4), "no daemon", at(4601));
        assert!(fitness.refusal(at(4602)).is_some(), "one more is enough now");
        assert!(fitness.refusal(at(4601 + 1199)).is_some() && fitness.refusal(at(4601 + 1200)).is_none());
    }

    #[test]
    fn an_unfit_disk_refuses_at_once_and_only_as_long_as_it_is_unfit() {
        let dir = tempfile::tempdir().unwrap();
        let (mut fitness, now) = (Fitness::default(), Instant::now());
        assert!(fitness.is_due(now));
        fitness.disk_tried(try_disk(dir.path()), now);
        assert_eq!(fitness.refusal(now), None);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        fitness.disk_tried(try_disk(&file), now);
        assert!(fitness.refusal(now).is_some_and(|why| why.contains("Not a directory")));
        for copy in 0..5 {
            fitness.failed(alloc_id(copy), "x", now);
        }
        assert!(!fitness.is_due(now) && fitness.is_due(now + TRY_SOON));
        fitness.disk_tried(Ok(()), now);
        assert_eq!(fitness.refusal(now), None, "what failed meanwhile is not counted");
    }
}
