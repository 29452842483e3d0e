//! Reads the attributes of a row, without the product's types.

use aws_sdk_dynamodb::types::AttributeValue;
use model::{AllocId, Market, NodeId, Slot, Time};
use serde_json::Value;
use std::collections::BTreeSet;
use store::Item;

/// An attribute of a row, or a part of its needs, its work or its failure policy.
pub(super) fn said<'a>(row: &'a Item, name: &str) -> Option<&'a AttributeValue> {
    let part = |map: &&str| match row.get(*map) {
        Some(AttributeValue::M(map)) => map.get(name),
        _ => None,
    };
    row.get(name).or_else(|| ["needs", "work", "failure_policy"].iter().find_map(part))
}

/// By the contract, these numbers count if the row of a job or an alloc does not have them. All other numbers are 0
/// then.
const DEFAULTS: &[(&str, i64)] =
    &[("vcpus", 1), ("nodes", 1), ("kill_timeout_s", 30), ("lost_after_s", 600), ("retry_lost", 3)];

pub(super) fn text<'a>(row: &'a Item, name: &str) -> Option<&'a str> {
    match said(row, name) {
        Some(AttributeValue::S(s)) => Some(s),
        _ => None,
    }
}

/// Whether a node may run work that asks for this market. One in a capacity reservation may run any.
pub(super) fn is_of_market(row: &Item, asked: Option<&str>) -> bool {
    let market = text(row, "market");
    asked.is_none_or(|asked| market == Some(asked)) || market == Some(Market::Reserved.as_str())
}

pub(super) fn number(row: &Item, name: &str) -> Option<i64> {
    match said(row, name) {
        Some(AttributeValue::N(n)) => n.parse().ok(),
        _ => None,
    }
}

pub(super) fn count(row: &Item, name: &str) -> i64 {
    let default = DEFAULTS.iter().find(|(of, _)| *of == name).map_or(0, |(_, default)| *default);
    number(row, name).unwrap_or(default)
}

/// A part of an attribute that is a map.
pub(super) fn within(row: &Item, map: &str, name: &str) -> Value {
    match row.get(map) {
        Some(AttributeValue::M(inner)) => store::to_json(inner).get(name).cloned().unwrap_or(Value::Null),
        _ => Value::Null,
    }
}

pub(super) fn is_true(row: &Item, name: &str) -> bool {
    matches!(said(row, name), Some(AttributeValue::Bool(true)))
}

pub(super) fn set(row: &Item) -> BTreeSet<AllocId> {
    match row.get("allocs") {
        Some(AttributeValue::L(ids)) => ids.iter().filter_map(|i| i.as_s().ok()?.parse().ok()).collect(),
        _ => BTreeSet::new(),
    }
}

pub(super) fn node_id(row: &Item) -> Option<NodeId> {
    text(row, "node_id").and_then(|n| n.parse().ok())
}

pub(super) fn slot(row: &Item) -> Option<Slot> {
    number(row, "slot").and_then(|n| u32::try_from(n).ok()).and_then(|n| Slot::new(n).ok())
}

pub(super) fn alloc_id(row: &Item) -> Option<AllocId> {
    text(row, "alloc_id").and_then(|a| a.parse().ok())
}

pub(super) fn time(row: &Item, name: &str) -> Option<Time> {
    number(row, name).map(Time::from_ms)
}

pub(super) fn is_ended(row: &Item) -> bool {
    matches!(text(row, "state"), Some("complete" | "failed" | "cancelled" | "rejected"))
}

/// The members of a job that are done.
pub(super) fn done(job: &Item) -> BTreeSet<u32> {
    match job.get("done") {
        Some(AttributeValue::L(members)) => members.iter().filter_map(|m| m.as_n().ok()?.parse().ok()).collect(),
        _ => BTreeSet::new(),
    }
}

pub(super) fn is_final(row: &Item) -> bool {
    matches!(text(row, "client"), Some("complete" | "failed" | "lost"))
}

/// Whether an alloc was unknown, came back, and awaits the decision on its copies.
pub(super) fn is_back(row: &Item) -> bool {
    !is_final(row)
        && text(row, "desired") == Some("run")
        && text(row, "client") != Some("unknown")
        && is_true(row, "awaiting")
}

/// How many GPUs of a node can be used: those of its size, but not the sick ones. A node that boots is expected to have all.
pub(super) fn usable_gpus(node: &Item) -> i64 {
    let of_size = count(node, "gpus");
    let is_booting = !node.contains_key("first_ping_at") || is_true(node, "never_ready");
    if is_booting { of_size } else { of_size.min(count(node, "gpus_usable")) }
}

/// Whether a node takes no work, as its agent says, or because it can use none of its GPUs.
pub(super) fn refuses(node: &Item) -> bool {
    text(node, "refuses").is_some() || (count(node, "gpus") > 0 && usable_gpus(node) == 0)
}

/// Whether a copy counts as the wanted one.
pub(super) fn is_wanted(row: &Item) -> bool {
    !is_final(row)
        && text(row, "desired") == Some("run")
        && text(row, "client") != Some("unknown")
        && !is_true(row, "awaiting")
}
