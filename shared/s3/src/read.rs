//! Reading an object.
//!
//! Guarantees: an object is given whole or not at all; a connection that breaks is an error, and never the end.
//! Does not: try again. The caller does.

use crate::call::{Call, S3, header};
use crate::error::S3Error;
use model::error_chain::error_chain;
use model::stored::{S3Place, STREAMS_HEADER, THEN_HEADER};
use reqwest::{Method, Response};

/// What an object says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// How many bytes it has.
    pub bytes: u64,
    /// Its metadata [`THEN_HEADER`], as its writer gave it.
    pub then: Option<String>,
    /// Its metadata [`STREAMS_HEADER`], as its writer gave it.
    pub streams: Option<String>,
}

impl S3 {
    /// Reads an object of at most so many bytes.
    pub async fn get(&self, place: &S3Place, most: u64) -> Result<(Head, Vec<u8>), S3Error> {
        let mut response = self.call(&Call::new(Method::GET, place)).await?;
        let (head, mut all) = (head(&response), Vec::new());
        while let Some(bytes) = response.chunk().await.map_err(|e| S3Error::Failed(error_chain(&e)))? {
            all.extend_from_slice(&bytes);
            if all.len() as u64 > most {
                return Err(S3Error::Refused(format!("the object has more than {most} bytes")));
            }
        }
        Ok((head, all))
    }

    /// What an object says of itself.
    pub async fn head(&self, place: &S3Place) -> Result<Head, S3Error> {
        self.call(&Call::new(Method::HEAD, place)).await.map(|response| head(&response))
    }
}

fn head(response: &Response) -> Head {
    let bytes = header(response, "content-length").and_then(|bytes| bytes.parse().ok()).unwrap_or(0);
    Head { bytes, then: header(response, THEN_HEADER), streams: header(response, STREAMS_HEADER) }
}
