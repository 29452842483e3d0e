//! The attributes of jobs and allocs that planning reads: those that the two indexes project.
//!
//! Guarantees: a summary reads the same from an index as from the table.
//! Does not: change anything. `job` and `alloc` hold the state machines.

use crate::enums::{AfterEnd, ClientStatus, Desired, JobState};
use crate::spec::{DEFAULT_PRIORITY, MAX_PRIORITY};
use crate::{
    AllocId, AllocIds, Array, EndCause, FailurePolicy, JobId, Needs, NodeId, Reason, Slot, Span, Time, Tries, Usd,
    Version,
};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;

const fn default_priority() -> u32 {
    DEFAULT_PRIORITY
}

/// The attributes of a job that planning reads. The `queue` index projects them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobSummary {
    pub job_id: JobId,
    /// Raised by every write.
    pub version: Version,
    pub state: JobState,
    /// The name that the user gave the job.
    pub name: Option<String>,
    /// Who submitted it, as the command recorded it; `None` if a program wrote its row.
    pub by: Option<String>,
    /// What people sort jobs by. No node has to have them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// The share of the policy that it belongs to.
    pub share: Option<String>,
    /// 0 to 1000; higher comes first.
    #[serde(default = "default_priority")]
    pub priority: u32,
    pub submitted_at: Time,
    #[serde(default)]
    pub needs: Needs,
    /// How many elements its array has; `None`: it is of no array.
    pub array_count: Option<u32>,
    /// How many jobs of its array may be placed at the same time; `None` for any number.
    pub array_limit: Option<NonZeroU32>,
    /// With how many failed elements its array begins no other one.
    pub max_failures: Option<NonZeroU32>,
    /// The jobs that must end before this one is placed, and how. A job that has ended as it must is taken off.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub after: BTreeMap<JobId, AfterEnd>,
    /// Whether an operator has paused it: it is not placed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub paused: bool,
    /// The job is rejected if it has not begun this long after its submission, in seconds; 0 for never.
    #[serde(default, skip_serializing_if = "crate::left_out::is_default")]
    pub give_up_after_s: u64,
    /// How the tries to run the job so far ended.
    #[serde(default, skip_serializing_if = "crate::left_out::is_default")]
    pub tries: Tries,
    /// The members that have completed.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub done: BTreeSet<u32>,
    /// The live allocs of the job.
    #[serde(default, skip_serializing_if = "crate::left_out::is_default")]
    pub allocs: AllocIds,
}

impl JobSummary {
    /// When the first or the next try of a queued job may begin, if that is after `now`.
    pub fn begins_at(&self, now: Time) -> Option<Time> {
        self.tries.not_before_at.filter(|at| self.state == JobState::Queued && *at > now)
    }

    /// Why a queued job may not be placed now, whatever else there is; `None` if it may.
    pub fn own_wait(&self, now: Time) -> Option<Reason> {
        if self.state == JobState::Queued && self.paused {
            return Some(Reason::Paused {});
        }
        self.begins_at(now).map(|at| match &self.tries.cause {
            None => Reason::NotBefore { at },
            Some(cause) => Reason::RetryWaits { why: cause.to_string(), left: at.since(now) },
        })
    }

    /// When a job that has not begun ends.
    pub fn gives_up_at(&self) -> Option<Time> {
        let waits = self.state == JobState::Queued && self.give_up_after_s > 0 && !self.tries.begun;
        waits.then(|| self.submitted_at + Span::from_s(self.give_up_after_s.cast_signed()))
    }

    /// Whether the job is outside of the queue that runs read: it is paused, or it is not placed before a time.
    pub fn is_put_off(&self) -> bool {
        self.state == JobState::Queued && !self.follows() && (self.paused || self.tries.not_before_at.is_some())
    }

    /// Whether the job waits for something other than room: other jobs, a time, or an operator.
    pub fn is_ineligible(&self) -> bool {
        self.follows() || self.is_put_off()
    }

    /// When a run must look at it, wherever it waits.
    pub fn due_at(&self) -> Option<Time> {
        let begins_at = self.tries.not_before_at.filter(|_| self.is_put_off() && !self.paused);
        begins_at.into_iter().chain(self.gives_up_at()).min()
    }

    /// Its number in its array, or the first number of a pack; `None`: it is of no array.
    pub fn array_index(&self) -> Option<u32> {
        self.array_count.map(|_| Array::number(self.job_id))
    }

    /// Whether the job waits for the end of other jobs.
    pub fn follows(&self) -> bool {
        self.state == JobState::Queued && !self.after.is_empty()
    }

    /// Whether it was rejected because a job that it follows did not complete.
    pub fn was_rejected_as_follower(&self) -> bool {
        let Some(EndCause::Rejected { why }) = &self.tries.cause else { return false };
        self.after.keys().any(|id| why.contains(&id.to_string()))
    }

    /// The sort key of the `queue` index: higher priority first, then earlier submission.
    pub fn rank(&self) -> String {
        format!("{:04}#{}", MAX_PRIORITY.saturating_sub(self.priority), self.job_id)
    }
}

/// The attributes of an alloc that planning reads. The `live` index projects them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AllocSummary {
    pub alloc_id: AllocId,
    pub slot: Slot,
    pub node_id: NodeId,
    pub desired: Desired,
    pub client: ClientStatus,
    /// The `seq` of the node when the alloc was placed.
    pub placed_seq: u64,
    pub placed_at: Time,
    /// When the alloc was first reported as running.
    pub started_at: Option<Time>,
    /// What its node does for it while its command does not run, for people: `pulling IMAGE`. `None` if that takes no time.
    pub phase: Option<String>,
    /// Whether the alloc became unknown, and it is not decided yet which copy stays.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub awaiting: bool,
    pub unknown_since_at: Option<Time>,
    /// Since when the alloc has the order to stop.
    pub stopping_since_at: Option<Time>,
    /// The alloc that this copy replaces.
    pub replaces: Option<AllocId>,
    /// The copy that replaces this alloc.
    pub replaced_by: Option<AllocId>,
    /// The share of its job, and who submitted it.
    pub share: Option<String>,
    pub by: Option<String>,
    #[serde(default)]
    pub needs: Needs,
    /// What its part of the node costs.
    #[serde(default)]
    pub price_per_hour: Usd,
    #[serde(default)]
    pub failure_policy: FailurePolicy,
}

/// The attributes of an ended alloc that costs are computed from. The `ended` index projects them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EndedAlloc {
    pub alloc_id: AllocId,
    pub node_id: NodeId,
    pub placed_at: Time,
    pub finished_at: Time,
    #[serde(default)]
    pub needs: Needs,
    pub price_per_hour: Usd,
    /// Of its job.
    pub name: Option<String>,
    pub by: Option<String>,
    pub share: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

impl AllocSummary {
    /// Whether its node certainly has it: its command runs, or its image and its inputs are fetched.
    pub const fn has_begun(&self) -> bool {
        matches!(self.client, ClientStatus::Running)
            || matches!(self.client, ClientStatus::Pending) && self.phase.is_some()
    }
}

/// Whether `other` is another copy of the same member that is live and was not told to stop.
pub fn counts_for(other: &AllocSummary, id: AllocId) -> bool {
    other.alloc_id != id
        && other.alloc_id.member == id.member
        && other.desired == Desired::Run
        && !other.client.is_final()
}
