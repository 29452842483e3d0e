//! The state that the services share: the credentials, and the place of the secrets.

use crate::sessions::Sessions;
use axum::http::request::Parts;
use guard::Credentials;
use guard::sigv4::{self, Issued, Issuer, Scope, Signed};
use model::time::Time;
use std::fmt;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

type Clock = Arc<dyn Fn() -> Time + Send + Sync>;

pub struct Rights {
    region: &'static str,
    /// Who may assume roles.
    owner: Arc<Credentials>,
    pub(crate) clock: Clock,
    /// A JSON object with the secrets: their ARNs or names, and their values. It is read with each request.
    pub(crate) secrets: PathBuf,
    pub(crate) sessions: Sessions,
}

impl fmt::Debug for Rights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rights").field("secrets", &self.secrets).finish_non_exhaustive()
    }
}

impl Issuer for Rights {
    fn issued(&self, access_key_id: &str) -> Option<Issued> {
        self.owner.issued(access_key_id).or_else(|| self.sessions.issued(access_key_id))
    }
}

impl Rights {
    /// The stand-in with the secrets in this file. Only `owner` can assume roles.
    pub fn new(region: &'static str, owner: Arc<Credentials>, clock: Clock, secrets: PathBuf) -> Self {
        Self { region, owner, clock, secrets, sessions: Sessions::default() }
    }

    /// The longest session in seconds, if the file `session-seconds` beside the secrets gives one. A person makes that file to test
    /// whether a program renews its credentials. It is read with each request.
    pub(crate) fn longest_s(&self) -> Option<i64> {
        let text = fs::read_to_string(self.secrets.with_file_name("session-seconds")).ok()?;
        text.trim().parse().ok().filter(|s| *s > 0)
    }

    /// The secret key of the owner or of a session that has not ended.
    pub fn secret_key(&self, access_key_id: &str) -> Option<String> {
        let now = (self.clock)();
        let issued = self.issued(access_key_id).filter(|issued| issued.expires_at > now)?;
        Some(issued.secret_access_key)
    }

    /// The caller who signed this request for this service.
    pub(crate) fn caller(&self, service: &str, parts: &Parts, body: &[u8]) -> Result<Issued, &'static str> {
        sigv4::caller(Signed::of(parts, body), Scope { region: self.region, service }, self, (self.clock)())
    }
}
