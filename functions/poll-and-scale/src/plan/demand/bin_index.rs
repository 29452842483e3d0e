//! Indexes of the bins: the bins in the order in which jobs try them, so that a job does not look at every bin.
//!
//! An index holds the bins for one [`BinKind`] of job. Ready nodes are ordered by what is free on them, GPUs first, because a job takes
//! the fullest one that fits. Booting and new nodes keep the order of their launches. A tree over them has the largest free
//! vCPUs and the largest free memory of each part of this order.
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

/// The bins for one kind of job. A bin is named by its number. The first bins are the ready nodes, in the order of their
/// slots; the other bins follow in the order of their launches.
#[derive(Debug)]
pub(super) struct BinIndex<'a> {
    pub(super) kind: BinKind<'a>,
    /// How many bins are ready nodes.
    ready: usize,
    /// The ready nodes: by free GPUs and free vCPUs, then by free memory, then by slot.
    by_room: BTreeMap<u32, BTreeMap<u32, BTreeSet<(u64, usize)>>>,
    /// The other bins.
    tree: SegmentTree,
}

impl<'a> BinIndex<'a> {
    pub(super) fn new(kind: BinKind<'a>, bins: &[Bin<'_>], ready: usize) -> Self {
        let mut index = Self { kind, ready, by_room: BTreeMap::new(), tree: SegmentTree::default() };
        for (n, bin) in bins.iter().enumerate() {
            index.put(n, bin);
        }
        index
    }

    pub(super) fn put(&mut self, n: usize, bin: &Bin<'_>) {
        let holds = self.kind.holds(bin);
        match n.checked_sub(self.ready) {
            Some(at) => self.tree.set(at, holds.then_some(bin.free)),
            None if holds => {
                let of_gpus = self.by_room.entry(bin.free.gpus).or_default();
                of_gpus.entry(bin.free.vcpus).or_default().insert((bin.free.memory_mib, n));
            }
            None => {}
        }
    }

    /// Moves a changed bin to its new place. `before` is the free capacity of the bin before the change.
    pub(super) fn put_again(&mut self, n: usize, before: Capacity, bin: &Bin<'_>) {
        if n < self.ready {
            self.remove(n, before);
        }
        self.put(n, bin);
    }

    /// `free` is the free capacity of the bin.
    pub(super) fn remove(&mut self, n: usize, free: Capacity) {
        if let Some(at) = n.checked_sub(self.ready) {
            self.tree.set(at, None);
        } else if let Some(of_gpus) = self.by_room.get_mut(&free.gpus)
            && let Some(bins) = of_gpus.get_mut(&free.vcpus)
        {
            bins.remove(&(free.memory_mib, n));
            if bins.is_empty() {
                of_gpus.remove(&free.vcpus);
            }
            // An empty map of a number of GPUs stays: a machine has few GPUs, so there are few such maps.
        }
    }

    /// The bins with this many vCPUs and this much memory, in the order to try them.
    pub(super) fn candidates(&self, need: Capacity) -> impl Iterator<Item = usize> {
        let with_vcpus = self.by_room.range(need.gpus..).flat_map(move |(_, of_gpus)| of_gpus.range(need.vcpus..));
        let ready = with_vcpus.flat_map(move |(_, bins)| bins.range((need.memory_mib, 0)..)).map(|(_, n)| *n);
        ready.chain(self.tree.candidates(need).map(|at| at + self.ready))
    }
}

/// Free vCPUs and free memory, each plus one. Zero stands for a bin that is not in the index: it does not fit even a job
/// that needs nothing.
type Most = (u64, u64);

/// Bins in a fixed order: a binary tree whose leaves are the bins. Each node has the most vCPUs and the most memory below
/// it.
#[derive(Debug, Default)]
struct SegmentTree {
    /// How many leaves there is room for: a power of two, or 0.
    leaves: usize,
    /// The root is at 1, the children of the node at `n` are at `2 n` and `2 n + 1`, and the leaves are the second half.
    most: Vec<Most>,
}

impl SegmentTree {
    fn at(&self, n: usize) -> Most {
        self.most.get(n).copied().unwrap_or_default()
    }

    fn set(&mut self, at: usize, free: Option<Capacity>) {
        let leaf = free.map_or((0, 0), leaf);
        if at >= self.leaves {
            if leaf == (0, 0) {
                return;
            }
            self.grow(at + 1);
        }
        let mut n = self.leaves + at;
        let mut most = leaf;
        while n > 0 {
            match self.most.get_mut(n) {
                Some(old) if *old != most => *old = most,
                _ => return,
            }
            n /= 2;
            let (left, right) = (self.at(2 * n), self.at(2 * n + 1));
            most = (left.0.max(right.0), left.1.max(right.1));
        }
    }

    fn grow(&mut self, leaves: usize) {
        let old = std::mem::take(&mut self.most);
        let before = std::mem::replace(&mut self.leaves, leaves.next_power_of_two().max(64));
        self.most = vec![(0, 0); 2 * self.leaves];
        for (at, leaf) in old.get(before..).unwrap_or_default().iter().enumerate() {
            if let Some(to) = self.most.get_mut(self.leaves + at) {
                *to = *leaf;
            }
        }
        for n in (1..self.leaves).rev() {
            let (left, right) = (self.at(2 * n), self.at(2 * n + 1));
            if let Some(to) = self.most.get_mut(n) {
                *to = (left.0.max(right.0), left.1.max(right.1));
            }
        }
    }

    /// The places with this many vCPUs and this much memory, in their order.
    fn candidates(&self, need: Capacity) -> impl Iterator<Item = usize> {
        let need = leaf(need);
        let mut next = (self.leaves > 0).then_some(1);
        std::iter::from_fn(move || {
            while let Some(n) = next {
                let most = self.at(n);
                let may_fit = most.0 >= need.0 && most.1 >= need.1;
                let is_leaf = n >= self.leaves;
                next = if may_fit && !is_leaf { Some(2 * n) } else { after(n) };
                if may_fit && is_leaf {
                    return Some(n - self.leaves);
                }
            }
            None
        })
    }
}

fn leaf(free: Capacity) -> Most {
    (u64::from(free.vcpus) + 1, free.memory_mib.saturating_add(1))
}

/// The next node of a walk from left to right that skips everything below `n`.
fn after(n: usize) -> Option<usize> {
    // A right child has an odd number. Goes up from right children until a left child, and then to its sibling.
    let left = n.checked_shr(n.trailing_ones()).filter(|left| *left > 0)?;
    Some(left + 1)
}
