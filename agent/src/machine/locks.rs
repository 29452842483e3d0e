//! Locks of files.
//!
//! Guarantees: the kernel releases a lock however its process ends.
//! Does not: remove the file of a lock, because another process may wait for it.

use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// The file of a lock. It stays when the lock is released: somebody may wait for it.
pub(crate) fn lock_file(path: &Path) -> io::Result<File> {
    File::options().write(true).create(true).truncate(false).mode(0o600).open(path)
}

/// Whether an attempt took the lock. Otherwise somebody else holds it.
pub(crate) fn is_taken(attempt: Result<(), TryLockError>) -> io::Result<bool> {
    match attempt {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(error),
    }
}
