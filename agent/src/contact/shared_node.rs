//! The state of the node that all loops of the agent share.
//!
//! Guarantees: a change made through [`SharedNode::update`] is on disk before any loop sees it; no loop stands still while another one
//! waits for the disk.
//! Does not: know the control plane, or processes.

use super::client::CallError;
use crate::machine::blocking::blocking;
use crate::machine::data_dir::DataDir;
use crate::protocol::{Durable, Node};
use model::AllocId;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;
use tokio::time::Instant;

/// The node, its data directory, and the wake-ups between the loops.
pub struct SharedNode {
    node: Mutex<Node>,
    /// A change of the node holds this from its first read until the change is in memory. A thread of its own holds it while it writes:
    /// so a caller that goes away meanwhile lets no later state get to the disk before its own.
    data_dir: Arc<tokio::sync::Mutex<DataDir>>,
    /// Whether the last attempt to save failed.
    save_failed: AtomicBool,
    last_answer_at: Mutex<Instant>,
    /// The allocs whose output somebody follows, by the last answer.
    followed: Mutex<BTreeSet<AllocId>>,
    /// Wakes the loop that starts and stops allocs: there are other orders, or an alloc has ended.
    pub reconcile_now: Notify,
    /// Wakes the loop of heartbeats: send one now.
    pub heartbeat_now: Notify,
    /// Wakes the loop of heartbeats: there may be an alloc to report.
    pub allocs_changed: Notify,
    /// Wakes the loop of handle reports: send one soon.
    pub handles_changed: Notify,
    /// Wakes the loop that stores outputs: an alloc has ended or is followed, or the instance will end.
    pub store_now: Notify,
}

/// The right to change the node.
type NodeWriter = tokio::sync::OwnedMutexGuard<DataDir>;

impl SharedNode {
    pub fn new(node: Node, data_dir: DataDir) -> Self {
        Self {
            node: Mutex::new(node),
            data_dir: Arc::new(tokio::sync::Mutex::new(data_dir)),
            save_failed: AtomicBool::new(false),
            last_answer_at: Mutex::new(Instant::now()),
            followed: Mutex::default(),
            reconcile_now: Notify::new(),
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
    pub async fn update<T>(&self, change: impl FnOnce(&mut Node) -> T) -> anyhow::Result<T> {
        let writer = Arc::clone(&self.data_dir).lock_owned().await;
        let mut next = self.read(Node::clone);
        let before = next.durable.clone();
        let result = change(&mut next);
        let _writer = if next.durable == before { writer } else { self.save(writer, &next.durable).await? };
        let has_other_orders = next.durable.allocs != before.allocs;
        *lock(&self.node) = next;
        if has_other_orders {
            self.reconcile_now.notify_one();
        }
        Ok(result)
    }

    /// Like `update`, for a caller that cannot handle a failure: logs the failure, and returns `None`.
    pub async fn update_or_log<T>(&self, change: impl FnOnce(&mut Node) -> T) -> Option<T> {
        let updated = self.update(change).await;
        updated.inspect_err(|error| tracing::error!(%error, "cannot save the state of the node")).ok()
    }

    /// Like `update_or_log`, for what the control plane should know at once: sends a heartbeat.
    pub async fn update_and_beat(&self, change: impl FnOnce(&mut Node)) {
        if self.update_or_log(change).await.is_some() {
            self.heartbeat_now.notify_one();
        }
    }

    /// Stops all allocs on the agent's own decision, and returns how many were not stopping before. The allocs stop
    /// even if this decision cannot be saved, because an agent that starts again would decide the same.
    pub async fn stop_all(&self, why: &str) -> usize {
        let writer = Arc::clone(&self.data_dir).lock_owned().await;
        let (stopped, durable) = {
            let mut node = lock(&self.node);
            (node.stop_all(why), node.durable.clone())
        };
        if stopped > 0
            && let Err(error) = self.save(writer, &durable).await
        {
            tracing::error!(%error, "cannot save that all work stops: stopping it all the same");
        }
        stopped
    }

    async fn save(&self, writer: NodeWriter, durable: &Durable) -> anyhow::Result<NodeWriter> {
        let durable = durable.clone();
        let saved = blocking(move || Ok(writer.save(&durable).map(|()| writer))).await?;
        self.save_failed.store(saved.is_err(), Ordering::Relaxed);
        saved
    }

    /// Checks whether new orders can be saved. If the last attempt to save failed, saves again.
    pub async fn check_saving(&self) -> anyhow::Result<()> {
        if self.save_failed.load(Ordering::Relaxed) {
            let writer = Arc::clone(&self.data_dir).lock_owned().await;
            self.save(writer, &self.read(|node| node.durable.clone())).await?;
        }
        Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Identity;
    use crate::protocol::testing::durable;
    use nix::sys::stat::Mode;
    use std::fs::{self, File};
    use std::os::unix::fs::OpenOptionsExt;
    use std::time::Duration;

    #[tokio::test]
    async fn while_a_change_waits_for_the_disk_nothing_else_waits_and_nobody_sees_the_change() {
        let root = tempfile::tempdir().unwrap();
        let data = DataDir::open(root.path()).unwrap();
        let state = SharedNode::new(Node::new(Identity { instance_id: "i-1".into(), address: None }, durable()), data);
        // To open a pipe without a reader takes as long as a disk that does not answer.
        let spare = root.path().join("state.spare");
        fs::remove_file(&spare).unwrap();
        nix::unistd::mkfifo(&spare, Mode::S_IRWXU).unwrap();
        let answers = spare.clone();
        let disk = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(500));
            File::open(answers).map(drop)
        });
        let began = Instant::now();
        let number = || state.read(|node| node.durable.report_no);
        let others = async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            (began.elapsed(), number())
        };
        let (updated, (elapsed, meanwhile)) = tokio::join!(state.update(|node| node.durable.report_no = 7), others);
        updated.unwrap();
        assert!(elapsed < Duration::from_millis(400), "{elapsed:?}");
        assert_eq!((meanwhile, number()), (0, 7));
        disk.join().unwrap().unwrap();
    }

    #[tokio::test]
    async fn a_caller_that_goes_away_while_its_change_is_saved_lets_no_later_change_overtake_it() {
        let root = tempfile::tempdir().unwrap();
        let data = DataDir::open(root.path()).unwrap();
        let state = SharedNode::new(Node::new(Identity { instance_id: "i-1".into(), address: None }, durable()), data);
        let spare = root.path().join("state.spare");
        fs::remove_file(&spare).unwrap();
        nix::unistd::mkfifo(&spare, Mode::S_IRWXU).unwrap();
        let first = state.update(|node| node.durable.report_no = 7);
        assert!(tokio::time::timeout(Duration::from_millis(50), first).await.is_err(), "the disk does not answer");
        let later = state.update(|node| node.durable.handle_report_no = 8);
        let _answers = File::options().read(true).custom_flags(nix::libc::O_NONBLOCK).open(&spare).unwrap();
        later.await.unwrap();
        let saved = fs::read_to_string(root.path().join("state.json")).unwrap();
        assert!(saved.contains(r#""report_no":0,"handle_report_no":8"#), "{saved}");
    }
}
