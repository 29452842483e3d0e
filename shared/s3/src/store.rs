//! Storing a file.
//!
//! Guarantees: at most one part of the file is in memory; a part that fails for a passing reason is sent again; an upload
//! that fails is ended, so that its parts cost nothing.
//! Does not: end the upload of a process that is killed. A lifecycle rule of the bucket does
//! (`AbortIncompleteMultipartUpload`).

use crate::call::{Call, S3, beginning, header};
use crate::error::S3Error;
use crate::xml::{complete_upload, text_of};
use model::stored::S3Place;
use reqwest::Method;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

/// The most parts of an object.
/// Source: "Amazon S3 multipart upload limits" in the Amazon S3 User Guide.
pub const PARTS: u64 = 10_000;
/// The size of a part, unless the file is very large.
const PART: u64 = 8 << 20;
/// The unit of larger parts.
const MIB: u64 = 1 << 20;
/// The waits before a part is sent again.
const AGAIN: [Duration; 3] = [Duration::from_secs(1), Duration::from_secs(2), Duration::from_secs(4)];
/// What an output is. A browser then shows it.
const CONTENT_TYPE: (&str, &str) = ("content-type", "text/plain; charset=utf-8");

/// The size of the parts of a file of this size, in bytes: 8 MiB up to a file of 78 GiB, and for a larger file as much as
/// 10,000 parts need.
pub const fn part_bytes(size: u64) -> u64 {
    let least = size.div_ceil(PARTS);
    if least <= PART { PART } else { least.div_ceil(MIB).saturating_mul(MIB) }
}

impl S3 {
    /// Stores the first `size` bytes of a file. A file of one part is one call.
    pub async fn store(&self, place: &S3Place, file: &Arc<File>, size: u64) -> Result<(), S3Error> {
        let part = part_bytes(size);
        if size <= part {
            let body = read(file, 0, size).await?;
            let headers = vec![(CONTENT_TYPE.0, CONTENT_TYPE.1.to_owned())];
            self.call(&Call { headers, body, ..Call::new(Method::PUT, place) }).await?;
            return Ok(());
        }
        let upload = self.begin(place).await?;
        let stored = match self.parts(place, &upload, file, size, part).await {
            Ok(etags) => self.complete(place, &upload, &etags).await,
            Err(error) => Err(error),
        };
        if stored.is_err() {
            self.abort(place, &upload).await;
        }
        stored
    }

    /// Begins an upload, and returns its id.
    async fn begin(&self, place: &S3Place) -> Result<String, S3Error> {
        let headers = vec![(CONTENT_TYPE.0, CONTENT_TYPE.1.to_owned())];
        let call = Call { query: "uploads=".to_owned(), headers, ..Call::new(Method::POST, place) };
        let answer = beginning(self.call(&call).await?).await;
        text_of(&answer, "UploadId").ok_or_else(|| S3Error::Failed("the answer has no UploadId".to_owned()))
    }

    /// Sends every part, one after the other.
    async fn parts(
        &self,
        place: &S3Place,
        upload: &str,
        file: &Arc<File>,
        size: u64,
        part: u64,
    ) -> Result<Vec<String>, S3Error> {
        let (mut etags, mut from) = (Vec::new(), 0);
        while from < size {
            let bytes = part.min(size.saturating_sub(from));
            let body = read(file, from, bytes).await?;
            let no = etags.len().saturating_add(1);
            let query = format!("partNumber={no}&uploadId={}", encoded(upload));
            etags.push(self.part(&Call { query, body, ..Call::new(Method::PUT, place) }).await?);
            from = from.saturating_add(bytes);
        }
        Ok(etags)
    }

    /// Sends one part. A long upload should not begin anew because of one bad moment.
    async fn part(&self, call: &Call<'_>) -> Result<String, S3Error> {
        let mut waits = AGAIN.into_iter();
        loop {
            match (self.call(call).await, waits.next()) {
                (Ok(answer), _) => {
                    let no_etag = || S3Error::Failed("the answer has no ETag".to_owned());
                    return header(&answer, "etag").ok_or_else(no_etag);
                }
                (Err(error), Some(wait)) if error.is_passing() => tokio::time::sleep(wait).await,
                (Err(error), _) => return Err(error),
            }
        }
    }

    async fn complete(&self, place: &S3Place, upload: &str, etags: &[String]) -> Result<(), S3Error> {
        let (query, body) = (upload_id(upload), complete_upload(etags).into_bytes());
        let answer = self.call(&Call { query, body, ..Call::new(Method::POST, place) }).await?;
        // S3 begins its answer before it knows the result. So a success may have an error in its body, and an answer that
        // breaks off may have none.
        let said = beginning(answer).await;
        if text_of(&said, "ETag").is_some() {
            return Ok(());
        }
        let code =
            text_of(&said, "Code").unwrap_or_else(|| "the answer does not say that the object is there".to_owned());
        Err(S3Error::of(500, &code, &text_of(&said, "Message").unwrap_or_default()))
    }

    /// Ends an upload that failed. If this fails too, its parts stay until the bucket's lifecycle rule removes them.
    async fn abort(&self, place: &S3Place, upload: &str) {
        let call = Call { query: upload_id(upload), ..Call::new(Method::DELETE, place) };
        if let Err(error) = self.call(&call).await {
            tracing::debug!(%place, %error, "an upload that failed was not ended");
        }
    }
}

fn upload_id(upload: &str) -> String {
    format!("uploadId={}", encoded(upload))
}

fn encoded(text: &str) -> String {
    form_urlencoded::byte_serialize(text.as_bytes()).collect()
}

/// Reads a part of the file. Less than that is an error: the file was cut meanwhile.
async fn read(file: &Arc<File>, from: u64, bytes: u64) -> Result<Vec<u8>, S3Error> {
    let file = Arc::clone(file);
    let length = usize::try_from(bytes).map_err(|_| S3Error::File("a part is too large".to_owned()))?;
    let read = move || {
        let mut part = vec![0; length];
        file.read_exact_at(&mut part, from).map(|()| part)
    };
    let read = tokio::task::spawn_blocking(read).await.map_err(|e| S3Error::File(e.to_string()))?;
    read.map_err(|e| S3Error::File(e.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_small_and_there_are_never_too_many() {
        assert_eq!([0, 1, 9 << 20, 70 << 30].map(part_bytes), [8 << 20; 4]);
        for size in [100 << 30, (5 << 40) - 1, 5 << 40] {
            let part = part_bytes(size);
            assert!(size.div_ceil(part) <= PARTS && part.is_multiple_of(MIB) && part < (5 << 30), "{size}: {part}");
        }
        assert_eq!(part_bytes(100 << 30), 11 << 20);
    }
}
