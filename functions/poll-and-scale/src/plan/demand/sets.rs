//! Demand sets: a number of nodes, or of shares of nodes, for the work of another scheduler (`docs/rules.md#demand-sets`).
//!
//! A set is a number. No row says which nodes satisfy it, so each run finds its nodes anew: first those that the other
//! scheduler keeps busy, then ready ones, booting ones, and new ones.
//!
//! Guarantees: a node satisfies only as many demands as fit on it, beside everything else that is there; the caps count as
//! for jobs; what a set uses is used by nothing else in this plan.
//! Does not: know on which nodes the other scheduler works, unless their agents say busy.

use super::bin::{At, Bin, minus};
use super::bins::Bins;
use super::packing::{Blocked, BlockedBy, Packing};
use model::control::{DemandNeed, WantedSet};
use model::policy::Size;
use model::{Reason, SetNote};
use std::rc::Rc;

impl<'a> Packing<'_, 'a> {
    /// Finds nodes for every set, in the order of their names. Sets come before jobs: the work that they stand for may be
    /// running already.
    pub(super) fn fill_sets(&mut self) {
        let sets: Vec<WantedSet<'a>> = self.view.observed.control.wanted_sets(self.view.now).collect();
        for set in sets {
            let note = self.fill_set(set);
            self.findings.sets.push(note);
        }
    }

    fn fill_set(&mut self, set: WantedSet<'a>) -> SetNote {
        let mut note = SetNote { name: set.name.to_owned(), count: set.count, ready: 0, coming: 0, why: Vec::new() };
        for n in self.bins.for_sets() {
            if note.lacking() == 0 {
                break;
            }
            self.take_for(n, set, &mut note);
        }
        let sizes = self.sizes_for(set.need);
        // A set that names a size takes it as it is bought.
        let asked = set.need.machine.market.filter(|_| set.need.size.is_none());
        if sizes.is_empty() && note.lacking() > 0 {
            note.why.push(self.no_size(set.need));
        }
        while note.lacking() > 0 && !sizes.is_empty() {
            let reason = Reason::SetNeedsNode { set: set.name.to_owned() };
            match self.launch_one_of(&sizes, asked, None, reason) {
                // A launched node has room for at least one demand. If not, this must not launch for ever.
                Ok(n) if self.take_for(n, set, &mut note) == 0 => break,
                Ok(_) => {}
                Err(Blocked { wait, why }) => {
                    self.findings.is_delayed |= wait == BlockedBy::Backoff;
                    note.why = why;
                    break;
                }
            }
        }
        note
    }

    /// Takes this bin for as many demands as it has room for. Returns how many.
    fn take_for(&mut self, n: usize, set: WantedSet<'a>, note: &mut SetNote) -> u32 {
        let taken = self.bins.take_for_set(n, set, note.lacking());
        match self.bins.get(n).map(|bin| bin.at) {
            Some(At::Ready(_)) => note.ready = note.ready.saturating_add(taken),
            _ => note.coming = note.coming.saturating_add(taken),
        }
        taken
    }

    fn sizes_for(&self, need: &DemandNeed) -> Rc<[&'a Size]> {
        match &need.size {
            Some(name) => self.sizes.named(name).into(),
            None => self.sizes.offering(need.capacity, &need.machine).into(),
        }
    }

    fn no_size(&self, need: &DemandNeed) -> Reason {
        match &need.size {
            Some(size) => Reason::NoSuchSize { size: size.clone() },
            None => self.sizes.none_fits(need.capacity, &need.machine),
        }
    }
}

impl<'a> Bins<'a> {
    /// The bins in the order in which a set takes them: busy nodes first, because the set stands for the work there.
    fn for_sets(&self) -> Vec<usize> {
        let mut all: Vec<(usize, &Bin<'_>)> = self.iter().enumerate().collect();
        all.sort_by_key(|(_, bin)| (!bin.busy, bin.preference()));
        all.into_iter().map(|(n, _)| n).collect()
    }

    /// Puts at most `most` demands of a set into this bin. Returns how many had room.
    fn take_for_set(&mut self, n: usize, set: WantedSet<'a>, most: u32) -> u32 {
        let mut taken = 0;
        self.change(n, |bin| {
            while taken < most && bin.has_room_for(set.need) {
                bin.take_for_set(set);
                taken += 1;
            }
        });
        taken
    }
}

/// Whether each demand has its node alone. A demand for a whole node of a size always does.
const fn is_alone(need: &DemandNeed) -> bool {
    need.exclusive || need.size.is_some()
}

impl<'a> Bin<'a> {
    fn has_room_for(&self, need: &DemandNeed) -> bool {
        !self.taken
            && !self.blocked
            && (self.empty || !is_alone(need))
            && match &need.size {
                Some(size) => size == self.size,
                // A demand that needs nothing would fit without end.
                None => need.capacity.vcpus > 0 && self.machine.fits(need.capacity, &need.machine, self.free),
            }
    }

    fn take_for_set(&mut self, set: WantedSet<'a>) {
        self.free = minus(self.free, set.need.capacity);
        self.empty = false;
        self.taken |= is_alone(set.need);
        self.for_set = self.for_set.or(Some(set.name));
    }
}
