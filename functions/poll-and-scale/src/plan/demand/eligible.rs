//! Jobs that wait for something else than room: for other jobs (`docs/rules.md#followers`), for a time, or for an operator who paused
//! them (`docs/rules.md#put-off`).
//!
//! Guarantees: a job is served only if every job that it follows has ended as it must, its time has come and it is not paused; a job
//! that can never run is rejected as soon as that is known, and so is one that no size of the policy fits, although it would be placed
//! much later.
//! Does not: keep nodes, or reserve room, for a job that still waits so.

use super::super::actions::Action;
use super::super::sizes::Sizes;
use super::super::view::View;
use super::want::{ServedQueue, never};
use model::after::{FollowState, judge};
use model::{Array, Explanation, JobId, JobState, JobSummary, Reason, Span};
use std::collections::{BTreeMap, BTreeSet};

/// Which queued jobs may be placed, and what becomes of the others in this plan.
pub(super) struct Eligible<'a> {
    /// Those that waited until now, with the jobs that they followed.
    free: BTreeMap<JobId, BTreeSet<JobId>>,
    /// Those that may not be placed, in the order of the queue.
    waiting: Vec<(&'a JobSummary, FollowState)>,
    waiting_ids: BTreeSet<JobId>,
}

impl<'a> Eligible<'a> {
    pub(super) fn new(view: &View<'a>) -> Self {
        let (mut free, mut waiting) = (BTreeMap::new(), Vec::new());
        for job in view.observed.jobs.iter().filter(|job| job.state == JobState::Queued) {
            let verdict = match never_begins(view, job) {
                Some(reason) => FollowState::Never(reason),
                None => judge(job, &view.observed.ends, view.now),
            };
            match verdict {
                FollowState::Free(ended) if job.own_wait(view.now).is_some() => {
                    waiting.push((job, FollowState::Waits(ended)));
                }
                FollowState::Free(ended) => {
                    if job.is_ineligible() {
                        free.insert(job.job_id, ended);
                    }
                }
                verdict => waiting.push((job, verdict)),
            }
        }
        let waiting_ids = waiting.iter().map(|(job, _)| job.job_id).collect();
        Self { free, waiting, waiting_ids }
    }

    /// Whether this queued job may be placed.
    pub(super) fn may_be_placed(&self, job: &JobSummary) -> bool {
        !self.waiting_ids.contains(&job.job_id)
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
            let reason = match ended.len() {
                0 => Reason::TimeCame {},
                ended => Reason::FollowedEnded { ended, left },
            };
            (Action::Advance { job_id, ended: ended.clone() }, reason)
        };
        let free = self.free.iter().filter(|(id, _)| !done.contains(id)).map(|(id, ended)| advance(*id, ended, 0));
        // Jobs that are put off are read only when they are due, so nothing is done about them before.
        let never = |job: &JobSummary| if job.follows() { never(view, sizes, job) } else { None };
        let waiting = self.waiting.iter().filter_map(|(job, verdict)| match (never(job), verdict) {
            (_, FollowState::Never(reason)) => Some((Action::Reject(job.job_id), reason.clone())),
            (Some(reason), _) => Some((Action::Reject(job.job_id), reason)),
            (None, FollowState::Waits(ended) | FollowState::Free(ended)) => {
                let left = job.after.len().saturating_sub(ended.len());
                (!ended.is_empty()).then(|| advance(job.job_id, ended, left))
            }
        });
        free.chain(waiting).collect()
    }

    /// Notes the reasons for each job that may not be placed.
    pub(super) fn explain(&self, view: &View<'_>, explained: &mut Explanation) {
        for (job, verdict) in &self.waiting {
            let FollowState::Waits(ended) = verdict else { continue };
            let mut left = job.after.keys().filter(|id| !ended.contains(id));
            let follows = left.next().map(|next| Reason::Follows { next: *next, left: 1 + left.count() });
            explained.waits(job, &job.own_wait(view.now).into_iter().chain(follows).collect::<Vec<_>>());
        }
    }
}

/// Why a job that has not begun never will; `None` if it may.
fn never_begins(view: &View<'_>, job: &JobSummary) -> Option<Reason> {
    if job.gives_up_at().is_some_and(|at| at <= view.now) {
        let after = Span::from_s(job.give_up_after_s.cast_signed());
        return Some(Reason::GaveUp { after });
    }
    let max = job.max_failures.filter(|_| !job.tries.begun)?.get();
    let failed = view.observed.failures.get(&Array::of(job.job_id)).copied()?;
    (failed >= u64::from(max)).then_some(Reason::ArrayFailures { failed, max })
}

const fn job_of(action: &Action) -> Option<JobId> {
    match action {
        Action::Place { job_id, .. } | Action::Reject(job_id) => Some(*job_id),
        _ => None,
    }
}
