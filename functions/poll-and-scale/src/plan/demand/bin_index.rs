//! Indexes of the ready nodes: in the order in which jobs try them, so that a job does not look at every bin.
//!
//! An index holds the ready nodes for one [`BinKind`] of job. They are ordered by what is free on them, GPUs first, because a job takes
//! the fullest one that fits.
//!
//! Guarantees: [`BinIndex::candidates`] gives every bin of the index with enough vCPUs and memory, in the order of
//! [`Bin::preference`]; the first one costs about the logarithm of the number of bins.
//! Does not: check the scratch space exactly; the caller does.

use super::bin::Bin;
use model::{Capacity, JobSummary, MachineNeed};
use std::collections::{BTreeMap, BTreeSet};

/// What a job asks of a bin besides vCPUs and memory. A plan only fills bins, so a bin that does not have it now does not
/// have it later in the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct BinKind<'a> {
    machine: &'a MachineNeed,
    exclusive: bool,
    gpus: u32,
    /// The scratch space, rounded down to a power of two, so that there are few kinds.
    scratch_gib: u64,
}

impl<'a> BinKind<'a> {
    pub(super) fn of(job: &'a JobSummary) -> Self {
        Self {
            machine: &job.needs.machine,
            exclusive: job.needs.exclusive,
            gpus: job.needs.gpus,
            scratch_gib: job.needs.scratch_gib.checked_ilog2().map_or(0, |power| 1 << power),
        }
    }

    fn holds(&self, bin: &Bin<'_>) -> bool {
        let takes = Capacity { vcpus: 0, memory_mib: 0, scratch_gib: self.scratch_gib, gpus: self.gpus };
        bin.is_open() && (bin.empty || !self.exclusive) && bin.machine.fits(takes, self.machine, bin.free)
    }
}

/// The ready nodes for one kind of job. A bin is named by its number.
pub(super) struct BinIndex<'a> {
    pub(super) kind: BinKind<'a>,
    /// By free GPUs and free vCPUs, then by free memory, then by slot.
    by_room: BTreeMap<u32, BTreeMap<u32, BTreeSet<(u64, usize)>>>,
}

impl<'a> BinIndex<'a> {
    pub(super) fn new(kind: BinKind<'a>, ready: &[Bin<'_>]) -> Self {
        let mut index = Self { kind, by_room: BTreeMap::new() };
        for (n, bin) in ready.iter().enumerate() {
            index.put(n, bin);
        }
        index
    }

    fn put(&mut self, n: usize, bin: &Bin<'_>) {
        if self.kind.holds(bin) {
            let of_gpus = self.by_room.entry(bin.free.gpus).or_default();
            of_gpus.entry(bin.free.vcpus).or_default().insert((bin.free.memory_mib, n));
        }
    }

    /// Moves a changed bin to its new place. `before` is the free capacity of the bin before the change.
    pub(super) fn put_again(&mut self, n: usize, before: Capacity, bin: &Bin<'_>) {
        if let Some(of_gpus) = self.by_room.get_mut(&before.gpus)
            && let Some(bins) = of_gpus.get_mut(&before.vcpus)
        {
            bins.remove(&(before.memory_mib, n));
            if bins.is_empty() {
                of_gpus.remove(&before.vcpus);
            }
            // An empty map of a number of GPUs stays: a machine has few GPUs, so there are few such maps.
        }
        self.put(n, bin);
    }

    /// The bins with this many vCPUs and this much memory, in the order to try them.
    pub(super) fn candidates(&self, need: Capacity) -> impl Iterator<Item = usize> {
        let with_vcpus = self.by_room.range(need.gpus..).flat_map(move |(_, of_gpus)| of_gpus.range(need.vcpus..));
        with_vcpus.flat_map(move |(_, bins)| bins.range((need.memory_mib, 0)..)).map(|(_, n)| *n)
    }
}
