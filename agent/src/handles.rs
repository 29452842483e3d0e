//! What exists on this node that must one day be destroyed, and destroying it.
//!
//! Guarantees: only directories directly below `allocs` and `caches`, and containers with
//! this node's label, are ever removed; the label goes last, so that what is half removed is
//! still known as ours. What is gone already counts as destroyed.
//! Does not: decide what to destroy, or know which allocs still count (`protocol` does).

use crate::config::Runtime;
use crate::docker;
use crate::state::DataDir;
use crate::task::{AllocDir, is_cache_name};
use shared::ids::{AllocId, NodeId};
use shared::model::HandleKind;
use shared::wire::ReportedHandle;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// What the handle of a cache begins with.
const CACHE: &str = "cache:";

/// What a handle names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// The directory, and perhaps the container, of an alloc.
    Alloc(AllocId),
    /// A cache.
    Cache(String),
    /// A container that is named otherwise.
    Container(String),
}

impl Target {
    /// What this name means; none for one that could lead anywhere else.
    pub fn parse(handle: &str) -> Option<Self> {
        if let Some(name) = handle.strip_prefix(CACHE) {
            return is_cache_name(name).then(|| Self::Cache(name.to_owned()));
        }
        if let Ok(id) = handle.parse() {
            return Some(Self::Alloc(id));
        }
        // Docker's own rule for names is a part of ours for caches.
        is_cache_name(handle).then(|| Self::Container(handle.to_owned()))
    }
}

/// Where handles are.
#[derive(Clone, Debug)]
pub struct Places {
    /// Directories of allocs.
    pub allocs: PathBuf,
    caches: PathBuf,
    cache_labels: PathBuf,
    runtime: Runtime,
    node_id: NodeId,
}

impl Places {
    /// The places of this data directory.
    pub fn new(data: &DataDir, runtime: Runtime, node_id: NodeId) -> Self {
        let (allocs, caches, cache_labels) = (data.allocs(), data.caches(), data.cache_labels());
        Self { allocs, caches, cache_labels, runtime, node_id }
    }

    /// Every handle on this node, and whether that is surely all of them.
    pub async fn list(&self) -> (Vec<ReportedHandle>, bool) {
        let mut found = BTreeMap::new();
        let mut complete = true;
        let mut add = |handle: String, kind, label| {
            found.entry(handle.clone()).or_insert(ReportedHandle { handle, kind, label });
        };
        let results = [
            self.each_alloc(|name, label| add(name, HandleKind::Container, label)),
            self.each_cache(|name, label| add(format!("{CACHE}{name}"), HandleKind::Volume, label)),
        ];
        for error in results.into_iter().filter_map(Result::err) {
            tracing::warn!(%error, "not all handles can be listed: the report says so");
            complete = false;
        }
        if self.runtime == Runtime::Docker {
            match docker::list().await {
                Ok(containers) => {
                    containers.into_iter().for_each(|(name, label)| add(name, HandleKind::Container, Some(label)));
                }
                Err(error) => {
                    tracing::warn!(%error, "containers cannot be listed: the report says so");
                    complete = false;
                }
            }
        }
        (found.into_values().collect(), complete)
    }

    fn each_alloc(&self, mut add: impl FnMut(String, Option<String>)) -> io::Result<()> {
        for (name, path) in directories(&self.allocs)? {
            let dir = AllocDir::at(path);
            let label = dir.label();
            // An empty one is what a destroy that was cut short leaves last; not empty, this
            // fails and does nothing.
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

    /// Destroys one. Gone already is as good.
    pub async fn destroy(&self, target: &Target) -> io::Result<()> {
        match target {
            Target::Alloc(id) => {
                if self.runtime == Runtime::Docker {
                    docker::remove(&id.to_string()).await?;
                }
                let dir = AllocDir::of(&self.allocs, *id).path().to_owned();
                blocking(move || remove_labelled(&dir)).await
            }
            Target::Cache(name) => {
                let (dir, label) = (self.caches.join(name), self.cache_labels.join(name));
                blocking(move || {
                    gone_is_fine(fs::remove_dir_all(&dir)).and_then(|()| gone_is_fine(fs::remove_file(&label)))
                })
                .await
            }
            Target::Container(name) if self.runtime == Runtime::Docker => {
                if docker::is_ours(name, self.node_id).await? {
                    docker::remove(name).await
                } else {
                    Err(not_ours(name))
                }
            }
            Target::Container(name) => Err(not_ours(name)),
        }
    }
}

fn not_ours(name: &str) -> io::Error {
    io::Error::other(format!("{name} is nothing that this agent made: remove it, or take its label away"))
}

async fn blocking(work: impl FnOnce() -> io::Result<()> + Send + 'static) -> io::Result<()> {
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?
}

/// Removes an alloc's directory, the label last.
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
        // A link is removed, not followed.
        let removed =
            if entry.file_type()?.is_dir() { fs::remove_dir_all(entry.path()) } else { fs::remove_file(entry.path()) };
        gone_is_fine(removed)?;
    }
    gone_is_fine(fs::remove_file(dir.join("label")))?;
    gone_is_fine(fs::remove_dir(dir))
}

fn gone_is_fine(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// The directories in `dir`, without those still being made.
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

    fn places(root: &Path) -> (DataDir, Places) {
        let data = DataDir::open(root).unwrap();
        let places = Places::new(&data, Runtime::Process, node_id());
        (data, places)
    }

    fn make(places: &Places, label: Option<&str>) -> PathBuf {
        let dir = places.allocs.join(alloc_id(0).to_string());
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
            assert_eq!(Target::parse(bad), None, "{bad:?}");
        }
        assert_eq!(Target::parse("cache:m2"), Some(Target::Cache("m2".into())));
        assert_eq!(Target::parse(&alloc_id(4).to_string()), Some(Target::Alloc(alloc_id(4))));
    }

    #[tokio::test]
    async fn what_exists_is_listed_with_the_label_it_was_made_with() {
        let root = tempfile::tempdir().unwrap();
        let (_data, places) = places(root.path());
        make(&places, Some("9-01JD0000000000000000000009"));
        fs::create_dir(places.caches.join("m2")).unwrap();
        fs::write(places.cache_labels.join("m2"), node_id().to_string()).unwrap();
        fs::create_dir(places.allocs.join(".new-x")).unwrap();
        fs::create_dir(places.allocs.join("cut-short")).unwrap();
        let (handles, complete) = places.list().await;
        let told: Vec<_> = handles.iter().map(|h| (h.handle.as_str(), h.kind, h.label.as_deref().unwrap())).collect();
        let (alloc, own) = (alloc_id(0).to_string(), node_id().to_string());
        let want = [
            (alloc.as_str(), HandleKind::Container, "9-01JD0000000000000000000009"),
            ("cache:m2", HandleKind::Volume, own.as_str()),
        ];
        assert_eq!(told, want);
        assert!(complete);
    }

    #[tokio::test]
    async fn sw_03_a_failed_listing_is_not_called_complete() {
        let root = tempfile::tempdir().unwrap();
        let (_data, places) = places(root.path());
        make(&places, Some("x"));
        fs::remove_dir(&places.caches).unwrap();
        let (handles, complete) = places.list().await;
        assert_eq!((handles.len(), complete), (1, false));
    }

    #[tokio::test]
    async fn sw_07_no_handles_are_a_complete_list() {
        let root = tempfile::tempdir().unwrap();
        let (_data, places) = places(root.path());
        assert_eq!(places.list().await, (Vec::new(), true));
    }

    #[tokio::test]
    async fn sw_08_destroying_what_is_gone_is_a_success() {
        let root = tempfile::tempdir().unwrap();
        let (_data, places) = places(root.path());
        let dir = make(&places, Some("x"));
        // A link to something that must stay.
        let kept = root.path().join("kept");
        fs::create_dir(&kept).unwrap();
        fs::write(kept.join("file"), "x").unwrap();
        std::os::unix::fs::symlink(&kept, dir.join("link")).unwrap();
        for _ in 0..2 {
            places.destroy(&Target::Alloc(alloc_id(0))).await.unwrap();
            places.destroy(&Target::Cache("m2".into())).await.unwrap();
        }
        assert!(!dir.exists());
        assert!(kept.join("file").exists());
    }

    #[test]
    fn while_anything_is_left_the_label_is_left() {
        let root = tempfile::tempdir().unwrap();
        let (_data, places) = places(root.path());
        let dir = make(&places, Some("x"));
        // A directory in the place of the label makes the last step fail.
        fs::remove_file(dir.join("label")).unwrap();
        fs::create_dir(dir.join("label")).unwrap();
        assert!(remove_labelled(&dir).is_err());
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 1, "all else was removed before");
    }
}
