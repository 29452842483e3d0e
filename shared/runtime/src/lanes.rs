//! Lanes: actions of one run that share a record follow each other.
//!
//! Guarantees: nobody waits in a circle, because everybody enters lanes in one order; an action builds
//! on what this run wrote before. Does not: lock anything against other runs; conditional writes do.

use model::NodeRecord;
use model::action::Lane;
use model::ids::{NodeId, Slot};
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::OwnedMutexGuard;

/// The lanes of one run. A slot's lane also holds the record as this run knows it: as read, or as the
/// run's own last write made it.
#[derive(Debug, Default)]
pub struct Lanes {
    locks: Mutex<HashMap<Lane, Arc<tokio::sync::Mutex<()>>>>,
    records: Mutex<HashMap<Slot, NodeRecord>>,
}

impl Lanes {
    /// Lanes that begin with these records.
    pub fn new(records: &[NodeRecord]) -> Self {
        let records = records.iter().map(|r| (r.slot, r.clone())).collect();
        Self { locks: Mutex::default(), records: Mutex::new(records) }
    }

    /// Waits until all of these lanes are free, and takes them.
    pub async fn enter(&self, lanes: impl IntoIterator<Item = Lane>) -> Vec<OwnedMutexGuard<()>> {
        let wanted: BTreeSet<Lane> = lanes.into_iter().collect();
        let mut guards = Vec::with_capacity(wanted.len());
        for lane in wanted {
            let lock = {
                let mut locks = self.locks.lock().unwrap_or_else(PoisonError::into_inner);
                Arc::clone(locks.entry(lane).or_default())
            };
            guards.push(lock.lock_owned().await);
        }
        guards
    }

    /// The record of a slot as this run knows it.
    pub fn record(&self, slot: Slot) -> Option<NodeRecord> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner).get(&slot).cloned()
    }

    /// The record of a node, if it still has its slot.
    pub fn record_of(&self, node_id: NodeId) -> Option<NodeRecord> {
        self.record(node_id.slot()).filter(|r| r.node_id() == Some(node_id))
    }

    /// Keeps a record as this run wrote it.
    pub fn wrote(&self, record: NodeRecord) {
        self.records.lock().unwrap_or_else(PoisonError::into_inner).insert(record.slot, record);
    }
}
