//! Puts the inputs of a job into its work directory.
//!
//! Guarantees: content that does not fit on the disk is refused before its first byte is fetched; nothing is written outside the work
//! directory, also if an earlier input is a link; all inputs have one time.
//! Does not: fetch content that the node has already (`cache` does), or decide what follows a failure.

use super::cache::{Cache, check};
use super::consumed::Consumed;
use super::room::{DiskRoom, reserve};
use super::{JobFiles, PATIENCE};
use crate::machine::blocking::on_files;
use crate::work::obstacle::{Obstacle, patiently};
use crate::work::user_ids::give_below;
use files::{Allowance, Beneath, ByteCount, MAX_BYTES, unpack_within};
use model::enums::Service;
use model::files::{Form, WORK_DIRECTORY, bytes_on_disk};
use model::{Content, Inputs, S3Place, Source};
use remove_tree::remove_tree;
use rustix::fs::ioctl_ficlone;
use s3::{S3, S3Error};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, BufReader};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};
use tokio::time::timeout;

/// How long all inputs together may take, and how much longer for each MiB.
const AT_LEAST: Duration = Duration::from_secs(600);
const EACH_MIB: Duration = Duration::from_secs(1);
/// How much is copied at a time, in bytes.
const CHUNK: usize = 256 << 10;
const A_DAY: Duration = Duration::from_secs(86_400);

/// How many bytes of the inputs have reached the node.
#[derive(Debug, Default)]
pub struct FetchedInputs {
    /// Of all inputs whose size is known.
    all: AtomicU64,
    done: AtomicU64,
    /// The file that is being written. Its length counts what has come of it; the parts on their way are not in it yet.
    file: Mutex<Option<File>>,
}

impl FetchedInputs {
    /// ` (1.2 GiB of 4 GiB)`
    pub fn text(&self) -> String {
        let file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let comes = file.as_ref().and_then(|file| file.metadata().ok()).map_or(0, |metadata| metadata.len());
        let (all, done) = (self.all.load(Relaxed), self.done.load(Relaxed).saturating_add(comes));
        format!(" ({} of {})", ByteCount(done.min(all)), ByteCount(all))
    }

    fn add(&self, bytes: u64) {
        *self.file.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.done.fetch_add(bytes, Relaxed);
    }
}

impl JobFiles<'_> {
    /// Fetches every input and puts it into the work directory. `uid` owns what is placed; `None` for the agent's own user.
    pub async fn place(&self, uid: Option<u32>) -> Result<(), Obstacle> {
        let contents = || self.order().work.inputs.values().filter_map(content_of);
        let bytes = contents().fold(0_u64, |all, content| all.saturating_add(content.bytes));
        self.fetched.all.store(bytes, Relaxed);
        // Nobody knows the size of an object before it comes.
        let is_known = !self.order().work.inputs.values().any(Source::is_of_the_role);
        let longest = if is_known { time_for(bytes) } else { A_DAY };
        let late = |_| {
            let s = longest.as_secs();
            Err(Obstacle::Service(Service::S3, format!("the inputs did not come within {s} s")))
        };
        timeout(longest, self.place_all(uid)).await.unwrap_or_else(late)
    }

    async fn place_all(&self, uid: Option<u32>) -> Result<(), Obstacle> {
        self.make_room().await?;
        let work = self.alloc.dir.work();
        // All inputs get the same time. It is later than the time of everything that an earlier job left in a cache, so make builds that anew.
        let at = self.now();
        // The folder that becomes the work directory comes first, because the other inputs are put into it.
        for (name, source) in in_order(&self.order().work.inputs) {
            let what = format!("the input {name} cannot be read");
            let to = if name == WORK_DIRECTORY { Ok(work.clone()) } else { make_way(&work, name) };
            let to = to.map_err(|e| Obstacle::of_given(&format!("the input {name} cannot be put there"), &e))?;
            match source {
                Source::Content(content) => {
                    let place = self.alloc_place(&what)?.content(content.sha256());
                    self.content(content, place, &to, at, &what).await?;
                    self.fetched.add(content.bytes);
                }
                Source::Object(place) => {
                    let s3 = self.of_job(&what).await?;
                    let room = DiskRoom::of(&work).map_err(|e| Obstacle::of_node(&what, &e))?;
                    // The right to read an object is the right to ask for its size. A fault of the object shows when it is read.
                    let bytes = s3.head(place).await.map_or(0, |head| head.bytes);
                    room.check(&format!("the input {name}"), bytes)?;
                    self.fetched.all.fetch_add(bytes, Relaxed);
                    let most = room.now.min(MAX_BYTES);
                    patiently(&what, PATIENCE, async || self.fetch(&s3, place, create(&to)?, most).await).await?;
                    self.fetched.add(bytes);
                    finish(&to, Form::File, at).map_err(|e| Obstacle::of_given(&what, &e))?;
                }
                Source::Output { job_id, path, .. } => {
                    return Err(Obstacle::Job(format!("{what}: job {job_id} left no output {path}")));
                }
            }
        }
        if let Some(keep) = &self.order().work.keep {
            self.begin_with_checkpoint(&work, keep, at).await?;
        }
        let Some(uid) = uid else { return Ok(()) };
        let placed_by = BTreeSet::from([nix::unistd::geteuid().as_raw()]);
        let given = on_files(0, move |allowance| give_below(&work, &placed_by, uid, allowance)).await;
        given.map_err(|e| Obstacle::of_node("the inputs cannot be given to the job", &e))
    }

    /// Puts the checkpoint into the folder `keep`, where it replaces what other inputs have put. Without a checkpoint, makes the folder.
    async fn begin_with_checkpoint(&self, work: &Path, keep: &str, at: SystemTime) -> Result<(), Obstacle> {
        let what = format!("the checkpoint {keep} cannot be put there");
        let cannot = |e: io::Error| Obstacle::of_given(&what, &e);
        let to = make_way(work, keep).map_err(cannot)?;
        let Some(checkpoint) = &self.order().work.checkpoint else {
            return if to.exists() { Ok(()) } else { fs::create_dir(to).map_err(cannot) };
        };
        let stale = to.clone();
        on_files(0, move |_| remove_tree(&stale)).await.map_err(cannot)?;
        // No other job needs its archive. So that a folder which fits on this disk fits again, the archive goes while it is read.
        let (content, archive) = (&checkpoint.content, self.alloc.dir.path().join("checkpoint.tar"));
        let place = checkpoint.stored_at(self.alloc_place(&what)?);
        let access = self.of_node().map_err(|e| Obstacle::from(e).about(&what))?;
        patiently(&what, PATIENCE, async || {
            self.fetch(access.s3().await?, &place, create(&archive)?, content.bytes).await?;
            check(content, &archive).await
        })
        .await?;
        let unpacked = on_files(MAX_BYTES, move |allowance| {
            fs::create_dir_all(&to)?;
            unpack_within(Consumed::open(&archive)?, &Beneath::new(&to, at)?, allowance)?;
            fs::remove_file(&archive)
        });
        unpacked.await.map_err(cannot)
    }

    pub(super) fn alloc_place(&self, what: &str) -> Result<&S3Place, Obstacle> {
        let none = || Obstacle::Job(format!("{what}: the policy names no bucket any more (output.s3)"));
        self.order().output_s3.as_ref().ok_or_else(none)
    }

    /// Makes sure that the contents fit on the disk, before the first byte of them is fetched. Unused contents of other jobs make room.
    async fn make_room(&self) -> Result<(), Obstacle> {
        let (cache, now, what) = (self.cache(), self.now(), "what the inputs of the job need");
        let mut needed = self.order().work.checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.content.bytes);
        for content in self.order().work.inputs.values().filter_map(content_of) {
            // The archive of a folder lies beside what is unpacked of it.
            let copies: u64 = if content.form == Form::Tree { 2 } else { 1 };
            let here = u64::from(cache.has(content, now));
            needed = needed.saturating_add(content.bytes.saturating_mul(copies.saturating_sub(here)));
        }
        let room = || DiskRoom::of(&self.alloc.dir.work()).map_err(|e| Obstacle::of_node(what, &e));
        let now_there = room()?;
        DiskRoom { now: now_there.ever, ..now_there }.check(what, bytes_on_disk(&self.order().work.inputs))?;
        if needed > now_there.now {
            let made = cache.make_room(needed.saturating_sub(now_there.now), now).await;
            made.map_err(|e| Obstacle::of_node("unused inputs cannot be removed", &e))?;
        }
        room()?.check(what, needed)
    }

    fn cache(&self) -> Cache {
        Cache::at(self.source.cache.clone())
    }

    fn now(&self) -> SystemTime {
        SystemTime::from((self.alloc.context.clock)())
    }

    async fn fetch(&self, s3: &S3, place: &S3Place, file: File, most: u64) -> Result<u64, S3Error> {
        let kept = file.try_clone()?;
        *self.fetched.file.lock().unwrap_or_else(PoisonError::into_inner) = Some(file.try_clone()?);
        s3.get_into(place, tokio::fs::File::from_std(file), most, |bytes| reserve(&kept, bytes)).await
    }

    async fn content(
        &self,
        content: &Content,
        place: S3Place,
        to: &Path,
        at: SystemTime,
        what: &str,
    ) -> Result<(), Obstacle> {
        let access = self.of_node().map_err(|e| Obstacle::from(e).about(what))?;
        let (cache, form, to) = (self.cache(), content.form, to.to_owned());
        let get = async |file: File| self.fetch(access.s3().await?, &place, file, content.bytes).await;
        let has_room_for_two =
            DiskRoom::of(&self.alloc.dir.work()).is_ok_and(|room| room.now >= content.bytes.saturating_mul(2));
        if form != Form::Tree && !has_room_for_two && !cache.has(content, self.now()) {
            // The disk has no room for a second copy, which other jobs could use.
            patiently(what, PATIENCE, async || get(create(&to)?).await).await?;
            check(content, &to).await.map_err(|e| Obstacle::from(e).about(what))?;
            return finish(&to, form, at).map_err(|e| Obstacle::of_given(what, &e));
        }
        let held = patiently(what, PATIENCE, async || cache.get(content, self.now(), get).await).await?;
        let from = held.path.clone();
        // What cannot be there beside another input is the job's fault.
        let copied = on_files(MAX_BYTES, move |allowance| copy(&from, &to, form, at, allowance)).await;
        copied.map_err(|e| Obstacle::of_given(what, &e))
    }
}

const fn content_of(source: &Source) -> Option<&Content> {
    match source {
        Source::Content(content) => Some(content),
        Source::Object(_) | Source::Output { .. } => None,
    }
}

/// How long inputs of this size may take.
fn time_for(bytes: u64) -> Duration {
    let mib = u32::try_from(bytes >> 20).unwrap_or(u32::MAX);
    AT_LEAST.saturating_add(EACH_MIB.saturating_mul(mib)).min(A_DAY)
}

/// A new file that only the agent can read. It is given away when it is whole.
fn create(to: &Path) -> io::Result<File> {
    File::options().write(true).create(true).truncate(true).mode(0o600).open(to)
}

fn in_order(inputs: &Inputs) -> impl Iterator<Item = (&str, &Source)> {
    let others = inputs.iter().filter(|(name, _)| *name != WORK_DIRECTORY);
    inputs.get_key_value(WORK_DIRECTORY).into_iter().chain(others).map(|(name, source)| (name.as_str(), source))
}

/// Makes the folders of a name, and returns its path. Fails if an earlier input made a link there that leads out of the work
/// directory.
fn make_way(work: &Path, name: &str) -> io::Result<PathBuf> {
    let (root, mut at) = (work.canonicalize()?, work.to_owned());
    let parents = Path::new(name).parent().into_iter().flat_map(Path::components);
    for part in parents {
        at.push(part);
        match fs::create_dir(&at) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
            _ if !at.is_dir() => return Err(io::Error::from(io::ErrorKind::NotADirectory)),
            _ if at.canonicalize()?.starts_with(&root) => {}
            _ => return Err(io::Error::other("another input has a link there that leads out of the work directory")),
        }
    }
    let to = work.join(name);
    match fs::symlink_metadata(&to) {
        Ok(there) if !there.is_dir() => fs::remove_file(&to)?,
        _ => {}
    }
    Ok(to)
}

fn copy(from: &Path, to: &Path, form: Form, at: SystemTime, allowance: &mut Allowance) -> io::Result<()> {
    let mut from = File::open(from)?;
    if form == Form::Tree {
        fs::create_dir_all(to)?;
        return unpack_within(&mut from, &Beneath::new(to, at)?, allowance);
    }
    let (Some(folder), Some(name)) = (to.parent(), to.file_name()) else {
        return Err(io::ErrorKind::IsADirectory.into());
    };
    let mut new = Beneath::new(folder, at)?.new_file(Path::new(name))?;
    // Where the file system can, the two share their blocks.
    if ioctl_ficlone(&new.file, &from).is_err() {
        reserve(&new.file, from.metadata()?.len())?;
        io::copy(&mut BufReader::with_capacity(CHUNK, allowance.reading(&mut from)), &mut new.file)?;
    }
    new.finish(mode(form))
}

const fn mode(form: Form) -> u32 {
    match form {
        Form::Program => 0o755,
        Form::File | Form::Tree => 0o644,
    }
}

/// Gives a file that is whole its mode and its time.
fn finish(path: &Path, form: Form, at: SystemTime) -> io::Result<()> {
    fs::set_permissions(path, fs::Permissions::from_mode(mode(form)))?;
    File::options().write(true).open(path)?.set_modified(at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn no_input_goes_through_a_link_that_leads_out() {
        let (work, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        symlink(outside.path(), work.path().join("out")).unwrap();
        symlink(outside.path().join("file"), work.path().join("link")).unwrap();
        assert!(make_way(work.path(), "out/evil").is_err() && make_way(work.path(), "out/a/evil").is_err());
        // A link in the place of the input itself is replaced.
        fs::write(make_way(work.path(), "link").unwrap(), "x").unwrap();
        assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0);
        assert!(make_way(work.path(), "a/b/c").unwrap().parent().unwrap().is_dir());
        fs::write(work.path().join("file"), "").unwrap();
        assert!(make_way(work.path(), "file/c").is_err());
    }

    #[test]
    fn inputs_get_a_time_by_their_size() {
        for (bytes, s) in [(0, 600), (1 << 30, 600 + 1024), (MAX_BYTES, 86_400)] {
            assert_eq!(time_for(bytes), Duration::from_secs(s));
        }
    }

    #[test]
    fn the_work_directory_comes_first() {
        let source: Source = "s3://data/x".parse().unwrap();
        let inputs: Inputs = ["-a", ".", "b"].map(|name| (name.to_owned(), source.clone())).into();
        assert_eq!(in_order(&inputs).map(|(name, _)| name).collect::<Vec<_>>(), [".", "-a", "b"]);
    }
}
