//! The decision of poll-and-scale: what the observation calls for, and why. Pure.
//!
//! One file a stage, in the order their actions are listed: what EC2 says of the instances,
//! what silence says of the nodes, what follows for the allocs, what the queue wants, and
//! which nodes may be shut down.
//!
//! Guarantees: the same observation and time give the same plan; a plan made again after it
//! was carried out is empty, but for clocks that go on; every action has a reason.
//! Does not: read anything, or mint ids; the acting writes check everything again.

mod allocs;
mod demand;
mod instances;
mod leases;
mod shutdown;
mod sizes;

pub(crate) use leases::window_over;
pub(crate) use sizes::{bad_request_key, shortage_key};

use shared::cloud::{Instance, InstanceState};
use shared::events::Subject;
use shared::ids::{AllocId, JobId, NodeId, Slot};
use shared::model::{AllocSummary, JobSummary, NodeRecord, NodeStatus, Offering};
use shared::observation::Observation;
use shared::run::{PlanAnswer, PlanRow};
use shared::store::Memory;
use shared::time::Time;
use std::collections::{BTreeMap, BTreeSet};

/// How far apart the scheduled runs are, in seconds: what must be done "in the last run before"
/// something looks one period ahead.
pub(crate) const PERIOD_S: i64 = 60;

/// Something to do, with all that doing it needs.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Claim a slot and launch the first of these that EC2 has.
    Launch {
        /// The free slot.
        slot: Slot,
        /// In the order to try.
        offerings: Vec<Offering>,
    },
    /// Repeat a launch whose answer never came.
    Relaunch(NodeId),
    /// Bind an instance that was seen.
    BindInstance {
        /// Whose it is.
        node_id: NodeId,
        /// What was seen.
        instance_id: String,
        /// Where.
        zone: Option<String>,
    },
    /// Give up a launch of which nothing came.
    Abandon(NodeId),
    /// Begin to end a node.
    ShutDown {
        /// Which.
        node_id: NodeId,
        /// Whether it rests on the node's silence.
        silent: bool,
        /// Whether its start failed.
        failed_start: bool,
    },
    /// Terminate an instance again, until EC2 confirms.
    Terminate {
        /// Whose it is.
        node_id: NodeId,
        /// Which.
        instance_id: String,
    },
    /// Free a slot whose instance is gone.
    Clean {
        /// Whose.
        node_id: NodeId,
        /// Set where EC2 does not list it at all: it is asked for by id first.
        missing: Option<String>,
    },
    /// The lease is over, and allocs wait.
    Disconnect(NodeId),
    /// The lease is over, and none waits.
    MarkDown(NodeId),
    /// An alloc is gone.
    LoseAlloc(AllocId, NodeId),
    /// An alloc is waited for.
    UnknownAlloc(AllocId, NodeId),
    /// An alloc must stop: its job no longer wants it.
    StopAlloc(AllocId, NodeId),
    /// A node came back: which copy stays.
    ResolveReconnect {
        /// Stays.
        keep: AllocId,
        /// Stop.
        stop: Vec<AllocId>,
    },
    /// Place every member of a job.
    Place {
        /// Which job.
        job_id: JobId,
        /// Member and node.
        on: Vec<(u32, NodeId)>,
    },
    /// Place a copy of an unknown alloc.
    Replace {
        /// The unknown one.
        original: AllocId,
        /// Where.
        on: NodeId,
    },
    /// Nothing can ever run it.
    Reject(JobId),
    /// A job without any alloc goes back to the queue.
    Requeue(JobId),
    /// Count that a node was seen idle, or that it no longer is.
    SetIdle(NodeId, bool),
    /// A drain's deadline is near: an alloc is ordered to stop and lost to its job.
    Drain(AllocId, NodeId),
    /// Something a person should see.
    Warn(Subject),
    /// Something deliberately not done.
    HoldBack {
        /// About what.
        subject: Subject,
        /// What to remember of it.
        note: Note,
    },
}

/// What a hold-back leaves behind.
#[derive(Clone, Debug, PartialEq)]
pub enum Note {
    /// Nothing.
    Nothing,
    /// Since when EC2 does not list the node's instance, or that it does again.
    Absent(NodeId, Option<Time>),
    /// A brake: since when, and how many.
    Brake(Memory),
}

/// One action and its reason.
#[derive(Clone, Debug, PartialEq)]
pub struct Planned {
    /// What.
    pub action: Action,
    /// Why.
    pub reason: String,
    /// Whether it is new: what is only said is kept as an event when its reason changes.
    pub news: bool,
}

/// What one run decided.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// In order.
    pub actions: Vec<Planned>,
    /// Nodes wanted, by size.
    pub wanted: BTreeMap<String, u32>,
    /// Slots whose nodes are not needed.
    pub surplus: Vec<Slot>,
}

impl Plan {
    fn add(&mut self, action: Action, reason: impl Into<String>) {
        self.actions.push(Planned { action, reason: reason.into(), news: true });
    }

    /// Says something; `news` if it was not so before.
    fn say(&mut self, action: Action, reason: impl Into<String>, news: bool) {
        self.actions.push(Planned { action, reason: reason.into(), news });
    }

    /// As `plan` answers it.
    pub fn answer(&self) -> PlanAnswer {
        PlanAnswer {
            actions: self.actions.iter().map(Planned::row).collect(),
            wanted: self.wanted.clone(),
            surplus: self.surplus.clone(),
        }
    }
}

/// The observation, arranged for deciding.
pub(crate) struct View<'a> {
    pub(crate) seen: &'a Observation,
    pub(crate) now: Time,
    by_node_tag: BTreeMap<NodeId, Vec<&'a Instance>>,
    by_id: BTreeMap<&'a str, &'a Instance>,
    nodes: BTreeMap<NodeId, &'a NodeRecord>,
    pub(crate) jobs: BTreeMap<JobId, &'a JobSummary>,
    allocs: BTreeMap<NodeId, Vec<&'a AllocSummary>>,
    /// Nodes this plan already changes: at most one decision a node and run.
    pub(crate) decided: BTreeSet<NodeId>,
    /// Nodes this plan takes out of service: no room is counted on them.
    pub(crate) lost: BTreeSet<NodeId>,
}

impl<'a> View<'a> {
    fn new(seen: &'a Observation, now: Time) -> Self {
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
        }
    }

    /// Records that are not cleaned, by slot.
    pub(crate) fn lives(&self) -> impl Iterator<Item = (&'a NodeRecord, &'a shared::model::Life)> {
        self.seen.nodes.iter().filter_map(|n| Some((n, n.life()?)))
    }

    pub(crate) fn node(&self, node_id: NodeId) -> Option<&'a NodeRecord> {
        self.nodes.get(&node_id).copied()
    }

    pub(crate) fn allocs_on(&self, node_id: NodeId) -> &[&'a AllocSummary] {
        self.allocs.get(&node_id).map_or(&[], Vec::as_slice)
    }

    /// What EC2 lists for a life: its bound instance, or what carries its tag.
    fn instances_of(&self, life: &shared::model::Life) -> Vec<&'a Instance> {
        match &life.instance_id {
            Some(id) => self.by_id.get(id.as_str()).copied().into_iter().collect(),
            None => self.by_node_tag.get(&life.node_id).cloned().unwrap_or_default(),
        }
    }

    /// Decides about a node that goes out of service by it.
    pub(crate) fn lose(&mut self, node_id: NodeId) {
        self.decided.insert(node_id);
        self.lost.insert(node_id);
    }

    pub(crate) fn is_unclear(&self, node_id: NodeId) -> bool {
        self.seen.unclear.contains(&node_id)
    }

    /// Whether every node that should be heartbeating is silent: rather our ingest than all of
    /// them.
    pub(crate) fn ingest_is_silent(&self) -> bool {
        let mut any = false;
        for (record, _) in self.lives() {
            if let (Some(NodeStatus::Ready | NodeStatus::Syncing), Some(contact)) = (record.status(), record.contact())
            {
                any = true;
                if contact.lease_expires_at >= self.now {
                    return false;
                }
            }
        }
        any
    }
}

/// Decides. `now` is the time of the decision.
pub fn plan(seen: &Observation, now: Time) -> Plan {
    let mut view = View::new(seen, now);
    let mut plan = Plan::default();
    instances::plan(&mut view, &mut plan);
    leases::plan(&mut view, &mut plan);
    allocs::plan(&mut view, &mut plan);
    let needs = demand::plan(&mut view, &mut plan);
    shutdown::plan(&mut view, &mut plan, &needs);
    plan
}

/// Whether EC2 still has it in some way.
pub(crate) fn is_live(instance: &Instance) -> bool {
    instance.state != InstanceState::Terminated
}

impl Planned {
    /// As a row of a plan.
    pub fn row(&self) -> PlanRow {
        let mut row = PlanRow { reason: self.reason.clone(), ..PlanRow::default() };
        let of_node = |row: &mut PlanRow, node: &NodeId| {
            row.node_id = Some(*node);
            row.slot = Some(node.slot());
            Subject::Slot(node.slot())
        };
        let of_alloc = |row: &mut PlanRow, alloc: &AllocId, node: &NodeId| {
            row.alloc_id = Some(*alloc);
            row.job_id = Some(alloc.job_id);
            row.node_id = Some(*node);
            row.slot = Some(node.slot());
            Subject::Alloc(*alloc)
        };
        let (action, subject) = match &self.action {
            Action::Launch { slot, offerings } => {
                row.slot = Some(*slot);
                row.size = offerings.first().map(|o| o.size.clone());
                ("launch", Subject::Slot(*slot))
            }
            Action::Relaunch(node) => ("relaunch", of_node(&mut row, node)),
            Action::BindInstance { node_id, .. } => ("bind_instance", of_node(&mut row, node_id)),
            Action::Abandon(node) => ("abandon", of_node(&mut row, node)),
            Action::ShutDown { node_id, .. } => ("shut_down", of_node(&mut row, node_id)),
            Action::Terminate { node_id, .. } => ("terminate", of_node(&mut row, node_id)),
            Action::Clean { node_id, .. } => ("clean", of_node(&mut row, node_id)),
            Action::Disconnect(node) => ("disconnect", of_node(&mut row, node)),
            Action::MarkDown(node) => ("mark_down", of_node(&mut row, node)),
            Action::LoseAlloc(alloc, node) => ("lose_alloc", of_alloc(&mut row, alloc, node)),
            Action::UnknownAlloc(alloc, node) => ("unknown_alloc", of_alloc(&mut row, alloc, node)),
            Action::StopAlloc(alloc, node) => ("stop_alloc", of_alloc(&mut row, alloc, node)),
            Action::ResolveReconnect { keep, .. } => {
                row.alloc_id = Some(*keep);
                row.job_id = Some(keep.job_id);
                ("resolve_reconnect", Subject::Alloc(*keep))
            }
            Action::Place { job_id, on } => {
                row.job_id = Some(*job_id);
                if let [(_, node)] = on.as_slice() {
                    row.node_id = Some(*node);
                    row.slot = Some(node.slot());
                }
                ("place", Subject::Job(*job_id))
            }
            Action::Replace { original, on } => ("replace", of_alloc(&mut row, original, on)),
            Action::Reject(job) => {
                row.job_id = Some(*job);
                ("reject", Subject::Job(*job))
            }
            Action::Requeue(job) => {
                row.job_id = Some(*job);
                ("requeue", Subject::Job(*job))
            }
            Action::SetIdle(node, _) => ("set_idle", of_node(&mut row, node)),
            Action::Drain(alloc, node) => ("drain", of_alloc(&mut row, alloc, node)),
            Action::Warn(subject) => ("warn", subject.clone()),
            Action::HoldBack { subject, .. } => ("hold_back", subject.clone()),
        };
        if let (None, Subject::Slot(slot)) = (row.slot, &subject) {
            row.slot = Some(*slot);
        }
        row.action = action;
        row.subject = subject.to_string();
        row
    }

    /// What its event is about.
    pub fn subject(&self) -> Subject {
        match &self.action {
            Action::Launch { slot, .. } => Subject::Slot(*slot),
            Action::Relaunch(n)
            | Action::Abandon(n)
            | Action::Disconnect(n)
            | Action::MarkDown(n)
            | Action::SetIdle(n, _)
            | Action::BindInstance { node_id: n, .. }
            | Action::ShutDown { node_id: n, .. }
            | Action::Terminate { node_id: n, .. }
            | Action::Clean { node_id: n, .. } => Subject::Slot(n.slot()),
            Action::LoseAlloc(a, _)
            | Action::UnknownAlloc(a, _)
            | Action::StopAlloc(a, _)
            | Action::Drain(a, _)
            | Action::ResolveReconnect { keep: a, .. }
            | Action::Replace { original: a, .. } => Subject::Alloc(*a),
            Action::Place { job_id, .. } | Action::Reject(job_id) | Action::Requeue(job_id) => Subject::Job(*job_id),
            Action::Warn(subject) | Action::HoldBack { subject, .. } => subject.clone(),
        }
    }
}
