//! Stores an object.
//!
//! Guarantees: an object is there whole or not at all; storing it once more replaces it.
//! Does not: try again. The caller does, with the output as it is then.

use crate::call::{Call, S3};
use crate::error::S3Error;
use model::stored::S3Place;
use reqwest::Method;

/// The type of an output, so that a browser shows it.
const CONTENT_TYPE: (&str, &str) = ("content-type", "text/plain; charset=utf-8");

impl S3 {
    /// Stores an object with this metadata: names that begin with `x-amz-meta-`, and values.
    pub async fn put(&self, place: &S3Place, body: Vec<u8>, metadata: &[(&'static str, &str)]) -> Result<(), S3Error> {
        let headers = [CONTENT_TYPE].iter().chain(metadata).map(|(name, value)| (*name, (*value).to_owned())).collect();
        self.call(&Call { headers, body, ..Call::new(Method::PUT, place) }).await.map(drop)
    }
}
