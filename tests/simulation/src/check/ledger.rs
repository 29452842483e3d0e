//! Measures a world that compares policies.
//!
//! Guarantees: every write, launch call and interruption of such a world is counted when it happens.
//! Does not: count anything in other worlds, or judge.

use super::demand::decimal;
use super::{Check, is_ended, slot, text};
use crate::check::jobs::job_id;
use crate::core::lock;
use crate::database::Change;
use crate::replay::measured::Measured;
use model::{JobId, Slot, Span, Time};
use std::collections::{BTreeMap, HashMap};
use store::{Item, Table};

#[derive(Default)]
pub(super) struct Ledger {
    counted: Measured,
    /// When the first job was submitted.
    first_at: Option<Time>,
    /// When each job was submitted, and whether it has been placed.
    jobs: HashMap<JobId, (Time, bool)>,
    /// The earliest and the latest time at which each job that waits was to begin, as it was foretold first.
    foretold: HashMap<JobId, (Time, Time)>,
    /// For each node that has an instance: since when, and its price.
    nodes: BTreeMap<Slot, (Time, f64)>,
    ready: usize,
}

impl Ledger {
    fn passed(&self, now: Time) -> Span {
        self.first_at.map_or(Span::ZERO, |first| now.since(first))
    }

    fn job(&mut self, now: Time, before: Option<&Item>, after: &Item) {
        let (Some(id), state) = (job_id(after), text(after, "state")) else { return };
        if before.is_none() {
            self.first_at.get_or_insert(now);
            self.jobs.insert(id, (now, false));
            self.counted.submitted += 1;
        }
        if before.and_then(|row| text(row, "state")) == state {
            return;
        }
        if state == Some("placed")
            && let Some((submitted_at, was_placed)) = self.jobs.get_mut(&id)
        {
            if std::mem::replace(was_placed, true) {
                self.counted.again += 1;
            } else {
                let outside = |(least, most)| now.since(now.clamp(least, most));
                self.counted.later.extend(self.foretold.remove(&id).map(outside));
                let waited = now.since(*submitted_at);
                self.counted.waited.push(waited);
                let of = text(after, "by").map(|by| self.counted.waited_of.entry(by.to_owned()).or_default());
                of.into_iter().for_each(|of| of.push(waited));
            }
        }
        if is_ended(after) {
            let count = if state == Some("complete") { &mut self.counted.done } else { &mut self.counted.not_done };
            *count += 1;
        }
    }

    fn node(&mut self, now: Time, before: Option<&Item>, after: Option<&Item>) {
        let (was, is) = (before.and_then(price), after.and_then(price));
        if let (true, Some(slot)) = (was != is, before.or(after).and_then(slot)) {
            if let Some((since, price)) = self.nodes.remove(&slot) {
                self.pay(now.since(since), price);
            }
            if let Some((_, price)) = is {
                self.nodes.insert(slot, (now, price));
            }
            self.counted.most_nodes = self.counted.most_nodes.max(self.nodes.len());
        }
        match (before.is_some_and(is_ready), after.is_some_and(is_ready)) {
            (false, true) => self.ready += 1,
            (true, false) => self.ready = self.ready.saturating_sub(1),
            _ => {}
        }
        if self.ready > self.counted.ready_after.len() {
            self.counted.ready_after.push(self.passed(now));
        }
    }

    fn pay(&mut self, span: Span, price: f64) {
        let hours = span.as_s() / 3600.0;
        self.counted.node_hours += hours;
        self.counted.usd += hours * price;
    }
}

/// The instance of a node and its price; `None` without an instance.
fn price(row: &Item) -> Option<(String, f64)> {
    let instance = text(row, "instance_id").filter(|_| text(row, "state") != Some("cleaned"))?;
    Some((instance.to_owned(), decimal(row, "price_per_hour")))
}

fn is_ready(row: &Item) -> bool {
    text(row, "state") == Some("in_use") && text(row, "status") == Some("ready")
}

impl Check {
    pub(super) fn measure(&self, change: &Change) {
        if self.core.scenario.replay.is_none() {
            return;
        }
        let (before, after) = (change.before.as_deref(), change.after.as_deref());
        let now = self.core.now();
        match (change.table, after) {
            (Table::Jobs, Some(after)) => {
                lock(&self.ledger).job(now, before, after);
                if before.is_none() {
                    self.wakes.notify_one();
                }
            }
            (Table::Nodes, after) => {
                lock(&self.ledger).node(now, before, after);
                if after.is_some_and(is_ready) && before.is_none_or(|row| !is_ready(row)) {
                    self.wakes.notify_one();
                }
            }
            (Table::Allocs, Some(after)) if matches!(text(after, "client"), Some("complete" | "failed")) => {
                self.wakes.notify_one();
            }
            _ => {}
        }
    }

    /// Notes when a job is to begin that waits, at the earliest and at the latest.
    pub fn foretell(&self, job: JobId, times: (Time, Time)) {
        lock(&self.ledger).foretold.entry(job).or_insert(times);
    }

    /// Counts a launch call for this many instances.
    pub fn launch_called(&self, instances: usize, is_refused: bool) {
        let counted = &mut lock(&self.ledger).counted;
        counted.calls += 1;
        counted.asked += instances;
        counted.refused += usize::from(is_refused);
    }

    pub(super) fn count_launch(&self) {
        let mut ledger = lock(&self.ledger);
        let after = ledger.passed(self.core.now());
        ledger.counted.launched += 1;
        ledger.counted.launched_after.push(after);
    }

    pub fn interrupted(&self) {
        lock(&self.ledger).counted.interruptions += 1;
    }

    /// Ends the measuring, and returns what was measured.
    pub fn end_measuring(&self) -> Measured {
        let now = self.core.now();
        let mut ledger = lock(&self.ledger);
        for (since, price) in std::mem::take(&mut ledger.nodes).into_values() {
            ledger.pay(now.since(since), price);
        }
        let mut measured = std::mem::take(&mut ledger.counted);
        measured.waited.sort_unstable();
        measured.later.sort_unstable();
        measured.waited_of.values_mut().for_each(|waited| waited.sort_unstable());
        measured
    }
}
