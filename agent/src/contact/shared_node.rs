//! The state of the node that all loops of the agent share.
//!
//! Guarantees: a change made through [`SharedNode::update`] is on disk before any loop sees it.
//! Does not: know the control plane, or processes.

use super::client::CallError;
use crate::machine::data_dir::DataDir;
use crate::protocol::{Durable, Node};
use model::ids::AllocId;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;
use tokio::time::Instant;

/// The node, its data directory, and the wake-ups between the loops.
#[derive(Debug)]
pub struct SharedNode {
    node: Mutex<Node>,
    data_dir: DataDir,
    /// Whether the last attempt to save failed.
    save_failed: AtomicBool,
    last_answer_at: Mutex<Instant>,
    /// The allocs whose output somebody follows, by the last answer.
    followed: Mutex<BTreeSet<AllocId>>,
    /// Wakes the loop of heartbeats: send one now.
    pub heartbeat_now: Notify,
    /// Wakes the loop of heartbeats: there may be an alloc to report.
    pub allocs_changed: Notify,
    /// Wakes the loop of handle reports: send one soon.
    pub handles_changed: Notify,
    /// Wakes the loop that stores outputs: an alloc has ended or is followed, or the instance will end.
    pub store_now: Notify,
}

impl SharedNode {
    pub fn new(node: Node, data_dir: DataDir) -> Self {
        Self {
            node: Mutex::new(node),
            data_dir,
            save_failed: AtomicBool::new(false),
            last_answer_at: Mutex::new(Instant::now()),
            followed: Mutex::default(),
            heartbeat_now: Notify::new(),
            allocs_changed: Notify::new(),
            handles_changed: Notify::new(),
            store_now: Notify::new(),
        }
    }

    pub fn read<T>(&self, read: impl FnOnce(&Node) -> T) -> T {
        read(&lock(&self.node))
    }

    /// Changes the node: first on disk, then in memory. If the change cannot be saved, nothing changes.
    pub fn update<T>(&self, change: impl FnOnce(&mut Node) -> T) -> anyhow::Result<T> {
        let mut node = lock(&self.node);
        let mut next = node.clone();
        let result = change(&mut next);
        if next.durable != node.durable {
            self.save(&next.durable)?;
        }
        *node = next;
        Ok(result)
    }

    /// Like `update`, for a caller that cannot handle a failure: logs the failure, and returns `None`.
    pub fn update_or_log<T>(&self, change: impl FnOnce(&mut Node) -> T) -> Option<T> {
        self.update(change).inspect_err(|error| tracing::error!(%error, "cannot save the state of the node")).ok()
    }

    /// Stops all allocs on the agent's own decision, and returns how many were not stopping before. The allocs stop
    /// even if this decision cannot be saved, because an agent that starts again would decide the same.
    pub fn stop_all(&self, why: &str) -> usize {
        let mut node = lock(&self.node);
        let stopped = node.stop_all(why);
        if stopped > 0
            && let Err(error) = self.save(&node.durable)
        {
            tracing::error!(%error, "cannot save that all work stops: stopping it all the same");
        }
        stopped
    }

    fn save(&self, durable: &Durable) -> anyhow::Result<()> {
        let saved = self.data_dir.save(durable);
        self.save_failed.store(saved.is_err(), Ordering::Relaxed);
        saved
    }

    /// Checks whether new orders can be saved. If the last attempt to save failed, saves again.
    pub fn check_saving(&self) -> anyhow::Result<()> {
        if self.save_failed.load(Ordering::Relaxed) { self.save(&lock(&self.node).durable) } else { Ok(()) }
    }

    /// Notes whose output is followed now.
    pub fn follow(&self, followed: BTreeSet<AllocId>) {
        let before = std::mem::replace(&mut *lock(&self.followed), followed.clone());
        if !followed.is_subset(&before) {
            self.store_now.notify_one();
        }
    }

    pub fn followed(&self) -> BTreeSet<AllocId> {
        lock(&self.followed).clone()
    }

    pub fn answered(&self) {
        *lock(&self.last_answer_at) = Instant::now();
    }

    pub fn last_answer_at(&self) -> Instant {
        *lock(&self.last_answer_at)
    }
}

/// A change that cannot be saved counts as a failed call.
impl From<anyhow::Error> for CallError {
    fn from(error: anyhow::Error) -> Self {
        Self::failed(error.to_string())
    }
}

/// Ignores poisoning, because a holder that panicked left a valid value.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
