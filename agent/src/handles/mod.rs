//! Lists the handles of this node (allocs and caches), and destroys them.
//!
//! Guarantees: removes only directories directly in `allocs` and `caches`, and each only if it has the label that was reported of
//! it; the label is removed last, so that a half-destroyed handle is still known to be this node's. The container of an alloc is
//! removed before the directory of the alloc, so the directories name all containers. A handle that does not exist counts as
//! destroyed.
//! Does not: decide what to destroy, or remember which allocs are still needed (`protocol` does).

pub mod sweep;
mod unused;

use crate::contact::shared_node::SharedNode;
use crate::machine::atomic_file::{self, absent_is_fine, if_there};
use crate::machine::blocking::blocking;
use crate::machine::data_dir::DataDir;
use crate::output::outputs::Outputs;
use crate::protocol::{HandleList, Node};
use crate::runtime::Containers;
use crate::work::alloc_dir::{AllocDir, is_cache_name};
use crate::work::ends;
use crate::work::user_ids::UserIds;
use model::wire::ReportedHandle;
use model::{AllocId, HandleKind};
use remove_tree::remove_tree;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The prefix of the handle of a cache.
const CACHE_PREFIX: &str = "cache:";

/// The prefix of the directory of a cache that is being removed. Directories whose names begin with a dot are not listed.
const TAKEN_PREFIX: &str = ".gone-";

/// A cache that no longer has its name, and is to be removed.
struct TakenCache {
    name: String,
    label: String,
    taken: PathBuf,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HandleTarget {
    /// The directory of an alloc, and its container if it has one.
    Alloc(AllocId),
    /// A cache, by name.
    Cache(String),
}

impl HandleTarget {
    /// `None` for text that could lead out of the data directory.
    pub fn parse(handle: &str) -> Option<Self> {
        if let Some(name) = handle.strip_prefix(CACHE_PREFIX) {
            return is_cache_name(name).then(|| Self::Cache(name.to_owned()));
        }
        handle.parse().ok().map(Self::Alloc)
    }
}

#[derive(Clone, Debug)]
pub struct HandleStore {
    allocs: PathBuf,
    caches: PathBuf,
    cache_labels: PathBuf,
    containers: Containers,
    outputs: Outputs,
}

impl HandleStore {
    /// The handles in this data directory, and the containers of these runtimes. The output of an alloc is kept in `outputs` when
    /// the directory of the alloc is destroyed.
    pub fn new(data: &DataDir, containers: Containers, outputs: Outputs) -> Self {
        let (allocs, caches, cache_labels) = (data.allocs(), data.caches(), data.cache_labels());
        Self { allocs, caches, cache_labels, containers, outputs }
    }

    pub fn list(&self) -> HandleList {
        let mut handles = Vec::new();
        let mut complete = true;
        let mut add = |handle: String, kind, label| handles.push(ReportedHandle { handle, kind, label, stays: None });
        let results = [
            self.each_alloc(|name, label| add(name, HandleKind::Container, label)),
            directories(&self.caches).map(|caches| {
                for (name, _) in caches {
                    let label = read_label(&self.cache_labels.join(&name));
                    add(format!("{CACHE_PREFIX}{name}"), HandleKind::Volume, label);
                }
            }),
        ];
        for error in results.into_iter().filter_map(Result::err) {
            tracing::warn!(%error, "cannot list all handles: the report is not complete");
            complete = false;
        }
        HandleList { handles, complete }
    }

    fn each_alloc(&self, mut add: impl FnMut(String, Option<String>)) -> io::Result<()> {
        for (name, path) in directories(&self.allocs)? {
            let dir = AllocDir::at(path);
            let label = dir.label();
            // An interrupted destroy may leave an empty directory, which is removed here. If the directory is not
            // empty, removing it fails and changes nothing.
            if label.is_some() || fs::remove_dir(dir.path()).is_err() {
                add(name, label);
            }
        }
        Ok(())
    }

    /// Whether no alloc uses the target.
    pub fn is_free(&self, node: &Node, target: &HandleTarget) -> bool {
        let allocs = &node.durable.allocs;
        match target {
            HandleTarget::Alloc(id) => !allocs.contains_key(id) && !ends::is_running(&AllocDir::of(&self.allocs, *id)),
            HandleTarget::Cache(name) => allocs.values().all(|alloc| !alloc.order.work.caches.contains(name)),
        }
    }

    /// Destroys one handle, if it still has this label. A handle that does not exist counts as destroyed.
    ///
    /// The label is read again now. Since the list was made, a person may have taken it away, or another disk may have come in the
    /// place of this one. A cache is renamed while no order can come: an alloc that comes later gets a new cache of that name,
    /// however long the removal of the old one takes.
    pub async fn destroy(&self, target: &HandleTarget, label: &str, state: &SharedNode) -> io::Result<()> {
        match target {
            HandleTarget::Alloc(id) => {
                let dir = AllocDir::of(&self.allocs, *id);
                let (found, path) = (dir.label(), dir.path());
                let is_empty = fs::read_dir(path).map_or(true, |mut entries| entries.next().is_none());
                if !is_empty && found.as_deref() != Some(label) {
                    return Err(relabelled(path, found.as_deref()));
                }
                // An alloc without an image has no container, and most have none. So the runtimes need not be asked.
                if dir.task().ok().flatten().is_none_or(|task| task.order.work.image.is_some()) {
                    for runtime in self.containers.listed() {
                        runtime.remove(&id.to_string()).await?;
                    }
                }
                let (outputs, id) = (self.outputs.clone(), *id);
                blocking(move || {
                    outputs.keep(id, &dir);
                    remove_labelled(dir.path())
                })
                .await
            }
            HandleTarget::Cache(name) => {
                let take =
                    |node: &Node| if self.is_free(node, target) { self.take_cache(name, label) } else { Ok(None) };
                self.remove_taken(state.read(take)?).await
            }
        }
    }

    /// Renames a cache that is to be removed, if it still has this label. `None` if there is no such cache.
    fn take_cache(&self, name: &str, label: &str) -> io::Result<Option<TakenCache>> {
        let (dir, file) = (self.caches.join(name), self.cache_labels.join(name));
        if !dir.exists() {
            absent_is_fine(fs::remove_file(&file))?;
            return Ok(None);
        }
        let found = read_label(&file);
        if found.as_deref() != Some(label) {
            return Err(relabelled(&dir, found.as_deref()));
        }
        // Leftovers of earlier agents keep their names: their removal may take long, and the caller may hold a lock.
        let mut places = (0..u32::MAX).map(|n| self.caches.join(format!("{TAKEN_PREFIX}{n}-{name}")));
        let taken = places.find(|place| !place.exists()).ok_or(io::ErrorKind::AlreadyExists)?;
        fs::rename(&dir, &taken)?;
        UserIds::beside(&self.allocs).forget(name)?;
        absent_is_fine(fs::remove_file(&file))?;
        Ok(Some(TakenCache { name: name.to_owned(), label: label.to_owned(), taken }))
    }

    /// Removes a renamed cache. If that fails, the cache gets its name back, if the name is still free.
    async fn remove_taken(&self, cache: Option<TakenCache>) -> io::Result<()> {
        let Some(TakenCache { name, label, taken }) = cache else { return Ok(()) };
        let (caches, labels) = (self.caches.clone(), self.cache_labels.clone());
        blocking(move || {
            remove_tree(&taken).inspect_err(|_| {
                let dir = caches.join(&name);
                if !dir.exists() && atomic_file::write(&labels.join(&name), label.as_bytes()).is_ok() {
                    let _ = fs::rename(&taken, dir);
                }
            })
        })
        .await
    }

    /// Removes the renamed caches that a killed agent left behind.
    pub async fn remove_leftovers(&self) {
        let caches = self.caches.clone();
        let removed = blocking(move || {
            for entry in fs::read_dir(caches)? {
                let entry = entry?;
                if entry.file_name().to_string_lossy().starts_with(TAKEN_PREFIX) {
                    remove_tree(&entry.path())?;
                }
            }
            Ok(())
        });
        if let Err(error) = removed.await {
            tracing::warn!(%error, "cannot remove what is left of a cache");
        }
    }
}

fn relabelled(dir: &Path, found: Option<&str>) -> io::Error {
    let dir = dir.display();
    let found = found.map_or_else(|| "no label".to_owned(), |label| format!("the label {label}"));
    io::Error::other(format!("{dir} has {found} now: it is left alone; remove it by hand if nobody needs it"))
}

fn read_label(file: &Path) -> Option<String> {
    fs::read_to_string(file).ok().filter(|label| !label.is_empty())
}

/// Removes the directory of an alloc, and its label last.
fn remove_labelled(dir: &Path) -> io::Result<()> {
    let Some(entries) = if_there(fs::read_dir(dir))? else { return Ok(()) };
    for entry in entries {
        let entry = entry?;
        if entry.file_name() != "label" {
            remove_tree(&entry.path())?;
        }
    }
    absent_is_fine(fs::remove_file(dir.join("label")))?;
    absent_is_fine(fs::remove_dir(dir))
}

/// The directories in `dir`, without those that are still being created: their names begin with a dot.
fn directories(dir: &Path) -> io::Result<Vec<(String, PathBuf)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if entry.file_type()?.is_dir() && !name.starts_with('.') {
            found.push((name, entry.path()));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Identity;
    use crate::protocol::testing::{alloc_id, durable, node_id};

    pub(super) fn store(root: &Path) -> (SharedNode, HandleStore) {
        let data = DataDir::open(root).unwrap();
        let outputs = Outputs::open(&data, node_id(), 1);
        let store = HandleStore::new(&data, Containers::none(), outputs);
        let identity = Identity { instance_id: "i-1".into(), address: None };
        (SharedNode::new(Node::new(identity, durable()), data), store)
    }

    fn create(store: &HandleStore, label: Option<&str>) -> PathBuf {
        let dir = store.allocs.join(alloc_id(0).to_string());
        fs::create_dir_all(dir.join("work/deep")).unwrap();
        fs::write(dir.join("work/deep/file"), "x").unwrap();
        if let Some(label) = label {
            fs::write(dir.join("label"), label).unwrap();
        }
        dir
    }

    #[test]
    fn a_handle_cannot_lead_out_of_the_data_directory() {
        for bad in
            ["", "..", ".", "../x", "a/b", "/etc", "cache:", "cache:..", "cache:a/b", "cache:/", "a\0b", ".new-x"]
        {
            assert_eq!(HandleTarget::parse(bad), None, "{bad:?}");
        }
        assert_eq!(HandleTarget::parse("cache:m2"), Some(HandleTarget::Cache("m2".into())));
        assert_eq!(HandleTarget::parse(&alloc_id(4).to_string()), Some(HandleTarget::Alloc(alloc_id(4))));
    }

    #[tokio::test]
    async fn every_handle_is_listed_with_the_label_it_was_created_with() {
        let root = tempfile::tempdir().unwrap();
        let (_state, store) = store(root.path());
        create(&store, Some("9-01JD0000000000000000000009"));
        fs::create_dir(store.caches.join("m2")).unwrap();
        fs::write(store.cache_labels.join("m2"), node_id().to_string()).unwrap();
        fs::create_dir(store.allocs.join(".new-x")).unwrap();
        fs::create_dir(store.allocs.join("cut-short")).unwrap();
        let HandleList { handles, complete } = store.list();
        let listed: Vec<_> = handles.iter().map(|h| (h.handle.as_str(), h.kind, h.label.as_deref().unwrap())).collect();
        let (alloc, own) = (alloc_id(0).to_string(), node_id().to_string());
        let want = [
            (alloc.as_str(), HandleKind::Container, "9-01JD0000000000000000000009"),
            ("cache:m2", HandleKind::Volume, own.as_str()),
        ];
        assert_eq!(listed, want);
        assert!(complete);
    }

    #[tokio::test]
    async fn sw_03_a_failed_listing_is_not_complete() {
        let root = tempfile::tempdir().unwrap();
        let (_state, store) = store(root.path());
        create(&store, Some("x"));
        fs::remove_dir(&store.caches).unwrap();
        let HandleList { handles, complete } = store.list();
        assert_eq!((handles.len(), complete), (1, false));
    }

    #[tokio::test]
    async fn sw_07_no_handles_are_a_complete_list() {
        let root = tempfile::tempdir().unwrap();
        let (_state, store) = store(root.path());
        assert_eq!(store.list(), HandleList { handles: Vec::new(), complete: true });
    }

    #[tokio::test]
    async fn sw_08_destroying_an_absent_handle_is_a_success() {
        let root = tempfile::tempdir().unwrap();
        let (state, store) = store(root.path());
        let dir = create(&store, Some("x"));
        // A link to a directory that must stay.
        let kept = root.path().join("kept");
        fs::create_dir(&kept).unwrap();
        fs::write(kept.join("file"), "x").unwrap();
        std::os::unix::fs::symlink(&kept, dir.join("link")).unwrap();
        for _ in 0..2 {
            store.destroy(&HandleTarget::Alloc(alloc_id(0)), "x", &state).await.unwrap();
            store.destroy(&HandleTarget::Cache("m2".into()), "x", &state).await.unwrap();
        }
        assert!(!dir.exists());
        assert!(kept.join("file").exists());
    }

    #[tokio::test]
    async fn a_handle_whose_label_was_changed_or_taken_away_is_left_alone() {
        let root = tempfile::tempdir().unwrap();
        let (state, store) = store(root.path());
        let own = node_id().to_string();
        let dir = create(&store, Some(&own));
        let (cache, label) = (store.caches.join("m2"), store.cache_labels.join("m2"));
        fs::create_dir(&cache).unwrap();
        let (alloc, named) = (HandleTarget::Alloc(alloc_id(0)), HandleTarget::Cache("m2".into()));
        for found in [None, Some("9-01JD0000000000000000000009")] {
            let _ = (fs::remove_file(dir.join("label")), fs::remove_file(&label));
            if let Some(other) = found {
                fs::write(dir.join("label"), other).unwrap();
                fs::write(&label, other).unwrap();
            }
            let said = store.destroy(&alloc, &own, &state).await.unwrap_err().to_string();
            assert!(said.contains(found.unwrap_or("no label")), "{said}");
            store.destroy(&named, &own, &state).await.unwrap_err();
            assert!(dir.join("work/deep/file").exists() && cache.exists());
        }
        // A handle that still has the reported label is destroyed.
        store.destroy(&alloc, "9-01JD0000000000000000000009", &state).await.unwrap();
        store.destroy(&named, "9-01JD0000000000000000000009", &state).await.unwrap();
        assert!(!dir.exists() && !cache.exists() && !label.exists());
    }

    #[tokio::test]
    async fn a_destruction_that_was_killed_half_way_is_finished_by_the_next_agent() {
        let root = tempfile::tempdir().unwrap();
        let (state, store) = store(root.path());
        let own = node_id().to_string();
        // The agent is killed after it renamed a cache, twice: the first leftover does not keep the second cache from being
        // renamed.
        for n in 0..2 {
            fs::create_dir(store.caches.join("m2")).unwrap();
            fs::write(store.caches.join("m2/file"), n.to_string()).unwrap();
            fs::write(store.cache_labels.join("m2"), &own).unwrap();
            let taken = store.take_cache("m2", &own).unwrap().unwrap();
            assert_eq!(fs::read_to_string(taken.taken.join("file")).unwrap(), n.to_string());
            assert!(!store.caches.join("m2").exists() && !store.cache_labels.join("m2").exists());
        }
        // The agent is killed while it removes the directory of an alloc: the label is removed last, so the alloc is still listed.
        let dir = create(&store, Some(&own));
        remove_tree(&dir.join("work")).unwrap();
        let listed = |list: HandleList| list.handles.into_iter().map(|h| h.handle).collect::<Vec<_>>();
        assert_eq!(listed(store.list()), [alloc_id(0).to_string()]);
        store.remove_leftovers().await;
        store.destroy(&HandleTarget::Alloc(alloc_id(0)), &own, &state).await.unwrap();
        assert_eq!(fs::read_dir(&store.caches).unwrap().count(), 0);
        assert!(!dir.exists() && listed(store.list()).is_empty());
    }

    #[test]
    fn the_label_is_removed_last() {
        let root = tempfile::tempdir().unwrap();
        let (_state, store) = store(root.path());
        let dir = create(&store, Some("x"));
        // A directory with the name of the label makes the last step fail.
        fs::remove_file(dir.join("label")).unwrap();
        fs::create_dir(dir.join("label")).unwrap();
        assert!(remove_labelled(&dir).is_err());
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 1, "everything else was removed before");
    }
}
