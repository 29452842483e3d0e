//! Writing a file so that a power cut leaves the old one or the new one.
//!
//! Guarantees: when a function here returns, the content survives a crash; no reader ever
//! sees half of it. Files are readable by their owner only: orders carry secrets.
//! Does not: retry.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Puts `bytes` in the place of whatever `path` held.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let temp = write_beside(path, bytes)?;
    fs::rename(&temp, path).inspect_err(|_| drop(fs::remove_file(&temp)))?;
    sync_parent(path)
}

/// Makes `path` with `bytes` in it, unless it exists. Of any number of callers, in any number
/// of processes, exactly one is answered `true`, and the file is never seen empty.
pub fn create_once(path: &Path, bytes: &[u8]) -> io::Result<bool> {
    let temp = write_beside(path, bytes)?;
    // A hard link is `O_EXCL` with the content already there.
    let linked = fs::hard_link(&temp, path);
    let removed = fs::remove_file(&temp);
    match linked {
        Ok(()) => removed.and_then(|()| sync_parent(path)).map(|()| true),
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(e) => Err(e),
    }
}

/// Room set aside for the day the disk is full: what must be written then is written in its stead.
#[derive(Clone, Debug)]
pub struct Reserve {
    path: PathBuf,
    bytes: usize,
}

impl Reserve {
    /// Sets so many bytes aside at `path`. On a disk that is full already there is nothing to set aside.
    pub fn make(path: PathBuf, bytes: usize) -> Self {
        let reserve = Self { path, bytes };
        reserve.set_aside();
        reserve
    }

    fn set_aside(&self) {
        if let Err(error) = replace(&self.path, &vec![0; self.bytes]) {
            tracing::debug!(%error, path = %self.path.display(), "no room could be set aside");
        }
    }

    /// Does what writes, and once more without the reserve if the disk is full. When there is room again,
    /// it is set aside again.
    pub fn behind<T>(&self, write: impl Fn() -> io::Result<T>) -> io::Result<T> {
        match write() {
            Err(error) if error.kind() == io::ErrorKind::StorageFull && fs::remove_file(&self.path).is_ok() => write(),
            Ok(written) => {
                if !self.path.exists() {
                    self.set_aside();
                }
                Ok(written)
            }
            refused => refused,
        }
    }

    /// Gives the room back.
    pub fn give_up(&self) {
        drop(fs::remove_file(&self.path));
    }
}

/// Makes renames and links in `dir` survive a crash.
pub fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

fn sync_parent(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), sync_dir)
}

fn write_beside(path: &Path, bytes: &[u8]) -> io::Result<PathBuf> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(format!(".tmp-{}-{n}", std::process::id()));
    let temp = path.with_file_name(name);
    let write = || {
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temp)?;
        file.write_all(bytes)?;
        file.sync_all()
    };
    write().inspect_err(|_| drop(fs::remove_file(&temp)))?;
    Ok(temp)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_written_to_once_in_the_reserves_stead() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("reserve");
        let reserve = Reserve::make(path.clone(), 1000);
        assert_eq!(fs::metadata(&path).unwrap().len(), 1000);
        // Full as long as the reserve is there.
        let full = || if path.exists() { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) };
        assert!(reserve.behind(full).is_ok());
        // Room again: it is there for the next time.
        assert!(!path.exists() && reserve.behind(full).is_ok() && path.exists());
        let always = || Err::<(), _>(io::Error::from(io::ErrorKind::StorageFull));
        assert!(reserve.behind(always).is_err());
    }

    #[test]
    fn of_many_creators_one_wins_and_its_content_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("started");
        let wins: Vec<bool> = std::thread::scope(|s| {
            let one = |n: u8| {
                let path = &path;
                s.spawn(move || create_once(path, &[n]).unwrap())
            };
            (0..8).map(one).collect::<Vec<_>>().into_iter().map(|t| t.join().unwrap()).collect()
        });
        assert_eq!(wins.iter().filter(|w| **w).count(), 1);
        let winner = wins.iter().position(|w| *w).unwrap();
        assert_eq!(fs::read(&path).unwrap(), [winner as u8]);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "no temporary file is left");
    }
}
