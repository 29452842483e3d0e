//! The actions of poll-and-scale: what each needs to be carried out, and what it is about.
//!
//! Does not: decide (the stages do) or carry anything out (`act` does).

use model::action::{About, Describe};
use model::control::BrakeEntry;
use model::events::Subject;
use model::ids::{AllocId, JobId, NodeId, Slot};
use model::node::Seen;
use model::time::Time;
use model::{ActionName, BrakeKind, Offering};

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
        /// What the decision rests on.
        because: Because,
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
    /// Count that a run saw the node idle, or that the node is needed.
    SetIdle(NodeId, Seen),
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

/// What the decision to shut a node down rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Because {
    /// The node is idle, drained, or never became ready.
    NotNeeded,
    /// The node is silent: it must be silent still when the write is made.
    Silent,
    /// The node was never heard from: its start failed.
    FailedStart,
}

/// What a hold-back leaves behind.
#[derive(Clone, Debug, PartialEq)]
pub enum Note {
    /// Nothing.
    Nothing,
    /// Since when EC2 does not list the node's instance, or that it does again.
    Absent(NodeId, Option<Time>),
    /// A brake: since when, and how many.
    Brake(BrakeKind, BrakeEntry),
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
            Self::UnknownAlloc(..) => ActionName::UnknownAlloc,
            Self::StopAlloc(..) => ActionName::StopAlloc,
            Self::ResolveReconnect { .. } => ActionName::ResolveReconnect,
            Self::Place { .. } => ActionName::Place,
            Self::Replace { .. } => ActionName::Replace,
            Self::Reject(_) => ActionName::Reject,
            Self::Requeue(_) => ActionName::Requeue,
            Self::SetIdle(..) => ActionName::SetIdle,
            Self::Drain(..) => ActionName::Drain,
            Self::Warn(_) => ActionName::Warn,
            Self::HoldBack { .. } => ActionName::HoldBack,
        }
    }

    fn about(&self) -> About {
        match self {
            Self::Launch { slot, offerings } => About::Launch(*slot, offerings.first().map(|o| o.size.clone())),
            Self::Relaunch(node_id)
            | Self::Abandon(node_id)
            | Self::Disconnect(node_id)
            | Self::MarkDown(node_id)
            | Self::SetIdle(node_id, _)
            | Self::BindInstance { node_id, .. }
            | Self::ShutDown { node_id, .. }
            | Self::Terminate { node_id, .. }
            | Self::Clean { node_id, .. } => About::Node(*node_id),
            Self::LoseAlloc(alloc_id, node_id)
            | Self::UnknownAlloc(alloc_id, node_id)
            | Self::StopAlloc(alloc_id, node_id)
            | Self::Drain(alloc_id, node_id)
            | Self::Replace { original: alloc_id, on: node_id } => About::Alloc(*alloc_id, *node_id),
            Self::ResolveReconnect { keep, .. } => About::Copies(*keep),
            Self::Place { job_id, on } => About::Job(*job_id, on.iter().map(|(_, node_id)| *node_id).collect()),
            Self::Reject(job_id) | Self::Requeue(job_id) => About::Job(*job_id, Vec::new()),
            Self::HoldBack { note: Note::Absent(node_id, _), .. } => About::Slot(node_id.slot()),
            Self::Warn(subject) | Self::HoldBack { subject, .. } => About::Said(subject.clone()),
        }
    }
}
