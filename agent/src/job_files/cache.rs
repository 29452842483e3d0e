//! The contents that are on this node, each in a file with the name of its digest.
//!
//! Guarantees: a file here is whole and has its digest; several supervisors that want the same content fetch it once; a content
//! that somebody copies is not removed meanwhile.
//! Does not: survive a disk that changes what it stored: a copy is checked for its size only.

use super::TemporaryFile;
use crate::contact::client::NodeClock;
use crate::machine::atomic_file::{absent_is_fine, if_there};
use crate::machine::blocking::{blocking, on_files};
use crate::machine::locks::{is_taken, lock_file};
use files::{Digest, MAX_BYTES, digest_within};
use model::Content;
use s3::S3Error;
use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use tokio::time::sleep;

/// The extension of the lock of a content.
const LOCK: &str = "lock";
/// The extension of a content that is being fetched.
const PART: &str = "new";
/// The wait before a lock that somebody else holds is tried again.
const LOCKED: Duration = Duration::from_millis(200);
/// The time between two sweeps.
const SWEEP: Duration = Duration::from_secs(60);
/// How long an unused content stays.
const UNUSED: Duration = Duration::from_secs(86_400);

#[derive(Clone, Debug)]
pub struct Cache(PathBuf);

/// A content on this node. It is not removed while this value exists.
pub struct KeptContent {
    pub path: PathBuf,
    lock: File,
}

impl Drop for KeptContent {
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

    /// The content. If it is not on this node, `fetch` writes it into the file that it gets. A file with another digest is refused. If
    /// this fails or is dropped, nothing stays of the file.
    pub async fn get(
        &self,
        content: &Content,
        now: SystemTime,
        fetch: impl AsyncFn(File) -> Result<u64, S3Error>,
    ) -> Result<KeptContent, S3Error> {
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
        Ok(KeptContent { path, lock })
    }

    async fn fetch(
        &self,
        content: &Content,
        path: &Path,
        fetch: impl AsyncFn(File) -> Result<u64, S3Error>,
    ) -> Result<(), S3Error> {
        let new = TemporaryFile(path.with_extension(PART));
        let file = File::options().write(true).create(true).truncate(true).mode(0o600).open(&new.0)?;
        fetch(file).await?;
        check(content, &new.0).await?;
        Ok(fs::rename(&new.0, path)?)
    }

    /// Whether the content is on this node. If so, it counts as used now.
    pub fn has(&self, content: &Content, now: SystemTime) -> bool {
        let path = self.0.join(content.sha256());
        let used = || File::options().write(true).open(&path).and_then(|content| content.set_modified(now));
        is_here(&path, content) && used().is_ok()
    }

    /// Removes unused contents with this many bytes together, the longest unused ones first. There may be fewer.
    pub async fn make_room(&self, bytes: u64, now: SystemTime) -> io::Result<()> {
        let cache = self.clone();
        blocking(move || {
            let all: u64 = cache.contents()?.iter().map(|(_, bytes, _)| bytes).sum();
            cache.sweep_once(all.saturating_sub(bytes), now)
        })
        .await
    }

    /// When each content was used last, how many bytes it has, and its file. Removes what is left of a fetch that was killed.
    fn contents(&self) -> io::Result<Vec<(SystemTime, u64, PathBuf)>> {
        let mut contents = Vec::new();
        let Some(entries) = if_there(fs::read_dir(&self.0))? else { return Ok(contents) };
        for entry in entries {
            let path = entry?.path();
            // A fetch that fails at this moment removes its part.
            let Some(metadata) = if_there(fs::symlink_metadata(&path))? else { continue };
            match path.extension() {
                Some(extension) if extension == LOCK => {}
                Some(_) => _ = remove(&path)?,
                None => contents.push((metadata.modified()?, metadata.len(), path)),
            }
        }
        Ok(contents)
    }

    /// Again and again removes the contents that nobody used for a day, and the longest unused ones while all together have more
    /// than `most` bytes. Never ends.
    pub async fn sweep(self, most: u64, clock: NodeClock) {
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
        let mut contents = self.contents()?;
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

/// Refuses a file that is not this content.
pub(super) async fn check(content: &Content, path: &Path) -> Result<(), S3Error> {
    let from = path.to_owned();
    let Digest { sha256, bytes } =
        on_files(MAX_BYTES, move |allowance| digest_within(&mut File::open(from)?, allowance)).await?;
    if (sha256.as_str(), bytes) == (content.sha256(), content.bytes) {
        return Ok(());
    }
    Err(S3Error::Refused(format!("the stored content has the digest {sha256} and {bytes} bytes")))
}

fn is_here(path: &Path, content: &Content) -> bool {
    fs::metadata(path).is_ok_and(|there| there.len() == content.bytes)
}

/// Removes a content, unless somebody uses it.
fn remove(path: &Path) -> io::Result<bool> {
    let lock = lock_file(&path.with_extension(LOCK))?;
    if !is_taken(lock.try_lock())? {
        return Ok(false);
    }
    let removed = absent_is_fine(fs::remove_file(path));
    lock.unlock()?;
    removed.map(|()| true)
}

/// Waits for a lock.
async fn locked(lock: impl Fn() -> Result<(), TryLockError>) -> io::Result<()> {
    while !is_taken(lock())? {
        sleep(LOCKED).await;
    }
    Ok(())
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

    fn write(mut file: File, text: &str) -> u64 {
        io::Write::write_all(&mut file, text.as_bytes()).unwrap();
        text.len() as u64
    }

    async fn fetched(cache: &Cache, text: &str, at: SystemTime) -> KeptContent {
        cache.get(&content(text), at, async |file| Ok(write(file, text))).await.unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_content_that_several_want_is_fetched_once() {
        let dir = tempfile::tempdir().unwrap();
        let (cache, fetches) = (Cache::at(dir.path().join("inputs")), AtomicU32::new(0));
        let fetch = async |file: File| {
            fetches.fetch_add(1, Ordering::Relaxed);
            sleep(Duration::from_secs(1)).await;
            Ok(write(file, "data"))
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
        let wrong = async |file: File| Ok(write(file, "dat4"));
        assert!(matches!(cache.get(&content("data"), at(1), wrong).await, Err(S3Error::Refused(_))));
        assert_eq!(fs::read(&fetched(&cache, "data", at(1)).await.path).unwrap(), b"data");
    }

    #[tokio::test]
    async fn nothing_stays_of_a_fetch_that_fails_or_is_cut_short() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(dir.path().to_owned());
        let parts = || {
            fs::read_dir(dir.path())
                .unwrap()
                .filter(|e| e.as_ref().unwrap().path().extension() != Some(LOCK.as_ref()))
                .count()
        };
        let fails = async |file: File| {
            write(file, "da");
            Err(S3Error::Failed(String::new()))
        };
        assert!(cache.get(&content("data"), at(1), fails).await.is_err());
        assert_eq!(parts(), 0);
        let hangs = async |file: File| {
            write(file, "da");
            std::future::pending().await
        };
        let wanted = content("data");
        assert!(tokio::time::timeout(Duration::from_millis(10), cache.get(&wanted, at(1), hangs)).await.is_err());
        assert_eq!(parts(), 0);
        // One that was killed leaves its part until the next look, but not while somebody fetches it.
        let part = dir.path().join(wanted.sha256()).with_extension(PART);
        fs::write(&part, "da").unwrap();
        let lock = lock_file(&part.with_extension(LOCK)).unwrap();
        // A process that another test starts at this moment may have the lock above until it runs its program.
        lock.lock().unwrap();
        cache.sweep_once(u64::MAX, at(1)).unwrap();
        assert!(part.exists());
        lock.unlock().unwrap();
        cache.sweep_once(u64::MAX, at(1)).unwrap();
        assert_eq!(parts(), 0);
    }

    #[tokio::test]
    async fn room_is_made_of_what_was_unused_for_longest() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(dir.path().to_owned());
        for (text, s) in [("old!", 1), ("used", 2), ("more", 3)] {
            drop(fetched(&cache, text, at(s)).await);
        }
        assert!(cache.has(&content("old!"), at(9)) && !cache.has(&content("none"), at(9)));
        cache.make_room(5, at(10)).await.unwrap();
        let here = ["old!", "used", "more"].map(|text| dir.path().join(content(text).sha256()).exists());
        assert_eq!(here, [true, false, false]);
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
