//! What a run can do: the closed list of actions, what each action is about, and the plan that lists them.
//!
//! Guarantees: each kind of action has one word, in plans, answers, events and metrics alike; the row in a plan, the
//! subject of the event and the locks of an action all come from its [`About`], so that they cannot disagree.
//! Does not: know how an action is carried out; each function does.

use crate::control::NextJobs;
use crate::enums::ActionName;
use crate::{AllocId, BrakeChange, Explanation, JobId, NodeId, Reason, Slot, Subject};
use serde::Serialize;
use std::collections::BTreeMap;

/// What an action is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum About {
    /// A launch in a free slot.
    Launch {
        slot: Slot,
        size: Option<String>,
        /// The machines that may be launched, if there are several.
        ways: Option<String>,
        /// The job that needs the node.
        job_id: Option<JobId>,
    },
    /// The record of a slot, whichever node lives in it.
    Slot(Slot),
    Node(NodeId),
    /// An alloc and the node whose record changes with it.
    Alloc(AllocId, NodeId),
    /// Several copies of a member: the copy that stays, and the nodes of all of them.
    Copies(AllocId, Vec<NodeId>),
    /// A job, and the nodes whose records change with it.
    Job(JobId, Vec<NodeId>),
    /// A handle on a node.
    Handle {
        node_id: NodeId,
        handle: String,
        /// The alloc that the handle was made for; `None` if the handle has no alloc.
        alloc_id: Option<AllocId>,
    },
    /// Something that is only reported: no record changes.
    Only(Subject),
}

/// A record that two actions of one run must not change at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LockKey {
    Slot(Slot),
    Job(JobId),
}

impl About {
    /// The subject of the action's event.
    pub fn subject(&self) -> Subject {
        match self {
            Self::Launch { slot, .. } | Self::Slot(slot) => Subject::Slot(*slot),
            Self::Node(node_id) | Self::Handle { node_id, .. } => Subject::Slot(node_id.slot()),
            Self::Alloc(alloc_id, _) | Self::Copies(alloc_id, _) => Subject::Alloc(*alloc_id),
            Self::Job(job_id, _) => Subject::Job(*job_id),
            Self::Only(subject) => subject.clone(),
        }
    }

    /// The records that no other action of the run may change at the same time.
    pub fn lock_keys(&self) -> Vec<LockKey> {
        match self {
            Self::Launch { slot, .. } | Self::Slot(slot) => vec![LockKey::Slot(*slot)],
            Self::Node(node_id) | Self::Handle { node_id, .. } => vec![LockKey::Slot(node_id.slot())],
            Self::Alloc(alloc_id, node_id) => vec![LockKey::Slot(node_id.slot()), LockKey::Job(alloc_id.job_id)],
            Self::Copies(AllocId { job_id, .. }, nodes) | Self::Job(job_id, nodes) => {
                std::iter::once(LockKey::Job(*job_id)).chain(nodes.iter().map(|n| LockKey::Slot(n.slot()))).collect()
            }
            Self::Only(_) => Vec::new(),
        }
    }

    /// The row of a plan for an action about this.
    pub fn row(&self, action: ActionName, reason: &Reason) -> PlanRow {
        let subject = self.subject();
        let mut row = PlanRow {
            action,
            subject: subject.to_string(),
            slot: None,
            size: None,
            ways: None,
            job_id: None,
            alloc_id: None,
            node_id: None,
            handle: None,
            reason: reason.to_string(),
        };
        match self {
            Self::Launch { size, ways, job_id, .. } => {
                row.size.clone_from(size);
                row.ways.clone_from(ways);
                row.job_id = *job_id;
            }
            Self::Node(node_id) => row.node_id = Some(*node_id),
            Self::Alloc(alloc_id, node_id) => {
                row.alloc_id = Some(*alloc_id);
                row.node_id = Some(*node_id);
            }
            Self::Copies(alloc_id, _) => row.alloc_id = Some(*alloc_id),
            Self::Job(job_id, nodes) => {
                row.job_id = Some(*job_id);
                row.node_id = if let [node_id] = nodes.as_slice() { Some(*node_id) } else { None };
            }
            Self::Handle { node_id, handle, alloc_id } => {
                row.node_id = Some(*node_id);
                row.handle = Some(handle.clone());
                row.alloc_id = *alloc_id;
            }
            Self::Only(Subject::Job(job_id)) => row.job_id = Some(*job_id),
            Self::Only(Subject::Alloc(alloc_id)) => row.alloc_id = Some(*alloc_id),
            Self::Slot(_) | Self::Only(_) => {}
        }
        row.job_id = row.job_id.or(row.alloc_id.map(|a| a.job_id));
        row.slot = row.node_id.map(NodeId::slot).or(if let Subject::Slot(slot) = subject { Some(slot) } else { None });
        row
    }
}

/// The common part of every function's actions.
pub trait Describe {
    fn name(&self) -> ActionName;
    fn about(&self) -> About;
    /// The change of a brake; `None` if the action is no decision of a brake.
    fn brake(&self) -> Option<&BrakeChange>;
}

/// Whether an action leaves an event once it is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventPolicy {
    Event,
    /// The action leaves no event: the previous run reported the same, or nobody would look the event up.
    Quiet,
}

impl EventPolicy {
    /// `Event` if the action is news: the previous run did not report the same.
    pub const fn of_news(is_news: bool) -> Self {
        if is_news { Self::Event } else { Self::Quiet }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Planned<A> {
    pub action: A,
    pub reason: Reason,
    pub event_policy: EventPolicy,
}

impl<A: Describe> Planned<A> {
    pub fn row(&self) -> PlanRow {
        self.action.about().row(self.action.name(), &self.reason)
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Plan<A> {
    /// The actions, in order.
    pub actions: Vec<Planned<A>>,
    /// How many nodes of each size are wanted, also while a limit keeps them from being launched.
    pub wanted: BTreeMap<String, u32>,
    /// How many of the wanted nodes are not ready.
    pub unready: u32,
    /// Slots whose nodes are not needed.
    pub surplus: Vec<Slot>,
    /// What starts next on freed room.
    pub next: NextJobs,
    /// What is not done, and why.
    pub explained: Explanation,
}

impl<A> Default for Plan<A> {
    fn default() -> Self {
        let (actions, wanted, surplus) = (Vec::new(), BTreeMap::new(), Vec::new());
        Self { actions, wanted, unready: 0, surplus, next: NextJobs::default(), explained: Explanation::default() }
    }
}

impl<A> Plan<A> {
    /// Adds an action that leaves an event.
    pub fn add(&mut self, action: A, reason: Reason) {
        self.push(action, reason, EventPolicy::Event);
    }

    /// Adds an action that leaves no event.
    pub fn add_quietly(&mut self, action: A, reason: Reason) {
        self.push(action, reason, EventPolicy::Quiet);
    }

    pub fn push(&mut self, action: A, reason: Reason, event_policy: EventPolicy) {
        self.actions.push(Planned { action, reason, event_policy });
    }
}

impl<A: Describe> Plan<A> {
    /// The plan as the request `plan` shows it.
    pub fn answer(&self) -> PlanAnswer {
        PlanAnswer {
            actions: self.actions.iter().map(Planned::row).collect(),
            wanted: self.wanted.clone(),
            surplus: self.surplus.clone(),
            explained: self.explained.clone(),
        }
    }
}

/// One planned action, as plans and answers show it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PlanRow {
    pub action: ActionName,
    pub subject: String,
    pub slot: Option<Slot>,
    pub size: Option<String>,
    /// The machines that a launch may become, in the order to try, if there are several.
    pub ways: Option<String>,
    pub job_id: Option<JobId>,
    pub alloc_id: Option<AllocId>,
    pub node_id: Option<NodeId>,
    pub handle: Option<String>,
    pub reason: String,
}

/// The answer to the request `plan`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct PlanAnswer {
    pub actions: Vec<PlanRow>,
    /// How many nodes of each size are wanted, also while a limit keeps them from being launched.
    pub wanted: BTreeMap<String, u32>,
    /// Slots whose nodes are not needed.
    pub surplus: Vec<Slot>,
    /// What is not done, and why.
    #[serde(flatten)]
    pub explained: Explanation,
}
