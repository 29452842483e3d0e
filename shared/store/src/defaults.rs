//! Every default of the contract: a row without the attribute, or with null in its place, reads as the row that has the default.

use crate::rows::{self, Readable, from_item, row, to_json};
use crate::tables::Table;
use crate::write::Item;
use aws_sdk_dynamodb::types::AttributeValue;
use model::control::{DemandNeed, EntryRow, RunRow};
use model::fixtures::{self, at};
use model::{Alloc, AllocSummary, Capacity, Handle, HandleKind, HandleState, Job, JobSummary, NodeRecord};
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeSet;

const CONTRACT: &str = include_str!("../../../docs/contract.md");

/// The attributes of this part of the contract that have a default: `name` TYPE [default].
fn defaults(part: &str) -> Vec<(&'static str, Value)> {
    let from = CONTRACT.split_once(part).unwrap_or_else(|| panic!("the contract has no {part:?}")).1;
    let text = from.split("\n### ").next().unwrap();
    let words: Vec<&str> = text.split('`').collect();
    let of = |pair: &[&'static str]| {
        let (name, behind) = (pair[0], pair[1]);
        let (kind, default) = behind.split_once('[')?;
        let is_type = matches!(kind.trim(), "N" | "S" | "BOOL");
        let default = default.split(']').next().filter(|_| is_type)?;
        Some((name, serde_json::from_str(default).unwrap_or_else(|_| default.into())))
    };
    // Every second word stands in backquotes.
    words.get(1..).unwrap().chunks_exact(2).filter_map(of).collect()
}

/// What the row of `read` says of an attribute; false and 0 may be left out.
fn said(item: &Item, name: &str, default: &Value) -> Value {
    let nothing = [Value::from(false), Value::from(0)];
    let left_out = if nothing.contains(default) || default == "run" { default.clone() } else { Value::Null };
    to_json(item).get(name).cloned().unwrap_or(left_out)
}

/// Reads the row without each attribute that has a default, and with null in its place.
fn check<R: Readable + Serialize>(table: Table, part: &str, whole: &Item, but: &[&str]) -> BTreeSet<&'static str> {
    let read = |item: &Item, name: &str| match from_item::<R>(table, item) {
        Ok(read) => rows::to_item(&read),
        Err(e) => panic!("{part} without {name}: {e}"),
    };
    let mut seen = BTreeSet::new();
    for (name, default) in defaults(part).into_iter().filter(|(name, _)| !but.contains(name)) {
        let (mut without, mut null) = (whole.clone(), whole.clone());
        without.remove(name);
        null.insert(name.to_owned(), AttributeValue::Null(true));
        for item in [without, null] {
            assert_eq!(said(&read(&item, name), name, &default), default, "{part}: {name}");
        }
        seen.insert(name);
    }
    seen
}

#[test]
fn every_default_of_the_contract_counts_when_the_attribute_is_absent() {
    let node = fixtures::ready(0);
    let nodes = check::<NodeRecord>(Table::Nodes, "### nodes", &row(&node), &[]);
    assert!(nodes.contains("intent") && nodes.contains("vcpus") && nodes.contains("idle_seen"), "{nodes:?}");

    let mut job = fixtures::job(1);
    job.summary.priority = 7;
    let jobs = check::<Job>(Table::Jobs, "### jobs", &row(&job), &[]);
    assert_eq!(jobs.len(), 16, "{jobs:?}");
    let whole = ["timeout_s", "kill_timeout_s", "lost_after_s", "replace", "reconcile"];
    let counted = ["retry_failed", "retry_lost", "failed_count", "lost_count"];
    check::<JobSummary>(Table::Jobs, "### jobs", &row(&job), &[&whole[..], &counted[..]].concat());

    let alloc = Alloc::place(fixtures::alloc_id(1), &job, &node, at(1)).unwrap();
    let allocs = check::<Alloc>(Table::Allocs, "### allocs", &row(&alloc), &[]);
    assert!(allocs.contains("nodes") && allocs.contains("reconcile") && allocs.contains("awaiting"), "{allocs:?}");
    check::<AllocSummary>(Table::Allocs, "### allocs", &row(&alloc), &["nodes", "priority", "timeout_s"]);

    let handle = Handle::new(node.node_id().unwrap(), "c".into(), HandleKind::Container, HandleState::Live, 1, at(0));
    let handles = check::<Handle>(Table::Handles, "### handles", &rows::handle_row(&handle), &[]);
    assert_eq!(handles, ["keep"].into());
}

#[test]
fn so_do_those_of_the_control_table() {
    let of_run = ["duration_ms", "actions", "left", "failed"];
    let of_need: BTreeSet<&str> = ["vcpus", "memory_mib", "scratch_gib", "gpus", "exclusive"].into();
    let all: BTreeSet<&str> = defaults("### control").into_iter().map(|(name, _)| name).collect();
    assert_eq!(all, of_run.into_iter().chain(of_need.iter().copied()).collect());
    let run = RunRow::new("poll-and-scale");
    check::<RunRow>(Table::Control, "### control", &row(&run), &of_need.into_iter().collect::<Vec<_>>());
    let entry = |need: &str| {
        let row = format!("{{\"key\": \"demand#a\", \"need\": {need}}}");
        serde_json::from_str::<EntryRow>(&row).unwrap().need.unwrap()
    };
    let least = DemandNeed { capacity: Capacity { vcpus: 1, ..Capacity::default() }, ..DemandNeed::default() };
    assert_eq!(entry("{}"), least);
}
