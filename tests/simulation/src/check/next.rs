//! The invariants of jobs that start on the room of an alloc, in the transaction that ends it.
//!
//! A list may be old, lost or repeated, and then a job waits for a run. The checks judge a placement by the list that the world's table
//! had when its turn was written.

use super::{Check, SLACK, alloc_id, is_ended, is_final, is_true, node_id, number, slot, text};
use crate::caller::{Caller, Kind};
use crate::core::lock;
use crate::database::{Change, Model};
use model::{JobId, Time};
use serde_json::Value;
use std::collections::VecDeque;
use store::{Item, Row, Table, job_key, node_key};

/// How many lists are remembered: a process may use one for two seconds, and a restore brings back an older one.
const REMEMBERED: usize = 4;

/// What takes up a node.
const ROOM: [&str; 4] = ["vcpus", "memory_mib", "scratch_gib", "gpus"];

#[derive(Default)]
pub(super) struct Lists {
    /// The lists that were written last, the newest first.
    last: VecDeque<Row>,
    /// The version of the list that somebody made to be drawn again from its beginning.
    drawn_again: Option<u64>,
}

fn many(value: &Value, name: &str) -> u64 {
    value.pointer(&format!("/{name}")).and_then(Value::as_u64).unwrap_or(0)
}

fn list<'v>(value: &'v Value, name: &str) -> &'v [Value] {
    value.pointer(&format!("/{name}")).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// Whether the list has this slot among its closed or kept nodes.
fn names(listed: &Value, which: &str, on: u64) -> bool {
    list(listed, which).iter().any(|slot| slot.as_u64() == Some(on))
}

/// The array of a job: all but the last 24 bits of its id.
fn array_of(job: JobId) -> u128 {
    u128::from_be_bytes(job.ulid().to_bytes()) >> 24
}

/// A job in a list: the number of its kind, its number in the kind, and its place in the queue.
type Found<'v> = (usize, usize, u64, &'v Value);

fn find(listed: &Value, job: JobId) -> Option<Found<'_>> {
    list(listed, "alike").iter().enumerate().find_map(|(kind, alike)| {
        let (at, next) = list(alike, "jobs")
            .iter()
            .enumerate()
            .find(|(_, next)| next.pointer("/job_id").and_then(Value::as_str) == Some(job.to_string().as_str()))?;
        Some((kind, at, many(next, "place"), alike))
    })
}

impl Check {
    /// Called when somebody writes a list.
    pub fn lists(&self, row: &Row) {
        let lists = &mut lock(&self.seen).lists;
        lists.last.push_front(Row::clone(row));
        lists.last.truncate(REMEMBERED);
    }

    /// Called when somebody makes the list with this version to be drawn again.
    pub fn draws_again(&self, version: u64) {
        lock(&self.seen).lists.drawn_again = Some(version);
    }

    /// Called for each transaction: notes a new list, and judges a placement by a node's report.
    pub(super) fn handed_on(&self, caller: &Caller, model: &Model, changes: &[Change]) {
        for change in changes.iter().filter(|change| change.table == Table::Control) {
            if let Some(row) = change.after.as_ref().filter(|row| text(row, "key") == Some("next_jobs")) {
                self.lists(row);
            }
        }
        let Kind::Node { what: "allocs", .. } = &caller.kind else { return };
        let of = |is_new: bool| {
            let rows = changes.iter().filter(move |c| c.table == Table::Allocs && c.before.is_none() == is_new);
            rows.filter_map(|change| change.after.as_deref()).collect::<Vec<_>>()
        };
        let (placed, ended) = (of(true), of(false));
        let [placed] = placed.as_slice() else { return };
        self.core.count("a job was placed at an end");
        let [ended] = ended.as_slice() else {
            return self.broken("invariant_an_end_gives_its_room", format!("{placed:?} beside {ended:?}"));
        };
        self.invariant_an_end_gives_its_room(model, placed, ended);
        // Whoever takes a row away, or makes it unreadable, may take away the list.
        if !self.has_spoiled() && !self.forgets(None) {
            self.invariant_only_a_listed_job_starts_at_an_end(model, placed, ended, caller.began());
        }
    }

    /// A job that starts at an end takes no more than the alloc that ended had, on the same node, which takes work and is not busy.
    fn invariant_an_end_gives_its_room(&self, model: &Model, placed: &Item, ended: &Item) {
        let room = |row: &Item, name: &str| number(row, name).unwrap_or(i64::from(name == "vcpus"));
        let fits = ROOM.iter().all(|name| room(placed, name) <= room(ended, name));
        let on = node_id(ended);
        let record = on.and_then(|on| model.get(&node_key(on.slot())).cloned());
        let works = record.as_deref().is_some_and(|row| {
            text(row, "status") == Some("ready")
                && matches!(text(row, "intent"), None | Some("run"))
                && !is_true(row, "busy")
                && !super::refuses(row)
        });
        let one_each = number(placed, "nodes").unwrap_or(1) == 1;
        if !(is_final(ended) && fits && works && one_each && node_id(placed) == on) {
            self.broken("invariant_an_end_gives_its_room", format!("{placed:?} for {ended:?} on {record:?}"));
        }
    }

    /// The job is in a list that applies, in its turn: every earlier job of its kind was drawn, and so was every job with an earlier place
    /// that asks for the same machine and no more room. The node is neither closed nor kept for others. If its array keeps it waiting, a
    /// complete job of the array gives its place.
    fn invariant_only_a_listed_job_starts_at_an_end(&self, model: &Model, placed: &Item, ended: &Item, began: Time) {
        let rule = "invariant_only_a_listed_job_starts_at_an_end";
        let (Some(id), Some(of)) = (alloc_id(placed), alloc_id(ended)) else { return };
        let (lists, drawn_again) = {
            let Lists { last, drawn_again } = &lock(&self.seen).lists;
            (last.iter().map(|row| store::to_json(row)).collect::<Vec<Value>>(), *drawn_again)
        };
        let turn = model.rows(Table::Control).find(|row| text(row, "key") == Some("next_turn"));
        let turn = turn.map(|row| store::to_json(row)).unwrap_or_default();
        let is_drawn = |kind: usize, at: usize| {
            list(&turn, "drawn").get(kind).and_then(Value::as_u64).is_some_and(|drawn| drawn > at as u64)
        };
        let on = slot(ended).map_or(0, |slot| u64::from(slot.number()));
        let array_ends = || {
            let job = model.get(&job_key(of.job_id));
            array_of(of.job_id) == array_of(id.job_id)
                && text(ended, "client") == Some("complete")
                && job.is_none_or(|job| is_ended(job))
        };
        let may = |listed: &Value| {
            let Some((kind, at, place, alike)) = find(listed, id.job_id) else { return false };
            let version = many(listed, "version");
            // A call that takes long decides by the time at which it began.
            let applies = began <= Time::from_ms(many(listed, "until_at").cast_signed()) + SLACK;
            // A process may use the last list for a moment, and somebody may have taken its turn away.
            let is_past = version < many(&turn, "list") || drawn_again == Some(version);
            let earlier = |(n, other): (usize, &Value)| {
                let fits = ROOM.iter().all(|name| many(other, name) <= many(alike, name));
                let asks = ["instance_type", "market", "arch", "gpu_type", "gpu_memory_gib", "require", "containers"];
                let alone = ["exclusive", "array", "may_be_rejected", "limited"];
                let is_open = alone.iter().all(|name| other.pointer(&format!("/{name}")).is_none_or(Value::is_null));
                let same =
                    asks.iter().all(|name| other.pointer(&format!("/{name}")) == alike.pointer(&format!("/{name}")));
                let kept = names(listed, "kept", on);
                let next = || list(other, "jobs").iter().enumerate().find(|(at, _)| !is_drawn(n, *at));
                fits && is_open && same && !kept && next().is_some_and(|(_, next)| many(next, "place") < place)
            };
            let in_turn = is_past
                || version == many(&turn, "list")
                    && (0..=at).all(|at| is_drawn(kind, at))
                    && !list(listed, "alike").iter().enumerate().any(earlier);
            let is_open = !names(listed, "closed", on)
                && (!names(listed, "kept", on)
                    || listed.pointer("/kept_for").and_then(Value::as_u64) == Some(kind as u64));
            let by_array = alike.pointer("/array").is_none_or(Value::is_null) || array_ends();
            // Under a limit, one of the same share and person makes way.
            let is_same = |name: &str| text(placed, name) == text(ended, name);
            let by_limit = alike.pointer("/limited").is_none_or(Value::is_null) || (is_same("share") && is_same("by"));
            applies && in_turn && is_open && by_array && by_limit
        };
        if !lists.iter().any(may) {
            self.broken(rule, format!("{placed:?} for {ended:?}, turn {turn}, lists {lists:?}"));
        }
    }
}
