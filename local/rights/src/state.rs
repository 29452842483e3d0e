//! The state that the services share: the owner's credentials, the sessions, and the path of the file with the secrets.
//!
//! Guarantees: a file with secrets that other users can read is refused.
//! Does not: keep secrets in memory. Each request reads the file, so that a person can change it meanwhile.

use crate::sessions::Sessions;
use axum::http::request::Parts;
use guard::KeyPair;
use guard::sigv4::{self, Issued, Issuer, RawRequest, SignScope};
use model::Time;
use serde_json::Value;
use std::fmt::{self, Display};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;

type StsClock = Arc<dyn Fn() -> Time + Send + Sync>;

pub struct Rights {
    region: &'static str,
    /// Who may assume roles.
    owner: Arc<KeyPair>,
    pub(crate) clock: StsClock,
    /// A JSON object with the secrets: their ARNs or names, and their values. It is read with each request.
    pub(crate) place: PathBuf,
    pub(crate) sessions: Sessions,
}

impl fmt::Debug for Rights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rights").field("place", &self.place).finish_non_exhaustive()
    }
}

impl Issuer for Rights {
    fn issued(&self, access_key_id: &str) -> Option<Issued> {
        self.owner.issued(access_key_id).or_else(|| self.sessions.issued(access_key_id))
    }
}

impl Rights {
    /// The stand-in with the secrets in this file. Only `owner` can assume roles.
    pub fn new(region: &'static str, owner: Arc<KeyPair>, clock: StsClock, place: PathBuf) -> Self {
        Self { region, owner, clock, place, sessions: Sessions::default() }
    }

    /// All secrets: none without the file. Otherwise why they are not used. Jobs have users of their own, so a file that other users
    /// can read gives every job every secret.
    pub fn secrets(&self) -> Result<Value, String> {
        let place = self.place.display();
        let why = |e: &dyn Display| format!("the secrets of the local system in {place} cannot be read: {e}");
        let mut file = match File::open(&self.place) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Value::Null),
            Err(e) => return Err(why(&e)),
        };
        let mode = file.metadata().map_err(|e| why(&e))?.permissions().mode();
        if mode & 0o077 != 0 {
            return Err(format!(
                "{place} has the secrets of the local system, and other users can read or change it: chmod 600 {place}"
            ));
        }
        let mut text = Vec::new();
        file.read_to_end(&mut text).map_err(|e| why(&e))?;
        serde_json::from_slice(&text)
            .map_err(|e| format!("a local system has its secrets in {place}, which is no JSON: {e}"))
    }

    /// The longest session in seconds, if the file `session-seconds` beside the secrets gives one. A person makes that file to test
    /// whether a program renews its credentials. It is read with each request.
    pub(crate) fn longest_s(&self) -> Option<i64> {
        let text = fs::read_to_string(self.place.with_file_name("session-seconds")).ok()?;
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
        sigv4::caller(RawRequest::of(parts, body), SignScope { region: self.region, service }, self, (self.clock)())
    }
}
