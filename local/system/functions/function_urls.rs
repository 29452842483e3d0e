//! Function URLs: `/lambda-url/{function}/{path}` as the event and answer of payload format 2.0
//! (<https://docs.aws.amazon.com/lambda/latest/dg/urls-invocation.html>).
//!
//! Guarantees: the body of a request reaches the function byte for byte. A failed function gives status 502, and so does an answer
//! that is larger than Lambda allows. With an [`Issuer`], only signed requests reach a function (`AWS_IAM`), and the event names
//! the caller.
//! Does not: put more into the event than the functions read.

use super::{Failure, Functions};
use crate::console::WallClock;
use crate::local::directory::REGION;
use axum::extract::{Path, Request, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use axum::{Json, Router};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use guard::sigv4::{self, Issued, Issuer, RawRequest, SignScope};
use serde_json::{Value, json};
use std::sync::Arc;

/// The largest request and the largest answer in AWS, in bytes.
const MAX_PAYLOAD: usize = 6 * 1024 * 1024;

#[derive(Clone)]
struct UrlState {
    functions: Arc<Functions>,
    clock: WallClock,
    /// Whose signatures are accepted; `None`: nobody has to sign.
    issuer: Option<Arc<dyn Issuer>>,
}

pub(in crate::local) fn router(functions: Arc<Functions>, clock: WallClock, issuer: Option<Arc<dyn Issuer>>) -> Router {
    Router::new().route("/lambda-url/{function}/{*path}", any(call)).with_state(UrlState { functions, clock, issuer })
}

async fn call(
    State(served): State<UrlState>,
    Path((function, _)): Path<(String, String)>,
    request: Request,
) -> Response {
    let (parts, body) = request.into_parts();
    let Ok(body) = axum::body::to_bytes(body, MAX_PAYLOAD).await else {
        return message(
            StatusCode::PAYLOAD_TOO_LARGE,
            "the body broke off, or is larger than the 6 MiB that Lambda takes",
        );
    };
    let scope = SignScope { region: REGION, service: "lambda" };
    let issuer = served.issuer.as_deref();
    let caller = issuer.map(|issuer| sigv4::caller(RawRequest::of(&parts, &body), scope, issuer, (served.clock)()));
    let caller = match caller.transpose() {
        Ok(caller) => caller,
        Err(why) => return message(StatusCode::FORBIDDEN, why),
    };
    let event = event(&parts, &function, &body, caller.as_ref());
    match served.functions.invoke(&function, event).await {
        Ok(answer) => http_answer(&answer).unwrap_or_else(bad_gateway),
        Err(Failure::Function(_)) => bad_gateway(),
        Err(error @ Failure::Unknown) => message(StatusCode::NOT_FOUND, &error.to_string()),
        Err(error @ Failure::Busy) => message(StatusCode::TOO_MANY_REQUESTS, &error.to_string()),
        Err(error @ Failure::Stopping) => message(StatusCode::SERVICE_UNAVAILABLE, &error.to_string()),
    }
}

fn message(status: StatusCode, text: &str) -> Response {
    (status, Json(json!({"Message": text}))).into_response()
}

/// The answer to callers of a failed function, as in AWS. Only the function's log has the reason.
fn bad_gateway() -> Response {
    message(StatusCode::BAD_GATEWAY, "Internal Server Error")
}

fn event(parts: &Parts, function: &str, body: &[u8], caller: Option<&Issued>) -> Value {
    let path = parts.uri.path();
    let path = path.strip_prefix("/lambda-url/").and_then(|path| path.strip_prefix(function)).unwrap_or(path);
    let text = std::str::from_utf8(body);
    let authorizer = caller.map(|caller| {
        json!({"iam": {
            "accountId": caller.account, "callerId": caller.user_id, "userArn": caller.arn, "userId": caller.user_id,
        }})
    });
    json!({
        "version": "2.0",
        "rawPath": path,
        "rawQueryString": parts.uri.query().unwrap_or_default(),
        "headers": headers(&parts.headers),
        "requestContext": {"http": {"method": parts.method.as_str(), "path": path}, "authorizer": authorizer},
        "body": text.map_or_else(|_| BASE64.encode(body), str::to_owned),
        "isBase64Encoded": text.is_err(),
    })
}

/// The headers by their names. The values of a header that occurs several times are joined by commas.
fn headers(given: &HeaderMap) -> serde_json::Map<String, Value> {
    let joined = |name: &HeaderName| {
        let values = given.get_all(name).iter().map(|value| String::from_utf8_lossy(value.as_bytes()));
        values.collect::<Vec<_>>().join(",")
    };
    given.keys().map(|name| (name.as_str().to_owned(), joined(name).into())).collect()
}

/// The HTTP answer that a function's answer describes; `None` if it is not a valid one.
fn http_answer(answer: &Value) -> Option<Response> {
    let status = u16::try_from(answer.get("statusCode")?.as_u64()?).ok()?;
    let body = answer.get("body").and_then(Value::as_str).unwrap_or_default();
    if body.len() >= MAX_PAYLOAD {
        return None;
    }
    let mut response = body.to_owned().into_response();
    *response.status_mut() = StatusCode::from_u16(status).ok()?;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    for (name, value) in answer.get("headers").and_then(Value::as_object).into_iter().flatten() {
        headers.insert(HeaderName::from_bytes(name.as_bytes()).ok()?, HeaderValue::from_str(value.as_str()?).ok()?);
    }
    Some(response)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::local::functions::testing::{HEARTBEAT, functions};
    use guard::KeyPair;

    async fn serve(issuer: Option<Arc<dyn Issuer>>) -> String {
        #[allow(clippy::disallowed_methods, reason = "nothing depends on it")]
        let router = router(Arc::new(functions()), Arc::new(model::time::Time::now), issuer);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, router).await });
        format!("http://{address}/lambda-url/{HEARTBEAT}/v1/a%20b")
    }

    #[tokio::test]
    async fn a_request_becomes_an_event_and_an_answer_a_response() {
        let url = serve(None).await;
        let request = reqwest::Client::new().post(format!("{url}?q=1")).header("x-a", "1").header("x-a", "2");
        let answer = request.body(vec![0xff, 0x00]).send().await.unwrap();
        assert_eq!((answer.status().as_u16(), answer.headers()["retry-after"].to_str().unwrap()), (418, "3"));
        let event: Value = answer.json().await.unwrap();
        let http = json!({"method": "POST", "path": "/v1/a%20b"});
        let wanted =
            [("/rawPath", json!("/v1/a%20b")), ("/rawQueryString", json!("q=1")), ("/headers/x-a", json!("1,2"))];
        let more = [("/body", json!("/wA=")), ("/isBase64Encoded", json!(true)), ("/requestContext/http", http)];
        for (place, value) in wanted.into_iter().chain(more) {
            assert_eq!(event.pointer(place), Some(&value), "{place}");
        }
    }

    #[tokio::test]
    async fn what_goes_wrong_has_the_status_that_it_has_in_aws() {
        let url = serve(None).await;
        let unknown = url.replace(HEARTBEAT, "nobody");
        let too_large = "x".repeat(MAX_PAYLOAD + 1);
        for (url, body, status) in [
            (&url, "fail", 502),
            (&url, "panic", 502),
            (&url, "large", 502),
            (&url, too_large.as_str(), 413),
            (&unknown, "", 404),
        ] {
            let answer = reqwest::Client::new().post(url).body(body.to_owned()).send().await.unwrap();
            assert_eq!(answer.status().as_u16(), status, "{:.10}", body);
        }
        let credentials = KeyPair { access_key_id: "AKIA".into(), secret_access_key: "secret".into() };
        let guarded = serve(Some(Arc::new(credentials))).await;
        assert_eq!(reqwest::Client::new().post(guarded).send().await.unwrap().status().as_u16(), 403);
    }
}
