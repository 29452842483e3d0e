//! The signature of a call: of S3, and of other services that the agent calls.
//!
//! Guarantees: the signature covers the body, and counts from the time that the caller gives.
//! Does not: send the call, or find credentials.
//! Source: "Signature Calculations for the Authorization Header" in the Amazon S3 API Reference, and "Signature Version
//! 4" in the IAM User Guide.

use crate::Access;
use aws_sigv4::http_request::{
    PayloadChecksumKind, PercentEncodingMode, SignableBody, SignableRequest, SigningSettings, UriPathNormalizationMode,
    sign,
};
use aws_sigv4::sign::v4;

/// The name of S3 in signatures.
pub(crate) const S3: &str = "s3";

#[derive(Clone, Copy, Debug)]
pub struct Signed<'a> {
    pub region: &'a str,
    /// The service that takes the call, as signatures call it.
    pub service: &'a str,
    pub method: &'a str,
    pub url: &'a str,
    /// The headers that the signature covers besides those of every call.
    pub headers: &'a [(&'a str, &'a str)],
    pub body: &'a [u8],
}

/// The headers that sign the call, by name, with the time of `access`. An error if the URL or a header cannot be signed.
pub fn signature(access: &Access, call: &Signed<'_>) -> Result<Vec<(String, String)>, String> {
    let mut settings = SigningSettings::default();
    if call.service == S3 {
        // S3 takes the path as it is, and wants the digest of the body in a header of its own.
        settings.percent_encoding_mode = PercentEncodingMode::Single;
        settings.uri_path_normalization_mode = UriPathNormalizationMode::Disabled;
        settings.payload_checksum_kind = PayloadChecksumKind::XAmzSha256;
    }
    let identity = access.credentials.clone().into();
    let params = v4::SigningParams::builder()
        .identity(&identity)
        .region(call.region)
        .name(call.service)
        .time(access.at)
        .settings(settings)
        .build()
        .map_err(|e| e.to_string())?;
    let (headers, body) = (call.headers.iter().copied(), SignableBody::Bytes(call.body));
    let request = SignableRequest::new(call.method, call.url, headers, body).map_err(|e| e.to_string())?;
    let (instructions, _) = sign(request, &params.into()).map_err(|e| e.to_string())?.into_parts();
    Ok(instructions.headers().map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use aws_credential_types::Credentials;
    use std::time::{Duration, SystemTime};

    /// The examples of the page that is named above: reading a range, and storing an object.
    #[test]
    fn the_signatures_are_those_of_the_documentation() {
        let secret = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY";
        let credentials = Credentials::new("AKIAIOSFODNN7EXAMPLE", secret, None, None, "test");
        // 2013-05-24T00:00:00Z
        let at = SystemTime::UNIX_EPOCH + Duration::from_secs(1_369_353_600);
        let access = Access { credentials, at };
        let value = |headers: &[(String, String)], name: &str| {
            headers.iter().find(|(n, _)| n == name).map(|(_, v)| v.clone()).unwrap()
        };
        let url = "https://examplebucket.s3.amazonaws.com/test.txt";
        let get = Signed {
            region: "us-east-1",
            service: S3,
            method: "GET",
            url,
            headers: &[("range", "bytes=0-9")],
            body: b"",
        };
        let signed = signature(&access, &get).unwrap();
        let expected = "SignedHeaders=host;range;x-amz-content-sha256;x-amz-date, Signature=\
                        f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41";
        assert!(value(&signed, "authorization").ends_with(expected), "{signed:?}");
        assert_eq!(value(&signed, "x-amz-date"), "20130524T000000Z");
        let headers = &[("date", "Fri, 24 May 2013 00:00:00 GMT"), ("x-amz-storage-class", "REDUCED_REDUNDANCY")];
        let url = "https://examplebucket.s3.amazonaws.com/test%24file.text";
        let body = b"Welcome to Amazon S3.";
        let signed = signature(&access, &Signed { method: "PUT", url, headers, body, ..get }).unwrap();
        let expected = "Signature=98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd";
        assert!(value(&signed, "authorization").ends_with(expected), "{signed:?}");
        let digest = "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072";
        assert_eq!(value(&signed, "x-amz-content-sha256"), digest);
    }
}
