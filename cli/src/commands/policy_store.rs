//! Storing a policy over another one, and what differs between two.
//!
//! Guarantees: a policy is stored only if the stored version has not changed since the printed difference was computed.
//! Does not: decide what is valid; `model::policy` does.

use crate::changes::operate::{BY_OPERATOR, record_event};
use crate::console::{Cluster, Context, Outcome};
use model::ActionName;
use model::control::PolicyRow;
use model::events::Subject;
use model::policy::Policy;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use store::WriteError;

/// The stored policy as this release reads it. An older release may have stored it.
pub(super) fn as_stored(row: Option<&PolicyRow>) -> Value {
    let stored: Value = row.and_then(|row| serde_json::from_str(&row.document).ok()).unwrap_or_default();
    Policy::from_json(&stored).map_or(stored, |p| p.to_json())
}

/// Prints what changes, and stores this policy in place of `before`, as it was read.
pub(super) async fn store_over(
    context: &mut Context<'_>,
    cluster: &Cluster,
    before: Option<&PolicyRow>,
    document: &Value,
) -> anyhow::Result<Outcome> {
    let stored = as_stored(before);
    if stored == *document {
        let version = before.map_or(0, |row| row.version.number());
        writeln!(context.out, "nothing changed: version {version} is the same")?;
        return Ok(Outcome::Done);
    }
    let changes = difference(&stored, document);
    if before.is_some() {
        for line in &changes {
            writeln!(context.out, "{line}")?;
        }
    }
    let after = PolicyRow::of_document(document);
    let written = cluster.store.write(before, &after, Vec::new()).await;
    stored_as(context, cluster, written, &format!("{} knobs changed", changes.len())).await
}

/// Says what was stored.
pub(super) async fn stored_as(
    context: &mut Context<'_>,
    cluster: &Cluster,
    written: Result<PolicyRow, WriteError>,
    how: &str,
) -> anyhow::Result<Outcome> {
    let after = match written {
        Err(WriteError::Conflict(_)) => anyhow::bail!(
            "the policy was not stored: someone else stored one meanwhile: look at it (`nodekeeper policy show`) and try again"
        ),
        other => other?,
    };
    let version = after.version.number();
    writeln!(context.out, "stored as version {version}")?;
    let reason = format!("{BY_OPERATOR}: version {version}, {how}");
    record_event(cluster, &Subject::Cluster, ActionName::PolicySet, &reason, context.now()).await?;
    Ok(Outcome::Done)
}

/// A stored policy as a file.
pub(super) fn as_toml(version: u64, document: Value) -> anyhow::Result<String> {
    Ok(format!("# version {version}\n{}", toml::to_string_pretty(&without_nulls(document))?))
}

/// TOML has no null.
fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            fields.into_iter().filter(|(_, v)| !v.is_null()).map(|(k, v)| (k, without_nulls(v))).collect()
        }
        Value::Array(list) => list.into_iter().map(without_nulls).collect(),
        other => other,
    }
}

/// The changes from one policy to another: one line for each changed knob.
pub(super) fn difference(before: &Value, after: &Value) -> Vec<String> {
    let (mut old, mut new) = (BTreeMap::new(), BTreeMap::new());
    knobs("", before, &mut old);
    knobs("", after, &mut new);
    let paths: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    let line = |path: &String| match (old.get(path), new.get(path)) {
        (Some(was), Some(is)) if was != is => Some(format!("~ {path}: {was} -> {is}")),
        (Some(was), None) => Some(format!("- {path}: {was}")),
        (None, Some(is)) => Some(format!("+ {path}: {is}")),
        _ => None,
    };
    paths.into_iter().filter_map(line).collect()
}

/// Every knob by its path. Sizes are keyed by name, so that a new order of sizes is not a change.
fn knobs(path: &str, value: &Value, found: &mut BTreeMap<String, String>) {
    let below = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            for (name, value) in fields {
                knobs(&below(name), value, found);
            }
        }
        Value::Array(list) if path == "size" => {
            for size in list {
                knobs(&below(size.get("name").and_then(Value::as_str).unwrap_or("?")), size, found);
            }
        }
        Value::Null => {}
        other => _ = found.insert(path.to_owned(), other.to_string()),
    }
}
