//! S3 clients for the outputs in tests of the commands.

use aws_credential_types::provider::SharedCredentialsProvider;
use aws_sdk_dynamodb::config::Credentials;
use std::time::{Duration, SystemTime};

/// A client of the S3 at this URL.
pub(super) fn client(url: &str) -> s3::S3 {
    let config = aws_config::SdkConfig::builder()
        .region(aws_config::Region::new("eu-west-1"))
        .credentials_provider(SharedCredentialsProvider::new(Credentials::new("AKID", "secret", None, None, "test")))
        .endpoint_url(url)
        .build();
    crate::aws::s3(&config, None, || SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000)).unwrap()
}

/// A client of an S3 that nobody serves.
pub(super) fn nothing() -> s3::S3 {
    client("http://127.0.0.1:9")
}
