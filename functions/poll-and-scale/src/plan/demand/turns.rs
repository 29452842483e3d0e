//! Whose turn it is: the jobs of the share come next that has used the least against its weight (`docs/rules.md#shares`).
//!
//! Guarantees: without shares, jobs come in the order of the queue; within a share they do so, too; what this plan has taken from the
//! queue counts as used, so that shares take turns.
//! Does not: keep a share from room that no other can use.

use super::super::view::View;
use super::want::Want;
use model::policy::NO_SHARE;
use model::{JobSummary, Policy};
use std::collections::{BTreeMap, VecDeque};

/// A job that a plan takes from the queue counts at once as if it had run for this time, in seconds.
const PLANNED_S: f64 = 600.0;

/// The demands that wait, in the order in which they are served.
pub(super) struct Turns<'a> {
    policy: &'a Policy,
    by_name: BTreeMap<&'a str, usize>,
    queues: Vec<ShareQueue<'a>>,
}

struct ShareQueue<'a> {
    weight: f64,
    /// What the share has used, in vCPU-seconds, divided by its weight.
    used: f64,
    wants: VecDeque<Want<'a>>,
}

impl<'a> Turns<'a> {
    /// `wants` are in the order of the queue.
    pub(super) fn new(view: &View<'a>, wants: Vec<Want<'a>>) -> Self {
        let policy = &view.observed.policy;
        let weights = policy.share.iter().map(|share| (share.name.as_str(), share.weight)).chain([(NO_SHARE, 1.0)]);
        let used = |name: &str| view.observed.shares.used.get(name).copied().unwrap_or(0.0);
        let queue = |(name, weight)| ShareQueue { weight, used: used(name) / weight, wants: VecDeque::new() };
        let by_name = weights.clone().map(|(name, _)| name).zip(0..).collect();
        let mut turns = Self { policy, by_name, queues: weights.map(queue).collect() };
        for want in wants {
            let job = want.job();
            if let Some(queue) = turns.queue_of(job) {
                queue.wants.push_back(want);
            }
        }
        turns
    }

    fn queue_of(&mut self, job: &JobSummary) -> Option<&mut ShareQueue<'a>> {
        let share = self.policy.share_name(job.share.as_deref(), job.by.as_deref());
        self.queues.get_mut(*self.by_name.get(share)?)
    }

    /// The next demand.
    pub(super) fn next(&mut self) -> Option<Want<'a>> {
        let waiting = self.queues.iter_mut().filter(|queue| !queue.wants.is_empty());
        waiting.min_by(|a, b| a.used.total_cmp(&b.used))?.wants.pop_front()
    }

    /// Counts this many members of this job as used.
    pub(super) fn count(&mut self, job: &JobSummary, members: u32) {
        let vcpus = self.policy.shares.vcpus(&job.needs, members);
        if let Some(queue) = self.queue_of(job) {
            queue.used += vcpus * PLANNED_S / queue.weight;
        }
    }
}
