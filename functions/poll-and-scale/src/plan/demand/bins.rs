//! Bins: nodes with room for members of jobs.
//!
//! Guarantees: a bin never holds more than its capacity; a job that gets its node alone gets an empty one.
//! Does not: know the queue or the caps.

use super::bin::{At, Bin, minus};
use super::bin_index::{BinIndex, BinKind};
use model::{Capacity, JobSummary, Time};
use std::cmp::Reverse;
use std::collections::HashMap;

/// All bins of a plan. A bin is named by its number.
pub(super) struct Bins<'a> {
    /// The ready nodes in the order of their slots, then the other bins in the order of their launches.
    all: Vec<Bin<'a>>,
    ready: usize,
    indexes: Vec<BinIndex<'a>>,
    /// For each need that was searched, the number of the first bin behind the ready nodes that may fit it. A plan only fills bins, so
    /// what does not fit now does not fit later.
    searched: HashMap<(BinKind<'a>, Capacity), usize>,
}

#[derive(Default)]
pub(super) struct Fitting {
    pub(super) chosen: Vec<usize>,
    /// Nodes that a job with `elsewhere` avoids: it takes a new node before one of these.
    pub(super) spare: Vec<usize>,
}

impl<'a> Bins<'a> {
    pub(super) fn new(mut all: Vec<Bin<'a>>) -> Self {
        let order = |bin: &Bin<'_>| match bin.at {
            At::Ready(node) => (0, Time::from_ms(0), node.slot().number()),
            At::Booting(node) => (1, bin.assigned_at, node.slot().number()),
            At::New(_) => (2, Time::from_ms(0), 0),
        };
        all.sort_by_key(order);
        let ready = all.partition_point(|bin| matches!(bin.at, At::Ready(_)));
        Self { all, ready, indexes: Vec::new(), searched: HashMap::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    pub(super) fn get(&self, n: usize) -> Option<&Bin<'a>> {
        self.all.get(n)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Bin<'a>> {
        self.all.iter()
    }

    /// Adds the bin of a new node. Returns its number.
    pub(super) fn push(&mut self, bin: Bin<'a>) -> usize {
        self.all.push(bin);
        self.all.len() - 1
    }

    /// Removes the bins from `first` on, which must be new nodes.
    pub(super) fn truncate(&mut self, first: usize) {
        self.all.truncate(first);
        self.searched.values_mut().for_each(|from| *from = first.min(*from));
    }

    pub(super) fn change(&mut self, n: usize, change: impl FnOnce(&mut Bin<'a>)) {
        let Some(bin) = self.all.get_mut(n) else { return };
        let before = bin.free;
        change(bin);
        if n >= self.ready {
            return;
        }
        self.indexes.iter_mut().for_each(|index| index.put_again(n, before, bin));
    }

    pub(super) fn take(&mut self, n: usize, job: &JobSummary) {
        self.change(n, |bin| {
            bin.free = minus(bin.free, job.needs.capacity());
            bin.empty = false;
            bin.taken |= job.needs.exclusive;
            bin.for_job = bin.for_job.or(Some(job.job_id));
        });
    }

    /// Keeps the bin for the first job that cannot be placed.
    pub(super) fn block(&mut self, n: usize) {
        self.change(n, |bin| bin.blocked = true);
    }

    /// The bins that fit members of the job, at most `most`, in the order of [`Bin::preference`], but with the nodes that the job
    /// avoids last.
    pub(super) fn fitting(&mut self, job: &'a JobSummary, most: usize) -> Fitting {
        let kind = BinKind::of(job);
        let known = self.indexes.iter().position(|index| index.kind == kind).unwrap_or_else(|| {
            self.indexes.push(BinIndex::new(kind, self.all.get(..self.ready).unwrap_or_default()));
            self.indexes.len() - 1
        });
        let Some(index) = self.indexes.get(known) else { return Fitting::default() };
        let fits = |n: &usize| self.all.get(*n).is_some_and(|bin| bin.fits(job));
        let (avoids, need) = (&job.tries.avoids, job.needs.capacity());
        let from = self.searched.entry((kind, need)).or_insert(self.ready);
        let candidates = index.candidates(need).chain(*from..self.all.len()).filter(fits);
        let limit = most.saturating_add(avoids.len());
        let mut chosen: Vec<usize> = candidates.take(limit).collect();
        match chosen.iter().find(|n| **n >= self.ready) {
            Some(first) => *from = *first,
            None if chosen.len() < limit => *from = self.all.len(),
            None => {}
        }
        // Another ready node comes before one that the job avoids, and such a node comes before one that boots.
        let is_avoided = |n: usize| self.all.get(n).and_then(Bin::node).is_some_and(|id| avoids.contains(&id));
        chosen.sort_by_key(|n| (*n >= self.ready, is_avoided(*n)));
        let (spare, mut chosen): (Vec<_>, Vec<_>) =
            chosen.into_iter().partition(|n| job.tries.elsewhere && is_avoided(*n));
        chosen.truncate(most);
        Fitting { chosen, spare }
    }

    /// The bins that `helps` accepts, in the order in which they are kept free for a job that waits. Bins that fit the job
    /// when they are empty come first.
    pub(super) fn to_keep_free(&self, job: &JobSummary, helps: impl Fn(usize, &Bin<'_>) -> bool) -> Vec<usize> {
        let mut others: Vec<(usize, &Bin<'_>)> = self.all.iter().enumerate().filter(|(n, b)| helps(*n, b)).collect();
        others.sort_by_key(|(_, b)| (!b.would_fit(job), !b.empty, Reverse(b.free.vcpus), b.preference()));
        others.into_iter().map(|(n, _)| n).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::Job;
    use model::fixtures::{self, at};
    use model::rng::Rng;
    use model::{Arch, Capacity, JobSpec, Machine, MachineKind, MachineNeed, Market, MarketNeed, Needs, Usd};
    use std::collections::BTreeSet;
    use std::sync::LazyLock;

    static X86: LazyLock<MachineKind> = LazyLock::new(MachineKind::default);
    static ARM: MachineKind =
        MachineKind { arch: Arch::Arm64, gpu_type: None, gpu_memory_gib: 0, labels: BTreeSet::new(), containers: true };

    struct Draw(Rng);

    impl Draw {
        fn below(&self, n: u64) -> u64 {
            (self.0.between(0.0, n as f64) as u64).min(n - 1)
        }

        fn of<T: Copy>(&self, from: &[T]) -> T {
            from[self.below(from.len() as u64) as usize]
        }

        fn bin(&self, at: At) -> Bin<'static> {
            let vcpus = self.of(&[2, 4, 16]);
            let (memory_mib, scratch_gib) = (self.below(8) * 1000, self.of(&[0, 100, 130]));
            let gpus = self.of(&[0, 0, 1, 4]);
            let capacity = Capacity { vcpus, memory_mib, scratch_gib, gpus };
            Bin {
                at,
                capacity,
                free: Capacity { vcpus: vcpus - self.below(2) as u32, gpus: gpus / self.of(&[1, 2]), ..capacity },
                size: "s",
                machine: Machine {
                    instance_type: self.of(&["a", "b"]),
                    market: self.of(&[Market::Spot, Market::OnDemand]),
                    kind: self.of(&[&*X86, &*X86, &ARM]),
                    default_arch: Arch::X86_64,
                },
                price_per_hour: Usd::ZERO,
                assigned_at: fixtures::at(self.below(3) as i64),
                empty: self.of(&[true, false]),
                taken: self.below(10) == 0,
                busy: false,
                blocked: false,
                for_job: None,
                for_set: None,
            }
        }

        fn job(&self, n: u32) -> JobSummary {
            let spec = JobSpec {
                needs: Needs {
                    vcpus: self.of(&[1, 2, 3, 8]),
                    memory_mib: self.below(5) * 900,
                    scratch_gib: self.of(&[0, 0, 1, 99, 120]),
                    gpus: self.of(&[0, 0, 0, 1, 2]),
                    exclusive: self.below(5) == 0,
                    machine: MachineNeed {
                        instance_type: self.of(&[None, None, Some("a")]).map(str::to_owned),
                        market: self.of(&[None, None, Some(MarketNeed::Spot)]),
                        arch: self.of(&[None, None, None, Some(Arch::Arm64)]),
                        ..MachineNeed::default()
                    },
                    ..Needs::default()
                },
                ..JobSpec::running(["true"])
            };
            Job::submit(fixtures::job_id(n), spec, at(0)).unwrap().summary
        }
    }

    /// Between the searches, bins are filled, kept, added and removed.
    #[test]
    fn jobs_find_the_bins_that_a_look_at_every_bin_finds() {
        let mut found = 0;
        for seed in 0..300 {
            let draw = Draw(Rng::seeded(seed));
            let jobs: Vec<JobSummary> = (0..30).map(|n| draw.job(n)).collect();
            let at = |n| draw.of(&[At::Ready(fixtures::node_id(n)), At::Booting(fixtures::node_id(n))]);
            let existing = draw.below(40) as u32;
            let mut bins = Bins::new((0..existing).map(|n| draw.bin(at(n))).collect());
            let mut new = 0;
            for job in jobs.iter().cycle().take(90) {
                match draw.below(4) {
                    0 => {
                        bins.push(draw.bin(At::New(new)));
                        new += 1;
                    }
                    1 => bins.block(draw.below(1 + bins.len() as u64) as usize),
                    2 if new > 0 => {
                        new -= 1;
                        bins.truncate(bins.len() - 1);
                    }
                    _ => {}
                }
                let most = draw.of(&[1, 1, 3]);
                let mut every: Vec<usize> = (0..bins.len()).filter(|n| bins.all[*n].fits(job)).collect();
                every.sort_by_key(|n| bins.all[*n].preference());
                every.truncate(most);
                let fitting = bins.fitting(job, most).chosen;
                assert_eq!(fitting, every, "seed {seed}: {job:?}");
                found += fitting.len();
                fitting.into_iter().for_each(|n| bins.take(n, job));
            }
        }
        assert!(found > 5_000, "{found}");
    }
}
