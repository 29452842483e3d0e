//! The place of the agent that nodes fetch at their first boot.
//!
//! Guarantees: it has the digest of the file, and a shell takes it as it is.
//! Does not: fetch it. `infra/boot.sh` does.

use crate::text_form::text_form;
use derive_more::Display;
use std::str::FromStr;

/// A file that nodes fetch, and its digest: `s3://BUCKET/KEY#sha256=DIGEST` or `https://…#sha256=DIGEST`.
#[derive(Clone, Debug, PartialEq, Eq, Display)]
#[display("{url}{DIGEST}{sha256}")]
pub struct AgentFile {
    url: String,
    sha256: String,
}

/// The form of an [`AgentFile`], for people.
pub(super) const AGENT_FORM: &str =
    "the place of the agent and its digest: s3://BUCKET/KEY#sha256=… or https://…#sha256=… with 64 hexadecimal digits";

/// The options that `agent.options` may have. A test of the agent compares them with its own.
pub const AGENT_OPTIONS: &str = "address allow-metadata boot-id busy-check busy-check-every-s config containers data-dir destroy-timeout-s gpus-from imds-url instance-id job-uids keep-inputs-mib keep-output-mib max-destroys max-tasks no-imds on-gone region stop-after-s stop-work-on-exit unisolated";

const DIGEST: &str = "#sha256=";
const MAX_URL_BYTES: usize = 1024;

impl AgentFile {
    /// `None` if the place has another form, or a character that a shell would not take as it is.
    pub fn new(url: &str, sha256: &str) -> Option<Self> {
        let is_url = ["s3://", "https://"].iter().any(|scheme| url.len() > scheme.len() && url.starts_with(scheme));
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-._~:/?@!$&()*+,;=%".contains(c);
        let is_digest = sha256.len() == 64 && sha256.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        let is_good = is_url && url.len() <= MAX_URL_BYTES && url.chars().all(is_plain) && is_digest;
        is_good.then(|| Self { url: url.to_owned(), sha256: sha256.to_owned() })
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    pub fn sha256(&self) -> &str {
        &self.sha256
    }
}

impl FromStr for AgentFile {
    type Err = &'static str;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parts = text.split_once(DIGEST);
        parts.and_then(|(url, sha256)| Self::new(url, sha256)).ok_or(AGENT_FORM)
    }
}

text_form!(AgentFile);
