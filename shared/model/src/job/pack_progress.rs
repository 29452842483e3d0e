//! The results of the elements of a pack over all tries, and which elements are tried again.
//!
//! Guarantees: an element that failed and may be tried again has no result yet; each element counts its own failures.
//! Does not: say when the job has ended (`job` does).
//! Rules: `docs/rules.md#packs`.

use crate::elements::Results;
use crate::retry::{Retry, RetryDecision, RetryOutcome};
use crate::{EndCause, Needs, Outcome, Pack, Ranges};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

impl Outcome {
    /// The outcome of the elements that ran when their alloc ended for this cause. `None` if the elements are not to blame: they
    /// run again.
    pub const fn of_end(cause: &EndCause) -> Option<Self> {
        match cause {
            EndCause::OverMemory { .. } => Some(Self::Memory),
            EndCause::OverScratch { .. } => Some(Self::Scratch),
            EndCause::Signalled { signal } => Some(Self::Signal(*signal)),
            EndCause::Exited { code } if *code != 0 => Some(Self::Exit(*code)),
            _ => None,
        }
    }

    /// The outcome as the cause of an end. The time limit and the needs are those of the job.
    pub const fn cause(self, limit_s: u64, needs: &Needs) -> EndCause {
        match self {
            Self::Exit(code) => EndCause::Exited { code },
            Self::Signal(signal) => EndCause::Signalled { signal },
            Self::Timeout => EndCause::OverTime { limit_s },
            Self::Memory => EndCause::OverMemory { allowed_mib: needs.memory_mib, used_mib: None },
            Self::Scratch => EndCause::OverScratch {
                allowed_gib: needs.scratch_gib,
                used_mib: needs.scratch_gib.saturating_mul(1 << 10),
            },
        }
    }
}

impl Results {
    /// The cause of the end of a pack that ran to its end; `None` if some of its elements have no result, unless so many failed that
    /// they do not begin.
    pub fn cause(&self, pack: &Pack) -> Option<EndCause> {
        let failed = self.failed().count();
        if !pack.elements.without(&self.ended()).is_empty() && !pack.is_over_with(failed) {
            return None;
        }
        Some(match failed {
            0 => EndCause::Exited { code: 0 },
            _ => EndCause::ElementsFailed { failed, elements: pack.elements.count() },
        })
    }
}

/// The results and failures of the elements of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PackProgress {
    /// The elements that are not run any more.
    #[serde(skip_serializing_if = "Results::is_empty")]
    pub results: Results,
    /// The elements that failed and are tried again, by the number of their failures.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    failures: BTreeMap<u32, Ranges>,
}

/// Whether an alloc whose end is counted also leaves its job's set of live allocs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobSet {
    /// The alloc leaves the set: it is final.
    Leaves,
    /// The alloc stays in the set: it was told to stop because a drain's deadline is near. Its member counts as lost,
    /// but the alloc is live until it ends.
    Stays,
}

impl PackProgress {
    /// Takes the results that an alloc reported. `judge` says what follows if an element with so many failures ends so. A failure
    /// that is tried again counts once: when the alloc leaves the set of its job. Returns the retries of the elements that are tried again, one for each rule, or `None` if nothing is new.
    pub fn take(
        &mut self,
        told: &Results,
        all: &Ranges,
        set: JobSet,
        judge: impl Fn(Outcome, u32) -> Option<RetryDecision>,
    ) -> Option<Vec<Retry>> {
        let (before, mut retries) = (self.clone(), BTreeMap::new());
        for (outcome, elements) in told.iter() {
            let mut rest = elements.within(all).without(&self.results.ended());
            let mut by_failures: Vec<(u32, Ranges)> = Vec::new();
            for (failed, those) in &self.failures {
                by_failures.push((*failed, rest.within(those)));
                rest = rest.without(those);
            }
            by_failures.push((0, rest));
            for (failed, those) in by_failures.into_iter().filter(|(_, those)| !those.is_empty()) {
                match judge(outcome, failed).map(|verdict| (verdict.rule, verdict.follows)) {
                    Some((rule, RetryOutcome::Again(retry))) => {
                        if set == JobSet::Leaves {
                            self.count_failure(failed, &those);
                            retries.insert(rule, retry);
                        }
                    }
                    Some((_, RetryOutcome::Fails(_))) | None => self.results.add(outcome, &those),
                }
            }
        }
        self.forget_ended();
        (*self != before).then(|| retries.into_values().collect())
    }

    fn count_failure(&mut self, failed: u32, elements: &Ranges) {
        if let Some(known) = self.failures.get_mut(&failed) {
            *known = known.without(elements);
        }
        self.failures.entry(failed.saturating_add(1)).or_default().extend(elements);
    }

    /// Elements that have ended need no count of failures.
    fn forget_ended(&mut self) {
        let ended = self.results.ended();
        for elements in self.failures.values_mut() {
            *elements = elements.without(&ended);
        }
        self.failures.retain(|_, elements| !elements.is_empty());
    }

    /// The elements that are still to be run.
    pub fn left(&self, all: &Ranges) -> Ranges {
        all.without(&self.results.ended())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::elements::ElementCounts;
    use crate::failure_policy::FailurePolicy;
    use std::num::NonZeroU32;

    fn ranges(text: &str) -> Ranges {
        text.parse().unwrap()
    }

    fn results(of: &[(&str, &str)]) -> Results {
        let mut results = Results::default();
        for (outcome, elements) in of {
            results.add(outcome.parse().unwrap(), &ranges(elements));
        }
        results
    }

    #[test]
    fn an_alloc_has_run_to_its_end_if_each_element_has_a_result() {
        let all = results(&[("exit:0", "0-4,6-7"), ("exit:3", "5"), ("timeout", "8")]);
        let failed = |elements| Some(EndCause::ElementsFailed { failed: 2, elements });
        for (elements, max, cause) in [
            ("0-9", 0, None), // Element 9 has no result.
            ("0-9", 3, None),
            ("0-9", 2, failed(10)),
            ("0-9", 1, failed(10)),
            ("0-8", 0, failed(9)),
            ("0-8", 3, failed(9)),
        ] {
            let pack = Pack { max_failures: NonZeroU32::new(max), ..Pack::of(ranges(elements)) };
            assert_eq!(all.cause(&pack), cause, "{pack:?}");
        }
        let pack = Pack::of(ranges("0-8"));
        assert_eq!(results(&[("exit:0", "0-8")]).cause(&pack), Some(EndCause::Exited { code: 0 }));
    }

    #[test]
    fn each_element_is_tried_again_as_often_as_its_own_failures_allow() {
        let policy =
            FailurePolicy { retry: vec!["exit:9=fail".parse().unwrap()], retry_failed: 2, ..FailurePolicy::default() };
        let judge = |outcome: Outcome, failed: u32| {
            policy.judge(&outcome.cause(0, &Needs::default()), &[failed; 4], &Needs::default())
        };
        let (all, mut standing) = (ranges("0-9"), PackProgress::default());
        let first = results(&[("exit:0", "0-4"), ("exit:1", "5-6"), ("exit:9", "7"), ("exit:0", "77")]);
        // Before the end of the alloc, only what is not tried again counts.
        assert_eq!(standing.take(&first, &all, JobSet::Stays, judge), Some(Vec::new()));
        assert_eq!((standing.left(&all), standing.failures.len()), (ranges("5-6,8-9"), 0));
        assert_eq!(standing.take(&first, &all, JobSet::Leaves, judge).map(|retries| retries.len()), Some(1));
        assert_eq!(standing.failures, BTreeMap::from([(1, ranges("5-6"))]));
        assert_eq!(standing.take(&results(&[("exit:0", "0-4")]), &all, JobSet::Leaves, judge), None, "known");
        standing.take(&results(&[("exit:1", "5-6,8")]), &all, JobSet::Leaves, judge);
        assert_eq!(standing.failures, BTreeMap::from([(1, ranges("8")), (2, ranges("5-6"))]));
        standing.take(&results(&[("exit:1", "5,8"), ("exit:0", "6")]), &all, JobSet::Leaves, judge);
        assert_eq!(standing.failures, BTreeMap::from([(2, ranges("8"))]));
        assert_eq!(standing.results, results(&[("exit:0", "0-4,6"), ("exit:9", "7"), ("exit:1", "5")]));
        assert_eq!(standing.left(&all), ranges("8-9"));
        assert_eq!(ElementCounts::of(&all, &standing.results).to_string(), "6 of 10 elements complete, 2 failed");
    }
}
