//! Signs requests with the credentials of the instance's role (AWS Signature Version 4).
//!
//! Guarantees: a request is signed with credentials that count now, and with AWS's time (see [`crate::contact::role_keys`]).
//! Does not: sign requests to S3; the crate `s3` does.
//! Source: "Signature Version 4" in the IAM User Guide; AWS accepts a request for five minutes around its time.

use super::role_keys::RoleKeys;
use jiff::Timestamp;
use s3::{Signed, signature};
use std::sync::Arc;

/// The service of function URLs.
const SERVICE: &str = "lambda";

/// Signs the requests of one node.
pub struct Signer {
    keys: Arc<RoleKeys>,
    region: String,
}

impl Signer {
    /// A signer for function URLs in this region.
    pub const fn new(keys: Arc<RoleKeys>, region: String) -> Self {
        Self { keys, region }
    }

    /// The headers that sign this `POST`, at this time of the node's clock.
    pub async fn headers(&self, url: &str, body: &[u8], at: Timestamp) -> Result<Vec<(String, String)>, String> {
        let access = self.keys.access(at).await.map_err(|e| e.to_string())?;
        let headers = &[("content-type", "application/json")];
        let signed = Signed { region: &self.region, service: SERVICE, method: "POST", url, headers, body };
        signature(&access, &signed).map_err(|e| format!("the request cannot be signed: {e}"))
    }

    /// Notes that AWS refused a signature: see [`RoleKeys::refused`].
    pub async fn refused(&self, date: Option<&str>, at: Timestamp) {
        self.keys.refused(date, at).await;
    }
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
    use aws_credential_types::Credentials;
    use s3::Access;
    use std::time::SystemTime;

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
        let credentials = Credentials::new("AKIDEXAMPLE", "secret", Some("session".into()), None, "test");
        let at: Timestamp = "2026-11-23T12:00:00Z".parse().unwrap();
        let url = "https://a.lambda-url.eu-west-1.on.aws/v1/nodes/1/heartbeat";
        let headers = &[("content-type", "application/json")];
        let (region, service, method) = ("eu-west-1", SERVICE, "POST");
        let access = Access { credentials, at: SystemTime::from(at) };
        let headers = signature(&access, &Signed { region, service, method, url, headers, body: b"{}" }).unwrap();
        let value = |name: &str| headers.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str()).unwrap();
        assert_eq!((value("x-amz-date"), value("x-amz-security-token")), ("20261123T120000Z", "session"));
        let authorization = value("authorization");
        let scope = "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20261123/eu-west-1/lambda/aws4_request, SignedHeaders=\
                     content-type;host;x-amz-date;x-amz-security-token, Signature=";
        assert!(authorization.starts_with(scope), "{authorization}");
    }
}
