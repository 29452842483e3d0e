//! Stores a file, or what is made while it is stored, of any size.
//!
//! Guarantees: what is stored has the digest that the caller gave, or nothing is stored: a file that changes meanwhile
//! is an error; the memory that this takes is that of a few parts.
//! Does not: delete the parts of a failed upload, which would need another permission. A lifecycle rule of the bucket
//! deletes them, and until then they cost storage.
//! Source: "Uploading and copying objects using multipart upload", Amazon S3 User Guide.

use crate::call::{Call, S3, beginning, encoded, header};
use crate::error::S3Error;
use crate::xml::text_of;
use model::stored::S3Place;
use reqwest::Method;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::path::Path;
use tokio::fs::File;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::task::JoinSet;

/// A larger file goes in parts, and each part but the last one has at least this many bytes.
pub(crate) const PART_BYTES: u64 = 8 << 20;
/// The most parts of an object.
const MAX_PARTS: u64 = 10_000;
/// How many parts are sent or read at a time, at most.
pub(crate) const AT_ONCE: usize = 4;
/// The memory for the parts that are being sent, in bytes. One part may need more.
const MEMORY: u64 = 128 << 20;

impl S3 {
    /// Stores a file that has this size and this digest. Otherwise [`S3Error::Changed`], and nothing is stored.
    pub async fn put_file(&self, place: &S3Place, path: &Path, bytes: u64, sha256: &str) -> Result<(), S3Error> {
        self.put_from(place, File::open(path).await?, bytes, sha256).await
    }

    /// Stores what is read, which must have this size and this digest.
    pub async fn put_from(
        &self,
        place: &S3Place,
        from: impl AsyncRead + Unpin,
        bytes: u64,
        sha256: &str,
    ) -> Result<(), S3Error> {
        self.put_in_parts(place, from, (bytes, sha256), PART_BYTES.max(bytes.div_ceil(MAX_PARTS))).await
    }

    async fn put_in_parts(
        &self,
        place: &S3Place,
        mut file: impl AsyncRead + Unpin,
        (bytes, sha256): (u64, &str),
        part_bytes: u64,
    ) -> Result<(), S3Error> {
        let mut digest = Sha256::new();
        let at_once = usize::try_from(MEMORY / part_bytes.max(1)).unwrap_or(1).clamp(1, AT_ONCE);
        let first = part(&mut file, part_bytes, &mut digest).await?;
        if bytes <= part_bytes {
            check(digest, sha256)?;
            return self.put(place, first, &[]).await;
        }
        let upload = self.begin(place).await?;
        let (mut sending, mut tags, mut next) = (JoinSet::new(), BTreeMap::new(), first);
        for no in 1_u64.. {
            if next.is_empty() {
                break;
            }
            sending.spawn(self.clone().put_part(place.clone(), upload.clone(), no, next));
            next = part(&mut file, part_bytes, &mut digest).await?;
            while sending.len() >= at_once || (next.is_empty() && !sending.is_empty()) {
                let Some(sent) = sending.join_next().await else { break };
                let (no, tag) = sent.map_err(|e| S3Error::Failed(e.to_string()))??;
                tags.insert(no, tag);
            }
        }
        check(digest, sha256)?;
        self.end(place, &upload, &tags).await
    }

    async fn begin(&self, place: &S3Place) -> Result<String, S3Error> {
        let call = Call { query: "uploads=".to_owned(), ..Call::new(Method::POST, place) };
        let answer = beginning(self.call(&call).await?).await;
        text_of(&answer, "UploadId").ok_or_else(|| S3Error::Failed("the answer has no UploadId".to_owned()))
    }

    async fn put_part(self, place: S3Place, upload: String, no: u64, body: Vec<u8>) -> Result<(u64, String), S3Error> {
        let query = format!("partNumber={no}&uploadId={}", encoded(&upload));
        let answer = self.call(&Call { query, body, ..Call::new(Method::PUT, &place) }).await?;
        header(&answer, "etag").map(|tag| (no, tag)).ok_or_else(|| S3Error::Failed("a part has no ETag".to_owned()))
    }

    async fn end(&self, place: &S3Place, upload: &str, tags: &BTreeMap<u64, String>) -> Result<(), S3Error> {
        let part = |(no, tag): (&u64, &String)| {
            let tag = tag.replace('&', "&amp;").replace('<', "&lt;");
            format!("<Part><PartNumber>{no}</PartNumber><ETag>{tag}</ETag></Part>")
        };
        let parts: String = tags.iter().map(part).collect();
        let body = format!("<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>").into_bytes();
        let query = format!("uploadId={}", encoded(upload));
        let answer = beginning(self.call(&Call { query, body, ..Call::new(Method::POST, place) }).await?).await;
        // S3 answers before it has put the parts together, and may say afterwards that it could not.
        match text_of(&answer, "ETag") {
            Some(_) => Ok(()),
            None => Err(S3Error::Failed(format!("the parts are not put together: {:?}", text_of(&answer, "Code")))),
        }
    }
}

/// The next `bytes` bytes of a file, or what is left of it.
async fn part(file: &mut (impl AsyncRead + Unpin), bytes: u64, digest: &mut Sha256) -> Result<Vec<u8>, S3Error> {
    let mut part = Vec::new();
    file.take(bytes).read_to_end(&mut part).await?;
    digest.update(&part);
    Ok(part)
}

fn check(digest: Sha256, sha256: &str) -> Result<(), S3Error> {
    if model::auth::hex(&digest.finalize()) == sha256 {
        return Ok(());
    }
    Err(S3Error::Changed)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::{Access, Keys};
    use async_trait::async_trait;
    use aws_credential_types::Credentials;
    use axum::Router;
    use axum::body::Bytes;
    use axum::extract::State;
    use axum::http::{Method, Uri};
    use axum::response::{IntoResponse, Response};
    use axum::routing::any;
    use std::sync::{Arc, Mutex};
    use std::time::SystemTime;

    struct Anybody;

    #[async_trait]
    impl Keys for Anybody {
        async fn access(&self) -> Result<Access, String> {
            Ok(Access { credentials: Credentials::new("id", "secret", None, None, "test"), at: SystemTime::UNIX_EPOCH })
        }

        async fn refused(&self, _: &Access, _: Option<&str>) {}
    }

    /// S3 that this answers for.
    pub(crate) async fn s3_of(router: Router) -> S3 {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, router).await });
        S3::new(Arc::new(Anybody), "r".to_owned(), Some(&url)).unwrap()
    }

    /// The bodies that came, by method and query, and whether the parts can be put together.
    type Came = Arc<Mutex<(BTreeMap<String, Bytes>, bool)>>;

    async fn answer(State(came): State<Came>, method: Method, uri: Uri, body: Bytes) -> Response {
        let (query, mut came) = (uri.query().unwrap_or_default().to_owned(), came.lock().unwrap());
        came.0.insert(format!("{method} {query}"), body);
        match (method, came.1) {
            (Method::POST, _) if query == "uploads=" => "<R><UploadId>a/b</UploadId></R>".into_response(),
            (Method::POST, true) => "<R><ETag>all</ETag></R>".into_response(),
            (Method::POST, false) => "<Error><Code>InternalError</Code></Error>".into_response(),
            _ => [("etag", format!("\"{}\"", query.len()))].into_response(),
        }
    }

    async fn stored(text: &str, sha256: Option<&str>, is_well: bool) -> (Result<(), S3Error>, BTreeMap<String, Bytes>) {
        let came = Came::new(Mutex::new((BTreeMap::new(), is_well)));
        let s3 = s3_of(Router::new().route("/bbb/k", any(answer)).with_state(Arc::clone(&came))).await;
        let (dir, place) = (tempfile::tempdir().unwrap(), "s3://bbb/k".parse().unwrap());
        let path = dir.path().join("f");
        std::fs::write(&path, text).unwrap();
        let digest = model::auth::hex(&Sha256::digest(text));
        let content = (text.len() as u64, sha256.unwrap_or(&digest));
        let stored = s3.put_in_parts(&place, File::open(&path).await.unwrap(), content, 4).await;
        let came = came.lock().unwrap().0.clone();
        (stored, came)
    }

    #[tokio::test]
    async fn a_large_file_goes_in_parts_and_a_small_one_at_once() {
        let (done, came) = stored("abcd", None, true).await;
        assert_eq!((done, came.keys().map(String::as_str).collect::<Vec<_>>()), (Ok(()), vec!["PUT "]));
        let text = "0123456789abcdefghijklmnopq";
        let (done, came) = stored(text, None, true).await;
        let parts: Vec<&[u8]> =
            (1..=7).map(|no| came[&format!("PUT partNumber={no}&uploadId=a%2Fb")].as_ref()).collect();
        assert_eq!((done, parts.concat()), (Ok(()), text.as_bytes().to_vec()));
        let end = String::from_utf8_lossy(&came["POST uploadId=a%2Fb"]).into_owned();
        assert!(end.contains("<Part><PartNumber>7</PartNumber><ETag>\"27\"</ETag></Part></Complete"), "{end}");
    }

    #[tokio::test]
    async fn a_file_that_changes_or_an_upload_that_breaks_is_no_object() {
        for text in ["abcd", "0123456789"] {
            let (done, came) = stored(text, Some("0"), true).await;
            assert_eq!(done, Err(S3Error::Changed));
            assert!(!came.contains_key("PUT ") && !came.contains_key("POST uploadId=a%2Fb"), "{came:?}");
        }
        let (done, _) = stored("0123456789", None, false).await;
        assert_eq!(done, Err(S3Error::Failed("the parts are not put together: Some(\"InternalError\")".into())));
    }
}
