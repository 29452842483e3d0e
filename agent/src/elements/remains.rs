//! What remains of one element that is stopped, and signals that reach all of it.
//!
//! Other elements run beside it, and a process that loses its parent becomes a child of the supervisor. So the processes of the element
//! are remembered.
//!
//! Guarantees: each signal is sent once to each process of its group, and to each one that was found below its first process.
//! Does not: know when to send what (`stops` does).

use model::Signal;
use nix::sys::signal::Signal as Number;
use nix::unistd::getpgrp;
use process_table::{self, Notice, ProcessEntry, descendants_now};
use std::collections::BTreeMap;
use std::time::Instant;

/// For the process that runs the element.
pub(crate) struct Element {
    /// The first process, which leads a group.
    first: i32,
    remembered: BTreeMap<i32, ProcessEntry>,
    notice: Notice,
}

impl Element {
    pub(crate) const fn new(first: i32, notice: Notice) -> Self {
        Self { first, remembered: BTreeMap::new(), notice }
    }

    pub(crate) fn notify(&mut self, signal: Signal) {
        let all = self.all();
        self.notice.send(&all, getpgrp().as_raw(), signal);
    }

    pub(crate) fn kill(&mut self) {
        self.all().iter().for_each(|p| process_table::send(p.pid, Number::SIGKILL));
        self.kill_group();
    }

    /// Kills what an element that ended by itself has left in its group.
    pub(crate) fn kill_group(&self) {
        process_table::send_group(self.first, Number::SIGKILL);
    }

    /// Whether nothing remains, if the first process has ended. Call this again and again while a stop goes on.
    pub(crate) fn have_ended(&mut self, has_first_ended: bool) -> bool {
        self.follow();
        self.notice.go_on(|| self.remembered.values().copied().collect(), Instant::now());
        has_first_ended && self.remembered.is_empty() && self.all().is_empty()
    }

    /// All its processes. This reads the whole table.
    fn all(&mut self) -> Vec<ProcessEntry> {
        let mine = |p: &ProcessEntry| (p.group == self.first || p.pid == self.first) && !p.zombie;
        let found: Vec<_> = process_table::all().into_iter().filter(mine).collect();
        self.remembered.extend(found.into_iter().map(|p| (p.pid, p)));
        self.follow();
        self.remembered.values().copied().collect()
    }

    /// Forgets the processes that have ended, and learns those that the others have started.
    fn follow(&mut self) {
        self.remembered.retain(|_, p| process_table::is_alive(p.pid, p.start_ticks));
        let below: Vec<_> =
            self.remembered.keys().flat_map(|pid| descendants_now(*pid)).filter(|p| !p.zombie).collect();
        self.remembered.extend(below.into_iter().map(|p| (p.pid, p)));
    }
}
