//! The working directory: its lock, and what may be removed in it. Also the addresses and paths of all parts.
//!
//! Guarantees: only one `nodekeeper local` runs in a directory. Nothing is removed, and no process is ended, for a directory
//! that `nodekeeper local` did not make or take over empty: the lock file says so. No symbolic link below it is followed. Other users
//! read and list nothing here but what [SECURITY.md](../../../SECURITY.md#files) names.
//! Does not: remove anything but `machines`, `logs`, `env` and `s3`.

use super::error::{self, not_ours};
use anyhow::bail;
use remove_tree::remove_tree;
use std::fs::{self, File, OpenOptions, Permissions, TryLockError};
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

pub(super) const REGION: &str = "local-1";
/// The text of the lock file.
const MARK: &str = "`nodekeeper local` works in this directory, and removes machines, logs, env and s3 here.\n";
const REMOVED: [&str; 4] = ["machines", "logs", "env", "s3"];

#[derive(Clone, Debug)]
pub(super) struct Layout {
    pub(super) page: SocketAddr,
    pub(super) dynamo: SocketAddr,
    pub(super) ec2: SocketAddr,
    /// STS, Secrets Manager and Parameter Store.
    pub(super) rights: SocketAddr,
    pub(super) s3: String,
    /// The beginning of the functions' URLs.
    pub(super) functions: String,
    /// The working directory, absolute.
    pub(super) dir: PathBuf,
    pub(super) logs: PathBuf,
    pub(super) env_file: PathBuf,
}

impl Layout {
    /// The secrets of the local system, a JSON object. The person makes this file.
    pub(super) fn secrets(&self) -> PathBuf {
        self.dir.join("secrets.json")
    }

    /// The folder with the content of S3.
    pub(super) fn stored(&self) -> PathBuf {
        self.dir.join("s3")
    }

    /// The variables by which SDKs find the services for jobs. Functions, machines and jobs have the same.
    pub(super) fn endpoints(&self) -> Vec<(&'static str, String)> {
        let rights = format!("http://{}", self.rights);
        let names = ["AWS_ENDPOINT_URL_STS", "AWS_ENDPOINT_URL_SECRETS_MANAGER", "AWS_ENDPOINT_URL_SSM"];
        let all = names.map(|name| (name, rights.clone())).into_iter();
        all.chain([("AWS_ENDPOINT_URL_S3", self.s3.clone())]).collect()
    }
}

/// Makes the directory and locks it. The lock lasts as long as the file is open.
pub(super) fn working_directory(dir: &Path) -> anyhow::Result<(PathBuf, File)> {
    fs::DirBuilder::new().recursive(true).mode(OPEN).create(dir).map_err(error::file("make", dir))?;
    let dir = dir.canonicalize().map_err(error::file("find", dir))?;
    let about = dir.metadata().map_err(error::file("read", &dir))?;
    if about.uid() != nix::unistd::geteuid().as_raw() || about.mode() & 0o002 != 0 {
        bail!(
            "{} belongs to another user, or everybody may write there: name a directory of your own with --dir",
            dir.display()
        );
    }
    let path = dir.join("lock");
    let lock = match open_lock(&path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => take_over(&dir, &path)?,
        Ok((lock, text)) if text == MARK => lock,
        _ => return Err(not_ours(&path)),
    };
    match lock.try_lock() {
        Ok(()) => {
            let closed = Permissions::from_mode(about.mode() & 0o7711);
            fs::set_permissions(&dir, closed).map_err(error::file("close", &dir))?;
            Ok((dir, lock))
        }
        Err(TryLockError::WouldBlock) => {
            bail!("another `nodekeeper local` runs in {}: end it, or name another directory with --dir", dir.display())
        }
        Err(TryLockError::Error(source)) => Err(error::file("lock", &path)(source)),
    }
}

/// The lock file and the beginning of its text.
fn open_lock(path: &Path) -> io::Result<(File, String)> {
    let lock = OpenOptions::new().read(true).custom_flags(no_link()).open(path)?;
    let mut text = String::new();
    (&lock).take(1024).read_to_string(&mut text)?;
    Ok((lock, text))
}

/// Marks a directory that has none of the names in `REMOVED`.
fn take_over(dir: &Path, path: &Path) -> anyhow::Result<File> {
    for name in REMOVED {
        let there = dir.join(name);
        if there.symlink_metadata().is_ok() {
            return Err(not_ours(&there));
        }
    }
    let mut lock =
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(error::file("make", path))?;
    lock.write_all(MARK.as_bytes()).map_err(error::file("write", path))?;
    Ok(lock)
}

fn no_link() -> i32 {
    (nix::fcntl::OFlag::O_NOFOLLOW | nix::fcntl::OFlag::O_NONBLOCK).bits()
}

/// The mode of a directory that jobs cannot enter.
pub(super) const PRIVATE: u32 = 0o700;
/// The mode of a directory that jobs can enter, and not list.
pub(super) const OPEN: u32 = 0o711;

/// Makes an empty directory; an earlier one is removed with its content.
pub(super) fn fresh_directory(path: &Path, mode: u32) -> anyhow::Result<()> {
    match path.symlink_metadata() {
        Ok(there) if there.is_dir() => remove_tree(path).map_err(error::file("empty", path))?,
        Ok(_) => return Err(not_ours(path)),
        Err(_) => {}
    }
    new_directory(path, mode).map_err(error::file("make", path))
}

pub(super) fn new_directory(path: &Path, mode: u32) -> io::Result<()> {
    fs::DirBuilder::new().mode(0o700).create(path)?;
    // The mode is set after the creation, at which the umask of the process would change it.
    fs::set_permissions(path, Permissions::from_mode(mode))
}

/// Writes a file that only its owner can read, in place of an earlier one. A reader sees the old file or the new one.
pub(super) fn private_file(path: &Path, text: &str) -> io::Result<()> {
    let new = path.with_extension("new");
    let _ = fs::remove_file(&new);
    new_file(&new)?.write_all(text.as_bytes())?;
    fs::rename(&new, path)
}

/// A new file that only its owner can read.
pub(super) fn new_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

/// A log that only its owner can read.
pub(super) fn log_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(0o600).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal<T>(result: anyhow::Result<T>) -> String {
        result.err().map(|error| error.to_string()).unwrap_or_default()
    }
    use std::os::unix::fs::symlink;

    #[test]
    fn only_one_can_run_in_a_directory() {
        let dir = tempfile::tempdir().unwrap();
        let first = working_directory(dir.path()).unwrap();
        assert!(refusal(working_directory(dir.path())).starts_with("another `nodekeeper local` runs in "));
        drop(first);
        working_directory(dir.path()).unwrap();
    }

    #[test]
    fn a_directory_with_content_of_somebody_else_is_refused_and_stays_as_it_is() {
        let precious = tempfile::tempdir().unwrap();
        fs::write(precious.path().join("thesis"), "years").unwrap();
        type Make = fn(&Path, &Path);
        let make: [(&str, Make); 5] = [
            ("machines", |path, _| fs::create_dir(path).unwrap()),
            ("logs", |path, precious| symlink(precious, path).unwrap()),
            ("env", |path, precious| symlink(precious.join("thesis"), path).unwrap()),
            ("lock", |path, _| fs::write(path, "").unwrap()),
            ("lock", |path, precious| symlink(precious.join("thesis"), path).unwrap()),
        ];
        for (name, make) in make {
            let dir = tempfile::tempdir().unwrap();
            make(&dir.path().join(name), precious.path());
            let error = working_directory(dir.path()).unwrap_err().to_string();
            assert!(error.contains(name) && error.contains("--dir"), "{error}");
            assert!(dir.path().join(name).symlink_metadata().is_ok(), "{name}");
        }
        assert_eq!(fs::read_to_string(precious.path().join("thesis")).unwrap(), "years");
        let open = tempfile::tempdir().unwrap();
        fs::set_permissions(open.path(), Permissions::from_mode(0o777)).unwrap();
        assert!(refusal(working_directory(open.path())).contains(" belongs to another user, "));
    }

    #[test]
    fn no_link_is_followed_in_our_own_directory() {
        let (ours, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(other.path().join("thesis"), "years").unwrap();
        let (dir, _lock) = working_directory(ours.path()).unwrap();
        fresh_directory(&dir.join("logs"), PRIVATE).unwrap();
        symlink(other.path(), dir.join("logs/link")).unwrap();
        fresh_directory(&dir.join("logs"), PRIVATE).unwrap();
        symlink(other.path(), dir.join("machines")).unwrap();
        assert!(refusal(fresh_directory(&dir.join("machines"), OPEN)).contains("did not make it"));
        symlink(other.path().join("thesis"), dir.join("env")).unwrap();
        private_file(&dir.join("env"), "KEY=1\n").unwrap();
        assert_eq!(fs::read_to_string(other.path().join("thesis")).unwrap(), "years");
        let env = dir.join("env").symlink_metadata().unwrap();
        assert_eq!((env.is_file(), env.mode() & 0o777), (true, 0o600));
    }
}
