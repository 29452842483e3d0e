//! The invariants of interruptions: EC2 takes an instance away, and its node is drained in time.
//!
//! Guarantees: whoever learns of an interruption, from EC2's event or from the node's heartbeat, sets the drain.
//! Does not: check what follows from a drain (`shutdown` does).

use super::{Check, SLACK, node_id, text, time};
use crate::caller::{Caller, Kind};
use crate::core::lock;
use crate::database::Model;
use crate::scenario::RESERVATION_DRAIN_S;
use model::functions::POLL_AND_SCALE;
use model::{ControlKey, NodeId, Span, Time};
use serde_json::Value;
use store::{Row, Table, control_key, node_key};

/// How old a list of nodes may be.
const BEHIND: Span = Span::from_ms(crate::tables::STALE_MS);

/// How long before the end of a capacity block its nodes must have been drained: half of `launch.reservation_drain_s`
/// in worlds that have a block, because a run may fail or lose a race.
const DRAINED_SINCE: Span = Span::from_s(RESERVATION_DRAIN_S / 2);

/// Whether a node takes work until its end: it has no drain with a deadline of `by` or earlier.
fn is_undrained(row: &Row, by: Time) -> bool {
    let drains = text(row, "intent") == Some("drain") && time(row, "drain_by_at").is_some_and(|at| at <= by + SLACK);
    matches!(text(row, "state"), Some("assigned" | "in_use")) && !drains
}

impl Check {
    /// Called with the answer to a request of a node.
    pub fn answered(&self, model: &Model, caller: &Caller, answer: &Value) {
        let Kind::Node { node, what, body } = &caller.kind else { return };
        if answer.get("statusCode").and_then(Value::as_u64) != Some(200) {
            return;
        }
        match *what {
            "heartbeat" => {
                // A heartbeat that only asks writes nothing, so it is noted here.
                self.heard(Some(self.core.now()));
                self.invariant_a_reported_interruption_drains(model, caller, *node, body);
            }
            "handles" => {
                let said = answer.get("body").and_then(Value::as_str).unwrap_or_default();
                self.answered_handles(model, caller, *node, body, said);
            }
            _ => {}
        }
    }

    /// After a heartbeat that reports an interruption was answered, the node is drained until the reported time. (After
    /// a lost race, the next heartbeat does it.)
    fn invariant_a_reported_interruption_drains(&self, model: &Model, caller: &Caller, node: NodeId, body: &str) {
        let beat: Value = serde_json::from_str(body).unwrap_or_default();
        let Some(by) = beat.get("interrupt_at").and_then(Value::as_i64).map(Time::from_ms) else { return };
        if caller.has_lost() || caller.is_unsure() || self.forgets(Some(caller.began())) {
            return;
        }
        let row = model.get(&node_key(node.slot())).cloned().filter(|row| node_id(row) == Some(node));
        self.core.count("a node was drained for an interruption");
        if let Some(row) = row.filter(|row| is_undrained(row, by) && !self.operators_intend(row, caller)) {
            let what = format!("{} reported it for {by}: {row:?}", caller.name());
            self.broken("invariant_a_reported_interruption_drains", what);
        }
    }

    /// After EC2's warning about an instance started a run, the node of this instance is drained. (Not checked for a record
    /// that the run may have read from before its instance was known.)
    pub fn invariant_a_warning_drains(&self, model: &Model, caller: &Caller, input: &Value) {
        let Some(instance) = input.pointer("/detail/instance-id").and_then(Value::as_str) else { return };
        if caller.has_lost() || caller.is_unsure() || self.forgets(Some(caller.began())) {
            return;
        }
        let of_this = |row: &&Row| text(row, "instance_id") == Some(instance);
        let row = model.rows(Table::Nodes).find(of_this).cloned();
        let Some(row) = row.filter(|row| !self.was_unread_lately(Table::Nodes, row)) else { return };
        let known = time(&row, "first_ping_at").is_some_and(|at| at + BEHIND + SLACK < caller.began());
        let taken_at = self.ec2().and_then(|ec2| ec2.taken_at(instance));
        let Some(by) = taken_at.filter(|_| known) else { return };
        self.core.count("a node was drained for an interruption");
        if is_undrained(&row, by + SLACK) && !self.operators_intend(&row, caller) {
            let what = format!("{} was warned of {instance}: {row:?}", caller.name());
            self.broken("invariant_a_warning_drains", what);
        }
    }

    /// When EC2 terminates an instance because its capacity block ends, its node takes no work any more: a run of
    /// poll-and-scale has drained it before. (Not checked if no run that could know of the end succeeded, if the node
    /// is silent, unlisted or unreadable, which is the subject of other rules, or if an operator has just set another intent.)
    pub fn invariant_a_block_is_left_in_time(&self, model: &Model, instance: &str, until: Time) {
        let of_this = |row: &&Row| text(row, "instance_id") == Some(instance);
        let row = model.rows(Table::Nodes).find(of_this);
        let Some(row) = row.filter(|row| !self.was_unread_lately(Table::Nodes, row)) else { return };
        let run = model
            .get(&control_key(&ControlKey::Run(POLL_AND_SCALE.name.to_owned())))
            .and_then(|run| time(run, "last_success_at"));
        let said_at = node_id(row).and_then(|node| lock(&self.seen).intended_at.get(&node).copied());
        let began_at = time(row, "assigned_at").max(said_at);
        let known_since = began_at.map(|at| (at + BEHIND).max(until - DRAINED_SINCE));
        let is_listed = !row.contains_key("absent_since_at");
        let is_heard = is_listed && time(row, "lease_expires_at").is_none_or(|at| at > self.core.now());
        let is_known = is_heard && run.zip(known_since).is_some_and(|(run, since)| run > since + SLACK);
        if is_known && is_undrained(row, until) && !self.forgets(time(row, "assigned_at")) {
            let what = format!("the block of {instance} ends at {until}: {row:?}");
            self.broken("invariant_a_block_is_left_in_time", what);
        }
    }

    /// Whether an operator may have changed the intent of the node while the caller worked.
    fn operators_intend(&self, row: &Row, caller: &Caller) -> bool {
        let at = node_id(row).and_then(|node| lock(&self.seen).intended_at.get(&node).copied());
        at.is_some_and(|at| at + SLACK >= caller.began())
    }
}
