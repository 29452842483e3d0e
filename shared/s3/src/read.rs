//! Reads an object.
//!
//! Guarantees: an object is given whole or not at all; a connection that breaks is an error, and never the end; the parts of a large
//! object come side by side, are of one and the same object, and take the memory of a few parts.
//! Does not: try again, except for a part of a large object. The caller does.

use crate::call::{Call, S3, header};
use crate::error::S3Error;
use crate::file::{AT_ONCE, PART_BYTES};
use model::error_chain::error_chain;
use model::stored::{S3Place, STREAMS_HEADER, THEN_HEADER};
use reqwest::{Method, Response};
use std::io::SeekFrom;
use std::path::Path;
use std::time::Duration;
use tokio::fs::File;
use tokio::io::{AsyncSeekExt, AsyncWriteExt};
use tokio::task::JoinSet;
use tokio::time::sleep;

/// How often a call is retried if S3 gives no usable answer or the connection breaks.
const AGAIN: u32 = 3;
/// The wait before each retry.
const WAIT: Duration = Duration::from_secs(1);

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

    /// Reads an object from this byte on, which must exist. The head then counts the bytes from there.
    pub async fn get_from(&self, place: &S3Place, from: u64, most: u64) -> Result<(Head, Vec<u8>), S3Error> {
        let mut call = Call::new(Method::GET, place);
        if from > 0 {
            call.headers.push(("range", format!("bytes={from}-")));
        }
        let response = self.call(&call).await?;
        Ok((head(&response), body(response, most).await?))
    }

    /// Reads an object into a file, from its beginning. Returns how many bytes it has. One of more than `most` bytes is an error. A
    /// file that was begun stays if this fails.
    pub async fn get_file(&self, place: &S3Place, path: &Path, most: u64) -> Result<u64, S3Error> {
        self.get_into(place, File::create(path).await?, most, |_| Ok(())).await
    }

    /// As [`Self::get_file`], into an open file. If the answer says how many bytes the object has, `reserve` gets their number before the
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
        let large = expected.filter(|expected| *expected > PART_BYTES);
        if let (Some(bytes), Some(tag)) = (large, header(&response, "etag")) {
            // What else comes of this answer is not read.
            drop(response);
            return self.get_parts(place, to, bytes, &tag).await;
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

    async fn get_parts(&self, place: &S3Place, mut to: File, bytes: u64, tag: &str) -> Result<u64, S3Error> {
        let mut starts = (0..bytes.div_ceil(PART_BYTES)).map(|no| no.saturating_mul(PART_BYTES));
        // If this is dropped, they end.
        let mut coming = JoinSet::new();
        loop {
            for from in starts.by_ref().take(AT_ONCE.saturating_sub(coming.len())) {
                let size = PART_BYTES.min(bytes.saturating_sub(from));
                coming.spawn(self.clone().get_part(place.clone(), from, size, tag.to_owned()));
            }
            let Some(part) = coming.join_next().await else { break };
            let (from, part) = part.map_err(|e| S3Error::Failed(e.to_string()))??;
            to.seek(SeekFrom::Start(from)).await?;
            to.write_all(&part).await?;
        }
        to.flush().await?;
        Ok(bytes)
    }

    /// The part of an object that begins at this byte, and where it begins.
    async fn get_part(self, place: S3Place, from: u64, bytes: u64, tag: String) -> Result<(u64, Vec<u8>), S3Error> {
        let range = format!("bytes={from}-{}", from.saturating_add(bytes).saturating_sub(1));
        let call = Call { headers: vec![("range", range)], ..Call::new(Method::GET, &place) };
        let part = again(|| self.get_part_once(&call, bytes, &tag)).await;
        // A whole new read gets the new object.
        let changed = || S3Error::Failed("the object changes while it is read".to_owned());
        part.map(|part| (from, part)).map_err(|error| if error == S3Error::Changed { changed() } else { error })
    }

    async fn get_part_once(&self, call: &Call<'_>, bytes: u64, tag: &str) -> Result<Vec<u8>, S3Error> {
        let response = self.call(call).await?;
        if header(&response, "etag").as_deref() != Some(tag) {
            return Err(S3Error::Changed);
        }
        let part = body(response, bytes).await?;
        if part.len() as u64 != bytes {
            return Err(S3Error::Failed(format!("{} of {bytes} bytes came", part.len())));
        }
        Ok(part)
    }

    /// Reads what S3 says of an object, without its content. [`S3Error::Absent`] if there is none.
    pub async fn head(&self, place: &S3Place) -> Result<Head, S3Error> {
        self.call(&Call::new(Method::HEAD, place)).await.map(|response| head(&response))
    }
}

/// Makes a call again after a failure that may pass by itself.
pub async fn again<T, F: Future<Output = Result<T, S3Error>>>(call: impl Fn() -> F) -> Result<T, S3Error> {
    let mut left = AGAIN;
    loop {
        match call().await {
            Err(S3Error::Failed(_) | S3Error::NoKeys(_)) if left > 0 => left -= 1,
            done => return done,
        }
        sleep(WAIT).await;
    }
}

/// The body of an answer. One of more than `most` bytes is an error.
async fn body(mut response: Response, most: u64) -> Result<Vec<u8>, S3Error> {
    let expected = length(&response).unwrap_or(0).min(most);
    let mut all = Vec::with_capacity(usize::try_from(expected).unwrap_or(0));
    while let Some(bytes) = response.chunk().await.map_err(|e| S3Error::Failed(error_chain(&e)))? {
        all.extend_from_slice(&bytes);
        if all.len() as u64 > most {
            return Err(S3Error::Refused(format!("the object has more than {most} bytes")));
        }
    }
    Ok(all)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::tests::s3_of;
    use axum::Router;
    use axum::body::Bytes;
    use axum::extract::State;
    use axum::http::{HeaderMap, StatusCode};
    use axum::response::{IntoResponse, Response};
    use axum::routing::any;
    use std::future::pending;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use std::sync::{Arc, Mutex};
    use tokio::time::timeout;

    const PART: usize = PART_BYTES as usize;

    /// What a part is answered with, by the no. of the part and how often it was answered before.
    enum Fault {
        Half,
        Status(StatusCode),
        OtherTag,
        Silence,
    }

    struct Object {
        content: Bytes,
        fault: fn(usize, usize) -> Option<Fault>,
        /// The part of each request; `None` is the whole.
        requests: Mutex<Vec<Option<usize>>>,
        /// How many parts are answered at this time, and at most.
        now: AtomicUsize,
        most: AtomicUsize,
    }

    struct Answering<'a>(&'a Object);

    impl Drop for Answering<'_> {
        fn drop(&mut self) {
            self.0.now.fetch_sub(1, SeqCst);
        }
    }

    async fn answer(State(object): State<Arc<Object>>, headers: HeaderMap) -> Response {
        let range = headers.get("range").map(|range| range.to_str().unwrap().strip_prefix("bytes=").unwrap());
        let Some((from, last)) = range.map(|range| range.split_once('-').unwrap()) else {
            object.requests.lock().unwrap().push(None);
            return ([("etag", "\"a\"")], object.content.clone()).into_response();
        };
        let (from, last): (usize, usize) = (from.parse().unwrap(), last.parse().unwrap());
        let no = from / PART;
        let before = {
            let mut requests = object.requests.lock().unwrap();
            requests.push(Some(no));
            requests.iter().filter(|part| **part == Some(no)).count() - 1
        };
        object.most.fetch_max(object.now.fetch_add(1, SeqCst) + 1, SeqCst);
        let _answering = Answering(&object);
        // Of parts that are asked for at the same time, the last one comes first.
        tokio::time::sleep(Duration::from_millis(200 - 40 * (no % AT_ONCE) as u64)).await;
        let part = object.content.slice(from..=last);
        let well = |tag, part: Bytes| (StatusCode::PARTIAL_CONTENT, [("etag", tag)], part).into_response();
        match (object.fault)(no, before) {
            None => well("\"a\"", part),
            Some(Fault::Half) => well("\"a\"", part.slice(..part.len() / 2)),
            Some(Fault::Status(status)) => status.into_response(),
            Some(Fault::OtherTag) => well("\"b\"", part),
            Some(Fault::Silence) => pending().await,
        }
    }

    /// An object of so many bytes, each block of which is another one.
    fn object(bytes: usize, fault: fn(usize, usize) -> Option<Fault>) -> Arc<Object> {
        let mut content = vec![7; bytes];
        for (no, block) in content.chunks_exact_mut(1024).enumerate() {
            block[..8].copy_from_slice(&no.to_le_bytes());
        }
        let (content, requests) = (content.into(), Mutex::default());
        Arc::new(Object { content, fault, requests, now: AtomicUsize::new(0), most: AtomicUsize::new(0) })
    }

    /// Reads the object into a file. Returns what came of it, and whether the file is the object.
    async fn read(object: &Arc<Object>) -> (Result<u64, S3Error>, bool) {
        let s3 = s3_of(Router::new().route("/bbb/k", any(answer)).with_state(Arc::clone(object))).await;
        let file = tempfile::NamedTempFile::new().unwrap();
        let read = s3.get_file(&"s3://bbb/k".parse().unwrap(), file.path(), u64::MAX).await;
        (read, std::fs::read(file.path()).unwrap() == object.content)
    }

    fn requests(object: &Object) -> Vec<Option<usize>> {
        let mut requests = object.requests.lock().unwrap().clone();
        requests.sort();
        requests
    }

    #[tokio::test]
    async fn a_large_object_comes_in_parts_side_by_side_and_a_small_one_at_once() {
        let large = object(7 * PART + 5, |_, _| None);
        assert_eq!(read(&large).await, (Ok(large.content.len() as u64), true));
        let expected: Vec<_> = [None].into_iter().chain((0..8).map(Some)).collect();
        assert_eq!((requests(&large), large.most.load(SeqCst)), (expected, AT_ONCE));
        for bytes in [0, PART] {
            let small = object(bytes, |_, _| None);
            assert_eq!(read(&small).await, (Ok(bytes as u64), true));
            assert_eq!(requests(&small), [None]);
        }
    }

    #[tokio::test]
    async fn a_part_that_fails_is_read_again_alone() {
        let passes = object(3 * PART, |no, before| match (no, before) {
            (1, 0) => Some(Fault::Half),
            (1, 1) => Some(Fault::Status(StatusCode::SERVICE_UNAVAILABLE)),
            _ => None,
        });
        let stays = object(2 * PART, |no, _| (no == 1).then_some(Fault::Half));
        let (well, failed) = tokio::join!(read(&passes), read(&stays));
        assert_eq!(well, (Ok(3 * PART_BYTES), true));
        assert_eq!(requests(&passes), [None, Some(0), Some(1), Some(1), Some(1), Some(2)]);
        assert_eq!(failed.0, Err(S3Error::Failed(format!("{} of {PART} bytes came", PART / 2))));
        assert_eq!(requests(&stays), [None, Some(0), Some(1), Some(1), Some(1), Some(1)]);
    }

    #[tokio::test]
    async fn parts_of_two_objects_are_no_object() {
        let other: fn(usize, usize) -> _ = |no, _| (no == 2).then_some(Fault::OtherTag);
        let smaller: fn(usize, usize) -> _ =
            |no, _| (no == 2).then_some(Fault::Status(StatusCode::RANGE_NOT_SATISFIABLE));
        for fault in [other, smaller] {
            let changing = object(3 * PART, fault);
            let changed = S3Error::Failed("the object changes while it is read".to_owned());
            assert_eq!(read(&changing).await.0, Err(changed));
            assert_eq!(requests(&changing).len(), 4);
        }
    }

    #[tokio::test]
    async fn a_read_that_is_dropped_ends_its_parts() {
        let object = object(6 * PART, |_, _| Some(Fault::Silence));
        assert!(timeout(Duration::from_millis(500), read(&object)).await.is_err());
        assert_eq!(requests(&object).len(), 1 + AT_ONCE);
        let ended = async {
            while object.now.load(SeqCst) > 0 {
                sleep(Duration::from_millis(10)).await;
            }
        };
        assert!(timeout(Duration::from_secs(5), ended).await.is_ok());
        assert_eq!(requests(&object).len(), 1 + AT_ONCE);
    }
}
