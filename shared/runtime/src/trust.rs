//! Which certificate authorities a function believes when it calls AWS.
//!
//! The endpoints of AWS have certificates of Amazon Trust Services. Its five root certificates are in the binary
//! (`amazon_roots.pem`, from <https://www.amazontrust.com/repository/>), so that no cold start reads and parses the machine's
//! list of some 140 authorities: that takes three quarters of it.
//!
//! Guarantees: a function believes the machine's list wherever an endpoint may have another certificate: with an endpoint of its
//! own, with a list that somebody has chosen, and outside of the partition `aws`. (AWS says the same of its endpoints in China
//! and in its other partitions, but nobody tried these.)
//! Does not: read the environment; its caller passes the variables. The agent and the commands believe their machine's list.

use aws_config::ConfigLoader;

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
            // The machine's list, or a proxy's, that somebody has chosen.
            "SSL_CERT_FILE" | "SSL_CERT_DIR" | "AWS_CA_BUNDLE" => return false,
            name if name.starts_with("AWS_ENDPOINT_URL") && value.starts_with("https:") => return false,
            _ => {}
        }
    }
    region
}

/// The configuration with an HTTP client that believes only Amazon, if that is enough.
pub(crate) fn believing(config: ConfigLoader, variables: impl IntoIterator<Item = (String, String)>) -> ConfigLoader {
    if calls_only_amazon(variables) { config.http_client(store::http_client_believing(AMAZON_ROOTS)) } else { config }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "a test may read the clock")]
mod tests {
    use super::*;
    use base64::Engine;
    use base64::prelude::BASE64_STANDARD;

    #[test]
    fn the_machines_list_counts_wherever_an_endpoint_may_not_be_amazons() {
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

    /// The certificates of a file, each as the text between its marks.
    fn certificates(text: &str) -> Vec<String> {
        let bodies = text.split("-----BEGIN CERTIFICATE-----").skip(1);
        bodies.map(|body| body.split("-----END").next().unwrap().split_whitespace().collect()).collect()
    }

    /// The names are texts of the certificates, and the ends are times of ASN.1: two digits of the year, and so on.
    #[test]
    fn the_certificates_are_amazons_and_last_for_years() {
        let own = certificates(std::str::from_utf8(AMAZON_ROOTS).unwrap());
        let expected = [
            ("Amazon Root CA 1", "380117000000Z"),
            ("Amazon Root CA 2", "400526000000Z"),
            ("Amazon Root CA 3", "400526000000Z"),
            ("Amazon Root CA 4", "400526000000Z"),
            ("Starfield Services Root Certificate Authority - G2", "371231235959Z"),
        ];
        assert_eq!(own.len(), expected.len());
        let soon = model::time::Time::now() + model::time::Span::from_s(3 * 366 * 86_400);
        for (certificate, (name, end)) in own.iter().zip(expected) {
            let der = BASE64_STANDARD.decode(certificate).unwrap();
            let has = |text: &str| der.windows(text.len()).any(|part| part == text.as_bytes());
            assert!(has(name) && has(end), "{name} until {end}");
            assert!(
                soon.to_string().as_str() < format!("20{}", &end[..2]).as_str(),
                "{name} ends soon: renew the file"
            );
        }
    }

    #[test]
    fn the_machine_believes_the_same_certificates() {
        let lists = ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt"];
        let list = lists.iter().find_map(|list| std::fs::read_to_string(list).ok());
        let known = certificates(&list.expect("this machine has no list of authorities: install ca-certificates"));
        for own in certificates(std::str::from_utf8(AMAZON_ROOTS).unwrap()) {
            assert!(known.contains(&own), "the machine's list lacks {own}");
        }
    }

    /// The client parses the certificates when it is made, and panics if one of them is not a certificate.
    #[tokio::test]
    async fn a_client_takes_the_certificates() {
        let variables = [("AWS_REGION".to_owned(), "us-east-1".to_owned())];
        let config = believing(crate::lambda::sdk_config(), variables).load().await;
        let dynamo = aws_sdk_dynamodb::Client::new(&config.to_builder().endpoint_url("https://127.0.0.1:9").build());
        assert!(dynamo.list_tables().send().await.is_err());
    }
}
