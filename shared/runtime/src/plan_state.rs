//! What `plan --state` reads and `plan --save` writes: an observation as JSON.
//!
//! Guarantees: an observation that is saved and read gives the same plan. What is saved has no environment and no output of a job, and
//! no user data of nodes.
//! Does not: hide names, addresses or instance ids; keep what is wrong with the rows that are quarantined.

use crate::observation::{Observation, QueueRead, ends, followed_of};
use crate::shares::SharesRead;
use crate::validation::Quarantined;
use model::after::{Ends, Followed};
use model::control::{ListPlace, UnreadableEntry};
use model::left_out::without_nulls;
use model::{AllocSummary, Array, Control, Instance, JobId, JobSummary, NodeRecord, Policy, Time};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// An input of `plan --state` that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the state cannot be read: {0}")]
pub struct BadState(pub String);

/// The lists, with rows as in the tables, and below them what a run has derived from what it read besides.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PlanState {
    now: Option<Time>,
    nodes: Vec<NodeRecord>,
    instances: Vec<Instance>,
    jobs: Vec<JobSummary>,
    allocs: Vec<AllocSummary>,
    control: BTreeMap<String, Value>,
    unreadable_control: Vec<UnreadableEntry>,
    policy: Option<Value>,
    is_large: bool,
    queue: QueueRead,
    /// How followed jobs ended; `None`: the jobs in the list tell it.
    followed: Option<BTreeMap<JobId, Followed>>,
    /// By a job of the array.
    failures: BTreeMap<JobId, u64>,
    /// What each share has used.
    used: BTreeMap<String, f64>,
    quarantined: Quarantined,
    after_place: Option<ListPlace>,
}

impl Observation {
    /// What `plan --save` writes of this observation.
    pub fn to_state(&self, now: Time) -> PlanState {
        let mut policy = self.policy.clone();
        policy.launch.user_data = String::new();
        let policy = policy.to_json();
        let mut control = self.control.clone();
        if let Some(row) = &mut control.policy {
            row.entry.document = policy.to_string();
        }
        let mut jobs = self.jobs.clone();
        jobs.iter_mut().for_each(|job| job.tries.last_line = None);
        PlanState {
            now: Some(now),
            nodes: self.nodes.clone(),
            instances: self.instances.clone(),
            jobs,
            allocs: self.allocs.clone(),
            unreadable_control: control.unreadable.clone(),
            control: control.to_rows(),
            policy: Some(policy),
            is_large: self.is_large,
            queue: self.queue.clone(),
            followed: Some(self.ends.clone()),
            failures: self.failures.iter().map(|(array, failed)| (array.job(0), *failed)).collect(),
            used: self.shares.used.clone(),
            quarantined: self.quarantined.clone(),
            after_place: self.after_place.clone(),
        }
    }

    /// Reads the input of `plan --state`: one JSON object.
    pub fn from_state(state: &Value, policy: Option<&Policy>) -> Result<(Self, Time), BadState> {
        let state: PlanState =
            serde_json::from_value(without_nulls(state.clone())).map_err(|e| BadState(e.to_string()))?;
        let now = state.now.ok_or_else(|| BadState("it has no \"now\"".into()))?;
        let rows = state.control.into_iter().map(|(key, mut row)| {
            if let Value::Object(fields) = &mut row {
                fields.entry("key").or_insert_with(|| Value::String(key));
            }
            row
        });
        let mut control = Control::from_rows(rows);
        control.unreadable.extend(state.unreadable_control);
        let policy = match (policy, &state.policy) {
            (Some(policy), _) => policy.clone(),
            (None, Some(document)) => Policy::from_json(document).map_err(|e| BadState(e.to_string()))?,
            (None, None) => return Err(BadState("it has no policy: add \"policy\", or give --policy F".into())),
        };
        // A state without the catalogue of EC2 leaves the sizes of the policy as they are.
        let policy = if control.catalogue.is_some() { policy.with_catalogue(control.catalogue()) } else { policy };
        let jobs = state.jobs;
        let ends: Ends = state.followed.unwrap_or_else(|| ends(followed_of(&jobs), BTreeSet::new(), jobs.iter()));
        let policy_version = control.policy.as_ref().map_or(0, |p| p.version.number());
        let read = Self {
            nodes: state.nodes,
            instances: state.instances,
            is_large: state.is_large,
            jobs: jobs.into_iter().filter(|j| !j.state.is_ended()).collect(),
            queue: state.queue,
            ends,
            failures: state.failures.into_iter().map(|(job, failed)| (Array::of(job), failed)).collect(),
            after_place: state.after_place,
            allocs: state.allocs.into_iter().filter(|a| !a.client.is_final()).collect(),
            shares: SharesRead { used: state.used, ..SharesRead::default() },
            quarantined: state.quarantined,
            control,
            ..Self::empty(policy, policy_version, now)
        };
        Ok((read.sorted_out().with_differing(), now))
    }
}
