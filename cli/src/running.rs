//! Where `nodekeeper local` works, and whether it runs there: also for programs that cannot run it themselves.

use std::fs::{File, TryLockError};
use std::path::Path;

/// Its working directory, unless `--dir` names another one.
pub(crate) const DIRECTORY: &str = ".nodekeeper";

/// The line for a shell that loads the environment file of this directory.
pub(crate) const LOAD_ENVIRONMENT: &str = "set -a; . .nodekeeper/env; set +a";

/// Whether it runs in this current directory, with its usual working directory.
pub(crate) fn runs_in(current: &Path) -> bool {
    let dir = current.join(DIRECTORY);
    let lock = File::open(dir.join("lock"));
    lock.is_ok_and(|lock| matches!(lock.try_lock(), Err(TryLockError::WouldBlock))) && dir.join("env").exists()
}
