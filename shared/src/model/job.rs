//! The job: what a user wants run, and how its state follows its allocs' ends.
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
//! Guarantees: only a placed job is counted or changes state by an alloc's end; an ended job
//! stays as it ended; it expires only once its allocs are gone.
//! Does not: place anything (poll-and-scale's plan) or stop allocs (derived there each run).

use crate::ids::{AllocId, JobId};
use crate::model::alloc::AllocSummary;
use crate::model::node::{Capacity, Version};
use crate::model::{ClientStatus, Desired, JobState, Market, Reconcile};
use crate::time::{Span, Time};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// The most nodes one job may ask for at once.
pub const MAX_NODES: u32 = 24;
/// The highest priority.
pub const MAX_PRIORITY: u32 = 1000;
/// The most bytes a command and its environment may have together.
pub const MAX_COMMAND_BYTES: usize = 16 * 1024;
/// The most items DynamoDB takes in one transaction.
pub const MAX_TRANSACTION_ITEMS: usize = 100;

/// What planning needs of a job: what the `queue` index projects, so at most 20 attributes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobSummary {
    /// Its key.
    pub job_id: JobId,
    /// Raised by every write.
    pub version: Version,
    /// Where it stands.
    pub state: JobState,
    /// The user's name for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// 0 to 1000, higher first.
    #[serde(default = "default_priority")]
    pub priority: u32,
    /// When it was submitted.
    pub submitted_at: Time,
    /// What one member needs.
    #[serde(flatten)]
    pub capacity: Capacity,
    /// Only this instance type will do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance_type: Option<String>,
    /// Only this market will do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub market: Option<Market>,
    /// Shares its nodes with nobody.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub exclusive: bool,
    /// Its members, each on a node of its own.
    #[serde(default = "one")]
    pub nodes: u32,
    /// Copies ever placed: the next alloc's number.
    #[serde(default)]
    pub copies: u32,
    /// The members that are done.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub done: BTreeSet<u32>,
    /// Its live allocs.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub allocs: BTreeSet<AllocId>,
}

/// A row of the jobs table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// What planning needs.
    #[serde(flatten)]
    pub summary: JobSummary,
    /// What is run.
    #[serde(flatten)]
    pub work: Work,
    /// How its allocs are treated.
    #[serde(flatten)]
    pub terms: Terms,
    /// How often it may be run again after failing by itself.
    #[serde(default)]
    pub retry_failed: u32,
    /// How often it may be run again after its node was lost.
    #[serde(default = "default_retry_lost")]
    pub retry_lost: u32,
    /// How often it failed by itself.
    #[serde(default)]
    pub failed_count: u32,
    /// How often its node was lost.
    #[serde(default)]
    pub lost_count: u32,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Time>,
    /// Why it is where it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Epoch **seconds**: DynamoDB deletes the row some time after. Set once its allocs are gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<i64>,
}

/// What is run, copied from the job to each of its allocs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Work {
    /// The program and its arguments.
    pub command: Vec<String>,
    /// Added to the environment.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// The container image, where the nodes run containers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Named volumes that outlive the alloc.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub caches: Vec<String>,
    /// Stopped after so long, in seconds; 0 for never.
    #[serde(default)]
    pub timeout_s: u64,
}

/// How a job's allocs are treated, copied to each of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terms {
    /// From TERM to KILL, in seconds.
    #[serde(default = "default_kill_timeout")]
    pub kill_timeout_s: u64,
    /// How long a silent node's running alloc is waited for, in seconds; 0 for not at all.
    #[serde(default = "default_lost_after")]
    pub lost_after_s: u64,
    /// Whether a copy is placed elsewhere meanwhile.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub replace: bool,
    /// Which copy is kept when both run.
    #[serde(default = "default_reconcile")]
    pub reconcile: Reconcile,
}

impl Default for Terms {
    fn default() -> Self {
        Self {
            kill_timeout_s: default_kill_timeout(),
            lost_after_s: default_lost_after(),
            replace: false,
            reconcile: default_reconcile(),
        }
    }
}

/// What a user submits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the fields are documented where they are kept: JobSummary, Work, Terms and Job")]
pub struct JobSpec {
    pub command: Vec<String>,
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    pub name: Option<String>,
    #[serde(default = "default_priority")]
    pub priority: u32,
    #[serde(default = "one")]
    pub vcpus: u32,
    #[serde(default)]
    pub memory_mib: u64,
    #[serde(default)]
    pub scratch_gib: u64,
    #[serde(default)]
    pub gpus: u32,
    pub instance_type: Option<String>,
    pub market: Option<Market>,
    #[serde(default)]
    pub exclusive: bool,
    #[serde(default = "one")]
    pub nodes: u32,
    pub image: Option<String>,
    #[serde(default)]
    pub caches: Vec<String>,
    #[serde(default)]
    pub timeout_s: u64,
    #[serde(flatten)]
    pub terms: Terms,
    #[serde(default)]
    pub retry_failed: u32,
    #[serde(default = "default_retry_lost")]
    pub retry_lost: u32,
}

impl Default for JobSpec {
    fn default() -> Self {
        Self {
            command: Vec::new(),
            env: BTreeMap::new(),
            name: None,
            priority: default_priority(),
            vcpus: 1,
            memory_mib: 0,
            scratch_gib: 0,
            gpus: 0,
            instance_type: None,
            market: None,
            exclusive: false,
            nodes: 1,
            image: None,
            caches: Vec::new(),
            timeout_s: 0,
            terms: Terms::default(),
            retry_failed: 0,
            retry_lost: default_retry_lost(),
        }
    }
}

const fn default_priority() -> u32 {
    500
}
const fn one() -> u32 {
    1
}
const fn default_retry_lost() -> u32 {
    3
}
const fn default_kill_timeout() -> u64 {
    30
}
const fn default_lost_after() -> u64 {
    600
}
const fn default_reconcile() -> Reconcile {
    Reconcile::Best
}

/// Everything that is wrong with a submission, at once.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the job was not submitted: {}", .0.join("; "))]
pub struct BadJob(pub Vec<String>);

impl Job {
    /// A new job, queued.
    pub fn submit(job_id: JobId, spec: JobSpec, now: Time) -> Result<Self, BadJob> {
        let mut wrong = Vec::new();
        let mut check = |ok: bool, message: String| {
            if !ok {
                wrong.push(message);
            }
        };
        check(spec.command.first().is_some_and(|c| !c.is_empty()), "it has no command: give one after --".into());
        check(spec.vcpus >= 1, "--vcpus must be at least 1".into());
        check((1..=MAX_NODES).contains(&spec.nodes), format!("--nodes must be 1 to {MAX_NODES}, it is {}", spec.nodes));
        check(
            spec.priority <= MAX_PRIORITY,
            format!("--priority must be 0 to {MAX_PRIORITY}, it is {}", spec.priority),
        );
        let bytes = spec.command.iter().map(String::len).sum::<usize>()
            + spec.env.iter().map(|(k, v)| k.len() + v.len()).sum::<usize>();
        check(
            bytes <= MAX_COMMAND_BYTES,
            format!(
                "command and environment have {bytes} bytes, {MAX_COMMAND_BYTES} are allowed: pass data by a file or a URL"
            ),
        );
        for name in spec.env.keys() {
            check(
                !name.is_empty() && !name.contains('=') && !name.contains('\0'),
                format!("{name:?} is not a name for an environment variable"),
            );
        }
        check(
            !spec.command.iter().chain(spec.env.values()).any(|s| s.contains('\0')),
            "command and environment must not contain a NUL character".into(),
        );
        let cache_ok = |c: &String| {
            (1..=64).contains(&c.len()) && c.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_')
        };
        for cache in spec.caches.iter().filter(|c| !cache_ok(c)) {
            check(false, format!("cache name {cache:?} must be 1 to 64 letters, digits, '-' or '_'"));
        }
        let unique: BTreeSet<_> = spec.caches.iter().collect();
        check(unique.len() == spec.caches.len(), "a cache is named twice".into());
        // A copy's placing writes the original too.
        let original = usize::from(spec.terms.replace && spec.nodes == 1);
        let items = 1 + original + spec.nodes as usize * (2 + 1 + spec.caches.len());
        check(
            items <= MAX_TRANSACTION_ITEMS,
            format!(
                "placing {} members with {} caches each takes {items} writes at once and DynamoDB takes \
                 {MAX_TRANSACTION_ITEMS}: use fewer nodes or caches",
                spec.nodes,
                spec.caches.len()
            ),
        );
        // Far beyond any machine, and far below where arithmetic would end.
        check(
            spec.memory_mib <= 1 << 32 && spec.scratch_gib <= 1 << 32 && spec.vcpus <= 1 << 20 && spec.gpus <= 1 << 20,
            "no machine has that much: check --vcpus, --memory, --scratch and --gpus".into(),
        );
        const YEAR_S: u64 = 366 * 86_400;
        check(
            spec.timeout_s <= YEAR_S && spec.terms.kill_timeout_s <= YEAR_S && spec.terms.lost_after_s <= YEAR_S,
            "time-outs must be at most a year".into(),
        );
        if !wrong.is_empty() {
            return Err(BadJob(wrong));
        }
        Ok(Self {
            summary: JobSummary {
                job_id,
                version: Version::UNWRITTEN,
                state: JobState::Queued,
                name: spec.name.filter(|n| !n.is_empty()),
                priority: spec.priority,
                submitted_at: now,
                capacity: Capacity {
                    vcpus: spec.vcpus,
                    memory_mib: spec.memory_mib,
                    scratch_gib: spec.scratch_gib,
                    gpus: spec.gpus,
                },
                instance_type: spec.instance_type,
                market: spec.market,
                exclusive: spec.exclusive,
                nodes: spec.nodes,
                copies: 0,
                done: BTreeSet::new(),
                allocs: BTreeSet::new(),
            },
            work: Work {
                command: spec.command,
                env: spec.env,
                image: spec.image,
                caches: spec.caches,
                timeout_s: spec.timeout_s,
            },
            terms: spec.terms,
            retry_failed: spec.retry_failed,
            retry_lost: spec.retry_lost,
            failed_count: 0,
            lost_count: 0,
            finished_at: None,
            reason: None,
            expires_at: None,
        })
    }

    /// `queued → placed` with these allocs, or a placed job with one copy more. Raises
    /// `copies` past every copy placed.
    pub fn with_placed(&self, allocs: &[AllocId]) -> Option<Self> {
        if !matches!(self.summary.state, JobState::Queued | JobState::Placed) {
            return None;
        }
        let mut new = self.clone();
        new.summary.state = JobState::Placed;
        for alloc in allocs {
            new.summary.allocs.insert(*alloc);
            new.summary.copies = new.summary.copies.max(alloc.copy.saturating_add(1));
        }
        new.reason = None;
        Some(new)
    }

    /// The operator's cancel; `None` if it has ended already.
    pub fn cancel(&self, keep: Span, now: Time) -> Option<Self> {
        self.end(JobState::Cancelled, "cancelled by the operator", keep, now)
    }

    /// Nothing can ever run it; only a queued job is judged.
    pub fn reject(&self, reason: &str, keep: Span, now: Time) -> Option<Self> {
        (self.summary.state == JobState::Queued).then(|| self.end(JobState::Rejected, reason, keep, now)).flatten()
    }

    fn end(&self, state: JobState, reason: &str, keep: Span, now: Time) -> Option<Self> {
        if self.summary.state.is_ended() {
            return None;
        }
        let mut new = self.clone();
        new.summary.state = state;
        new.reason = Some(reason.to_owned());
        new.finished_at = Some(now);
        new.expire_if_empty(keep, now);
        Some(new)
    }

    fn expire_if_empty(&mut self, keep: Span, now: Time) {
        if self.summary.state.is_ended() && self.summary.allocs.is_empty() {
            self.expires_at = Some((now + keep).as_epoch_s());
        }
    }

    /// `placed → queued` for a job that has no alloc at all although members are missing. The caller
    /// has seen that none of those it lists, if it lists any, is there.
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

    /// What the end of `alloc` (as it was before) makes of its job. `others` are the job's
    /// other live allocs. `left` is false for an alloc that only received its stop order at a
    /// drain's deadline: its member is lost, but it stays in the set until it is final.
    pub fn after_end(
        &self,
        alloc: &AllocSummary,
        client: ClientStatus,
        others: &[AllocSummary],
        left: bool,
        keep: Span,
        now: Time,
    ) -> Self {
        let mut new = self.clone();
        let id = alloc.alloc_id;
        if left {
            new.summary.allocs.remove(&id);
        }
        // An alloc that was told to stop never ends a job: its member was counted then.
        if self.summary.state == JobState::Placed && alloc.desired == Desired::Run {
            new.count_end(id, client, others, now);
        } else if self.summary.state == JobState::Regrouping && new.summary.allocs.is_empty() {
            new.queue("all its members have stopped: it starts again");
        }
        new.expire_if_empty(keep, now);
        new
    }

    fn count_end(&mut self, id: AllocId, client: ClientStatus, others: &[AllocSummary], now: Time) {
        let (count, allowed, how) = match client {
            ClientStatus::Complete => {
                self.summary.done.insert(id.member);
                if self.summary.done.len() >= self.summary.nodes as usize {
                    self.summary.state = JobState::Complete;
                    self.reason = None;
                    self.finished_at = Some(now);
                }
                return;
            }
            _ if others.iter().any(|o| counts_for(o, id)) => return,
            ClientStatus::Failed => (&mut self.failed_count, self.retry_failed, "failed"),
            _ => (&mut self.lost_count, self.retry_lost, "lost its node"),
        };
        *count = count.saturating_add(1);
        let reason = format!("member {} {how}: time {count}, with {allowed} retries allowed ({id})", id.member);
        if *count > allowed {
            self.summary.state = JobState::Failed;
            self.reason = Some(reason);
            self.finished_at = Some(now);
        } else if self.summary.nodes > 1 && !self.summary.allocs.is_empty() {
            self.summary.state = JobState::Regrouping;
            self.reason = Some(reason);
        } else {
            self.queue(&reason);
        }
    }

    /// The sort key of the `queue` index: higher priority first, then submission.
    pub fn rank(&self) -> String {
        format!("{:04}#{}", MAX_PRIORITY.saturating_sub(self.summary.priority), self.summary.job_id)
    }
}

/// Whether `other` still stands for the member of `id`: another live copy that is to run.
pub fn counts_for(other: &AllocSummary, id: AllocId) -> bool {
    other.alloc_id != id
        && other.alloc_id.member == id.member
        && other.desired == Desired::Run
        && !other.client.is_final()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::fixtures::{self, at};

    const KEEP: Span = Span::from_s(7 * 86_400);

    fn placed(nodes: u32, retry_failed: u32, retry_lost: u32) -> (Job, Vec<AllocSummary>) {
        let spec = JobSpec { command: vec!["true".into()], nodes, retry_failed, retry_lost, ..JobSpec::default() };
        let job = Job::submit(fixtures::job_id(0), spec, at(0)).unwrap();
        let allocs: Vec<_> = (0..nodes)
            .map(|n| {
                let id = AllocId { job_id: job.summary.job_id, member: n, copy: n };
                crate::model::Alloc::place(id, &job, &fixtures::ready(n), at(1)).unwrap().summary
            })
            .collect();
        let ids: Vec<_> = allocs.iter().map(|a| a.alloc_id).collect();
        (job.with_placed(&ids).unwrap(), allocs)
    }

    #[test]
    fn a_job_is_complete_when_every_member_is() {
        let (job, allocs) = placed(2, 0, 0);
        let one = job.after_end(&allocs[0], ClientStatus::Complete, &allocs[1..], true, KEEP, at(5));
        assert_eq!(one.summary.state, JobState::Placed);
        assert_eq!(one.expires_at, None);
        let both = one.after_end(&allocs[1], ClientStatus::Complete, &[], true, KEEP, at(6));
        assert_eq!((both.summary.state, both.finished_at), (JobState::Complete, Some(at(6))));
        assert!(both.expires_at.is_some() && both.summary.allocs.is_empty());
    }

    #[test]
    fn a_failure_is_retried_as_often_as_allowed() {
        let (job, allocs) = placed(1, 1, 0);
        let again = job.after_end(&allocs[0], ClientStatus::Failed, &[], true, KEEP, at(5));
        assert_eq!((again.summary.state, again.failed_count), (JobState::Queued, 1));
        let placed = again.with_placed(&[allocs[0].alloc_id]).unwrap();
        let failed = placed.after_end(&allocs[0], ClientStatus::Failed, &[], true, KEEP, at(6));
        assert_eq!(failed.summary.state, JobState::Failed);
        // retry_lost = 0: never a second time.
        let lost = job.after_end(&allocs[0], ClientStatus::Lost, &[], true, KEEP, at(5));
        assert_eq!(lost.summary.state, JobState::Failed);
    }

    #[test]
    fn another_live_copy_stands_in_unless_it_is_told_to_stop() {
        let (job, allocs) = placed(1, 0, 0);
        let mut copy = allocs[0].clone();
        copy.alloc_id.copy = 7;
        let kept = job.after_end(&allocs[0], ClientStatus::Lost, &[copy.clone()], true, KEEP, at(5));
        assert_eq!((kept.summary.state, kept.lost_count), (JobState::Placed, 0));
        copy.desired = Desired::Stop;
        let ended = job.after_end(&allocs[0], ClientStatus::Lost, &[copy], true, KEEP, at(5));
        assert_eq!(ended.summary.state, JobState::Failed);
    }

    #[test]
    fn several_members_regroup_and_start_together() {
        let (job, allocs) = placed(3, 0, 3);
        let one_done = job.after_end(&allocs[0], ClientStatus::Complete, &allocs[1..], true, KEEP, at(4));
        let regrouping = one_done.after_end(&allocs[1], ClientStatus::Lost, &allocs[2..], true, KEEP, at(5));
        assert_eq!(regrouping.summary.state, JobState::Regrouping);
        let mut stopped = allocs[2].clone();
        stopped.desired = Desired::Stop;
        let queued = regrouping.after_end(&stopped, ClientStatus::Complete, &[], true, KEEP, at(6));
        assert_eq!(queued.summary.state, JobState::Queued);
        assert!(queued.summary.done.is_empty());
    }

    #[test]
    fn an_alloc_told_to_stop_never_ends_a_job() {
        let (job, allocs) = placed(1, 0, 0);
        let mut stopped = allocs[0].clone();
        stopped.desired = Desired::Stop;
        for client in [ClientStatus::Complete, ClientStatus::Failed, ClientStatus::Lost] {
            let after = job.after_end(&stopped, client, &[], true, KEEP, at(5));
            assert_eq!((after.summary.state, after.failed_count, after.lost_count), (JobState::Placed, 0, 0));
        }
    }

    #[test]
    fn an_ended_job_expires_only_when_its_allocs_are_gone() {
        let (job, allocs) = placed(1, 0, 0);
        let cancelled = job.cancel(KEEP, at(5)).unwrap();
        assert_eq!(cancelled.expires_at, None);
        assert!(cancelled.cancel(KEEP, at(6)).is_none());
        let gone = cancelled.after_end(&allocs[0], ClientStatus::Failed, &[], true, KEEP, at(7));
        assert_eq!((gone.summary.state, gone.expires_at), (JobState::Cancelled, Some((at(7) + KEEP).as_epoch_s())));
    }

    #[test]
    fn a_bad_submission_lists_every_mistake() {
        let spec = JobSpec { vcpus: 0, nodes: 25, priority: 1001, caches: vec!["a/b".into()], ..JobSpec::default() };
        let BadJob(wrong) = Job::submit(fixtures::job_id(0), spec, at(0)).unwrap_err();
        assert!(wrong.len() >= 5, "{wrong:?}");
        let spec = JobSpec {
            command: vec!["x".into()],
            nodes: 24,
            caches: (0..3).map(|n| format!("c{n}")).collect(),
            ..JobSpec::default()
        };
        let BadJob(wrong) = Job::submit(fixtures::job_id(0), spec, at(0)).unwrap_err();
        assert!(wrong[0].contains("145 writes"), "{wrong:?}");
    }
}
