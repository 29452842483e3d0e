//! What a plan does not do, and why: waiting jobs, idle nodes that stay, and the limits that apply.
//!
//! Guarantees: `plan`, `job`, `jobs`, `nodes`, `status`, the page and the events of a run take their text from here, so
//! that they say the same (`docs/rules.md#R11`).
//! Does not: decide. The plan does, and notes its reasons here while it decides.

use crate::events::Subject;
use crate::ids::{JobId, NodeId, Slot};
use crate::reason::Reason;
use crate::summary::JobSummary;
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};

/// What a plan does not do, and why.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Explanation {
    /// Jobs that wait: one entry for all jobs that wait for the same reasons, in the order of the queue.
    pub waiting: Vec<Waiting>,
    /// The demand sets that apply, by name, and what they have.
    pub sets: Vec<SetNote>,
    /// Idle nodes that this plan does not shut down.
    pub staying: BTreeMap<NodeId, Reason>,
    /// The limits of this plan: pauses, caps that are reached, and brakes that hold.
    pub limits: Vec<Reason>,
    /// The rows that contradict the contract, and what is wrong with them.
    pub rows: Vec<(Subject, Reason)>,
    /// The place in `waiting` of each list of reasons, by its text.
    groups: HashMap<String, usize>,
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
        // Jobs next to each other in the queue mostly wait for the same reasons.
        let last = self.waiting.len().checked_sub(1);
        let same = last.filter(|n| self.waiting.get(*n).is_some_and(|w| w.why == why));
        let group = same.unwrap_or_else(|| *self.groups.entry(joined(why)).or_insert(self.waiting.len()));
        match self.waiting.get_mut(group) {
            Some(waiting) => waiting.jobs.push(job.job_id),
            None => self.waiting.push(Waiting { jobs: vec![job.job_id], first: name_of(job), why: why.to_vec() }),
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

    /// The explanation as plans and answers show it.
    pub fn answer(&self) -> ExplanationAnswer {
        let waiting = |w: &Waiting| {
            Some(WaitingRow {
                job_id: *w.jobs.first()?,
                jobs: w.jobs.len(),
                words: w.why.iter().map(Reason::word).collect(),
                reason: w.reason(),
                line: w.line(),
            })
        };
        let staying = |(node_id, why): (&NodeId, &Reason)| StayingRow {
            slot: node_id.slot(),
            node_id: *node_id,
            word: why.word(),
            reason: why.to_string(),
        };
        let set = |set: &SetNote| SetRow {
            name: set.name.clone(),
            count: set.count,
            ready: set.ready,
            coming: set.coming,
            lacking: set.lacking(),
            words: set.why.iter().map(Reason::word).collect(),
            line: set.line(),
        };
        let limit = |why: &Reason| LimitRow { word: why.word(), reason: why.to_string() };
        ExplanationAnswer {
            waiting: self.waiting.iter().filter_map(waiting).collect(),
            demand_sets: self.sets.iter().map(set).collect(),
            staying: self.staying.iter().map(staying).collect(),
            limits: self.limits.iter().map(limit).collect(),
        }
    }
}

/// An [`Explanation`] in JSON.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ExplanationAnswer {
    /// One row for all jobs that wait for the same reasons.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub waiting: Vec<WaitingRow>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub demand_sets: Vec<SetRow>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub staying: Vec<StayingRow>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub limits: Vec<LimitRow>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct WaitingRow {
    pub job_id: JobId,
    pub jobs: usize,
    pub words: Vec<&'static str>,
    pub reason: String,
    pub line: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SetRow {
    pub name: String,
    pub count: u32,
    pub ready: u32,
    pub coming: u32,
    pub lacking: u32,
    /// The word of each reason why some demands have no node.
    pub words: Vec<&'static str>,
    pub line: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StayingRow {
    pub slot: Slot,
    pub node_id: NodeId,
    pub word: &'static str,
    pub reason: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LimitRow {
    pub word: &'static str,
    pub reason: String,
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
                format!("job {second} waits: its members that still run are stopping: it starts again after them"),
            ]
        );
        let by_job = explained.by_job();
        assert_eq!((by_job.len(), by_job[&jobs[3].job_id].why.clone()), (4, max()));
    }
}
