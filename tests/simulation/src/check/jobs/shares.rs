//! The invariants of shares and their limits.

use crate::caller::{Caller, Kind};
use crate::check::jobs::{is_held, job_id};
use crate::check::row::within;
use crate::check::{Check, RUN, count, is_final, text, time};
use crate::core::{Fault, lock};
use crate::database::{Change, Model};
use model::policy::Share;
use model::{JobId, Needs, Policy, Span, Time};
use std::collections::{BTreeMap, BTreeSet};
use std::f64::consts::LN_2;
use store::{Item, Row, Table};

/// How much longer than the order of the shares says a share may wait: until a run sees it, and the index shows what was used.
const LATER: Span = Span::from_s(1800);

/// For how long the order of shares may keep this one waiting: until its part of what was used is its part of the weights.
fn longest_wait(policy: &Policy, share: &Share) -> Span {
    let weights: f64 = policy.share.iter().map(|share| share.weight).sum();
    let half_lives = (weights / share.weight).log2();
    LATER + Span::from_ms((policy.shares.half_life().as_ms() as f64 * half_lives) as i64)
}

/// What an ended alloc has used of a share.
pub(in crate::check) struct Used {
    share: String,
    vcpus: f64,
    from: Time,
    to: Time,
}

impl Used {
    fn of(row: &Item, policy: &Policy) -> Option<Self> {
        let number = |name| u32::try_from(count(row, name)).unwrap_or(0);
        let memory_mib = u64::try_from(count(row, "memory_mib")).unwrap_or(0);
        let needs = Needs { vcpus: number("vcpus"), gpus: number("gpus"), memory_mib, ..Needs::default() };
        let (from, to) = (time(row, "placed_at")?, time(row, "finished_at")?);
        let share = policy.share_name(text(row, "share"), text(row, "by")).to_owned();
        Some(Self { share, vcpus: policy.shares.vcpus(&needs, 1), from, to })
    }

    /// In vCPU-seconds, without what has faded at this time.
    fn left_at(&self, now: Time, half_life: Span) -> f64 {
        let half_lives = |then: Time| now.since(then).as_s() / half_life.as_s();
        let left = |then: Time| (-half_lives(then)).exp2();
        self.vcpus * half_life.as_s() / LN_2 * (left(self.to) - left(self.from))
    }
}

impl Check {
    /// Called with each write. Looks at the allocs that it places or ends, and at what it counts.
    pub(in crate::check) fn shares(&self, caller: &Caller, model: &Model, changes: &[Change]) {
        self.invariant_each_ended_alloc_counts_once_for_its_share(caller, model, changes);
        if self.has_spoiled() || self.forgets(None) {
            return;
        }
        for alloc in changes.iter().filter(|change| change.table == Table::Allocs && change.before.is_none()) {
            let Some((row, share)) = alloc.after.as_deref().and_then(|row| Some((row, text(row, "share")?))) else {
                continue;
            };
            self.invariant_no_share_exceeds_its_limit(caller, model, share);
            if matches!(caller.kind, Kind::Run(_)) {
                self.invariant_no_share_waits_longer_than_its_weight_says(model, row, share);
            }
        }
    }

    /// However often runs are killed, the row of the totals has what all allocs together used that ended until its time. (An end that is
    /// written after this time is left out, as the totals say. Not checked where rows are spoiled or restored.)
    fn invariant_each_ended_alloc_counts_once_for_its_share(&self, caller: &Caller, model: &Model, changes: &[Change]) {
        let is_off = |fault| self.core.scenario.chance(fault) <= 0.0;
        let Some(policy) = self.present_policy().filter(|policy| !policy.share.is_empty()) else { return };
        if !is_off(Fault::RowUnreadable) || !is_off(Fault::Restored) {
            return;
        }
        let (half_life, mut seen) = (policy.shares.half_life(), lock(&self.seen));
        for change in changes {
            let Some(after) = change.after.as_deref() else { continue };
            if change.table == Table::Allocs && is_final(after) && !change.before.as_deref().is_some_and(is_final) {
                let totals = model.rows(Table::Control).find(|row| text(row, "key") == Some("totals"));
                let until = totals.and_then(|row| time(row, "until_at"));
                seen.share_uses.extend(Used::of(after, &policy).filter(|used| until.is_none_or(|at| used.to > at)));
            }
            if change.table != Table::Control || text(after, "key") != Some("totals") {
                continue;
            }
            let Some(until) = time(after, "until_at") else { continue };
            for share in &policy.share {
                let of = seen.share_uses.iter().filter(|used| used.share == share.name && used.to <= until);
                let exact: f64 = of.map(|used| used.left_at(until, half_life)).sum();
                let counted = within(after, "used", &share.name).as_f64().unwrap_or(0.0);
                self.core.count("what a share has used was counted");
                if (counted - exact).abs() > 0.01 + exact * 1e-5 {
                    let what = format!("{}: {} has {exact} until {until}, {counted} counts", caller.name(), share.name);
                    self.broken("invariant_each_ended_alloc_counts_once_for_its_share", what);
                }
            }
        }
    }

    /// However many runs and ends there are at once, a share never has more jobs placed than its limit. Each alloc of a job of one
    /// member counts, also a copy.
    fn invariant_no_share_exceeds_its_limit(&self, caller: &Caller, model: &Model, share: &str) {
        let limit = |policy: &Policy| {
            policy.share(Some(share), None).and_then(|share| share.limits.running).unwrap_or(u64::MAX)
        };
        let most = self.policies(RUN).iter().map(|policy| limit(policy)).max().unwrap_or(u64::MAX);
        if most == u64::MAX {
            return;
        }
        let live = model.rows(Table::Allocs).filter(|row| !is_final(row) && text(row, "share") == Some(share));
        let (alone, together): (Vec<&Row>, Vec<&Row>) = live.partition(|row| count(row, "nodes") == 1);
        let of_job = |row: &&Row| text(row, "alloc_id").and_then(|id| id.split('.').next()).map(str::to_owned);
        let jobs: BTreeSet<String> = together.iter().filter_map(of_job).collect();
        let there = (alone.len() + jobs.len()) as u64;
        self.core.count(if there >= most { "a share was full" } else { "a share had room" });
        if there > most {
            self.broken(
                "invariant_no_share_exceeds_its_limit",
                format!("{}: {share} has {there} of {most}", caller.name()),
            );
        }
    }

    /// A run places no job of a share that has used more against its weight while the first job of another one, which needs no more and
    /// nothing special, has waited for longer than the order of shares allows.
    fn invariant_no_share_waits_longer_than_its_weight_says(&self, model: &Model, placed: &Item, of: &str) {
        let Some(policy) = self.present_policy() else { return };
        let now = self.core.now();
        let mut first: BTreeMap<&str, &Row> = BTreeMap::new();
        for row in model.rows(Table::Jobs).filter(|row| text(row, "state") == Some("queued") && !is_held(row)) {
            let Some(share) = text(row, "share") else { continue };
            let known = first.entry(share).or_insert(row);
            if text(row, "rank") < text(known, "rank") {
                *known = row;
            }
        }
        let totals = model.rows(Table::Control).find(|row| text(row, "key") == Some("totals"));
        let used = |name: &str| totals.and_then(|row| within(row, "used", name).as_f64()).unwrap_or(0.0);
        let against_weight = |share: &Share| used(&share.name) / share.weight;
        let of_used = policy.share.iter().find(|share| share.name == of).map_or(f64::INFINITY, against_weight);
        for share in policy.share.iter().filter(|share| share.limits.is_empty()) {
            let could =
                first.get(share.name.as_str()).filter(|job| could_take(placed, job)).and_then(|job| job_id(job));
            let mut seen = lock(&self.seen);
            let (Some(job), true) = (could, share.name != of) else {
                seen.share_waits.remove(&share.name);
                continue;
            };
            let since = seen.share_waits.entry(share.name.clone()).or_insert((job, now)).1;
            drop(seen);
            self.core.count("a share waited for another");
            if now.since(since) > longest_wait(&policy, share) && of_used > against_weight(share) {
                let what = format!("{job} of {} waits since {since}, and {of} gets {placed:?}", share.name);
                self.broken("invariant_no_share_waits_longer_than_its_weight_says", what);
            }
        }
    }
}

/// What makes a job special, by the map that has it.
const SPECIAL: [(&str, &str); 10] = [
    ("needs", "instance_type"),
    ("needs", "market"),
    ("needs", "arch"),
    ("needs", "gpu_type"),
    ("needs", "require"),
    ("needs", "exclusive"),
    ("work", "caches"),
    ("work", "image"),
    ("work", "role"),
    ("tries", "avoids"),
];

/// Whether this job needs no more than an alloc has, and nothing special.
fn could_take(alloc: &Item, job: &Item) -> bool {
    ["vcpus", "memory_mib", "scratch_gib", "gpus"].iter().all(|name| count(job, name) <= count(alloc, name))
        && count(job, "nodes") == 1
        && !job.contains_key("array_limit")
        && SPECIAL.iter().all(|(map, name)| within(job, map, name).is_null())
}

/// Since when the first job of a share could have been placed in place of others.
pub(in crate::check) type ShareWaits = BTreeMap<String, (JobId, Time)>;
