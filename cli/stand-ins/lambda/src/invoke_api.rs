//! The Invoke API, as the AWS SDK and `aws lambda invoke --endpoint-url` speak it
//! (<https://docs.aws.amazon.com/lambda/latest/api/API_Invoke.html>).
//!
//! Guarantees: status, error type and the `X-Amz-Function-Error` header are as in AWS.
//!
//! Does not: offer any other call of Lambda's API.

use crate::body::{BodyError, MAX_PAYLOAD, read_body};
use crate::error::InvokeError;
use crate::event;
use crate::functions::Functions;
use axum::body::{Body, Bytes};
use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use serde::de::IgnoredAny;
use serde_json::json;
use std::sync::Arc;

/// The largest payload of an asynchronous invocation in AWS.
const MAX_EVENT: usize = 1024 * 1024;

const INVOCATION_TYPE: HeaderName = HeaderName::from_static("x-amz-invocation-type");
const FUNCTION_ERROR: HeaderName = HeaderName::from_static("x-amz-function-error");
const EXECUTED_VERSION: HeaderName = HeaderName::from_static("x-amz-executed-version");
const ERROR_TYPE: HeaderName = HeaderName::from_static("x-amzn-errortype");
const REQUEST_ID: HeaderName = HeaderName::from_static("x-amzn-requestid");
const CONTENT_TYPE: HeaderName = axum::http::header::CONTENT_TYPE;

pub(crate) fn routes() -> Router<Arc<Functions>> {
    Router::new().route("/2015-03-31/functions/{name}/invocations", post(invoke))
}

async fn invoke(
    State(functions): State<Arc<Functions>>,
    Path(name): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let kind = headers.get(INVOCATION_TYPE).map_or(b"RequestResponse".as_slice(), HeaderValue::as_bytes);
    let limit = if kind == b"Event" { MAX_EVENT } else { MAX_PAYLOAD };
    let payload = match read_body(body, limit).await {
        Ok(payload) if payload.is_empty() => Bytes::from_static(b"{}"),
        Ok(payload) => payload,
        Err(BodyError::Broken) => return StatusCode::BAD_REQUEST.into_response(),
        Err(BodyError::TooLarge) => {
            let message = format!("Request must be smaller than {limit} bytes for the InvokeFunction operation");
            return failed(StatusCode::PAYLOAD_TOO_LARGE, "RequestTooLargeException", &message);
        }
    };
    let function = match functions.get(function_name(&name)) {
        Ok(function) => function,
        Err(error) => return refused(&error),
    };
    if let Err(error) = serde_json::from_slice::<IgnoredAny>(&payload) {
        let message = format!("Could not parse request body into json: {error}");
        return failed(StatusCode::BAD_REQUEST, "InvalidRequestContentException", &message);
    }
    match kind {
        b"RequestResponse" => {
            let ticket = match function.submit(payload) {
                Ok(ticket) => ticket,
                Err(error) => return refused(&error),
            };
            let request_id = ticket.request_id.to_string();
            let json = [(CONTENT_TYPE, "application/json"), (EXECUTED_VERSION, "$LATEST")];
            match ticket.wait().await {
                Ok(answer) => ([(REQUEST_ID, request_id)], json, answer).into_response(),
                Err(InvokeError::Function(error)) => {
                    ([(REQUEST_ID, request_id)], json, [(FUNCTION_ERROR, "Unhandled")], error.payload).into_response()
                }
                Err(error) => refused(&error),
            }
        }
        b"Event" => match event::send(function, payload) {
            Ok(request_id) => (StatusCode::ACCEPTED, [(REQUEST_ID, request_id.to_string())]).into_response(),
            Err(error) => refused(&error),
        },
        b"DryRun" => StatusCode::NO_CONTENT.into_response(),
        _ => {
            let message = "X-Amz-Invocation-Type must be RequestResponse, Event or DryRun";
            failed(StatusCode::BAD_REQUEST, "InvalidParameterValueException", message)
        }
    }
}

/// The name in any form that AWS accepts: `name`, `name:qualifier`, `account:function:name`, an ARN.
fn function_name(given: &str) -> &str {
    let unprefixed = given.split_once(":function:").map_or(given, |(_, rest)| rest);
    let unprefixed = unprefixed.strip_prefix("function:").unwrap_or(unprefixed);
    unprefixed.split_once(':').map_or(unprefixed, |(name, _)| name)
}

fn refused(error: &InvokeError) -> Response {
    let (status, error_type) = match error {
        InvokeError::UnknownFunction { .. } => (StatusCode::NOT_FOUND, "ResourceNotFoundException"),
        InvokeError::TooManyRequests { .. } => (StatusCode::TOO_MANY_REQUESTS, "TooManyRequestsException"),
        InvokeError::ShuttingDown => (StatusCode::SERVICE_UNAVAILABLE, "ServiceException"),
        InvokeError::Function(_) | InvokeError::NotJson { .. } => (StatusCode::BAD_GATEWAY, "ServiceException"),
    };
    failed(status, error_type, &error.to_string())
}

/// The answer to a request without valid credentials.
pub fn unsigned(why: &str) -> Response {
    failed(StatusCode::FORBIDDEN, "UnrecognizedClientException", why)
}

fn failed(status: StatusCode, error_type: &'static str, message: &str) -> Response {
    // AWS writes "Message" in some of its errors and "message" in others; its SDKs read both.
    (status, [(ERROR_TYPE, error_type)], Json(json!({"Type": "User", "Message": message}))).into_response()
}

#[cfg(test)]
mod tests {
    use super::function_name;

    #[test]
    fn a_function_can_be_named_in_every_form_that_aws_accepts() {
        for given in [
            "f",
            "f:$LATEST",
            "function:f",
            "000000000000:function:f",
            "arn:aws:lambda:eu-west-1:000000000000:function:f",
            "arn:aws:lambda:eu-west-1:000000000000:function:f:live",
        ] {
            assert_eq!(function_name(given), "f", "{given}");
        }
    }
}
