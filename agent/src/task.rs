//! The directory of one alloc: what stands in which file.
//!
//! ```text
//! allocs/{alloc_id}/label       the node id, written when the directory is made
//!                   task.json   what to run, written before anything is started
//!                   started     which supervisor runs it: made once, by whoever may start it
//!                   stop        why it is to stop, if it is
//!                   work/       where the command runs
//!                   output      what it wrote
//!                   supervisor.log  what went wrong with its supervisor, if anything
//!                   exit.json   how it ended: made once
//!                   reserve     room for that on a full disk, while it runs
//! ```
//!
//! Guarantees: `started` and `exit.json` are each made exactly once, whoever races for them,
//! and appear whole. So a command is run at most once, and has one end.
//! Does not: start, stop or look at processes.

use crate::config::Runtime;
use crate::durable;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use shared::ids::{AllocId, NodeId};
use shared::time::Time;
use shared::wire::AllocOrder;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// What a supervisor needs to know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Task {
    /// The node it runs on.
    pub node_id: NodeId,
    /// As ordered.
    pub order: AllocOrder,
    /// How it is run.
    pub runtime: Runtime,
    /// As whom it is run; as the agent itself if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job_user: Option<String>,
    /// The boot it is started in.
    pub boot_id: String,
    /// Where its caches are: name and directory.
    pub caches: Vec<(String, PathBuf)>,
}

/// Who runs it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Started {
    /// The supervisor, which leads a session of its own; 0 for nobody, ever.
    pub pid: i32,
    /// When that process started, in clock ticks since boot.
    pub start_ticks: u64,
    /// In which boot.
    pub boot_id: String,
}

/// How it ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    /// 128 + the signal's number for a signal; absent if it never ran to an end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// Why, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// When it started, by the node's own clock: for people only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Time>,
    /// When it ended, by the node's own clock: for people only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Time>,
}

impl Exit {
    /// An end without an exit code.
    pub fn without_code(message: impl Into<String>) -> Self {
        Self { message: Some(message.into()), ..Self::default() }
    }
}

/// The directory of one alloc.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllocDir(PathBuf);

impl AllocDir {
    /// The directory of this alloc below `allocs`.
    pub fn of(allocs: &Path, id: AllocId) -> Self {
        Self(allocs.join(id.to_string()))
    }

    /// The directory at this path.
    pub const fn at(path: PathBuf) -> Self {
        Self(path)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Where the command runs.
    pub fn work(&self) -> PathBuf {
        self.0.join("work")
    }

    /// What the command wrote.
    pub fn output(&self) -> PathBuf {
        self.0.join("output")
    }

    /// Makes the directory, whole or not at all, unless it exists. What an earlier boot left without
    /// starting it becomes this one's.
    pub fn create(&self, task: &Task) -> io::Result<()> {
        if self.0.exists() {
            let left = self.task()?.is_some_and(|t| t.boot_id != task.boot_id) && self.started()?.is_none();
            return if left { durable::replace(&self.0.join("task.json"), &to_json(task)?) } else { Ok(()) };
        }
        let id = task.order.alloc_id;
        let temp = self.0.with_file_name(format!(".new-{id}"));
        match fs::remove_dir_all(&temp) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        fs::create_dir(&temp)?;
        fs::create_dir(temp.join("work"))?;
        // The job's user passes through, but sees only what it may.
        fs::set_permissions(&temp, fs::Permissions::from_mode(0o711))?;
        durable::replace(&temp.join("label"), task.node_id.to_string().as_bytes())?;
        durable::replace(&temp.join("task.json"), &to_json(task)?)?;
        fs::rename(&temp, &self.0)?;
        self.0.parent().map_or(Ok(()), durable::sync_dir)
    }

    /// What to run.
    pub fn task(&self) -> io::Result<Option<Task>> {
        self.read("task.json")
    }

    /// Becomes the only one that ever starts it. False: somebody else already is.
    pub fn claim(&self, by: &Started) -> io::Result<bool> {
        durable::create_once(&self.0.join("started"), &to_json(by)?)
    }

    /// Who started it.
    pub fn started(&self) -> io::Result<Option<Started>> {
        self.read("started")
    }

    /// Notes that it is to stop, and why.
    pub fn order_stop(&self, why: &str) -> io::Result<()> {
        durable::create_once(&self.0.join("stop"), why.as_bytes()).map(drop)
    }

    /// Why it is to stop, if it is.
    pub fn stop_reason(&self) -> Option<String> {
        fs::read_to_string(self.0.join("stop")).ok()
    }

    /// Writes down how it ended, unless that is known.
    pub fn end(&self, exit: &Exit) -> io::Result<()> {
        durable::create_once(&self.0.join("exit.json"), &to_json(exit)?).map(drop)
    }

    /// How it ended.
    pub fn exit(&self) -> io::Result<Option<Exit>> {
        self.read("exit.json")
    }

    /// The node id written on it when it was made.
    pub fn label(&self) -> Option<String> {
        fs::read_to_string(self.0.join("label")).ok().filter(|l| !l.is_empty())
    }

    fn read<T: DeserializeOwned>(&self, name: &str) -> io::Result<Option<T>> {
        match fs::read(self.0.join(name)) {
            Ok(bytes) => serde_json::from_slice(&bytes).map(Some).map_err(io::Error::from),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }
}

fn to_json<T: Serialize>(value: &T) -> io::Result<Vec<u8>> {
    serde_json::to_vec(value).map_err(io::Error::from)
}

/// Whether this can be the name of a cache: one plain path component.
pub fn is_cache_name(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    (1..=100).contains(&name.len()) && name.chars().all(plain) && !name.starts_with('.')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::testing::{node_id, order};

    #[test]
    fn what_an_earlier_boot_left_unstarted_is_started_in_this_one() {
        let allocs = tempfile::tempdir().unwrap();
        let task = |boot_id: &str| Task {
            node_id: node_id(),
            order: order(0, 1),
            runtime: Runtime::Process,
            job_user: None,
            boot_id: boot_id.to_owned(),
            caches: Vec::new(),
        };
        let dir = AllocDir::of(allocs.path(), task("").order.alloc_id);
        let boot = || dir.task().unwrap().unwrap().boot_id;
        dir.create(&task("boot-1")).unwrap();
        dir.create(&task("boot-2")).unwrap();
        assert_eq!(boot(), "boot-2");
        dir.claim(&Started { pid: 7, start_ticks: 1, boot_id: boot() }).unwrap();
        dir.create(&task("boot-3")).unwrap();
        assert_eq!(boot(), "boot-2", "it was started");
    }

    #[test]
    fn a_cache_name_cannot_lead_out_of_its_directory() {
        for good in ["m2", "cargo-registry", "a.b_c"] {
            assert!(is_cache_name(good), "{good}");
        }
        for bad in ["", ".", "..", ".hidden", "a/b", "../a", "a b", "é", &"x".repeat(101)] {
            assert!(!is_cache_name(bad), "{bad}");
        }
    }
}
