//! The invariants of handles: containers and volumes on the nodes.

use super::{Check, RUN, SLACK, alloc_id, count, is_final, node_id, set, text, time};
use crate::caller::{Caller, Kind};
use crate::core::lock;
use crate::database::Model;
use model::{AllocId, NodeId, Span};
use std::collections::BTreeSet;
use store::{Item, Row, Table, alloc_key, handle_key, node_key, to_json};

/// The longest time between the order to destroy a handle and its destruction.
const ANSWER: Span = Span::from_s(60);

/// After this many rounds of answers, each handle had its turn. (A node of this world orders its report anew each time,
/// so the order of the turns changes.)
const ROUNDS: usize = 12;

fn uses(alloc: &Item, cache: &str) -> bool {
    let caches = to_json(alloc);
    let caches = caches.pointer("/caches").and_then(|c| c.as_array());
    caches.is_some_and(|caches| caches.iter().any(|c| c == cache))
}

impl Check {
    pub(super) fn handle(&self, caller: &Caller, model: &Model, before: Option<&Item>, after: Option<&Item>) {
        self.invariant_only_what_is_over_is_marked(caller, model, before, after);
        self.invariant_no_report_judges_what_it_could_not_see(caller, before, after);
        self.invariant_every_handle_is_looked_at(after);
        self.invariant_what_is_over_is_not_put_off(model, before, after);
        self.invariant_rows_are_made_for_current_lives(model, before, after);
        self.invariant_rows_go_only_with_their_lives(model, before, after);
        if let Some(node) = before.or(after).and_then(node_id) {
            lock(&self.seen).handles_changed_at.insert(node, self.core.now());
        }
        let (from, to) = (before.and_then(|b| text(b, "state")), after.and_then(|a| text(a, "state")));
        let name = |row: &Item| Some((node_id(row)?, text(row, "handle")?.to_owned()));
        if let (Some("destroying"), true, Some(name)) = (from, from != to, before.and_then(name)) {
            let mut seen = lock(&self.seen);
            seen.passed_over.remove(&name);
            seen.unmarked_at.insert(name, self.core.now());
        }
        if from != to {
            self.core.count(match to {
                Some("creating") => "a handle became creating",
                Some("live") => "a handle became live",
                Some("destroying") => "a handle became destroying",
                Some("gone") => "a handle became gone",
                Some("unknown") => "a handle became unknown",
                _ => "a handle's row was deleted",
            });
        }
    }

    /// A handle is marked for destruction only if its alloc is final, or if an earlier report also listed the handle as
    /// unknown.
    fn invariant_only_what_is_over_is_marked(
        &self,
        caller: &Caller,
        model: &Model,
        before: Option<&Item>,
        after: Option<&Item>,
    ) {
        let marked = after.filter(|row| text(row, "state") == Some("destroying"));
        let Some(after) = marked.filter(|_| before.is_none_or(|b| text(b, "state") != Some("destroying"))) else {
            return;
        };
        let rule = "invariant_only_what_is_over_is_marked";
        // The end of an alloc makes the row of its handle, marked from the beginning.
        let before = before.unwrap_or(after);
        // (After a restore, an alloc's id may be given a second time, on another node.)
        let alloc = alloc_id(before).and_then(|id| model.get(&alloc_key(id)));
        // If handles and allocs were restored to different moments, the rows may not show which allocs are live. The
        // node itself does not destroy a handle that is in use.
        let unknown = matches!(text(before, "state"), Some("unknown" | "gone"));
        let forgotten = unknown && node_id(before).is_none_or(|node| self.forgets_life(node));
        let alloc = alloc.filter(|a| node_id(a) == node_id(before) && !forgotten);
        // A handle that did not appear by its deadline is marked. If it appears later, it becomes live again.
        let is_late = text(before, "state") == Some("creating")
            && time(before, "deadline_at").is_some_and(|by| by <= self.core.now() + SLACK);
        if let Some(alloc) = alloc
            && !is_final(alloc)
            && !is_late
        {
            self.broken(rule, format!("{before:?} belongs to {alloc:?}"));
        }
        // A volume is in use if a live alloc of its node uses it.
        if let (Some(node), Some(cache), false) =
            (node_id(before), text(before, "handle").and_then(|h| h.strip_prefix("cache:")), forgotten)
            && let Some(record) = model.get(&node_key(node.slot())).filter(|r| node_id(r) == Some(node))
        {
            let is_used = |id: &AllocId| model.get(&alloc_key(*id)).is_some_and(|r| !is_final(r) && uses(r, cache));
            if let Some(user) = set(record).iter().find(|id| is_used(id) && !is_late) {
                self.broken(rule, format!("{before:?} is used by {user}"));
            }
        }
        self.invariant_an_unused_cache_is_kept_for_a_while(model, before);
        // The handle of a failed alloc is kept for some time, so that people can look at it. (After a restore of the
        // handles, a handle that was destroyed before is not kept a second time.)
        if let Some(alloc) =
            alloc.filter(|a| !self.forgets(time(a, "placed_at")) && !self.was_spoiled(Table::Handles, before))
            && text(before, "state") != Some("gone")
            && text(alloc, "client") == Some("failed")
            && let Some(policy) = self.present_policy()
        {
            let keep = Span::from_s(policy.sweep.failed_keep_s);
            let ended = time(alloc, "finished_at").unwrap_or(self.core.now());
            if self.core.now().since(ended) + SLACK < keep {
                self.broken(rule, format!("{before:?} of a failed alloc: {alloc:?}"));
            }
        }
        if let (Kind::Node { body, .. }, Some("unknown")) = (&caller.kind, text(before, "state")) {
            let report: serde_json::Value = serde_json::from_str(body).unwrap_or_default();
            let no = report.get("report_no").and_then(serde_json::Value::as_i64).unwrap_or(0);
            if no == count(before, "unknown_report_no") {
                self.broken(rule, format!("unknown in one report only: {before:?}"));
            }
        }
    }

    /// A cache that is on its node is marked only when `sweep.cache_unused_s` have passed since the last alloc there
    /// that used it.
    fn invariant_an_unused_cache_is_kept_for_a_while(&self, model: &Model, before: &Item) {
        let Some(cache) = text(before, "handle").and_then(|h| h.strip_prefix("cache:")) else { return };
        let node = node_id(before).filter(|node| text(before, "state") == Some("live") && !self.forgets_life(*node));
        let (Some(node), Some(policy)) = (node, self.present_policy()) else { return };
        let kept = Span::from_s(policy.sweep.cache_unused_s);
        let lately = |r: &&Row| {
            let ended = time(r, "finished_at").filter(|_| node_id(r) == Some(node));
            ended.is_some_and(|at| self.core.now().since(at) + SLACK < kept) && uses(r, cache)
        };
        let looks = self.looks_at(model.len(Table::Allocs));
        if let Some(user) = model.rows(Table::Allocs).filter(|_| looks).find(lately) {
            let what = format!("{before:?}, which {:?} used lately", alloc_id(user));
            self.broken("invariant_an_unused_cache_is_kept_for_a_while", what);
        }
    }

    /// A report makes a handle gone, counts it as missing, or brings it back, only if the node knew the row's orders
    /// when it made the report. A handle that becomes gone is not on its node.
    fn invariant_no_report_judges_what_it_could_not_see(
        &self,
        caller: &Caller,
        before: Option<&Item>,
        after: Option<&Item>,
    ) {
        let (Kind::Node { node, body, what: "handles" }, Some(before), Some(after)) = (&caller.kind, before, after)
        else {
            return;
        };
        let (was_gone, is_gone) = (text(before, "state") == Some("gone"), text(after, "state") == Some("gone"));
        let report: serde_json::Value = serde_json::from_str(body).unwrap_or_default();
        let as_of = report.get("as_of").and_then(serde_json::Value::as_i64).unwrap_or(0);
        let missed = count(after, "missing_ms") > count(before, "missing_ms");
        if (was_gone != is_gone || missed) && as_of < count(before, "seq") {
            self.broken("invariant_no_report_judges_what_it_could_not_see", format!("as of {as_of}: {before:?}"));
        }
        // A handle that is being created does not count as missing. When its time is over, it is first marked for
        // destruction.
        if is_gone && text(before, "state") == Some("creating") {
            self.broken("invariant_no_report_judges_what_it_could_not_see", format!("it is being made: {before:?}"));
        }
        if !is_gone || was_gone || self.forgets_life(*node) {
            return;
        }
        let Some(ground) = self.ground(*node) else { return };
        let handle = text(before, "handle").unwrap_or_default();
        let ground = lock(&ground);
        if ground.handles.contains(handle) {
            self.broken(
                "invariant_no_report_judges_what_it_could_not_see",
                format!("{} let go of {before:?}, which is there", caller.name()),
            );
        }
    }

    /// The next look at the handle of an ended alloc is not postponed, except for `sweep.failed_keep_s` if the alloc
    /// failed.
    fn invariant_what_is_over_is_not_put_off(&self, model: &Model, before: Option<&Item>, after: Option<&Item>) {
        let (Some(before), Some(after)) = (before, after) else { return };
        let there = matches!(text(after, "state"), Some("creating" | "live"));
        let alloc = alloc_id(after).and_then(|id| model.get(&alloc_key(id))).filter(|a| node_id(a) == node_id(after));
        let Some(alloc) = alloc.filter(|a| there && is_final(a) && !self.forgets(time(a, "placed_at"))) else { return };
        if self.was_spoiled(Table::Handles, after) {
            return;
        }
        let failed = text(alloc, "client") == Some("failed");
        let keep_s = self.present_policy().map_or(0, |p| p.sweep.failed_keep_s);
        let most = self.core.now() + SLACK + Span::from_s(if failed { keep_s } else { 0 });
        if time(after, "due_at") > time(before, "due_at") && time(after, "due_at").is_none_or(|at| at > most) {
            self.broken("invariant_what_is_over_is_not_put_off", format!("{before:?} → {after:?} of {alloc:?}"));
        }
    }

    /// Every row is looked at again within a day.
    fn invariant_every_handle_is_looked_at(&self, after: Option<&Item>) {
        let Some(after) = after else { return };
        let most = self.core.now() + Span::from_s(86_400 + 10);
        if text(after, "due") != Some("due") || time(after, "due_at").is_none_or(|at| at > most) {
            self.broken("invariant_every_handle_is_looked_at", format!("{after:?}"));
        }
    }

    /// A row is made only while the record is of the same life of the slot.
    fn invariant_rows_are_made_for_current_lives(&self, model: &Model, before: Option<&Item>, after: Option<&Item>) {
        let (None, Some(after)) = (before, after) else { return };
        let Some(node) = node_id(after) else { return };
        let current = model.get(&node_key(node.slot())).and_then(|r| node_id(r));
        if current != Some(node) {
            self.broken("invariant_rows_are_made_for_current_lives", format!("{after:?} and {current:?}"));
        }
    }

    /// A row is deleted only if the record shows that its node's life is the current or last one of the slot, or an
    /// earlier one. A restored table may have lost the record of a node that still runs.
    fn invariant_rows_go_only_with_their_lives(&self, model: &Model, before: Option<&Item>, after: Option<&Item>) {
        let (Some(before), None) = (before, after) else { return };
        let Some(node) = node_id(before) else { return };
        // An expired row: the record of its node did not come back for a day.
        if count(before, "expires_at").saturating_mul(1000) <= self.core.now().as_ms()
            && count(before, "expires_at") > 0
        {
            return;
        }
        let last = |r: &Item| node_id(r).or_else(|| text(r, "last_node_id").and_then(|n| n.parse().ok()));
        let known = model.get(&node_key(node.slot())).and_then(|r| last(r));
        if known.is_none_or(|known: NodeId| known.ulid() < node.ulid()) {
            self.broken("invariant_rows_go_only_with_their_lives", format!("{before:?}, and of its slot {known:?}"));
        }
    }

    /// A node destroys only handles with its own label, or with the label of a node whose life is over. Another program
    /// made a handle without a label.
    fn invariant_nothing_foreign_is_destroyed(&self, model: &Model, node: NodeId, handle: &str, label: Option<&str>) {
        let is_over = |other: NodeId| {
            let record = model.get(&node_key(other.slot())).cloned();
            let last = |r: &Item| text(r, "last_node_id").and_then(|n| n.parse::<NodeId>().ok());
            record.is_some_and(|r| match node_id(&r) {
                Some(life) => life.ulid() > other.ulid(),
                None => last(&r).is_some_and(|last| last.ulid() >= other.ulid()),
            })
        };
        let owner = label.and_then(|label| label.parse::<NodeId>().ok());
        if !owner.is_some_and(|owner| owner == node || is_over(owner) || self.forgets_life(owner)) {
            self.broken("invariant_nothing_foreign_is_destroyed", format!("{handle} with {label:?} on {node}"));
        }
    }

    /// Called when a node destroys a handle.
    pub fn destroying(&self, model: &Model, node: NodeId, handle: &str, label: Option<&str>) {
        self.core.count("a handle was destroyed");
        self.invariant_nothing_foreign_is_destroyed(model, node, handle, label);
        let row = model.get(&handle_key(node, handle)).cloned();
        let alloc = handle.parse().ok().and_then(|id| model.get(&alloc_key(id)).cloned());
        let marked = match row.as_deref() {
            Some(row) => matches!(text(row, "state"), Some("destroying" | "gone")),
            // The row goes with the node's record, or when the handle is destroyed. The handle of a complete alloc
            // needs no row.
            None => {
                let is_complete = |a: &Row| text(a, "client") == Some("complete") && node_id(a) == Some(node);
                alloc.as_ref().is_some_and(is_complete)
                    || model.get(&node_key(node.slot())).cloned().is_none_or(|r| node_id(&r) != Some(node))
            }
        };
        let live = alloc.as_deref().is_some_and(|a| !is_final(a) && node_id(a) == Some(node));
        // The order may be a little older than the row: meanwhile, an alloc may use the cache again. (A container is
        // never used again.)
        let unmarked = lock(&self.seen).unmarked_at.get(&(node, handle.to_owned())).copied();
        let lately = handle.starts_with("cache:") && unmarked.is_some_and(|at| self.core.now().since(at) < ANSWER);
        if ((!marked && !lately) || live) && !self.forgets_life(node) {
            self.broken("invariant_only_what_is_over_is_marked", format!("{handle} on {node}: {row:?} {alloc:?}"));
        }
        self.invariant_what_runs_keeps_its_handles(node, handle);
    }

    /// A handle that a running alloc uses is not destroyed: its container, and the caches that it names.
    fn invariant_what_runs_keeps_its_handles(&self, node: NodeId, handle: &str) {
        let Some(ground) = self.ground(node) else { return };
        let ground = lock(&ground);
        let uses = |id: AllocId| ground.running.contains(&id);
        let used =
            handle.strip_prefix("cache:").map_or_else(|| handle.parse().is_ok_and(uses), |c| ground.caches.contains(c));
        if used {
            let what = format!("{handle} on {node}, where {:?} run", ground.running);
            self.broken("invariant_what_runs_keeps_its_handles", what);
        }
    }

    /// Called with the answer to a report of handles.
    pub fn answered_handles(&self, model: &Model, caller: &Caller, node: NodeId, report: &str, answer: &str) {
        let parse = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap_or_default();
        let (report, answer) = (parse(report), parse(answer));
        let names = |value: &serde_json::Value, place: &str| -> BTreeSet<String> {
            let all = value.get(place).and_then(|v| v.as_array()).cloned().unwrap_or_default();
            let name =
                |one: &serde_json::Value| one.as_str().or_else(|| one.get("handle")?.as_str()).map(ToOwned::to_owned);
            all.iter().filter_map(name).collect()
        };
        let (listed, destroy) = (names(&report, "handles"), names(&answer, "destroy"));
        for handle in &destroy {
            self.invariant_what_is_used_is_not_named_for_destruction(model, caller, node, handle);
            self.invariant_no_unreadable_handle_is_destroyed(caller, node, handle);
        }
        let more = answer.get("more").and_then(serde_json::Value::as_bool) == Some(true);
        self.invariant_not_too_many_are_destroyed_at_once(caller, &destroy, more);
        self.invariant_each_handle_gets_its_turn(model, (caller, node), &listed, &destroy, more);
    }

    /// An answer names no handle for destruction that a live alloc of the node uses: its own container, or a cache that the
    /// alloc names. (Checked for allocs that were placed before the function read anything.)
    fn invariant_what_is_used_is_not_named_for_destruction(
        &self,
        model: &Model,
        caller: &Caller,
        node: NodeId,
        handle: &str,
    ) {
        if self.forgets_life(node) {
            return;
        }
        let ids: Vec<AllocId> = {
            let seen = lock(&self.seen);
            seen.live.iter().filter(|(_, on)| **on == node).map(|(id, _)| *id).collect()
        };
        let cache = handle.strip_prefix("cache:");
        for id in ids {
            let Some(alloc) = model.get(&alloc_key(id)).cloned().filter(|a| !is_final(a)) else { continue };
            let known = time(&alloc, "placed_at").is_some_and(|at| at + SLACK < caller.began());
            let used = cache.map_or_else(|| handle == id.to_string(), |cache| uses(&alloc, cache));
            // A handle that did not appear by its deadline is marked, and its alloc may go on: nobody knows better
            // until the node lists the handle.
            if used && known {
                let row = model.get(&handle_key(node, handle)).cloned();
                let what = format!("{} names {handle} on {node}, which {id} uses: {row:?}", caller.name());
                self.broken("invariant_what_is_used_is_not_named_for_destruction", what);
            }
        }
    }

    /// An answer names at most `sweep.max_in_flight` handles to destroy.
    fn invariant_not_too_many_are_destroyed_at_once(&self, caller: &Caller, destroy: &BTreeSet<String>, more: bool) {
        let most = self.policies(RUN).iter().map(|p| p.sweep.max_in_flight as usize).max().unwrap_or(0);
        if more {
            self.core.count("a node had more to destroy than it may at once");
        }
        if destroy.len() > most {
            let what = format!("{} names {} of {most}: {destroy:?}", caller.name(), destroy.len());
            self.broken("invariant_not_too_many_are_destroyed_at_once", what);
        }
    }

    /// A handle that waits to be destroyed is named within [`ROUNDS`] rounds of answers, although others of its node cannot be
    /// destroyed. (Not checked: caches, which wait for the containers of their allocs.)
    fn invariant_each_handle_gets_its_turn(
        &self,
        model: &Model,
        (caller, node): (&Caller, NodeId),
        listed: &BTreeSet<String>,
        destroy: &BTreeSet<String>,
        more: bool,
    ) {
        let most = self.policies(RUN).iter().map(|p| p.sweep.max_in_flight as usize).min().unwrap_or(1).max(1);
        let is_marked = |handle: &&String| {
            let row = model.get(&handle_key(node, handle)).cloned();
            row.is_some_and(|row| text(&row, "state") == Some("destroying"))
        };
        let waiting: Vec<&String> = listed.iter().filter(|h| !h.starts_with("cache:")).filter(is_marked).collect();
        let rounds = ROUNDS * (waiting.len().div_ceil(most) + 1);
        let mut seen = lock(&self.seen);
        let mut late = None;
        for handle in waiting {
            let key = (node, handle.clone());
            if destroy.contains(handle) || !more {
                seen.passed_over.remove(&key);
                continue;
            }
            let passed = seen.passed_over.entry(key).or_default();
            *passed += 1;
            late = late.or((*passed > rounds).then(|| (handle.clone(), *passed)));
        }
        drop(seen);
        if let Some((handle, passed)) = late {
            let what = format!("{} passes over {handle} for the {passed}th time: {destroy:?}", caller.name());
            self.broken("invariant_each_handle_gets_its_turn", what);
        }
    }
}
