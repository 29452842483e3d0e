//! The embedded DynamoDB over HTTP: answers calls, and reports writes that wake a function.
//!
//! The engine has a server of its own. That server answers pages of every site, accepts every signature, reports no writes, and
//! cannot be put behind another router.
//!
//! Guarantees: requests, answers and errors are the engine's, in DynamoDB's JSON. Every write that `triggers` looks for is reported.
//! Does not: check who asks (`guard` does), or serve PartiQL or streams, which nothing here uses.

use super::functions::triggers;
use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use dynoxide::{Database, DynoxideError};
use serde_json::json;
use tokio::sync::watch;

#[derive(Clone)]
struct DynamoApi {
    db: Database,
    written: watch::Sender<()>,
}

/// The API at `/`. `written` gets each write that wakes a function.
pub(super) fn router(db: Database, written: watch::Sender<()>) -> Router {
    Router::new().route("/", post(call)).with_state(DynamoApi { db, written })
}

async fn call(State(served): State<DynamoApi>, headers: HeaderMap, body: Bytes) -> Response {
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
            if triggers::wakes(operation, request) {
                // There is no receiver if the functions run elsewhere.
                served.written.send_replace(());
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
