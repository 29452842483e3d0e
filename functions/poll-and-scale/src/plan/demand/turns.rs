//! Whose turn it is: the jobs of the share come next that has used the least against its weight (`docs/rules.md#shares`).
//!
//! Guarantees: without shares, jobs come in the order of the queue; within a share they do so, too; what this plan has taken from the
//! queue counts as used, so that shares take turns.
//! Does not: keep a share from room that no other can use.

use super::super::view::View;
use super::want::Want;
use model::policy::NO_SHARE;
use model::{Needs, Policy};
use std::collections::{BTreeMap, VecDeque};

/// A job that a plan takes from the queue counts at once as if it had run for this time, in seconds.
const PLANNED_S: f64 = 600.0;

/// The demands that wait, in the order in which they are served.
pub(super) struct Turns<'a> {
    policy: &'a Policy,
    queues: Vec<ShareQueue<'a>>,
    /// The queue that gave the last demand.
    served: usize,
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
        let by_name: BTreeMap<&str, usize> = weights.clone().map(|(name, _)| name).zip(0..).collect();
        let mut queues: Vec<ShareQueue<'a>> = weights.map(queue).collect();
        for want in wants {
            let job = want.job();
            let share = policy.share_name(job.share.as_deref(), job.by.as_deref());
            if let Some(queue) = by_name.get(share).and_then(|n| queues.get_mut(*n)) {
                queue.wants.push_back(want);
            }
        }
        Self { policy, queues, served: 0 }
    }

    /// The next demand.
    pub(super) fn next(&mut self) -> Option<Want<'a>> {
        let waiting = self.queues.iter_mut().enumerate().filter(|(_, queue)| !queue.wants.is_empty());
        let (n, queue) = waiting.min_by(|(_, a), (_, b)| a.used.total_cmp(&b.used))?;
        self.served = n;
        queue.wants.pop_front()
    }

    /// Counts as used what this many members of the last demand take.
    pub(super) fn count(&mut self, needs: &Needs, members: u32) {
        let vcpus = self.policy.shares.vcpus(needs, members);
        if let Some(queue) = self.queues.get_mut(self.served) {
            queue.used += vcpus * PLANNED_S / queue.weight;
        }
    }
}
