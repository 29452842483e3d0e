//! A stand-in for S3: the crate `s3s` over a folder.
//!
//! Guarantees: each request must be signed with a known secret key. What is stored stays in the folder.
//! Does not: know policies, regions, versions or lifecycles: each caller may read and write everything.

use axum::Router;
use axum::error_handling::HandleError;
use axum::http::StatusCode;
use s3s::access::S3Access;
use s3s::auth::{S3Auth, SecretKey};
use s3s::dto::{GetObjectInput, HeadObjectInput};
use s3s::service::S3ServiceBuilder;
use s3s::{HttpError, S3Request, S3Result, s3_error};
use s3s_fs::FileSystem;
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// Gives the secret key of an access key id; `None` if the id is not valid.
pub type SecretOf = Box<dyn Fn(&str) -> Option<String> + Send + Sync>;

/// S3 over this folder, with these buckets.
pub fn router(folder: &Path, buckets: &[&str], keys: SecretOf) -> io::Result<Router> {
    for bucket in buckets {
        DirBuilder::new().recursive(true).mode(0o700).create(folder.join(bucket))?;
    }
    let files = FileSystem::new(folder).map_err(|e| io::Error::other(format!("{e:?}")))?;
    let mut service = S3ServiceBuilder::new(files);
    service.set_auth(Signers(keys));
    service.set_access(FoldersAreNoObjects(folder.to_owned()));
    Ok(Router::new().fallback_service(HandleError::new(service.build(), failed)))
}

struct Signers(SecretOf);

#[async_trait::async_trait]
impl S3Auth for Signers {
    async fn get_secret_key(&self, access_key: &str) -> S3Result<SecretKey> {
        (self.0)(access_key).map(SecretKey::from).ok_or_else(|| s3_error!(InvalidAccessKeyId))
    }
}

/// A key that is a folder here has no object in S3. The crate would answer as if S3 were down.
struct FoldersAreNoObjects(PathBuf);

impl FoldersAreNoObjects {
    fn has_object(&self, bucket: &str, key: &str) -> S3Result<()> {
        if self.0.join(bucket).join(key).is_dir() { Err(s3_error!(NoSuchKey)) } else { Ok(()) }
    }
}

#[async_trait::async_trait]
impl S3Access for FoldersAreNoObjects {
    async fn get_object(&self, request: &mut S3Request<GetObjectInput>) -> S3Result<()> {
        self.has_object(&request.input.bucket, &request.input.key)
    }

    async fn head_object(&self, request: &mut S3Request<HeadObjectInput>) -> S3Result<()> {
        self.has_object(&request.input.bucket, &request.input.key)
    }
}

async fn failed(error: HttpError) -> (StatusCode, &'static str) {
    tracing::error!(?error, "the stand-in for S3 cannot answer");
    (StatusCode::INTERNAL_SERVER_ERROR, "the stand-in for S3 cannot answer")
}
