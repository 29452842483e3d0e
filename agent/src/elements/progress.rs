//! What the elements of packs did, while their allocs run.
//!
//! Guarantees: what is told of an alloc costs at most one report in [`INTERVAL`]; an element that ended longer ago than that does not run
//! again if the node is lost.
//! Does not: read what has ended: that is in the end of the alloc.

use crate::alloc_dir::AllocDir;
use crate::elements::told;
use model::elements::Told;
use model::ids::AllocId;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;
use tokio::time::Instant;

/// The time between two looks at the elements of an alloc. Each that finds something new is a report, and a write.
const INTERVAL: Duration = Duration::from_secs(60);

/// When the elements of each alloc were looked at.
#[derive(Debug)]
pub struct Progress {
    allocs: PathBuf,
    looked_at: BTreeMap<AllocId, Instant>,
}

impl Progress {
    pub const fn new(allocs: PathBuf) -> Self {
        Self { allocs, looked_at: BTreeMap::new() }
    }

    /// What the elements of an alloc that runs did so far; `None` if it is not time to look.
    pub fn look(&mut self, id: AllocId, now: Instant) -> Option<Told> {
        let since = self.looked_at.entry(id).or_insert(now);
        if now.duration_since(*since) < INTERVAL {
            return None;
        }
        *since = now;
        told(&AllocDir::of(&self.allocs, id).elements()).ok()
    }

    pub(crate) fn forget_all_but(&mut self, known: impl Fn(AllocId) -> bool) {
        self.looked_at.retain(|id, _| known(*id));
    }
}
