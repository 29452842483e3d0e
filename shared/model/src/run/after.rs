//! Jobs that follow others: what a job waits for before it may be placed.
//!
//! A job names the jobs that it follows, each with how that job must end. A followed job that has ended so is taken off the
//! list, and the job may be placed when the list is empty. A followed job that has ended otherwise makes sure that the job
//! never runs.
//!
//! Guarantees: the verdict depends only on rows that no longer change: an ended job never changes its state.
//! Does not: read anything, or notice circles. Jobs that wait for each other wait until one of them is cancelled; the
//! command `submit` makes no circle, because it accepts only jobs that exist.

use crate::enums::{AfterEnd, JobState};
use crate::{JobId, JobSummary, Reason, Span, Time};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// How long after the submission of a job a followed job without a row is waited for. A program that submits many jobs
/// at once may write them in any order.
pub const ABSENT: Span = Span::from_s(600);

/// How followed jobs ended, by their rows. A job that is not in here has not ended, or was not read.
pub type Ends = BTreeMap<JobId, Followed>;

/// A followed job that cannot run any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Followed {
    /// It has ended in this state.
    Ended(JobState),
    /// It has no row. Rows of ended jobs are deleted some time after the end.
    Absent,
}

/// Whether a job that follows others may be placed.
#[derive(Clone, Debug, PartialEq)]
pub enum FollowState {
    /// It may be placed: these are all the jobs that it followed, and they have ended as they must.
    Free(BTreeSet<JobId>),
    /// It waits for others. These have ended as they must; there may be none.
    Waits(BTreeSet<JobId>),
    /// It can never run.
    Never(Reason),
}

/// Judges a waiting job by the ends of the jobs that it follows.
pub fn judge(job: &JobSummary, ends: &Ends, now: Time) -> FollowState {
    let mut met = BTreeSet::new();
    for (id, end) in &job.after {
        match (ends.get(id), end) {
            (None, _) => {}
            (Some(Followed::Absent), _) if now.since(job.submitted_at) < ABSENT => {}
            // A job without a row has ended in some way: a row is deleted only after the end.
            (Some(_), AfterEnd::Any) | (Some(Followed::Ended(JobState::Complete)), AfterEnd::Success) => {
                met.insert(*id);
            }
            (Some(Followed::Ended(state)), AfterEnd::Success) => {
                return FollowState::Never(Reason::FollowedNotComplete { job_id: *id, state: *state });
            }
            (Some(Followed::Absent), AfterEnd::Success) => {
                return FollowState::Never(Reason::FollowedAbsent { job_id: *id });
            }
        }
    }
    if met.len() == job.after.len() { FollowState::Free(met) } else { FollowState::Waits(met) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{self, at};

    fn following(ends: &[(u32, AfterEnd)]) -> JobSummary {
        let after = ends.iter().map(|(n, end)| (fixtures::job_id(*n), *end)).collect();
        JobSummary { after, submitted_at: at(0), ..fixtures::job(9).summary }
    }

    fn judged(job: &JobSummary, ends: &[(u32, Followed)], now: i64) -> FollowState {
        judge(job, &ends.iter().map(|(n, end)| (fixtures::job_id(*n), *end)).collect(), at(now))
    }

    fn ids(ids: &[u32]) -> BTreeSet<JobId> {
        ids.iter().map(|n| fixtures::job_id(*n)).collect()
    }

    const COMPLETE: Followed = Followed::Ended(JobState::Complete);
    const FAILED: Followed = Followed::Ended(JobState::Failed);

    #[test]
    fn a_job_is_free_when_all_that_it_follows_have_ended_as_they_must() {
        let job = following(&[(1, AfterEnd::Success), (2, AfterEnd::Any)]);
        assert_eq!(judged(&job, &[], 1), FollowState::Waits(ids(&[])));
        assert_eq!(judged(&job, &[(1, COMPLETE)], 1), FollowState::Waits(ids(&[1])));
        assert_eq!(judged(&job, &[(2, FAILED)], 1), FollowState::Waits(ids(&[2])));
        assert_eq!(judged(&job, &[(1, COMPLETE), (2, FAILED)], 1), FollowState::Free(ids(&[1, 2])));
        for state in [JobState::Failed, JobState::Cancelled, JobState::Rejected] {
            let never = FollowState::Never(Reason::FollowedNotComplete { job_id: fixtures::job_id(1), state });
            assert_eq!(judged(&job, &[(1, Followed::Ended(state))], 1), never);
        }
    }

    #[test]
    fn a_job_without_a_row_is_waited_for_and_then_counts_as_ended() {
        let job = following(&[(1, AfterEnd::Any)]);
        assert_eq!(judged(&job, &[(1, Followed::Absent)], 599), FollowState::Waits(ids(&[])));
        assert_eq!(judged(&job, &[(1, Followed::Absent)], 600), FollowState::Free(ids(&[1])));
        let job = following(&[(1, AfterEnd::Success)]);
        assert_eq!(judged(&job, &[(1, Followed::Absent)], 599), FollowState::Waits(ids(&[])));
        let never = FollowState::Never(Reason::FollowedAbsent { job_id: fixtures::job_id(1) });
        assert_eq!(judged(&job, &[(1, Followed::Absent)], 600), never, "nobody knows whether it was complete");
    }
}
