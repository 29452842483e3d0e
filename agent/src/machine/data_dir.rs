//! The data directory: the state file, the lock, and the paths of everything else.
//!
//! Guarantees: only one agent uses the directory at a time; a loaded state belongs to this node and this boot, or is
//! new.
//! Does not: store how allocs ended; the directory of each alloc does.

use super::atomic_file::{self, Spare, if_there};
use super::locks::{is_taken, lock_file};
use crate::protocol::{Durable, LocalAlloc};
use crate::work::alloc_dir::{AllocDir, GPU_SAMPLES};
use anyhow::{anyhow, ensure};
use model::NodeId;
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The size of the state file and of its spare file. Without this reserved space a node with a full disk could not save orders. The
/// node would have to stay silent, and the control plane could not tell it to stop the job that fills the disk.
const STATE_BYTES: usize = 128 << 10;

/// Which node of its batch the instance is: the content of `bound.json`.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bound {
    pub instance_id: String,
    pub node_id: NodeId,
}

pub struct DataDir {
    root: PathBuf,
    spare: Spare,
    /// Held while the agent runs. The kernel releases it, however the agent ends.
    _lock: File,
}

impl DataDir {
    /// Creates the missing directories and takes the lock.
    pub fn open(root: &Path) -> anyhow::Result<Self> {
        // With this mode the job's user can reach its own directories, but cannot list the others.
        let make = |path: &Path| fs::DirBuilder::new().recursive(true).mode(0o711).create(path).map_err(unusable(path));
        make(root)?;
        // An absolute path: supervisors and commands run in other directories.
        let root = root.canonicalize().map_err(unusable(root))?;
        let lock_path = root.join("lock");
        let lock = lock_file(&lock_path).map_err(unusable(&lock_path))?;
        ensure!(
            is_taken(lock.try_lock()).map_err(unusable(&lock_path))?,
            "another agent uses {}: stop that agent first, or give this one another --data-dir",
            root.display()
        );
        let spare = Spare::new(root.join("state.spare"), STATE_BYTES);
        let dir = Self { root, spare, _lock: lock };
        // Another program may have made the directory, or an earlier agent.
        for (path, mode) in
            [(dir.root.clone(), 0o711), (dir.allocs(), 0o711), (dir.caches(), 0o711), (dir.cache_labels(), 0o700)]
        {
            make(&path)?;
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).map_err(unusable(&path))?;
        }
        Ok(dir)
    }

    pub fn allocs(&self) -> PathBuf {
        self.root.join("allocs")
    }

    pub fn caches(&self) -> PathBuf {
        self.root.join("caches")
    }

    /// The directory that has one file for each cache, with the node id. The file is not in the cache, because jobs
    /// write there.
    pub fn cache_labels(&self) -> PathBuf {
        self.root.join("cache-labels")
    }

    /// The directory that has the inputs of jobs, by their digests.
    pub fn inputs(&self) -> PathBuf {
        self.root.join("inputs")
    }

    /// The directory that has the output of ended allocs whose own directories were destroyed.
    pub fn outputs(&self) -> PathBuf {
        self.root.join("outputs")
    }

    pub fn gpu_samples(&self) -> PathBuf {
        self.root.join(GPU_SAMPLES)
    }

    fn state_file(&self) -> PathBuf {
        self.root.join("state.json")
    }

    pub fn save(&self, state: &Durable) -> anyhow::Result<()> {
        write(self.state_file(), state, |path, bytes| self.spare.replace(path, bytes))
    }

    fn bound_file(&self) -> PathBuf {
        self.root.join("bound.json")
    }

    /// Which node the instance is, as an earlier agent on this disk learned it. An invalid file counts as absent.
    pub fn bound(&self) -> anyhow::Result<Option<Bound>> {
        Ok(read(&self.bound_file())?.and_then(|bytes| serde_json::from_slice(&bytes).ok()))
    }

    pub fn save_bound(&self, bound: &Bound) -> anyhow::Result<()> {
        write(self.bound_file(), bound, atomic_file::replace)
    }

    /// The state that the last agent of this node saved, adapted to this boot.
    pub fn load(&self, node_id: NodeId, boot_id: &str) -> anyhow::Result<Durable> {
        let mut state = self.read_state(node_id)?.unwrap_or_else(|| self.adopt(node_id, boot_id));
        if state.boot_id != boot_id {
            boot_id.clone_into(&mut state.boot_id);
            state.register_anew();
            // Allocs that ran ended with the old boot, and their ends are still to be reported. An alloc that was not started is not
            // listed, so the control plane counts it as lost.
            let allocs = self.allocs();
            state.allocs.retain(|id, _| has_begun(&AllocDir::of(&allocs, *id)));
        }
        Ok(state)
    }

    /// The state file, if it is valid and belongs to this node.
    fn read_state(&self, node_id: NodeId) -> anyhow::Result<Option<Durable>> {
        let path = self.state_file();
        let Some(bytes) = read(&path)? else { return Ok(None) };
        match serde_json::from_slice::<Durable>(&bytes) {
            Ok(state) if state.node_id == node_id => return Ok(Some(state)),
            Ok(state) => {
                let other_node = state.node_id;
                tracing::warn!(%other_node, "the state file belongs to another node (a cloned disk?): ignored");
            }
            Err(error) => tracing::warn!(%error, path = %path.display(), "the state file is not valid: ignored"),
        }
        Ok(None)
    }

    /// A state made from the alloc directories of this node, because the state file is lost.
    fn adopt(&self, node_id: NodeId, boot_id: &str) -> Durable {
        let mut state = Durable::new(node_id, boot_id.to_owned());
        let entries = fs::read_dir(self.allocs()).into_iter().flatten().flatten();
        for dir in entries.map(|e| AllocDir::at(e.path())) {
            let ours = dir.label().as_deref() == Some(node_id.to_string().as_str());
            if ours {
                // The disk was not wiped: the directories show which allocs ran here.
                state.wiped_at = 0;
            }
            if let (true, Ok(Some(task))) = (ours && has_begun(&dir), dir.task()) {
                state.allocs.insert(task.order.alloc_id, LocalAlloc::new(task.order));
            }
        }
        state
    }
}

/// Whether a supervisor has claimed the alloc in this directory, or it has ended.
fn has_begun(dir: &AllocDir) -> bool {
    matches!(dir.start_record(), Ok(Some(_))) || matches!(dir.exit_record(), Ok(Some(_)))
}

fn read(path: &Path) -> anyhow::Result<Option<Vec<u8>>> {
    if_there(fs::read(path)).map_err(unusable(path))
}

fn write<T: Serialize>(
    path: PathBuf,
    value: &T,
    replace: impl FnOnce(&Path, &[u8]) -> io::Result<()>,
) -> anyhow::Result<()> {
    let written = serde_json::to_vec(value).map_err(io::Error::from).and_then(|bytes| replace(&path, &bytes));
    written.map_err(unusable(&path))
}

fn unusable(path: &Path) -> impl FnOnce(io::Error) -> anyhow::Error {
    let path = path.display();
    move |error| anyhow!("cannot use the data directory {path}: {error}; it must be writable by the agent")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::testing::{alloc_id, node_id, order, task};
    use crate::work::alloc_dir::{ExitRecord, StartRecord};

    fn add_alloc(data: &DataDir, copy: u32, exit: Option<ExitRecord>) {
        let dir = AllocDir::of(&data.allocs(), alloc_id(copy));
        dir.create(&task(order(copy, 1))).unwrap();
        assert!(dir.claim(&StartRecord { pid: 1, start_ticks: 1, boot_id: "boot-1".into() }).unwrap());
        if let Some(exit) = exit {
            dir.write_exit_record(&exit).unwrap();
        }
    }

    fn save_state(data: &DataDir) -> Durable {
        let mut state = Durable::new(node_id(), "boot-1".into());
        state.incarnation = Some("inc-1".into());
        state.as_of = 9;
        for copy in [0, 1] {
            state.allocs.insert(alloc_id(copy), LocalAlloc::new(order(copy, 1)));
        }
        add_alloc(data, 0, None);
        add_alloc(data, 1, Some(ExitRecord::of(model::EndCause::Exited { code: 0 })));
        data.save(&state).unwrap();
        state
    }

    #[test]
    fn two_agents_cannot_use_one_data_directory() {
        let dir = tempfile::tempdir().unwrap();
        let first = DataDir::open(dir.path()).unwrap();
        assert!(DataDir::open(dir.path()).err().unwrap().to_string().starts_with("another agent uses"));
        drop(first);
        DataDir::open(dir.path()).unwrap();
    }

    #[test]
    fn in_the_same_boot_the_state_is_loaded_as_it_was_saved() {
        let dir = tempfile::tempdir().unwrap();
        let data = DataDir::open(dir.path()).unwrap();
        let state = save_state(&data);
        assert_eq!(data.load(node_id(), "boot-1").unwrap(), state);
    }

    #[test]
    fn after_a_reboot_what_was_not_started_is_not_listed() {
        let dir = tempfile::tempdir().unwrap();
        let data = DataDir::open(dir.path()).unwrap();
        let mut state = save_state(&data);
        state.allocs.insert(alloc_id(2), LocalAlloc::new(order(2, 1)));
        data.save(&state).unwrap();
        let state = data.load(node_id(), "boot-2").unwrap();
        assert_eq!((state.incarnation, state.as_of, state.report_no), (None, 0, 0));
        assert_eq!(state.allocs.keys().copied().collect::<Vec<_>>(), [alloc_id(0), alloc_id(1)]);
    }

    #[test]
    fn the_state_of_another_node_is_not_used() {
        let dir = tempfile::tempdir().unwrap();
        let data = DataDir::open(dir.path()).unwrap();
        save_state(&data);
        let other = "3-01JD0000000000000000000001".parse().unwrap();
        let state = data.load(other, "boot-1").unwrap();
        assert_eq!(state, Durable::new(other, "boot-1".into()));
    }

    #[test]
    fn without_a_valid_state_file_the_node_registers_anew_and_keeps_its_allocs() {
        let dir = tempfile::tempdir().unwrap();
        let data = DataDir::open(dir.path()).unwrap();
        save_state(&data);
        fs::write(data.state_file(), b"{").unwrap();
        let state = data.load(node_id(), "boot-1").unwrap();
        assert_eq!((state.incarnation, state.as_of), (None, 0));
        assert_eq!(state.allocs.len(), 2);
    }
}
