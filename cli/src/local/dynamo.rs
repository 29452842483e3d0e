//! The embedded DynamoDB over HTTP: one call, its answer, and which rows it wrote.
//!
//! The engine has a server of its own. It answers pages of every site, takes every signature, and tells nobody what is
//! written; and it cannot be put behind another router.
//!
//! Guarantees: requests, answers and errors are the engine's, in DynamoDB's JSON; every written row of [`WATCHED`] is told.
//! Does not: check who asks (`guard` does); know PartiQL or streams, which nothing here uses.

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use dynoxide::{Database, DynoxideError};
use serde_json::{Value, json};
use store::Table;
use tokio::sync::mpsc::UnboundedSender;

/// The tables whose writes are told, and the attribute that names a row.
const WATCHED: [(Table, &str); 2] = [(Table::Jobs, "job_id"), (Table::Allocs, "alloc_id")];

/// A row that was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Written {
    pub(super) table: Table,
    pub(super) key: String,
}

#[derive(Clone)]
struct Served {
    db: Database,
    written: UnboundedSender<Written>,
}

/// The API at `/`. `written` gets every written row of a watched table.
pub(super) fn router(db: Database, written: UnboundedSender<Written>) -> Router {
    Router::new().route("/", post(call)).with_state(Served { db, written })
}

async fn call(State(served): State<Served>, headers: HeaderMap, body: Bytes) -> Response {
    let target = headers.get("x-amz-target").and_then(|target| target.to_str().ok()).unwrap_or_default();
    let operation = target.strip_prefix("DynamoDB_20120810.").unwrap_or_default();
    let Ok(request) = std::str::from_utf8(&body) else {
        return error("com.amazon.coral.service#SerializationException", "the body is not UTF-8");
    };
    match perform(&served.db, operation, request) {
        None => error("com.amazon.coral.service#UnknownOperationException", "this call is not served here"),
        Some(Err(refused)) => {
            let status = StatusCode::from_u16(refused.status_code()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
            answer(status, refused.to_json())
        }
        Some(Ok(done)) => {
            for written in written_by(operation, request) {
                // Nobody listens if the functions run elsewhere.
                let _ = served.written.send(written);
            }
            answer(StatusCode::OK, done)
        }
    }
}

/// The answer to a request without valid credentials.
pub(super) fn unsigned(why: &str) -> Response {
    error("com.amazon.coral.service#UnrecognizedClientException", why)
}

fn error(kind: &str, message: &str) -> Response {
    answer(StatusCode::BAD_REQUEST, json!({"__type": kind, "message": message}).to_string())
}

fn answer(status: StatusCode, json: String) -> Response {
    (status, [("content-type", "application/x-amz-json-1.0")], json).into_response()
}

/// Performs a call; `None` if it is not served.
fn perform(db: &Database, operation: &str, request: &str) -> Option<Result<String, DynoxideError>> {
    macro_rules! calls {
        ($($name:literal => $method:ident),* $(,)?) => {
            match operation {
                $($name => Some(read(request).and_then(|request| db.$method(request)).and_then(|done| text(&done))),)*
                _ => None,
            }
        };
    }
    calls! {
        "CreateTable" => create_table,
        "DeleteTable" => delete_table,
        "DescribeTable" => describe_table,
        "ListTables" => list_tables,
        "UpdateTable" => update_table,
        "UpdateTimeToLive" => update_time_to_live,
        "DescribeTimeToLive" => describe_time_to_live,
        "GetItem" => get_item,
        "BatchGetItem" => batch_get_item,
        "TransactGetItems" => transact_get_items,
        "Query" => query,
        "Scan" => scan,
        "PutItem" => put_item,
        "UpdateItem" => update_item,
        "DeleteItem" => delete_item,
        "BatchWriteItem" => batch_write_item,
        "TransactWriteItems" => transact_write_items,
    }
}

fn read<T: serde::de::DeserializeOwned>(request: &str) -> Result<T, DynoxideError> {
    serde_json::from_str(request).map_err(|e| DynoxideError::SerializationException(e.to_string()))
}

fn text(done: &impl serde::Serialize) -> Result<String, DynoxideError> {
    serde_json::to_string(done).map_err(|e| DynoxideError::InternalServerError(e.to_string()))
}

/// The rows of watched tables that a call wrote.
fn written_by(operation: &str, request: &str) -> Vec<Written> {
    if !matches!(operation, "PutItem" | "UpdateItem" | "DeleteItem" | "BatchWriteItem" | "TransactWriteItems") {
        return Vec::new();
    }
    let request: Value = serde_json::from_str(request).unwrap_or_default();
    match operation {
        "TransactWriteItems" => list(request.get("TransactItems"))
            .filter_map(Value::as_object)
            .flat_map(|item| item.iter().filter(|(kind, _)| *kind != "ConditionCheck"))
            .filter_map(|(_, write)| row(table_of(write), write))
            .collect(),
        "BatchWriteItem" => {
            let tables = request.get("RequestItems").and_then(Value::as_object).into_iter().flatten();
            let writes = tables.flat_map(|(name, writes)| list(Some(writes)).map(move |write| (name, write)));
            writes.filter_map(|(name, write)| row(name, write.as_object()?.values().next()?)).collect()
        }
        _ => row(table_of(&request), &request).into_iter().collect(),
    }
}

fn table_of(write: &Value) -> &str {
    write.get("TableName").and_then(Value::as_str).unwrap_or_default()
}

fn list(value: Option<&Value>) -> impl Iterator<Item = &Value> {
    value.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default().iter()
}

/// The row that a write names by its key or its whole item.
fn row(table_name: &str, write: &Value) -> Option<Written> {
    let of_table = |(table, _): &&(Table, &str)| table_name.ends_with(&format!("-{}", table.suffix()));
    let (table, attribute) = WATCHED.iter().find(of_table)?;
    let item = write.get("Key").or_else(|| write.get("Item"))?;
    Some(Written { table: *table, key: item.get(attribute)?.get("S")?.as_str()?.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_write_tells_the_watched_rows_that_it_wrote() {
        let key = |id: &str| json!({"job_id": {"S": id}});
        let item = |id: &str| json!({"alloc_id": {"S": id}, "client": {"S": "complete"}});
        let cases = [
            ("PutItem", json!({"TableName": "t-jobs", "Item": key("a")}), "a"),
            ("UpdateItem", json!({"TableName": "t-jobs", "Key": key("a"), "UpdateExpression": "SET x = :x"}), "a"),
            ("DeleteItem", json!({"TableName": "t-allocs", "Key": item("b")}), "b"),
            ("PutItem", json!({"TableName": "t-nodes", "Item": {"slot": {"N": "1"}}}), ""),
            ("GetItem", json!({"TableName": "t-jobs", "Key": key("a")}), ""),
            (
                "BatchWriteItem",
                json!({"RequestItems": {"t-jobs": [{"PutRequest": {"Item": key("a")}}, {"DeleteRequest": {"Key": key("c")}}],
                       "t-events": [{"PutRequest": {"Item": key("d")}}]}}),
                "a c",
            ),
            (
                "TransactWriteItems",
                json!({"TransactItems": [{"Put": {"TableName": "t-jobs", "Item": key("a")}},
                       {"Update": {"TableName": "t-allocs", "Key": item("b")}},
                       {"ConditionCheck": {"TableName": "t-jobs", "Key": key("c")}}]}),
                "a b",
            ),
        ];
        for (operation, request, wanted) in cases {
            let told = written_by(operation, &request.to_string());
            let told: Vec<String> = told.into_iter().map(|written| written.key).collect();
            assert_eq!(told.join(" "), wanted, "{operation}: {request}");
        }
    }
}
