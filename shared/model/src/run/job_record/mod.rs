//! The job: what a user wants to run, and how its state follows from the ends of its allocs.
//!
//! ```text
//!             placed, all members at once           every member succeeded
//!   queued ────────────────────────────▶ placed ────────────────────────────▶ complete
//!    ▲  ▲ └──▶ placing (many members) ──▶  │ │      failed or lost too often
//!    │  │          │                       │ └───────────────────────────────▶ failed
//!    │  └──────────┼───────────────────────┘ failed or lost, may retry
//!    │             │ cut short             │
//!    └── regrouping ◀──────────────────────┘ the same, and something of it still runs: that stops first
//!   queued ──▶ rejected (can never run)        what has not ended ──▶ cancelled
//! ```
//!
//! A job with more members than one transaction can place becomes `placed` with the write of its last members. Until then no member
//! starts.
//!
//! Guarantees: the end of an alloc counts only for a placed job; an ended job never changes its state; an ended job expires only
//! after its last alloc has ended. A pack ends with its last element; an element that has a result is not in the work of a later
//! alloc.
//! Does not: know which end is tried again (`failure_policy` does), or decide where a job runs or which allocs stop (the plan of
//! poll-and-scale derives both in each run).
//! Rules: `docs/rules.md#section-6` and `docs/rules.md#packs`.

use crate::amounts::Moment;
use crate::elements::{ElementCounts, Results};
use crate::end_cause::{FREE_MOVES, last_line};
use crate::enums::{ClientStatus, Desired, JobState};
use crate::pack_progress::PackProgress;
use crate::retry::{Retry, RetryDecision, RetryOutcome};
use crate::summary::counts_for;
use crate::{
    AllocId, AllocIds, AllocSummary, BadJob, Checkpoint, EndCause, Ending, Environment, FailurePolicy, JobId, JobSet,
    JobSpec, JobSummary, JobTimes, MachineNeed, Needs, NodeId, Outcome, Pack, Payer, Reason, Span, Time, Tries, Usage,
    Usd, Version, Work,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::num::NonZeroU32;

/// What an operator does about a pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pause {
    Begins,
    Ends,
}

/// A row of the jobs table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// The part that planning needs.
    #[serde(flatten)]
    pub summary: JobSummary,
    /// The key with which it was submitted.
    pub key: Option<String>,
    /// Before this time it was not to be placed. `tries` has the time that counts.
    pub not_before_at: Option<Time>,
    #[serde(default)]
    pub work: Work,
    /// Variables added to the environment.
    #[serde(default, skip_serializing_if = "Environment::is_empty")]
    pub env: Environment,
    #[serde(default)]
    pub failure_policy: FailurePolicy,
    /// The results of the elements of a pack so far.
    #[serde(default, skip_serializing_if = "crate::left_out::is_default")]
    pub elements: PackProgress,
    /// The addresses of the nodes of several members, by member number. An unknown one is empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<String>,
    /// The newest checkpoint of each member.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub checkpoints: Vec<Checkpoint>,
    /// How often a process of the job failed. Retry rules count their own uses.
    #[serde(default)]
    pub failed_count: u32,
    /// How often the job lost a node.
    #[serde(default)]
    pub lost_count: u32,
    /// When the command of its last try began.
    pub started_at: Option<Time>,
    /// What its allocs cost that had ended before it was over: each its part of its node.
    #[serde(default, skip_serializing_if = "crate::left_out::is_default")]
    pub usd: Usd,
    pub finished_at: Option<Time>,
    /// Why the job is in its state.
    pub reason: Option<String>,
    /// Epoch **seconds**: DynamoDB deletes the row some time after. Set when the job and its last alloc have ended.
    pub expires_at: Option<i64>,
}

impl Job {
    /// A new job, queued. The error has every mistake of the submission.
    pub fn submit(job_id: JobId, spec: JobSpec, now: Time) -> Result<Self, BadJob> {
        spec.check(now)?;
        let machine = MachineNeed { containers: spec.work.image.is_some(), ..spec.needs.machine };
        let not_before_at = spec.not_before_at.map(|moment| moment.after(now));
        let elements = spec.work.pack.as_ref().map(|pack| ElementCounts::of(&pack.elements, &Results::default()));
        Ok(Self {
            summary: JobSummary {
                job_id,
                version: Version::UNWRITTEN,
                state: JobState::Queued,
                name: spec.name,
                by: None,
                labels: spec.labels,
                share: spec.share,
                priority: spec.priority,
                submitted_at: now,
                needs: Needs { machine, ..spec.needs },
                array_count: spec.array_count,
                array_limit: spec.array_limit,
                max_failures: spec.max_failures,
                after: spec.after,
                paused: false,
                give_up_after_s: spec.give_up_after_s,
                tries: Tries { elements, not_before_at: not_before_at.filter(|at| *at > now), ..Tries::default() },
                done: BTreeSet::new(),
                allocs: AllocIds::default(),
            },
            key: spec.key,
            not_before_at,
            work: spec.work,
            env: spec.env,
            failure_policy: spec.failure_policy,
            elements: PackProgress::default(),
            hosts: Vec::new(),
            checkpoints: Vec::new(),
            failed_count: 0,
            lost_count: 0,
            started_at: None,
            usd: Usd::ZERO,
            finished_at: None,
            reason: None,
            expires_at: None,
        })
    }

    /// The job without these followed jobs, which have ended, and without a time that has come. `None` if it is not queued, or if
    /// nothing changes.
    pub fn advance(&self, ended: &BTreeSet<JobId>, now: Time) -> Option<Self> {
        let mut new = self.clone();
        new.summary.after.retain(|id, _| !ended.contains(id));
        new.summary.tries.not_before_at = self.summary.begins_at(now);
        (self.summary.state == JobState::Queued && new != *self).then_some(new)
    }

    /// The job paused, or continued; `None` if it is not queued, or if nothing changes.
    pub fn pause(&self, pause: Pause) -> Option<Self> {
        let mut new = self.clone();
        new.summary.paused = pause == Pause::Begins;
        (self.summary.state == JobState::Queued && new != *self).then_some(new)
    }

    /// The job with the priority, the needs and the times of this submission. What it runs, and its place in the queue, stay. `None` if
    /// it is not queued, or if nothing changes.
    pub fn changed(&self, spec: JobSpec, now: Time) -> Result<Option<Self>, BadJob> {
        let not_before_at = spec.not_before_at.map(|moment| moment.after(now));
        let spec = JobSpec { not_before_at: not_before_at.map(Moment::At), ..spec };
        let as_new = Self::submit(self.summary.job_id, spec, self.summary.submitted_at)?;
        let mut new = self.clone();
        new.work.timeout_s = as_new.work.timeout_s;
        let JobSummary { priority, needs, give_up_after_s, tries, .. } = as_new.summary;
        (new.summary.priority, new.summary.needs, new.summary.give_up_after_s) = (priority, needs, give_up_after_s);
        if not_before_at != self.not_before_at {
            (new.not_before_at, new.summary.tries.not_before_at) = (not_before_at, tries.not_before_at);
        }
        Ok((self.summary.state == JobState::Queued && new != *self).then_some(new))
    }

    /// How many of its elements have failed for good.
    pub fn failed_elements(&self) -> u64 {
        let failed = self.summary.tries.elements.map(|counts| counts.failed);
        failed.unwrap_or_else(|| (self.summary.state == JobState::Failed).into())
    }

    /// The job with these newly placed allocs. It becomes placed when all of its members are; a placed job gets one more copy.
    /// `None` in any other state. Raises `tries.copies` above the number of every copy placed. Clears `after`: a placed job follows
    /// no other.
    pub fn with_placed(&self, allocs: &[AllocId]) -> Option<Self> {
        if !matches!(self.summary.state, JobState::Queued | JobState::Placing | JobState::Placed) {
            return None;
        }
        let mut new = self.clone();
        if self.summary.state == JobState::Queued {
            new.summary.tries.usage = None;
        }
        new.summary.after.clear();
        for alloc in allocs {
            new.summary.allocs.insert(*alloc);
            new.summary.tries.copies = new.summary.tries.copies.max(alloc.copy.saturating_add(1));
        }
        let members = new.summary.needs.nodes as usize;
        // The set of a job of one member may still have an older alloc, which is stopping. So its size says nothing.
        let has_all = members == 1 || new.summary.allocs.len() >= members;
        new.summary.state = if has_all { JobState::Placed } else { JobState::Placing };
        new.summary.tries.not_before_at = None;
        new.reason = None;
        Some(new)
    }

    /// The job after its placing was cut short: its members on nodes stop first, then it is queued again. `None` if it is not
    /// placing.
    pub fn cut_short(&self, reason: &str) -> Option<Self> {
        (self.summary.state == JobState::Placing).then(|| {
            let mut new = self.clone();
            new.wait_again(reason);
            new
        })
    }

    /// Whether this alloc of the job may start. No member starts before all of them are placed.
    pub fn lets_start(&self, id: AllocId) -> bool {
        self.summary.state == JobState::Placed && self.summary.allocs.contains(&id)
    }

    /// Cancelled by this person; `None` if the job has ended already.
    pub fn cancel(&self, by: &str, keep: Span, now: Time) -> Option<Self> {
        self.end(JobState::Cancelled, &EndCause::Cancelled { by: by.to_owned() }, keep, now)
    }

    /// Rejected, because no node could ever run it; `None` if it is not queued.
    pub fn reject(&self, reason: &str, keep: Span, now: Time) -> Option<Self> {
        // A job that ran before also says how its last try ended: a retry may have raised its needs.
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

    /// Whether the job has ended, and nothing of its end is missing: the allocs of a cancelled job stop later, and report what they used.
    pub fn is_over(&self) -> bool {
        let JobSummary { state, allocs, .. } = &self.summary;
        state.is_ended() && (*state != JobState::Cancelled || allocs.is_empty())
    }

    fn expire_if_empty(&mut self, keep: Span, now: Time) {
        if self.summary.state.is_ended() && self.summary.allocs.is_empty() {
            self.expires_at = Some((now + keep).as_epoch_s());
        }
    }

    /// `placing, placed or regrouping → queued` for a job without a live alloc. The set `allocs` may still name some allocs;
    /// the caller must have read that none of them is live.
    pub fn requeue(&self, reason: &str) -> Option<Self> {
        let stuck = matches!(self.summary.state, JobState::Placing | JobState::Placed | JobState::Regrouping);
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

    /// The state and its reason in words.
    pub fn now_reason(&self) -> Reason {
        let message = self.reason.as_ref().map_or_else(String::new, |why| format!(": {why}"));
        Reason::JobNow { state: self.summary.state, message }
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
        new.summary.tries.begun |= alloc.started_at.is_some() || ending.cause.exit_code().is_some();
        if set == JobSet::Leaves {
            new.summary.allocs.remove(&id);
        }
        if new.work.image_digest.is_none() {
            new.work.image_digest.clone_from(&ending.run.image_digest);
        }
        new.take_checkpoint(ending.run.checkpoint.as_ref());
        if !self.is_over() {
            // A command that takes a moment is never reported as running.
            let began = |usage: Usage| now - Span::from_ms(usage.ran_ms.cast_signed());
            let began = ending.run.usage.map(|usage| began(usage).max(alloc.placed_at));
            new.started_at = alloc.started_at.or(began).or(new.started_at);
        }
        let news = new.take_elements(ending, set);
        if new.end_with_its_elements(now) {
            new.summary.tries.note_usage(ending.run.usage);
            return new.with_cost(self, alloc, set, times, now);
        }
        if let Some(retries) = &news {
            new.change_for_elements(retries, alloc.node_id);
        }
        // The end of an alloc that was told to stop does not count. Its member was counted when the alloc was told to
        // stop, or another copy takes its place.
        if self.summary.state == JobState::Placed && alloc.desired == Desired::Run {
            new.count_end(alloc, ending, others, news, times, now);
        } else if self.summary.state == JobState::Regrouping && new.summary.allocs.is_empty() {
            let reason = new.reason.take().unwrap_or_default();
            new.queue(&reason);
        } else if self.summary.state == JobState::Placing {
            new.wait_again("a member ended before all of them were placed");
        } else if self.summary.state == JobState::Cancelled {
            new.summary.tries.note_usage(ending.run.usage);
        }
        new.with_cost(self, alloc, set, times, now)
    }

    /// Adds what the alloc cost, once: when it leaves the job, or when the job is over before. What it costs after that is not the job's.
    fn with_cost(mut self, before: &Self, alloc: &AllocSummary, set: JobSet, times: JobTimes, now: Time) -> Self {
        if !before.is_over() && (set == JobSet::Leaves || self.is_over()) {
            self.usd = self.usd + alloc.price_per_hour.in_time(now.since(alloc.placed_at));
        }
        self.expire_if_empty(times.keep, now);
        self
    }

    fn count_end(
        &mut self,
        alloc: &AllocSummary,
        ending: &Ending,
        others: &[AllocSummary],
        news: Option<Vec<Retry>>,
        times: JobTimes,
        now: Time,
    ) {
        let (id, client, cause, payer) = (alloc.alloc_id, ending.client(), &ending.cause, ending.cause.payer());
        let stands_in = client != ClientStatus::Complete && others.iter().any(|o| counts_for(o, id));
        if stands_in {
            return;
        }
        let tries = &mut self.summary.tries;
        tries.cause = Some(cause.clone());
        tries.last_line = ending.run.log_tail.as_deref().and_then(last_line).filter(|_| cause.is_of_the_command());
        tries.note_usage(ending.run.usage);
        // The tries are bounded: at least one element has ended, or has one more failure.
        if let Some(retries) = news.filter(|_| client != ClientStatus::Lost) {
            let pause_s = retries.iter().filter_map(|retry| retry.pause_s).max();
            self.summary.tries.pause(pause_s, times, now);
            let left = self.work_left().pack.map_or(0, |pack| pack.elements.count());
            self.wait_again(&format!("{cause}; {left} of its elements are left to run"));
            return;
        }
        if payer == Payer::Mover && self.move_free(id, ending) {
            return;
        }
        // Only a success is named by no rule.
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
        self.pay(payer);
        let all_moved =
            if payer == Payer::Mover { format!("it was moved {FREE_MOVES} times: ") } else { String::new() };
        let reason = self.reason_of(id, ending, &format!("{all_moved}{verdict}"));
        match verdict.follows {
            RetryOutcome::Again(retry) => {
                self.summary.tries.count_use(verdict.rule, retry.used);
                self.change_for(&retry, alloc.node_id);
                self.summary.tries.pause(retry.pause_s, times, now);
                self.wait_again(&reason);
            }
            RetryOutcome::Fails(_) => {
                self.summary.state = JobState::Failed;
                self.reason = Some(reason);
                self.finished_at = Some(now);
            }
        }
    }

    fn pay(&mut self, payer: Payer) {
        match payer {
            Payer::Nobody | Payer::Start => {}
            Payer::Failures => self.failed_count = self.failed_count.saturating_add(1),
            Payer::Losses | Payer::Mover => self.lost_count = self.lost_count.saturating_add(1),
        }
    }

    /// Moves the job at no cost. Returns `false` if that happened too often.
    fn move_free(&mut self, id: AllocId, ending: &Ending) -> bool {
        let is_free = self.summary.tries.moves < FREE_MOVES;
        if is_free {
            self.summary.tries.moves = self.summary.tries.moves.saturating_add(1);
            let free = format!("this costs no try (move {} of {FREE_MOVES})", self.summary.tries.moves);
            self.wait_again(&self.reason_of(id, ending, &free));
        }
        is_free
    }

    /// What follows if an alloc of the job ends for this cause now. `None` for a success.
    pub fn judge(&self, cause: &EndCause) -> Option<RetryDecision> {
        let JobSummary { tries, needs, .. } = &self.summary;
        self.failure_policy.judge(cause, &tries.rule_uses, needs)
    }

    /// Changes what the job needs for its next try. The change also holds for all later tries.
    fn change_for(&mut self, retry: &Retry, node_id: NodeId) {
        let JobSummary { tries, needs, .. } = &mut self.summary;
        if retry.elsewhere {
            tries.elsewhere = true;
            tries.avoid(node_id);
        }
        *needs = retry.needs(needs);
    }

    /// As [`Self::change_for`], for elements that are tried again, however their alloc ended. The rule that gives the most memory counts last.
    fn change_for_elements(&mut self, retries: &[Retry], node_id: NodeId) {
        let mut retries: Vec<&Retry> = retries.iter().collect();
        retries.sort_by_key(|retry| retry.memory_mib);
        retries.into_iter().for_each(|retry| self.change_for(retry, node_id));
    }

    /// `member 1: exit code 3; no retry is allowed; the last line of its output: boom`
    fn reason_of(&self, id: AllocId, ending: &Ending, retries: &str) -> String {
        let member = if self.summary.needs.nodes > 1 { format!("member {}: ", id.member) } else { String::new() };
        let lost = match ending.cause.payer() {
            Payer::Losses => "lost: ",
            Payer::Mover => "moved: ",
            Payer::Nobody | Payer::Start | Payer::Failures => "",
        };
        let line = self.summary.tries.last_line.as_ref();
        let line = line.map(|line| format!("; the last line of its output: {line}")).unwrap_or_default();
        format!("{member}{lost}{}; {retries}{line}", ending.cause)
    }

    /// Queues the job again, or lets it regroup first if something of it still runs. A try that began beside an earlier one would not
    /// find what that one saves when it is asked to stop.
    fn wait_again(&mut self, reason: &str) {
        if self.summary.allocs.is_empty() {
            self.queue(reason);
        } else {
            self.summary.state = JobState::Regrouping;
            self.reason = Some(reason.to_owned());
        }
    }

    /// The work of its next alloc. Of a pack, only the elements that are left, and how many of them may fail.
    pub fn work_left(&self) -> Work {
        let mut work = self.work.clone();
        if let Some(pack) = &mut work.pack {
            pack.elements = self.elements.left(&pack.elements);
            let failed = u32::try_from(self.failed_elements()).unwrap_or(u32::MAX);
            let left = |max: NonZeroU32| max.get().saturating_sub(failed);
            pack.max_failures = self.summary.max_failures.map(left).and_then(NonZeroU32::new);
        }
        work
    }

    /// The newest checkpoint of this member.
    pub fn checkpoint(&self, member: u32) -> Option<&Checkpoint> {
        self.checkpoints.iter().find(|known| known.alloc_id.member == member)
    }

    /// An alloc may end after a later one of its member: then the later one's checkpoint stays.
    fn take_checkpoint(&mut self, newer: Option<&Checkpoint>) {
        let Some(newer) = newer else { return };
        let AllocId { member, copy, .. } = newer.alloc_id;
        if self.checkpoint(member).is_none_or(|known| known.alloc_id.copy <= copy) {
            self.checkpoints.retain(|known| known.alloc_id.member != member);
            self.checkpoints.push(newer.clone());
        }
    }

    /// Takes the results that an alloc of a pack reported. Returns the retries of the elements that are tried again; `None` if no
    /// result is new, or if the job is no pack.
    fn take_elements(&mut self, ending: &Ending, set: JobSet) -> Option<Vec<Retry>> {
        let pack = self.work.pack.as_ref()?;
        let (policy, needs, limit_s) = (&self.failure_policy, &self.summary.needs, self.work.timeout_s);
        // Each element counts its own failures, for all rules together.
        let judge = |outcome: Outcome, failed: u32| {
            policy.judge(&outcome.cause(limit_s, needs), &vec![failed; policy.rules().count()], needs)
        };
        let news = self.elements.take(&ending.run.elements.results, &pack.elements, set, judge);
        self.summary.tries.elements = Some(ElementCounts::of(&pack.elements, &self.elements.results));
        news
    }

    /// Ends a pack if all its elements have ended, or if so many failed that the others do not begin. Returns whether it did.
    fn end_with_its_elements(&mut self, now: Time) -> bool {
        let Some(pack) = self.work.pack.as_ref().filter(|_| !self.summary.state.is_ended()) else { return false };
        let (results, max_failures) = (&self.elements.results, self.summary.max_failures);
        let Some(cause) = results.cause(&Pack { max_failures, ..pack.clone() }) else { return false };
        let left = self.elements.left(&pack.elements).count();
        let left = max_failures.filter(|_| left > 0).map(|max| format!("; {left} did not run (--max-failures {max})"));
        (self.summary.state, self.reason) = match cause.client() {
            ClientStatus::Complete => (JobState::Complete, None),
            _ => (JobState::Failed, Some(format!("{cause}: {}{}", results.failures(), left.unwrap_or_default()))),
        };
        self.summary.tries.cause = Some(cause);
        self.summary.tries.not_before_at = None;
        self.finished_at = Some(now);
        true
    }
}

#[cfg(test)]
mod tests;
