//! Storing an object.
//!
//! Guarantees: an object is there whole or not at all; storing it once more replaces it.
//! Does not: try again. The caller does, with what there is by then.

use crate::call::{Call, Payload, S3, Sent};
use crate::error::S3Error;
use model::stored::S3Place;
use reqwest::Method;
use std::path::Path;

/// What an output is. A browser then shows it.
const CONTENT_TYPE: (&str, &str) = ("content-type", "text/plain; charset=utf-8");

impl S3 {
    /// Stores an object with this metadata: names that begin with `x-amz-meta-`, and values.
    pub async fn put(&self, place: &S3Place, body: Vec<u8>, metadata: &[(&'static str, &str)]) -> Result<(), S3Error> {
        let headers = [CONTENT_TYPE].iter().chain(metadata).map(|(name, value)| (*name, (*value).to_owned())).collect();
        let body = Payload::Bytes(body);
        self.call(&Call { headers, body, ..Call::new(Method::PUT, place) }).await.map(drop)
    }

    /// Stores a file that has this digest: S3 refuses it if it has changed since. It is read while it is sent.
    pub async fn put_file(&self, place: &S3Place, path: &Path, bytes: u64, sha256: &str) -> Result<(), S3Error> {
        let body = Payload::File(Sent { path: path.to_owned(), bytes, sha256: sha256.to_owned() });
        self.call(&Call { body, ..Call::new(Method::PUT, place) }).await.map(drop)
    }
}
