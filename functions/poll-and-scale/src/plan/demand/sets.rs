//! Demand sets: a number of nodes of a size for the work of another scheduler (`docs/rules.md#demand-sets`).
//!
//! A set is a number. No row says which nodes satisfy it, so each run finds its nodes anew: first those that the other
//! scheduler keeps busy, then ready ones, booting ones, and new ones.
//!
//! Guarantees: the caps count as for jobs; a node that a set uses is used by nothing else in this plan.
//! Does not: know on which nodes the other scheduler works, unless their agents say busy.

use super::bin::{At, Bin};
use super::bins::Bins;
use super::packing::{Blocked, BlockedBy, Packing};
use model::control::WantedSet;
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
        let sizes: Rc<[&'a Size]> = self.sizes.named(set.size).into();
        if sizes.is_empty() && note.lacking() > 0 {
            note.why.push(Reason::NoSuchSize { size: set.size.to_owned() });
        }
        while note.lacking() > 0 && !sizes.is_empty() {
            let reason = Reason::SetNeedsNode { set: set.name.to_owned() };
            match self.launch_one_of(&sizes, None, None, reason) {
                // A launched node always satisfies the set. If one ever does not, the loop must still end.
                Ok(n) if !self.take_for(n, set, &mut note) => break,
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

    /// Takes the node of this bin, if it is whole and of the size of the set. Returns whether it does.
    fn take_for(&mut self, n: usize, set: WantedSet<'a>, note: &mut SetNote) -> bool {
        let is_taken = self.bins.take_for_set(n, set);
        let taken = match self.bins.get(n).map(|bin| bin.at) {
            Some(At::Ready(_)) => &mut note.ready,
            _ => &mut note.coming,
        };
        *taken = taken.saturating_add(is_taken.into());
        is_taken
    }
}

impl<'a> Bins<'a> {
    /// The bins in the order in which a set takes them: busy nodes first, because the set stands for the work there.
    fn for_sets(&self) -> Vec<usize> {
        let mut all: Vec<(usize, &Bin<'_>)> = self.iter().enumerate().collect();
        all.sort_by_key(|(_, bin)| (!bin.busy, bin.preference()));
        all.into_iter().map(|(n, _)| n).collect()
    }

    /// Gives the node of this bin to a set, if it is whole and of its size. Returns whether it is.
    fn take_for_set(&mut self, n: usize, set: WantedSet<'a>) -> bool {
        let mut is_taken = false;
        self.change(n, |bin| {
            is_taken = !bin.taken && !bin.blocked && bin.empty && bin.size == set.size;
            if is_taken {
                (bin.empty, bin.taken) = (false, true);
                bin.for_set = Some(set.name);
            }
        });
        is_taken
    }
}
