//! The observation with indexes, in which every stage looks things up.
//!
//! Guarantees: the view remembers which nodes earlier stages have decided about, so that a run makes at most one
//! decision about a node.
//! Does not: decide.

use super::suspicion::Suspicion;
use model::ids::Ulid;
use model::node::Reached;
use model::{
    AllocId, AllocSummary, Instance, InstanceState, JobId, JobSummary, Life, Limit, NodeId, NodeRecord, Offering, Slot,
    Time,
};
use runtime::observation::Observation;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// The time from one scheduled run to the next, in seconds. A decision for the last run before a moment looks this far
/// ahead.
pub(crate) const PERIOD_S: i64 = 60;

/// A life, and what the observation has about it.
struct LifeFacts<'a> {
    record: &'a NodeRecord,
    life: &'a Life,
    /// The instances of the life in EC2's list: the bound one, or, while none is bound, those that it may get.
    listed: Vec<&'a Instance>,
    /// The instances with the tag of this node. In a batch: the instance that the record names, or the one that it will get.
    tagged: Vec<&'a Instance>,
    foreign: Option<&'a Instance>,
    allocs: Vec<&'a AllocSummary>,
}

pub(crate) struct View<'a> {
    pub(crate) observed: &'a Observation,
    pub(crate) now: Time,
    /// In the order of the slots.
    lives: Vec<LifeFacts<'a>>,
    /// Sorted by id.
    jobs: Vec<(JobId, &'a JobSummary)>,
    /// Nodes about which this plan has already decided.
    pub(crate) decided: BTreeSet<NodeId>,
    /// Nodes that this plan takes out of service: no room is counted on them.
    pub(crate) lost: BTreeSet<NodeId>,
    /// Nodes whose absence this run does not believe: they count as there, and get no new work.
    pub(crate) retained: BTreeSet<NodeId>,
    /// The allocs that this plan loses or tells to stop: nobody makes a copy of them.
    pub(crate) ending: BTreeSet<AllocId>,
    /// Which silence this run believes.
    pub(crate) suspicion: Suspicion,
    /// The services that nodes have reached lately.
    pub(crate) reached: Reached<'a>,
    /// What keeps launches from being made now.
    pub(crate) limits: Vec<Limit>,
    /// Nodes without an instance whose launch call gave no answer, and whose claim has ended.
    pub(crate) unanswered: Vec<NodeId>,
}

impl<'a> View<'a> {
    pub(crate) fn new(seen: &'a Observation, now: Time) -> Self {
        let mut jobs: Vec<(JobId, &JobSummary)> = seen.jobs.iter().map(|job| (job.job_id, job)).collect();
        jobs.sort_by_key(|(job_id, _)| *job_id);
        let mut view = Self {
            observed: seen,
            now,
            lives: Vec::with_capacity(seen.nodes.len()),
            jobs,
            decided: BTreeSet::new(),
            lost: BTreeSet::new(),
            retained: BTreeSet::new(),
            ending: BTreeSet::new(),
            suspicion: Suspicion::default(),
            reached: Reached::of(&seen.nodes, now),
            limits: seen.control.limits(now),
            unanswered: Vec::new(),
        };
        view.read_lives();
        view
    }

    /// How many nodes the policy keeps up at this time.
    pub(crate) fn minimum(&self) -> u32 {
        self.observed.policy.nodes.min
    }

    /// The limit that keeps this offering from being launched now.
    pub(crate) fn limit_on(&self, offering: &Offering) -> Option<&Limit> {
        self.limits.iter().find(|limit| limit.covers(offering))
    }

    fn read_lives(&mut self) {
        for record in &self.observed.nodes {
            let Some(life) = record.life() else { continue };
            let (listed, tagged, allocs) = (Vec::new(), Vec::new(), Vec::new());
            self.lives.push(LifeFacts { record, life, listed, tagged, foreign: None, allocs });
        }
        for alloc in &self.observed.allocs {
            if let Some(facts) = self.facts_mut(alloc.node_id) {
                facts.allocs.push(alloc);
            }
        }
        for instance in &self.observed.instances {
            if let Some(facts) = instance.node_id().and_then(|node_id| self.facts_mut(node_id)) {
                facts.tagged.push(instance);
            }
        }
        self.read_batches();
        let by_id: HashMap<&str, &'a Instance> =
            self.observed.instances.iter().map(|i| (i.instance_id.as_str(), i)).collect();
        for facts in &mut self.lives {
            let Some(id) = facts.life.instance_id.as_deref() else {
                facts.listed.clone_from(&facts.tagged);
                continue;
            };
            let Some(named) = by_id.get(id).copied() else { continue };
            facts.listed.push(named);
            if named.is_foreign_to(facts.life.node_id) {
                facts.foreign = Some(named);
            } else if named.node_id().is_none() {
                facts.tagged.push(named);
            }
        }
    }

    /// Gives the instances of batches that no record names to the nodes without an instance: the lowest slot gets the oldest
    /// instance. The write that binds them decides (`act::bind`).
    fn read_batches(&mut self) {
        let mut waiting: BTreeMap<Ulid, Vec<&mut LifeFacts<'a>>> = BTreeMap::new();
        let mut named: HashSet<&str> = HashSet::new();
        for facts in &mut self.lives {
            match (&facts.life.instance_id, &facts.life.batch) {
                (Some(id), _) => _ = named.insert(id.as_str()),
                (None, Some(batch)) => waiting.entry(batch.ulid()).or_default().push(facts),
                (None, None) => {}
            }
        }
        if waiting.is_empty() {
            return;
        }
        let mut free: BTreeMap<Ulid, Vec<&'a Instance>> = BTreeMap::new();
        for instance in self.observed.instances.iter().filter(|i| is_live(i) && !named.contains(i.instance_id.as_str()))
        {
            if let Some(batch) = instance.batch().filter(|batch| waiting.contains_key(batch)) {
                free.entry(batch).or_default().push(instance);
            }
        }
        for (batch, mut instances) in free {
            instances.sort_by_key(|i| (i.launched_at, &i.instance_id));
            let nodes = waiting.get_mut(&batch).into_iter().flatten();
            nodes.zip(instances).for_each(|(facts, instance)| facts.tagged.push(instance));
        }
    }

    pub(crate) fn is_taken(&self, slot: Slot) -> bool {
        self.at(slot).is_some()
    }

    fn at(&self, slot: Slot) -> Option<usize> {
        self.lives.binary_search_by_key(&slot, |facts| facts.record.slot).ok()
    }

    fn facts(&self, node_id: NodeId) -> Option<&LifeFacts<'a>> {
        self.lives.get(self.at(node_id.slot())?).filter(|f| f.life.node_id == node_id)
    }

    fn facts_mut(&mut self, node_id: NodeId) -> Option<&mut LifeFacts<'a>> {
        let at = self.at(node_id.slot())?;
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
        let at = self.jobs.binary_search_by_key(&job_id, |(id, _)| *id).ok()?;
        self.jobs.get(at).map(|(_, job)| *job)
    }

    /// The live allocs of a job. The allocs are sorted by id, so those of one job are next to each other.
    pub(crate) fn allocs_of(&self, job_id: JobId) -> &'a [AllocSummary] {
        let allocs = &self.observed.allocs;
        let from = allocs.partition_point(|alloc| alloc.alloc_id.job_id < job_id);
        let to = allocs.partition_point(|alloc| alloc.alloc_id.job_id <= job_id);
        allocs.get(from..to).unwrap_or_default()
    }

    pub(crate) fn is_live_alloc(&self, id: AllocId) -> bool {
        self.observed.alloc(id).is_some()
    }

    pub(crate) fn allocs_on(&self, node_id: NodeId) -> &[&'a AllocSummary] {
        self.facts(node_id).map(|f| f.allocs.as_slice()).unwrap_or_default()
    }

    /// Whether the policy has the size of this life.
    pub(crate) fn has_size(&self, life: &Life) -> bool {
        self.observed.policy.has_size(&life.offering.size)
    }

    /// See `LifeFacts::listed`.
    pub(crate) fn instances_of(&self, life: &Life) -> impl Iterator<Item = &'a Instance> {
        self.facts(life.node_id).into_iter().flat_map(|f| f.listed.iter().copied())
    }

    /// The bound instance, if it belongs to another node.
    pub(crate) fn foreign_of(&self, life: &Life) -> Option<&'a Instance> {
        self.facts(life.node_id).and_then(|f| f.foreign)
    }

    /// The instances of `LifeFacts::tagged` that are not terminated.
    pub(crate) fn tagged(&self, node_id: NodeId) -> impl Iterator<Item = &'a Instance> {
        self.facts(node_id).into_iter().flat_map(|f| f.tagged.iter().copied()).filter(|i| is_live(i))
    }

    /// When EC2 launched the node's instance: the start of its shutdown windows and of what it costs. If EC2 does not list
    /// the instance, the time of the assignment.
    pub(crate) fn launched_at(&self, life: &Life) -> Time {
        self.instances_of(life).map(|i| i.launched_at).min().unwrap_or(life.assigned_at)
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
        self.retained.insert(node_id);
    }

    /// Whether the node is silent or unlisted, and this run does not believe that it is gone.
    pub(crate) fn is_suspected(&self, node_id: NodeId) -> bool {
        self.suspicion.is_suspected(node_id) || self.retained.contains(&node_id)
    }

    pub(crate) fn is_partially_read(&self, node_id: NodeId) -> bool {
        self.observed.partially_read.contains(&node_id)
    }

    /// Whether EC2 lists the node's instance as neither starting nor running. Such a node cannot work.
    pub(crate) fn is_leaving(&self, life: &Life) -> bool {
        self.leaves_as(life).is_some()
    }

    /// The state in which EC2 lists the node's instance, if the instance neither starts nor runs.
    pub(crate) fn leaves_as(&self, life: &Life) -> Option<InstanceState> {
        let works = |i: &Instance| matches!(i.state, InstanceState::Pending | InstanceState::Running);
        let first = self.instances_of(life).next();
        first.filter(|_| !self.instances_of(life).any(works)).map(|i| i.state)
    }
}

/// Whether EC2 lists the instance in any state but terminated.
pub(crate) fn is_live(instance: &Instance) -> bool {
    instance.state != InstanceState::Terminated
}
