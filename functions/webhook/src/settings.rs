//! The variables of the environment that only this function reads.
//!
//! Guarantees: a missing or wrong variable gives a clear message with its name and what is allowed.
//! Does not: read the environment of the process itself; its caller passes a lookup function.

use model::webhook::{ReceiverUrl, SigningKey};

/// Where the key of the signatures comes from.
#[derive(Clone, Debug)]
pub enum KeySource {
    /// The key itself, for local use.
    Given(SigningKey),
    /// The name or ARN of a secret.
    Secret(String),
}

/// The variables, checked.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `NODEKEEPER_WEBHOOK_URL`
    pub url: ReceiverUrl,
    /// `NODEKEEPER_WEBHOOK_KEY` or `NODEKEEPER_WEBHOOK_KEY_SECRET`
    pub key: KeySource,
}

impl Settings {
    /// Reads the variables through `lookup`. An empty variable counts as not set. The error names every mistake.
    pub fn read(lookup: impl Fn(&str) -> Option<String>) -> Result<Self, String> {
        let value = |name: &str| lookup(name).filter(|v| !v.is_empty());
        let url = match value("NODEKEEPER_WEBHOOK_URL").map(|url| url.parse::<ReceiverUrl>()) {
            Some(Ok(url)) => Ok(url),
            Some(Err(e)) => Err(format!("NODEKEEPER_WEBHOOK_URL is wrong: {e}")),
            None => Err("NODEKEEPER_WEBHOOK_URL is not set: it is what the function calls".to_owned()),
        };
        let key = match (value("NODEKEEPER_WEBHOOK_KEY_SECRET"), value("NODEKEEPER_WEBHOOK_KEY")) {
            (Some(secret), _) => Ok(KeySource::Secret(secret)),
            (None, Some(key)) => {
                key.parse().map(KeySource::Given).map_err(|e| format!("NODEKEEPER_WEBHOOK_KEY is wrong: {e}"))
            }
            (None, None) => {
                Err("neither NODEKEEPER_WEBHOOK_KEY_SECRET nor NODEKEEPER_WEBHOOK_KEY is set: one of them is \
                                 needed to sign"
                    .to_owned())
            }
        };
        match (url, key) {
            (Ok(url), Ok(key)) => Ok(Self { url, key }),
            (url, key) => Err([url.err(), key.err()].into_iter().flatten().collect::<Vec<_>>().join("; ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Settings, String> {
        let find = |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned());
        Settings::read(find)
    }

    #[test]
    fn every_mistake_is_named_and_the_secret_counts_before_the_key() {
        let (url, key) = ("https://example.org/", "aB3x".repeat(16));
        let both = read(&[]).unwrap_err();
        assert!(both.contains("NODEKEEPER_WEBHOOK_URL is not set") && both.contains("one of them is needed"), "{both}");
        let wrong = [("NODEKEEPER_WEBHOOK_URL", "http://example.org/"), ("NODEKEEPER_WEBHOOK_KEY", "short")];
        let both = read(&wrong).unwrap_err();
        assert!(both.contains("WEBHOOK_URL is wrong") && both.contains("WEBHOOK_KEY is wrong"), "{both}");
        assert!(!both.contains("short"), "a key is never printed");
        let mut good = vec![("NODEKEEPER_WEBHOOK_URL", url), ("NODEKEEPER_WEBHOOK_KEY", key.as_str())];
        assert!(matches!(read(&good).unwrap().key, KeySource::Given(_)));
        good.push(("NODEKEEPER_WEBHOOK_KEY_SECRET", "arn"));
        assert!(matches!(read(&good).unwrap().key, KeySource::Secret(name) if name == "arn"));
    }
}
