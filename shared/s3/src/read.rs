//! Reading an object.
//!
//! Guarantees: the object comes in pieces as it arrives; a piece that does not come is an error, and never the end.
//! Does not: go on after an error. The caller opens the object again where it stopped.

use crate::call::{Call, S3, header};
use crate::error::S3Error;
use model::causes::chain;
use model::stored::S3Place;
use reqwest::{Method, Response, StatusCode};

/// Where to begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum From {
    /// At this byte.
    Byte(u64),
    /// So many bytes before the end.
    Last(u64),
}

/// An object, or the rest of one.
#[derive(Debug)]
pub struct Object {
    /// Where the first piece begins in the object, in bytes.
    pub offset: u64,
    /// `None` if nothing is left there.
    response: Option<Response>,
}

impl S3 {
    /// Opens an object.
    pub async fn open(&self, place: &S3Place, from: From) -> Result<Object, S3Error> {
        let range = match from {
            From::Byte(0) => None,
            From::Byte(byte) => Some(format!("bytes={byte}-")),
            From::Last(bytes) => Some(format!("bytes=-{}", bytes.max(1))),
        };
        let headers = range.map(|range| ("range", range)).into_iter().collect();
        match self.call(&Call { headers, ..Call::new(Method::GET, place) }).await {
            Ok(response) if response.status() == StatusCode::PARTIAL_CONTENT => {
                let offset = header(&response, "content-range").and_then(|range| begins_at(&range));
                let offset = offset.ok_or_else(|| S3Error::Failed("the answer does not say its range".to_owned()))?;
                Ok(Object { offset, response: Some(response) })
            }
            Ok(response) => Ok(Object { offset: 0, response: Some(response) }),
            // The object ends where the range would begin.
            Err(S3Error::Beyond) => {
                let offset = if let From::Byte(byte) = from { byte } else { 0 };
                Ok(Object { offset, response: None })
            }
            Err(error) => Err(error),
        }
    }
}

impl Object {
    /// The next piece; `None` at the end of the object.
    pub async fn chunk(&mut self) -> Result<Option<Vec<u8>>, S3Error> {
        let Some(response) = &mut self.response else { return Ok(None) };
        let chunk = response.chunk().await.map_err(|e| S3Error::Failed(chain(&e)))?;
        Ok(chunk.map(|bytes| bytes.to_vec()))
    }
}

/// The first byte of a range like `bytes 5-9/10`.
fn begins_at(range: &str) -> Option<u64> {
    range.strip_prefix("bytes ")?.split_once('-')?.0.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_says_where_it_begins() {
        assert_eq!(["bytes 5-9/10", "bytes 0-0/1", "bytes */10", "x"].map(begins_at), [Some(5), Some(0), None, None]);
    }
}
