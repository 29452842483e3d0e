//! Bins: nodes with room for members of jobs.
//!
//! Guarantees: a bin never holds more than its capacity; a job that gets its node alone gets an empty one.
//! Does not: know the queue or the caps.

use super::super::sizes::fits;
use model::ids::{JobId, NodeId, Slot};
use model::{Capacity, JobSummary, Market, Usd};

/// Room for members: on a node that takes work, on one that boots, or on one that would be launched.
pub(super) struct Bin {
    pub(super) at: At,
    pub(super) free: Capacity,
    pub(super) size: String,
    pub(super) instance_type: String,
    pub(super) market: Market,
    pub(super) price_per_hour: Usd,
    /// Whether nothing is placed or reserved in this bin.
    pub(super) empty: bool,
    /// Whether nothing more may be placed in this bin: one member has the node alone, or the agent says busy.
    pub(super) taken: bool,
    /// Whether this bin is kept for the first job that cannot be placed.
    pub(super) blocked: bool,
    /// The first job that this run places here or reserves this bin for.
    pub(super) for_job: Option<JobId>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum At {
    Ready(NodeId),
    Booting(NodeId),
    New(usize),
}

impl Bin {
    pub(super) fn is_kind(&self, job: &JobSummary) -> bool {
        job.instance_type.as_ref().is_none_or(|t| *t == self.instance_type)
            && job.market.is_none_or(|m| m == self.market)
    }

    /// Whether this is a ready node that is not busy and on which nothing is placed or reserved.
    pub(super) fn is_idle(&self) -> bool {
        matches!(self.at, At::Ready(_)) && self.empty && !self.taken
    }

    pub(super) fn fits(&self, job: &JobSummary) -> bool {
        !self.taken
            && !self.blocked
            && self.is_kind(job)
            && (self.empty || !alone(job))
            && fits(job.capacity, self.free)
    }

    /// The order to fill bins: ready nodes, then booting nodes, then new nodes; among these, the fullest first.
    pub(super) fn preference(&self) -> (u8, u32, u64, Option<Slot>) {
        let (rank, slot) = match self.at {
            At::Ready(node) => (0, Some(node.slot())),
            At::Booting(node) => (1, Some(node.slot())),
            At::New(_) => (2, None),
        };
        (rank, self.free.vcpus, self.free.memory_mib, slot)
    }
}

/// Whether an alloc of this job gets its node alone.
pub(super) const fn alone(job: &JobSummary) -> bool {
    job.exclusive || job.capacity.gpus > 0
}

pub(super) const fn minus(have: Capacity, taken: Capacity) -> Capacity {
    Capacity {
        vcpus: have.vcpus.saturating_sub(taken.vcpus),
        memory_mib: have.memory_mib.saturating_sub(taken.memory_mib),
        scratch_gib: have.scratch_gib.saturating_sub(taken.scratch_gib),
        gpus: have.gpus.saturating_sub(taken.gpus),
    }
}
