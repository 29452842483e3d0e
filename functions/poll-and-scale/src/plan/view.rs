//! The observation with indexes, in which every stage looks things up.
//!
//! Guarantees: the view remembers which nodes earlier stages have decided about, so that a run makes at most one
//! decision about a node.
//! Does not: decide.

use super::belief::Belief;
use model::cloud::{Instance, InstanceState};
use model::ids::{AllocId, JobId, NodeId};
use model::time::Time;
use model::{AllocSummary, JobSummary, Life, NodeRecord};
use runtime::observation::Observation;
use std::collections::{BTreeMap, BTreeSet};

/// The time from one scheduled run to the next, in seconds. A decision for the last run before a moment looks this far
/// ahead.
pub(crate) const PERIOD_S: i64 = 60;

/// The observation with indexes, and the nodes that are decided.
pub(crate) struct View<'a> {
    pub(crate) seen: &'a Observation,
    pub(crate) now: Time,
    by_node_tag: BTreeMap<NodeId, Vec<&'a Instance>>,
    by_id: BTreeMap<&'a str, &'a Instance>,
    nodes: BTreeMap<NodeId, &'a NodeRecord>,
    pub(crate) jobs: BTreeMap<JobId, &'a JobSummary>,
    allocs: BTreeMap<NodeId, Vec<&'a AllocSummary>>,
    /// Nodes that this plan already changes.
    pub(crate) decided: BTreeSet<NodeId>,
    /// Nodes that this plan takes out of service: no room is counted on them.
    pub(crate) lost: BTreeSet<NodeId>,
    /// Nodes whose absence this run does not believe: they count as there, and get no new work.
    pub(crate) held: BTreeSet<NodeId>,
    /// The allocs that this plan loses or tells to stop: nobody makes a copy of them.
    pub(crate) ending: BTreeSet<AllocId>,
    /// Which silence this run believes.
    pub(crate) belief: Belief,
}

impl<'a> View<'a> {
    pub(crate) fn new(seen: &'a Observation, now: Time) -> Self {
        let mut by_node_tag: BTreeMap<NodeId, Vec<&Instance>> = BTreeMap::new();
        for instance in &seen.instances {
            if let Some(node_id) = instance.node_id() {
                by_node_tag.entry(node_id).or_default().push(instance);
            }
        }
        let mut allocs: BTreeMap<NodeId, Vec<&AllocSummary>> = BTreeMap::new();
        for alloc in &seen.allocs {
            allocs.entry(alloc.node_id).or_default().push(alloc);
        }
        Self {
            seen,
            now,
            by_node_tag,
            by_id: seen.instances.iter().map(|i| (i.instance_id.as_str(), i)).collect(),
            nodes: seen.nodes.iter().filter_map(|n| Some((n.node_id()?, n))).collect(),
            jobs: seen.jobs.iter().map(|j| (j.job_id, j)).collect(),
            allocs,
            decided: BTreeSet::new(),
            lost: BTreeSet::new(),
            held: BTreeSet::new(),
            ending: BTreeSet::new(),
            belief: Belief::default(),
        }
    }

    /// The records that are not cleaned, each with its life, in the order of the slots.
    pub(crate) fn lives(&self) -> impl Iterator<Item = (&'a NodeRecord, &'a Life)> {
        self.seen.nodes.iter().filter_map(|n| Some((n, n.life()?)))
    }

    pub(crate) fn node(&self, node_id: NodeId) -> Option<&'a NodeRecord> {
        self.nodes.get(&node_id).copied()
    }

    /// The live allocs of a job. The allocs are sorted by id, so those of one job are next to each other.
    pub(crate) fn allocs_of(&self, job_id: JobId) -> &'a [AllocSummary] {
        let allocs = &self.seen.allocs;
        let from = allocs.partition_point(|a| a.alloc_id.job_id < job_id);
        let to = allocs.partition_point(|a| a.alloc_id.job_id <= job_id);
        allocs.get(from..to).unwrap_or_default()
    }

    pub(crate) fn allocs_on(&self, node_id: NodeId) -> &[&'a AllocSummary] {
        self.allocs.get(&node_id).map_or(&[], Vec::as_slice)
    }

    /// What EC2 lists for a life: the bound instance, or, if none is bound, the instances with the tag.
    pub(crate) fn instances_of(&self, life: &Life) -> Vec<&'a Instance> {
        match &life.instance_id {
            Some(id) => self.by_id.get(id.as_str()).copied().into_iter().collect(),
            None => self.by_node_tag.get(&life.node_id).cloned().unwrap_or_default(),
        }
    }

    /// The instances with the tag of this node that are not terminated.
    pub(crate) fn tagged(&self, node_id: NodeId) -> impl Iterator<Item = &'a Instance> {
        self.by_node_tag.get(&node_id).into_iter().flatten().copied().filter(|i| is_live(i))
    }

    /// When EC2 launched the node's instance: the start of its shutdown windows and of what it costs. If EC2 does not list
    /// the instance, the time of the assignment.
    pub(crate) fn launched_at(&self, life: &Life) -> Time {
        self.instances_of(life).iter().map(|i| i.launched_at).min().unwrap_or(life.assigned_at)
    }

    /// Marks a node as decided and out of service.
    pub(crate) fn lose(&mut self, node_id: NodeId) {
        self.decided.insert(node_id);
        self.lost.insert(node_id);
    }

    /// Marks a node as decided, because this run does not believe that the node is gone. The node counts as there, and
    /// gets no new work.
    pub(crate) fn hold(&mut self, node_id: NodeId) {
        self.decided.insert(node_id);
        self.held.insert(node_id);
    }

    /// Whether this run does not believe that a silent or unlisted node is gone.
    pub(crate) fn is_doubted(&self, node_id: NodeId) -> bool {
        self.belief.is_doubted(node_id) || self.held.contains(&node_id)
    }

    pub(crate) fn is_unclear(&self, node_id: NodeId) -> bool {
        self.seen.unclear.contains(&node_id)
    }

    /// Whether EC2 lists the node's instance as neither starting nor running. Such a node cannot work.
    pub(crate) fn is_leaving(&self, life: &Life) -> bool {
        self.leaves_as(life).is_some()
    }

    /// The state in which EC2 lists the node's instance, if the instance neither starts nor runs.
    pub(crate) fn leaves_as(&self, life: &Life) -> Option<InstanceState> {
        let listed = self.instances_of(life);
        let works = |i: &&Instance| matches!(i.state, InstanceState::Pending | InstanceState::Running);
        listed.first().filter(|_| !listed.iter().any(works)).map(|i| i.state)
    }
}

/// Whether EC2 lists the instance in any state but terminated.
pub(crate) fn is_live(instance: &Instance) -> bool {
    instance.state != InstanceState::Terminated
}
