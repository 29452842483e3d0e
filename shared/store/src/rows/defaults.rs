//! Tests each default of the contract: a row without the attribute reads as the row that has the default.
//!
//! Guarantees: a default that the contract names and no reader applies fails a test.
//! Does not: find a default that the contract does not name.

use super::json::attribute;
use crate::rows::{self, from_item, row};
use crate::tables::Table;
use crate::write::Item;
use aws_sdk_dynamodb::types::AttributeValue;
use model::control::RunRow;
use model::fixtures::{self, at};
use model::{Alloc, AllocSummary, Handle, HandleKind, HandleState, Job, JobSummary, NodeRecord};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::collections::BTreeSet;

/// The rows, and what of them is a job's own.
const CONTRACT: &str =
    concat!(include_str!("../../../../docs/contract/tables.md"), include_str!("../../../../docs/contract/commands.md"));

/// The attributes of this part of the contract that have a default: `name` TYPE [default].
fn defaults(part: &str) -> Vec<(&'static str, Value)> {
    let text = CONTRACT.split_once(&format!("### {part}")).expect(part).1.split("\n### ").next().unwrap();
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

/// Checks each default of this part of the contract: the row without the attribute reads as the row with the default.
fn check<R: DeserializeOwned + Serialize>(
    table: Table,
    part: &str,
    whole: &Item,
    but: &[&str],
) -> BTreeSet<&'static str> {
    let read = |item: &Item, name: &str| match from_item::<R>(table, item) {
        Ok(read) => rows::to_item(&read),
        Err(e) => panic!("{part} without {name}: {e}"),
    };
    let mut seen = BTreeSet::new();
    for (name, default) in defaults(part).into_iter().filter(|(name, _)| !but.contains(name)) {
        let with = |value: Option<AttributeValue>| {
            let mut item = whole.clone();
            match value {
                Some(value) => inside(&mut item, part).insert(name.to_owned(), value),
                None => inside(&mut item, part).remove(name),
            };
            read(&item, name)
        };
        let said = with(Some(attribute(default)));
        assert_eq!(with(None), said, "{part}: {name}");
        seen.insert(name);
    }
    seen
}

/// The attribute of this name in the row, if it is one of the maps; otherwise the row.
fn inside<'a>(row: &'a mut Item, part: &str) -> &'a mut Item {
    if !["needs", "work", "failure_policy"].contains(&part) {
        return row;
    }
    match row.entry(part.to_owned()).or_insert_with(|| AttributeValue::M(Item::new())) {
        AttributeValue::M(inside) => inside,
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_default_of_the_contract_counts_when_the_attribute_is_absent() {
    let node = fixtures::ready(0);
    let nodes = check::<NodeRecord>(Table::Nodes, "nodes", &row(&node), &[]);
    assert!(nodes.contains("intent") && nodes.contains("vcpus") && nodes.contains("idle_runs"), "{nodes:?}");

    let mut job = fixtures::job(1);
    job.summary.priority = 7;
    let jobs = check::<Job>(Table::Jobs, "jobs", &row(&job), &[]);
    assert_eq!(jobs, ["begun", "failed_count", "give_up_after_s", "lost_count", "paused", "priority", "usd"].into());
    check::<JobSummary>(Table::Jobs, "jobs", &row(&job), &["failed_count", "lost_count", "usd"]);

    let alloc = Alloc::place(fixtures::alloc_id(1), &job, &node, at(1)).unwrap();
    assert_eq!(
        check::<Alloc>(Table::Allocs, "allocs", &row(&alloc), &[]),
        ["awaiting", "handed_on", "price_per_hour"].into()
    );
    check::<AllocSummary>(Table::Allocs, "allocs", &row(&alloc), &[]);
    for (map, parts) in [("needs", 8), ("work", 2), ("failure_policy", 7)] {
        let found = check::<Job>(Table::Jobs, map, &row(&job), &[]);
        assert_eq!(found, check::<Alloc>(Table::Allocs, map, &row(&alloc), &[]));
        assert_eq!(found.len(), parts, "{found:?}");
    }

    let handle = Handle::new(node.node_id().unwrap(), "c".into(), HandleKind::Container, HandleState::Live, 1, at(0));
    let handles = check::<Handle>(Table::Handles, "handles", &rows::handle_row(&handle), &[]);
    assert_eq!(handles, BTreeSet::new());
}

#[test]
fn so_do_those_of_the_control_table() {
    let of_run = ["duration_ms", "actions", "left", "failed"];
    let all: BTreeSet<&str> = defaults("control").into_iter().map(|(name, _)| name).collect();
    assert_eq!(all, of_run.into());
    let run = RunRow::of_function("poll-and-scale");
    check::<RunRow>(Table::Control, "control", &row(&run), &[]);
}
