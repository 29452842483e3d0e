//! STS: `AssumeRole` and `GetCallerIdentity`.
//!
//! Guarantees: only the owner's credentials assume a role; a session lasts at most an hour.
//! Does not: know which roles exist, or whom they trust: any ARN that looks like one of a role is accepted.

use crate::sessions::date;
use crate::state::Rights;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use guard::sigv4::Issued;
use model::Span;
use std::collections::BTreeMap;

/// How long a session may last, in seconds, if one role assumes another.
const LASTING_S: std::ops::RangeInclusive<i64> = 900..=3600;

pub(crate) fn answer(rights: &Rights, caller: Result<Issued, &'static str>, body: &[u8]) -> Response {
    let caller = match caller {
        Ok(caller) => caller,
        Err(why) => return refused("InvalidClientTokenId", why),
    };
    let form: BTreeMap<String, String> = form_urlencoded::parse(body).into_owned().collect();
    match form.get("Action").map(String::as_str) {
        Some("AssumeRole") => assume_role(rights, &caller, &form),
        Some("GetCallerIdentity") => {
            let (account, arn) = if caller.arn.is_empty() {
                ("000000000000", "arn:aws:iam::000000000000:user/owner")
            } else {
                (caller.account.as_str(), caller.arn.as_str())
            };
            result(
                "GetCallerIdentity",
                &format!("<Arn>{arn}</Arn><UserId>{}</UserId><Account>{account}</Account>", caller.user_id),
            )
        }
        _ => refused("InvalidAction", "only AssumeRole and GetCallerIdentity are known here"),
    }
}

fn assume_role(rights: &Rights, caller: &Issued, form: &BTreeMap<String, String>) -> Response {
    if !caller.arn.is_empty() {
        return refused("AccessDenied", "only the owner of the local system assumes roles");
    }
    let text = |name: &str| form.get(name).map(String::as_str).unwrap_or_default();
    let (arn, session) = (text("RoleArn"), text("RoleSessionName"));
    let parts: Vec<&str> = arn.splitn(6, ':').collect();
    let &["arn", partition, "iam", "", account, resource] = parts.as_slice() else {
        return refused("ValidationError", "RoleArn is not the ARN of a role");
    };
    let Some(role) = resource.strip_prefix("role/").and_then(|path| path.rsplit('/').next()) else {
        return refused("ValidationError", "RoleArn is not the ARN of a role");
    };
    let is_of_session = |b: u8| b.is_ascii_alphanumeric() || b"_+=,.@-".contains(&b);
    if !(2..=64).contains(&session.len()) || !session.bytes().all(is_of_session) {
        return refused("ValidationError", "RoleSessionName must be 2 to 64 letters, digits and _+=,.@-");
    }
    let lasts = form.get("DurationSeconds").map_or(Some(3600), |text| text.parse().ok());
    let Some(lasts) = lasts.filter(|s| LASTING_S.contains(s)) else {
        return refused("ValidationError", "DurationSeconds must be 900 to 3600");
    };
    let lasts = rights.longest_s().map_or(lasts, |most| lasts.min(most));
    let arn = format!("arn:{partition}:sts::{account}:assumed-role/{role}/{session}");
    let (id, issued) = rights.sessions.open(arn, (rights.clock)(), Span::from_s(lasts));
    let token = issued.session_token.unwrap_or_default();
    result(
        "AssumeRole",
        &format!(
            "<Credentials><AccessKeyId>{id}</AccessKeyId><SecretAccessKey>{}</SecretAccessKey><SessionToken>{token}\
             </SessionToken><Expiration>{}</Expiration></Credentials><AssumedRoleUser><Arn>{}</Arn><AssumedRoleId>{}\
             </AssumedRoleId></AssumedRoleUser>",
            issued.secret_access_key,
            date(issued.expires_at),
            issued.arn,
            issued.user_id
        ),
    )
}

fn result(action: &str, content: &str) -> Response {
    let xml = format!(
        "<{action}Response xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\"><{action}Result>{content}</{action}Result>\
         <ResponseMetadata><RequestId>local</RequestId></ResponseMetadata></{action}Response>"
    );
    ([(header::CONTENT_TYPE, "text/xml")], xml).into_response()
}

pub(crate) fn refused(code: &str, message: &str) -> Response {
    let status = if code == "ValidationError" { StatusCode::BAD_REQUEST } else { StatusCode::FORBIDDEN };
    let xml = format!(
        "<ErrorResponse xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\"><Error><Type>Sender</Type><Code>{code}</Code>\
         <Message>{message}</Message></Error><RequestId>local</RequestId></ErrorResponse>"
    );
    (status, [(header::CONTENT_TYPE, "text/xml")], xml).into_response()
}
