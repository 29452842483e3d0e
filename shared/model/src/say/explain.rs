//! What a plan does not do, and why: waiting jobs, idle nodes that stay, and the limits that apply.
//!
//! Guarantees: `plan`, `job`, `jobs`, `nodes`, `status`, the page and the events of a run take their text from here, so
//! that they say the same (`docs/rules.md#R11`).
//! Does not: decide. The plan does, and notes its reasons here while it decides.

use crate::{JobId, JobSummary, NodeId, Reason, Subject};
use serde::{Serialize, Serializer};
use serde_json::json;
use std::collections::{BTreeMap, HashMap};

/// What a plan does not do, and why.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Explanation {
    /// Jobs that wait: one entry for all jobs that wait for the same reasons, in the order of the queue.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub waiting: Vec<Waiting>,
    /// The demand sets that apply, by name, and what they have.
    #[serde(rename = "demand_sets", skip_serializing_if = "Vec::is_empty")]
    pub sets: Vec<SetNote>,
    /// Idle nodes that this plan does not shut down.
    #[serde(serialize_with = "staying", skip_serializing_if = "BTreeMap::is_empty")]
    pub staying: BTreeMap<NodeId, Reason>,
    /// The limits of this plan: pauses, caps that are reached, and brakes that hold.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub limits: Vec<Reason>,
    /// The rows that contradict the contract, and what is wrong with them.
    #[serde(skip)]
    pub rows: Vec<(Subject, Reason)>,
    /// The place in `waiting` of each list of reasons.
    #[serde(skip)]
    groups: HashMap<Vec<Reason>, usize>,
}

/// How many demands of a set have a node.
#[derive(Clone, Debug, PartialEq)]
pub struct SetNote {
    pub name: String,
    /// How many demands the set has.
    pub count: u32,
    /// How many of them have a node that is ready.
    pub ready: u32,
    /// How many of them wait for a node that boots, or that this or a later run launches.
    pub coming: u32,
    /// Why the rest has no node; empty if there is no rest.
    pub why: Vec<Reason>,
}

impl SetNote {
    /// How many demands have no node, and none to come.
    pub const fn lacking(&self) -> u32 {
        self.count.saturating_sub(self.ready).saturating_sub(self.coming)
    }

    /// Why some demands have no node; `None` if all of them have one, or one to come.
    pub fn lacks(&self) -> Option<Reason> {
        let (set, count, lacking) = (self.name.clone(), self.count, self.lacking());
        (lacking > 0).then(|| Reason::SetLacks { set, lacking, count, why: joined(&self.why) })
    }

    /// The set in one line.
    pub fn line(&self) -> String {
        let Self { name, count, ready, coming, .. } = self;
        let lacks = self.lacks().map(|why| format!("; {why}")).unwrap_or_default();
        format!("demand set {name}: {ready} of {count} ready, {coming} to come{lacks}")
    }
}

/// Jobs that wait for the same reasons.
#[derive(Clone, Debug, PartialEq)]
pub struct Waiting {
    /// The jobs, in the order of the queue. There is at least one.
    pub jobs: Vec<JobId>,
    /// The first of them, as [`name_of`] names it.
    pub first: String,
    pub why: Vec<Reason>,
}

impl Waiting {
    /// All reasons in one text.
    pub fn reason(&self) -> String {
        joined(&self.why)
    }

    /// The jobs and their reasons in one line.
    pub fn line(&self) -> String {
        match self.jobs.len() {
            0 | 1 => format!("job {} waits: {}", self.first, self.reason()),
            n => format!("{n} jobs like {} wait: {}", self.first, self.reason()),
        }
    }
}

fn joined(why: &[Reason]) -> String {
    why.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// A job as people know it: its name and its id, or only its id.
pub fn name_of(job: &JobSummary) -> String {
    job.name.as_ref().map_or_else(|| job.job_id.to_string(), |name| format!("{name} ({})", job.job_id))
}

impl Explanation {
    /// Notes that a job waits, and why. `why` must not be empty.
    pub fn waits(&mut self, job: &JobSummary, why: &[Reason]) {
        match self.groups.get(why).and_then(|n| self.waiting.get_mut(*n)) {
            Some(waiting) => waiting.jobs.push(job.job_id),
            None => {
                self.groups.insert(why.to_vec(), self.waiting.len());
                self.waiting.push(Waiting { jobs: vec![job.job_id], first: name_of(job), why: why.to_vec() });
            }
        }
    }

    /// Notes that an idle node stays, and why.
    pub fn stays(&mut self, node_id: NodeId, why: Reason) {
        self.staying.insert(node_id, why);
    }

    /// Notes a limit, once.
    pub fn limits(&mut self, limit: &Reason) {
        if !self.limits.contains(limit) {
            self.limits.push(limit.clone());
        }
    }

    pub fn by_job(&self) -> BTreeMap<JobId, &Waiting> {
        self.waiting.iter().flat_map(|w| w.jobs.iter().map(move |id| (*id, w))).collect()
    }
}

impl Serialize for Waiting {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let (job_id, words) = (self.jobs.first(), words(&self.why));
        let row = json!({
            "job_id": job_id, "jobs": self.jobs.len(), "words": words, "reason": self.reason(), "line": self.line(),
        });
        row.serialize(to)
    }
}

impl Serialize for SetNote {
    /// The words are those of the reasons why some demands have no node.
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let Self { name, count, ready, coming, why } = self;
        let (lacking, words, line) = (self.lacking(), words(why), self.line());
        let row = json!({
            "name": name, "count": count, "ready": ready, "coming": coming, "lacking": lacking, "words": words, "line": line,
        });
        row.serialize(to)
    }
}

impl Serialize for Reason {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        json!({"word": self.word(), "reason": self.to_string()}).serialize(to)
    }
}

fn words(why: &[Reason]) -> Vec<&'static str> {
    why.iter().map(Reason::word).collect()
}

fn staying<S: Serializer>(staying: &BTreeMap<NodeId, Reason>, to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(staying.iter().map(|(node_id, why)| {
        json!({"slot": node_id.slot(), "node_id": node_id, "word": why.word(), "reason": why.to_string()})
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;

    #[test]
    fn jobs_that_wait_for_the_same_reasons_share_a_line() {
        let mut explained = Explanation::default();
        let jobs: Vec<JobSummary> = (0..4).map(|n| fixtures::job(n).summary).collect();
        let max = || vec![Reason::NodesMax { max: 6, there: 6 }];
        explained.waits(&jobs[0], &max());
        explained.waits(&jobs[1], &[Reason::RegroupingMembers {}]);
        explained.waits(&jobs[2], &max());
        explained.waits(&jobs[3], &max());
        let lines: Vec<String> = explained.waiting.iter().map(Waiting::line).collect();
        let [first, second] = [&jobs[0], &jobs[1]].map(|j| j.job_id);
        assert_eq!(
            lines,
            [
                format!("3 jobs like {first} wait: all 6 nodes that nodes.max allows are there"),
                format!("job {second} waits: what still runs of it is stopping: it starts again after that"),
            ]
        );
        let by_job = explained.by_job();
        assert_eq!((by_job.len(), by_job[&jobs[3].job_id].why.clone()), (4, max()));
    }
}
