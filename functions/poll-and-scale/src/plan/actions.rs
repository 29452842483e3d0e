//! The actions of poll-and-scale: the data that each action needs, and its subject.
//!
//! Guarantees: an action holds everything that is needed to carry it out.
//! Does not: decide (the stages do) or carry anything out (`act` does).

use model::action::About;
use model::control::LimitChange;
use model::node::Idleness;
use model::{ActionName, AllocId, BrakeChange, Describe, JobId, NewInstance, NodeId, Offering, Slot, Subject, Time};
use std::collections::BTreeSet;
use std::sync::Arc;

pub type FleetPlan = model::action::Plan<Action>;
pub type PlannedAction = model::action::Planned<Action>;

/// One thing that a run can do.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Claim a slot and launch the first of these offerings that EC2 has.
    Launch {
        slot: Slot,
        /// The offerings, in the order to try.
        offerings: Arc<[Offering]>,
        /// The job that needs the node; `None` if the node is for the minimum.
        job_id: Option<JobId>,
        /// Whether the node is one of several that the job needs at once: it is of no use without the others.
        is_member: bool,
    },
    /// Repeat a launch whose answer never came.
    Relaunch(NodeId),
    /// Bind an instance that EC2 lists to its record.
    BindInstance {
        node_id: NodeId,
        instance: Box<NewInstance>,
    },
    /// Give up a launch that gave no instance.
    Abandon(NodeId),
    ShutDown {
        node_id: NodeId,
        because: ShutdownBasis,
    },
    /// Terminate an instance again, until EC2 confirms the termination.
    Terminate {
        node_id: NodeId,
        instance_id: String,
    },
    /// Free a slot whose instance is gone.
    Clean {
        node_id: NodeId,
        /// The instance, if it is unlisted: EC2 is first asked for it by id. `None` if EC2 lists the instance as
        /// terminated.
        unlisted: Option<String>,
    },
    /// Note that the lease expired and allocs wait for the node.
    Disconnect(NodeId),
    /// Note that the lease expired and no alloc waits for the node.
    MarkDown(NodeId),
    /// End an alloc as lost.
    LoseAlloc(AllocId, NodeId),
    /// Put a live alloc on the record of its node, which does not list it.
    ListAlloc(AllocId, NodeId),
    /// Note that an alloc is unknown and its job waits for it.
    UnknownAlloc(AllocId, NodeId),
    /// Tell an alloc to stop, because its job no longer wants it.
    StopAlloc(AllocId, NodeId),
    /// Resolve a reconnect: of the copies of a member, one stays.
    ResolveReconnect {
        keep: AllocId,
        stop: Vec<AllocId>,
        /// The nodes of all these copies.
        on: Vec<NodeId>,
    },
    /// Place every member of a job.
    Place {
        job_id: JobId,
        /// The number of each member, and its node.
        on: Vec<(u32, NodeId)>,
    },
    /// Place a copy of an unknown alloc.
    Replace {
        original: AllocId,
        on: NodeId,
    },
    /// Reject a job that can never run.
    Reject(JobId),
    /// Take jobs that have ended off the list of jobs that this one follows.
    Advance {
        job_id: JobId,
        /// The followed jobs that have ended as they must.
        ended: BTreeSet<JobId>,
    },
    /// Queue a job without live allocs again.
    Requeue(JobId),
    /// Count that a run saw the node idle, or reset the count because the node is needed.
    SetIdle(NodeId, Idleness),
    /// Tell an alloc to stop because its node's drain deadline is near, and count it as lost for its job.
    Drain(AllocId, NodeId),
    /// Drain a node whose capacity reservation ends. `by`: when EC2 terminates the machine; `None` if it does not.
    DrainNode {
        node_id: NodeId,
        by: Option<Time>,
    },
    /// Tell a person.
    Warn(Subject),
    /// Do nothing on purpose, and record why.
    HoldBack {
        subject: Subject,
        note: Note,
    },
}

impl Action {
    /// The nodes that this action places an alloc on.
    pub(crate) fn placed_on(&self) -> Vec<NodeId> {
        match self {
            Self::Place { on, .. } => on.iter().map(|(_, node_id)| *node_id).collect(),
            Self::Replace { on, .. } => vec![*on],
            _ => Vec::new(),
        }
    }
}

/// What the decision to shut a node down is based on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShutdownBasis {
    /// The node is idle, drained, or never became ready.
    NotNeeded,
    /// The node is silent. The write requires that no heartbeat has arrived since.
    Silent,
    /// The node never sent a heartbeat: its start failed.
    FailedStart,
}

/// What a hold-back stores.
#[derive(Clone, Debug, PartialEq)]
pub enum Note {
    Nothing,
    /// Since when the node's instance is unlisted; `None`: EC2 lists it again.
    Unlisted(NodeId, Option<Time>),
    /// What changes about a brake.
    Brake(Box<BrakeChange>),
    /// A limit on launches that begins.
    Limit(Box<LimitChange>),
}

/// The most offerings that an explanation names.
const WAYS_NAMED: usize = 5;

/// These offerings in words, if there are several.
fn ways(offerings: &[Offering]) -> Option<String> {
    let dearest = offerings.iter().map(|o| o.price_per_hour).max()?;
    let named = offerings.iter().take(WAYS_NAMED).map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let more = match offerings.len().saturating_sub(WAYS_NAMED) {
        0 => String::new(),
        more => format!(", and {more} more to ${:.4}", f64::from(dearest)),
    };
    (offerings.len() > 1).then(|| format!("{named}{more}"))
}

impl Describe for Action {
    fn name(&self) -> ActionName {
        match self {
            Self::Launch { .. } => ActionName::Launch,
            Self::Relaunch(_) => ActionName::Relaunch,
            Self::BindInstance { .. } => ActionName::BindInstance,
            Self::Abandon(_) => ActionName::Abandon,
            Self::ShutDown { .. } => ActionName::ShutDown,
            Self::Terminate { .. } => ActionName::Terminate,
            Self::Clean { .. } => ActionName::Clean,
            Self::Disconnect(_) => ActionName::Disconnect,
            Self::MarkDown(_) => ActionName::MarkDown,
            Self::LoseAlloc(..) => ActionName::LoseAlloc,
            Self::ListAlloc(..) => ActionName::ListAlloc,
            Self::UnknownAlloc(..) => ActionName::UnknownAlloc,
            Self::StopAlloc(..) => ActionName::StopAlloc,
            Self::ResolveReconnect { .. } => ActionName::ResolveReconnect,
            Self::Place { .. } => ActionName::Place,
            Self::Replace { .. } => ActionName::Replace,
            Self::Reject(_) => ActionName::Reject,
            Self::Requeue(_) => ActionName::Requeue,
            Self::Advance { .. } => ActionName::Advance,
            Self::SetIdle(..) => ActionName::SetIdle,
            Self::Drain(..) | Self::DrainNode { .. } => ActionName::Drain,
            Self::Warn(_) => ActionName::Warn,
            Self::HoldBack { .. } => ActionName::HoldBack,
        }
    }

    fn about(&self) -> About {
        match self {
            Self::Launch { slot, offerings, job_id, .. } => About::Launch {
                slot: *slot,
                size: offerings.first().map(|o| o.size.clone()),
                ways: ways(offerings),
                job_id: *job_id,
            },
            Self::Relaunch(node_id)
            | Self::Abandon(node_id)
            | Self::Disconnect(node_id)
            | Self::MarkDown(node_id)
            | Self::SetIdle(node_id, _)
            | Self::BindInstance { node_id, .. }
            | Self::DrainNode { node_id, .. }
            | Self::ShutDown { node_id, .. }
            | Self::Terminate { node_id, .. }
            | Self::Clean { node_id, .. } => About::Node(*node_id),
            Self::LoseAlloc(alloc_id, node_id)
            | Self::ListAlloc(alloc_id, node_id)
            | Self::UnknownAlloc(alloc_id, node_id)
            | Self::StopAlloc(alloc_id, node_id)
            | Self::Drain(alloc_id, node_id)
            | Self::Replace { original: alloc_id, on: node_id } => About::Alloc(*alloc_id, *node_id),
            Self::ResolveReconnect { keep, on, .. } => About::Copies(*keep, on.clone()),
            Self::Place { job_id, on } => About::Job(*job_id, on.iter().map(|(_, node_id)| *node_id).collect()),
            Self::Reject(job_id) | Self::Requeue(job_id) | Self::Advance { job_id, .. } => {
                About::Job(*job_id, Vec::new())
            }
            Self::HoldBack { note: Note::Unlisted(node_id, _), .. } => About::Slot(node_id.slot()),
            Self::Warn(subject) | Self::HoldBack { subject, .. } => About::Only(subject.clone()),
        }
    }

    fn brake(&self) -> Option<&BrakeChange> {
        if let Self::HoldBack { note: Note::Brake(change), .. } = self { Some(change) } else { None }
    }
}
