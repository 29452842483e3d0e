//! The comparison as a table and as JSON: a column for each policy, a row for each thing that is measured.
//!
//! Guarantees: both have the same rows.
//! Does not: judge.

use super::measured::Measured;
use model::Span;
use serde_json::{Map, Value, json};

struct Row {
    /// The key of the row in JSON, with the unit.
    key: &'static str,
    name: String,
    of: Box<dyn Fn(&Measured) -> Value>,
}

fn row(key: &'static str, name: &str, of: impl Fn(&Measured) -> Value + 'static) -> Row {
    Row { key, name: name.to_owned(), of: Box::new(of) }
}

fn tenth(number: f64) -> Value {
    json!((number * 10.0).round() / 10.0)
}

fn seconds(span: Option<Span>) -> Value {
    span.map_or(Value::Null, |span| tenth(span.as_s()))
}

/// The rows. The last two are about this many nodes at once.
fn rows(at_once: usize) -> Vec<Row> {
    let mut rows = vec![
        row("jobs", "jobs", |m| json!(m.submitted)),
        row("done", "jobs done", |m| json!(m.done)),
        row("not_done", "jobs failed or rejected", |m| json!(m.not_done)),
        row("waited_median_s", "waiting, median, s", |m| seconds(m.waited(0.5))),
        row("waited_95_s", "waiting, 95 %, s", |m| seconds(m.waited(0.95))),
        row("waited_longest_s", "waiting, longest, s", |m| seconds(m.waited(1.0))),
        row("foretold", "starts foretold", |m| json!(m.later.len())),
        row("foretold_percent", "of these right, %", |m| tenth(m.foretold() * 100.0)),
        row("foretold_later_95_s", "later than foretold, 95 %, s", |m| seconds(m.later(0.95))),
        row("node_hours", "node hours", |m| tenth(m.node_hours)),
        row("usd", "money, $", |m| json!((m.usd * 100.0).round() / 100.0)),
        row("instances_asked", "instances asked for", |m| json!(m.asked)),
        row("instances_launched", "instances launched", |m| json!(m.launched)),
        row("calls", "launch calls", |m| json!(m.calls)),
        row("calls_refused", "launch calls refused", |m| json!(m.refused)),
        row("wasted_percent", "wasted calls, %", |m| tenth(m.wasted() * 100.0)),
        row("interruptions", "interruptions", |m| json!(m.interruptions)),
        row("run_again", "jobs run again", |m| json!(m.again)),
        row("most_nodes", "most nodes at once", |m| json!(m.most_nodes)),
    ];
    if at_once > 1 {
        let last = at_once - 1;
        rows.push(row("seconds_to_launched", &format!("{at_once} nodes launched after, s"), move |m| {
            seconds(m.launched_after.get(last).copied())
        }));
        rows.push(row("seconds_to_ready", &format!("{at_once} nodes ready after, s"), move |m| {
            seconds(m.ready_after.get(last).copied())
        }));
    }
    rows
}

pub fn json(policies: &[(String, Measured)], at_once: usize) -> Value {
    let rows = rows(at_once);
    let of = |measured: &Measured| -> Map<String, Value> {
        rows.iter().map(|row| (row.key.to_owned(), (row.of)(measured))).collect()
    };
    policies.iter().map(|(name, measured)| (name.clone(), Value::Object(of(measured)))).collect::<Map<_, _>>().into()
}

pub fn text(policies: &[(String, Measured)], at_once: usize) -> String {
    let head = std::iter::once(String::new()).chain(policies.iter().map(|(name, _)| name.clone()));
    let shown = |value: Value| if value.is_null() { "–".to_owned() } else { value.to_string() };
    let mut lines: Vec<Vec<String>> = vec![head.collect()];
    lines.extend(rows(at_once).into_iter().map(|row| {
        let cells = policies.iter().map(|(_, measured)| shown((row.of)(measured)));
        std::iter::once(row.name.clone()).chain(cells).collect()
    }));
    let widths: Vec<usize> = (0..=policies.len())
        .map(|n| lines.iter().filter_map(|line| line.get(n)).map(|cell| cell.chars().count()).max().unwrap_or(0))
        .collect();
    let padded = |line: Vec<String>| {
        let cells = line.into_iter().zip(&widths).enumerate();
        let cells =
            cells.map(|(n, (cell, width))| if n == 0 { format!("{cell:<width$}") } else { format!("{cell:>width$}") });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    lines.into_iter().map(padded).collect::<Vec<_>>().join("\n")
}
