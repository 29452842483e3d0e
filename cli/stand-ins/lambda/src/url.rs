//! Function URLs: `/lambda-url/{function}/{path}` as the event and answer of payload format 2.0
//! (<https://docs.aws.amazon.com/lambda/latest/dg/urls-invocation.html>).
//!
//! Guarantees: the body of a request reaches the function byte for byte; an answer that is not a valid HTTP answer
//! becomes 502, as every failure of the function does.
//!
//! With [`Issuer`](guard::sigv4::Issuer) only signed requests reach a function (`AWS_IAM`), and the event says whose
//! they are.
//!
//! Does not: add CORS headers.

use crate::body::{BodyError, MAX_PAYLOAD, read_body};
use crate::error::InvokeError;
use crate::functions::Functions;
use crate::request_id::new_request_id;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::header::{CONTENT_TYPE, COOKIE, HOST, SET_COOKIE, USER_AGENT};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use axum::{Json, Router};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use guard::sigv4::{self, Issued, Scope, Signed};
use model::time::Time;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

pub(crate) fn routes() -> Router<Arc<Functions>> {
    Router::new()
        .route("/lambda-url/{function}", any(call))
        .route("/lambda-url/{function}/", any(call))
        .route("/lambda-url/{function}/{*path}", any(call))
}

/// The event that a function gets for an HTTP request.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct HttpEvent<'a> {
    version: &'static str,
    route_key: &'static str,
    raw_path: &'a str,
    raw_query_string: &'a str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    cookies: Vec<Cow<'a, str>>,
    headers: BTreeMap<&'a str, Cow<'a, str>>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    query_string_parameters: BTreeMap<Cow<'a, str>, String>,
    request_context: RequestContext<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    body: Option<Cow<'a, str>>,
    is_base64_encoded: bool,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct RequestContext<'a> {
    account_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    authorizer: Option<Value>,
    api_id: &'a str,
    domain_name: String,
    domain_prefix: &'a str,
    http: HttpDescription<'a>,
    request_id: String,
    route_key: &'static str,
    stage: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    time: Option<String>,
    time_epoch: Time,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct HttpDescription<'a> {
    method: &'a str,
    path: &'a str,
    protocol: &'static str,
    source_ip: &'static str,
    user_agent: Cow<'a, str>,
}

/// A function's answer. An answer without `statusCode` is only the body of an HTTP answer.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct FunctionAnswer {
    status_code: u16,
    #[serde(default)]
    headers: Option<BTreeMap<String, Value>>,
    #[serde(default)]
    body: Option<String>,
    #[serde(default)]
    is_base64_encoded: Option<bool>,
    #[serde(default)]
    cookies: Option<Vec<String>>,
}

async fn call(State(functions): State<Arc<Functions>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let path = parts.uri.path().strip_prefix("/lambda-url/").unwrap_or_default();
    let (name, path) = path.split_at_checked(path.find('/').unwrap_or(path.len())).unwrap_or_default();
    let function = match functions.get(name) {
        Ok(function) => function,
        Err(error) => return message(StatusCode::NOT_FOUND, &error.to_string()),
    };
    let body = match read_body(body, MAX_PAYLOAD).await {
        Ok(body) => body,
        Err(BodyError::TooLarge) => {
            let text = format!("the body is larger than the {MAX_PAYLOAD} bytes that Lambda takes: send less");
            return message(StatusCode::PAYLOAD_TOO_LARGE, &text);
        }
        Err(BodyError::Broken) => return StatusCode::BAD_REQUEST.into_response(),
    };
    let received_at = (functions.host.clock)();
    let caller = match &functions.host.url_auth {
        None => None,
        Some(auth) => {
            let query = parts.uri.query().unwrap_or_default();
            let (method, headers) = (parts.method.as_str(), &parts.headers);
            let scope = Scope { region: &functions.host.region, service: "lambda" };
            let signed = Signed { method, path: parts.uri.path(), query, headers, body: &body };
            match sigv4::caller(signed, scope, &**auth, received_at) {
                Ok(caller) => Some(caller),
                Err(why) => {
                    tracing::debug!(function = %name, why, "a function URL refuses a signature");
                    return message(StatusCode::FORBIDDEN, why);
                }
            }
        }
    };
    let request = UrlRequest {
        function: name,
        method: parts.method.as_str(),
        path: if path.is_empty() { "/" } else { path },
        query: parts.uri.query().unwrap_or_default(),
        headers: &parts.headers,
        body: &body,
        received_at,
        caller,
    };
    let Ok(event) = serde_json::to_vec(&request.event()) else {
        return message(StatusCode::BAD_REQUEST, "the request cannot be made into an event");
    };
    let outcome = match function.submit(event.into()) {
        Ok(ticket) => ticket.wait().await,
        Err(error) => Err(error),
    };
    match outcome {
        Ok(answer) => http_answer(answer).unwrap_or_else(bad_gateway),
        Err(error @ InvokeError::TooManyRequests { .. }) => message(StatusCode::TOO_MANY_REQUESTS, &error.to_string()),
        Err(error @ InvokeError::ShuttingDown) => message(StatusCode::SERVICE_UNAVAILABLE, &error.to_string()),
        Err(error) => {
            tracing::debug!(function = %name, %error, "a function URL answers 502");
            bad_gateway()
        }
    }
}

fn message(status: StatusCode, text: &str) -> Response {
    (status, Json(json!({"Message": text}))).into_response()
}

/// The answer that callers of a failed function get in AWS. Only the function's log has the reason.
fn bad_gateway() -> Response {
    message(StatusCode::BAD_GATEWAY, "Internal Server Error")
}

/// The parts of an HTTP request that go into the event.
struct UrlRequest<'a> {
    function: &'a str,
    method: &'a str,
    path: &'a str,
    query: &'a str,
    headers: &'a HeaderMap,
    body: &'a [u8],
    received_at: Time,
    /// Who signed the request; `None` if nobody had to.
    caller: Option<Issued>,
}

impl<'a> UrlRequest<'a> {
    fn event(self) -> HttpEvent<'a> {
        let (headers, cookies) = headers_and_cookies(self.headers);
        let text = std::str::from_utf8(self.body);
        let is_base64_encoded = text.is_err();
        let encoded = text.map_or_else(|_| Cow::Owned(BASE64.encode(self.body)), Cow::Borrowed);
        let host = headers.get(HOST.as_str()).map_or("localhost", |host| host);
        let user_agent = headers.get(USER_AGENT.as_str()).cloned().unwrap_or_default();
        let time = jiff::Timestamp::from_millisecond(self.received_at.as_ms()).ok();
        let http = HttpDescription {
            method: self.method,
            path: self.path,
            protocol: "HTTP/1.1",
            source_ip: "127.0.0.1",
            user_agent,
        };
        let request_context = RequestContext {
            account_id: self.caller.as_ref().map_or_else(|| "anonymous".to_owned(), |c| c.account.clone()),
            authorizer: self.caller.as_ref().map(authorizer),
            api_id: self.function,
            domain_name: host.to_owned(),
            domain_prefix: self.function,
            http,
            request_id: new_request_id(),
            route_key: "$default",
            stage: "$default",
            time: time.map(|time| time.strftime("%d/%b/%Y:%H:%M:%S +0000").to_string()),
            time_epoch: self.received_at,
        };
        HttpEvent {
            version: "2.0",
            route_key: "$default",
            raw_path: self.path,
            raw_query_string: self.query,
            cookies,
            headers,
            query_string_parameters: query_parameters(self.query),
            request_context,
            body: (!self.body.is_empty()).then_some(encoded),
            is_base64_encoded,
        }
    }
}

/// What the event says about a caller who signed ("Request payload format", Lambda Developer Guide).
fn authorizer(caller: &Issued) -> Value {
    json!({"iam": {
        "accountId": caller.account, "callerId": caller.user_id, "cognitoIdentity": null,
        "principalOrgId": null, "userArn": caller.arn, "userId": caller.user_id,
    }})
}

/// Headers by name, repeated ones joined by commas; cookies are a list of their own.
fn headers_and_cookies(given: &HeaderMap) -> (BTreeMap<&str, Cow<'_, str>>, Vec<Cow<'_, str>>) {
    let mut headers = BTreeMap::<&str, Cow<'_, str>>::new();
    let mut cookies = Vec::new();
    for (name, value) in given {
        let value = String::from_utf8_lossy(value.as_bytes());
        if name == COOKIE {
            cookies.extend(value.split("; ").map(|cookie| Cow::Owned(cookie.to_owned())));
        } else {
            headers
                .entry(name.as_str())
                .and_modify(|earlier| *earlier = Cow::Owned(format!("{earlier},{value}")))
                .or_insert(value);
        }
    }
    (headers, cookies)
}

/// Query parameters by name, repeated ones joined by commas.
fn query_parameters(query: &str) -> BTreeMap<Cow<'_, str>, String> {
    let mut parameters = BTreeMap::<Cow<'_, str>, String>::new();
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        parameters
            .entry(name)
            .and_modify(|earlier| *earlier = format!("{earlier},{value}"))
            .or_insert_with(|| value.into_owned());
    }
    parameters
}

/// The HTTP answer that a function's answer describes; `None` if it is not a valid one.
fn http_answer(answer: Bytes) -> Option<Response> {
    // Only an object may be parsed, because serde would read a list as the struct's fields in order.
    let parsed = if answer.trim_ascii_start().starts_with(b"{") {
        serde_json::from_slice::<FunctionAnswer>(&answer).ok()
    } else {
        None
    };
    let Some(parsed) = parsed else {
        let value = serde_json::from_slice::<Value>(&answer).ok()?;
        let is_broken = value.get("statusCode").is_some();
        return (!is_broken).then(|| ([(CONTENT_TYPE, "application/json")], answer).into_response());
    };
    let body = parsed.body.unwrap_or_default();
    let body = match parsed.is_base64_encoded {
        Some(true) => Body::from(BASE64.decode(body).ok()?),
        _ => Body::from(body),
    };
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(parsed.status_code).ok()?;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    for (name, value) in parsed.headers.unwrap_or_default() {
        let value = match value {
            Value::String(text) => text,
            Value::Number(_) | Value::Bool(_) => value.to_string(),
            _ => continue,
        };
        headers.insert(HeaderName::from_bytes(name.as_bytes()).ok()?, HeaderValue::from_str(&value).ok()?);
    }
    for cookie in parsed.cookies.unwrap_or_default() {
        headers.append(SET_COOKIE, HeaderValue::from_str(&cookie).ok()?);
    }
    Some(response)
}
