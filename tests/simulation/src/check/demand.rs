//! The invariants of launches for work, and of rejected jobs.

use super::brakes::MOVED;
use super::{Check, INDEX, RUN, SLACK, count, is_of_market, node_id, refuses, text, time, usable_gpus};
use crate::caller::{Caller, Kind, may_be_about};
use crate::check::jobs::is_held;
use crate::core::lock;
use crate::database::Model;
use crate::world::STEADY;
use model::policy::Size;
use model::{JobId, Market, Policy, Span, Time};
use std::collections::VecDeque;
use store::{Item, Row, Table, job_key};

/// After this time every run can see a node's last change.
const SETTLED: Span = Span::from_s(90);

/// How long after a refusal only a few launches try its offering, at least. After a longer wait, it is as long as the
/// wait.
const AGAIN: Span = Span::from_s(1800);

/// The sum of the counts of all demand sets, also of those that are over and still have their rows.
pub(super) fn wanted_by_sets(model: &Model) -> usize {
    let sets = model.rows(Table::Control).filter(|row| text(row, "key").is_some_and(|key| key.starts_with("demand#")));
    sets.map(|row| usize::try_from(count(row, "count")).unwrap_or(0)).sum()
}

fn is_assigned(row: Option<&Item>) -> bool {
    row.is_some_and(|r| text(r, "state") == Some("assigned"))
}

/// The job that a node is launched for, as its reason says.
fn wanted_for(row: &Item) -> Option<JobId> {
    text(row, "reason").and_then(|r| r.strip_prefix("job ")?.split(' ').next()?.parse().ok())
}

/// Whether two nodes have the same size, with the same properties at their launches.
fn alike(one: &Item, other: &Item) -> bool {
    let what = ["size", "instance_type", "vcpus", "memory_mib", "scratch_gib", "gpus"];
    what.iter().all(|name| one.get(*name) == other.get(*name))
}

fn is_up(row: &Item) -> bool {
    !matches!(text(row, "state"), Some("cleaned") | None)
}

impl Check {
    pub(super) fn launch_decided(&self, caller: &Caller, model: &Model, before: Option<&Item>, after: Option<&Item>) {
        let Some(after) = after.filter(|_| is_assigned(after) && !is_assigned(before)) else { return };
        if !matches!(caller.kind, Kind::Run(_)) {
            return;
        }
        self.invariant_a_run_launches_so_many(caller);
        if let (Some(node), Some(job)) = (node_id(after), wanted_for(after)) {
            lock(&self.seen).launched_for.insert(node, job);
        }
        if !self.looks_at(model.len(Table::Nodes)) {
            return;
        }
        // Only nodes that this run read or made count. If two runs overlap, each run keeps the limits by its own count,
        // and only the number of slots limits both together.
        let known = |row: &&Row| node_id(row).is_some_and(|n| n == node_id(after).unwrap_or(n) || caller.knows(n));
        // The size of a record that cannot be read is not known.
        let readable = |r: &&Row| !self.is_row_spoiled(Table::Nodes, r);
        let up: Vec<&Row> = model.rows(Table::Nodes).filter(|r| is_up(r)).filter(known).filter(readable).collect();
        self.invariant_the_fleet_stays_below_its_price(&up, after);
        self.invariant_a_size_stays_below_its_maximum(&up, after);
        self.invariant_no_more_is_launched_than_work_can_use(model, after);
        self.invariant_the_cheapest_fitting_size_is_launched(caller, model, &up, after);
        self.invariant_sets_get_no_more_than_they_want(model, after);
        self.invariant_what_boots_is_counted(caller, model, after);
        self.invariant_a_suspected_node_counts_for_the_minimum(caller, model, after);
    }

    /// A node that was launched for a job and never had work is not shut down as idle while this job is the first of
    /// the queue. Otherwise the node would be launched again and again. (A node for a later job may have to make room
    /// once the first job's size is available again.) Checked for launches some time after the faults stopped.
    pub(super) fn invariant_nothing_is_launched_in_vain(&self, model: &Model, before: &Item) {
        let Some(job) = node_id(before).and_then(|node| lock(&self.seen).launched_for.remove(&node)) else { return };
        let settled = time(before, "assigned_at").is_some_and(|at| {
            let age = self.core.now().since(at);
            self.core.is_healed_for(age + Span::from_s(900))
        });
        if !settled {
            return;
        }
        let queued = model.rows(Table::Jobs).filter(|r| text(r, "state") == Some("queued") && !is_held(r));
        let first = queued.min_by_key(|r| text(r, "rank").map(ToOwned::to_owned));
        // A job of an array may have to wait for the end of another job.
        let waits = first.filter(|r| crate::check::jobs::job_id(r) == Some(job) && !r.contains_key("array_limit"));
        if let (Some(job), Some("ready")) = (waits, text(before, "status")) {
            self.broken("invariant_nothing_is_launched_in_vain", format!("{before:?} was for {job:?}"));
        }
    }

    /// A run launches at most `launch.max_per_run` nodes.
    fn invariant_a_run_launches_so_many(&self, caller: &Caller) {
        let most = self.policies(RUN).iter().map(|p| p.launch.max_per_run as usize).max().unwrap_or(0);
        let n = caller.takes("launches");
        if n > most {
            self.broken("invariant_a_run_launches_so_many", format!("{} launches the {n}th of {most}", caller.name()));
        }
    }

    /// The prices of all records that are not cleaned add up to at most `nodes.max_price_per_hour`.
    fn invariant_the_fleet_stays_below_its_price(&self, up: &[&Row], after: &Item) {
        let all: f64 = up.iter().map(|r| decimal(r, "price_per_hour")).sum();
        let caps: Vec<f64> = self.policies(RUN).iter().map(|p| f64::from(p.nodes.max_price_per_hour)).collect();
        if !caps.iter().any(|cap| *cap == 0.0 || all <= cap + 1e-6) {
            self.broken("invariant_the_fleet_stays_below_its_price", format!("{all} is more than {caps:?}: {after:?}"));
        }
    }

    /// At most `max` records of a size are not cleaned.
    fn invariant_a_size_stays_below_its_maximum(&self, up: &[&Row], after: &Item) {
        let Some(size) = text(after, "size") else { return };
        let all = up.iter().filter(|r| text(r, "size") == Some(size)).count();
        let most = |p: &Policy| if p.has_size(size) { p.most_of(size).unwrap_or(u32::MAX) as usize } else { 0 };
        let most = self.policies(RUN).iter().map(|p| most(p)).max().unwrap_or(0);
        if all > most {
            let what = format!("{all} of {size}, and its max is {most}: {after:?}");
            self.broken("invariant_a_size_stays_below_its_maximum", what);
        }
    }

    /// A node that is launched for a job has the cheapest size that fits the job and can be had. (A size that EC2 refused
    /// lately, or that has reached its own maximum, cannot be had; what is reserved costs nothing.)
    fn invariant_the_cheapest_fitting_size_is_launched(
        &self,
        caller: &Caller,
        model: &Model,
        up: &[&Row],
        after: &Item,
    ) {
        let job = wanted_for(after).and_then(|job| model.get(&job_key(job)));
        let (Some(job), Some(size)) = (job, text(after, "size")) else { return };
        if text(after, "market") == Some(Market::Reserved.as_str()) {
            return;
        }
        let (now, policies) = (self.core.now(), self.policies(RUN));
        let queued = lock(&self.seen).queued.since(now - INDEX);
        let refused = |s: &Size| {
            let told = |key: &str| may_be_about(key, s);
            let again = |row: &Row| AGAIN.max(Span::from_s(count(row, "wait_s")) + RUN);
            let lately = |row: &Row| time(row, "until_at").is_none_or(|until| now < until + again(row));
            caller.refusals().iter().any(|(key, _)| told(key))
                || model.rows(Table::Control).any(|row| text(row, "key").is_some_and(told) && lately(row))
        };
        let is_full = |s: &Size| {
            let all = up.iter().filter(|r| text(r, "size") == Some(s.name.as_str())).count();
            // The plan also counted the records that the run has cleaned since, and launches for other members.
            s.max.is_some_and(|max| all + MOVED + caller.written() + queued >= max as usize)
        };
        // A size is cheaper only if every policy that the run may have read says so.
        let is_cheaper = |p: &Policy, name: &str| {
            let of = |name: &str| p.size.iter().find(|size| size.name == name);
            let (Some(other), Some(own)) = (of(name), of(size)) else { return false };
            other.price_per_hour < own.price_per_hour && fits(p, other, job) && !refused(other) && !is_full(other)
        };
        let names = policies.first().map(|p| p.size.iter().map(|s| s.name.clone()).collect::<Vec<_>>());
        let cheaper = names.into_iter().flatten().find(|name| policies.iter().all(|p| is_cheaper(p, name)));
        if let Some(cheaper) = cheaper {
            let refused: Vec<&Row> = model.rows(Table::Control).filter(|r| !r.contains_key("document")).collect();
            let what = format!(
                "{} launches {size} and not {cheaper} for {job:?}: {after:?}; refused: {refused:?}, {:?}",
                caller.name(),
                caller.refusals()
            );
            self.broken("invariant_the_cheapest_fitting_size_is_launched", what);
        }
    }

    /// No node is launched for a job while enough free nodes of its size and market have waited for work for some time.
    /// Enough means as many nodes as members are queued and sets want. (A launch for `nodes.min` has no job in its reason.)
    fn invariant_no_more_is_launched_than_work_can_use(&self, model: &Model, after: &Item) {
        let Some(job) = wanted_for(after).map(job_key) else { return };
        // If a size may fall back to another market, some of its nodes are useless for a job that asks for one market.
        let market = model.get(&job).and_then(|job| text(job, "market"));
        // The job cannot use sick GPUs either.
        let gpus = model.get(&job).map_or(0, |job| count(job, "gpus"));
        let now = self.core.now();
        // A node that has called and is not ready yet, such as one whose GPUs are awaited, boots until the time for that is over.
        let boot = self.policies(RUN).iter().map(|p| p.boot.timeout_s).min().unwrap_or(0);
        let boots = |row: &Row| {
            let has_time = |at| now.since(at) + RUN < Span::from_s(boot);
            super::is_true(row, "never_ready") && time(row, "first_ping_at").is_some_and(has_time)
        };
        let is_free = |row: &&Row| {
            matches!(text(row, "state"), Some("assigned" | "in_use"))
                && (matches!(text(row, "status"), None | Some("ready")) || boots(row))
                && matches!(text(row, "intent"), None | Some("run"))
                && time(row, "modified_at").is_some_and(|at| now.since(at) >= SETTLED)
                && time(row, "lease_expires_at").is_none_or(|until| until > now)
                && super::set(row).is_empty()
                && !super::is_true(row, "busy")
                && alike(row, after)
                && usable_gpus(row) >= gpus
                && !refuses(row)
                && self.may_be_there(row)
                && is_of_market(row, market)
                // A restored table may have forgotten something that keeps this node from taking work.
                && !self.forgets(time(row, "assigned_at"))
        };
        let free: Vec<_> = model.rows(Table::Nodes).filter(is_free).map(|r| text(r, "node_id")).collect();
        // A plan uses a node of a demand set for nothing else.
        let (sets, queued) = {
            let seen = lock(&self.seen);
            (seen.sets.since(now - INDEX), seen.queued.since(now - INDEX))
        };
        // Some nodes may have come back after the run read the records. Others may be needed for copies.
        if free.len() >= (sets + queued).max(1) + MOVED {
            let what =
                format!("{sets} wanted by sets, {queued} members queued, free of this size: {free:?}: {after:?}");
            self.broken("invariant_no_more_is_launched_than_work_can_use", what);
        }
    }

    /// Notes how many nodes the demand sets want together.
    pub(super) fn sets(&self, model: &Model) {
        let all = wanted_by_sets(model);
        lock(&self.seen).sets.set(self.core.now(), all);
    }

    /// No node is launched for a demand set while the free nodes of its size are enough to give one to each wanted node
    /// of all sets and to each queued member.
    fn invariant_sets_get_no_more_than_they_want(&self, model: &Model, after: &Item) {
        if !text(after, "reason").is_some_and(|reason| reason.starts_with("demand set ")) {
            return;
        }
        let now = self.core.now();
        let is_free = |row: &&Row| {
            matches!(text(row, "state"), Some("assigned" | "in_use"))
                && matches!(text(row, "status"), None | Some("ready"))
                && matches!(text(row, "intent"), None | Some("run"))
                && !refuses(row)
                && time(row, "modified_at").is_some_and(|at| now.since(at) >= SETTLED)
                && time(row, "lease_expires_at").is_none_or(|until| until > now)
                && super::set(row).is_empty()
                && alike(row, after)
                && self.may_be_there(row)
                && !self.forgets(time(row, "assigned_at"))
        };
        let free: Vec<_> = model.rows(Table::Nodes).filter(is_free).map(|r| text(r, "node_id")).collect();
        let (sets, queued) = {
            let seen = lock(&self.seen);
            (seen.sets.since(now - INDEX), seen.queued.since(now - INDEX))
        };
        if free.len() >= (sets + queued).max(1) + MOVED {
            let what = format!("{sets} wanted by sets, {queued} members queued, free: {free:?}: {after:?}");
            self.broken("invariant_sets_get_no_more_than_they_want", what);
        }
    }

    /// Half an hour after the faults stopped, the demand set that is always wanted has a node, or one that comes, at
    /// least at every second look.
    pub fn invariant_a_demand_set_is_satisfied(&self, model: &Model) {
        if !self.core.is_healed_for(Span::from_s(1800)) {
            return;
        }
        let now = self.core.now();
        let key = format!("demand#{STEADY}");
        let is_wanted = |row: &&Row| {
            text(row, "key") == Some(key.as_str())
                && time(row, "until_at").is_some_and(|until| until > now)
                && time(row, "since_at").is_some_and(|since| now.since(since) >= Span::from_s(900))
        };
        let serves = |row: &Row| {
            matches!(text(row, "state"), Some("assigned" | "in_use"))
                && matches!(text(row, "intent"), None | Some("run"))
                && matches!(text(row, "status"), None | Some("syncing" | "ready"))
        };
        // An operator may drain all nodes that there may be, while long jobs run on them.
        let most = self.policies(RUN).iter().map(|p| p.nodes.max as usize).min().unwrap_or(0);
        let is_full = model.rows(Table::Nodes).filter(|row| text(row, "state") != Some("cleaned")).count() >= most;
        let is_served = is_full || model.rows(Table::Nodes).any(serves);
        let lacks = model.rows(Table::Control).any(|row| is_wanted(&row)) && !is_served;
        let mut seen = lock(&self.seen);
        let since = seen.unsatisfied_since.filter(|_| lacks);
        seen.unsatisfied_since = since.or_else(|| lacks.then_some(now));
        drop(seen);
        if let Some(since) = since {
            self.broken("invariant_a_demand_set_is_satisfied", format!("no node since {since}"));
        }
    }

    /// Whether a node's instance may be up. (If the answer to its launch was lost, lists show the instance by its
    /// tag.)
    fn may_be_there(&self, row: &Item) -> bool {
        let Some(ec2) = self.ec2() else { return true };
        match text(row, "instance_id") {
            Some(id) => ec2.one(id).is_some_and(|real| real.is_up()),
            None => !ec2.any(|real| node_id(row).is_some_and(|node| real.is_of(node)) && !real.is_up()),
        }
    }

    /// No node is launched for a job while enough nodes of the same kind are booting. Enough means one for each queued
    /// member and each wanted copy, and one for each node that demand sets want: a set may be given a node that was
    /// launched for a job. (Only nodes count that the run saw and that are too young to have failed. After launches
    /// without an answer, jobs go another way.)
    fn invariant_what_boots_is_counted(&self, caller: &Caller, model: &Model, after: &Item) {
        let Some(job) = wanted_for(after).map(job_key) else { return };
        let market = model.get(&job).and_then(|job| text(job, "market"));
        let boots = |row: &&Row| {
            is_assigned(Some(row))
                && matches!(text(row, "intent"), None | Some("run"))
                && time(row, "assigned_at")
                    .is_some_and(|at| at + SLACK < caller.began() && self.core.now().since(at) < RUN)
                && self.may_be_there(row)
                && (row.contains_key("instance_id")
                    || time(row, "launch_claim_until_at") > Some(caller.began() + SLACK))
                && node_id(row).is_some_and(|n| caller.knows(n))
                && !is_given_up(caller, model, row)
                && !self.was_unread_lately(Table::Nodes, row)
        };
        let of_kind = |row: &&Row| alike(row, after) && is_of_market(row, market);
        let booting = model.rows(Table::Nodes).filter(boots).filter(of_kind).count();
        let since = self.core.now() - INDEX;
        let (queued, copies, sets) = {
            let seen = lock(&self.seen);
            (seen.queued.since(since), seen.unknown.since(since), seen.sets.since(since))
        };
        if booting >= queued.max(1) + copies + sets {
            let what =
                format!("{booting} boot, {queued} members queued, {copies} copies, {sets} wanted by sets: {after:?}");
            self.broken("invariant_what_boots_is_counted", what);
        }
    }

    /// No node is launched for `nodes.min` while enough nodes are ready, as their records say, and their instances run
    /// and are listed. This holds also if their leases are over: a silent node is either still ready, because its
    /// silence is not believed, or no longer ready. (Counts only nodes that did not change shortly before the run. Not
    /// checked where a run may fail to write that a node is no longer ready.)
    fn invariant_a_suspected_node_counts_for_the_minimum(&self, caller: &Caller, model: &Model, after: &Item) {
        let Some(ec2) = self.ec2().filter(|_| text(after, "reason").is_some_and(|r| r.starts_with("nodes.min"))) else {
            return;
        };
        if super::WRITES_FAIL.iter().any(|fault| self.core.scenario.chance(*fault) > 0.0) {
            return;
        }
        let now = self.core.now();
        let runs = |row: &Row| {
            let real = text(row, "instance_id").and_then(|id| ec2.one(id));
            real.is_some_and(|r| r.is_up() && r.is_listed(caller.began() - RUN) && r.is_listed(now))
        };
        let is_ready = |row: &&Row| {
            text(row, "state") == Some("in_use")
                && text(row, "status") == Some("ready")
                && matches!(text(row, "intent"), None | Some("run"))
                && !refuses(row)
                && time(row, "modified_at").is_some_and(|at| at + SETTLED < caller.began())
                && node_id(row).is_some_and(|n| caller.knows(n))
                && runs(row)
        };
        let ready: Vec<&Row> = model.rows(Table::Nodes).filter(is_ready).collect();
        if self.policies(RUN).iter().all(|p| ready.len() >= p.nodes.min as usize) {
            let over = ready.iter().filter(|r| time(r, "lease_expires_at").is_some_and(|at| at < now)).count();
            let what =
                format!("{} launches {after:?}: {} are ready, {over} of them silent", caller.name(), ready.len());
            self.broken("invariant_a_suspected_node_counts_for_the_minimum", what);
        }
    }

    /// A job is rejected only if some policy that held lately has no room for it.
    pub(super) fn invariant_only_what_never_fits_is_rejected(
        &self,
        model: &Model,
        before: Option<&Item>,
        after: Option<&Item>,
    ) {
        let rejected = |row: Option<&Item>| row.is_some_and(|r| text(r, "state") == Some("rejected"));
        let Some(job) = after.filter(|_| rejected(after) && !rejected(before)) else { return };
        let in_vain = before.is_some_and(|before| {
            self.follows_in_vain(model, before)
                || self.gives_up_at(model, before).is_some_and(|at| at <= self.core.now() + SLACK)
        });
        if !in_vain && self.policies(INDEX).iter().all(|p| has_room(p, job)) {
            self.broken("invariant_only_what_never_fits_is_rejected", format!("{job:?}"));
        }
    }
}

/// Recent counts of something, each with the time since which it held.
#[derive(Default)]
pub(super) struct Lately(VecDeque<(Time, usize)>);

impl Lately {
    /// Notes the count from now on.
    pub(super) fn set(&mut self, now: Time, count: usize) {
        self.0.push_back((now, count));
        while self.0.get(1).is_some_and(|(at, _)| *at < now - INDEX - SETTLED) {
            self.0.pop_front();
        }
    }

    /// Adds the difference between `before` and `after` to the last count.
    pub(super) fn change(&mut self, now: Time, before: usize, after: usize) {
        if before != after {
            let last = self.0.back().map_or(0, |(_, n)| *n);
            self.set(now, (last + after).saturating_sub(before));
        }
    }

    /// The count at `since`, plus everything that was added later. An index that lags may show all of it at once.
    pub(super) fn since(&self, since: Time) -> usize {
        // The last count from before `since` still held at `since`.
        let first = self.0.iter().rposition(|(at, _)| *at < since).unwrap_or(0);
        let counts = self.0.iter().skip(first).map(|(_, n)| *n);
        let more: usize =
            counts.clone().zip(counts.clone().skip(1)).map(|(before, after)| after.saturating_sub(before)).sum();
        counts.take(1).sum::<usize>() + more
    }
}

pub(super) fn decimal(row: &Item, name: &str) -> f64 {
    match row.get(name) {
        Some(aws_sdk_dynamodb::types::AttributeValue::N(n)) => n.parse().unwrap_or(0.0),
        _ => 0.0,
    }
}

/// Whether a job fits a size.
fn fits(policy: &Policy, size: &Size, job: &Item) -> bool {
    let need = |name: &str| count(job, name).unsigned_abs();
    u64::from(size.capacity.vcpus) >= need("vcpus")
        && (size.capacity.memory_mib as f64 * policy.nodes.memory_usable).floor() >= need("memory_mib") as f64
        && size.capacity.scratch_gib >= need("scratch_gib")
        && u64::from(size.capacity.gpus) >= need("gpus")
        && text(job, "instance_type").is_none_or(|t| t == size.instance_type)
        && text(job, "market").is_none_or(|m| m == size.market.as_str())
}

/// The lowest price of a size that the job fits and that has no maximum of its own.
pub(super) fn price_of_a_size(policy: &Policy, job: &Item) -> Option<f64> {
    let sizes = policy.size.iter().filter(|size| size.max.is_none() && fits(policy, size, job));
    sizes.map(|size| f64::from(size.price_per_hour)).min_by(f64::total_cmp)
}

fn has_room(policy: &Policy, job: &Item) -> bool {
    let need = |name: &str| count(job, name).unsigned_abs();
    let nodes = need("nodes").max(1);
    let sizes: Vec<_> = policy.size.iter().filter(|size| fits(policy, size, job)).collect();
    let room: u64 = sizes.iter().map(|s| s.max.map_or(nodes, u64::from)).sum();
    let cheapest = sizes.iter().map(|s| f64::from(s.price_per_hour)).fold(f64::INFINITY, f64::min);
    let cap = f64::from(policy.nodes.max_price_per_hour);
    // This price is not exact if sizes have their own `max`, because then more expensive sizes count too.
    let limited = sizes.iter().any(|s| s.max.is_some());
    let affordable = cap == 0.0 || (!limited && cheapest * nodes as f64 <= cap);
    room >= nodes && nodes <= u64::from(policy.nodes.max) && affordable
}

/// Whether this record waits for an instance, and at least two launches of its offering in a row got no answer: then its jobs
/// go another way.
fn is_given_up(caller: &Caller, model: &Model, row: &Item) -> bool {
    let place = text(row, "zone").or(text(row, "subnet_id")).unwrap_or("any");
    let (market, kind) = (text(row, "market").unwrap_or_default(), text(row, "instance_type").unwrap_or_default());
    let key = format!("limit#unanswered#offering#{market}#{kind}#{place}");
    let applies = |limit: &Row| {
        text(limit, "key") == Some(&key)
            && count(limit, "wait_s") > 60
            && time(limit, "until_at").is_some_and(|until| until > caller.began())
    };
    !row.contains_key("instance_id") && model.rows(Table::Control).any(applies)
}
