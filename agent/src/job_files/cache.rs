//! The contents that are on this node, each in a file with the name of its digest.
//!
//! Guarantees: a file here is whole and has its digest; several supervisors that want the same content fetch it once; a content
//! that somebody copies is not removed meanwhile.
//! Does not: survive a disk that changes what it stored: a copy is checked for its size only.

use crate::atomic_file::if_there;
use crate::blocking::blocking;
use crate::client::Clock;
use files::{Digest, digest_of};
use model::files::Content;
use s3::S3Error;
use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use tokio::time::sleep;

/// The extension of the lock of a content.
const LOCK: &str = "lock";
/// The wait before a lock that somebody else holds is tried again.
const LOCKED: Duration = Duration::from_millis(200);
/// The time between two sweeps.
const SWEEP: Duration = Duration::from_secs(60);
/// How long an unused content stays.
const UNUSED: Duration = Duration::from_secs(86_400);

#[derive(Clone, Debug)]
pub struct Cache(PathBuf);

/// A content on this node. It is not removed while this value exists.
#[derive(Debug)]
pub struct Held {
    pub path: PathBuf,
    lock: File,
}

impl Drop for Held {
    /// Closing the file would not release the lock yet: a program that is being started at this moment may have the open file too.
    fn drop(&mut self) {
        if let Err(error) = self.lock.unlock() {
            tracing::warn!(%error, "a content stays locked");
        }
    }
}

impl Cache {
    pub const fn at(dir: PathBuf) -> Self {
        Self(dir)
    }

    /// The content. If it is not on this node, `fetch` writes it to the path that it gets. A file with another digest is refused.
    pub async fn get(
        &self,
        content: &Content,
        now: SystemTime,
        fetch: impl AsyncFn(&Path) -> Result<u64, S3Error>,
    ) -> Result<Held, S3Error> {
        let path = self.0.join(content.sha256());
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.0)?;
        let lock = lock_file(&path.with_extension(LOCK))?;
        locked(|| lock.try_lock_shared()).await?;
        if !is_here(&path, content) {
            lock.unlock()?;
            locked(|| lock.try_lock()).await?;
            // Somebody else may have fetched the content meanwhile.
            if !is_here(&path, content) {
                self.fetch(content, &path, fetch).await?;
            }
            locked(|| lock.try_lock_shared()).await?;
        }
        File::options().write(true).open(&path).and_then(|content| content.set_modified(now))?;
        Ok(Held { path, lock })
    }

    async fn fetch(
        &self,
        content: &Content,
        path: &Path,
        fetch: impl AsyncFn(&Path) -> Result<u64, S3Error>,
    ) -> Result<(), S3Error> {
        let new = path.with_extension("new");
        fetch(&new).await?;
        let from = new.clone();
        let found = blocking(move || digest_of(&mut File::open(from)?)).await;
        if found.as_ref().is_ok_and(|found| (found.sha256.as_str(), found.bytes) == (content.sha256(), content.bytes)) {
            return Ok(fs::rename(&new, path)?);
        }
        fs::remove_file(&new)?;
        let Digest { sha256, bytes } = found?;
        Err(S3Error::Refused(format!("the stored content has the digest {sha256} and {bytes} bytes")))
    }

    /// Again and again removes the contents that nobody used for a day, and the longest unused ones while all together have more
    /// than `most` bytes. Never ends.
    pub async fn sweep(self, most: u64, clock: Clock) {
        loop {
            let (cache, now) = (self.clone(), SystemTime::from(clock()));
            let swept = tokio::task::spawn_blocking(move || cache.sweep_once(most, now)).await;
            if let Ok(Err(error)) = swept {
                tracing::warn!(%error, "unused inputs are not removed");
            }
            sleep(SWEEP).await;
        }
    }

    fn sweep_once(&self, most: u64, now: SystemTime) -> io::Result<()> {
        let mut contents = Vec::new();
        let Some(entries) = if_there(fs::read_dir(&self.0))? else { return Ok(()) };
        for entry in entries {
            let (path, metadata) = entry.and_then(|entry| Ok((entry.path(), entry.metadata()?)))?;
            if path.extension().is_none_or(|extension| extension != LOCK) {
                contents.push((metadata.modified()?, metadata.len(), path));
            }
        }
        contents.sort();
        let mut left: u64 = contents.iter().map(|(_, bytes, _)| bytes).sum();
        for (used, bytes, path) in contents {
            let is_old = now.duration_since(used).is_ok_and(|unused| unused > UNUSED);
            if (is_old || left > most) && remove(&path)? {
                left = left.saturating_sub(bytes);
            }
        }
        Ok(())
    }
}

fn is_here(path: &Path, content: &Content) -> bool {
    fs::metadata(path).is_ok_and(|there| there.len() == content.bytes)
}

/// Removes a content, unless somebody uses it.
fn remove(path: &Path) -> io::Result<bool> {
    let lock = lock_file(&path.with_extension(LOCK))?;
    match lock.try_lock() {
        Ok(()) => {
            let removed = fs::remove_file(path);
            lock.unlock()?;
            removed.map(|()| true)
        }
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(e)) => Err(e),
    }
}

/// Waits for a lock. The file of a lock is not removed with its content: somebody may wait for it.
async fn locked(lock: impl Fn() -> Result<(), TryLockError>) -> io::Result<()> {
    loop {
        match lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::WouldBlock) => sleep(LOCKED).await,
            Err(TryLockError::Error(e)) => return Err(e),
        }
    }
}

fn lock_file(path: &Path) -> io::Result<File> {
    File::options().write(true).create(true).truncate(false).mode(0o600).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::files::Form;
    use std::sync::atomic::{AtomicU32, Ordering};

    fn content(text: &str) -> Content {
        let mut digest = files::Digesting::new(io::sink());
        io::Write::write_all(&mut digest, text.as_bytes()).unwrap();
        let (_, digest) = digest.finish().unwrap();
        Content::new(Form::File, &digest.sha256, digest.bytes).unwrap()
    }

    fn at(s: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(s)
    }

    async fn fetched(cache: &Cache, text: &str, at: SystemTime) -> Held {
        cache.get(&content(text), at, async |path| Ok(fs::write(path, text).map(|()| 1).unwrap())).await.unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_content_that_several_want_is_fetched_once() {
        let dir = tempfile::tempdir().unwrap();
        let (cache, fetches) = (Cache::at(dir.path().join("inputs")), AtomicU32::new(0));
        let fetch = async |path: &Path| {
            fetches.fetch_add(1, Ordering::Relaxed);
            sleep(Duration::from_secs(1)).await;
            Ok(fs::write(path, "data").map(|()| 4).unwrap())
        };
        let wanted = content("data");
        let (one, other) = tokio::join!(cache.get(&wanted, at(1), &fetch), cache.get(&wanted, at(1), &fetch));
        assert_eq!(fs::read(&one.unwrap().path).unwrap(), fs::read(&other.unwrap().path).unwrap());
        assert_eq!(fetches.load(Ordering::Relaxed), 1);
    }

    #[tokio::test]
    async fn what_is_not_the_content_is_not_kept() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(dir.path().to_owned());
        let wrong = async |path: &Path| Ok(fs::write(path, "dat4").map(|()| 4).unwrap());
        assert!(matches!(cache.get(&content("data"), at(1), wrong).await, Err(S3Error::Refused(_))));
        assert_eq!(fs::read(&fetched(&cache, "data", at(1)).await.path).unwrap(), b"data");
    }

    #[tokio::test]
    async fn the_longest_unused_goes_first_and_what_is_used_stays() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(dir.path().to_owned());
        let day = UNUSED.as_secs();
        let used = fetched(&cache, "used", at(1)).await;
        let paths = ["old!", "1234", "5678"].map(|text| dir.path().join(content(text).sha256()));
        for (n, text) in (0..).zip(["old!", "1234", "5678"]) {
            drop(fetched(&cache, text, at(100 + n * day)).await);
        }
        cache.sweep_once(12, at(102 + day)).unwrap();
        assert_eq!(paths.each_ref().map(|path| path.exists()), [false, true, true]);
        cache.sweep_once(11, at(102 + day)).unwrap();
        assert_eq!((paths.each_ref().map(|path| path.exists()), used.path.exists()), ([false, false, true], true));
    }
}
