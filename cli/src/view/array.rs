//! Arrays as one thing: how many elements are in which state, and which of them ended alike.
//!
//! Guarantees: elements that are jobs and elements of packs look the same.
//! Does not: know of jobs that are not given. Rows of ended jobs are deleted after a while.

use model::{EndCause, Job, JobState, JobSummary, Outcome, Ranges, Reason};
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// How many elements are in each state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub(crate) struct States(BTreeMap<JobState, u64>);

impl States {
    pub(crate) fn of<'a>(jobs: impl IntoIterator<Item = &'a JobSummary>) -> Self {
        let mut states = BTreeMap::new();
        let mut add = |state, n: u64| {
            if n > 0 {
                *states.entry(state).or_default() += n;
            }
        };
        for job in jobs {
            match job.tries.elements {
                None => add(job.state, 1),
                Some(counts) => {
                    add(JobState::Complete, counts.complete);
                    add(JobState::Failed, counts.failed);
                    add(state_of_rest(job), counts.elements.saturating_sub(counts.complete + counts.failed));
                }
            }
        }
        Self(states)
    }

    pub(crate) fn of_groups(groups: &[Alike]) -> Self {
        let mut states = BTreeMap::new();
        groups.iter().for_each(|group| *states.entry(group.state).or_default() += group.elements.count());
        Self(states)
    }

    /// `60 placed, 120 queued of 200`
    pub(crate) fn text(&self, all: u32) -> String {
        let states: Vec<String> = self.0.iter().map(|(state, n)| format!("{n} {state}")).collect();
        let of = if self.0.values().sum::<u64>() < u64::from(all) { format!(" of {all}") } else { String::new() };
        format!("{}{of}", states.join(", "))
    }
}

/// Elements in the same state for the same reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Alike {
    pub(crate) elements: Ranges,
    pub(crate) state: JobState,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) cause: String,
}

/// Whether a job ended so that what follows its success never runs.
pub(crate) const fn is_bad(state: JobState) -> bool {
    matches!(state, JobState::Failed | JobState::Rejected | JobState::Cancelled)
}

/// The state of the elements of a pack that have no result. If the pack ended by its failures, they never begin.
fn state_of_rest(pack: &JobSummary) -> JobState {
    match pack.tries.cause {
        Some(EndCause::ElementsFailed { .. }) if pack.state == JobState::Failed => JobState::Rejected,
        _ => pack.state,
    }
}

/// These elements of jobs, alike ones together: first those that failed, then the largest groups.
pub(crate) fn alike<'j>(jobs: impl IntoIterator<Item = (&'j Job, Ranges)>) -> Vec<Alike> {
    let mut groups: BTreeMap<(JobState, String), Ranges> = BTreeMap::new();
    let mut add = |state, cause: String, elements: &Ranges| {
        if elements.count() > 0 {
            groups.entry((state, cause)).or_default().extend(elements);
        }
    };
    for (job, all) in jobs {
        let state = job.summary.state;
        let paused = (state == JobState::Queued && job.summary.paused).then(|| Reason::Paused {}.to_string());
        let ended = || job.cause().filter(|_| state != JobState::Complete).map(ToString::to_string);
        let cause = || paused.clone().or_else(ended).unwrap_or_default();
        for (outcome, elements) in job.elements.results.iter() {
            let elements = elements.within(&all);
            match outcome {
                Outcome::SUCCESS => add(JobState::Complete, String::new(), &elements),
                failed => {
                    let cause = failed.cause(job.work.timeout_s, &job.summary.needs);
                    add(JobState::Failed, cause.to_string(), &elements);
                }
            }
        }
        add(state_of_rest(&job.summary), cause(), &all.without(&job.elements.results.ended()));
    }
    let groups = groups.into_iter().map(|((state, cause), elements)| Alike { elements, state, cause });
    let mut groups: Vec<Alike> = groups.collect();
    groups.sort_by_key(|group| (!is_bad(group.state), Reverse(group.elements.count())));
    groups
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::Array;
    use model::elements::Pack;
    use model::fixtures;

    fn element(n: u32, state: JobState, cause: Option<EndCause>) -> Job {
        let mut job = fixtures::job(1);
        job.summary.job_id = Array::of(job.summary.job_id).job(n);
        (job.summary.state, job.summary.tries.cause) = (state, cause);
        job
    }

    /// These elements, or each job as an element, in groups.
    fn shown(jobs: &[Job], elements: &str) -> Vec<String> {
        let of =
            |job: &Job| elements.parse().unwrap_or_else(|_| [Array::number(job.summary.job_id)].into_iter().collect());
        let groups = alike(jobs.iter().map(|job| (job, of(job))));
        groups.iter().map(|a| format!("{} {} {}", a.elements, a.state, a.cause)).collect()
    }

    #[test]
    fn alike_elements_are_together_and_failed_ones_come_first() {
        let exited = |code| Some(EndCause::Exited { code });
        let mut jobs: Vec<Job> = (0..5).map(|n| element(n, JobState::Complete, exited(0))).collect();
        jobs.extend([5, 7, 8].map(|n| element(n, JobState::Failed, exited(3))));
        jobs.push(element(6, JobState::Failed, exited(4)));
        assert_eq!(shown(&jobs, ""), ["5,7-8 failed exit code 3", "6 failed exit code 4", "0-4 complete "]);
        let states = States::of(jobs.iter().map(|job| &job.summary));
        assert_eq!(
            (states.text(9), states.text(20)),
            ("5 complete, 4 failed".into(), "5 complete, 4 failed of 20".into())
        );
    }

    #[test]
    fn elements_of_a_pack_look_like_jobs() {
        let mut pack = element(0, JobState::Placed, None);
        pack.work.pack = Some(Pack::of(Ranges::of(0, 9)));
        pack.elements = serde_json::from_str(r#"{"results": {"exit:0": "0-3", "exit:2": "4"}}"#).unwrap();
        pack.summary.tries.elements = Some(model::elements::ElementCounts { elements: 10, complete: 4, failed: 1 });
        assert_eq!(shown(&[pack.clone()], "0-9"), ["4 failed exit code 2", "5-9 placed ", "0-3 complete "]);
        assert_eq!(shown(&[pack.clone()], "3-5"), ["4 failed exit code 2", "5 placed ", "3 complete "]);
        assert_eq!(States::of([&pack.summary]).text(10), "5 placed, 4 complete, 1 failed");
        // Its failures ended it.
        pack.summary.state = JobState::Failed;
        pack.summary.tries.cause = Some(EndCause::ElementsFailed { failed: 1, elements: 10 });
        let groups = ["5-9 rejected 1 of 10 elements failed", "4 failed exit code 2", "0-3 complete "];
        assert_eq!(shown(&[pack.clone()], "0-9"), groups);
        assert_eq!(States::of([&pack.summary]).text(10), "4 complete, 1 failed, 5 rejected");
    }
}
