//! The local secret of the nodes' master key: the two calls of Secrets Manager that nodekeeper makes.
//!
//! Guarantees: a new value moves the labels AWSCURRENT and AWSPREVIOUS as Secrets Manager moves them; a request token
//! stores one value.
//! Does not: check signatures (`guard` does), or keep the key after the local system ends.

use crate::console::Clock;
use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use model::time::Time;
use serde_json::{Value, json};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// The name of the secret.
pub(crate) const NAME: &str = "nodekeeper-local-node-key";

/// The path of its URL.
pub(crate) const PATH: &str = "/secrets";

/// The secret.
#[derive(Clone)]
pub(crate) struct LocalSecret {
    clock: Clock,
    /// The values with their request tokens, and when they were stored; the current one last.
    values: Arc<Mutex<Vec<(String, String, Time)>>>,
}

impl fmt::Debug for LocalSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LocalSecret(…)")
    }
}

impl LocalSecret {
    /// The secret with this value, which counts as stored long ago.
    pub(crate) fn new(value: &str, clock: Clock) -> Self {
        let first = ("first".to_owned(), value.to_owned(), Time::from_ms(0));
        Self { clock, values: Arc::new(Mutex::new(vec![first])) }
    }

    /// What serves it.
    pub(crate) fn router(&self) -> Router {
        Router::new().route(&format!("{PATH}/"), post(call)).with_state(self.clone())
    }

    fn answer(&self, operation: &str, request: &Value) -> Result<Value, (&'static str, String)> {
        let text = |name: &str| request.get(name).and_then(Value::as_str).unwrap_or_default();
        let missing = |what: &str| ("ResourceNotFoundException", format!("there is no {what}"));
        if text("SecretId") != NAME {
            return Err(missing(&format!("secret {}", text("SecretId"))));
        }
        let mut values = self.values.lock().unwrap_or_else(PoisonError::into_inner);
        match operation {
            "secretsmanager.GetSecretValue" => {
                let newest_first: &mut dyn Iterator<Item = _> = &mut values.iter().rev();
                let value = match text("VersionStage") {
                    "" | "AWSCURRENT" => newest_first.next(),
                    "AWSPREVIOUS" => newest_first.nth(1),
                    _ => None,
                };
                let (id, value, stored_at) = value.ok_or_else(|| missing("value with this label"))?;
                let created = stored_at.as_ms() as f64 / 1000.0;
                Ok(json!({"Name": NAME, "VersionId": id, "SecretString": value, "CreatedDate": created}))
            }
            "secretsmanager.PutSecretValue" => {
                let (id, value) = (text("ClientRequestToken"), text("SecretString"));
                match values.iter().find(|(known, ..)| known == id) {
                    None => values.push((id.to_owned(), value.to_owned(), (self.clock)())),
                    Some((_, known, _)) if known == value => {}
                    Some(_) => return Err(("ResourceExistsException", "this version has another value".to_owned())),
                }
                Ok(json!({"Name": NAME, "VersionId": id}))
            }
            _ => Err(("InvalidRequestException", format!("{operation} is not emulated here"))),
        }
    }
}

/// The answer to a request without valid credentials.
pub(crate) fn unsigned(why: &str) -> Response {
    let answer = json!({"__type": "UnrecognizedClientException", "message": why});
    (StatusCode::BAD_REQUEST, [("content-type", "application/x-amz-json-1.1")], answer.to_string()).into_response()
}

async fn call(State(secret): State<LocalSecret>, headers: HeaderMap, body: Bytes) -> Response {
    let operation = headers.get("x-amz-target").and_then(|v| v.to_str().ok()).unwrap_or_default();
    let request = serde_json::from_slice(&body).unwrap_or_default();
    let (status, answer) = match secret.answer(operation, &request) {
        Ok(answer) => (StatusCode::OK, answer),
        Err((kind, message)) => (StatusCode::BAD_REQUEST, json!({"__type": kind, "message": message})),
    };
    (status, [("content-type", "application/x-amz-json-1.1")], answer.to_string()).into_response()
}
