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
use std::collections::{BTreeSet, HashMap};

/// The time from one scheduled run to the next, in seconds. A decision for the last run before a moment looks this far
/// ahead.
pub(crate) const PERIOD_S: i64 = 60;

/// A life, and what the observation has about it.
struct Facts<'a> {
    record: &'a NodeRecord,
    life: &'a Life,
    /// What EC2 lists for the life: the bound instance, or, if none is bound, the instances with the tag.
    listed: Vec<&'a Instance>,
    /// The instances with the tag of this node.
    tagged: Vec<&'a Instance>,
    /// The bound instance, if it belongs to another node.
    foreign: Option<&'a Instance>,
    allocs: Vec<&'a AllocSummary>,
}

/// The observation with indexes, and the nodes that are decided.
pub(crate) struct View<'a> {
    pub(crate) seen: &'a Observation,
    pub(crate) now: Time,
    lives: Vec<Facts<'a>>,
    /// Where the life of a slot is in `lives`. A slot has one record, and its record one life.
    by_slot: Vec<Option<usize>>,
    /// Sorted by id.
    jobs: Vec<&'a JobSummary>,
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
        let mut jobs: Vec<&JobSummary> = seen.jobs.iter().collect();
        jobs.sort_by_key(|job| job.job_id);
        let mut view = Self {
            seen,
            now,
            lives: Vec::with_capacity(seen.nodes.len()),
            by_slot: Vec::new(),
            jobs,
            decided: BTreeSet::new(),
            lost: BTreeSet::new(),
            held: BTreeSet::new(),
            ending: BTreeSet::new(),
            belief: Belief::default(),
        };
        view.read_lives();
        view
    }

    fn read_lives(&mut self) {
        for record in &self.seen.nodes {
            let Some(life) = record.life() else { continue };
            let slot = record.slot.number() as usize;
            if self.by_slot.len() <= slot {
                self.by_slot.resize(slot + 1, None);
            }
            if let Some(at) = self.by_slot.get_mut(slot) {
                *at = Some(self.lives.len());
            }
            let (listed, tagged, allocs) = (Vec::new(), Vec::new(), Vec::new());
            self.lives.push(Facts { record, life, listed, tagged, foreign: None, allocs });
        }
        for alloc in &self.seen.allocs {
            if let Some(facts) = self.facts_mut(alloc.node_id) {
                facts.allocs.push(alloc);
            }
        }
        for instance in &self.seen.instances {
            if let Some(facts) = instance.node_id().and_then(|node_id| self.facts_mut(node_id)) {
                facts.tagged.push(instance);
            }
        }
        // Nearly every bound instance has the tag of its node.
        let mut by_id: Option<HashMap<&str, &'a Instance>> = None;
        for facts in &mut self.lives {
            let Some(id) = facts.life.instance_id.as_deref() else {
                facts.listed.clone_from(&facts.tagged);
                continue;
            };
            if let Some(own) = facts.tagged.iter().copied().find(|i| i.instance_id == id) {
                facts.listed.push(own);
                continue;
            }
            let all = || self.seen.instances.iter().map(|i| (i.instance_id.as_str(), i)).collect();
            let named = by_id.get_or_insert_with(all).get(id).copied();
            facts.listed.extend(named);
            facts.foreign = named.filter(|i| i.is_foreign_to(facts.life.node_id));
        }
    }

    fn at(&self, node_id: NodeId) -> Option<usize> {
        self.by_slot.get(node_id.slot().number() as usize).copied().flatten()
    }

    fn facts(&self, node_id: NodeId) -> Option<&Facts<'a>> {
        self.lives.get(self.at(node_id)?).filter(|f| f.life.node_id == node_id)
    }

    /// Whether the node still has its slot.
    pub(crate) fn has(&self, node_id: NodeId) -> bool {
        self.facts(node_id).is_some()
    }

    fn facts_mut(&mut self, node_id: NodeId) -> Option<&mut Facts<'a>> {
        let at = self.at(node_id)?;
        self.lives.get_mut(at).filter(|f| f.life.node_id == node_id)
    }

    /// The records that are not cleaned, each with its life, in the order of the slots.
    pub(crate) fn lives(&self) -> impl Iterator<Item = (&'a NodeRecord, &'a Life)> {
        self.lives.iter().map(|f| (f.record, f.life))
    }

    pub(crate) fn node(&self, node_id: NodeId) -> Option<&'a NodeRecord> {
        self.facts(node_id).map(|f| f.record)
    }

    /// A job that has not ended.
    pub(crate) fn job(&self, job_id: JobId) -> Option<&'a JobSummary> {
        let at = self.jobs.binary_search_by_key(&job_id, |job| job.job_id).ok()?;
        self.jobs.get(at).copied()
    }

    /// The live allocs of a job. The allocs are sorted by id, so those of one job are next to each other.
    pub(crate) fn allocs_of(&self, job_id: JobId) -> &'a [AllocSummary] {
        let allocs = &self.seen.allocs;
        let from = allocs.partition_point(|a| a.alloc_id.job_id < job_id);
        let to = allocs.partition_point(|a| a.alloc_id.job_id <= job_id);
        allocs.get(from..to).unwrap_or_default()
    }

    pub(crate) fn allocs_on(&self, node_id: NodeId) -> &[&'a AllocSummary] {
        self.facts(node_id).map_or(&[], |f| f.allocs.as_slice())
    }

    /// What EC2 lists for a life: the bound instance, or, if none is bound, the instances with the tag.
    pub(crate) fn instances_of(&self, life: &Life) -> &[&'a Instance] {
        self.facts(life.node_id).map_or(&[], |f| f.listed.as_slice())
    }

    /// The bound instance, if it belongs to another node.
    pub(crate) fn foreign_of(&self, life: &Life) -> Option<&'a Instance> {
        self.facts(life.node_id).and_then(|f| f.foreign)
    }

    /// The instances with the tag of this node that are not terminated.
    pub(crate) fn tagged(&self, node_id: NodeId) -> impl Iterator<Item = &'a Instance> {
        self.facts(node_id).into_iter().flat_map(|f| &f.tagged).copied().filter(|i| is_live(i))
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
