//! The invariants of arrays with a limit.
//!
//! A job is there while it is placed or regroups, and as long as it has live allocs.

use crate::caller::{Caller, Kind};
use crate::check::demand::{decimal, price_of_a_size};
use crate::check::jobs;
use crate::check::{Check, INDEX, count, is_ended, set, text};
use crate::core::lock;
use crate::database::Model;
use model::{JobId, Span, Time};
use std::collections::BTreeSet;
use store::{Item, Row, Table};

/// How old the records of nodes may be that a run reads.
const RECORDS: Span = Span::from_s(25);

/// How long an array may have far fewer jobs placed than its limit, although more could run. It is longer than a boot,
/// and longer than any limit on launches lasts after the faults.
const UNUSED: Span = Span::from_s(7200);

/// Who placed a job of an array, and when.
#[derive(Clone, Copy, Debug)]
pub(in crate::check) struct Placed {
    at: Time,
    by: u64,
}

/// The array of a job: all but the last 24 bits of its id.
fn array_of(job: JobId) -> u128 {
    u128::from_be_bytes(job.ulid().to_bytes()) >> 24
}

fn limit(job: &Item) -> Option<usize> {
    job.get("array_limit").map(|_| usize::try_from(count(job, "array_limit")).unwrap_or(0))
}

fn is_there(job: &Item) -> bool {
    matches!(text(job, "state"), Some("placing" | "placed" | "regrouping")) || !set(job).is_empty()
}

/// The other jobs of the job's array that are there.
fn others(model: &Model, job: JobId) -> impl Iterator<Item = (JobId, &Row)> {
    let rows = model.rows(Table::Jobs).filter(|row| row.contains_key("array_limit") && is_there(row));
    let known = rows.filter_map(|row| Some((jobs::job_id(row)?, row)));
    known.filter(move |(id, _)| *id != job && array_of(*id) == array_of(job))
}

impl Check {
    pub(in crate::check) fn array(&self, caller: &Caller, model: &Model, before: Option<&Item>, after: Option<&Item>) {
        let Some(id) = before.or(after).filter(|row| row.contains_key("array_limit")).and_then(jobs::job_id) else {
            return;
        };
        let is_placed = |row: Option<&Item>| row.is_some_and(|row| text(row, "state") == Some("placed"));
        if let Some(job) = after.filter(|_| is_placed(after) && !is_placed(before)) {
            self.core.count("a job of an array was placed");
            self.invariant_an_array_stays_within_its_limit(caller, model, id, job);
            lock(&self.seen).placed.insert(id, Placed { at: self.core.now(), by: caller.number });
        }
        if after.is_none_or(|row| is_ended(row) && !is_there(row)) {
            lock(&self.seen).placed.remove(&id);
        }
    }

    /// No run places more jobs of an array than its limit allows. This counts the jobs that the run placed, and those
    /// that it could see: on the record of a node, or, after some time, in an index. (If two runs overlap, each run
    /// keeps the limit by its own count.)
    fn invariant_an_array_stays_within_its_limit(&self, caller: &Caller, model: &Model, id: JobId, job: &Item) {
        let Some(limit) = limit(job).filter(|_| matches!(caller.kind, Kind::Run(_))) else { return };
        // Jobs whose rows cannot be read, or were taken away by a restore, cannot be counted.
        if self.has_spoiled() || self.forgets(None) {
            return;
        }
        let on_records: BTreeSet<JobId> = model.rows(Table::Nodes).flat_map(|row| set(row)).map(|a| a.job_id).collect();
        let began = caller.began();
        let counts = |(other, _): &(JobId, &Row)| {
            let placed = lock(&self.seen).placed.get(other).copied();
            placed.is_some_and(|placed| {
                placed.by == caller.number
                    || placed.at + INDEX < began
                    || (placed.at + RECORDS < began && on_records.contains(other))
            })
        };
        let counted: Vec<JobId> = others(model, id).filter(counts).map(|(other, _)| other).collect();
        self.core.count(if counted.len() + 1 >= limit { "an array was full" } else { "an array had room" });
        if counted.len() >= limit {
            let what = format!("{}: {id} beside {counted:?}, limit {limit}", caller.name());
            self.broken("invariant_an_array_stays_within_its_limit", what);
        }
    }

    /// Once the faults are over, no array has at most half as many jobs placed as its limit allows, for hours, while its
    /// next job is the first that could be served, and there is room for it.
    pub fn invariant_the_limit_of_an_array_is_used(&self, model: &Model) {
        if !self.core.is_healed_for(Span::from_s(3600)) {
            return;
        }
        let now = self.core.now();
        let waits = self.next_that_could_run(model);
        let mut seen = lock(&self.seen);
        let since = match (seen.array_waits, waits) {
            (Some((known, since)), Some((array, _))) if known == array => since,
            _ => now,
        };
        seen.array_waits = waits.map(|(array, _)| (array, since));
        drop(seen);
        if let Some((_, job)) = waits.filter(|_| now.since(since) >= UNUSED) {
            let beside: Vec<JobId> = others(model, job).map(|(id, _)| id).collect();
            let what = format!("{job} could run since {since}; of its array only {beside:?} are there");
            self.broken("invariant_the_limit_of_an_array_is_used", what);
        }
    }

    /// The first waiting job whose array is not full, with its array: only if the array has far fewer jobs placed than
    /// its limit, and a node could be launched for the job.
    fn next_that_could_run(&self, model: &Model) -> Option<(u128, JobId)> {
        let is_queued = |row: &&Row| text(row, "state") == Some("queued") && !jobs::is_held(row);
        let mut queued: Vec<&Row> = model.rows(Table::Jobs).filter(is_queued).collect();
        queued.sort_by_key(|row| text(row, "rank").map(ToOwned::to_owned));
        let there = |id: JobId| others(model, id).count();
        let first = queued.into_iter().find(|row| match (limit(row), jobs::job_id(row)) {
            (Some(limit), Some(id)) => there(id) < limit,
            _ => true,
        })?;
        let (limit, id) = (limit(first)?, jobs::job_id(first)?);
        let policy = self.present_policy()?;
        let up: Vec<&Row> = model.rows(Table::Nodes).filter(|r| text(r, "state") != Some("cleaned")).collect();
        let price: f64 = up.iter().map(|row| decimal(row, "price_per_hour")).sum();
        let cap = f64::from(policy.nodes.max_price_per_hour);
        let cheapest = price_of_a_size(&policy, first)?;
        let has_room = (up.len() as u64) < u64::from(policy.nodes.max) && (cap == 0.0 || price + cheapest <= cap);
        let far_fewer = there(id) * 2 <= limit;
        (has_room && far_fewer && count(first, "nodes") <= 1).then_some((array_of(id), id))
    }
}
