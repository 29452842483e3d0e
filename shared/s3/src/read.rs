//! Reads an object.
//!
//! Guarantees: an object is given whole or not at all; a connection that breaks is an error, and never the end.
//! Does not: try again. The caller does.

use crate::call::{Call, S3, header};
use crate::error::S3Error;
use model::error_chain::error_chain;
use model::stored::{S3Place, STREAMS_HEADER, THEN_HEADER};
use reqwest::{Method, Response};
use std::path::Path;
use tokio::fs::File;
use tokio::io::AsyncWriteExt;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    pub bytes: u64,
    /// Its metadata [`THEN_HEADER`], as its writer gave it.
    pub then: Option<String>,
    /// Its metadata [`STREAMS_HEADER`], as its writer gave it.
    pub streams: Option<String>,
    /// When it was stored, as HTTP writes it.
    pub stored: Option<String>,
}

impl S3 {
    /// Reads an object. One of more than `most` bytes is an error.
    pub async fn get(&self, place: &S3Place, most: u64) -> Result<(Head, Vec<u8>), S3Error> {
        self.get_from(place, 0, most).await
    }

    /// The same from this byte on, which must be there. The head then counts the bytes from there.
    pub async fn get_from(&self, place: &S3Place, from: u64, most: u64) -> Result<(Head, Vec<u8>), S3Error> {
        let mut call = Call::new(Method::GET, place);
        if from > 0 {
            call.headers.push(("range", format!("bytes={from}-")));
        }
        let mut response = self.call(&call).await?;
        let (head, mut all) = (head(&response), Vec::new());
        while let Some(bytes) = response.chunk().await.map_err(|e| S3Error::Failed(error_chain(&e)))? {
            all.extend_from_slice(&bytes);
            if all.len() as u64 > most {
                return Err(too_large(most));
            }
        }
        Ok((head, all))
    }

    /// Reads an object into a file, from its beginning. Returns how many bytes it has. One of more than `most` bytes is an error. A
    /// file that was begun stays if this fails.
    pub async fn get_file(&self, place: &S3Place, path: &Path, most: u64) -> Result<u64, S3Error> {
        self.get_into(place, File::create(path).await?, most, |_| Ok(())).await
    }

    /// The same for an open file. If the answer says how many bytes the object has, `reserve` is called with their number before the
    /// first one is written.
    pub async fn get_into(
        &self,
        place: &S3Place,
        mut to: File,
        most: u64,
        reserve: impl FnOnce(u64) -> std::io::Result<()>,
    ) -> Result<u64, S3Error> {
        let mut response = self.call(&Call::new(Method::GET, place)).await?;
        let (expected, mut bytes) = (length(&response), 0_u64);
        let fits = |bytes: u64| if bytes > most { Err(S3Error::TooLarge { bytes, most }) } else { Ok(()) };
        if let Some(expected) = expected {
            fits(expected)?;
            reserve(expected)?;
        }
        while let Some(chunk) = response.chunk().await.map_err(|e| S3Error::Failed(error_chain(&e)))? {
            bytes = bytes.saturating_add(chunk.len() as u64);
            fits(bytes)?;
            to.write_all(&chunk).await?;
        }
        to.flush().await?;
        // An answer in chunks says no length, and its last chunk says that it is whole.
        if let Some(expected) = expected.filter(|expected| *expected != bytes) {
            return Err(S3Error::Failed(format!("{bytes} of {expected} bytes came")));
        }
        Ok(bytes)
    }

    /// Reads what S3 says of an object, without its content.
    pub async fn head(&self, place: &S3Place) -> Result<Head, S3Error> {
        self.call(&Call::new(Method::HEAD, place)).await.map(|response| head(&response))
    }
}

fn too_large(most: u64) -> S3Error {
    S3Error::Refused(format!("the object has more than {most} bytes"))
}

fn length(response: &Response) -> Option<u64> {
    header(response, "content-length")?.parse().ok()
}

fn head(response: &Response) -> Head {
    Head {
        bytes: length(response).unwrap_or(0),
        then: header(response, THEN_HEADER),
        streams: header(response, STREAMS_HEADER),
        stored: header(response, "last-modified"),
    }
}
