//! The working directory and its lock, and the addresses and paths of all parts.
//!
//! Guarantees: only one `nodekeeper local` runs in a directory.

use super::error::LocalError;
use aws_config::{BehaviorVersion, Region, SdkConfig};
use aws_sdk_dynamodb::config::{Credentials, SharedCredentialsProvider};
use remove_tree::remove_tree;
use std::fs::{self, File, TryLockError};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// The region name of the local system.
pub(super) const REGION: &str = "local-1";
/// The secret that the SDKs want and that no local part checks.
pub(super) const NO_SECRET: &str = "local";

/// The configuration of the AWS SDK for a local service.
pub(super) fn sdk_config(at: SocketAddr) -> SdkConfig {
    let credentials = Credentials::new(NO_SECRET, NO_SECRET, None, None, "nodekeeper local");
    SdkConfig::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::new(REGION))
        .endpoint_url(format!("http://{at}"))
        .credentials_provider(SharedCredentialsProvider::new(credentials))
        .build()
}

/// Addresses and paths of the parts.
#[derive(Clone, Debug)]
pub(super) struct Places {
    pub(super) page: SocketAddr,
    pub(super) dynamo: SocketAddr,
    pub(super) ec2: SocketAddr,
    /// The start of the functions' URLs.
    pub(super) functions: String,
    /// The working directory, absolute.
    pub(super) dir: PathBuf,
    /// Logs of functions and machines.
    pub(super) logs: PathBuf,
    /// The environment file.
    pub(super) env_file: PathBuf,
}

/// Makes the directory and locks it. The lock lasts as long as the file is open.
pub(super) fn working_directory(dir: &Path) -> Result<(PathBuf, File), LocalError> {
    fs::create_dir_all(dir).map_err(LocalError::file("make", dir))?;
    let dir = dir.canonicalize().map_err(LocalError::file("find", dir))?;
    let path = dir.join("lock");
    let lock = File::create(&path).map_err(LocalError::file("write", &path))?;
    match lock.try_lock() {
        Ok(()) => Ok((dir, lock)),
        Err(TryLockError::WouldBlock) => Err(LocalError::InUse(dir)),
        Err(TryLockError::Error(source)) => Err(LocalError::file("lock", path)(source)),
    }
}

/// The directory, unless `--dir` names another one.
pub(super) const DEFAULT: &str = ".nodekeeper";

/// Whether `nodekeeper local` runs in this current directory, with its usual working directory.
pub fn runs_in(current: &Path) -> bool {
    let dir = current.join(DEFAULT);
    let lock = File::open(dir.join("lock"));
    lock.is_ok_and(|lock| matches!(lock.try_lock(), Err(TryLockError::WouldBlock))) && dir.join("env").exists()
}

/// Makes an empty directory that jobs cannot enter; an earlier one is removed with its content.
pub(super) fn private_directory(path: &Path) -> Result<(), LocalError> {
    fresh_directory(path, 0o700)
}

/// Makes an empty directory that all jobs write to; an earlier one is removed with its content.
pub(super) fn shared_directory(path: &Path) -> Result<(), LocalError> {
    fresh_directory(path, 0o1777)
}

fn fresh_directory(path: &Path, mode: u32) -> Result<(), LocalError> {
    remove_tree(path).map_err(LocalError::file("empty", path))?;
    fs::create_dir_all(path).map_err(LocalError::file("make", path))?;
    // Not with the creation, whose mode the process's mask changes.
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(LocalError::file("open", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_can_run_in_a_directory() {
        let dir = tempfile::tempdir().unwrap();
        let first = working_directory(dir.path()).unwrap();
        assert!(matches!(working_directory(dir.path()), Err(LocalError::InUse(_))));
        drop(first);
        working_directory(dir.path()).unwrap();
    }
}
