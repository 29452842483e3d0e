//! The invariants of allocs, and of the processes on the machines.

use super::{
    Check, RUN, SLACK, alloc_id, count, done, is_back, is_final, is_of_market, is_true, is_wanted, node_id, number,
    set, slot, text, time, usable_gpus, within,
};
use crate::caller::{Caller, Kind};
use crate::check::jobs;
use crate::core::lock;
use crate::database::{Change, Model};
use model::{AllocId, EndCause, NodeId, Span};
use std::collections::{BTreeMap, BTreeSet};
use store::{Item, Row, Table, alloc_key, handle_key, job_key, node_key};

/// The longest time before a drain's deadline at which a run stops an alloc: a period, and the longest stop of a job.
const DRAIN_ENDS: Span = Span::from_s(300);

impl Check {
    pub(super) fn alloc(&self, caller: &Caller, model: &Model, before: Option<&Item>, after: Option<&Item>) {
        let Some(id) = after.or(before).and_then(alloc_id) else { return };
        {
            let mut seen = lock(&self.seen);
            match after.filter(|a| !is_final(a)).and_then(node_id) {
                Some(node) => {
                    seen.live.insert(id, node);
                    seen.launched_for.remove(&node);
                }
                None => _ = seen.live.remove(&id),
            }
            let unknown = |row: Option<&Item>| usize::from(row.is_some_and(|r| text(r, "client") == Some("unknown")));
            seen.unknown.change(self.core.now(), unknown(before), unknown(after));
            // It stays absent when a run writes that it has a copy.
            if after.is_some_and(|a| !is_final(a) && text(a, "client") != Some("unknown")) {
                seen.absent.remove(&id);
            }
            if unknown(after) == 1 && matches!(caller.kind, Kind::Node { .. }) {
                seen.absent.insert(id);
            }
            let told = |row: Option<&Item>| row.is_some_and(|r| text(r, "desired") == Some("stop"));
            if told(after) && !told(before) {
                seen.stopped_at.insert(id, self.core.now());
            }
            if after.is_some_and(is_back) {
                seen.back_since.entry(id).or_insert(self.core.now());
            } else {
                seen.back_since.remove(&id);
            }
        }
        self.files(model, id, before, after);
        self.elements_placed(model, id, before, after);
        self.invariant_a_final_alloc_never_changes(before, after);
        self.invariant_no_work_for_a_machine_that_stops(caller, model, before, after);
        self.invariant_both_sets_have_the_live_allocs(model, id, before, after);
        self.invariant_what_is_lost_for_its_absence_is_absent(caller, id, before, after);
        self.invariant_a_silent_nodes_work_is_waited_for(caller, model, before, after);
        self.invariant_heartbeat_before_updates(caller, model, after);
        self.invariant_only_silence_makes_unknown(caller, model, before, after);
        self.invariant_an_end_calls_the_sweep(model, id, before, after);
        self.invariant_an_end_is_as_it_was(id, before, after);
        if let Some(after) = after
            && before.is_none_or(|b| text(b, "client") != text(after, "client"))
        {
            self.core.count(match text(after, "client") {
                Some("pending") => "an alloc became pending",
                Some("running") if before.is_some_and(|b| text(b, "client") == Some("unknown")) => {
                    "an unknown alloc came back"
                }
                Some("running") => "an alloc became running",
                Some("unknown") => "an alloc became unknown",
                Some("complete") => "an alloc became complete",
                Some("failed") => "an alloc became failed",
                _ => "an alloc became lost",
            });
        }
    }

    /// A final alloc never changes. `desired` never goes from stop to run. An alloc never moves to another node.
    fn invariant_a_final_alloc_never_changes(&self, before: Option<&Item>, after: Option<&Item>) {
        let Some(before) = before else { return };
        let rule = "invariant_a_final_alloc_never_changes";
        if is_final(before) && after.is_some_and(|a| a != before) {
            self.broken(rule, format!("{before:?} → {after:?}"));
        }
        if !is_final(before) && after.is_none() {
            self.broken(rule, format!("a live alloc was deleted: {before:?}"));
        }
        if let Some(after) = after {
            if text(before, "desired") == Some("stop") && text(after, "desired") == Some("run") {
                self.broken(rule, format!("stop → run: {before:?}"));
            }
            for name in ["node_id", "placed_seq", "slot", "placed_at"] {
                if before.get(name) != after.get(name) {
                    self.broken(rule, format!("{name} changed: {before:?} → {after:?}"));
                }
            }
        }
    }

    /// No run places an alloc on a node whose instance EC2 listed to this run as stopping, stopped, shutting down or
    /// terminated.
    fn invariant_no_work_for_a_machine_that_stops(
        &self,
        caller: &Caller,
        model: &Model,
        before: Option<&Item>,
        after: Option<&Item>,
    ) {
        let (None, Some(after)) = (before, after) else { return };
        let Some(node) = node_id(after) else { return };
        let record = model.get(&node_key(node.slot())).filter(|r| node_id(r) == Some(node));
        if let Some(instance) = record.and_then(|r| text(r, "instance_id"))
            && caller.has_listed_as_leaving(instance)
        {
            let what = format!("{} places {after:?} on {instance}, which stops", caller.name());
            self.broken("invariant_no_work_for_a_machine_that_stops", what);
        }
    }

    /// At most one copy of a member has `desired` = run and is neither unknown nor awaiting.
    pub(super) fn invariant_one_copy_of_a_member_is_wanted(&self, changes: &[Change]) {
        let mut seen = lock(&self.seen);
        let mut touched = BTreeSet::new();
        for change in changes.iter().filter(|c| c.table == Table::Allocs) {
            let Some(id) = change.after.as_deref().or(change.before.as_deref()).and_then(alloc_id) else { continue };
            let member = (id.job_id, id.member);
            let copies = seen.wanted.entry(member).or_default();
            if change.after.as_deref().is_some_and(is_wanted) {
                copies.insert(id);
            } else {
                copies.remove(&id);
            }
            touched.insert(member);
        }
        for member in touched {
            let copies = seen.wanted.get(&member).map_or(0, BTreeSet::len);
            if copies > 1 {
                let copies: Vec<String> =
                    seen.wanted.get(&member).into_iter().flatten().map(ToString::to_string).collect();
                self.broken("invariant_one_copy_of_a_member_is_wanted", copies.join(", "));
            }
            if copies == 0 {
                seen.wanted.remove(&member);
            }
        }
    }

    /// The `allocs` sets of the node and of the job hold exactly their live allocs.
    fn invariant_both_sets_have_the_live_allocs(
        &self,
        model: &Model,
        id: AllocId,
        before: Option<&Item>,
        after: Option<&Item>,
    ) {
        let live = after.is_some_and(|a| !is_final(a));
        let was = before.is_some_and(|b| !is_final(b));
        if live == was {
            return;
        }
        let rule = "invariant_both_sets_have_the_live_allocs";
        let row = after.or(before);
        let node = row.and_then(node_id);
        let record = row.and_then(slot).and_then(|s| model.get(&node_key(s)).cloned());
        let on_node = record.as_deref().is_some_and(|r| node_id(r) == node && set(r).contains(&id));
        let job = Self::job_row(model, id.job_id);
        let in_job = job.as_deref().is_some_and(|j| set(j).contains(&id));
        if on_node != live || in_job != live {
            let what = format!("{id} live: {live}, in its node's set: {on_node}, in its job's: {in_job}");
            self.broken(rule, what);
        }
    }

    /// If an alloc becomes lost because a report does not list it, then it is not on its node, and the node knew
    /// its order when it made the report.
    fn invariant_what_is_lost_for_its_absence_is_absent(
        &self,
        caller: &Caller,
        id: AllocId,
        before: Option<&Item>,
        after: Option<&Item>,
    ) {
        let Kind::Node { node, body, .. } = &caller.kind else { return };
        let lost = after.is_some_and(|a| text(a, "client") == Some("lost"));
        if !lost || before.is_some_and(is_final) || self.forgets(before.and_then(|b| time(b, "placed_at"))) {
            return;
        }
        let report: serde_json::Value = serde_json::from_str(body).unwrap_or_default();
        let as_of = report.get("as_of").and_then(serde_json::Value::as_i64);
        let listed = report.get("allocs").and_then(serde_json::Value::as_array).into_iter().flatten();
        let named = listed.filter_map(|a| a.get("alloc_id")?.as_str()).any(|name| name == id.to_string());
        if !named && before.is_some_and(|b| as_of.is_none_or(|as_of| as_of < count(b, "placed_seq"))) {
            let what = format!("{} lost {id}, of which it could not know: {before:?}", caller.name());
            self.broken("invariant_what_is_lost_for_its_absence_is_absent", what);
        }
        if let Some(ground) = self.ground(*node) {
            let ground = lock(&ground);
            // A node knows what it reports itself as lost, until the report is answered.
            if ground.running.contains(&id) || (!named && ground.known.contains(&id)) {
                let what = format!("{} lost {id}, which is there: {ground:?}", caller.name());
                self.broken("invariant_what_is_lost_for_its_absence_is_absent", what);
            }
        }
    }

    /// A report changes an alloc only if its node is `syncing`, `ready` or shutting down, if the report is of the
    /// current incarnation, and if no later report was taken before it.
    fn invariant_heartbeat_before_updates(&self, caller: &Caller, model: &Model, after: Option<&Item>) {
        let (Kind::Node { node, body, .. }, Some(after)) = (&caller.kind, after) else { return };
        let Some(record) = model.get(&node_key(node.slot())).filter(|r| node_id(r) == Some(*node)) else { return };
        let report: serde_json::Value = serde_json::from_str(body).unwrap_or_default();
        let no = report.get("report_no").and_then(serde_json::Value::as_i64);
        let incarnation = report.get("incarnation").and_then(serde_json::Value::as_str);
        let heard = text(record, "state") == Some("shutting_down")
            || matches!(text(record, "status"), Some("syncing" | "ready"));
        let latest = no.is_some_and(|no| no >= count(record, "alloc_report_no"));
        let present = text(record, "incarnation") == incarnation;
        if !(heard && latest && present) {
            let what = format!("{}: {after:?} on {record:?}", caller.name());
            self.broken("invariant_heartbeat_before_updates", what);
        }
    }

    /// An alloc becomes unknown only while its node is silent, or if it is not on its node and cannot end because a row cannot
    /// be read.
    fn invariant_only_silence_makes_unknown(
        &self,
        caller: &Caller,
        model: &Model,
        before: Option<&Item>,
        after: Option<&Item>,
    ) {
        let unknown = |row: Option<&Item>| row.is_some_and(|r| text(r, "client") == Some("unknown"));
        let Some(node) = after.filter(|_| unknown(after) && !unknown(before)).and_then(node_id) else { return };
        let record = model.get(&node_key(node.slot())).filter(|r| node_id(r) == Some(node));
        let is_silent = record.is_some_and(|r| matches!(text(r, "status"), Some("disconnected" | "down")));
        let cannot_end = matches!(caller.kind, Kind::Node { what: "allocs", .. }) && self.has_spoiled();
        if !is_silent && !cannot_end {
            self.broken("invariant_only_silence_makes_unknown", format!("{after:?} on {record:?}"));
        }
    }

    /// A run makes an alloc of a silent node lost only in two cases. The job no longer waits for the alloc. Or the job
    /// does not want the alloc and does not regroup. Until then the alloc is unknown. (An alloc is lost at once if its
    /// node came back without it, or if its instance has ended.)
    fn invariant_a_silent_nodes_work_is_waited_for(
        &self,
        caller: &Caller,
        model: &Model,
        before: Option<&Item>,
        after: Option<&Item>,
    ) {
        let (Kind::Run(_), Some(before), Some(after)) = (&caller.kind, before, after) else { return };
        let waits = count(before, "lost_after_s");
        let client = text(before, "client");
        self.invariant_what_a_ready_node_runs_is_not_lost(model, before, after);
        if text(after, "client") != Some("lost") || waits == 0 || !matches!(client, Some("running" | "unknown")) {
            return;
        }
        let job = alloc_id(before).and_then(|id| model.get(&job_key(id.job_id)));
        let regroups = job.is_some_and(|j| text(j, "state") == Some("regrouping"));
        if text(before, "desired") == Some("stop") && !regroups {
            return;
        }
        let Some(node) = node_id(before) else { return };
        let Some(record) = model.get(&node_key(node.slot())).filter(|r| node_id(r) == Some(node)) else { return };
        let real = text(record, "instance_id").and_then(|id| self.ec2()?.one(id));
        let there = real.is_some_and(|r| r.is_live() && !r.was_hidden(self.core.now()));
        let silent = matches!(text(record, "status"), Some("disconnected" | "down"));
        let over = time(before, "unknown_since_at")
            .is_some_and(|since| self.core.now().since(since) + SLACK >= Span::from_s(waits));
        if there && silent && !(client == Some("unknown") && over) && !self.forgets(time(before, "placed_at")) {
            self.broken("invariant_a_silent_nodes_work_is_waited_for", format!("{before:?} on {record:?}"));
        }
    }

    /// No run makes an alloc lost while its node is up, has a valid lease, and is ready or about to report what runs on
    /// it. (A report that does not list an alloc makes it unknown if a row of its job cannot be read, and a run ends it later.)
    fn invariant_what_a_ready_node_runs_is_not_lost(&self, model: &Model, before: &Item, after: &Item) {
        let lost = text(after, "client") == Some("lost") && !is_final(before);
        let Some(node) = node_id(before).filter(|_| lost && !self.forgets(time(before, "placed_at"))) else { return };
        let Some(record) = model.get(&node_key(node.slot())).filter(|r| node_id(r) == Some(node)) else { return };
        let now = self.core.now();
        let real = text(record, "instance_id").and_then(|id| self.ec2()?.one(id));
        let there = real.is_some_and(|r| r.is_up() && !r.was_hidden(now));
        let heard = time(record, "lease_expires_at").is_some_and(|until| until > now + SLACK);
        let ready = text(record, "state") == Some("in_use") && text(record, "status") == Some("ready");
        // A node that heartbeats again soon reports what runs on it. The report may take as long as a boot, and an
        // unknown alloc waits for the report two minutes longer than usual. If the report came and could not be taken, it waits
        // until it can be.
        let syncing = text(record, "state") == Some("in_use") && text(record, "status") == Some("syncing");
        let timeout_s = self.policies(RUN).iter().map(|p| p.boot.timeout_s).min().unwrap_or(0);
        let stuck = time(record, "syncing_since_at").is_some_and(|at| now.since(at) + SLACK >= Span::from_s(timeout_s));
        let waits = Span::from_s(count(before, "lost_after_s")) + Span::from_s(120);
        let over = time(before, "unknown_since_at").is_some_and(|at| now.since(at) + SLACK >= waits);
        let is_kept = syncing && (record.contains_key("untaken") || (!stuck && !over));
        let is_absent = alloc_id(before).is_some_and(|id| lock(&self.seen).absent.contains(&id));
        if there && heard && (ready || is_kept) && !is_absent && !self.was_spoiled(Table::Allocs, before) {
            let what = format!("{before:?} on {record:?}");
            self.broken("invariant_what_a_ready_node_runs_is_not_lost", what);
        }
    }

    /// Called when a process has ended or will never start, with the cause that its node saw.
    pub fn ended(&self, node: NodeId, id: AllocId, cause: &EndCause) {
        lock(&self.seen).exits.insert((node, id), cause.clone());
    }

    /// The row of an alloc whose end its node saw has the cause that the node saw: complete only if its process exited
    /// with 0, failed only if its process ended otherwise, and not started only if its node could not start it.
    fn invariant_an_end_is_as_it_was(&self, id: AllocId, before: Option<&Item>, after: Option<&Item>) {
        let Some(after) = after.filter(|a| is_final(a) && before.is_none_or(|b| !is_final(b))) else { return };
        let Some(node) = node_id(after) else { return };
        let saw = lock(&self.seen).exits.get(&(node, id)).cloned();
        let cause = after.get("cause").and_then(|cause| cause.as_m().ok()).map(store::to_json);
        let is_as_seen = saw.as_ref().and_then(|saw| model::left_out::to_json(saw).ok()) == cause;
        let is_of_kind = |kind: &str| cause.as_ref().and_then(|cause| cause.get("kind")?.as_str()) == Some(kind);
        let right = match text(after, "client") {
            Some("complete" | "failed") => is_as_seen,
            _ if is_of_kind("not_started") => is_as_seen,
            // The control plane made it lost.
            client => client == Some("lost") && ["lost", "interrupted", "moved"].into_iter().any(is_of_kind),
        };
        if !right {
            self.broken("invariant_an_end_is_as_it_was", format!("its node saw {saw:?}: {after:?}"));
        }
    }

    /// When an alloc ends, its container is due for the sweep: at once, or after `sweep.failed_keep_s` if the alloc
    /// failed. The container of a complete alloc needs no row.
    fn invariant_an_end_calls_the_sweep(
        &self,
        model: &Model,
        id: AllocId,
        before: Option<&Item>,
        after: Option<&Item>,
    ) {
        let ended = after.filter(|a| is_final(a) && before.is_some_and(|b| !is_final(b)));
        let Some(after) = ended.filter(|a| !self.forgets(time(a, "placed_at"))) else { return };
        let Some(node) = node_id(after) else { return };
        let row = model.get(&handle_key(node, &id.to_string()));
        let record = model.get(&node_key(node.slot())).filter(|record| node_id(record) == Some(node));
        if let (None, Some(record), true) = (row, record, text(after, "client") != Some("complete")) {
            self.broken("invariant_an_end_calls_the_sweep", format!("no row for what {after:?} left on {record:?}"));
        }
        let row = row.filter(|r| matches!(text(r, "state"), Some("creating" | "live")));
        let row = row.filter(|r| !self.is_row_spoiled(Table::Handles, r));
        let failed = text(after, "client") == Some("failed");
        let keep_s = self.policies(RUN).iter().map(|p| p.sweep.failed_keep_s).max().filter(|_| failed).unwrap_or(0);
        let latest = self.core.now() + SLACK + Span::from_s(keep_s);
        if let Some(row) = row.filter(|r| time(r, "due_at").is_none_or(|at| at > latest)) {
            self.broken("invariant_an_end_calls_the_sweep", format!("{row:?} of {after:?}"));
        }
    }

    /// A run may stop one of several copies although the job still wants the member. Then one stays whose node stays longest; of
    /// several, the job's `reconcile` decides. The copy that stays is no longer awaiting.
    pub(super) fn invariant_the_right_copy_stays(&self, caller: &Caller, model: &Model, changes: &[Change]) {
        let rule = "invariant_the_right_copy_stays";
        let wants = |row: &Item| text(row, "desired") == Some("run") && !is_final(row);
        let changed = |id: AllocId| changes.iter().find(|c| c.after.as_deref().and_then(alloc_id) == Some(id));
        for change in changes.iter().filter(|c| c.table == Table::Allocs) {
            let (Kind::Run(_), Some(before), Some(after)) =
                (&caller.kind, change.before.as_deref(), change.after.as_deref())
            else {
                continue;
            };
            let Some(id) = alloc_id(after).filter(|_| wants(before) && !wants(after) && !is_final(after)) else {
                continue;
            };
            let Some(job) = model.get(&job_key(id.job_id)).filter(|j| text(j, "state") == Some("placed")) else {
                continue;
            };
            // Shortly before the deadline of a drain, a run stops what runs there.
            let ends = |r: &Row| time(r, "drain_by_at").is_some_and(|by| by < self.core.now() + DRAIN_ENDS);
            let drained = slot(after).and_then(|s| model.get(&node_key(s)));
            if done(job).contains(&id.member) || drained.is_some_and(ends) {
                continue;
            }
            let copies = set(job).into_iter().filter(|c| c.member == id.member);
            let was = |c: AllocId| match changed(c) {
                Some(change) => change.before.clone(),
                None => model.get(&alloc_key(c)).cloned(),
            };
            let there = |row: &Row| wants(row) && text(row, "client") != Some("unknown");
            let copies: Vec<(AllocId, Row)> =
                copies.filter_map(|c| Some((c, was(c)?))).filter(|(_, row)| there(row)).collect();
            let record =
                |row: &Row| slot(row).and_then(|s| model.get(&node_key(s))).filter(|r| node_id(r) == node_id(row));
            // The run may know of the end of a reservation before it drains the node.
            if copies.iter().any(|(_, row)| record(row).is_some_and(|r| r.contains_key("reservation"))) {
                continue;
            }
            // A drain without a deadline ends later than one that has a deadline.
            let goes = |row: &Row| {
                let record = record(row);
                let by = |r: &Item| number(r, "drain_by_at").into_iter().chain(number(r, "interrupt_at")).min();
                let drains = |r: &Item| text(r, "intent") == Some("drain");
                record.map_or(i64::MIN, |r| by(r).map_or(if drains(r) { i64::MIN + 1 } else { i64::MIN }, |by| -by))
            };
            let by_strategy = |(c, row): &&(AllocId, Row)| {
                let copy = i64::from(c.copy);
                match text(row, "reconcile") {
                    Some("keep_original") => (0, 0, copy),
                    Some("keep_replacement") => (0, 0, -copy),
                    // A running copy comes before a pending one. Of several running copies, the one that has run
                    // longest comes first.
                    _ => {
                        let pending = i64::from(text(row, "client") == Some("pending"));
                        (pending, number(row, "started_at").unwrap_or(i64::MAX), copy)
                    }
                }
            };
            let order = |copy: &&(AllocId, Row)| (goes(&copy.1), by_strategy(copy));
            let stays = copies.iter().min_by_key(order).map(|(c, _)| *c);
            if stays != copies.iter().min_by_key(by_strategy).map(|(c, _)| *c) {
                self.core.count("a copy stayed because the nodes of others go");
            }
            let kept = stays.and_then(|c| model.get(&alloc_key(c)));
            if stays == Some(id) || !kept.is_some_and(|row| is_wanted(row)) {
                let what = format!("{id} is stopped, {stays:?} of {copies:?} should stay: {kept:?}");
                self.broken(rule, what);
            }
            self.core.count("one of several copies stayed");
        }
    }

    /// A run decides which copy stays only while the nodes of all running copies are heard. Otherwise it could keep a
    /// copy that is lost with its node soon, and stop a copy that works.
    pub(super) fn invariant_a_reconnect_is_decided_among_the_heard(
        &self,
        caller: &Caller,
        model: &Model,
        changes: &[Change],
    ) {
        let Kind::Run(_) = &caller.kind else { return };
        let rows = |id: AllocId| {
            let changed = changes.iter().find(|c| c.after.as_deref().and_then(alloc_id) == Some(id));
            changed.map_or_else(|| model.get(&alloc_key(id)).cloned(), |c| c.before.clone())
        };
        let decided = |c: &&Change| {
            let (before, after) = (c.before.as_deref(), c.after.as_deref());
            before.is_some_and(is_back) && after.is_some_and(|r| !is_final(r) && !is_true(r, "awaiting"))
        };
        for id in changes.iter().filter(decided).filter_map(|c| c.after.as_deref().and_then(alloc_id)) {
            let job = model.get(&job_key(id.job_id)).map(|job| set(job)).unwrap_or_default();
            let copies = job.into_iter().filter(|copy| copy.member == id.member).filter_map(rows);
            let runs =
                copies.filter(|row| text(row, "desired") == Some("run") && text(row, "client") != Some("unknown"));
            for copy in runs {
                let record = slot(&copy).and_then(|s| model.get(&node_key(s))).filter(|r| node_id(r) == node_id(&copy));
                let is_heard = record.is_some_and(|r| {
                    matches!(text(r, "status"), Some("syncing" | "ready"))
                        && text(r, "state") == Some("in_use")
                        && time(r, "lease_expires_at").is_some_and(|until| until + SLACK >= self.core.now())
                });
                if !is_heard {
                    let what = format!("{} decides about {id} while {copy:?} runs on {record:?}", caller.name());
                    self.broken("invariant_a_reconnect_is_decided_among_the_heard", what);
                }
            }
        }
    }

    /// Checks what one transaction placed.
    pub(super) fn placed_all_at_once(&self, model: &Model, changes: &[Change]) {
        let new = changes.iter().filter(|c| c.table == Table::Allocs && c.before.is_none());
        let placed: Vec<&Item> = new.filter_map(|c| c.after.as_deref()).collect();
        if placed.is_empty() {
            return;
        }
        self.invariant_all_members_are_placed_at_once(model, changes, &placed);
        for alloc in &placed {
            self.invariant_work_is_placed_on_ready_nodes_with_room(model, alloc, changes);
        }
    }

    /// Each member of a job has a node of its own. The job is placed by the transaction that places its last member.
    fn invariant_all_members_are_placed_at_once(&self, model: &Model, changes: &[Change], placed: &[&Item]) {
        let rule = "invariant_all_members_are_placed_at_once";
        // The transaction may also end an alloc of another job, whose room the placed one gets.
        let is_placed = |c: &&Change| {
            let job = c.after.as_deref().and_then(jobs::job_id);
            c.table == Table::Jobs && placed.iter().any(|a| alloc_id(a).map(|id| id.job_id) == job)
        };
        for job in changes.iter().filter(is_placed) {
            let (Some(before), Some(after)) = (job.before.as_deref(), job.after.as_deref()) else { continue };
            let copies: BTreeMap<u32, u32> =
                placed.iter().filter_map(|a| alloc_id(a)).map(|a| (a.copy, a.member)).collect();
            let n = usize::try_from(number(after, "nodes").unwrap_or(1)).unwrap_or(1);
            let right = match text(before, "state") {
                Some(from @ ("queued" | "placing")) => {
                    // An alloc of a queued job may still be stopping.
                    let stopping = if from == "queued" { set(before) } else { BTreeSet::new() };
                    let all: Vec<AllocId> = set(after).difference(&stopping).copied().collect();
                    let on = all.iter().filter_map(|id| model.get(&alloc_key(*id)).and_then(|row| node_id(row)));
                    let (on, members): (BTreeSet<NodeId>, BTreeSet<u32>) =
                        (on.collect(), all.iter().map(|id| id.member).collect());
                    on.len() == all.len()
                        && members.len() == all.len()
                        && copies.len() == placed.len()
                        && set(before).iter().all(|a| !copies.contains_key(&a.copy))
                        && text(after, "state") == Some(if all.len() == n { "placed" } else { "placing" })
                }
                // A copy of an unknown alloc, for a job of one member that asks for replacements.
                Some("placed") => {
                    let original = |a: &&Item| text(a, "replaces").and_then(|id| id.parse().ok());
                    let unknown = |id: AllocId| {
                        let row = model.get(&alloc_key(id));
                        row.is_some_and(|r| text(r, "client") == Some("unknown") && is_true(r, "replace"))
                    };
                    placed.len() == 1 && n == 1 && placed.iter().all(|a| original(a).is_some_and(unknown))
                }
                _ => false,
            };
            let copies = |row| within(row, "tries", "copies").as_i64().unwrap_or(0);
            let counted = copies(after) == copies(before) + placed.len() as i64;
            if !right || !counted {
                self.broken(rule, format!("{before:?} → {after:?}: {placed:?}"));
            }
            self.core.count(if n > 1 { "a job of several members was placed" } else { "a job was placed" });
            if placed.iter().any(|a| a.contains_key("replaces")) {
                self.core.count("a copy was placed for an unknown alloc");
            }
            // A job of one member is placed again only after a loss or a failure. (Not checked for a job from before a
            // restore. Copy numbers that are in use are skipped then, and the row counts the skipped numbers for ever.)
            let replaces = set(before).len() + usize::from(placed.iter().any(|a| a.contains_key("replaces")));
            if n == 1
                && replaces == 0
                && !is_true(after, "replace")
                && !self.was_restored_since(time(after, "submitted_at"))
            {
                let [waits, moves] = ["pauses", "moves"].map(|of| within(before, "tries", of).as_i64().unwrap_or(0));
                let most = (count(before, "lost_count") + count(before, "failed_count")).max(waits);
                if within(after, "tries", "copies").as_i64().unwrap_or(0) > 1 + moves + most {
                    self.broken(rule, format!("placed more often than it was lost, moved or failed: {after:?}"));
                }
            }
        }
    }

    /// New work is placed only on a node that is in use, ready, neither held nor drained, and has room.
    fn invariant_work_is_placed_on_ready_nodes_with_room(&self, model: &Model, alloc: &Item, changes: &[Change]) {
        let rule = "invariant_work_is_placed_on_ready_nodes_with_room";
        let on = slot(alloc);
        let change =
            changes.iter().find(|c| c.table == Table::Nodes && c.after.as_deref().and_then(slot) == on && on.is_some());
        let Some((Some(before), Some(after))) = change.map(|c| (c.before.as_deref(), c.after.as_deref())) else {
            return self.broken(rule, format!("{alloc:?} was placed without its node"));
        };
        let ready = text(before, "state") == Some("in_use")
            && text(before, "status") == Some("ready")
            && matches!(text(before, "intent"), None | Some("run"));
        let known = number(alloc, "placed_seq") == number(after, "seq") && node_id(alloc) == node_id(after);
        if !ready || !known {
            self.broken(rule, format!("{alloc:?} on {before:?}"));
        }
        let rows: Vec<_> = set(after).iter().filter_map(|id| model.get(&store::alloc_key(*id)).cloned()).collect();
        let sum = |name: &str| rows.iter().map(|r| count(r, name)).sum::<i64>();
        // The system itself uses a share of the memory.
        let share = self.present_policy().map_or(1.0, |p| p.nodes.memory_usable);
        let there = |name: &str| match name {
            "memory_mib" => (count(after, name) as f64 * share).floor() as i64,
            "gpus" => usable_gpus(after),
            _ => count(after, name),
        };
        // GPUs may become sick after allocs were placed on them.
        let room = |name: &str| sum(name) <= there(name) || (name == "gpus" && count(alloc, name) == 0);
        let alone = rows.iter().any(|r| is_true(r, "exclusive"));
        if !["vcpus", "memory_mib", "scratch_gib", "gpus"].into_iter().all(room) || (alone && rows.len() > 1) {
            self.broken(rule, format!("too much on {after:?}: {rows:?}"));
        }
        let job = alloc_id(alloc).and_then(|id| model.get(&store::job_key(id.job_id)));
        let asks = |name: &str| job.and_then(|j| text(j, name));
        let is_other_type = asks("instance_type").is_some_and(|asked| text(after, "instance_type") != Some(asked));
        if is_other_type || !is_of_market(after, asks("market")) {
            self.broken(rule, format!("not what it asks for, {after:?}: {job:?}"));
        }
    }
}
