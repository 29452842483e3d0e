//! Which user id an alloc runs as, and whom the caches belong to.
//!
//! ```text
//! caches/{name}/         of root: only the group of the allocs that name it enters, whatever they make of their own modes
//! caches/{name}/files/   belongs to the user id of these allocs
//! cache-owners/{name}    the user ids that files in the cache may belong to
//! user-ids/{id}          a lock: held while the last alloc of this id is ended
//! ```
//!
//! Why not a group, or an access list: tools that keep caches make files that only their owner may read (`mkstemp`), and refuse folders of
//! others (git). So whoever uses a cache is its owner.
//!
//! Guarantees: two allocs whose files are on the machine have the same user id only if they name the same cache, or are linked by allocs
//! that do; everything in a cache belongs to the allocs that name it before their commands start; an alloc that names no cache has
//! an id that owns none; all that runs as an id is ended with the last alloc of this id, and no alloc gets the id meanwhile.
//! Does not: keep apart allocs that share an id: they can read each other's files and end each other.

use super::alloc_dir::AllocDir;
use crate::ending::unended;
use crate::isolation::{OwnIds, TaskIsolation, give};
use crate::machine::atomic_file::{absent_is_fine, if_there, replace};
use crate::machine::fitness::no_room;
use crate::machine::locks::{is_taken, lock_file};
use files::Allowance;
use nix::unistd::{Gid, Uid, fchownat};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, open, statat};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The folder in the directory of a cache that its jobs get.
pub const CACHE_FILES: &str = "files";

/// The wait before a lock that somebody else holds is tried again.
const LOCKED: Duration = Duration::from_millis(50);

/// The user ids of this node.
#[derive(Clone, Debug)]
pub struct UserIds {
    allocs: PathBuf,
    caches: PathBuf,
    owners: PathBuf,
    locks: PathBuf,
}

/// An alloc that has a user id.
struct UserHolder {
    uid: u32,
    caches: Vec<String>,
    has_ended: bool,
}

/// The user id of an alloc, and a lock against the end of others with the same id. Keep it until the alloc has its directory.
pub struct ChosenUser {
    pub uid: u32,
    _lock: File,
}

impl UserIds {
    /// `allocs` is the directory of all allocs in the data directory.
    pub fn beside(allocs: &Path) -> Self {
        let data = allocs.parent().unwrap_or(allocs);
        let [caches, owners, locks] = ["caches", "cache-owners", "user-ids"].map(|name| data.join(name));
        Self { allocs: allocs.to_owned(), caches, owners, locks }
    }

    /// The user ids of the node with this alloc.
    pub fn of(alloc: &AllocDir) -> Self {
        Self::beside(alloc.path().parent().unwrap_or(alloc.path()))
    }

    /// The user id for the alloc in `dir`, which names these caches. From now on the caches belong to it. The ids are taken in turn,
    /// after `last`, so that an id is not used again soon.
    pub fn choose(&self, dir: &AllocDir, ids: &OwnIds, caches: &[String], last: Option<u32>) -> io::Result<ChosenUser> {
        let range = ids.job_uids();
        let holders = self.holders(dir)?;
        let sharing: BTreeSet<u32> = holders
            .iter()
            .filter(|other| other.caches.iter().any(|name| caches.contains(name)))
            .map(|h| h.uid)
            .collect();
        let held: BTreeSet<u32> = holders.iter().map(|holder| holder.uid).collect();
        let owner = |name: &String| fs::symlink_metadata(self.caches.join(name)).map(|m| m.gid());
        let made = dir.owner()?.filter(|uid| range.contains(*uid));
        let uid = match (made, sharing.first(), sharing.len()) {
            (Some(uid), _, _) => uid,
            (None, Some(uid), 1) => *uid,
            (None, Some(_), _) => return Err(no_room("its caches are in use by jobs of different users".to_owned())),
            (None, None, _) => {
                let mut own = caches.iter().filter_map(|name| owner(name).ok());
                let of_caches = own.find(|uid| range.contains(*uid) && !held.contains(uid));
                of_caches.map_or_else(|| self.fresh(ids, &held, last), Ok)?
            }
        };
        let chosen = ChosenUser { uid, _lock: self.try_lock(uid)? };
        let in_use = |name: &OsStr| holders.iter().flat_map(|holder| &holder.caches).any(|used| name == used.as_str());
        for entry in fs::read_dir(&self.caches)? {
            let entry = entry?;
            let (is_own, of) = (caches.iter().any(|name| entry.file_name() == name.as_str()), entry.metadata()?.gid());
            if is_own && of != uid {
                give(&entry.path().join(CACHE_FILES), uid, uid, 0o700)?;
                give(&entry.path(), 0, uid, 0o710)?;
            } else if !is_own && of == uid && !in_use(&entry.file_name()) {
                // The alloc does not name this cache.
                give(&entry.path(), 0, 0, 0o700)?;
            }
        }
        Ok(chosen)
    }

    /// The next id that nobody holds: one that owns no cache, if there is such an id.
    fn fresh(&self, ids: &OwnIds, held: &BTreeSet<u32>, last: Option<u32>) -> io::Result<u32> {
        let (range, mut owners) = (ids.job_uids(), BTreeSet::new());
        for entry in fs::read_dir(&self.caches)? {
            owners.insert(entry?.metadata()?.gid());
        }
        let last = last.unwrap_or(range.last);
        let in_turn = || range.ids().filter(|uid| *uid > last).chain(range.ids().filter(|uid| *uid <= last));
        let free = || in_turn().filter(|uid| !held.contains(uid));
        let found = free().find(|uid| !owners.contains(uid)).or_else(|| free().next());
        found.ok_or_else(|| no_room(format!("all user ids of jobs are in use ({range}): give a larger --job-uids")))
    }

    /// The other allocs that have a user id.
    fn holders(&self, of: &AllocDir) -> io::Result<Vec<UserHolder>> {
        let mut holders = Vec::new();
        for entry in fs::read_dir(&self.allocs)? {
            let dir = AllocDir::at(entry?.path());
            if dir != *of {
                holders.extend(holder(&dir)?);
            }
        }
        Ok(holders)
    }

    fn lock_of(&self, uid: u32) -> io::Result<File> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.locks)?;
        lock_file(&self.locks.join(uid.to_string()))
    }

    fn try_lock(&self, uid: u32) -> io::Result<File> {
        let file = self.lock_of(uid)?;
        if is_taken(file.try_lock())? { Ok(file) } else { Err(no_room("another job of the same user ends".to_owned())) }
    }

    async fn lock(&self, uid: u32) -> io::Result<File> {
        let file = self.lock_of(uid)?;
        while !is_taken(file.try_lock())? {
            tokio::time::sleep(LOCKED).await;
        }
        Ok(file)
    }

    /// Ends everything that still runs for the alloc in `dir`. What runs as its user id is ended with the last alloc of this id.
    /// `program` is the agent's own.
    pub async fn end(&self, isolation: &TaskIsolation, program: &Path, dir: &AllocDir) {
        let uid = isolation.uid;
        // An alloc without a cache shares its id with nobody.
        let shares = dir.task().ok().flatten().is_none_or(|task| !task.caches.is_empty());
        let lock = if shares { Some(self.lock(uid).await) } else { None };
        if let Err(error) = dir.mark_ended() {
            tracing::warn!(uid, %error, "what is left of other jobs of this user may be ended later");
        }
        let is_last = match lock {
            None => true,
            Some(Ok(_)) => {
                let others = self.holders(dir);
                others.is_ok_and(|others| others.iter().all(|other| other.uid != uid || other.has_ended))
            }
            Some(Err(ref error)) => {
                tracing::warn!(uid, %error, "nobody knows whether other jobs run as this user");
                false
            }
        };
        unended::ended(dir, isolation.end(program, dir.path(), is_last)).await;
    }

    /// Gives all that is in a cache to this user id. Other commands that use the cache run as the same id, or wait for this.
    pub fn hand_over(&self, cache: &str, uid: u32, allowance: &mut Allowance) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.owners)?;
        let (record, lock) = (self.owners.join(cache), self.owners.join(format!(".{cache}.lock")));
        let lock = lock_file(&lock)?;
        while !is_taken(lock.try_lock())? {
            std::thread::sleep(LOCKED);
            allowance.take_bytes(0)?;
        }
        let known = if_there(fs::read_to_string(&record))?.unwrap_or_default();
        let known: BTreeSet<u32> = known.split_whitespace().filter_map(|id| id.parse().ok()).collect();
        let earlier: BTreeSet<u32> = known.iter().copied().filter(|id| *id != uid).collect();
        let text = |ids: &BTreeSet<u32>| ids.iter().map(u32::to_string).collect::<Vec<_>>().join(" ");
        if !earlier.is_empty() {
            // If this is cut short, the next one knows all owners.
            replace(&record, text(&earlier.iter().copied().chain([uid]).collect()).as_bytes())?;
            give_below(&self.caches.join(cache), &earlier, uid, allowance)?;
        }
        if known == BTreeSet::from([uid]) {
            return Ok(());
        }
        replace(&record, text(&BTreeSet::from([uid])).as_bytes())
    }

    /// Forgets who owned a cache that is gone.
    pub fn forget(&self, cache: &str) -> io::Result<()> {
        absent_is_fine(fs::remove_file(self.owners.join(cache)))
    }
}

/// The alloc in this directory, if it has a user id.
fn holder(dir: &AllocDir) -> io::Result<Option<UserHolder>> {
    let owner = dir.owner()?.filter(|uid| *uid != 0);
    let task = dir.task().ok().flatten();
    let named = task.as_ref().and_then(|task| task.isolation.as_ref()).map(|isolation| isolation.uid);
    // After the end the directories belong to root, and before the exit record something may still be ended.
    let of_task = if owner.is_none() && matches!(dir.exit_record(), Ok(Some(_))) { None } else { named };
    let Some(uid) = owner.or(of_task) else { return Ok(None) };
    let caches = task.map(|task| task.caches.into_iter().map(|(name, _)| name).collect()).unwrap_or_default();
    Ok(Some(UserHolder { uid, caches, has_ended: dir.has_ended() }))
}

/// Gives what these owners have below a folder to a user id. A link is given, and not followed.
pub(crate) fn give_below(folder: &Path, owners: &BTreeSet<u32>, uid: u32, allowance: &mut Allowance) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let root = open(folder, flags, Mode::empty())?;
    let mut left = vec![PathBuf::from(".")];
    while let Some(next) = left.pop() {
        let mut entries = Dir::new(crate::work::scratch::open_below(&root, &next, flags)?)?;
        while let Some(entry) = entries.read() {
            let entry = entry?;
            let name = entry.file_name();
            if [c".", c".."].contains(&name) {
                continue;
            }
            allowance.take_entry()?;
            let found = statat(entries.fd()?, name, AtFlags::SYMLINK_NOFOLLOW)?;
            if owners.contains(&found.st_uid) {
                let (owner, group) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(uid)));
                fchownat(entries.fd()?, name, owner, group, nix::fcntl::AtFlags::AT_SYMLINK_NOFOLLOW)?;
            }
            if FileType::from_raw_mode(found.st_mode) == FileType::Directory {
                left.push(next.join(OsStr::from_bytes(name.to_bytes())));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isolation::ids::IdRange;
    use crate::machine::data_dir::DataDir;
    use crate::protocol::testing::{alloc_id, order, task};
    use crate::work::alloc_dir::{AllocTask, ExitRecord};
    use model::EndCause;

    struct Node {
        _root: tempfile::TempDir,
        ids: UserIds,
        own: OwnIds,
        data: DataDir,
    }

    impl Node {
        /// With this many user ids for jobs.
        fn new(jobs: u32) -> Self {
            let root = tempfile::tempdir().unwrap();
            let data = DataDir::open(root.path()).unwrap();
            let uids = IdRange { first: 100_000, last: 100_001 + jobs };
            let own = OwnIds { uids, max_tasks: 10, private_mounts: false, cgroups: None };
            Self { ids: UserIds::beside(&data.allocs()), own, data, _root: root }
        }

        fn dir(&self, copy: u32) -> AllocDir {
            AllocDir::of(&self.data.allocs(), alloc_id(copy))
        }

        /// Starts an alloc, and returns the number of its user id.
        fn start(&self, copy: u32, caches: &[&str]) -> io::Result<u32> {
            let names: Vec<String> = caches.iter().map(|name| (*name).to_owned()).collect();
            let paths: Vec<_> =
                names.iter().map(|name| (name.clone(), self.data.caches().join(name).join(CACHE_FILES))).collect();
            paths.iter().for_each(|(_, path)| fs::create_dir_all(path).unwrap());
            let chosen = self.ids.choose(&self.dir(copy), &self.own, &names, Some(100_000))?;
            let (uid, reaper) = (chosen.uid, 100_001);
            let isolation =
                TaskIsolation { uid, reaper, max_tasks: 1, private_mounts: false, closed: Vec::new(), cgroup: None };
            let task =
                AllocTask { isolation: Some(isolation), unisolated: false, caches: paths, ..task(order(copy, 1)) };
            self.dir(copy).create(&task)?;
            for name in &names {
                self.ids.hand_over(name, uid, &mut Allowance::default())?;
            }
            Ok(uid - 100_000)
        }

        fn end(&self, copy: u32) {
            self.dir(copy).mark_ended().unwrap();
            self.dir(copy).close().unwrap();
            self.dir(copy).write_exit_record(&ExitRecord::of(EndCause::Exited { code: 0 })).unwrap();
        }

        fn owner(&self, path: &str) -> u32 {
            fs::symlink_metadata(self.files(path)).unwrap().uid() - 100_000
        }

        /// What is in a cache: `a`, or `a/file`.
        fn files(&self, path: &str) -> PathBuf {
            let (cache, rest) = path.split_once('/').unwrap_or((path, ""));
            self.data.caches().join(cache).join(CACHE_FILES).join(rest)
        }

        /// What a job leaves in a cache.
        fn leave(&self, path: &str, uid: u32) {
            let path = self.files(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, "").unwrap();
            for path in path.ancestors().take_while(|path| !path.ends_with(CACHE_FILES)) {
                std::os::unix::fs::chown(path, Some(uid + 100_000), Some(uid + 100_000)).unwrap();
            }
        }
    }

    #[test]
    fn allocs_that_share_a_cache_have_one_user_and_others_do_not() {
        if !nix::unistd::geteuid().is_root() {
            return eprintln!("skipped: only root can give files away");
        }
        let node = Node::new(4);
        assert_eq!(node.start(0, &["a"]).unwrap(), 1);
        assert_eq!(node.start(1, &[]).unwrap(), 2);
        assert_eq!(node.start(2, &["a", "b"]).unwrap(), 1, "at the same time");
        node.leave("a/deep/file", 1);
        assert_eq!(node.start(3, &["c"]).unwrap(), 3);
        let both = node.start(4, &["b", "c"]).unwrap_err();
        assert_eq!(both.kind(), io::ErrorKind::WouldBlock, "they run as different users");
        node.end(3);
        assert_eq!(node.start(5, &["b", "c"]).unwrap(), 1, "the other cache is handed over");
        assert_eq!((node.owner("c"), node.owner("a")), (1, 1));
        for copy in [0, 2, 5] {
            node.end(copy);
        }
        assert_eq!(node.start(6, &["a"]).unwrap(), 1, "its owner is free again");
        assert_eq!(node.start(7, &["c"]).unwrap(), 3, "it does not share a user with what does not name it");
        assert_eq!(node.owner("c"), 3);
        assert_eq!(node.start(8, &[]).unwrap(), 4, "an id that owns no cache");
    }

    #[test]
    fn all_that_is_in_a_cache_belongs_to_its_next_user_and_nothing_else_does() {
        if !nix::unistd::geteuid().is_root() {
            return eprintln!("skipped: only root can give files away");
        }
        let node = Node::new(2);
        let outside = tempfile::tempdir().unwrap();
        assert_eq!(node.start(0, &["a"]).unwrap(), 1);
        node.leave("a/d/e/file", 1);
        std::os::unix::fs::symlink(outside.path(), node.files("a/out")).unwrap();
        std::os::unix::fs::lchown(node.files("a/out"), Some(100_001), None).unwrap();
        fs::write(node.files("a/of-root"), "").unwrap();
        node.end(0);
        // Without another id, an alloc gets that of a cache that nobody uses, and does not get the cache.
        assert_eq!(node.start(1, &[]).unwrap(), 2);
        assert_eq!(node.start(2, &[]).unwrap(), 1);
        assert_eq!(fs::metadata(node.data.caches().join("a")).unwrap().gid(), 0);
        node.end(1);
        assert_eq!(node.start(3, &["a"]).unwrap(), 2);
        for path in ["a", "a/d", "a/d/e", "a/d/e/file", "a/out"] {
            assert_eq!(node.owner(path), 2, "{path}");
        }
        assert_eq!(fs::metadata(node.files("a/of-root")).unwrap().uid(), 0);
        assert_eq!(fs::metadata(outside.path()).unwrap().uid(), 0);
        // One that was cut short is finished by the next.
        node.end(3);
        fs::write(node.ids.owners.join("a"), "100001 100002").unwrap();
        node.leave("a/d/e/file", 1);
        assert_eq!(node.start(4, &["a"]).unwrap(), 2);
        assert_eq!(node.owner("a/d/e/file"), 2);
        assert!(node.start(5, &[]).is_err(), "two ids are held");
    }

    #[tokio::test]
    async fn an_id_is_not_given_while_its_last_alloc_is_ended() {
        if !nix::unistd::geteuid().is_root() {
            return eprintln!("skipped: only root can give files away");
        }
        let node = Node::new(2);
        assert_eq!(node.start(0, &["a"]).unwrap(), 1);
        let ending = node.ids.lock(100_001).await.unwrap();
        assert_eq!(node.start(1, &["a"]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(ending);
        assert_eq!(node.start(1, &["a"]).unwrap(), 1);
        let others = |copy: u32| {
            let others = node.ids.holders(&node.dir(copy)).unwrap();
            others.iter().filter(|other| !other.has_ended).count()
        };
        assert_eq!(others(0), 1, "the other one is not to be ended with it");
        node.dir(0).mark_ended().unwrap();
        assert_eq!(others(1), 0, "this is the last one");
    }
}
