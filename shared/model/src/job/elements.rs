//! The job that is a pack: what is left of its elements, and what follows from what its allocs tell of them.
//!
//! Guarantees: a pack ends with its last element; an element that has a result is not in the work of a later alloc.
//! Does not: know the losses of nodes. They count for the job.
//! Rules: `docs/rules.md#packs`.

use super::{Job, JobSet};
use crate::elements::{Counts, Outcome};
use crate::end_cause::{EndCause, Ending};
use crate::enums::{ClientStatus, JobState};
use crate::ids::NodeId;
use crate::retry::Retry;
use crate::standing::Failures;
use crate::time::Time;
use crate::tries::JobTimes;
use crate::work::Work;

impl Job {
    /// What its next alloc runs: of a pack, the elements that are left.
    pub fn work_left(&self) -> Work {
        let mut work = self.work.clone();
        if let Some(pack) = &mut work.pack {
            pack.elements = self.elements.left(&pack.elements);
        }
        work
    }

    /// Takes what an alloc of a pack has told of its elements. Returns what follows for those that are tried again; `None` if
    /// nothing of it is new.
    pub(super) fn take_elements(&mut self, ending: &Ending, set: JobSet) -> Option<Vec<Retry>> {
        let pack = self.work.pack.as_ref()?;
        let (policy, needs, limit_s) = (&self.failure_policy, &self.summary.needs, self.work.timeout_s);
        // The elements count their failures themselves, each for all rules together.
        let judge = |outcome: Outcome, failed: u32| {
            policy.judge(&outcome.cause(limit_s, needs), &vec![failed; policy.rules().count()], needs)
        };
        let failures = match set {
            JobSet::Leaves => Failures::Count,
            JobSet::Stays => Failures::Wait,
        };
        let news = self.elements.take(&ending.elements.results, &pack.elements, failures, judge);
        self.summary.tries.elements = Some(Counts::of(&pack.elements, &self.elements.results));
        news
    }

    /// Ends a pack whose elements have all ended. Returns whether that is so.
    pub(super) fn end_with_its_elements(&mut self, now: Time) -> bool {
        let Some(pack) = self.work.pack.as_ref().filter(|_| !self.summary.state.is_ended()) else { return false };
        let results = &self.elements.results;
        let Some(cause) = results.cause(&pack.elements) else { return false };
        (self.summary.state, self.reason) = match cause.client() {
            ClientStatus::Complete => (JobState::Complete, None),
            _ => (JobState::Failed, Some(format!("{cause}: {}", results.failures()))),
        };
        self.summary.tries.cause = Some(cause);
        self.summary.tries.not_before_at = None;
        self.finished_at = Some(now);
        true
    }

    /// Queues a pack again after an alloc that ran to its end, or that its elements ended.
    pub(super) fn run_what_is_left(
        &mut self,
        node_id: NodeId,
        cause: &EndCause,
        retries: Vec<Retry>,
        times: JobTimes,
        now: Time,
    ) {
        let pause_s = retries.iter().filter_map(|retry| retry.pause_s).max();
        retries.into_iter().for_each(|retry| self.change_for(retry, node_id));
        self.summary.tries.pause(pause_s, times, now);
        let left = self.work_left().pack.map_or(0, |pack| pack.elements.count());
        self.queue(&format!("{cause}; {left} of its elements are left to run"));
    }
}
