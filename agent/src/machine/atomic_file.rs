//! Writes files atomically and durably.
//!
//! Guarantees: after a crash or a power cut a file has its old content or its new one; when a function here returns,
//! the new content is on disk; no reader sees a part of the new content. Only the owner can read the files, because
//! orders contain secrets.
//! Does not: retry.

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use serde::Serialize;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let temp = write_beside(path, bytes)?;
    fs::rename(&temp, path).inspect_err(|_| drop(fs::remove_file(&temp)))?;
    sync_parent(path)
}

/// Creates `path` with the content `bytes`, unless `path` exists. Of all callers, in all processes, exactly one gets
/// `true`. No reader sees the file empty.
pub fn create_once(path: &Path, bytes: &[u8]) -> io::Result<bool> {
    create_once_in(1, path, bytes)
}

/// [`create_once`]. So many directories above `path` are synced too, because the last ones may be as new as the file.
pub fn create_once_in(depth: usize, path: &Path, bytes: &[u8]) -> io::Result<bool> {
    let temp = write_beside(path, bytes)?;
    // Like `O_EXCL`, but the file has its content from the start.
    let linked = fs::hard_link(&temp, path);
    let removed = fs::remove_file(&temp);
    match linked {
        Ok(()) => removed.and_then(|()| sync(&path.ancestors().skip(1).take(depth).collect::<Vec<_>>())).map(|()| true),
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(e) => Err(e),
    }
}

/// Reserved disk space for one important write: a spare file that the write fills, so that it needs no more space. A job that fills
/// the disk cannot take the space, because it is never free in between.
#[derive(Clone, Debug)]
pub struct Spare {
    path: PathBuf,
    bytes: usize,
}

impl Spare {
    /// Takes up this many bytes at `path`. If the disk is already full, the first write tries to reserve them again.
    pub fn new(path: PathBuf, bytes: usize) -> Self {
        let spare = Self { path, bytes };
        if let Err(error) = spare.allocated(0) {
            tracing::debug!(%error, path = %spare.path.display(), "cannot reserve disk space");
        }
        spare
    }

    /// Replaces the content of `path` with `bytes` and spaces after them. The old file of `path` becomes the spare one.
    pub fn replace(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        if self.fill(bytes).is_err() {
            return replace(path, bytes);
        }
        match renameat_with(CWD, &self.path, CWD, path, RenameFlags::EXCHANGE) {
            Ok(()) => sync_parent(path),
            // There is no old file, so a new spare one is made.
            Err(Errno::NOENT) => {
                fs::rename(&self.path, path)?;
                sync_parent(path)?;
                // If this fails, the next write tries to reserve the space again.
                drop(self.allocated(bytes.len()));
                Ok(())
            }
            // This file system cannot exchange two files.
            Err(_) => replace(path, bytes),
        }
    }

    /// Creates `path` with `bytes` and spaces after them, unless `path` exists. The space is used up.
    pub fn create_once(&self, path: &Path, bytes: &[u8]) -> io::Result<bool> {
        if self.fill(bytes).is_err() {
            return create_once(path, bytes);
        }
        let linked = fs::hard_link(&self.path, path);
        self.release();
        match linked {
            Ok(()) => sync_parent(path).map(|()| true),
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Frees the space.
    pub fn release(&self) {
        drop(fs::remove_file(&self.path));
    }

    /// Writes `bytes` into the spare file, and spaces up to its end.
    fn fill(&self, bytes: &[u8]) -> io::Result<()> {
        let mut file = self.allocated(bytes.len())?;
        let len = usize::try_from(file.metadata()?.len()).unwrap_or(usize::MAX);
        file.write_all(bytes)?;
        file.write_all(&vec![b' '; len.saturating_sub(bytes.len())])?;
        file.sync_all()
    }

    /// The spare file, with room for this many bytes at least.
    fn allocated(&self, bytes: usize) -> io::Result<File> {
        let mut file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&self.path)?;
        let wanted = bytes.max(self.bytes) as u64;
        let len = file.metadata()?.len();
        if len < wanted {
            // This writes the bytes, because a file with holes takes up no space. The file system reserves the space at the write, so
            // no sync is needed.
            file.seek(SeekFrom::Start(len))?;
            io::copy(&mut io::repeat(b' ').take(wanted.saturating_mul(2).saturating_sub(len)), &mut file)?;
            file.rewind()?;
        }
        Ok(file)
    }
}

/// The result of a removal, for which a missing file is a success.
pub fn absent_is_fine(result: io::Result<()>) -> io::Result<()> {
    if_there(result).map(drop)
}

/// The result of an access to a file; `None` if there is no such file.
pub fn if_there<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        other => other.map(Some),
    }
}

/// Writes a file for the agent's own user. Does not wait for the disk.
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?.write_all(bytes)
}

/// Replaces the file. A reader sees the old content or the new; a crash may lose both.
pub fn replace_lightly(path: &Path, value: &impl Serialize) -> io::Result<()> {
    let new = path.with_extension(std::process::id().to_string());
    write(&new, &serde_json::to_vec(value)?)?;
    fs::rename(new, path)
}

/// Makes a folder for the agent's own user.
pub fn make_dir(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(0o700).create(path)
}

/// Puts the content of these files, and the renames and links in these directories, on disk. All wait for it together: a disk that is busy
/// with one of them takes the others along.
pub fn sync(paths: &[&Path]) -> io::Result<()> {
    let sync_one = |path: &Path| File::open(path)?.sync_all();
    let Some((first, others)) = paths.split_first() else { return Ok(()) };
    std::thread::scope(|scope| {
        let start = |path| std::thread::Builder::new().spawn_scoped(scope, move || sync_one(path));
        let others: Vec<_> = others.iter().map(|path| start(*path)).collect();
        sync_one(first)?;
        let failed = |_| io::Error::other("the thread that waits for the disk failed");
        others.into_iter().try_for_each(|other| other?.join().map_err(failed)?)
    })
}

fn sync_parent(path: &Path) -> io::Result<()> {
    sync(path.parent().as_slice())
}

fn write_beside(path: &Path, bytes: &[u8]) -> io::Result<PathBuf> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(format!(".tmp-{}-{n}", std::process::id()));
    let temp = path.with_file_name(name);
    write(&temp, bytes).and_then(|()| sync(&[&temp])).inspect_err(|_| drop(fs::remove_file(&temp)))?;
    Ok(temp)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spare_file_takes_a_write_without_a_new_block_and_the_old_file_is_the_next_one() {
        let dir = tempfile::tempdir().unwrap();
        let (path, spare_path) = (dir.path().join("state"), dir.path().join("spare"));
        let spare = Spare::new(spare_path.clone(), 100);
        let number = |path: &Path| fs::metadata(path).map(|m| std::os::unix::fs::MetadataExt::ino(&m)).unwrap();
        spare.replace(&path, b"one").unwrap();
        let files = [number(&path), number(&spare_path)];
        for n in 0..4 {
            spare.replace(&path, format!("content {n}").as_bytes()).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap().trim_end(), format!("content {n}"));
            let now = [number(&path), number(&spare_path)];
            assert!(now == files || now == [files[1], files[0]], "no new file was made");
        }
        let long = "x".repeat(5000);
        spare.replace(&path, long.as_bytes()).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap().trim_end(), long, "the spare file grows");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    }

    #[test]
    fn a_spare_file_becomes_the_one_that_is_created_once() {
        let dir = tempfile::tempdir().unwrap();
        let (path, spare_path) = (dir.path().join("exit"), dir.path().join("spare"));
        let spare = Spare::new(spare_path.clone(), 100);
        let file = fs::metadata(&spare_path).map(|m| std::os::unix::fs::MetadataExt::ino(&m)).unwrap();
        assert!(spare.create_once(&path, b"one").unwrap());
        assert_eq!(fs::metadata(&path).map(|m| std::os::unix::fs::MetadataExt::ino(&m)).unwrap(), file);
        assert!(!Spare::new(spare_path.clone(), 100).create_once(&path, b"two").unwrap());
        assert_eq!(fs::read_to_string(&path).unwrap().trim_end(), "one");
        assert!(!spare_path.exists());
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
