//! Lists the handles of this node (alloc directories, caches and containers), and destroys them.
//!
//! Guarantees: removes only directories directly in `allocs` and `caches`, containers with this node's label, and the
//! container that is named after an alloc; the label is removed last, so that a half-destroyed handle is still known
//! to be this node's. A handle that does not exist counts as destroyed.
//! Does not: decide what to destroy, or know which allocs are still needed (`protocol` does).

use crate::alloc_dir::{AllocDir, is_cache_name};
use crate::atomic_file::absent_is_fine;
use crate::data_dir::DataDir;
use crate::protocol::HandleList;
use crate::runtime::RuntimeKind;
use model::HandleKind;
use model::ids::{AllocId, NodeId};
use model::wire::ReportedHandle;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The prefix of the handle of a cache.
const CACHE_PREFIX: &str = "cache:";

/// What a handle names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HandleTarget {
    /// The directory of an alloc, and its container if it has one.
    Alloc(AllocId),
    /// A cache, by name.
    Cache(String),
    /// A container that is not named after an alloc.
    Container(String),
}

impl HandleTarget {
    /// What this handle names. `None` for text that could lead out of the data directory.
    pub fn parse(handle: &str) -> Option<Self> {
        if let Some(name) = handle.strip_prefix(CACHE_PREFIX) {
            return is_cache_name(name).then(|| Self::Cache(name.to_owned()));
        }
        if let Ok(id) = handle.parse() {
            return Some(Self::Alloc(id));
        }
        // The rule for cache names fits containers too: it allows every name that docker allows.
        is_cache_name(handle).then(|| Self::Container(handle.to_owned()))
    }
}

/// The handles of this node.
#[derive(Clone, Debug)]
pub struct HandleStore {
    /// The directory that has one directory for each alloc.
    pub allocs: PathBuf,
    caches: PathBuf,
    cache_labels: PathBuf,
    runtime: RuntimeKind,
    node_id: NodeId,
}

impl HandleStore {
    /// The handles in this data directory, and the containers of this runtime.
    pub fn new(data: &DataDir, runtime: RuntimeKind, node_id: NodeId) -> Self {
        let (allocs, caches, cache_labels) = (data.allocs(), data.caches(), data.cache_labels());
        Self { allocs, caches, cache_labels, runtime, node_id }
    }

    /// Lists every handle on this node.
    pub async fn list(&self) -> HandleList {
        let mut found = BTreeMap::new();
        let mut complete = true;
        let mut add = |handle: String, kind, label| {
            found.entry(handle.clone()).or_insert(ReportedHandle { handle, kind, label });
        };
        let results = [
            self.each_alloc(|name, label| add(name, HandleKind::Container, label)),
            self.each_cache(|name, label| add(format!("{CACHE_PREFIX}{name}"), HandleKind::Volume, label)),
        ];
        for error in results.into_iter().filter_map(Result::err) {
            tracing::warn!(%error, "cannot list all handles: the report is not complete");
            complete = false;
        }
        match self.runtime.list().await {
            Ok(containers) => containers.into_iter().for_each(|c| add(c.name, HandleKind::Container, Some(c.label))),
            Err(error) => {
                tracing::warn!(%error, "cannot list the containers: the report is not complete");
                complete = false;
            }
        }
        HandleList { handles: found.into_values().collect(), complete }
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

    fn each_cache(&self, mut add: impl FnMut(String, Option<String>)) -> io::Result<()> {
        for (name, _) in directories(&self.caches)? {
            let label = fs::read_to_string(self.cache_labels.join(&name)).ok().filter(|l| !l.is_empty());
            add(name, label);
        }
        Ok(())
    }

    /// Destroys one handle. A handle that does not exist counts as destroyed.
    pub async fn destroy(&self, target: &HandleTarget) -> io::Result<()> {
        match target {
            HandleTarget::Alloc(id) => {
                self.runtime.remove(&id.to_string()).await?;
                let dir = AllocDir::of(&self.allocs, *id).path().to_owned();
                blocking(move || remove_labelled(&dir)).await
            }
            HandleTarget::Cache(name) => {
                let (dir, label) = (self.caches.join(name), self.cache_labels.join(name));
                blocking(move || {
                    absent_is_fine(fs::remove_dir_all(&dir)).and_then(|()| absent_is_fine(fs::remove_file(&label)))
                })
                .await
            }
            HandleTarget::Container(name) => {
                let own_label = self.node_id.to_string();
                let containers = self.runtime.list().await?;
                if !containers.iter().any(|c| c.name == *name && c.label == own_label) {
                    let advice = "remove it by hand, or remove its label";
                    return Err(io::Error::other(format!("{name} was not made by this agent: {advice}")));
                }
                self.runtime.remove(name).await
            }
        }
    }
}

async fn blocking(work: impl FnOnce() -> io::Result<()> + Send + 'static) -> io::Result<()> {
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?
}

/// Removes the directory of an alloc, and its label last.
fn remove_labelled(dir: &Path) -> io::Result<()> {
    let entries = match fs::read_dir(dir) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other?,
    };
    for entry in entries {
        let entry = entry?;
        if entry.file_name() == "label" {
            continue;
        }
        // A symbolic link is removed, not followed.
        let removed =
            if entry.file_type()?.is_dir() { fs::remove_dir_all(entry.path()) } else { fs::remove_file(entry.path()) };
        absent_is_fine(removed)?;
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
    use crate::protocol::testing::{alloc_id, node_id};

    fn store(root: &Path) -> (DataDir, HandleStore) {
        let data = DataDir::open(root).unwrap();
        let store = HandleStore::new(&data, RuntimeKind::default(), node_id());
        (data, store)
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
        let (_data, store) = store(root.path());
        create(&store, Some("9-01JD0000000000000000000009"));
        fs::create_dir(store.caches.join("m2")).unwrap();
        fs::write(store.cache_labels.join("m2"), node_id().to_string()).unwrap();
        fs::create_dir(store.allocs.join(".new-x")).unwrap();
        fs::create_dir(store.allocs.join("cut-short")).unwrap();
        let HandleList { handles, complete } = store.list().await;
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
        let (_data, store) = store(root.path());
        create(&store, Some("x"));
        fs::remove_dir(&store.caches).unwrap();
        let HandleList { handles, complete } = store.list().await;
        assert_eq!((handles.len(), complete), (1, false));
    }

    #[tokio::test]
    async fn sw_07_no_handles_are_a_complete_list() {
        let root = tempfile::tempdir().unwrap();
        let (_data, store) = store(root.path());
        assert_eq!(store.list().await, HandleList { handles: Vec::new(), complete: true });
    }

    #[tokio::test]
    async fn sw_08_destroying_an_absent_handle_is_a_success() {
        let root = tempfile::tempdir().unwrap();
        let (_data, store) = store(root.path());
        let dir = create(&store, Some("x"));
        // A link to a directory that must stay.
        let kept = root.path().join("kept");
        fs::create_dir(&kept).unwrap();
        fs::write(kept.join("file"), "x").unwrap();
        std::os::unix::fs::symlink(&kept, dir.join("link")).unwrap();
        for _ in 0..2 {
            store.destroy(&HandleTarget::Alloc(alloc_id(0))).await.unwrap();
            store.destroy(&HandleTarget::Cache("m2".into())).await.unwrap();
        }
        assert!(!dir.exists());
        assert!(kept.join("file").exists());
    }

    #[test]
    fn the_label_is_removed_last() {
        let root = tempfile::tempdir().unwrap();
        let (_data, store) = store(root.path());
        let dir = create(&store, Some("x"));
        // A directory with the name of the label makes the last step fail.
        fs::remove_file(dir.join("label")).unwrap();
        fs::create_dir(dir.join("label")).unwrap();
        assert!(remove_labelled(&dir).is_err());
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 1, "everything else was removed before");
    }
}
