//! Secrets Manager's `GetSecretValue` and Parameter Store's `GetParameter`.
//!
//! Guarantees: only the session of a role gets a secret.
//! Does not: know which role may read which secret, or versions of a secret.

use crate::state::Rights;
use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use guard::sigv4::Issued;
use serde_json::{Value, json};

pub(crate) fn answer(rights: &Rights, target: &str, caller: Result<Issued, &'static str>, body: &[u8]) -> Response {
    let caller = match caller {
        Ok(caller) => caller,
        Err(why) => return refused("InvalidSignatureException", why),
    };
    if !caller.arn.contains(":assumed-role/") {
        return refused("AccessDeniedException", "only the session of a role reads secrets here");
    }
    let asked: Value = serde_json::from_slice(body).unwrap_or_default();
    let (field, absent) = match target {
        "secretsmanager.GetSecretValue" => ("SecretId", "ResourceNotFoundException"),
        "AmazonSSM.GetParameter" => ("Name", "ParameterNotFound"),
        _ => return refused("UnknownOperationException", "only GetSecretValue and GetParameter are known here"),
    };
    let Some(id) = asked.get(field).and_then(Value::as_str) else {
        return refused("ValidationException", &format!("{field} is missing"));
    };
    let known = match rights.secrets() {
        Ok(known) => known,
        Err(why) => return refused("ValidationException", &why),
    };
    let value = match known.get(id) {
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
        None => {
            let place = rights.place.display();
            return refused(absent, &format!("{id} is not there: a local system has its secrets in {place}"));
        }
    };
    let content = match field {
        "SecretId" => json!({"ARN": id, "Name": id, "SecretString": value}),
        _ => json!({"Parameter": {"Name": id, "Type": "SecureString", "Value": value}}),
    };
    Json(content).into_response()
}

fn refused(code: &str, message: &str) -> Response {
    (StatusCode::BAD_REQUEST, Json(json!({"__type": code, "Message": message}))).into_response()
}
