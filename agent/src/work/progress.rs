//! The progress of running allocs: their phase, their usage so far, the results of the elements of packs, the digest of their image,
//! and their checkpoint.
//!
//! Each look that finds something new causes a report, and a write by the control plane.
//!
//! Guarantees: a pack is sampled once a minute, so an element that ended longer ago than that does not run again if the node is
//! lost; another alloc is sampled when it is five times as old as at the last sample, and at least each hour; the digest of an image and
//! a checkpoint are reported within seconds. A phase that is over within the time of a heartbeat causes no report, one that lasts a
//! report in that time, and one that fails a report at once.
//! Does not: look at an alloc that has ended: its end says all of this.

use super::alloc_dir::{AllocDir, AllocPhase};
use crate::elements::report_in;
use crate::protocol::AllocProgress;
use model::wire::AllocOrder;
use model::{AllocId, Checkpoint, RunReport};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;
use tokio::time::Instant;

/// The time between two samples at a pack, and before the first sample of another alloc.
const MINUTE: Duration = Duration::from_secs(60);
/// The most time between two samples at an alloc.
const HOUR: Duration = Duration::from_secs(3600);
/// The time before the first sample of an alloc that is the first to get its image.
const FIRST_OF_IMAGE: Duration = Duration::from_secs(1);

/// How long a phase lasts before it is reported, and the time between two reports of it: about that of a heartbeat.
const PHASE: Duration = Duration::from_secs(20);

struct LastSample {
    last: Instant,
    wait: Duration,
    checkpoint: Option<Checkpoint>,
    /// The phase that was reported last, and when; before the first report, when a phase began.
    phase: Option<(Option<AllocPhase>, Instant)>,
}

impl LastSample {
    const fn new(now: Instant, wait: Duration) -> Self {
        Self { last: now, wait, checkpoint: None, phase: None }
    }

    /// Whether the phase of the alloc is news.
    fn has_phase(&mut self, phase: Option<&AllocPhase>, now: Instant) -> bool {
        let (reported, at) = self.phase.get_or_insert((None, now)).clone();
        let is_over = phase.is_none();
        let is_due = now.duration_since(at) >= PHASE || phase.is_some_and(|phase| phase.is_failing);
        let is_news = reported.as_ref() != phase && (is_over || is_due);
        if is_news || is_over {
            self.phase = phase.cloned().map(|phase| (Some(phase), now));
        }
        is_news
    }
}

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
        let (work, dir) = (&order.work, AllocDir::of(&self.allocs, order.alloc_id));
        let first = if work.image.is_some() && work.image_digest.is_none() { FIRST_OF_IMAGE } else { MINUTE };
        let samples = self.samples.entry(order.alloc_id).or_insert(LastSample::new(now, first));
        let checkpoint = work.keep.as_ref().and_then(|_| dir.checkpoint());
        let is_due = now.duration_since(samples.last) >= samples.wait || checkpoint != samples.checkpoint;
        if !samples.has_phase(dir.phase().as_ref(), now) && !is_due {
            return None;
        }
        samples.checkpoint.clone_from(&checkpoint);
        if is_due {
            samples.last = now;
            samples.wait = if work.pack.is_none() { (samples.wait * 4).min(HOUR) } else { samples.wait };
        }
        Some(AllocProgress {
            phase: samples.phase.as_ref().and_then(|(phase, _)| Some(phase.as_ref()?.text.clone())),
            run: RunReport {
                elements: report_in(&dir.elements()).unwrap_or_default(),
                usage: dir.used(),
                image_digest: dir.image_digest(),
                checkpoint,
                ..RunReport::default()
            },
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
    fn a_phase_is_reported_when_it_lasts_or_fails_and_once_more_when_it_is_over() {
        let allocs = tempfile::tempdir().unwrap();
        let (order, begun) = (testing::order(0, 1), Instant::now());
        let dir = AllocDir::of(allocs.path(), order.alloc_id);
        std::fs::create_dir(dir.path()).unwrap();
        let mut reader = ProgressSampler::new(allocs.path().to_owned());
        let mut at = |s: u64, phase: Option<(&str, bool)>| {
            let phase = phase.map(|(text, is_failing)| AllocPhase { text: text.to_owned(), is_failing });
            dir.write_phase(phase.as_ref());
            reader.sample(&order, begun + Duration::from_secs(s)).map(|progress| progress.phase)
        };
        let is = |text: &str| Some(Some(text.to_owned()));
        assert_eq!(
            [at(0, Some(("a", false))), at(19, Some(("b", false))), at(19, None)],
            [None, None, None],
            "it is short"
        );
        assert_eq!([at(20, Some(("c", false))), at(39, Some(("d", false)))], [None, None]);
        assert_eq!([at(40, Some(("e", false))), at(59, Some(("f", false)))], [is("e"), None]);
        // The sample of the usage has the phase that is known.
        assert_eq!([at(60, Some(("g", false))), at(61, None), at(62, None)], [is("g"), Some(None), None]);
        assert_eq!([at(63, Some(("h", true))), at(64, Some(("h", true)))], [is("h"), None]);
    }

    #[test]
    fn the_older_an_alloc_the_rarer_it_is_looked_at() {
        let begun = Instant::now();
        let looked_at = |order: &AllocOrder, hours: u64| {
            let mut reader = ProgressSampler::new("/nowhere".into());
            let samples = |s: &u64| reader.sample(order, begun + Duration::from_secs(*s)).is_some();
            (0..hours * 3600).filter(samples).collect::<Vec<_>>()
        };
        let plain = testing::order(0, 1);
        assert_eq!(looked_at(&plain, 4), [60, 300, 1260, 4860, 8460, 12060]);
        let mut pack = plain.clone();
        pack.work.pack = Some(Pack::of(Ranges::of(0, 9)));
        assert_eq!(looked_at(&pack, 1).len(), 59);
        let mut image = plain;
        image.work.image = Some("alpine".into());
        assert_eq!(looked_at(&image, 1)[..4], [1, 5, 21, 85]);
    }
}
