//! Checks AWS Signature Version 4, as AWS's services do.
//!
//! Guarantees: every part of the signature is checked: method, path, query, the signed headers, the body, the time, the
//! scope, the session token.
//! Does not: know policies: every known caller may do everything. Accept signatures in the query.
//! Source: "Create a signed AWS API request" and "Signature Version 4", IAM User Guide. Written from these pages, and not
//! from a library that signs, so that the two can disagree.

use axum::http::HeaderMap;
use axum::http::request::Parts;
use hmac::{Hmac, KeyInit, Mac};
use model::auth::hex;
use model::{Span, Time};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fmt::{self, Debug};
use subtle::ConstantTimeEq;

/// How far the time of a request may be from AWS's, in both directions.
pub const MAX_SKEW: Span = Span::from_s(300);

const ALGORITHM: &str = "AWS4-HMAC-SHA256";

/// Knows the credentials of all callers.
pub trait Issuer: Debug + Send + Sync {
    /// The credentials with this access key id; `None` if nobody has them.
    fn issued(&self, access_key_id: &str) -> Option<Issued>;
}

/// Credentials, and who has them.
#[derive(Clone, PartialEq, Eq)]
pub struct Issued {
    pub secret_access_key: String,
    /// Only temporary credentials have one.
    pub session_token: Option<String>,
    pub expires_at: Time,
    pub account: String,
    /// `arn:aws:sts::{account}:assumed-role/{role}/{session}`
    pub arn: String,
    /// `{role id}:{session}`
    pub user_id: String,
}

impl Debug for Issued {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Issued").field("arn", &self.arn).finish_non_exhaustive()
    }
}

/// A request as it was received.
#[derive(Clone, Copy, Debug)]
pub struct RawRequest<'a> {
    pub method: &'a str,
    pub path: &'a str,
    pub query: &'a str,
    pub headers: &'a HeaderMap,
    pub body: &'a [u8],
}

impl<'a> RawRequest<'a> {
    pub fn of(parts: &'a Parts, body: &'a [u8]) -> Self {
        let (path, query) = (parts.uri.path(), parts.uri.query().unwrap_or_default());
        Self { method: parts.method.as_str(), path, query, headers: &parts.headers, body }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct SignScope<'a> {
    pub region: &'a str,
    pub service: &'a str,
}

/// The parts of the `Authorization` header.
struct Authorization<'a> {
    access_key_id: &'a str,
    date: &'a str,
    scope: SignScope<'a>,
    signed_headers: &'a str,
    signature: &'a str,
}

impl<'a> Authorization<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        let rest = text.strip_prefix(ALGORITHM)?.trim_start();
        let parts: BTreeMap<&str, &str> = rest.split(',').filter_map(|part| part.trim().split_once('=')).collect();
        let scope: Vec<&str> = parts.get("Credential")?.split('/').collect();
        let [access_key_id, date, region, service, "aws4_request"] = *scope.as_slice() else { return None };
        Some(Self {
            access_key_id,
            date,
            scope: SignScope { region, service },
            signed_headers: parts.get("SignedHeaders")?,
            signature: parts.get("Signature")?,
        })
    }
}

/// The caller who signed this request; otherwise why it is refused.
pub fn caller(
    request: RawRequest<'_>,
    scope: SignScope<'_>,
    issuer: &dyn Issuer,
    now: Time,
) -> Result<Issued, &'static str> {
    let header = |name: &str| request.headers.get(name).and_then(|v| v.to_str().ok());
    let given = header("authorization").ok_or("Missing Authentication Token")?;
    let given = Authorization::parse(given).ok_or("Authorization header is not a signature")?;
    let SignScope { region, service } = scope;
    if (given.scope.region, given.scope.service) != (region, service) {
        return Err("Credential should be scoped to a valid region and this service");
    }
    let date = header("x-amz-date").ok_or("Authorization header requires existence of a 'X-Amz-Date' header")?;
    let at = parse_date(date).ok_or("X-Amz-Date is not a valid date")?;
    if !date.starts_with(given.date) {
        return Err("Date in Credential scope does not match the date of the request");
    }
    if now.since(at) > MAX_SKEW {
        return Err("Signature expired");
    }
    if at.since(now) > MAX_SKEW {
        return Err("Signature not yet current");
    }
    let issued = issuer.issued(given.access_key_id).ok_or("The security token included in the request is invalid")?;
    if issued.expires_at < now {
        return Err("The security token included in the request is expired");
    }
    if header("x-amz-security-token") != issued.session_token.as_deref() {
        return Err("The security token included in the request is invalid");
    }
    let signed: Vec<&str> = given.signed_headers.split(';').collect();
    // Everything that decides what the request means must be signed.
    let amz = request.headers.keys().map(|k| k.as_str()).filter(|name| name.starts_with("x-amz-"));
    if std::iter::once("host").chain(amz).any(|name| !signed.contains(&name)) {
        return Err("A required header is not signed");
    }
    if header("x-amz-content-sha256").is_some_and(|declared| declared != hash(request.body)) {
        return Err("The provided 'x-amz-content-sha256' header does not match what was computed");
    }
    let canonical = canonical_request(request, &signed, given.signed_headers).ok_or("A signed header is missing")?;
    let scope = format!("{}/{region}/{service}/aws4_request", given.date);
    let text = format!("{ALGORITHM}\n{date}\n{scope}\n{}", hash(canonical.as_bytes()));
    let mut key = mac(format!("AWS4{}", issued.secret_access_key).as_bytes(), given.date.as_bytes());
    for part in [region, service, "aws4_request"] {
        key = mac(&key, part.as_bytes());
    }
    let right = hex(&mac(&key, text.as_bytes()));
    if bool::from(right.as_bytes().ct_eq(given.signature.as_bytes())) {
        Ok(issued)
    } else {
        Err("The request signature we calculated does not match the signature you provided")
    }
}

fn canonical_request(request: RawRequest<'_>, signed: &[&str], signed_headers: &str) -> Option<String> {
    let mut text = format!("{}\n{}\n{}\n", request.method, encoded_path(request.path), sorted_query(request.query));
    for name in signed {
        let values: Vec<&str> =
            request.headers.get_all(*name).iter().map(|v| v.to_str().ok()).collect::<Option<_>>()?;
        if values.is_empty() {
            return None;
        }
        let trimmed = |value: &&str| value.split_ascii_whitespace().collect::<Vec<_>>().join(" ");
        text.push_str(&format!("{name}:{}\n", values.iter().map(trimmed).collect::<Vec<_>>().join(",")));
    }
    text.push_str(&format!("\n{signed_headers}\n{}", hash(request.body)));
    Some(text)
}

/// The path as received, encoded once more: every service but S3 does so.
fn encoded_path(path: &str) -> String {
    path.bytes().map(|b| if b == b'/' { "/".to_owned() } else { encoded(b) }).collect()
}

fn encoded(byte: u8) -> String {
    if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~') {
        char::from(byte).to_string()
    } else {
        format!("%{byte:02X}")
    }
}

/// The query's names and values, encoded and sorted.
fn sorted_query(query: &str) -> String {
    let encode = |text: &str| text.bytes().map(encoded).collect::<String>();
    let mut pairs: Vec<_> =
        form_urlencoded::parse(query.as_bytes()).map(|(name, value)| (encode(&name), encode(&value))).collect();
    pairs.sort_unstable();
    pairs.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join("&")
}

/// `20261123T120000Z`
fn parse_date(text: &str) -> Option<Time> {
    let civil = jiff::civil::DateTime::strptime("%Y%m%dT%H%M%SZ", text).ok()?;
    let time = civil.to_zoned(jiff::tz::TimeZone::UTC).ok()?;
    Some(Time::from_ms(time.timestamp().as_millisecond()))
}

fn hash(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

fn mac(key: &[u8], bytes: &[u8]) -> Vec<u8> {
    // This cannot fail: HMAC takes a key of any length.
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(key) else { return Vec::new() };
    mac.update(bytes);
    mac.finalize().into_bytes().to_vec()
}
