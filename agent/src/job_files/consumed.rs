//! A file that gives its room on the disk back while it is read.
//!
//! Guarantees: the file takes up at most [`STEP`] bytes of what was read.
//! Does not: free anything on a file system that cannot make holes in a file.

use rustix::fs::{FallocateFlags, fallocate};
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// How much is read before it is given back.
const STEP: u64 = 1 << 20;

pub(super) struct Consumed {
    file: File,
    read: u64,
    freed: u64,
}

impl Consumed {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        Ok(Self { file: File::options().read(true).write(true).open(path)?, read: 0, freed: 0 })
    }
}

impl Read for Consumed {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let n = self.file.read(into)?;
        self.read = self.read.saturating_add(n as u64);
        let bytes = self.read.saturating_sub(self.freed);
        if bytes >= STEP {
            let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            let _best_effort = fallocate(&self.file, hole, self.freed, bytes);
            self.freed = self.read;
        }
        Ok(n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn what_was_read_takes_up_no_room() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let bytes: Vec<u8> = (0..5 << 20).map(|n: u32| n.to_le_bytes()[1]).collect();
        std::fs::write(&path, &bytes).unwrap();
        let mut read = Vec::new();
        Consumed::open(&path).unwrap().read_to_end(&mut read).unwrap();
        assert!(read == bytes);
        assert!(std::fs::metadata(&path).unwrap().blocks() * 512 <= STEP);
    }
}
