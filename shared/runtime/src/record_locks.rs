//! The locks on records: actions of one run that change the same record run one after the other.
//!
//! Guarantees: no deadlock, because every action takes its locks in the same order; an action sees what
//! this run wrote before it.
//! Does not: lock anything against other runs; conditional writes do that.

use model::action::LockKey;
use model::ids::Ulid;
use model::{NodeId, NodeRecord, Slot};
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::OwnedMutexGuard;

/// The locks of one run, and the node records as this run knows them: as the run read them, or as it last wrote them.
pub struct RecordLocks<'a> {
    locks: Mutex<HashMap<LockKey, Arc<tokio::sync::Mutex<()>>>>,
    /// In the order of the slots.
    read: &'a [NodeRecord],
    written: Mutex<HashMap<Slot, NodeRecord>>,
}

impl<'a> RecordLocks<'a> {
    /// The locks of a new run, all free, with these records as read, in the order of the slots.
    pub fn new(read: &'a [NodeRecord]) -> Self {
        Self { locks: Mutex::default(), read, written: Mutex::default() }
    }

    /// Takes all of these locks. Waits until each is free.
    pub async fn enter(&self, locks: impl IntoIterator<Item = LockKey>) -> Vec<OwnedMutexGuard<()>> {
        let wanted: BTreeSet<LockKey> = locks.into_iter().collect();
        let mut guards = Vec::with_capacity(wanted.len());
        for key in wanted {
            let lock = {
                let mut locks = self.locks.lock().unwrap_or_else(PoisonError::into_inner);
                Arc::clone(locks.entry(key).or_default())
            };
            guards.push(lock.lock_owned().await);
        }
        guards
    }

    fn written(&self) -> MutexGuard<'_, HashMap<Slot, NodeRecord>> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The record of a slot as this run knows it.
    pub fn record(&self, slot: Slot) -> Option<NodeRecord> {
        let written = self.written().get(&slot).cloned();
        written.or_else(|| self.read.get(self.read.binary_search_by_key(&slot, |r| r.slot).ok()?).cloned())
    }

    /// The record of a node, if it still has its slot.
    pub fn record_of(&self, node_id: NodeId) -> Option<NodeRecord> {
        self.record(node_id.slot()).filter(|r| r.node_id() == Some(node_id))
    }

    /// The records of the nodes of one launch, which share a ULID, in the order of their slots.
    pub fn of_launch(&self, launch: Ulid) -> Vec<NodeRecord> {
        let written = self.written();
        let unchanged = self.read.iter().filter(|record| !written.contains_key(&record.slot));
        let is_its = |record: &&NodeRecord| record.node_id().is_some_and(|node_id| node_id.ulid() == launch);
        let mut found: Vec<NodeRecord> = unchanged.chain(written.values()).filter(is_its).cloned().collect();
        found.sort_by_key(|record| record.slot);
        found
    }

    /// The slots among these whose records, as this run knows them, are older than the launch.
    pub fn before(&self, launch: Ulid, slots: impl Iterator<Item = Slot>) -> BTreeSet<Slot> {
        let latest = |slot: Slot| self.record(slot)?.latest_node_id().map(NodeId::ulid);
        slots.filter(|slot| latest(*slot) < Some(launch)).collect()
    }

    /// Remembers a record as this run wrote it.
    pub fn wrote(&self, record: NodeRecord) {
        self.written().insert(record.slot, record);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::fixtures;

    #[test]
    fn a_record_is_as_read_until_this_run_writes_it() {
        let read = [1, 2, 4].map(fixtures::assigned);
        let locks = RecordLocks::new(&read);
        let launch = |n: u32| locks.of_launch(fixtures::node_id(n).ulid());
        assert_eq!(locks.record(fixtures::slot(2)).as_ref(), Some(&read[1]));
        assert_eq!(locks.record(fixtures::slot(3)), None);
        assert_eq!(launch(2), [read[1].clone()]);

        let (changed, added) = (fixtures::bound(2), fixtures::assigned(3));
        locks.wrote(changed.clone());
        locks.wrote(added.clone());
        assert_eq!(locks.record(fixtures::slot(2)), Some(changed.clone()));
        assert_eq!(locks.record(fixtures::slot(3)), Some(added));
        assert_eq!(launch(2), [changed]);
    }
}
