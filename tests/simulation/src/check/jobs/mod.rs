//! The invariants of jobs.

pub(crate) mod arrays;
pub(crate) mod packs;
pub(crate) mod retries;
pub(crate) mod shares;

use crate::check::row::{is_true, within};
use crate::check::{Check, RUN, SLACK, alloc_id, count, done, is_ended, is_final, node_id, set, text, time};
use crate::core::lock;
use crate::database::{Change, Model};
use aws_sdk_dynamodb::types::AttributeValue;
use model::{AllocId, Array, JobId, Span, Time};
use std::collections::BTreeSet;
use store::{Item, Row, Table, alloc_key, job_key, node_key};

/// How often a job is moved at no cost, by the contract.
pub(super) const FREE_MOVES: u64 = 20;

/// How often a job was moved at no cost.
pub(super) fn moves(row: &Item) -> u64 {
    within(row, "tries", "moves").as_u64().unwrap_or(0)
}

pub(in crate::check) fn job_id(row: &Item) -> Option<JobId> {
    text(row, "job_id").and_then(|j| j.parse().ok())
}

/// Whether the job waits for the end of other jobs, for a time, or for an operator.
pub(in crate::check) fn is_held(row: &Item) -> bool {
    matches!(text(row, "queue"), Some("held" | "put_off"))
}

/// Whether the command of a job that waits has run.
fn has_begun(row: &Item) -> bool {
    within(row, "tries", "begun").as_bool().unwrap_or(false)
}

/// Whether the attribute `queue` shows how the job ended, or that it has not ended.
fn is_indexed(row: &Item) -> bool {
    let end = text(row, "queue").and_then(|queue| queue.split_once('#')).map(|(end, _)| end);
    match text(row, "state") {
        Some("rejected") => end == Some("failed"),
        Some(state) if is_ended(row) => end == Some(state),
        _ => text(row, "queue").is_some() && end.is_none_or(|end| ["queued", "share"].contains(&end)),
    }
}

/// The jobs that a job follows, and whether each must be complete.
fn followed(row: &Item) -> Vec<(JobId, bool)> {
    let Some(AttributeValue::M(after)) = row.get("after") else { return Vec::new() };
    let end = |end: &AttributeValue| end.as_s().is_ok_and(|word| word == "success");
    after.iter().filter_map(|(id, how)| Some((id.parse().ok()?, end(how)))).collect()
}

/// Whether a pack is over. A pack ends with its last element, even while other elements wait to be placed again.
fn is_pack_at_its_end(row: &Item) -> bool {
    let is_pack = !within(row, "work", "pack").is_null();
    is_pack && matches!(text(row, "state"), Some("complete" | "failed"))
}

/// When a follower is this old, a followed job without a row counts as ended.
const ABSENT: Span = Span::from_s(600);

impl Check {
    pub(in crate::check) fn job(&self, model: &Model, before: Option<&Item>, after: Option<&Item>, changes: &[Change]) {
        let open = |row: Option<&Item>| row.is_some_and(|r| !is_ended(r));
        match (open(before), open(after)) {
            (false, true) => lock(&self.seen).jobs += 1,
            (true, false) => {
                let mut seen = lock(&self.seen);
                seen.jobs = seen.jobs.saturating_sub(1);
            }
            _ => {}
        }
        let members = |row: Option<&Item>| {
            let queued = row.filter(|r| text(r, "state") == Some("queued"));
            queued.map_or(0, |r| count(r, "nodes").max(1).unsigned_abs() as usize)
        };
        let (was, is) = (members(before), members(after));
        lock(&self.seen).queued.change(self.core.now(), was, is);
        if let Some(id) = before.or(after).and_then(job_id) {
            match (was, is) {
                (0, 1..) => _ = lock(&self.seen).queued_since.insert(id, self.core.now()),
                (1.., 0) => _ = lock(&self.seen).queued_since.remove(&id),
                // A job that followed others begins to wait for nodes now.
                (1.., 1..) if before.is_some_and(is_held) => {
                    lock(&self.seen).queued_since.insert(id, self.core.now());
                }
                _ => {}
            }
        }
        if let Some(row) = after.filter(|row| text(row, "state") == Some("placed") && count(row, "nodes") > 1) {
            lock(&self.seen).placed_together.extend(set(row));
        }
        self.invariant_one_key_makes_one_job(before, after);
        self.invariant_only_what_never_fits_is_rejected(model, before, after);
        self.invariant_a_job_runs_after_those_that_it_follows(model, before, after);
        self.invariant_a_paused_job_is_not_placed(before, after);
        self.invariant_a_job_ends_once(before, after);
        self.invariant_a_jobs_set_is_its_live_allocs(model, before, after);
        if let (Some(before), Some(after)) = (before, after) {
            // The elements of a pack are counted separately.
            if within(after, "work", "pack").is_null() {
                self.invariant_retries_are_counted(before, after, changes);
                self.invariant_a_drain_is_no_loss(model, before, after, changes);
                self.invariant_rules_bound_the_retries(before, after);
                self.invariant_complete_means_every_member(before, after, changes);
            }
            if text(before, "state") != text(after, "state") {
                self.core.count(match text(after, "state") {
                    Some("queued") => "a job went back to the queue",
                    Some("placed") => "a job became placed",
                    Some("placing") => "a part of a job was placed",
                    Some("regrouping") if text(before, "state") == Some("placing") => "a placing was cut short",
                    Some("regrouping") => "a job became regrouping",
                    Some("complete") => "a job became complete",
                    Some("failed") => "a job became failed",
                    Some("cancelled") => "a job became cancelled",
                    _ => "a job became rejected",
                });
            }
        }
    }

    /// A key makes one job, however often it is given, and whatever became of that job.
    fn invariant_one_key_makes_one_job(&self, before: Option<&Item>, after: Option<&Item>) {
        let new = after.filter(|_| before.is_none());
        let Some((key, id)) = new.and_then(|row| Some((text(row, "key")?, job_id(row)?))) else { return };
        self.core.count("a job was submitted with a key");
        let earlier = lock(&self.seen).keyed.insert(key.to_owned(), id);
        if let Some(earlier) = earlier.filter(|earlier| *earlier != id) {
            self.broken("invariant_one_key_makes_one_job", format!("the key {key} made {earlier} and {id}"));
        }
    }

    /// A job is placed, or stops waiting for another job, only after every job that it followed has ended in the wanted
    /// way.
    fn invariant_a_job_runs_after_those_that_it_follows(
        &self,
        model: &Model,
        before: Option<&Item>,
        after: Option<&Item>,
    ) {
        let (Some(before), Some(after)) = (before, after) else { return };
        if text(before, "state") != Some("queued")
            || !matches!(text(after, "state"), Some("queued" | "placing" | "placed"))
        {
            return;
        }
        let left = followed(after);
        let old = time(before, "submitted_at").is_some_and(|at| self.core.now().since(at) + SLACK >= ABSENT);
        for (id, must_be_complete) in followed(before).into_iter().filter(|one| !left.contains(one)) {
            let right = match model.get(&job_key(id)) {
                Some(row) if must_be_complete => text(row, "state") == Some("complete"),
                Some(row) => is_ended(row),
                None => !must_be_complete && old,
            };
            if !right && !self.forgets_job(model, id) && lock(&self.seen).restored_at.is_none() {
                let what = format!("{id} has not ended so: {before:?} → {after:?}");
                self.broken("invariant_a_job_runs_after_those_that_it_follows", what);
            }
            self.core.count("a job no longer follows another");
        }
    }

    /// A paused job is not placed.
    fn invariant_a_paused_job_is_not_placed(&self, before: Option<&Item>, after: Option<&Item>) {
        let (Some(before), Some(after)) = (before, after) else { return };
        if is_true(before, "paused") && matches!(text(after, "state"), Some("placing" | "placed")) {
            self.broken("invariant_a_paused_job_is_not_placed", format!("{before:?} → {after:?}"));
        }
    }

    /// When a job that has not begun ends: at its own time, or when so many elements of its array have failed.
    pub(in crate::check) fn gives_up_at(&self, model: &Model, row: &Item) -> Option<Time> {
        if text(row, "state") != Some("queued") || has_begun(row) {
            return None;
        }
        let after_s = count(row, "give_up_after_s");
        let own = time(row, "submitted_at").filter(|_| after_s > 0).map(|at| at + Span::from_s(after_s));
        let array = Array::of(job_id(row)?);
        let failed = |other: &&Row| {
            job_id(other).is_some_and(|id| Array::of(id) == array) && text(other, "state") == Some("failed")
        };
        let max = usize::try_from(count(row, "max_failures")).ok().filter(|max| *max > 0);
        let stopped = max.and_then(|max| {
            let failed = model.rows(Table::Jobs).filter(failed);
            let mut ends: Vec<Time> = failed.filter_map(|row| time(row, "finished_at")).collect();
            ends.sort_unstable();
            ends.get(max - 1).copied()
        });
        own.into_iter().chain(stopped).min()
    }

    /// Once the faults have ended, no job is put off that was due more than half an hour ago, and none waits that should have given up
    /// then.
    pub fn invariant_what_is_due_goes_on(&self, model: &Model) {
        let late = Span::from_s(1800);
        if !self.core.is_healed_for(late) {
            return;
        }
        for row in model.rows(Table::Jobs) {
            let begins_at = within(row, "tries", "not_before_at").as_i64().map(Time::from_ms);
            let begins_at = begins_at.filter(|_| text(row, "queue") == Some("put_off") && !is_true(row, "paused"));
            let due_at = begins_at.into_iter().chain(self.gives_up_at(model, row)).min();
            if due_at.is_some_and(|at| at + late < self.core.now()) {
                self.broken("invariant_what_is_due_goes_on", format!("it was due at {due_at:?}: {row:?}"));
            }
        }
    }

    /// Whether the job can never run, because a job that had to be complete ended in another way.
    pub(in crate::check) fn follows_in_vain(&self, model: &Model, row: &Item) -> bool {
        followed(row).into_iter().any(|(id, must_be_complete)| {
            let ended = model.get(&job_key(id)).is_none_or(|r| is_ended(r) && text(r, "state") != Some("complete"));
            must_be_complete && (ended || self.forgets_job(model, id))
        })
    }

    /// Once the faults have ended, a job waits for no job that ended more than half an hour ago.
    pub fn invariant_a_follower_goes_on(&self, model: &Model) {
        let late = Span::from_s(1800);
        if !self.core.is_healed_for(late) {
            return;
        }
        for row in model.rows(Table::Jobs).filter(|row| is_held(row)) {
            let submitted_at = time(row, "submitted_at").unwrap_or(self.core.now());
            let ended_at = |id: JobId| match model.get(&job_key(id)) {
                Some(followed) if is_ended(followed) => time(followed, "finished_at"),
                Some(_) => None,
                None => Some(submitted_at + ABSENT),
            };
            let is_late = |at: Time| at + late < self.core.now();
            if let Some((id, _)) = followed(row).into_iter().find(|(id, _)| ended_at(*id).is_some_and(is_late)) {
                self.broken("invariant_a_follower_goes_on", format!("it still waits for {id}: {row:?}"));
            }
        }
    }

    /// A job that has ended keeps its end, and expires only after its allocs are gone.
    fn invariant_a_job_ends_once(&self, before: Option<&Item>, after: Option<&Item>) {
        let rule = "invariant_a_job_ends_once";
        if let (Some(before), Some(after)) = (before, after) {
            let from = text(before, "state");
            if is_ended(before)
                && (text(after, "state") != from || before.get("finished_at") != after.get("finished_at"))
            {
                self.broken(rule, format!("{before:?} → {after:?}"));
            }
            let right = matches!(
                (from, text(after, "state")),
                (Some("queued"), Some("placing" | "placed" | "cancelled" | "rejected"))
                    | (Some("placing"), Some("placed" | "queued" | "regrouping" | "cancelled"))
                    | (Some("placed"), Some("queued" | "regrouping" | "complete" | "failed" | "cancelled"))
                    | (Some("regrouping"), Some("queued" | "cancelled"))
            ) || from == text(after, "state")
                || is_pack_at_its_end(after);
            if !right {
                self.broken(rule, format!("{before:?} → {after:?}"));
            }
        }
        if let Some(after) = after
            && after.contains_key("expires_at")
            && (!is_ended(after) || !set(after).is_empty())
        {
            self.broken(rule, format!("it would expire too soon: {after:?}"));
        }
        if let Some(after) = after.filter(|a| text(a, "state") == Some("queued") && a.contains_key("done")) {
            self.broken(rule, format!("it begins anew, and has members that are done: {after:?}"));
        }
        if let Some(after) = after.filter(|row| !is_indexed(row)) {
            self.broken(rule, format!("the queue index is wrong: {after:?}"));
        }
    }

    /// The `allocs` set of a job holds exactly its live allocs.
    fn invariant_a_jobs_set_is_its_live_allocs(&self, model: &Model, before: Option<&Item>, after: Option<&Item>) {
        let rule = "invariant_a_jobs_set_is_its_live_allocs";
        let old = before.map(set).unwrap_or_default();
        let new = after.map(set).unwrap_or_default();
        for id in new.difference(&old) {
            if model.get(&alloc_key(*id)).is_none_or(|r| is_final(r)) {
                self.broken(rule, format!("{id} is not live: {after:?}"));
            }
        }
        for id in old.difference(&new) {
            if model.get(&alloc_key(*id)).is_some_and(|r| !is_final(r)) {
                self.broken(rule, format!("{id} is live and left: {before:?}"));
            }
        }
        if after.is_some_and(|a| text(a, "state") == Some("placed")) && new.is_empty() {
            self.broken(rule, format!("a placed job without allocs is forgotten: {after:?}"));
        }
    }

    /// A job goes back to the queue or fails only if exactly one more failure or loss is counted. It fails only when
    /// its retries are used up. An alloc that its node could not start is not counted, so it never makes the job fail.
    /// The job is not placed before its next try may begin.
    fn invariant_retries_are_counted(&self, before: &Item, after: &Item, changes: &[Change]) {
        let rule = "invariant_retries_are_counted";
        let (from, to) = (text(before, "state"), text(after, "state"));
        let lost = count(after, "lost_count") - count(before, "lost_count");
        let failed = count(after, "failed_count") - count(before, "failed_count");
        let used_up = count(after, "lost_count") > count(after, "retry_lost")
            || count(after, "failed_count") > count(after, "retry_failed");
        let has_rules = !crate::check::jobs::retries::rules(after).is_empty();
        let cause = within(after, "tries", "cause");
        let is = |kind: &str| cause.get("kind").is_some_and(|is| is == kind);
        let [moves_before, moves] = [before, after].map(moves);
        let (not_started, is_move) = (is("not_started"), is("moved") && moves_before < FREE_MOVES);
        let early = crate::check::within(before, "tries", "not_before_at").as_i64().is_some_and(|at| {
            // (The clocks of two functions may differ.)
            self.core.now() + crate::check::SLACK < model::time::Time::from_ms(at)
        });
        if matches!(to, Some("placing" | "placed")) && from == Some("queued") && early {
            self.broken(rule, format!("too early: {before:?} → {after:?}"));
        }
        let right = match (from, to) {
            (Some("placed"), Some("queued" | "regrouping")) if not_started => lost + failed == 0,
            // Whoever moves a job pays for it: a job without retries goes on too.
            (Some("placed"), Some("queued" | "regrouping")) if is_move => {
                lost + failed == 0 && moves == moves_before + 1
            }
            (Some("placed"), Some("failed")) if not_started || is_move => false,
            (Some("placed"), Some("queued" | "regrouping")) => lost + failed == 1 && (!used_up || has_rules),
            (Some("placed"), Some("failed")) => lost + failed == 1 && (used_up || has_rules),
            _ => lost + failed == 0,
        };
        // If a restore took away a job's allocs, the job is queued again without a count.
        let requeued = from == Some("placed") && to == Some("queued") && set(before).is_empty();
        if !right && !requeued {
            let allocs: Vec<_> =
                changes.iter().filter_map(|c| c.after.as_deref()).filter_map(|r| text(r, "alloc_id")).collect();
            self.broken(rule, format!("{allocs:?}: {before:?} → {after:?}"));
        }
        let wanted = |c: &Change| {
            let was = c.before.as_deref().is_some_and(|b| text(b, "desired") == Some("run") && !is_final(b));
            // (At the end of a drain an alloc is told to stop, which counts as its loss.)
            let is = |a: &Item| is_final(a) || text(a, "desired") == Some("stop");
            c.table == Table::Allocs && was && c.after.as_deref().is_some_and(is)
        };
        if lost + failed > 0 && !changes.iter().any(wanted) {
            self.broken(rule, format!("no wanted alloc ended: {before:?} → {after:?}"));
        }
        if moves > moves_before {
            self.core.count("a job was moved at no cost");
        }
    }

    /// What a drain stops is moved, and no loss: only what EC2 takes of the spot market is one.
    fn invariant_a_drain_is_no_loss(&self, model: &Model, before: &Item, after: &Item, changes: &[Change]) {
        let is_stopped = |c: &&Change| {
            let live = c.after.as_deref().filter(|row| !is_final(row) && text(row, "desired") == Some("stop"));
            c.table == Table::Allocs && live.is_some()
        };
        let Some(alloc) = changes.iter().find(is_stopped).and_then(|c| c.after.as_deref()) else { return };
        let node = node_id(alloc).and_then(|id| model.get(&node_key(id.slot())));
        let by_ec2 = |row: &Row| text(row, "market") == Some("spot") && row.contains_key("interrupt_at");
        if count(after, "lost_count") > count(before, "lost_count")
            && moves(before) < FREE_MOVES
            && !node.is_some_and(by_ec2)
        {
            self.broken("invariant_a_drain_is_no_loss", format!("{alloc:?}: {before:?} → {after:?}"));
        }
    }

    /// Each member of a placed job is done or has a live alloc that is wanted.
    pub(in crate::check) fn invariant_every_member_is_wanted(&self, model: &Model, changes: &[Change]) {
        let touched = changes.iter().filter(|c| matches!(c.table, Table::Jobs | Table::Allocs));
        let rows = touched.filter_map(|c| c.after.as_deref().or(c.before.as_deref()));
        let jobs: BTreeSet<JobId> = rows.filter_map(|r| job_id(r).or_else(|| Some(alloc_id(r)?.job_id))).collect();
        for id in jobs {
            let Some(job) = model.get(&job_key(id)).filter(|j| text(j, "state") == Some("placed")) else { continue };
            let done = done(job);
            let wanted = |id: &AllocId| {
                let row = model.get(&alloc_key(*id)).filter(|r| !is_final(r));
                row.is_some_and(|r| text(r, "desired") == Some("run"))
            };
            let wanted: BTreeSet<u32> = set(job).into_iter().filter(wanted).map(|id| id.member).collect();
            let nodes = u32::try_from(count(job, "nodes")).unwrap_or(0).max(1);
            if let Some(member) = (0..nodes).find(|m| !done.contains(m) && !wanted.contains(m)) {
                self.broken("invariant_every_member_is_wanted", format!("member {member} of {job:?}"));
            }
        }
    }

    /// No job stays the first of the queue for as long as `most`, even if smaller jobs keep coming. Checked after the
    /// faults stopped.
    pub fn invariant_the_first_job_is_served(&self, model: &Model, most: Span) {
        let queued = model.rows(Table::Jobs).filter(|r| text(r, "state") == Some("queued") && !is_held(r));
        let first = queued.min_by_key(|r| text(r, "rank").map(ToOwned::to_owned));
        // A job may wait for its array. See `invariant_the_limit_of_an_array_is_used`.
        let first = first.filter(|row| !row.contains_key("array_limit"));
        // Nor is there an end if the members must be in several zones, and only one zone has a type that is large enough.
        let has_share = self.policies(RUN).iter().any(|policy| policy.launch.zone_share < 1.0);
        let first = first.filter(|row| !has_share || count(row, "nodes") <= 1);
        let Some((first, id)) = first.and_then(|row| Some((row, job_id(row)?))) else { return };
        let now = self.core.now();
        let mut seen = lock(&self.seen);
        let since = match seen.first_since {
            Some((known, since)) if known == id => since,
            _ => now,
        };
        seen.first_since = Some((id, since));
        drop(seen);
        if now.since(since) >= most {
            self.broken("invariant_the_first_job_is_served", format!("it is first since {since}: {first:?}"));
        }
    }

    /// A job is complete when each of its members is complete. A copy that was told to stop does not count.
    fn invariant_complete_means_every_member(&self, before: &Item, after: &Item, changes: &[Change]) {
        if text(after, "state") != Some("complete") || text(before, "state") == Some("complete") {
            return;
        }
        let mut done = done(before);
        let complete = changes.iter().filter_map(|c| c.after.as_deref());
        let complete = complete.filter(|r| text(r, "client") == Some("complete") && text(r, "desired") == Some("run"));
        let complete = complete.filter_map(alloc_id);
        done.extend(complete.map(|id| id.member));
        if (done.len() as i64) < count(after, "nodes").max(1) {
            self.broken("invariant_complete_means_every_member", format!("{before:?} → {after:?}"));
        }
    }
}
