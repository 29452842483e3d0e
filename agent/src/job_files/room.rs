//! The room on the disk of the node, before something of known size is written there.
//!
//! Guarantees: what could never fit is told apart from what does not fit now; a part of the disk stays free for others.
//! Does not: keep room for what is written later; `reserve` does, for one file.

use crate::work::obstacle::Obstacle;
use files::ByteCount;
use rustix::fs::{FallocateFlags, fallocate, statvfs};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::path::Path;

/// A twentieth of the disk stays free, and at most this many bytes.
const MOST_KEPT_FREE: u64 = 1 << 30;

/// What may be written, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DiskRoom {
    pub(super) now: u64,
    /// If the disk were empty.
    pub(super) ever: u64,
}

impl DiskRoom {
    /// On the disk of this folder.
    pub(super) fn of(folder: &Path) -> io::Result<Self> {
        let disk = statvfs(folder)?;
        let bytes = |blocks: u64| blocks.saturating_mul(disk.f_frsize);
        Ok(Self::new(bytes(disk.f_bavail), bytes(disk.f_blocks)))
    }

    fn new(free: u64, all: u64) -> Self {
        let kept = (all / 20).min(MOST_KEPT_FREE);
        Self { now: free.saturating_sub(kept), ever: all.saturating_sub(kept) }
    }

    /// Whether this many bytes fit. `what` takes them up.
    pub(super) fn check(self, what: &str, bytes: u64) -> Result<(), Obstacle> {
        let Self { now, ever } = self;
        if bytes > ever {
            return Err(Obstacle::Job(format!(
                "{what} takes up {}, and the whole disk of its node has room for {}: give --scratch, to run on a node with a larger disk",
                ByteCount(bytes),
                ByteCount(ever)
            )));
        }
        if bytes > now {
            let (bytes, now) = (ByteCount(bytes), ByteCount(now));
            return Err(Obstacle::Node(format!(
                "{what} takes up {bytes}, and the disk of the node has room for {now} now"
            )));
        }
        Ok(())
    }
}

/// Makes sure that this many bytes can be written into an empty file.
pub(super) fn reserve(file: &File, bytes: u64) -> io::Result<()> {
    match fallocate(file, FallocateFlags::KEEP_SIZE, 0, bytes) {
        // Not every file system can.
        Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => Ok(()),
        other => Ok(other?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_never_fit_is_the_jobs_fault_and_what_does_not_fit_now_is_not() {
        let room = DiskRoom::new(50 << 30, 100 << 30);
        assert_eq!(room, DiskRoom { now: 49 << 30, ever: 99 << 30 });
        assert_eq!(DiskRoom::new(1000, 1000), DiskRoom { now: 950, ever: 950 });
        assert_eq!(DiskRoom::new(0, 1000).now, 0);
        assert_eq!(room.check("x", 49 << 30), Ok(()));
        assert!(matches!(room.check("x", 50 << 30), Err(Obstacle::Node(why)) if why.contains("50 GiB")));
        assert!(matches!(room.check("x", 100 << 30), Err(Obstacle::Job(why)) if why.contains("--scratch")));
        assert!(DiskRoom::of(Path::new("/")).unwrap().ever > 0);
    }

    #[test]
    fn room_is_taken_before_the_first_byte() {
        let file = tempfile::tempfile().unwrap();
        reserve(&file, 1 << 20).unwrap();
        let metadata = file.metadata().unwrap();
        assert_eq!(metadata.len(), 0);
        assert!(reserve(&file, 1 << 60).is_err(), "no disk has so much");
    }
}
