//! Measures the scratch space of an alloc: the disk space that its own directories and its output take up.
//!
//! A quota of the file system would be exact. But few machines have one switched on, and it does not count the layers of a
//! container. So the directories are measured: soon after the start, and then every half a minute, but never for more than a
//! twentieth of the time.
//!
//! Guarantees: never counts more than the alloc has: a file with several names counts once, and neither the holes of a file nor
//! other file systems count; a measurement opens only directories of the alloc, and takes ten seconds at most.
//! Does not: stop a write, so a fast job may be over its limit for up to half a minute; count files that have no name any more, or
//! the layers of a container; enforce the limit if a measurement cannot finish and has found less than the limit.

use model::EndCause;
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, Stat, open, openat2, statat, statvfs};
use rustix::path::Arg;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The waits between measurements: each is twice the one before.
const FIRST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// The longest time of one measurement.
const LONGEST_SCAN: Duration = Duration::from_secs(10);

/// The longest time of the measurement after the command has ended, because the end of the alloc waits for it.
const LAST_SCAN: Duration = Duration::from_millis(200);

/// The wait after a measurement is at least this many times as long as the measurement.
const REST: u32 = 20;

/// The unit of `st_blocks`.
const BLOCK: u64 = 512;

/// The largest number of bytes that was measured.
#[derive(Clone, Debug, Default)]
pub(crate) struct MostScratch(Arc<AtomicU64>);

impl MostScratch {
    fn note(&self, bytes: u64) {
        self.0.fetch_max(bytes, Ordering::Relaxed);
    }

    /// In MiB; `None` if no measurement has found anything.
    pub(crate) fn mib(&self) -> Option<u64> {
        let bytes = self.0.load(Ordering::Relaxed);
        (bytes > 0).then(|| bytes.div_ceil(1 << 20))
    }

    /// The end of an alloc that has no room on this folder's disk, if its own files take up half of the disk or more.
    pub(crate) fn fill(&self, folder: &Path) -> Option<EndCause> {
        let (disk, used) = (statvfs(folder).ok()?, self.0.load(Ordering::Relaxed));
        let is_own = used >= disk.f_blocks.saturating_mul(disk.f_frsize) / 2;
        is_own.then_some(EndCause::OverScratch { allowed_gib: used >> 30, used_mib: used >> 20 })
    }

    /// Measures once more after the command has ended.
    pub(crate) fn measure_last(&self, dirs: &[PathBuf]) {
        self.note(used(dirs, Instant::now() + LAST_SCAN, u64::MAX));
    }
}

/// Waits until these directories take up more than the scratch space of the alloc. Never ends if they do not, or if the alloc has
/// no limit (0).
pub(crate) async fn over(allowed_gib: u64, dirs: Vec<PathBuf>, most: MostScratch) -> EndCause {
    let allowed = if allowed_gib == 0 { u64::MAX } else { allowed_gib.saturating_mul(1 << 30) };
    let mut wait = FIRST_WAIT;
    loop {
        tokio::time::sleep(wait).await;
        let (dirs, began) = (dirs.clone(), Instant::now());
        let used = tokio::task::spawn_blocking(move || used(&dirs, began + LONGEST_SCAN, allowed)).await.unwrap_or(0);
        most.note(used);
        if used > allowed {
            return EndCause::OverScratch { allowed_gib, used_mib: used >> 20 };
        }
        wait = wait.saturating_mul(2).min(LONGEST_WAIT).max(began.elapsed().saturating_mul(REST));
    }
}

/// How many bytes these files and directories take up, as far as they are found until `until`. Ends early above `enough`.
fn used(places: &[PathBuf], until: Instant, enough: u64) -> u64 {
    let mut found = DiskUse { bytes: 0, linked: BTreeSet::new(), until, enough };
    for place in places {
        // What cannot be read counts as nothing.
        match statat(CWD, place.as_path(), AtFlags::SYMLINK_NOFOLLOW) {
            Ok(root) if is_folder(&root) => found.below(place),
            Ok(_) => _ = found.add(CWD, place.as_path()),
            Err(_) => {}
        }
    }
    found.bytes
}

struct DiskUse {
    bytes: u64,
    /// The files that have several names and were counted.
    linked: BTreeSet<u64>,
    until: Instant,
    enough: u64,
}

impl DiskUse {
    /// Counts what is in a directory, as long as this is of use. Nothing outside of it and no other file system counts: a job may put
    /// links in the place of its directories at any time.
    fn below(&mut self, root: &Path) {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let Ok(root) = open(root, flags, Mode::empty()) else { return };
        let mut left = vec![PathBuf::from(".")];
        while let Some(next) = left.pop() {
            // A directory that vanishes meanwhile counts as empty.
            let Ok(mut entries) = open_below(&root, &next, flags).and_then(Dir::new) else { continue };
            while let Some(Ok(entry)) = entries.read() {
                if self.bytes > self.enough || Instant::now() > self.until {
                    return;
                }
                let name = entry.file_name();
                if [c".", c".."].contains(&name) {
                    continue;
                }
                let Ok(folder) = entries.fd() else { return };
                if self.add(folder, name).unwrap_or(false) {
                    left.push(next.join(OsStr::from_bytes(name.to_bytes())));
                }
            }
        }
    }

    /// Counts a file or a directory. Returns whether it is a directory.
    fn add(&mut self, folder: impl AsFd, name: impl Arg) -> rustix::io::Result<bool> {
        let stat = statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)?;
        let is_folder = is_folder(&stat);
        if is_folder || stat.st_nlink == 1 || self.linked.insert(stat.st_ino) {
            self.bytes = self.bytes.saturating_add(u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(BLOCK));
        }
        Ok(is_folder)
    }
}

fn is_folder(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory
}

pub(crate) fn open_below(root: &OwnedFd, path: &Path, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let below = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    openat2(root, path, flags, Mode::empty(), below)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn the_most_that_was_seen_stays() {
        let dir = tempfile::tempdir().unwrap();
        let (most, dirs) = (MostScratch::default(), [dir.path().to_owned()]);
        assert_eq!(most.mib(), None, "nobody looked");
        let file = dir.path().join("file");
        fs::write(&file, vec![b'x'; 3 << 20]).unwrap();
        most.measure_last(&dirs);
        fs::remove_file(&file).unwrap();
        most.measure_last(&dirs);
        assert!((3..=4).contains(&most.mib().unwrap()), "{most:?}");
    }

    #[test]
    fn what_lies_in_the_directories_counts_once_and_by_what_it_takes_up() {
        let dir = tempfile::tempdir().unwrap();
        let (work, tmp) = (dir.path().join("work"), dir.path().join("tmp"));
        fs::create_dir_all(work.join("a/b")).unwrap();
        fs::create_dir(&tmp).unwrap();
        let look =
            || used(&[work.clone(), tmp.clone(), dir.path().join("absent")], Instant::now() + LONGEST_SCAN, u64::MAX);
        let empty = look();
        let file = work.join("a/b/file");
        fs::write(&file, vec![b'x'; 1 << 20]).unwrap();
        let with_file = look() - empty;
        assert!((1 << 20..2 << 20).contains(&with_file), "{with_file}");
        // Another name, a link that leads elsewhere, and a hole take up almost nothing.
        fs::hard_link(&file, tmp.join("again")).unwrap();
        std::os::unix::fs::symlink("/usr", work.join("usr")).unwrap();
        std::os::unix::fs::symlink("..", work.join("a/up")).unwrap();
        fs::File::create(tmp.join("hole")).unwrap().set_len(1 << 40).unwrap();
        assert!(look() - empty < with_file + (64 << 10), "{}", look() - empty);
        assert!(
            used(std::slice::from_ref(&file), Instant::now() + LONGEST_SCAN, u64::MAX) >= 1 << 20,
            "a file counts too"
        );
        std::os::unix::fs::symlink(&file, dir.path().join("link")).unwrap();
        assert!(used(&[dir.path().join("link")], Instant::now() + LONGEST_SCAN, u64::MAX) < 1 << 20, "a link does not");
        assert!(
            used(std::slice::from_ref(&work), Instant::now() + LONGEST_SCAN, 10) > 10,
            "it ends early, and above the limit"
        );
        assert_eq!(used(&[work], Instant::now() - Duration::from_secs(1), u64::MAX), 0, "there was no time");
    }
}
