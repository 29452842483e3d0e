//! One bin, and the order in which bins are filled.
//!
//! Guarantees: two plans over the same nodes fill them in the same order, so a booting node goes to the job that it was
//! launched for.
//! Does not: choose a bin for a job (`packing` does).

use model::{Capacity, JobId, JobSummary, Machine, NodeId, Time, Usd};

/// A node with room for members of jobs: it takes work, it boots, or it would be launched.
pub(super) struct Bin<'a> {
    pub(super) at: At,
    /// The capacity of the node for jobs, as if it were empty.
    pub(super) capacity: Capacity,
    pub(super) free: Capacity,
    pub(super) size: &'a str,
    pub(super) machine: Machine<'a>,
    pub(super) price_per_hour: Usd,
    /// When the node was assigned; for a new node, now.
    pub(super) assigned_at: Time,
    /// Nothing is placed or reserved in this bin.
    pub(super) empty: bool,
    /// Nothing more may be placed in this bin: one member has the node alone.
    pub(super) taken: bool,
    /// The agent says busy: another scheduler uses the machine. No job is placed here.
    pub(super) busy: bool,
    /// This bin is kept for the first job that cannot be placed.
    pub(super) blocked: bool,
    /// The first job that this run places here or reserves this bin for.
    pub(super) for_job: Option<JobId>,
    /// The first demand set that the node satisfies.
    pub(super) for_set: Option<&'a str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum At {
    Ready(NodeId),
    Booting(NodeId),
    New(usize),
}

impl Bin<'_> {
    pub(super) const fn node(&self) -> Option<NodeId> {
        match self.at {
            At::Ready(node) | At::Booting(node) => Some(node),
            At::New(_) => None,
        }
    }

    pub(super) const fn is_open(&self) -> bool {
        !self.taken && !self.busy && !self.blocked
    }

    /// Whether this is a ready node that is not busy and on which nothing is placed or reserved.
    pub(super) const fn is_idle(&self) -> bool {
        matches!(self.at, At::Ready(_)) && self.empty && !self.taken && !self.busy
    }

    pub(super) fn fits(&self, job: &JobSummary) -> bool {
        self.is_open()
            && (self.empty || !job.needs.exclusive)
            && self.machine.fits(job.needs.capacity(), &job.needs.machine, self.free)
    }

    /// Whether the node would fit a member of the job if nothing were on it.
    pub(super) fn would_fit(&self, job: &JobSummary) -> bool {
        self.machine.fits(job.needs.capacity(), &job.needs.machine, self.capacity)
    }

    /// The order to fill bins: ready nodes, the fullest first; then booting nodes, and then new nodes, in the order of their
    /// launches. GPUs come before vCPUs, so that work without GPUs leaves nodes with GPUs to the work that needs them.
    ///
    /// Booting nodes were launched for the queue in this order. So the next run gives each of them to the job that it was
    /// launched for. Otherwise an earlier job could take the node of a later job, and the later job would ask for another.
    pub(super) fn preference(&self) -> impl Ord + use<> {
        let fullest = (self.free.gpus, self.free.vcpus, self.free.memory_mib);
        match self.at {
            At::Ready(node) => (0, Time::from_ms(0), fullest, node.slot().number() as usize),
            At::Booting(node) => (1, self.assigned_at, (0, 0, 0), node.slot().number() as usize),
            At::New(n) => (2, Time::from_ms(0), (0, 0, 0), n),
        }
    }
}

pub(super) const fn minus(have: Capacity, taken: Capacity) -> Capacity {
    Capacity {
        vcpus: have.vcpus.saturating_sub(taken.vcpus),
        memory_mib: have.memory_mib.saturating_sub(taken.memory_mib),
        scratch_gib: have.scratch_gib.saturating_sub(taken.scratch_gib),
        gpus: have.gpus.saturating_sub(taken.gpus),
    }
}
