//! The Runtime API, as functions and extensions speak it
//! (<https://docs.aws.amazon.com/lambda/latest/dg/runtimes-api.html>), under `/.rt/{function}/{process}`.
//!
//! Guarantees: each process has its own path, so a process that was given up cannot answer for another one.
//!
//! Does not: deliver events to extensions (their poll waits until the process ends), or accept streamed answers.

use crate::body::{BodyError, MAX_PAYLOAD, read_body};
use crate::error::{FunctionError, InvokeError};
use crate::function::Function;
use crate::functions::Functions;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{HeaderName, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::json;
use std::sync::Arc;

const REQUEST_ID: HeaderName = HeaderName::from_static("lambda-runtime-aws-request-id");
const DEADLINE_MS: HeaderName = HeaderName::from_static("lambda-runtime-deadline-ms");
const FUNCTION_ARN: HeaderName = HeaderName::from_static("lambda-runtime-invoked-function-arn");
const TRACE_ID: HeaderName = HeaderName::from_static("lambda-runtime-trace-id");
const EXTENSION_ID: HeaderName = HeaderName::from_static("lambda-extension-identifier");
const CONTENT_TYPE: HeaderName = axum::http::header::CONTENT_TYPE;

pub(crate) fn routes() -> Router<Arc<Functions>> {
    let runtime = Router::new()
        .route("/invocation/next", get(next))
        .route("/invocation/{id}/response", post(response))
        .route("/invocation/{id}/error", post(error))
        .route("/init/error", post(init_error));
    let extension = Router::new().route("/register", post(register)).route("/event/next", get(next_event));
    Router::new()
        .nest("/.rt/{function}/{process}/2018-06-01/runtime", runtime)
        .nest("/.rt/{function}/{process}/2020-01-01/extension", extension)
}

/// Any status but 200: a process must not take this answer for an event.
fn refused(status: StatusCode, error_type: &str, message: &str) -> Response {
    (status, Json(json!({"errorType": error_type, "errorMessage": message}))).into_response()
}

fn no_function(error: &InvokeError) -> Response {
    refused(StatusCode::NOT_FOUND, "ResourceNotFoundException", &error.to_string())
}

fn given_up() -> Response {
    refused(StatusCode::FORBIDDEN, "Runtime.Gone", "this process has been given up: it should end")
}

fn no_invocation() -> Response {
    refused(
        StatusCode::BAD_REQUEST,
        "InvalidRequestID",
        "no such invocation runs in this process: it may have timed out",
    )
}

fn accepted() -> Response {
    (StatusCode::ACCEPTED, Json(json!({"status": "OK"}))).into_response()
}

async fn next(State(functions): State<Arc<Functions>>, Path((name, process)): Path<(String, u64)>) -> Response {
    let function = match functions.get(&name) {
        Ok(function) => function,
        Err(error) => return no_function(&error),
    };
    let Ok(work) = function.poll(process) else { return given_up() };
    let Ok(work) = work.await else { return given_up() };
    // In X-Ray's form, made from the digits of the request id.
    let digits: String = work.request_id.chars().filter(char::is_ascii_hexdigit).collect();
    let (time, random) = digits.split_at_checked(8).unwrap_or_default();
    let trace = format!("Root=1-{time}-{random};Sampled=0");
    let headers = [
        (CONTENT_TYPE, "application/json".to_owned()),
        (REQUEST_ID, work.request_id.to_string()),
        (DEADLINE_MS, work.deadline.as_ms().to_string()),
        (FUNCTION_ARN, function.arn.clone()),
        (TRACE_ID, trace),
    ];
    (headers, work.payload).into_response()
}

async fn response(
    State(functions): State<Arc<Functions>>,
    Path((name, process, id)): Path<(String, u64, String)>,
    body: Body,
) -> Response {
    let function = match functions.get(&name) {
        Ok(function) => function,
        Err(error) => return no_function(&error),
    };
    match read_body(body, MAX_PAYLOAD).await {
        Ok(answer) => function.respond(process, &id, Ok(answer)).map_or_else(|_| no_invocation(), |()| accepted()),
        Err(BodyError::TooLarge) => {
            let message =
                format!("the answer is larger than the {MAX_PAYLOAD} bytes that Lambda allows: answer with less");
            let error = FunctionError::new("Function.ResponseSizeTooLarge", message.clone());
            let told = function.respond(process, &id, Err(error));
            told.map_or_else(
                |_| no_invocation(),
                |()| refused(StatusCode::PAYLOAD_TOO_LARGE, "RequestEntityTooLarge", &message),
            )
        }
        // The process is ending: the task that watches it informs the caller.
        Err(BodyError::Broken) => StatusCode::BAD_REQUEST.into_response(),
    }
}

async fn error(
    State(functions): State<Arc<Functions>>,
    Path((name, process, id)): Path<(String, u64, String)>,
    body: Body,
) -> Response {
    report(&functions, &name, body, |function, error| function.respond(process, &id, Err(error)).is_ok()).await
}

async fn init_error(
    State(functions): State<Arc<Functions>>,
    Path((name, process)): Path<(String, u64)>,
    body: Body,
) -> Response {
    report(&functions, &name, body, |function, error| function.init_error(process, error).is_ok()).await
}

async fn report(
    functions: &Functions,
    name: &str,
    body: Body,
    take: impl FnOnce(&Arc<Function>, FunctionError) -> bool,
) -> Response {
    let function = match functions.get(name) {
        Ok(function) => function,
        Err(error) => return no_function(&error),
    };
    let Ok(body) = read_body(body, MAX_PAYLOAD).await else {
        return refused(StatusCode::BAD_REQUEST, "InvalidRequest", "the error report cannot be read");
    };
    if take(function, FunctionError::reported(body)) { accepted() } else { no_invocation() }
}

async fn register(State(functions): State<Arc<Functions>>, Path((name, process)): Path<(String, u64)>) -> Response {
    match functions.get(&name) {
        Ok(function) if function.has_process(process) => {
            let about = json!({"functionName": name, "functionVersion": "$LATEST", "handler": name});
            ([(EXTENSION_ID, format!("{name}-{process}"))], Json(about)).into_response()
        }
        Ok(_) => given_up(),
        Err(error) => no_function(&error),
    }
}

async fn next_event(State(functions): State<Arc<Functions>>, Path((name, process)): Path<(String, u64)>) -> Response {
    match functions.get(&name) {
        // The connection ends with the process. Then this handler ends too.
        Ok(function) if function.has_process(process) => std::future::pending().await,
        Ok(_) => given_up(),
        Err(error) => no_function(&error),
    }
}
