//! Writes files atomically and durably.
//!
//! Guarantees: after a crash or a power cut a file has its old content or its new one; when a function here returns,
//! the new content is on disk; no reader sees a part of the new content. Only the owner can read the files, because
//! orders contain secrets.
//! Does not: retry.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Replaces the content of `path` with `bytes`.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let temp = write_beside(path, bytes)?;
    fs::rename(&temp, path).inspect_err(|_| drop(fs::remove_file(&temp)))?;
    sync_parent(path)
}

/// Creates `path` with the content `bytes`, unless `path` exists. Of all callers, in all processes, exactly one gets
/// `true`. No reader sees the file empty.
pub fn create_once(path: &Path, bytes: &[u8]) -> io::Result<bool> {
    let temp = write_beside(path, bytes)?;
    // Like `O_EXCL`, but the file has its content from the start.
    let linked = fs::hard_link(&temp, path);
    let removed = fs::remove_file(&temp);
    match linked {
        Ok(()) => removed.and_then(|()| sync_parent(path)).map(|()| true),
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(e) => Err(e),
    }
}

/// A file that keeps disk space free: when the disk is full, it is deleted to make room for an important write.
#[derive(Clone, Debug)]
pub struct DiskReserve {
    path: PathBuf,
    bytes: usize,
}

impl DiskReserve {
    /// Reserves this many bytes at `path`. If the disk is already full, nothing is reserved.
    pub fn new(path: PathBuf, bytes: usize) -> Self {
        let reserve = Self { path, bytes };
        reserve.allocate();
        reserve
    }

    fn allocate(&self) {
        if let Err(error) = replace(&self.path, &vec![0; self.bytes]) {
            tracing::debug!(%error, path = %self.path.display(), "cannot reserve disk space");
        }
    }

    /// Runs `write`. If the disk is full, deletes the reserve and runs `write` once more. A later successful write
    /// reserves the space again.
    pub fn write_with_reserve<T>(&self, write: impl Fn() -> io::Result<T>) -> io::Result<T> {
        match write() {
            Err(error) if error.kind() == io::ErrorKind::StorageFull && fs::remove_file(&self.path).is_ok() => write(),
            Ok(written) => {
                if !self.path.exists() {
                    self.allocate();
                }
                Ok(written)
            }
            failed => failed,
        }
    }

    /// Frees the reserved space.
    pub fn release(&self) {
        drop(fs::remove_file(&self.path));
    }
}

/// The result of a removal, for which a missing file is a success.
pub fn absent_is_fine(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Puts the renames and links in `dir` on disk.
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
    fn on_a_full_disk_the_reserve_makes_room_for_one_write() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("reserve");
        let reserve = DiskReserve::new(path.clone(), 1000);
        assert_eq!(fs::metadata(&path).unwrap().len(), 1000);
        // The disk is full as long as the reserve exists.
        let full = || if path.exists() { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) };
        assert!(reserve.write_with_reserve(full).is_ok());
        // There is room again, so the reserve is created anew.
        assert!(!path.exists() && reserve.write_with_reserve(full).is_ok() && path.exists());
        let always = || Err::<(), _>(io::Error::from(io::ErrorKind::StorageFull));
        assert!(reserve.write_with_reserve(always).is_err());
    }

    #[test]
    fn of_many_creators_exactly_one_wins_and_its_content_stays() {
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
