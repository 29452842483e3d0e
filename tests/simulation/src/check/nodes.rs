//! The invariants of node records.

use super::{Check, RUN, SLACK, count, is_final, is_true, node_id, number, set, slot, text, time};
use crate::caller::{Caller, Kind};
use crate::core::lock;
use crate::database::Model;
use crate::ec2::Real;
use model::{AllocId, NodeId, Span, Time};
use store::{Item, Row, Table, alloc_key, node_key};

/// The attributes that a heartbeat or a report may change without raising the version.
const UNGUARDED: &[&str] =
    &["last_ping_at", "lease_expires_at", "uptime_ms", "alloc_report_no", "handle_report_no", "settled"];

fn is_up(row: Option<&Item>) -> bool {
    row.is_some_and(|r| text(r, "state") != Some("cleaned"))
}

fn state(row: Option<&Item>) -> &str {
    row.and_then(|r| text(r, "state")).unwrap_or("absent")
}

impl Check {
    /// Notes that a heartbeat was accepted at this time.
    pub(super) fn heard(&self, at: Option<Time>) {
        let heard_at = &mut lock(&self.seen).heard_at;
        *heard_at = (*heard_at).max(at);
    }

    pub(super) fn node(&self, caller: &Caller, model: &Model, before: Option<&Item>, after: Option<&Item>) {
        self.invariant_the_version_guards_everything_but_the_pulse(before, after);
        self.invariant_a_late_heartbeat_changes_nothing(before, after);
        if let (Kind::Node { what: "heartbeat", .. }, Some(after)) = (&caller.kind, after) {
            self.heard(time(after, "last_ping_at"));
        }
        if let (Some(before), Some(after)) = (before, after)
            && before.get("version") == after.get("version")
        {
            // The write changed only the pulse or a report counter.
            return self.invariant_a_reassigned_record_is_not_touched_for_its_earlier_life(
                caller,
                Some(before),
                Some(after),
            );
        }
        let again = before.and_then(slot).is_some_and(|slot| caller.wrote(slot));
        self.invariant_not_more_records_than_nodes_max(before, after);
        self.launch_decided(caller, model, before, after);
        self.invariant_a_record_changes_only_as_its_states_allow(before, after);
        self.invariant_a_life_is_new_and_inherits_nothing(caller, before, after);
        self.invariant_a_reassigned_record_is_not_touched_for_its_earlier_life(caller, before, after);
        self.invariant_a_nodes_set_is_its_live_allocs(model, before, after);
        self.invariant_an_instance_has_one_record(before, after);
        self.invariant_a_record_has_the_way_of_its_launch(after);
        if let (Some(before), Some(after)) = (before, after) {
            self.invariant_what_is_being_terminated_stays_so(before, after);
            self.drained(caller, before, after);
            self.invariant_no_lease_expires_early(before, after);
            self.invariant_the_gate_opens_only_with_a_complete_report(caller, model, before, after);
            self.invariant_a_node_is_ready_the_first_time_with_its_gpus(before, after);
            self.shut_down(caller, model, before, after);
            self.invariant_only_what_is_over_is_cleaned(model, before, after);
            self.invariant_no_instance_loses_its_record(before, after);
            self.invariant_absence_is_proven_twice(caller, before, after, again);
            if text(after, "status") == Some("syncing") && !after.contains_key("syncing_since_at") {
                self.broken("invariant_waiting_has_an_end", format!("it waits since never: {after:?}"));
            }
            let status = text(after, "status");
            if status != text(before, "status") {
                self.core.count(match status {
                    Some("syncing") => "a node became syncing",
                    Some("ready") => "a node became ready",
                    Some("disconnected") => "a node became disconnected",
                    Some("down") => "a node became down",
                    _ => "a node lost its status",
                });
            }
        }
    }

    /// A node becomes ready the first time only with all GPUs of its size.
    fn invariant_a_node_is_ready_the_first_time_with_its_gpus(&self, before: &Item, after: &Item) {
        let is_first = is_true(before, "never_ready") && !is_true(after, "never_ready");
        if is_first && count(after, "gpus_usable") < count(after, "gpus") {
            self.broken("invariant_a_node_is_ready_the_first_time_with_its_gpus", format!("{before:?} → {after:?}"));
        }
        let lacks = |row: &Item| count(row, "gpus_usable") < count(row, "gpus");
        if is_true(before, "never_ready") && lacks(before) && !lacks(after) {
            self.core.count("a node waited for its GPUs");
        }
    }

    /// An instance of a batch becomes one node of the batch, and no other node. (A restored table may say something
    /// else.)
    fn invariant_an_instance_has_one_record(&self, before: Option<&Item>, after: Option<&Item>) {
        let id_of = |row: Option<&Item>| row.and_then(|row| text(row, "instance_id")).map(ToOwned::to_owned);
        let (Some(id), Some(node)) = (id_of(after), after.and_then(node_id)) else { return };
        if id_of(before).as_ref() == Some(&id) && before.and_then(node_id) == Some(node) {
            return;
        }
        let Some(ec2) = self.ec2().filter(|ec2| ec2.one(&id).is_some_and(|real| real.is_of_batch())) else { return };
        let other = ec2.name(&id, node).filter(|other| *other != node);
        if let Some(other) = other.filter(|other| !self.forgets_life(*other) && !self.forgets_life(node)) {
            self.broken("invariant_an_instance_has_one_record", format!("{id} was {other}: {after:?}"));
        }
    }

    /// Once a run knows the type and the place of an instance, its record has them and no other ways. (A restored
    /// record may have the ways of an earlier call.)
    fn invariant_a_record_has_the_way_of_its_launch(&self, after: Option<&Item>) {
        let Some(after) = after.filter(|row| !row.contains_key("others")) else { return };
        let Some(real) = text(after, "instance_id").and_then(|id| self.ec2()?.one(id)) else { return };
        let is_own = node_id(after).is_some_and(|node| real.was_launched_for(node) && !self.forgets_life(node));
        let launched = (real.instance.instance_type.as_deref(), real.instance.subnet_id.as_deref());
        if is_own && launched != (text(after, "instance_type"), text(after, "subnet_id")) {
            self.broken("invariant_a_record_has_the_way_of_its_launch", format!("{launched:?}: {after:?}"));
        }
    }

    /// At most `nodes.max` records are not cleaned. After the maximum was lowered, no record is added above it.
    fn invariant_not_more_records_than_nodes_max(&self, before: Option<&Item>, after: Option<&Item>) {
        let mut seen = lock(&self.seen);
        match (is_up(before), is_up(after)) {
            (false, true) => seen.up += 1,
            (true, false) => {
                seen.up = seen.up.saturating_sub(1);
                seen.over.extend(before.and_then(node_id));
            }
            _ => return,
        }
        if !is_up(after) {
            return;
        }
        let up = seen.up;
        drop(seen);
        let max = self.policies(RUN).iter().map(|p| p.nodes.max).max().unwrap_or(0);
        let beyond = after.and_then(slot).is_some_and(|s| s.number() >= max);
        if up > max as usize || beyond {
            let what = format!("{up} records are not cleaned and nodes.max is {max}: {after:?}");
            self.broken("invariant_not_more_records_than_nodes_max", what);
        }
    }

    /// The newest heartbeat of a boot counts, even if an older heartbeat arrives after it.
    fn invariant_a_late_heartbeat_changes_nothing(&self, before: Option<&Item>, after: Option<&Item>) {
        let (Some(before), Some(after)) = (before, after) else { return };
        let same = |name: &str| before.get(name).is_some() && before.get(name) == after.get(name);
        let late = number(before, "uptime_ms").zip(number(after, "uptime_ms")).is_some_and(|(b, a)| a < b);
        if same("node_id") && same("boot_id") && late {
            self.broken("invariant_a_late_heartbeat_changes_nothing", format!("{before:?} → {after:?}"));
        }
    }

    /// `cleaned → assigned → in_use → shutting_down → cleaned`, and every state may become `cleaned`.
    fn invariant_a_record_changes_only_as_its_states_allow(&self, before: Option<&Item>, after: Option<&Item>) {
        let (from, to) = (state(before), state(after));
        let right = from == to
            || matches!(
                (from, to),
                ("absent" | "cleaned", "assigned")
                    | ("assigned", "in_use" | "shutting_down" | "cleaned")
                    | ("in_use", "shutting_down" | "cleaned")
                    | ("shutting_down", "cleaned")
                    | ("cleaned", "absent")
            );
        if !right {
            self.broken(
                "invariant_a_record_changes_only_as_its_states_allow",
                format!("{from} → {to}: {before:?} → {after:?}"),
            );
        }
        if from != to {
            self.core.count(match to {
                "assigned" => "a record became assigned",
                "in_use" => "a record became in_use",
                "shutting_down" => "a record became shutting_down",
                "cleaned" => "a record became cleaned",
                _ => "a record was deleted",
            });
        }
    }

    /// The intent and deadline of a node that is shutting down do not change.
    fn invariant_what_is_being_terminated_stays_so(&self, before: &Item, after: &Item) {
        let going = |row: &Item| text(row, "state") == Some("shutting_down");
        let wanted = |row: &Item| (text(row, "intent").map(ToOwned::to_owned), time(row, "drain_by_at"));
        if going(before) && going(after) && wanted(before) != wanted(after) {
            self.broken("invariant_what_is_being_terminated_stays_so", format!("{before:?} → {after:?}"));
        }
    }

    /// Every write raises the version by one, except writes of the pulse and the report counters.
    fn invariant_the_version_guards_everything_but_the_pulse(&self, before: Option<&Item>, after: Option<&Item>) {
        let (Some(before), Some(after)) = (before, after) else { return };
        let (from, to) = (count(before, "version"), count(after, "version"));
        let right = if from == to {
            let guarded = |row: &Item| row.len() - UNGUARDED.iter().filter(|n| row.contains_key(**n)).count();
            guarded(before) == guarded(after)
                && after.iter().all(|(n, v)| UNGUARDED.contains(&n.as_str()) || before.get(n) == Some(v))
        } else {
            to == from + 1
        };
        if !right {
            self.broken(
                "invariant_the_version_guards_everything_but_the_pulse",
                format!("{from} → {to}: {before:?} → {after:?}"),
            );
        }
    }

    /// A node id is never used again, and a new life keeps nothing of the old one.
    fn invariant_a_life_is_new_and_inherits_nothing(
        &self,
        caller: &Caller,
        before: Option<&Item>,
        after: Option<&Item>,
    ) {
        let (Some(after), Some(new)) = (after, after.and_then(node_id)) else { return };
        if before.and_then(node_id) == Some(new) {
            return;
        }
        let fresh = lock(&self.seen).lives.insert(new);
        let left =
            ["instance_id", "first_ping_at", "last_ping_at", "allocs", "incarnation", "status", "absent_since_at"];
        let inherited: Vec<&str> = left.into_iter().filter(|n| after.contains_key(*n)).collect();
        let its_slot = slot(after) == Some(new.slot());
        if !fresh || !inherited.is_empty() || is_up(before) || !its_slot {
            self.broken(
                "invariant_a_life_is_new_and_inherits_nothing",
                format!("{}: fresh {fresh}, inherited {inherited:?}: {before:?} → {after:?}", caller.name()),
            );
        }
    }

    /// Whether a report with a higher number was taken before this request.
    pub fn is_overtaken(model: &Model, kind: &Kind) -> bool {
        let Kind::Node { what: what @ ("allocs" | "handles"), node, body } = kind else { return false };
        let report: serde_json::Value = serde_json::from_str(body).unwrap_or_default();
        let counter = if *what == "allocs" { "alloc_report_no" } else { "handle_report_no" };
        let record = model.get(&node_key(node.slot())).cloned().filter(|r| node_id(r) == Some(*node));
        record.is_some_and(|r| {
            let same = text(&r, "incarnation") == report.get("incarnation").and_then(serde_json::Value::as_str);
            let no = report.get("report_no").and_then(serde_json::Value::as_i64);
            same && no.is_some_and(|no| no < count(&r, counter))
        })
    }

    /// A report is refused if one with a higher number was taken before it came.
    pub fn invariant_a_stale_report_is_refused(&self, name: &str, answer: &serde_json::Value) {
        self.core.count("a stale report came");
        if answer.get("statusCode").and_then(serde_json::Value::as_u64) == Some(200) {
            self.broken("invariant_a_stale_report_is_refused", format!("{name}: {answer}"));
        }
    }

    /// A decision about an earlier life of a slot never changes the record of the current life. A run that knows a node of a
    /// launch also binds the nodes that its list does not show yet: it reads their records again.
    fn invariant_a_reassigned_record_is_not_touched_for_its_earlier_life(
        &self,
        caller: &Caller,
        before: Option<&Item>,
        after: Option<&Item>,
    ) {
        let (Some(row), Kind::Run(_)) = (before.or(after), &caller.kind) else { return };
        let Some(slot) = slot(row) else { return };
        let current = before.and_then(node_id);
        let mut lives = lock(&caller.lives);
        let knows_launch = |node: NodeId| lives.values().flatten().any(|known| known.ulid() == node.ulid());
        let is_bound = before.is_some_and(|row| !row.contains_key("instance_id"))
            && after.is_some_and(|row| row.contains_key("instance_id"));
        if let Some(shown) = lives.get(&slot)
            && *shown != current
            && !(is_bound && current.is_some_and(knows_launch))
        {
            self.broken(
                "invariant_a_reassigned_record_is_not_touched_for_its_earlier_life",
                format!("{} saw {shown:?} in slot {slot} and changed {current:?}", caller.name()),
            );
        }
        lives.insert(slot, after.and_then(node_id));
    }

    /// The `allocs` set of a node holds exactly its live allocs.
    fn invariant_a_nodes_set_is_its_live_allocs(&self, model: &Model, before: Option<&Item>, after: Option<&Item>) {
        let old = before.map(set).unwrap_or_default();
        let new = after.map(set).unwrap_or_default();
        let node = after.and_then(node_id);
        for id in new.difference(&old) {
            let row = model.get(&alloc_key(*id));
            if row.is_none_or(|r| is_final(r) || node_id(r) != node) {
                self.broken(
                    "invariant_a_nodes_set_is_its_live_allocs",
                    format!("{id} is not live on {node:?}: {row:?}"),
                );
            }
        }
        for id in old.difference(&new) {
            // (The set is corrected even if the row cannot be read. It is put right afterwards.)
            if model.get(&alloc_key(*id)).is_some_and(|r| !is_final(r)) && !self.is_spoiled(&alloc_key(*id)) {
                self.broken("invariant_a_nodes_set_is_its_live_allocs", format!("{id} is live and left {before:?}"));
            }
        }
    }

    /// A node becomes disconnected or down only after its lease expired, and not before the time at which it was
    /// told to call again.
    fn invariant_no_lease_expires_early(&self, before: &Item, after: &Item) {
        let missed = matches!(text(after, "status"), Some("disconnected" | "down"))
            && matches!(text(before, "status"), Some("syncing" | "ready"));
        let lease = time(before, "lease_expires_at");
        if missed && lease.is_some_and(|l| l > self.core.now() + SLACK) {
            self.broken("invariant_no_lease_expires_early", format!("{before:?}"));
        }
        let life = node_id(before).filter(|id| !self.forgets_life(*id));
        let told = life.and_then(|id| self.ground(id)).and_then(|g| lock(&g).next_call_at);
        if missed && told.is_some_and(|at| at > self.core.now() + SLACK) {
            self.broken("invariant_no_lease_expires_early", format!("it was told to call at {told:?}: {before:?}"));
        }
    }

    /// A node becomes ready only by a complete report of the current incarnation that passes the gate, and only after
    /// the whole report was applied.
    fn invariant_the_gate_opens_only_with_a_complete_report(
        &self,
        caller: &Caller,
        model: &Model,
        before: &Item,
        after: &Item,
    ) {
        if text(after, "status") != Some("ready") || text(before, "status") == Some("ready") {
            return;
        }
        let rule = "invariant_the_gate_opens_only_with_a_complete_report";
        let Kind::Node { what: "allocs", body, .. } = &caller.kind else {
            return self.broken(rule, format!("{} made {before:?} ready", caller.name()));
        };
        let report: serde_json::Value = serde_json::from_str(body).unwrap_or_default();
        let as_of = report.get("as_of").and_then(serde_json::Value::as_i64).unwrap_or(-1);
        let complete = report.get("complete").and_then(serde_json::Value::as_bool) == Some(true);
        let incarnation = report.get("incarnation").and_then(serde_json::Value::as_str);
        let listed = report.get("allocs").and_then(serde_json::Value::as_array).cloned().unwrap_or_default();
        let listed: Vec<&str> = listed.iter().filter_map(|a| a.get("alloc_id")?.as_str()).collect();
        // Nothing is placed on a node before it is ready, so the report lists all of its allocs. There are two
        // exceptions. The row of an alloc may have become unreadable a moment ago. And an alloc that is not there, of a job with
        // unreadable rows, does not end yet: it is unknown.
        let is_open = |id: &AllocId| {
            let is_unknown = || model.get(&alloc_key(*id)).is_some_and(|row| text(row, "client") == Some("unknown"));
            self.is_spoiled(&alloc_key(*id)) || (self.has_spoiled() && is_unknown())
        };
        // What the node says of an alloc was taken before: it is neither unknown nor, if it has ended, still live.
        for update in report.get("allocs").and_then(serde_json::Value::as_array).into_iter().flatten() {
            let said = |name: &str| update.get(name).and_then(serde_json::Value::as_str);
            let Some(id) = said("alloc_id").and_then(|id| id.parse().ok()).filter(|id| set(after).contains(id)) else {
                continue;
            };
            let has_ended = matches!(said("client"), Some("complete" | "failed" | "lost"));
            let row = model.get(&alloc_key(id));
            if row.is_some_and(|row| has_ended || text(row, "client") == Some("unknown")) {
                self.broken(rule, format!("{update} was not taken before {before:?} became ready: {row:?}"));
            }
        }
        let of_node = set(after).into_iter().filter(|id| !is_open(id));
        let unlisted: Vec<String> =
            of_node.map(|id| id.to_string()).filter(|id| !listed.contains(&id.as_str())).collect();
        let right = complete
            && as_of >= count(before, "gate_seq")
            && incarnation == text(before, "incarnation")
            && unlisted.is_empty();
        if !right {
            self.broken(rule, format!("report {report} made {before:?} ready; not listed: {unlisted:?}"));
        }
    }

    /// A record is cleaned only if it has no live allocs, if its node has no handle rows, and if its instance is
    /// terminated, or is unlisted while the lease is over.
    fn invariant_only_what_is_over_is_cleaned(&self, model: &Model, before: &Item, after: &Item) {
        if text(after, "state") != Some("cleaned") || node_id(before).is_none_or(|id| self.forgets_life(id)) {
            return;
        }
        if !set(before).is_empty() {
            self.broken("invariant_only_what_is_over_is_cleaned", format!("it has live allocs: {before:?}"));
        }
        // (A report may add the row of an unknown handle after the run read the rows, and a sweep may change a row.
        // Such a row is deleted when it is due.)
        let its_own = |h: &&Row| {
            let its = node_id(h) == node_id(before) && text(h, "state") != Some("unknown");
            its && !self.is_row_spoiled(Table::Handles, h)
        };
        let now = self.core.now();
        let changed_at = node_id(before).and_then(|id| lock(&self.seen).handles_changed_at.get(&id).copied());
        let are_settled = changed_at.is_none_or(|at| now.since(at) > RUN);
        let looks = are_settled && self.looks_at(model.len(Table::Handles));
        if let Some(left) = model.rows(Table::Handles).filter(|_| looks).find(its_own) {
            self.broken("invariant_only_what_is_over_is_cleaned", format!("{left:?} is left of {before:?}"));
        }
        let leased = time(before, "lease_expires_at").is_some_and(|l| l > now + SLACK);
        let real = text(before, "instance_id").and_then(|id| self.ec2()?.one(id));
        if let Some(real) = real.filter(Real::is_live)
            && (leased || !real.was_hidden(now))
        {
            self.broken("invariant_only_what_is_over_is_cleaned", format!("{real:?}: {before:?}"));
        }
    }

    /// A record without an instance is not cleaned while an instance of its node lives, before the time for a boot is
    /// over.
    fn invariant_no_instance_loses_its_record(&self, before: &Item, after: &Item) {
        let over = self.policies(RUN).iter().map(|p| p.boot.timeout_s).min().unwrap_or(0);
        let young =
            time(before, "assigned_at").is_some_and(|at| self.core.now().since(at) + SLACK < Span::from_s(over));
        let unbound = text(after, "state") == Some("cleaned") && !before.contains_key("instance_id");
        let Some(node) = node_id(before).filter(|id| young && unbound && !self.forgets_life(*id)) else { return };
        if self.ec2().is_some_and(|ec2| ec2.any(|r| r.is_of(node) && r.is_up())) {
            self.broken("invariant_no_instance_loses_its_record", format!("{before:?}"));
        }
    }

    /// A record whose instance EC2 does not list as terminated is cleaned only in one of these cases:
    /// - EC2 refused the launch.
    /// - Two observations at least a minute apart did not list the instance, and the launch's claim ended at least
    ///   `stale.orphan_after_s` ago. (If the instance was never bound: the claim has ended, and the time of a boot is
    ///   over.)
    /// - Nothing was heard or written for `stale.after_s`.
    fn invariant_absence_is_proven_twice(&self, caller: &Caller, before: &Item, after: &Item, again: bool) {
        let Some(node) = node_id(before).filter(|id| !self.forgets_life(*id)) else { return };
        if text(after, "state") != Some("cleaned") || caller.is_refused(node) {
            return;
        }
        let now = self.core.now();
        // Whether EC2 lists the instance as terminated, now or at some moment since the run read the list.
        let over = |r: &Real| !r.is_live() && r.was_listed(now - RUN, now);
        let of_this = |r: &Real| match text(before, "instance_id") {
            Some(id) => r.instance.instance_id == id,
            None => r.is_of(node),
        };
        let Some(ec2) = self.ec2() else { return };
        // EC2 may have forgotten the instance since the run read a list in which it was terminated.
        let forgotten = text(before, "instance_id").is_some_and(|id| ec2.one(id).is_none());
        if forgotten || ec2.any(|r| of_this(r) && over(r)) {
            return self.core.count("a record was cleaned: its instance is terminated");
        }
        let since = |name: &str, s: i64| time(before, name).is_some_and(|t| now.since(t) + SLACK >= Span::from_s(s));
        let proven = |p: &std::sync::Arc<model::policy::Policy>| {
            let missed = since("absent_since_at", 60);
            let waited = match text(before, "instance_id") {
                Some(_) => since("launch_claim_until_at", p.stale.orphan_after_s),
                None => since("launch_claim_until_at", 0) && since("assigned_at", p.boot.timeout_s),
            };
            // (A write by this run itself is no sign of life.)
            let written = ["modified_at", "launch_claim_until_at", "last_ping_at"].into_iter().skip(again.into());
            let stale = written.clone().all(|n| !before.contains_key(n) || since(n, p.stale.after_s));
            (missed && waited) || stale
        };
        if !self.policies(RUN).iter().any(proven) {
            self.broken("invariant_absence_is_proven_twice", format!("{} cleans {before:?}", caller.name()));
        }
        self.core.count("a record was cleaned: its instance is nowhere");
    }
}
