//! The invariants of shutdowns: every shutdown has one of the allowed reasons.

use super::{
    Check, RUN, SLACK, count, is_ended, is_of_market, is_true, node_id, refuses, set, text, time, usable_gpus,
};
use crate::caller::{Caller, Kind, covers};
use crate::check::jobs::is_held;
use crate::core::lock;
use crate::database::Model;
use model::policy::{Fallback, Size};
use model::{AllocId, JobId, Market, Offering, Policy, Span, Time};
use store::{Item, Row, Table, alloc_key};

/// Why a node may be shut down, as its record says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    NeverHeardFrom,
    NeverReported,
    Down,
    Idle,
}

impl Check {
    pub(super) fn shut_down(&self, caller: &Caller, model: &Model, before: &Item, after: &Item) {
        if text(after, "state") != Some("shutting_down") || text(before, "state") == Some("shutting_down") {
            return;
        }
        text(after, "instance_id").into_iter().for_each(|id| caller.shuts_down(id));
        self.invariant_no_busy_or_held_node_is_shut_down(before);
        if text(before, "intent") == Some("drain") {
            self.invariant_a_drain_gives_time_to_stop(model, before);
            return;
        }
        self.invariant_nothing_is_launched_in_vain(model, before);
        if !self.looks_at(model.len(Table::Nodes)) {
            return;
        }
        self.invariant_a_shutdown_has_its_reason(caller, model, before);
        // A node whose agent takes no work does not count for the minimum.
        if !refuses(before) {
            self.invariant_the_minimum_stays(caller, model, before);
        }
        self.invariant_the_first_job_keeps_its_nodes(model, before);
    }

    /// A node is not shut down if it is held. Before a drain's deadline, a node is also not shut down if it has live
    /// allocs, or if it said that it is busy and its lease is valid.
    fn invariant_no_busy_or_held_node_is_shut_down(&self, before: &Item) {
        let now = self.core.now();
        let held = text(before, "intent") == Some("hold");
        let leased = time(before, "lease_expires_at").is_some_and(|l| l > now + SLACK);
        let deadline = time(before, "drain_by_at").is_some_and(|by| now + SLACK >= by);
        // A node that stays `syncing` for the time of a boot is shut down even if its heartbeats say that it is busy.
        let stuck = text(before, "status") == Some("syncing");
        if held || (is_true(before, "busy") && leased && !deadline && !stuck) {
            self.broken("invariant_no_busy_or_held_node_is_shut_down", format!("{before:?}"));
        }
        // The same check with what the node itself knows: what it said, and when it was told to call again. (A
        // heartbeat counts even if its answer was lost.)
        let ground =
            node_id(before).filter(|_| !self.forgets(time(before, "assigned_at"))).and_then(|n| self.ground(n));
        let said = ground.is_some_and(|g| {
            let ground = lock(&g);
            let is_last = time(before, "last_ping_at").zip(ground.answered_at).is_some_and(|(p, a)| p <= a + SLACK);
            ground.said_busy && is_last && ground.next_call_at.is_some_and(|at| at > now + SLACK)
        });
        if said && !deadline && !stuck {
            self.broken("invariant_no_busy_or_held_node_is_shut_down", format!("it said it is busy: {before:?}"));
        }
        if !set(before).is_empty() && !deadline {
            self.broken("invariant_no_busy_or_held_node_is_shut_down", format!("it has allocs: {before:?}"));
        }
    }

    /// Remembers when a drain's deadline was set.
    pub(super) fn drained(&self, caller: &Caller, before: &Item, after: &Item) {
        let by = |row: &Item| time(row, "drain_by_at");
        if let (Kind::Operator, Some(node)) = (&caller.kind, node_id(after)) {
            lock(&self.seen).intended_at.insert(node, self.core.now());
        }
        if let (true, Some(node)) = (by(before) != by(after), node_id(after)) {
            lock(&self.seen).drained_at.insert(node, self.core.now());
            self.invariant_an_interruption_is_ec2s_word(caller, before, after);
        }
    }

    /// Only an operator or EC2 sets a drain's deadline. A deadline from EC2 is not earlier than the time at which EC2
    /// takes the instance. (A heartbeat that reports the interruption may come so late that EC2 has forgotten the
    /// instance.)
    fn invariant_an_interruption_is_ec2s_word(&self, caller: &Caller, before: &Item, after: &Item) {
        let Some(by) = time(after, "drain_by_at").filter(|_| caller.kind != Kind::Operator) else { return };
        let (id, ec2) = (text(before, "instance_id"), self.ec2());
        // A capacity block may end before the launch into it was answered.
        if id.is_none() && text(after, "market") == Some(Market::Reserved.as_str()) {
            return;
        }
        let forgotten = id.is_some_and(|id| ec2.as_ref().and_then(|ec2| ec2.one(id)).is_none());
        let taken_at = id.and_then(|id| ec2.as_ref()?.leaves_at(id));
        if !forgotten && taken_at.is_none_or(|at| by + SLACK < at) {
            self.broken("invariant_an_interruption_is_ec2s_word", format!("taken at {taken_at:?}: {after:?}"));
        }
    }

    /// Every alloc on a node at its drain's deadline was told to stop earlier: its kill time-out before the deadline,
    /// or as soon as the drain was known. Checked some time after the faults stopped. (A silent node cannot be told.)
    fn invariant_a_drain_gives_time_to_stop(&self, model: &Model, before: &Item) {
        let (Some(by), Some(node)) = (time(before, "drain_by_at"), node_id(before)) else { return };
        let silent = matches!(text(before, "status"), Some("disconnected" | "down"));
        if silent || !self.core.is_healed_for(Span::from_s(900)) {
            return;
        }
        let seen = lock(&self.seen);
        let known = seen.drained_at.get(&node).copied();
        let in_time = |id: &AllocId| {
            let Some(alloc) = model.get(&alloc_key(*id)) else { return true };
            let told = seen.stopped_at.get(id).filter(|_| text(alloc, "desired") == Some("stop"));
            // The period of the schedule, plus some delay.
            let soon = known.map(|at| at + Span::from_s(90));
            let latest = (by - Span::from_s(count(alloc, "kill_timeout_s"))).max(soon.unwrap_or(by)) + SLACK;
            told.is_some_and(|at| *at <= latest)
        };
        let late: Vec<AllocId> = set(before).into_iter().filter(|id| !in_time(id)).collect();
        drop(seen);
        if !late.is_empty() {
            self.broken("invariant_a_drain_gives_time_to_stop", format!("{late:?} on {before:?}"));
        }
    }

    /// A node that is not drained is shut down only for one of these reasons:
    /// - It never called within the time of a boot. (The time of a blackout is added while every node that should
    ///   heartbeat is silent, some of them not for longer than a lease, and none was heard after the node should have
    ///   called. Not checked for nodes whose heartbeats a restored table has forgotten.)
    /// - It never called, and EC2 listed its instance to the run as neither starting nor running.
    /// - It called, but did not report within the time of a boot, or lacked GPUs of its size for so long.
    /// - It was silent for long, and its shutdown window is open.
    /// - Several runs saw it idle for long, and its window is open or its agent takes no work.
    /// - Several runs saw it idle, its window is open, a job waits, and a cap does not allow all nodes that it needs.
    /// - It is idle or `syncing`, and its size is not in the policy any more.
    fn invariant_a_shutdown_has_its_reason(&self, caller: &Caller, model: &Model, before: &Item) {
        let (leases, over) = super::brakes::leases(caller, model);
        // This uses what the run read, because a node with a valid lease may be gone by now.
        let lately = |row: &Item| {
            let (Some(ping), Some(end)) = (time(row, "last_ping_at"), time(row, "lease_expires_at")) else {
                return false;
            };
            // If EC2 stops the instance of a node, the silence of the node proves nothing.
            let runs = !text(row, "instance_id").is_some_and(|id| caller.has_listed_as_leaving(id));
            runs && self.core.now() < end + end.since(ping) + SLACK
        };
        // The heartbeats of a node whose record cannot be read are not accepted, so they show nothing.
        let in_use = |r: &&Row| text(r, "state") == Some("in_use") && !self.was_unread_lately(Table::Nodes, r);
        let witness = model.rows(Table::Nodes).filter(in_use).any(|row| lately(row));
        let silent = leases > 0 && leases == over && witness && !caller.has_heard_somebody();
        let heard_at = lock(&self.seen).heard_at.filter(|_| silent);
        let stopped = text(before, "instance_id").is_some_and(|id| caller.has_listed_as_leaving(id));
        if text(before, "state") == Some("assigned") && (stopped || self.forgets(time(before, "assigned_at"))) {
            return;
        }
        let up = model.rows(Table::Nodes).filter(|row| text(row, "state") != Some("cleaned")).count();
        // A job of several nodes wants room for all of them, and so do the jobs that wait together: the rows of what this run launches
        // for some of them come later.
        let nodes = |job: &Row| count(job, "nodes").max(1);
        let waiting = model.rows(Table::Jobs).filter(|job| text(job, "state") == Some("queued")).map(nodes).sum();
        let more = model.rows(Table::Jobs).map(nodes).max().unwrap_or(1).max(waiting) - 1;
        let up = up.saturating_add(usize::try_from(more).unwrap_or(0));
        if !self.policies(RUN).iter().any(|p| self.is_reason_enough((p, up), before, silent, heard_at)) {
            self.broken("invariant_a_shutdown_has_its_reason", format!("{before:?}"));
        }
    }

    fn is_reason_enough(
        &self,
        (policy, up): (&Policy, usize),
        before: &Item,
        silent: bool,
        heard_at: Option<Time>,
    ) -> bool {
        let now = self.core.now();
        let has_cap = !policy.nodes.max_price_per_hour.is_zero() || policy.size.iter().any(|size| size.max.is_some());
        let may_make_way = has_cap || up >= policy.nodes.max as usize;
        let since = |name: &str, s: i64| time(before, name).is_some_and(|t| now.since(t) + SLACK >= Span::from_s(s));
        let why = match (text(before, "state"), text(before, "status")) {
            (Some("assigned"), _) => Why::NeverHeardFrom,
            (_, Some("syncing")) => Why::NeverReported,
            (_, Some("down")) => Why::Down,
            _ => Why::Idle,
        };
        let unwanted = text(before, "size").is_none_or(|size| !policy.has_size(size));
        match why {
            Why::NeverHeardFrom => {
                let due = Span::from_s(policy.boot.timeout_s - policy.heartbeat.grace_s);
                let could_call = heard_at > time(before, "assigned_at").map(|at| at + due);
                let blackout = if silent && !could_call { policy.heartbeat.blackout_s } else { 0 };
                since("assigned_at", policy.boot.timeout_s + blackout)
            }
            // If a part of its report could not be taken, the node is well.
            Why::NeverReported => {
                let lacks = is_true(before, "never_ready") && count(before, "gpus_usable") < count(before, "gpus");
                let since_at = if lacks { "first_ping_at" } else { "syncing_since_at" };
                unwanted || (since(since_at, policy.boot.timeout_s) && !before.contains_key("untaken"))
            }
            Why::Down => since("last_ping_at", policy.shutdown.down_after_s) && self.window(policy, before),
            Why::Idle => {
                let seen = count(before, "idle_runs") >= i64::from(policy.idle.confirmations);
                let ready = text(before, "status") == Some("ready");
                let window = refuses(before) || self.window(policy, before);
                // A cap may be reached, and a job may wait for the room that this node takes up.
                let long = since("idle_since_at", policy.idle.timeout_s) || may_make_way;
                ready && (long && seen && window || unwanted)
            }
        }
    }

    /// A node is not in use long after its drain's deadline. Checked some time after the faults stopped.
    pub fn invariant_a_drain_ends_by_its_deadline(&self, model: &Model) {
        let long_ago = self.core.now() - Span::from_s(20 * 60);
        for row in model.rows(Table::Nodes) {
            let late = text(row, "intent") == Some("drain") && time(row, "drain_by_at").is_some_and(|by| by < long_ago);
            if late && text(row, "state") == Some("in_use") {
                self.broken("invariant_a_drain_ends_by_its_deadline", format!("{row:?}"));
            }
        }
    }

    /// A record does not wait for an instance that ended an hour ago, whatever the brakes hold back. Where leases are long, the
    /// silence counts from the end of the lease. Checked an hour after the faults stopped.
    pub fn invariant_what_is_gone_is_noticed(&self, model: &Model) {
        let Some(ec2) = self.ec2() else { return };
        let long_ago = self.core.now() - Span::from_s(55 * 60);
        let silent_since = self.core.now() - Span::from_s(45 * 60);
        for row in model.rows(Table::Nodes) {
            let over = |id: &str| ec2.one(id).is_none_or(|r| !r.is_live());
            let waits = matches!(text(row, "state"), Some("assigned" | "in_use"));
            let old = time(row, "assigned_at").is_some_and(|at| at < long_ago)
                && time(row, "last_ping_at").is_none_or(|at| at < long_ago)
                && time(row, "lease_expires_at").is_none_or(|at| at < silent_since);
            if waits && old && text(row, "instance_id").is_some_and(over) {
                self.broken("invariant_what_is_gone_is_noticed", format!("{row:?}"));
            }
        }
    }

    /// Nothing waits longer than its policy says. No alloc stays unknown for longer than its job waits. No alloc that
    /// came back stays awaiting. No alloc stays live long after its job's end. No node stays `syncing` for longer than
    /// a boot may take. Checked an hour after the faults stopped.
    pub fn invariant_waiting_has_an_end(&self, model: &Model) {
        let Some(policy) = self.present_policy() else { return };
        let now = self.core.now();
        let beyond = |since: Option<Time>, s: i64| since.is_some_and(|at| now.since(at) > Span::from_s(s + 600));
        for row in model.rows(Table::Allocs).filter(|r| text(r, "client") == Some("unknown")) {
            if beyond(time(row, "unknown_since_at"), count(row, "lost_after_s")) {
                self.broken("invariant_waiting_has_an_end", format!("{row:?}"));
            }
        }
        // The next runs decide which copy stays.
        for (id, since) in &lock(&self.seen).back_since {
            if beyond(Some(*since), 0) {
                self.broken("invariant_waiting_has_an_end", format!("{id} is back since {since}"));
            }
        }
        // An ended job keeps no live allocs. If the instance of an alloc was terminated and EC2 does not list it, the
        // record waits until the node's lease is over.
        let long_ago = now - Span::from_s(20 * 60) - policy.heartbeat.lease(model.rows(Table::Nodes).count() as u64);
        for job in model.rows(Table::Jobs) {
            let ended = is_ended(job) && time(job, "finished_at").is_none_or(|at| at < long_ago);
            if ended && !set(job).is_empty() {
                self.broken("invariant_waiting_has_an_end", format!("it has ended: {job:?}"));
            }
        }
        for row in model.rows(Table::Nodes).filter(|r| text(r, "state") == Some("in_use")) {
            let syncing = text(row, "status") == Some("syncing");
            if syncing && beyond(time(row, "syncing_since_at"), policy.boot.timeout_s) {
                self.broken("invariant_waiting_has_an_end", format!("{row:?}"));
            }
        }
    }

    /// Whether a node's shutdown window was open at some moment since the run read the tables.
    fn window(&self, policy: &Policy, before: &Item) -> bool {
        let windows = &policy.shutdown.windows_min;
        let total: i64 = windows.iter().map(|m| i64::from(*m) * 60).sum();
        if total == 0 {
            return true;
        }
        let now = self.core.now();
        // The windows count from the launch that EC2 shows. They count from the assignment if the run's list left the
        // instance out, and any list may do so.
        let real = text(before, "instance_id").and_then(|id| self.ec2()?.one(id));
        let assigned = time(before, "assigned_at");
        let starts: Vec<Time> = real.map(|r| r.instance.launched_at).into_iter().chain(assigned).collect();
        let is_open = |launched: Time, at: Time| {
            let mut left = (at.since(launched).as_ms() / 1000).rem_euclid(total);
            for pair in windows.chunks(2) {
                let [closed, open @ ..] = pair else { continue };
                left -= i64::from(*closed) * 60;
                if left < 0 {
                    return false;
                }
                left -= open.first().map_or(0, |m| i64::from(*m) * 60);
                if left < 0 {
                    return true;
                }
            }
            false
        };
        let open_lately = |start: &Time| (-8..=RUN.as_ms() / 1000).any(|s| is_open(*start, now - Span::from_s(s)));
        starts.iter().any(open_lately)
    }

    /// A node that the first job of the queue waits for is not shut down as idle. Otherwise that job would never have
    /// all of its nodes at once. Checked some time after the faults stopped, and only without a price limit and without shares, which
    /// have an order of their own.
    fn invariant_the_first_job_keeps_its_nodes(&self, model: &Model, before: &Item) {
        let policy = self.present_policy().filter(|p| p.nodes.max_price_per_hour.is_zero() && p.share.is_empty());
        let Some(policy) = policy else { return };
        let ready = |row: &Item| text(row, "status") == Some("ready") && text(row, "intent").is_none_or(|i| i == "run");
        if !self.core.is_healed_for(Span::from_s(900)) || !ready(before) {
            return;
        }
        let queued = model.rows(Table::Jobs).filter(|r| text(r, "state") == Some("queued") && !is_held(r));
        let first = queued.min_by_key(|r| text(r, "rank").map(ToOwned::to_owned));
        // A job that waits for its array reserves no node.
        let Some(first) = first.filter(|row| !row.contains_key("array_limit")) else { return };
        let kind = |row: &Item, name: &str| text(first, name).is_none_or(|wanted| text(row, name) == Some(wanted));
        let memory = |row: &Item| (count(row, "memory_mib") as f64 * policy.nodes.memory_usable).floor() as i64;
        let fits = |row: &Item| {
            set(row).is_empty()
                && ["vcpus", "scratch_gib"].iter().all(|n| count(first, n) <= count(row, n))
                && count(first, "gpus") <= usable_gpus(row)
                && count(first, "memory_mib") <= memory(row)
                && kind(row, "instance_type")
                && is_of_market(row, text(first, "market"))
        };
        // The node that is shut down is not counted.
        let others = model.rows(Table::Nodes).filter(|r| {
            matches!(text(r, "state"), Some("assigned" | "in_use")) && text(r, "intent").is_none_or(|i| i == "run")
        });
        let might_serve = others.filter(|r| !matches!(text(r, "status"), Some("disconnected" | "down"))).count();
        let job: Option<JobId> = text(first, "job_id").and_then(|id| id.parse().ok());
        let since = job.and_then(|id| lock(&self.seen).queued_since.get(&id).copied());
        let waited = since.is_some_and(|at| self.core.now().since(at) > Span::from_s(900));
        if waited && fits(before) && (might_serve as i64) < count(first, "nodes") {
            let what = format!("{before:?} while {first:?} waits");
            self.broken("invariant_the_first_job_keeps_its_nodes", what);
        }
    }

    /// Idle nodes are surplus only above `nodes.min`. Exceptions: a queued job or the copy of an unknown alloc needs other
    /// nodes, or the price limit allows cheaper nodes only if this node goes.
    fn invariant_the_minimum_stays(&self, caller: &Caller, model: &Model, before: &Item) {
        let policies = self.policies(RUN);
        let wanted = |p: &Policy| text(before, "size").is_some_and(|size| p.has_size(size));
        if text(before, "status") != Some("ready") || !policies.iter().all(|p| wanted(p)) {
            return;
        }
        // A cheaper size that is below its own `max`.
        let price = super::demand::decimal(before, "price_per_hour");
        let of_size = |name: &str| {
            let rows = model.rows(Table::Nodes).filter(|r| text(r, "state") != Some("cleaned"));
            rows.filter(|r| text(r, "size") == Some(name)).count()
        };
        let cheaper =
            |s: &Size| f64::from(s.price_per_hour) < price && s.max.is_none_or(|max| of_size(&s.name) < max as usize);
        let dear = |p: &Policy| {
            let to_be_had = |s: &&Size| cheaper(s) && !was_short(caller, model, p, s);
            !p.nodes.max_price_per_hour.is_zero() && p.size.iter().any(|s| to_be_had(&s))
        };
        let since = self.core.now() - super::INDEX;
        let waits = |seen: &super::Seen| seen.queued.since(since) > 0 || seen.unknown.since(since) > 0;
        if waits(&lock(&self.seen)) || policies.iter().any(|p| dear(p)) {
            return;
        }
        let min = policies.iter().map(|p| p.nodes.min as usize).min().unwrap_or(0);
        let up = |row: &Item| matches!(text(row, "state"), Some("assigned" | "in_use"));
        // A node that became silent after the run read the records was usable for the run.
        let lately = |row: &Item| time(row, "modified_at").is_some_and(|at| self.core.now().since(at) < RUN);
        let silent = |row: &Item| matches!(text(row, "status"), Some("disconnected" | "down")) && !lately(row);
        let usable = model.rows(Table::Nodes).filter(|r| up(r) && !silent(r)).count();
        // Some nodes may have gone since the run read the records.
        if usable + super::brakes::MOVED < min {
            self.broken("invariant_the_minimum_stays", format!("{usable} are left of {min}: {before:?}"));
        }
    }
}

/// Whether EC2 refused every offering of a size when a run began, as the control table says.
fn was_short(caller: &Caller, model: &Model, policy: &Policy, size: &Size) -> bool {
    let markets = [size.market, Market::OnDemand];
    let markets = markets.iter().take(if size.fallback == Fallback::OnDemand { 2 } else { 1 });
    let any = vec!["any".to_owned()];
    let places = if policy.launch.subnets.is_empty() { &any } else { &policy.launch.subnets };
    let is_short = |market: &Market, place: &String| {
        let offering = Offering {
            size: size.name.clone(),
            instance_type: size.instance_type.clone(),
            market: *market,
            reservation: None,
            subnet_id: (place != "any").then(|| place.clone()),
            zone: None,
            template: policy.launch.template.clone().unwrap_or_default(),
            template_version: None,
            price_per_hour: size.price_per_hour,
            capacity: size.capacity,
            kind: size.kind.clone(),
        };
        model.rows(Table::Control).any(|row| {
            let until = time(row, "until_at");
            let since = until.map(|until| until - Span::from_s(count(row, "wait_s")));
            text(row, "key").is_some_and(|key| covers(key, &offering))
                && until.is_some_and(|at| at > caller.began())
                && since.is_some_and(|at| at < caller.began())
        })
    };
    markets.into_iter().all(|market| places.iter().all(|place| is_short(market, place)))
}
