//! The progress of running allocs: their usage so far, the results of the elements of packs, the digest of their image,
//! and their checkpoint.
//!
//! Each look that finds something new causes a report, and a write by the control plane.
//!
//! Guarantees: a pack is looked at once a minute, so an element that ended longer ago than that does not run again if the node is
//! lost; another alloc is looked at when it is twice as old as at the last look, and at least each hour; the digest of an image and
//! a checkpoint are reported within seconds.
//! Does not: look at an alloc that has ended: its end says all of this.

use super::alloc_dir::AllocDir;
use crate::elements::report_in;
use crate::protocol::AllocProgress;
use model::files::Checkpoint;
use model::ids::AllocId;
use model::wire::AllocOrder;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;
use tokio::time::Instant;

/// The time between two samples at a pack, and before the first look at another alloc.
const MINUTE: Duration = Duration::from_secs(60);
/// The most time between two samples at an alloc.
const HOUR: Duration = Duration::from_secs(3600);
/// The time before the first look at an alloc that is the first to get its image.
const FIRST_OF_IMAGE: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct LastSample {
    last: Instant,
    wait: Duration,
    checkpoint: Option<Checkpoint>,
}

#[derive(Debug)]
pub struct ProgressSampler {
    allocs: PathBuf,
    samples: BTreeMap<AllocId, LastSample>,
}

impl ProgressSampler {
    pub const fn new(allocs: PathBuf) -> Self {
        Self { allocs, samples: BTreeMap::new() }
    }

    /// The progress of the alloc of this order; `None` if it is not time to look.
    pub fn sample(&mut self, order: &AllocOrder, now: Instant) -> Option<AllocProgress> {
        let work = &order.work;
        let first = if work.image.is_some() && work.image_digest.is_none() { FIRST_OF_IMAGE } else { MINUTE };
        let samples =
            self.samples.entry(order.alloc_id).or_insert(LastSample { last: now, wait: first, checkpoint: None });
        let dir = AllocDir::of(&self.allocs, order.alloc_id);
        let checkpoint = work.keep.as_ref().and_then(|_| dir.checkpoint());
        if now.duration_since(samples.last) < samples.wait && checkpoint == samples.checkpoint {
            return None;
        }
        samples.checkpoint.clone_from(&checkpoint);
        samples.last = now;
        if work.pack.is_none() {
            samples.wait = (samples.wait * 2).min(HOUR);
        }
        Some(AllocProgress {
            elements: report_in(&dir.elements()).unwrap_or_default(),
            usage: dir.used(),
            image_digest: dir.image_digest(),
            checkpoint,
        })
    }

    pub(crate) fn forget_all_but(&mut self, known: impl Fn(AllocId) -> bool) {
        self.samples.retain(|id, _| known(*id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::testing;
    use model::elements::Pack;
    use model::ranges::Ranges;

    #[test]
    fn the_older_an_alloc_the_rarer_it_is_looked_at() {
        let begun = Instant::now();
        let looked_at = |order: &AllocOrder, hours: u64| {
            let mut reader = ProgressSampler::new("/nowhere".into());
            let samples = |s: &u64| reader.sample(order, begun + Duration::from_secs(*s)).is_some();
            (0..hours * 3600).filter(samples).collect::<Vec<_>>()
        };
        let plain = testing::order(0, 1);
        assert_eq!(looked_at(&plain, 4), [60, 180, 420, 900, 1860, 3780, 7380, 10980]);
        let mut pack = plain.clone();
        pack.work.pack = Some(Pack { elements: Ranges::of(0, 9), at_once: 1 });
        assert_eq!(looked_at(&pack, 1).len(), 59);
        let mut image = plain;
        image.work.image = Some("alpine".into());
        assert_eq!(looked_at(&image, 1)[..4], [1, 3, 7, 15]);
    }
}
