//! Which certificate authorities a function believes when it calls AWS.
//!
//! The endpoints of AWS have certificates of Amazon Trust Services. Its root certificates are in the binary
//! (`amazon_roots.pem`, from <https://www.amazontrust.com/repository/>), so that no start has to read and parse the system's
//! list of some 140 authorities.
//!
//! Guarantees: a function believes the system's list wherever the endpoint may have another certificate: in other
//! partitions of AWS, with an endpoint of its own, and with a list that somebody has chosen.
//! Does not: read the environment; its caller passes the variables.

use aws_config::ConfigLoader;
use aws_smithy_http_client::Builder;
use aws_smithy_http_client::tls::rustls_provider::CryptoMode;
use aws_smithy_http_client::tls::{Provider, TlsContext, TrustStore};

/// The five root certificates of Amazon Trust Services.
const AMAZON_ROOTS: &[u8] = include_bytes!("amazon_roots.pem");

/// The regions of the partition `aws` begin with one of these.
const REGIONS: [&str; 9] = ["af-", "ap-", "ca-", "eu-", "il-", "me-", "mx-", "sa-", "us-"];

/// Regions of other partitions that begin the same.
const OTHERS: [&str; 3] = ["us-gov-", "us-iso", "eu-iso"];

/// Whether every endpoint that a function with these variables calls has a certificate of Amazon.
fn calls_only_amazon(variables: impl IntoIterator<Item = (String, String)>) -> bool {
    let mut region = false;
    for (name, value) in variables {
        match name.as_str() {
            "AWS_REGION" => {
                let begins = |with: &[&str]| with.iter().any(|prefix| value.starts_with(prefix));
                region = begins(&REGIONS) && !begins(&OTHERS);
            }
            // The system's list, or a proxy's, that somebody has chosen.
            "SSL_CERT_FILE" | "SSL_CERT_DIR" | "AWS_CA_BUNDLE" => return false,
            name if name.starts_with("AWS_ENDPOINT_URL") && value.starts_with("https:") => return false,
            _ => {}
        }
    }
    region
}

/// The configuration with an HTTP client that believes only Amazon, if that is enough.
pub(crate) fn believing(config: ConfigLoader, variables: impl IntoIterator<Item = (String, String)>) -> ConfigLoader {
    if !calls_only_amazon(variables) {
        return config;
    }
    let roots = TrustStore::empty().with_pem_certificate(AMAZON_ROOTS);
    let Ok(context) = TlsContext::builder().with_trust_store(roots).build() else { return config };
    config.http_client(
        Builder::new().tls_provider(Provider::Rustls(CryptoMode::AwsLc)).tls_context(context).build_https(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_systems_list_counts_wherever_an_endpoint_may_not_be_amazons() {
        let of = |variables: &[(&str, &str)]| {
            calls_only_amazon(variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())))
        };
        for region in ["us-east-1", "eu-central-2", "ap-southeast-5", "mx-central-1", "ca-west-1"] {
            assert!(of(&[("PATH", "/bin"), ("AWS_REGION", region)]), "{region}");
        }
        for region in
            ["cn-north-1", "us-gov-west-1", "us-iso-east-1", "us-isob-east-1", "eu-isoe-west-1", "eusc-de-east-1", ""]
        {
            assert!(!of(&[("AWS_REGION", region)]), "{region}");
        }
        let region = ("AWS_REGION", "us-east-1");
        assert!(!of(&[]));
        assert!(of(&[("AWS_ENDPOINT_URL_EC2", "http://127.0.0.1:1"), region]));
        for other in [
            ("AWS_ENDPOINT_URL", "https://vpce.example"),
            ("AWS_ENDPOINT_URL_DYNAMODB", "https://localhost"),
            ("SSL_CERT_FILE", "/etc/proxy.pem"),
            ("SSL_CERT_DIR", "/etc/certs"),
            ("AWS_CA_BUNDLE", "/etc/proxy.pem"),
        ] {
            assert!(!of(&[other, region]) && !of(&[region, other]), "{other:?}");
        }
    }

    /// The client parses the certificates when it is made, and panics if one of them is not a certificate.
    #[tokio::test]
    async fn the_certificates_in_the_binary_are_certificates() {
        let text = String::from_utf8(AMAZON_ROOTS.to_vec()).unwrap();
        assert_eq!(text.matches("-----BEGIN CERTIFICATE-----").count(), 5);
        let variables = [("AWS_REGION".to_owned(), "us-east-1".to_owned())];
        let config = believing(crate::lambda::sdk_config(), variables).load().await;
        let dynamo = aws_sdk_dynamodb::Client::new(&config.to_builder().endpoint_url("https://127.0.0.1:9").build());
        assert!(dynamo.list_tables().send().await.is_err());
    }
}
