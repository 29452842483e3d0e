//! One call of S3: its URL, its signature, and what a refusal means.
//!
//! Guarantees: a bucket of another region is found by S3's own answer.
//! Does not: try again after any other refusal.

use crate::Keys;
use crate::error::S3Error;
use crate::sign::{self, Signed, signature};
use crate::xml::text_of;
use model::error_chain::error_chain;
use model::stored::S3Place;
use reqwest::{Method, Response, StatusCode};
use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::timeout;

/// How long a connection may take.
const CONNECT: Duration = Duration::from_secs(5);
/// How long to wait for the next bytes of an answer. reqwest counts from the start of the call, so this also limits
/// sending the body.
const SILENCE: Duration = Duration::from_secs(60);
/// The longest time that a call with a body may take.
const UPLOAD: Duration = Duration::from_secs(300);
/// A call that has waited this long for an answer says so again and again.
const NO_ANSWER: Duration = Duration::from_secs(10);
/// For a call with a body, which may be slow.
const NO_ANSWER_UPLOAD: Duration = Duration::from_secs(60);
/// How much of the body of a refusal is read, in bytes.
const REFUSAL_BYTES: usize = 16 * 1024;
/// The header that names the region of a bucket.
const BUCKET_REGION: &str = "x-amz-bucket-region";

/// S3 for one caller. Cheap to clone.
#[derive(Clone)]
pub struct S3(Arc<Inner>);

struct Inner {
    http: reqwest::Client,
    upload: reqwest::Client,
    keys: Arc<dyn Keys>,
    region: String,
    endpoint: Option<String>,
    /// The regions of buckets that are not in `region`, by bucket.
    regions: Mutex<BTreeMap<String, String>>,
}

/// A call before it is signed.
pub(crate) struct Call<'a> {
    pub(crate) method: Method,
    pub(crate) place: &'a S3Place,
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) body: Vec<u8>,
    /// What comes after the `?` of the URL; empty for nothing.
    pub(crate) query: String,
}

impl<'a> Call<'a> {
    pub(crate) const fn new(method: Method, place: &'a S3Place) -> Self {
        Self { method, place, headers: Vec::new(), body: Vec::new(), query: String::new() }
    }
}

impl S3 {
    /// S3 in this region, or what speaks its API at `endpoint`. Fails if the system's certificates cannot be used.
    pub fn new(keys: Arc<dyn Keys>, region: String, endpoint: Option<&str>) -> Result<Self, S3Error> {
        // A redirect would need a signature of its own.
        let http = || reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).connect_timeout(CONNECT);
        let failed = |e: reqwest::Error| S3Error::Failed(format!("cannot set up HTTP: {}", error_chain(&e)));
        // The time for a read begins with the call. A slow upload would use it up before S3 can answer.
        let upload = http().timeout(UPLOAD).build().map_err(failed)?;
        let http = http().read_timeout(SILENCE).build().map_err(failed)?;
        let endpoint = endpoint.map(|url| url.trim_end_matches('/').to_owned());
        Ok(Self(Arc::new(Inner { http, upload, keys, region, endpoint, regions: Mutex::default() })))
    }

    /// Makes a call, and returns a successful answer before its body is read.
    pub(crate) async fn call(&self, call: &Call<'_>) -> Result<Response, S3Error> {
        let response = self.send(call).await?;
        let Some(region) = self.other_region(call.place.bucket(), &response) else {
            return self.succeeded(response).await;
        };
        tracing::debug!(bucket = call.place.bucket(), region, "the bucket is in another region");
        self.regions().insert(call.place.bucket().to_owned(), region);
        let response = self.send(call).await?;
        self.succeeded(response).await
    }

    async fn send(&self, call: &Call<'_>) -> Result<Response, S3Error> {
        let region = self.region_of(call.place.bucket());
        let mut url = url(self.0.endpoint.as_deref(), &region, call.place);
        if !call.query.is_empty() {
            url = format!("{url}?{}", call.query);
        }
        let access = self.0.keys.access().await.map_err(S3Error::NoKeys)?;
        let headers: Vec<_> = call.headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let (method, service) = (call.method.as_str(), sign::S3);
        let signed = Signed { region: &region, service, method, url: &url, headers: &headers, body: &call.body };
        let signed = signature(&access, &signed).map_err(S3Error::Refused)?;
        let uploads = matches!(call.method, Method::PUT | Method::POST);
        let (http, mut no_answer) =
            if uploads { (&self.0.upload, NO_ANSWER_UPLOAD) } else { (&self.0.http, NO_ANSWER) };
        let request = http.request(call.method.clone(), &url);
        let request = call.headers.iter().fold(request, |request, (name, value)| request.header(*name, value));
        let mut request = signed.into_iter().fold(request, |request, (name, value)| request.header(name, value));
        if uploads {
            request = request.body(call.body.clone());
        }
        let mut sent = pin!(request.send());
        let response = loop {
            match timeout(no_answer, &mut sent).await {
                Ok(response) => break response.map_err(|e| error_chain(&e)),
                Err(_) => self.0.keys.answered(&url, Some("it does not answer")),
            }
            no_answer = NO_ANSWER;
        };
        let status = response.as_ref().map_or(0, |response| response.status().as_u16());
        let failed = || (status >= 500).then(|| format!("it answers {status}"));
        self.0.keys.answered(&url, response.as_ref().err().cloned().or_else(failed).as_deref());
        let response = response.map_err(S3Error::Failed)?;
        if matches!(response.status(), StatusCode::FORBIDDEN | StatusCode::UNAUTHORIZED | StatusCode::BAD_REQUEST) {
            self.0.keys.refused(&access, header(&response, "date").as_deref()).await;
        }
        Ok(response)
    }

    async fn succeeded(&self, response: Response) -> Result<Response, S3Error> {
        if response.status().is_success() {
            return Ok(response);
        }
        let status = response.status().as_u16();
        let body = beginning(response).await;
        let said = |name| text_of(&body, name).unwrap_or_default();
        Err(S3Error::of(status, &said("Code"), &said("Message")))
    }

    /// The region of the bucket, if the answer says that it is another one than the call was for.
    fn other_region(&self, bucket: &str, response: &Response) -> Option<String> {
        if response.status().is_success() {
            return None;
        }
        header(response, BUCKET_REGION).filter(|region| is_region(region) && *region != self.region_of(bucket))
    }

    fn region_of(&self, bucket: &str) -> String {
        self.regions().get(bucket).unwrap_or(&self.0.region).clone()
    }

    fn regions(&self) -> MutexGuard<'_, BTreeMap<String, String>> {
        self.0.regions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) fn header(response: &Response, name: &str) -> Option<String> {
    response.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned)
}

/// The first [`REFUSAL_BYTES`] of a body, as text.
pub(crate) async fn beginning(mut response: Response) -> String {
    let mut body = Vec::new();
    while body.len() < REFUSAL_BYTES
        && let Ok(Some(chunk)) = response.chunk().await
    {
        body.extend_from_slice(&chunk);
    }
    body.truncate(REFUSAL_BYTES);
    String::from_utf8_lossy(&body).into_owned()
}

/// A text, encoded for a URL as the signature expects it.
pub(crate) fn encoded(text: &str) -> String {
    let is_plain = |b: &u8| b.is_ascii_alphanumeric() || b"-._~".contains(b);
    text.bytes().map(|b| if is_plain(&b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}

/// Whether this can be the name of a region. It becomes a part of a host name.
fn is_region(text: &str) -> bool {
    (1..=32).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
}

/// The URL of an object. The certificate of S3 covers only bucket names without dots, so the others are named in the
/// path.
fn url(endpoint: Option<&str>, region: &str, place: &S3Place) -> String {
    let key = place.key().split('/').map(encoded).collect::<Vec<_>>().join("/");
    let bucket = place.bucket();
    let suffix = if region.starts_with("cn-") { "amazonaws.com.cn" } else { "amazonaws.com" };
    match endpoint {
        Some(endpoint) => format!("{endpoint}/{bucket}/{key}"),
        None if bucket.contains('.') => format!("https://s3.{region}.{suffix}/{bucket}/{key}"),
        None => format!("https://{bucket}.s3.{region}.{suffix}/{key}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_url_of_an_object() {
        let of = |endpoint, region, place: &str| url(endpoint, region, &place.parse().unwrap());
        assert_eq!(of(None, "eu-west-1", "s3://logs/a/b.log"), "https://logs.s3.eu-west-1.amazonaws.com/a/b.log");
        assert_eq!(of(None, "eu-west-1", "s3://my.logs/b"), "https://s3.eu-west-1.amazonaws.com/my.logs/b");
        assert_eq!(of(None, "cn-north-1", "s3://logs/b"), "https://logs.s3.cn-north-1.amazonaws.com.cn/b");
        assert_eq!(of(Some("http://h:1"), "r", "s3://logs/b"), "http://h:1/logs/b");
        assert_eq!(of(Some("http://h:1"), "r", "s3://logs/a=1/b c?é"), "http://h:1/logs/a%3D1/b%20c%3F%C3%A9");
        assert!(is_region("eu-central-1") && !is_region("evil.example/") && !is_region(""));
    }
}
