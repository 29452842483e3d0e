//! Jobs that follow other jobs: they are placed only after those have ended (`docs/rules.md#followers`).
//!
//! Guarantees: a job is served only if every job that it follows has ended as it must; a job that can never run is rejected
//! as soon as that is known, and so is one that no size of the policy fits, although it would be placed much later.
//! Does not: keep nodes, or reserve room, for a job that still follows others.

use super::super::actions::Action;
use super::super::sizes::Sizes;
use super::super::view::View;
use super::want::{ServedQueue, never};
use model::JobSummary;
use model::after::{FollowState, judge};
use model::explain::Explanation;
use model::ids::JobId;
use model::reason::Reason;
use std::collections::{BTreeMap, BTreeSet};

/// The jobs that follow others, and what becomes of them in this plan.
pub(super) struct Followers<'a> {
    /// Those that may be placed, with the jobs that they followed.
    free: BTreeMap<JobId, BTreeSet<JobId>>,
    /// The others, in the order of the queue.
    following: Vec<(&'a JobSummary, FollowState)>,
}

impl<'a> Followers<'a> {
    pub(super) fn new(view: &View<'a>) -> Self {
        let (mut free, mut following) = (BTreeMap::new(), Vec::new());
        for job in view.observed.jobs.iter().filter(|job| job.follows()) {
            match judge(job, &view.observed.ends, view.now) {
                FollowState::Free(ended) => _ = free.insert(job.job_id, ended),
                verdict => following.push((job, verdict)),
            }
        }
        Self { free, following }
    }

    /// Whether the job may be placed: it follows no other, or no longer.
    pub(super) fn may_be_placed(&self, job: &JobSummary) -> bool {
        job.after.is_empty() || self.free.contains_key(&job.job_id)
    }

    /// What this plan does about the jobs that it does not place or reject in their turn.
    pub(super) fn actions(
        &self,
        view: &View<'_>,
        sizes: &Sizes<'_>,
        served: &ServedQueue<'_>,
    ) -> Vec<(Action, Reason)> {
        let done: BTreeSet<JobId> = served.actions.iter().filter_map(|(action, _)| job_of(action)).collect();
        let advance = |job_id: JobId, ended: &BTreeSet<JobId>, left: usize| {
            let reason = Reason::FollowedEnded { ended: ended.len(), left };
            (Action::Advance { job_id, ended: ended.clone() }, reason)
        };
        let free = self.free.iter().filter(|(id, _)| !done.contains(id)).map(|(id, ended)| advance(*id, ended, 0));
        let held = self.following.iter().filter_map(|(job, verdict)| match (never(view, sizes, job), verdict) {
            (Some(reason), _) => Some((Action::Reject(job.job_id), reason)),
            (None, FollowState::Never(reason)) => Some((Action::Reject(job.job_id), reason.clone())),
            (None, FollowState::Waits(ended) | FollowState::Free(ended)) => {
                let left = job.after.len().saturating_sub(ended.len());
                (!ended.is_empty()).then(|| advance(job.job_id, ended, left))
            }
        });
        free.chain(held).collect()
    }

    /// Notes the reason for each job that still follows others.
    pub(super) fn explain(&self, explained: &mut Explanation) {
        for (job, verdict) in &self.following {
            let FollowState::Waits(ended) = verdict else { continue };
            let mut left = job.after.keys().filter(|id| !ended.contains(id));
            if let Some(next) = left.next() {
                explained.waits(job, &[Reason::Follows { next: *next, left: 1 + left.count() }]);
            }
        }
    }
}

const fn job_of(action: &Action) -> Option<JobId> {
    match action {
        Action::Place { job_id, .. } | Action::Reject(job_id) => Some(*job_id),
        _ => None,
    }
}
