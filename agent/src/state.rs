//! The data directory: one state file, one lock, and where everything else lies.
//!
//! Guarantees: one agent at a time; a state that was loaded belongs to this node and this
//! boot, or starts from nothing.
//! Does not: keep how allocs ended; their own directories say so.

use crate::durable::{self, Reserve};
use crate::protocol::{Durable, LocalAlloc};
use crate::task::AllocDir;
use shared::ids::NodeId;
use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Set aside for the state file on a full disk: without it the node would have to fall silent, and nobody
/// could tell it to destroy what fills the disk.
const RESERVE_BYTES: usize = 1 << 20;

/// Why the data directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// Another agent has it.
    #[error("another agent uses {0}: end it first, or give this one its own --data-dir")]
    InUse(PathBuf),
    /// It cannot be made, read or written.
    #[error("cannot use the data directory {path}: {source}; it must be writable by the agent")]
    Io {
        /// What exactly.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// The data directory, locked.
#[derive(Debug)]
pub struct DataDir {
    root: PathBuf,
    reserve: Reserve,
    /// Held while the agent lives; the kernel lets go of it, however it ends.
    _lock: File,
}

impl DataDir {
    /// Makes what is missing and takes the lock.
    pub fn open(root: &Path) -> Result<Self, StateError> {
        let at = |path: &Path| {
            let path = path.to_owned();
            move |source| StateError::Io { path, source }
        };
        // The job's user passes through to its own directories and sees no others.
        let make = |path: &Path| fs::DirBuilder::new().recursive(true).mode(0o711).create(path).map_err(at(path));
        make(root)?;
        // Supervisors and commands start from other directories.
        let root = root.canonicalize().map_err(at(root))?;
        let lock_path = root.join("lock");
        let lock = File::create(&lock_path).map_err(at(&lock_path))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(StateError::InUse(root)),
            Err(TryLockError::Error(source)) => return Err(StateError::Io { path: lock_path, source }),
        }
        let reserve = Reserve::make(root.join("reserve"), RESERVE_BYTES);
        let dir = Self { root, reserve, _lock: lock };
        for path in [dir.allocs(), dir.caches(), dir.cache_labels()] {
            make(&path)?;
            fs::set_permissions(&path, fs::Permissions::from_mode(0o711)).map_err(at(&path))?;
        }
        Ok(dir)
    }

    /// The directories of the allocs, by alloc id.
    pub fn allocs(&self) -> PathBuf {
        self.root.join("allocs")
    }

    /// The caches, by name.
    pub fn caches(&self) -> PathBuf {
        self.root.join("caches")
    }

    /// The node ids written on the caches, beside them: the caches' content is the jobs'.
    pub fn cache_labels(&self) -> PathBuf {
        self.root.join("cache-labels")
    }

    fn state_file(&self) -> PathBuf {
        self.root.join("state.json")
    }

    /// Puts `state` on disk.
    pub fn save(&self, state: &Durable) -> Result<(), StateError> {
        let path = self.state_file();
        let written = serde_json::to_vec(state).map_err(io::Error::from);
        let written = written.and_then(|bytes| self.reserve.behind(|| durable::replace(&path, &bytes)));
        written.map_err(|source| StateError::Io { path, source })
    }

    /// What this node knew when its agent ended, fit for this boot.
    pub fn load(&self, node_id: NodeId, boot_id: &str) -> Result<Durable, StateError> {
        let path = self.state_file();
        let found = match fs::read(&path) {
            Ok(bytes) => match serde_json::from_slice::<Durable>(&bytes) {
                Ok(state) if state.node_id == node_id => Some(state),
                Ok(state) => {
                    tracing::warn!(of = %state.node_id, "the state is another node's (a cloned disk?): starting anew");
                    None
                }
                Err(error) => {
                    tracing::warn!(%error, path = %path.display(), "the state cannot be read: starting anew");
                    None
                }
            },
            Err(e) if e.kind() == io::ErrorKind::NotFound => None,
            Err(source) => return Err(StateError::Io { path, source }),
        };
        let mut state = found.unwrap_or_else(|| self.adopt(node_id, boot_id));
        if state.boot_id != boot_id {
            boot_id.clone_into(&mut state.boot_id);
            state.register_anew();
            // What ran is gone with the old boot: not listed, so the control plane counts it
            // lost. What ended before is still to be told.
            let allocs = self.allocs();
            state.allocs.retain(|id, _| matches!(AllocDir::of(&allocs, *id).exit(), Ok(Some(_))));
        }
        Ok(state)
    }

    /// A state from nothing but the alloc directories of this node: the state file was lost,
    /// the work was not.
    fn adopt(&self, node_id: NodeId, boot_id: &str) -> Durable {
        let mut state = Durable::new(node_id, boot_id.to_owned());
        let entries = fs::read_dir(self.allocs()).into_iter().flatten().flatten();
        for dir in entries.map(|e| AllocDir::at(e.path())) {
            let ours = dir.label().as_deref() == Some(node_id.to_string().as_str());
            if ours {
                // The directories tell what ran here.
                state.wiped_at = 0;
            }
            let started = dir.started().ok().flatten();
            let of_this_boot = started.is_some_and(|s| s.boot_id == boot_id);
            let ended = matches!(dir.exit(), Ok(Some(_)));
            if let (true, Ok(Some(task))) = (ours && (of_this_boot || ended), dir.task()) {
                state.allocs.insert(task.order.alloc_id, LocalAlloc::new(task.order));
            }
        }
        state
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Runtime;
    use crate::protocol::testing::{alloc_id, node_id, order};
    use crate::task::{Exit, Started, Task};

    fn alloc(data: &DataDir, copy: u32, exit: Option<Exit>) {
        let task = Task {
            node_id: node_id(),
            order: order(copy, 1),
            runtime: Runtime::Process,
            job_user: None,
            boot_id: "boot-1".into(),
            caches: Vec::new(),
        };
        let dir = AllocDir::of(&data.allocs(), alloc_id(copy));
        dir.create(&task).unwrap();
        assert!(dir.claim(&Started { pid: 1, start_ticks: 1, boot_id: "boot-1".into() }).unwrap());
        if let Some(exit) = exit {
            dir.end(&exit).unwrap();
        }
    }

    fn saved(data: &DataDir) -> Durable {
        let mut state = Durable::new(node_id(), "boot-1".into());
        state.incarnation = Some("inc-1".into());
        state.as_of = 9;
        for copy in [0, 1] {
            state.allocs.insert(alloc_id(copy), LocalAlloc::new(order(copy, 1)));
        }
        alloc(data, 0, None);
        alloc(data, 1, Some(Exit::default()));
        data.save(&state).unwrap();
        state
    }

    #[test]
    fn one_agent_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let first = DataDir::open(dir.path()).unwrap();
        assert!(matches!(DataDir::open(dir.path()), Err(StateError::InUse(_))));
        drop(first);
        DataDir::open(dir.path()).unwrap();
    }

    #[test]
    fn the_same_boot_knows_what_it_knew() {
        let dir = tempfile::tempdir().unwrap();
        let data = DataDir::open(dir.path()).unwrap();
        let state = saved(&data);
        assert_eq!(data.load(node_id(), "boot-1").unwrap(), state);
    }

    #[test]
    fn after_a_reboot_what_ran_is_not_listed_and_what_ended_is() {
        let dir = tempfile::tempdir().unwrap();
        let data = DataDir::open(dir.path()).unwrap();
        saved(&data);
        let state = data.load(node_id(), "boot-2").unwrap();
        assert_eq!((state.incarnation, state.as_of, state.report_no), (None, 0, 0));
        assert_eq!(state.allocs.keys().copied().collect::<Vec<_>>(), [alloc_id(1)]);
    }

    #[test]
    fn another_nodes_state_is_not_ours() {
        let dir = tempfile::tempdir().unwrap();
        let data = DataDir::open(dir.path()).unwrap();
        saved(&data);
        let other = "3-01JD0000000000000000000001".parse().unwrap();
        let state = data.load(other, "boot-1").unwrap();
        assert_eq!(state, Durable::new(other, "boot-1".into()));
    }

    #[test]
    fn a_lost_or_broken_state_file_registers_anew_and_keeps_the_work() {
        let dir = tempfile::tempdir().unwrap();
        let data = DataDir::open(dir.path()).unwrap();
        saved(&data);
        fs::write(data.state_file(), b"{").unwrap();
        let state = data.load(node_id(), "boot-1").unwrap();
        assert_eq!((state.incarnation, state.as_of), (None, 0));
        assert_eq!(state.allocs.len(), 2);
        // The directories alone, after a reboot: only what ended.
        fs::remove_file(data.state_file()).unwrap();
        assert_eq!(data.load(node_id(), "boot-2").unwrap().allocs.len(), 1);
    }
}
