//! The invariants of launches and terminations.

use super::{Check, RUN, SLACK, alloc_id, count, is_final, node_id, number, set, text, time};
use crate::caller::{Caller, Kind, covers, shortage_key};
use crate::core::lock;
use crate::database::Model;
use crate::ec2::Real;
use model::cloud::{BATCH_TAG, CLUSTER_TAG, NODE_TAG};
use model::wire::LaunchFile;
use model::{AllocId, Batch, CapacityReservation, InstanceState, LaunchCall, LaunchRequest, NodeId, Span, Time};
use std::collections::BTreeMap;
use store::{Key, Table, alloc_key, control_key, node_key};

/// How old a scan may be.
const BEHIND: Span = Span::from_ms(crate::tables::STALE_MS);

/// The shortest time after a shortage in which only a few launches may try its offering.
const AGAIN: Span = Span::from_s(900);

/// How long before its observation a run may have begun.
const CLOCKS: Span = Span::from_s(1);

/// The longest delay of a slow write.
const COMMITS: Span = Span::from_s(25);

/// Whether a run could have read something that was written at `at`.
fn could_know(caller: &Caller, at: Time) -> bool {
    at + SLACK + COMMITS + BEHIND < caller.began()
}

/// When the limit of this row began: for a refusal, its wait before its end.
fn written_at(row: &store::Row) -> Option<Time> {
    let refused_at = || Some(time(row, "until_at")? - Span::from_s(number(row, "wait_s")?));
    if text(row, "key") == Some("boot_failures") { time(row, "since_at") } else { refused_at() }
}

/// The nodes that a launch is for, by its tags, in the order of their instances.
pub fn nodes_of(request: &LaunchRequest) -> Vec<NodeId> {
    let node = request.tags.get(NODE_TAG).and_then(|t| t.parse().ok());
    let batch = request.tags.get(BATCH_TAG).and_then(|t| t.parse::<Batch>().ok());
    node.into_iter().chain(batch.iter().flat_map(Batch::nodes)).collect()
}

impl Check {
    /// Called when a launch with a new token reached EC2.
    pub fn launching(&self, model: &Model, caller: &Caller, request: &LaunchRequest, token: &str) {
        self.invariant_a_launch_is_written_ahead(model, caller, request, token);
        self.invariant_no_launch_while_a_refusal_holds(model, caller, request);
        self.invariant_a_launch_names_its_nodes(request);
    }

    /// EC2 refuses a whole fleet that names two subnets of one zone.
    pub fn invariant_a_call_names_one_subnet_of_each_zone(
        &self,
        request: &LaunchRequest,
        zone_of: impl Fn(Option<&str>) -> &'static str,
    ) {
        let mut subnets: BTreeMap<&str, &Option<String>> = BTreeMap::new();
        for way in &request.ways {
            let subnet = subnets.entry(zone_of(way.subnet_id.as_deref())).or_insert(&way.subnet_id);
            if **subnet != way.subnet_id {
                self.broken("invariant_a_call_names_one_subnet_of_each_zone", format!("{:?}", request.ways));
            }
        }
    }

    /// A call for instances in a capacity reservation does not ask for more instances than the reservation has in
    /// total.
    pub fn invariant_no_call_asks_for_more_than_is_reserved(&self, request: &LaunchRequest, of: &CapacityReservation) {
        if request.count > of.total as usize {
            let what = format!("{} instances of {of:?}", request.count);
            self.broken("invariant_no_call_asks_for_more_than_is_reserved", what);
        }
    }

    /// A run makes its launch calls at the policy's pace: not more than `launch.calls_per_second` allows since it began. (The
    /// calls themselves may come closer together, if the write before one of them was slow.)
    pub fn invariant_launch_calls_keep_their_pace(&self, caller: &Caller) {
        let fastest = self.policies(RUN).iter().map(|p| p.launch.calls_per_second).fold(0.0, f64::max);
        let calls = caller.takes("launch calls");
        let passed = self.core.now().since(caller.began()) + CLOCKS;
        let most = 1.0 + passed.as_s() * fastest;
        if calls as f64 > most {
            let what = format!("{} makes call {calls} in {passed}, at {fastest} a second", caller.name());
            self.broken("invariant_launch_calls_keep_their_pace", what);
        }
    }

    /// No launch is made while failed starts, or a refusal of a part of it, forbid it, if the run could know. (An earlier
    /// call may still be repeated, to learn its outcome.)
    fn invariant_no_launch_while_a_refusal_holds(&self, model: &Model, caller: &Caller, request: &LaunchRequest) {
        let nodes = nodes_of(request);
        let record = nodes.first().and_then(|n| model.get(&node_key(n.slot())));
        let now = self.core.now();
        if record.and_then(|r| time(r, "assigned_at")).is_none_or(|at| at + SLACK < caller.began()) {
            return;
        }
        for offering in &request.ways {
            let shortage = shortage_key(offering);
            // After a quota, half of a batch is tried again: that adds no node. The members of a job are one attempt.
            let attempts = if request.least > 1 { 1 } else { nodes.len() };
            for _ in nodes.iter().take(attempts).filter(|node| caller.takes(&format!("{shortage} for {node}")) == 1) {
                self.invariant_what_was_short_is_tried_by_few(caller, model, &shortage);
            }
        }
        let policy = model.rows(Table::Control).find(|r| text(r, "key") == Some("policy"));
        let version = policy.and_then(|p| number(p, "version"));
        for row in model.rows(Table::Control).filter(|row| !self.is_row_spoiled(Table::Control, row)) {
            let Some(key) = text(row, "key") else { continue };
            let known = written_at(row).is_some_and(|at| could_know(caller, at));
            let holds = time(row, "until_at").is_some_and(|until| now + SLACK < until);
            let of_this_policy = number(row, "policy_version").is_none_or(|of| Some(of) == version);
            if known
                && holds
                && of_this_policy
                && (key == "boot_failures"
                    || (key.ends_with("#fleet") && request.call == LaunchCall::Fleet)
                    || request.ways.iter().any(|way| covers(key, way)))
            {
                self.broken(
                    "invariant_no_launch_while_a_refusal_holds",
                    format!("{} launches {:?}, and {row:?}", caller.name(), request.ways),
                );
            }
        }
    }

    /// At the end of a run, every refusal and throttling that EC2 gave to the run is in the control table, whatever
    /// else the run wrote there. (Not checked in worlds where writes fail. There, only the next refusal may be stored.)
    pub fn invariant_a_refusal_is_remembered(&self, model: &Model, caller: &Caller) {
        if super::WRITES_FAIL.iter().any(|fault| self.core.scenario.chance(*fault) > 0.0) {
            return;
        }
        for (key, written_at) in caller.refusals() {
            let Ok(control) = key.parse() else { continue };
            if self.is_spoiled(&control_key(&control)) {
                continue;
            }
            let row = model.get(&control_key(&control)).cloned();
            let of = |name| row.as_deref().and_then(|row| time(row, name));
            // The limit by a quota may have ended by now, because something terminated. Then the row says when it ended.
            let lasts = of("until_at").is_some_and(|until| until > written_at + SLACK);
            let noted = !key.starts_with("limit#short#") && of("until_at").is_some_and(|at| at + SLACK >= written_at);
            if !lasts && !noted {
                let what = format!("{} was told at {written_at} of {key}: {row:?}", caller.name());
                self.broken("invariant_a_refusal_is_remembered", what);
            }
        }
    }

    /// At the end of a run, no record waits for an instance that EC2 said it did not launch. (Not checked in worlds where
    /// writes fail, not for a run that took its own write for another's, because the SDK had sent it twice, and not for a record
    /// that somebody else has changed meanwhile.)
    pub fn invariant_a_refused_launch_occupies_no_slot(&self, model: &Model, caller: &Caller) {
        if caller.is_unsure() || super::WRITES_FAIL.iter().any(|fault| self.core.scenario.chance(*fault) > 0.0) {
            return;
        }
        for node in caller.without_instance() {
            let Some(row) = model.get(&node_key(node.slot())).cloned().filter(|row| node_id(row) == Some(node)) else {
                continue;
            };
            let touched = row.contains_key("intent") || row.contains_key("absent_since_at");
            if text(&row, "state") == Some("assigned") && !row.contains_key("instance_id") && !touched {
                let what = format!("{} was told that there is none: {row:?}", caller.name());
                self.broken("invariant_a_refused_launch_occupies_no_slot", what);
            }
        }
    }

    /// Soon after a shortage, a run tries one launch of that offering, and twice as many after each success.
    fn invariant_what_was_short_is_tried_by_few(&self, caller: &Caller, model: &Model, shortage: &str) {
        let is_this = |r: &&store::Row| text(r, "key") == Some(shortage) && !self.is_row_spoiled(Table::Control, r);
        let Some(row) = model.rows(Table::Control).find(is_this) else { return };
        let now = self.core.now();
        let recent = time(row, "until_at").is_some_and(|until| until <= now && now - AGAIN + RUN < until);
        // The check applies only if the run could have read the shortage.
        let success = time(row, "until_at").filter(|_| row.contains_key("count"));
        let refused = written_at(row).filter(|_| success.is_none());
        let known = refused.into_iter().chain(success).all(|at| could_know(caller, at));
        let n = caller.takes(shortage);
        let most = count(row, "count").max(1);
        if recent && known && row.contains_key("wait_s") && n as i64 > most {
            let what = format!("{} tries the {n}th of {most}: {row:?}", caller.name());
            self.broken("invariant_what_was_short_is_tried_by_few", what);
        }
    }

    /// The tags of a launch name its cluster and its nodes, as many as it asks for.
    fn invariant_a_launch_names_its_nodes(&self, request: &LaunchRequest) {
        let nodes = nodes_of(request);
        if nodes.is_empty() || nodes.len() != request.count || !request.tags.contains_key(CLUSTER_TAG) {
            self.broken("invariant_a_launch_names_its_nodes", format!("{:?}", request.tags));
        }
    }

    /// A launch that is repeated with the same token is the same request as before. EC2 refuses a different one.
    pub fn invariant_a_launch_is_repeated_as_it_was(&self, token: &str, earlier: &LaunchRequest, now: &LaunchRequest) {
        if earlier != now {
            self.broken("invariant_a_launch_is_repeated_as_it_was", format!("{token}: {now:?}"));
        }
    }

    /// The user data of an instance says which node it is, or to which batch it belongs. Its tags say the same.
    pub fn invariant_an_instance_is_told_who_it_is(&self, real: &Real) -> Option<LaunchFile> {
        let file = model::launch::node_file_in(&real.user_data);
        let told = file.as_ref().map(|file| match &file.batch {
            Some(batch) => batch.nodes().collect(),
            None => file.node_id.into_iter().collect::<Vec<_>>(),
        });
        if told.as_ref() != Some(&real.instance.nodes()) || !told.is_some_and(|of| of.iter().any(|n| real.is_of(*n))) {
            self.broken("invariant_an_instance_is_told_who_it_is", format!("{real:?}"));
        }
        file
    }

    /// The record holds everything that defines a launch before EC2 is called, and the call reaches EC2 before the
    /// launch's claim ends.
    fn invariant_a_launch_is_written_ahead(
        &self,
        model: &Model,
        caller: &Caller,
        request: &LaunchRequest,
        token: &str,
    ) {
        for node in nodes_of(request).into_iter().filter(|node| !self.forgets_life(*node)) {
            self.is_written_ahead(model, caller, (request, token), node);
        }
    }

    fn is_written_ahead(&self, model: &Model, caller: &Caller, (request, token): (&LaunchRequest, &str), node: NodeId) {
        let rule = "invariant_a_launch_is_written_ahead";
        if self.finds_record_spoiled(caller, node) {
            return self.broken(rule, format!("{}: the record of {node} cannot be read", caller.name()));
        }
        // A record that became unreadable while the call was under way no longer shows what was written ahead.
        if self.is_spoiled(&node_key(node.slot())) {
            return;
        }
        let Some(row) = model.get(&node_key(node.slot())).cloned() else {
            return self.broken(rule, format!("{}: {node} has no record", caller.name()));
        };
        let current = node_id(&row) == Some(node);
        let of = request.tags.get(BATCH_TAG).map_or_else(|| node.to_string(), |_| node.ulid().to_string());
        let attempt = format!("{of}-{}", count(&row, "attempt"));
        let batch = text(&row, "batch") == request.tags.get(BATCH_TAG).map(String::as_str);
        let digest = text(&row, "request_digest") == Some(request.digest().as_str());
        let claimed = time(&row, "launch_claim_until_at").is_some_and(|until| until + SLACK >= self.core.now());
        if !current || attempt != token || !digest || !claimed || !batch {
            self.broken(
                rule,
                format!(
                    "{}: token {token}, its life: {current}, its digest: {digest}, claimed: {claimed}, its batch: {batch}: {row:?}",
                    caller.name()
                ),
            );
        }
    }

    /// Called when EC2 makes an instance for one of these nodes.
    pub fn launched<'a>(&self, nodes: &[NodeId], all: impl Iterator<Item = &'a Real>) {
        self.invariant_at_most_one_live_instance_a_node(nodes, all);
        self.count_launch();
    }

    /// A node has at most one live instance, and a batch at most as many as it has nodes.
    fn invariant_at_most_one_live_instance_a_node<'a>(&self, nodes: &[NodeId], all: impl Iterator<Item = &'a Real>) {
        let is_of_launch = |real: &&Real| real.is_live() && nodes.iter().any(|node| real.was_launched_for(*node));
        let others: Vec<&str> = all.filter(is_of_launch).map(|real| real.instance.instance_id.as_str()).collect();
        if others.len() >= nodes.len() {
            let what = format!("{} nodes have {others:?} already", nodes.len());
            self.broken("invariant_at_most_one_live_instance_a_node", what);
        }
    }

    /// Called when a function terminates an instance.
    pub fn terminating(&self, model: &Model, caller: &Caller, real: &Real) {
        self.invariant_no_working_node_is_terminated(model, caller, real);
        self.invariant_only_the_shut_down_and_orphans_are_terminated(model, caller, real);
        self.invariant_no_unreadable_node_is_terminated(model, caller, real);
    }

    /// No instance is terminated while its record has live allocs, or while a live alloc with `desired` = run is on it.
    /// A drain's deadline is the only exception.
    fn invariant_no_working_node_is_terminated(&self, model: &Model, caller: &Caller, real: &Real) {
        // No record has ever named this instance, so nothing was placed on it.
        let Some(node) = real.node else { return };
        let record = model.get(&node_key(node.slot())).filter(|r| node_id(r) == Some(node)).cloned();
        let bound = record.as_deref().and_then(|r| text(r, "instance_id")) == Some(real.instance.instance_id.as_str());
        if !bound {
            // An orphan: nothing was ever placed on it.
            return;
        }
        let deadline =
            record.as_deref().and_then(|r| time(r, "drain_by_at")).is_some_and(|by| self.core.now() + SLACK >= by);
        let its_own = |(id, of): (&AllocId, &NodeId)| (*of == node).then(|| alloc_key(*id));
        let its_own: Vec<Key> = lock(&self.seen).live.iter().filter_map(its_own).collect();
        for alloc in its_own.iter().filter_map(|key| model.get(key)) {
            if !is_final(alloc) && text(alloc, "desired") == Some("run") && !deadline {
                let what = format!("{} terminates {} with {:?}", caller.name(), real.owner(), alloc_id(alloc));
                self.broken("invariant_no_working_node_is_terminated", what);
            }
        }
        if let Some(record) = record.as_deref()
            && !set(record).is_empty()
            && !deadline
        {
            self.broken("invariant_no_working_node_is_terminated", format!("{record:?}"));
        }
    }

    /// A terminated instance was shut down in its record, or it is an orphan that is too old for a record to claim
    /// it later.
    fn invariant_only_the_shut_down_and_orphans_are_terminated(&self, model: &Model, caller: &Caller, real: &Real) {
        let rule = "invariant_only_the_shut_down_and_orphans_are_terminated";
        let id = real.instance.instance_id.as_str();
        let record_of = |node: &NodeId| model.get(&node_key(node.slot())).filter(|r| node_id(r) == Some(*node));
        let records: Vec<_> = real.owners().iter().filter_map(record_of).collect();
        // Of a batch, the record that names it, or else one that still waits for an instance.
        let own = records.iter().find(|r| text(r, "instance_id") == Some(id));
        let waiting = || records.iter().find(|r| !r.contains_key("instance_id"));
        let record = own.or_else(waiting).or(records.first()).map(|row| &***row);
        let right = match record {
            Some(r) if text(r, "instance_id") == Some(id) => text(r, "state") == Some("shutting_down"),
            Some(r) if r.contains_key("instance_id") => self.is_old(real),
            // The record still waits for this instance.
            Some(_) => false,
            // The record is cleaned or of another life. Then the instance is an orphan, or this run shut it down and
            // another run cleaned the record before the call.
            None => self.is_old(real) || caller.has_shut_down(id),
        };
        // This also applies after a restore, because a record may still bind a young instance.
        let young = record.is_none() && !self.is_old(real) && !caller.has_shut_down(id);
        if young || (!right && !real.owners().iter().any(|node| self.forgets_life(*node))) {
            self.broken(rule, format!("{} terminates {real:?}: {record:?}", caller.name()));
        }
        self.invariant_no_orphan_is_judged_by_an_old_list(caller);
        if record.is_none() && real.instance.state == InstanceState::Running {
            self.core.count("an orphan was terminated");
            self.orphan(model, caller, real);
        }
    }

    /// clean-stale-records terminates nothing on the basis of a list that is older than `poll.stale_after_s`.
    fn invariant_no_orphan_is_judged_by_an_old_list(&self, caller: &Caller) {
        if caller.kind == Kind::Run(clean_stale_records::FUNCTION) && self.is_too_late(caller) {
            let what = format!("{} began at {}", caller.name(), caller.began());
            self.broken("invariant_no_orphan_is_judged_by_an_old_list", what);
        }
    }

    fn is_old(&self, real: &Real) -> bool {
        let after = self.present_policy().map_or(0, |p| p.stale.orphan_after_s);
        let age = self.core.now().since(real.instance.launched_at);
        age + SLACK >= Span::from_s(after)
    }
}
