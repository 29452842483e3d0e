//! The job: what a user wants to run, and how its state follows from the ends of its allocs.
//!
//! ```text
//!             placed, all members at once           every member succeeded
//!   queued ────────────────────────────▶ placed ────────────────────────────▶ complete
//!    ▲  ▲     failed or lost, may retry    │ │      failed or lost too often
//!    │  └──────────────────────────────────┘ └───────────────────────────────▶ failed
//!    └── regrouping ◀── one of several members lost: the others stop first
//!   queued ──▶ rejected (can never run)        queued, placed, regrouping ──▶ cancelled
//! ```
//!
//! Guarantees: the end of an alloc counts only for a placed job; an ended job never changes its state; an
//! ended job expires only after its last alloc has ended.
//! Does not: know which end is tried again (`failure_policy` does), decide where a job runs or which allocs stop: the plan of poll-and-scale derives both in
//! each run.
//! Rules: `docs/rules.md#section-6`.

use crate::after::MAX_AFTER;
use crate::end_cause::{EndCause, Ending, last_line};
use crate::enums::{ClientStatus, Desired, JobState};
use crate::failure_policy::FailurePolicy;
use crate::ids::{AllocId, JobId, NodeId};
use crate::machine::MachineNeed;
use crate::mistakes::{BadJob, Mistakes};
use crate::names::MAX_NAME_CHARS;
use crate::needs::{MAX_NODES, Needs};
use crate::node::Version;
use crate::retry::{Follows, Retry, Verdict};
use crate::spec::{JobSpec, check_placing};
use crate::summary::{AllocSummary, JobSummary, counts_for};
use crate::time::{Span, Time};
use crate::tries::{JobTimes, Tries};
use crate::work::{Environment, Work};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// A row of the jobs table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// The part that planning needs.
    #[serde(flatten)]
    pub summary: JobSummary,
    #[serde(default)]
    pub work: Work,
    /// Variables added to the environment.
    #[serde(default, skip_serializing_if = "Environment::is_empty")]
    pub env: Environment,
    #[serde(default)]
    pub failure_policy: FailurePolicy,
    /// How often a process of the job failed. The rules count their own uses.
    #[serde(default)]
    pub failed_count: u32,
    /// How often the job lost a node.
    #[serde(default)]
    pub lost_count: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Time>,
    /// Why the job is in its state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Epoch **seconds**: DynamoDB deletes the row some time after. Set when the job and its last alloc have ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<i64>,
}

/// Whether the alloc whose end is counted also leaves the job's set of live allocs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobSet {
    /// The alloc leaves the set: it is final.
    Leaves,
    /// The alloc stays in the set: it was told to stop because a drain's deadline is near. Its member counts as lost,
    /// but the alloc is live until it ends.
    Stays,
}

impl Job {
    /// A new job, queued.
    pub fn submit(job_id: JobId, spec: JobSpec, now: Time) -> Result<Self, BadJob> {
        spec.check()?;
        let machine = MachineNeed { containers: spec.work.image.is_some(), ..spec.needs.machine };
        Ok(Self {
            summary: JobSummary {
                job_id,
                version: Version::UNWRITTEN,
                state: JobState::Queued,
                name: spec.name.filter(|n| !n.is_empty()),
                priority: spec.priority,
                submitted_at: now,
                needs: Needs { machine, ..spec.needs },
                array_limit: spec.array_limit,
                after: spec.after,
                tries: Tries::default(),
                done: BTreeSet::new(),
                allocs: BTreeSet::new(),
            },
            work: spec.work,
            env: spec.env,
            failure_policy: spec.failure_policy,
            failed_count: 0,
            lost_count: 0,
            finished_at: None,
            reason: None,
            expires_at: None,
        })
    }

    /// The job after these jobs ended, which it follows: it no longer waits for them. `None` if it is not queued, or follows
    /// none of them.
    pub fn advance(&self, ended: &BTreeSet<JobId>) -> Option<Self> {
        let mut new = self.clone();
        new.summary.after.retain(|id, _| !ended.contains(id));
        let advances = self.summary.state == JobState::Queued && new.summary.after != self.summary.after;
        advances.then_some(new)
    }

    /// The job with these allocs: a queued job becomes placed, and a placed job gets one more copy. `None` in any
    /// other state. Raises `tries.copies` above the number of every copy placed. A placed job follows no other.
    pub fn with_placed(&self, allocs: &[AllocId]) -> Option<Self> {
        if !matches!(self.summary.state, JobState::Queued | JobState::Placed) {
            return None;
        }
        let mut new = self.clone();
        if self.summary.state == JobState::Queued {
            new.summary.tries.usage = None;
        }
        new.summary.state = JobState::Placed;
        new.summary.after.clear();
        for alloc in allocs {
            new.summary.allocs.insert(*alloc);
            new.summary.tries.copies = new.summary.tries.copies.max(alloc.copy.saturating_add(1));
        }
        new.summary.tries.not_before_at = None;
        new.reason = None;
        Some(new)
    }

    /// Cancelled by the operator; `None` if the job has ended already.
    pub fn cancel(&self, keep: Span, now: Time) -> Option<Self> {
        self.end(JobState::Cancelled, &EndCause::Cancelled, keep, now)
    }

    /// Rejected, because no node could ever run it; `None` if it is not queued.
    pub fn reject(&self, reason: &str, keep: Span, now: Time) -> Option<Self> {
        // A job that has run, and needs more for its next try, says what it needs more for.
        let last = self.cause().map(|cause| format!("; its last try ended: {cause}")).unwrap_or_default();
        let cause = EndCause::Rejected { why: format!("{reason}{last}") };
        (self.summary.state == JobState::Queued).then(|| self.end(JobState::Rejected, &cause, keep, now)).flatten()
    }

    fn end(&self, state: JobState, cause: &EndCause, keep: Span, now: Time) -> Option<Self> {
        if self.summary.state.is_ended() {
            return None;
        }
        let mut new = self.clone();
        new.summary.state = state;
        new.reason = Some(cause.to_string());
        (new.summary.tries.cause, new.summary.tries.last_line) = (Some(cause.clone()), None);
        new.finished_at = Some(now);
        new.expire_if_empty(keep, now);
        Some(new)
    }

    fn expire_if_empty(&mut self, keep: Span, now: Time) {
        if self.summary.state.is_ended() && self.summary.allocs.is_empty() {
            self.expires_at = Some((now + keep).as_epoch_s());
        }
    }

    /// `placed or regrouping → queued` for a job without a live alloc. The set `allocs` may still name some allocs;
    /// the caller must have read that none of them is live.
    pub fn requeue(&self, reason: &str) -> Option<Self> {
        let stuck = matches!(self.summary.state, JobState::Placed | JobState::Regrouping);
        stuck.then(|| {
            let mut new = self.clone();
            new.summary.allocs.clear();
            new.queue(reason);
            new
        })
    }

    fn queue(&mut self, reason: &str) {
        self.summary.state = JobState::Queued;
        self.summary.done.clear();
        self.reason = Some(reason.to_owned());
    }

    /// Why the job ended, or why its last try did.
    pub const fn cause(&self) -> Option<&EndCause> {
        self.summary.tries.cause.as_ref()
    }

    /// The job after `alloc` ended. `alloc` is given as it was before its end, `others` are the job's other live
    /// allocs.
    pub fn after_end(
        &self,
        alloc: &AllocSummary,
        ending: &Ending,
        others: &[AllocSummary],
        set: JobSet,
        times: JobTimes,
        now: Time,
    ) -> Self {
        let mut new = self.clone();
        let id = alloc.alloc_id;
        if set == JobSet::Leaves {
            new.summary.allocs.remove(&id);
        }
        // The end of an alloc that was told to stop does not count. Its member was counted when the alloc was told to
        // stop, or another copy takes its place.
        if self.summary.state == JobState::Placed && alloc.desired == Desired::Run {
            new.count_end(alloc, ending, others, times, now);
        } else if self.summary.state == JobState::Regrouping && new.summary.allocs.is_empty() {
            new.queue("all its members have stopped: it starts again");
        }
        new.expire_if_empty(times.keep, now);
        new
    }

    fn count_end(
        &mut self,
        alloc: &AllocSummary,
        ending: &Ending,
        others: &[AllocSummary],
        times: JobTimes,
        now: Time,
    ) {
        let (id, client, cause) = (alloc.alloc_id, ending.client(), &ending.cause);
        let stands_in = client != ClientStatus::Complete && others.iter().any(|o| counts_for(o, id));
        if stands_in {
            return;
        }
        let tries = &mut self.summary.tries;
        tries.cause = Some(cause.clone());
        tries.last_line = ending.log_tail.as_deref().and_then(last_line).filter(|_| cause.is_of_the_command());
        tries.usage = ending.usage.map(|used| tries.usage.map_or(used, |other| other.most(used))).or(tries.usage);
        // A rule names every cause but a success.
        let Some(verdict) = self.judge(cause) else {
            self.summary.done.insert(id.member);
            if self.summary.done.len() >= self.summary.needs.nodes as usize {
                self.summary.state = JobState::Complete;
                self.reason = None;
                self.finished_at = Some(now);
            }
            return;
        };
        if client == ClientStatus::Lost {
            self.summary.tries.avoid(alloc.node_id);
        }
        match cause {
            // What has never run was neither lost nor failed.
            EndCause::NotStarted { .. } => {}
            _ if client == ClientStatus::Failed => self.failed_count = self.failed_count.saturating_add(1),
            _ => self.lost_count = self.lost_count.saturating_add(1),
        }
        let reason = self.reason_of(id, ending, &verdict.to_string());
        match verdict.follows {
            Follows::Again(retry) => {
                self.summary.tries.count_use(verdict.rule, retry.used);
                self.change_for(retry, alloc.node_id);
                self.summary.tries.pause(retry.pause_s, times, now);
                self.wait_again(&reason);
            }
            Follows::Fails(_) => {
                self.summary.state = JobState::Failed;
                self.reason = Some(reason);
                self.finished_at = Some(now);
            }
        }
    }

    /// What follows if an alloc of the job ends for this cause now. `None` for a success.
    pub fn judge(&self, cause: &EndCause) -> Option<Verdict> {
        let JobSummary { tries, needs, .. } = &self.summary;
        self.failure_policy.judge(cause, &tries.rule_uses, needs)
    }

    /// What a retry changes: it stays so for the retries after it.
    fn change_for(&mut self, retry: Retry, node_id: NodeId) {
        let JobSummary { tries, needs, .. } = &mut self.summary;
        if retry.elsewhere {
            tries.elsewhere = true;
            tries.avoid(node_id);
        }
        needs.memory_mib = retry.memory_mib.unwrap_or(needs.memory_mib);
        needs.machine.market = retry.market.or(needs.machine.market);
    }

    /// `member 1: exit code 3; no retry is allowed; the last line of its output: boom`
    fn reason_of(&self, id: AllocId, ending: &Ending, retries: &str) -> String {
        let member = if self.summary.needs.nodes > 1 { format!("member {}: ", id.member) } else { String::new() };
        let lost =
            if matches!(ending.cause, EndCause::Lost { .. } | EndCause::Interrupted { .. }) { "lost: " } else { "" };
        let line = self.summary.tries.last_line.as_ref();
        let line = line.map(|line| format!("; the last line of its output: {line}")).unwrap_or_default();
        format!("{member}{lost}{}; {retries}{line}", ending.cause)
    }

    /// Queues the job again; if other members still run, after they have stopped.
    fn wait_again(&mut self, reason: &str) {
        if self.summary.needs.nodes > 1 && !self.summary.allocs.is_empty() {
            self.summary.state = JobState::Regrouping;
            self.reason = Some(reason.to_owned());
        } else {
            self.queue(reason);
        }
    }

    /// What in a stored job cannot be carried out; `None` if nothing. Somebody may have put the row without a check.
    pub fn contradiction(&self) -> Option<String> {
        let (summary, work) = (&self.summary, &self.work);
        let nodes = summary.needs.nodes;
        if !(1..=MAX_NODES).contains(&nodes) {
            return Some(format!("it wants {nodes} nodes: 1 to {MAX_NODES} are possible"));
        }
        let follows = summary.after.len();
        if follows > MAX_AFTER {
            return Some(format!("it follows {follows} jobs: at most {MAX_AFTER} are possible"));
        }
        if summary.after.contains_key(&summary.job_id) {
            return Some("it follows itself".to_owned());
        }
        let mut mistakes = Mistakes::default();
        work.check_stored(&self.env, &mut mistakes);
        let name_chars = summary.name.as_deref().map_or(0, |name| name.chars().count());
        mistakes.require(name_chars <= MAX_NAME_CHARS, || format!("its name has {name_chars} characters"));
        check_placing(&summary.needs, work, &self.failure_policy, &mut mistakes);
        mistakes.found().map(|all| all.join("; "))
    }

    /// The sort key of the `queue` index: higher priority first, then earlier submission.
    pub fn rank(&self) -> String {
        self.summary.rank()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::enums::{AfterEnd, Market};
    use crate::fixtures::{self, at};
    use crate::needs::Needs;
    use crate::usage::Usage;

    const KEEP: Span = Span::from_s(7 * 86_400);

    fn placed(nodes: u32, retry_failed: u32, retry_lost: u32) -> (Job, Vec<AllocSummary>) {
        let spec = JobSpec {
            needs: Needs { nodes, ..Needs::default() },
            failure_policy: FailurePolicy { retry_failed, retry_lost, ..FailurePolicy::default() },
            ..JobSpec::running(["true"])
        };
        let job = Job::submit(fixtures::job_id(0), spec, at(0)).unwrap();
        let allocs: Vec<_> = (0..nodes)
            .map(|n| {
                let id = AllocId { job_id: job.summary.job_id, member: n, copy: n };
                crate::alloc::Alloc::place(id, &job, &fixtures::ready(n), at(1)).unwrap().summary
            })
            .collect();
        let ids: Vec<_> = allocs.iter().map(|a| a.alloc_id).collect();
        (job.with_placed(&ids).unwrap(), allocs)
    }

    #[test]
    fn a_job_is_complete_when_every_member_is() {
        let (job, allocs) = placed(2, 0, 0);
        let one = job.after_end(&allocs[0], &Ending::exited(0), &allocs[1..], JobSet::Leaves, KEEP.into(), at(5));
        assert_eq!(one.summary.state, JobState::Placed);
        assert_eq!(one.expires_at, None);
        let both = one.after_end(&allocs[1], &Ending::exited(0), &[], JobSet::Leaves, KEEP.into(), at(6));
        assert_eq!((both.summary.state, both.finished_at), (JobState::Complete, Some(at(6))));
        assert!(both.expires_at.is_some() && both.summary.allocs.is_empty());
    }

    #[test]
    fn a_failure_is_retried_as_often_as_allowed() {
        let (job, allocs) = placed(1, 1, 0);
        let again = job.after_end(&allocs[0], &Ending::exited(1), &[], JobSet::Leaves, KEEP.into(), at(5));
        assert_eq!((again.summary.state, again.failed_count), (JobState::Queued, 1));
        let placed = again.with_placed(&[allocs[0].alloc_id]).unwrap();
        let failed = placed.after_end(&allocs[0], &Ending::exited(1), &[], JobSet::Leaves, KEEP.into(), at(6));
        assert_eq!(failed.summary.state, JobState::Failed);
        // With retry_lost = 0 a lost node ends the job.
        let lost =
            job.after_end(&allocs[0], &Ending::lost("its node is gone"), &[], JobSet::Leaves, KEEP.into(), at(5));
        assert_eq!(lost.summary.state, JobState::Failed);
    }

    #[test]
    fn each_rule_counts_its_own_uses_and_says_how_the_next_try_differs() {
        let (mut job, allocs) = placed(1, 0, 3);
        job.summary.needs.memory_mib = 1000;
        let rules = ["exit:75=again*2,pause=30s,elsewhere", "memory=again*2,memory*1.5,on-demand"];
        job.failure_policy.retry = rules.iter().map(|rule| rule.parse().unwrap()).collect();
        let times = JobTimes { keep: KEEP, pause: Span::from_s(10), most: Span::from_s(60) };
        let over = EndCause::OverMemory { allowed_mib: 1000, used_mib: None };
        for (cause, uses, wait, memory_mib) in [
            (EndCause::Exited { code: 75 }, vec![1], 30, 1000),
            (over.clone(), vec![1, 1], 20, 1500),
            (EndCause::Lost { why: "x".into() }, vec![1, 1, 0, 1], 40, 1500),
            (over.clone(), vec![1, 2, 0, 1], 60, 2250),
            (EndCause::Exited { code: 75 }, vec![2, 2, 0, 1], 30, 2250),
        ] {
            let ended = job.after_end(&allocs[0], &Ending::new(cause.clone()), &[], JobSet::Leaves, times, at(5));
            let JobSummary { tries, needs, state, .. } = &ended.summary;
            assert_eq!((*state, &tries.rule_uses), (JobState::Queued, &uses), "{cause}");
            assert_eq!((ended.summary.retry_at(at(5)), needs.memory_mib), (Some(at(5 + wait)), memory_mib), "{cause}");
            job = ended.with_placed(&[allocs[0].alloc_id]).unwrap();
        }
        let JobSummary { tries, needs, .. } = &job.summary;
        assert_eq!((needs.machine.market, tries.elsewhere, tries.avoids.len()), (Some(Market::OnDemand), true, 1));
        let failed = job.after_end(&allocs[0], &Ending::new(over), &[], JobSet::Leaves, times, at(9));
        let spent = "none of 2 retries by the rule memory=again*2,on-demand,memory*1.5 is left";
        assert!(failed.reason.unwrap().ends_with(spent) && failed.summary.state == JobState::Failed);
    }

    #[test]
    fn a_job_says_what_its_last_try_used() {
        let (job, allocs) = placed(2, 1, 0);
        let used = |cpu_ms| Some(Usage { ran_ms: 9, cpu_ms, memory_mib: None, read_bytes: None, written_bytes: None });
        let end = |job: &Job, n: usize, code, usage| {
            let ending = Ending { usage, ..Ending::exited(code) };
            job.after_end(&allocs[n], &ending, &[], JobSet::Leaves, KEEP.into(), at(5))
        };
        let both = end(&end(&job, 0, 0, used(7)), 1, 0, used(3));
        assert_eq!((both.summary.state, both.summary.tries.usage), (JobState::Complete, used(7)));
        let again = end(&end(&job, 0, 0, used(7)), 1, 1, None);
        assert_eq!(again.summary.tries.usage, used(7));
        assert_eq!(again.with_placed(&[allocs[0].alloc_id]).unwrap().summary.tries.usage, None, "a new try");
    }

    #[test]
    fn what_its_node_could_not_start_is_no_failure_of_a_job_and_costs_no_retry() {
        let (mut job, allocs) = placed(1, 0, 0);
        let times = JobTimes { keep: KEEP, pause: Span::from_s(10), most: Span::from_s(60) };
        let cannot = Ending::new(EndCause::NotStarted { why: "the disk is full".into() });
        for (n, wait) in [10, 20, 40, 60, 60, 60].into_iter().enumerate() {
            let mut alloc = allocs[0].clone();
            alloc.node_id = fixtures::node_id(n as u32);
            job = job.after_end(&alloc, &cannot, &[], JobSet::Leaves, times, at(5));
            assert_eq!((job.summary.state, job.lost_count, job.failed_count), (JobState::Queued, 0, 0));
            assert_eq!(job.summary.retry_at(at(5)), Some(at(5 + wait)), "try {n}");
            assert_eq!(job.summary.retry_at(at(5 + wait)), None);
            job = job.with_placed(&[alloc.alloc_id]).unwrap();
        }
        assert_eq!(job.summary.tries.avoids, [3, 4, 5].map(fixtures::node_id), "the last ones");
        assert_eq!(job.summary.retry_at(at(5)), None, "it is placed");
    }

    #[test]
    fn the_reason_of_an_end_names_its_cause_and_the_last_line_of_the_output() {
        let (job, allocs) = placed(1, 0, 1);
        let end = |cause, output: &str| {
            let ending = Ending { log_tail: Some(output.to_owned()), ..Ending::new(cause) };
            let job = job.after_end(&allocs[0], &ending, &[], JobSet::Leaves, KEEP.into(), at(5));
            (job.summary.state, job.reason.clone().unwrap_or_default(), job.cause().and_then(EndCause::exit_code))
        };
        let failed = |reason: &str, code| (JobState::Failed, reason.to_owned(), Some(code));
        let with = "exit code 42; no retry is allowed; the last line of its output: boom";
        assert_eq!(end(EndCause::Exited { code: 42 }, "one\nboom\n\n"), failed(with, 42));
        let over = "it ran longer than its time limit of 2 s; no retry is allowed";
        assert_eq!(end(EndCause::OverTime { limit_s: 2 }, ""), failed(over, 124));
        let absent = "program \"x\" not found; no retry is allowed";
        assert_eq!(end(EndCause::NotFound { program: "x".into() }, "noise"), failed(absent, 127));
        let lost = "lost: its node is gone; retry 1 of 1, 0 left".to_owned();
        let ending = end(EndCause::Lost { why: "its node is gone".into() }, "noise");
        assert_eq!(ending, (JobState::Queued, lost, None));
        assert_eq!(end(EndCause::Exited { code: 0 }, "noise"), (JobState::Complete, String::new(), Some(0)));
    }

    #[test]
    fn another_live_copy_stands_in_unless_it_is_told_to_stop() {
        let (job, allocs) = placed(1, 0, 0);
        let mut copy = allocs[0].clone();
        copy.alloc_id.copy = 7;
        let kept = job.after_end(
            &allocs[0],
            &Ending::lost("its node is gone"),
            &[copy.clone()],
            JobSet::Leaves,
            KEEP.into(),
            at(5),
        );
        assert_eq!((kept.summary.state, kept.lost_count), (JobState::Placed, 0));
        copy.desired = Desired::Stop;
        let ended =
            job.after_end(&allocs[0], &Ending::lost("its node is gone"), &[copy], JobSet::Leaves, KEEP.into(), at(5));
        assert_eq!(ended.summary.state, JobState::Failed);
    }

    #[test]
    fn a_job_that_was_placed_does_not_wait_for_the_others_again() {
        let after = [(fixtures::job_id(7), AfterEnd::Success)].into();
        let spec = JobSpec { after, ..JobSpec::running(["true"]) };
        let job = Job::submit(fixtures::job_id(0), spec, at(0)).unwrap();
        let id = AllocId { job_id: job.summary.job_id, member: 0, copy: 0 };
        let alloc = crate::alloc::Alloc::place(id, &job, &fixtures::ready(0), at(1)).unwrap().summary;
        let placed = job.with_placed(&[id]).unwrap();
        let again =
            placed.after_end(&alloc, &Ending::lost("its node is gone"), &[], JobSet::Leaves, KEEP.into(), at(5));
        assert_eq!(again.summary.state, JobState::Queued);
        assert!(job.summary.follows() && !again.summary.follows());
    }

    #[test]
    fn several_members_regroup_and_start_together() {
        let (job, allocs) = placed(3, 0, 3);
        let one_done = job.after_end(&allocs[0], &Ending::exited(0), &allocs[1..], JobSet::Leaves, KEEP.into(), at(4));
        let regrouping = one_done.after_end(
            &allocs[1],
            &Ending::lost("its node is gone"),
            &allocs[2..],
            JobSet::Leaves,
            KEEP.into(),
            at(5),
        );
        assert_eq!(regrouping.summary.state, JobState::Regrouping);
        let mut stopped = allocs[2].clone();
        stopped.desired = Desired::Stop;
        let queued = regrouping.after_end(&stopped, &Ending::exited(0), &[], JobSet::Leaves, KEEP.into(), at(6));
        assert_eq!(queued.summary.state, JobState::Queued);
        assert!(queued.summary.done.is_empty());
    }

    #[test]
    fn an_alloc_told_to_stop_never_ends_a_job() {
        let (job, allocs) = placed(1, 0, 0);
        let mut stopped = allocs[0].clone();
        stopped.desired = Desired::Stop;
        for ending in [Ending::exited(0), Ending::exited(1), Ending::lost("gone")] {
            let after = job.after_end(&stopped, &ending, &[], JobSet::Leaves, KEEP.into(), at(5));
            assert_eq!((after.summary.state, after.failed_count, after.lost_count), (JobState::Placed, 0, 0));
        }
    }

    #[test]
    fn an_ended_job_expires_only_when_its_allocs_are_gone() {
        let (job, allocs) = placed(1, 0, 0);
        let cancelled = job.cancel(KEEP, at(5)).unwrap();
        assert_eq!(cancelled.expires_at, None);
        assert!(cancelled.cancel(KEEP, at(6)).is_none());
        let gone = cancelled.after_end(&allocs[0], &Ending::exited(1), &[], JobSet::Leaves, KEEP.into(), at(7));
        assert_eq!((gone.summary.state, gone.expires_at), (JobState::Cancelled, Some((at(7) + KEEP).as_epoch_s())));
    }

    #[test]
    fn a_bad_submission_lists_every_mistake() {
        let spec = JobSpec {
            priority: 1001,
            needs: Needs { vcpus: 0, nodes: 25, ..Needs::default() },
            work: Work { caches: vec!["a/b".into()], ..Work::default() },
            ..JobSpec::default()
        };
        let BadJob(wrong) = Job::submit(fixtures::job_id(0), spec, at(0)).unwrap_err();
        assert!(wrong.iter().any(|w| w.contains("it has no command")) && wrong.len() >= 5, "{wrong:?}");
        let spec = JobSpec {
            needs: Needs { nodes: 24, ..Needs::default() },
            work: Work {
                command: vec!["x".into()],
                caches: (0..3).map(|n| format!("c{n}")).collect(),
                ..Work::default()
            },
            ..JobSpec::default()
        };
        let BadJob(wrong) = Job::submit(fixtures::job_id(0), spec, at(0)).unwrap_err();
        assert!(wrong[0].contains("145 writes"), "{wrong:?}");
    }
}
