//! The working directory of `nodekeeper local`, and whether it runs there. Programs without the feature `local` use
//! this too.
//!
//! Does not: find a system whose directory `--dir` names.

use std::fs::{File, TryLockError};
use std::path::Path;

/// The working directory of `nodekeeper local`, unless `--dir` names another one.
pub(crate) const DIRECTORY: &str = ".nodekeeper";

/// The line for a shell that loads the environment file of this directory.
pub(crate) const LOAD_ENVIRONMENT: &str = "set -a; . .nodekeeper/env; set +a";

/// Whether `nodekeeper local` runs in this current directory, with its usual working directory.
pub(crate) fn runs_in(current: &Path) -> bool {
    let dir = current.join(DIRECTORY);
    let lock = File::open(dir.join("lock"));
    lock.is_ok_and(|lock| matches!(lock.try_lock(), Err(TryLockError::WouldBlock))) && dir.join("env").exists()
}
