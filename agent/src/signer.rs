//! Signs requests with the credentials of the instance's role (AWS Signature Version 4).
//!
//! Guarantees: credentials are fetched again before they end, and after a refusal. A clock that is wrong does not lock the
//! node out: the answer of a refusal says which time it is.
//! Does not: keep credentials on disk.
//! Source: "Signature Version 4" in the IAM User Guide; AWS accepts a request for five minutes around its time.

use crate::imds::{Imds, ImdsError, RoleCredentials};
use aws_credential_types::Credentials;
use aws_sigv4::http_request::{SignableBody, SignableRequest, SigningSettings, sign};
use aws_sigv4::sign::v4;
use jiff::{SignedDuration, Timestamp};
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::SystemTime;
use tokio::sync::Mutex;

/// The service of function URLs.
const SERVICE: &str = "lambda";

/// How long before their end credentials are fetched again. EC2 has new ones at least five minutes before.
const REFRESH: SignedDuration = SignedDuration::from_mins(4);

/// A difference of clocks that is not worth a correction.
const SMALL_SKEW_S: i64 = 30;

/// Why a request cannot be signed.
#[derive(Debug, thiserror::Error)]
pub enum SignError {
    /// There are no credentials.
    #[error(transparent)]
    Imds(#[from] ImdsError),
    /// The request cannot be signed.
    #[error("the request cannot be signed: {0}")]
    Invalid(String),
}

/// Signs the requests of one node.
#[derive(Debug)]
pub struct Signer {
    imds: Imds,
    region: String,
    cached: Mutex<Option<RoleCredentials>>,
    /// The seconds by which AWS's clock is ahead of the node's.
    skew_s: AtomicI64,
}

impl Signer {
    /// A signer for function URLs in this region.
    pub const fn new(imds: Imds, region: String) -> Self {
        Self { imds, region, cached: Mutex::const_new(None), skew_s: AtomicI64::new(0) }
    }

    /// The headers that sign this `POST`, at this time of the node's clock.
    pub async fn headers(&self, url: &str, body: &[u8], at: Timestamp) -> Result<Vec<(String, String)>, SignError> {
        let at = at.saturating_add(SignedDuration::from_secs(self.skew_s.load(Ordering::Relaxed)));
        let at = at.unwrap_or(Timestamp::UNIX_EPOCH);
        let credentials = self.credentials(at).await?;
        signature(&credentials, &self.region, url, body, at).map_err(SignError::Invalid)
    }

    async fn credentials(&self, at: Timestamp) -> Result<RoleCredentials, ImdsError> {
        let mut cached = self.cached.lock().await;
        let left = |c: &RoleCredentials| c.expiration.duration_since(at);
        if let Some(known) = cached.as_ref().filter(|c| left(c) > REFRESH) {
            return Ok(known.clone());
        }
        match (self.imds.credentials().await, cached.as_ref()) {
            (Ok(new), _) => {
                *cached = Some(new.clone());
                Ok(new)
            }
            // Without an answer the old ones serve to their end.
            (Err(_), Some(old)) if left(old) > SignedDuration::ZERO => Ok(old.clone()),
            (Err(error), _) => Err(error),
        }
    }

    /// Notes that AWS refused a signature. `at` is the time by the node's clock, and `date` is the time in AWS's answer.
    /// The signer then fetches new credentials and corrects the time of the next request.
    pub async fn refused(&self, date: Option<&str>, at: Timestamp) {
        *self.cached.lock().await = None;
        let Some(real) = date.and_then(|date| jiff::fmt::rfc2822::parse(date).ok()) else { return };
        let skew = real.timestamp().duration_since(at).as_secs();
        let known = self.skew_s.load(Ordering::Relaxed);
        if skew.abs_diff(known) > SMALL_SKEW_S.unsigned_abs() {
            tracing::warn!(seconds = skew, "the node's clock differs from AWS's: requests are signed with AWS's time");
            self.skew_s.store(skew, Ordering::Relaxed);
        }
    }
}

/// The headers that sign a `POST` of `body` to `url`.
fn signature(
    credentials: &RoleCredentials,
    region: &str,
    url: &str,
    body: &[u8],
    at: Timestamp,
) -> Result<Vec<(String, String)>, String> {
    let RoleCredentials { access_key_id, secret_access_key, token, .. } = credentials;
    let identity =
        Credentials::new(access_key_id, secret_access_key, Some(token.clone()), None, "instance role").into();
    let params = v4::SigningParams::builder()
        .identity(&identity)
        .region(region)
        .name(SERVICE)
        .time(SystemTime::from(at))
        .settings(SigningSettings::default())
        .build()
        .map_err(|e| e.to_string())?;
    let content = [("content-type", "application/json")];
    let request = SignableRequest::new("POST", url, content.into_iter(), SignableBody::Bytes(body));
    let request = request.map_err(|e| e.to_string())?;
    let (instructions, _) = sign(request, &params.into()).map_err(|e| e.to_string())?.into_parts();
    Ok(instructions.headers().map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
}

/// The region in the host of a function URL: `{id}.lambda-url.{region}.on.aws`.
pub fn region_in(url: &str) -> Option<String> {
    let url = reqwest::Url::parse(url).ok()?;
    let mut parts = url.host_str()?.split('.').skip_while(|part| *part != "lambda-url");
    parts.next()?;
    parts.next().filter(|region| !region.is_empty()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_region_stands_in_a_function_url() {
        let url = "https://abcdefg.lambda-url.eu-west-1.on.aws/";
        assert_eq!(region_in(url).as_deref(), Some("eu-west-1"));
        for other in ["http://127.0.0.1:9000/lambda-url/heartbeat-ingest", "https://example.com", "no url"] {
            assert_eq!(region_in(other), None, "{other}");
        }
    }

    #[test]
    fn a_signature_names_its_headers_and_has_the_session_token() {
        let credentials = RoleCredentials {
            access_key_id: "AKIDEXAMPLE".into(),
            secret_access_key: "secret".into(),
            token: "session".into(),
            expiration: Timestamp::UNIX_EPOCH,
        };
        let at: Timestamp = "2026-11-23T12:00:00Z".parse().unwrap();
        let url = "https://a.lambda-url.eu-west-1.on.aws/v1/nodes/1/heartbeat";
        let headers = signature(&credentials, "eu-west-1", url, b"{}", at).unwrap();
        let value = |name: &str| headers.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str()).unwrap();
        assert_eq!((value("x-amz-date"), value("x-amz-security-token")), ("20261123T120000Z", "session"));
        let authorization = value("authorization");
        let scope = "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20261123/eu-west-1/lambda/aws4_request, SignedHeaders=\
                     content-type;host;x-amz-date;x-amz-security-token, Signature=";
        assert!(authorization.starts_with(scope), "{authorization}");
        assert!(!format!("{credentials:?}").contains("secret"));
    }
}
