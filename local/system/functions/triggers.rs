//! Stands for the streams of the tables that wake poll-and-scale: after a new job, after the end of an alloc, and when a node becomes
//! ready.
//!
//! The request of a call says what it writes, so no row is read.
//!
//! Guarantees: a write is noticed within [`TOGETHER`].
//! Does not: read the streams of the database, which would be kept for ever. Compare a row with its earlier content: a run that is not
//! needed does no harm.

use super::Functions;
use model::functions::POLL_AND_SCALE;
use model::{ClientStatus, NodeStatus};
use serde_json::{Map, Value, json};
use std::sync::Arc;
use std::time::Duration;
use store::Table;
use tokio::sync::watch;
use tokio::time::sleep;

/// How long writes are gathered. Together they wake the function once.
const TOGETHER: Duration = Duration::from_millis(200);

/// Wakes poll-and-scale after these writes, until the sender is dropped.
pub(in crate::local) async fn wake(mut written: watch::Receiver<()>, functions: Arc<Functions>) {
    while written.changed().await.is_ok() {
        sleep(TOGETHER).await;
        written.mark_unchanged();
        // The function only checks whether the event has records.
        functions.send(POLL_AND_SCALE.name, json!({ "Records": [] }));
    }
}

/// Whether a successful call wrote a new job, ended an alloc, or made a node ready.
pub(in crate::local) fn wakes(operation: &str, request: &str) -> bool {
    if !matches!(operation, "PutItem" | "UpdateItem" | "BatchWriteItem" | "TransactWriteItems") {
        return false;
    }
    let request: Value = serde_json::from_str(request).unwrap_or_default();
    if let Some(tables) = request.get("RequestItems").and_then(Value::as_object) {
        let puts =
            |writes: &Value| writes.as_array().is_some_and(|all| all.iter().any(|w| w.get("PutRequest").is_some()));
        return tables.iter().any(|(name, writes)| is_of(Table::Jobs, name) && puts(writes));
    }
    match request.get("TransactItems").and_then(Value::as_array) {
        Some(items) => items.iter().filter_map(Value::as_object).flat_map(Map::values).any(is_noticed),
        None => is_noticed(&request),
    }
}

fn is_of(table: Table, name: &str) -> bool {
    name.ends_with(&format!("-{}", table.suffix()))
}

/// Only a new job is put as a whole row. A later write sets only the changed attributes: the end of an alloc sets `client`, and a node
/// that becomes ready loses `syncing_since_at`.
fn is_noticed(write: &Value) -> bool {
    let name = write.get("TableName").and_then(Value::as_str).unwrap_or_default();
    let values = |field: &str| write.get(field).and_then(Value::as_object).into_iter().flat_map(Map::values);
    let is_final = |value: &Value| {
        let word = value.get("S").and_then(Value::as_str);
        ClientStatus::ALL.iter().any(|status| status.is_final() && word == Some(status.as_str()))
    };
    let sets = |wanted: &str| values("ExpressionAttributeNames").any(|name| name == wanted);
    let ends = || sets("client") && !sets("handed_on") && values("ExpressionAttributeValues").any(is_final);
    let is_ready = |value: &Value| value.get("S").and_then(Value::as_str) == Some(NodeStatus::Ready.as_str());
    let opens = || sets("syncing_since_at") && values("ExpressionAttributeValues").any(is_ready);
    (is_of(Table::Jobs, name) && write.get("Item").is_some())
        || (is_of(Table::Allocs, name) && ends())
        || (is_of(Table::Nodes, name) && opens())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_job_an_ended_alloc_and_a_ready_node_wake_the_function_and_nothing_else_does() {
        let job = json!({"TableName": "t-jobs", "Item": {"job_id": {"S": "a"}}});
        let changed = json!({"TableName": "t-jobs", "Key": {"job_id": {"S": "a"}}, "UpdateExpression": "SET #n0 = :v0",
            "ExpressionAttributeNames": {"#n0": "state"}, "ExpressionAttributeValues": {":v0": {"S": "complete"}}});
        let client = |is: &str| {
            json!({"TableName": "t-allocs", "Key": {"alloc_id": {"S": "b"}}, "UpdateExpression": "SET #n1 = :v1",
                "ExpressionAttributeNames": {"#n0": "version", "#n1": "client"},
                "ExpressionAttributeValues": {":v0": {"N": "3"}, ":v1": {"S": is}}})
        };
        let mut handed_on = client("complete");
        handed_on["ExpressionAttributeNames"]["#n2"] = "handed_on".into();
        let placed = json!({"TableName": "t-allocs", "Item": {"alloc_id": {"S": "b"}, "client": {"S": "pending"}}});
        let node = |names: Value, values: Value| {
            json!({"TableName": "t-nodes", "Key": {"slot": {"N": "1"}}, "ExpressionAttributeNames": names,
                "ExpressionAttributeValues": values})
        };
        let word = |word: &str| json!({ "S": word });
        let opens = node(json!({"#n0": "status", "#n1": "syncing_since_at"}), json!({":v0": word("ready")}));
        let syncs = node(
            json!({"#n0": "status", "#n1": "syncing_since_at"}),
            json!({":v0": word("syncing"), ":v1": {"N": "7"}}),
        );
        let pulse = node(
            json!({"#n0": "last_ping_at", "#n1": "status"}),
            json!({":v0": word("syncing"), ":v1": word("ready")}),
        );
        let cases = [
            ("UpdateItem", opens, true),
            ("UpdateItem", syncs, false),
            ("UpdateItem", pulse, false),
            ("PutItem", job.clone(), true),
            ("GetItem", job.clone(), false),
            ("PutItem", json!({"TableName": "t-nodes", "Item": {"slot": {"N": "1"}}}), false),
            ("UpdateItem", changed.clone(), false),
            ("UpdateItem", client("running"), false),
            ("UpdateItem", client("failed"), true),
            ("BatchWriteItem", json!({"RequestItems": {"t-jobs": [{"PutRequest": {"Item": {}}}]}}), true),
            ("BatchWriteItem", json!({"RequestItems": {"t-jobs": [{"DeleteRequest": {"Key": {}}}]}}), false),
            ("BatchWriteItem", json!({"RequestItems": {"t-events": [{"PutRequest": {"Item": {}}}]}}), false),
            ("TransactWriteItems", json!({"TransactItems": [{"Update": changed}, {"Update": client("lost")}]}), true),
            // A placement is the function's own write.
            ("TransactWriteItems", json!({"TransactItems": [{"Update": changed}, {"Put": placed}]}), false),
            ("TransactWriteItems", json!({"TransactItems": [{"ConditionCheck": changed}, {"Put": job}]}), true),
            ("TransactWriteItems", json!({"TransactItems": [{"Update": handed_on}]}), false),
        ];
        for (operation, request, wanted) in cases {
            assert_eq!(wakes(operation, &request.to_string()), wanted, "{operation}: {request}");
        }
    }
}
