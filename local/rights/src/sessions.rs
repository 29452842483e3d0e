//! Sessions of roles, with credentials that expire.
//!
//! Guarantees: a session that has ended is forgotten when the next one is opened.
//! Does not: decide who may open one.

use guard::sigv4::{Issued, Issuer};
use model::auth::hex;
use model::{Span, Time};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The sessions of roles, by the ids of their access keys.
#[derive(Default)]
pub struct Sessions(Mutex<BTreeMap<String, Issued>>);

impl fmt::Debug for Sessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sessions(…)")
    }
}

impl Issuer for Sessions {
    fn issued(&self, access_key_id: &str) -> Option<Issued> {
        self.all().get(access_key_id).cloned()
    }
}

impl Sessions {
    fn all(&self) -> MutexGuard<'_, BTreeMap<String, Issued>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The credentials of a session with this ARN that are valid after this time, if there is one.
    pub fn lasting(&self, arn: &str, after: Time) -> Option<(String, Issued)> {
        let all = self.all();
        let found = all.iter().find(|(_, issued)| issued.arn == arn && issued.expires_at > after);
        found.map(|(id, issued)| (id.clone(), issued.clone()))
    }

    /// Opens a session with this ARN: `arn:{partition}:sts::{account}:assumed-role/{role}/{session}`.
    pub fn open(&self, arn: String, now: Time, lasts: Span) -> (String, Issued) {
        let id = format!("ASIA{}", random(8).to_ascii_uppercase());
        let issued = Issued {
            secret_access_key: random(20),
            session_token: Some(random(32)),
            expires_at: now + lasts,
            account: arn.split(':').nth(4).unwrap_or_default().to_owned(),
            user_id: format!("AROALOCAL:{}", arn.rsplit('/').next().unwrap_or_default()),
            arn,
        };
        let mut all = self.all();
        all.retain(|_, issued| issued.expires_at > now);
        all.insert(id.clone(), issued.clone());
        (id, issued)
    }
}

/// A time as AWS's services write it.
pub fn date(time: Time) -> String {
    jiff::Timestamp::from_millisecond(time.as_ms()).map(|t| format!("{t:.0}")).unwrap_or_default()
}

/// A secret of this many bytes, at most 32, in hexadecimal digits.
#[allow(clippy::disallowed_methods, reason = "a secret, which Rng does not make")]
pub fn random(bytes: usize) -> String {
    let all = rand::random::<[u8; 32]>();
    hex(all.get(..bytes).unwrap_or(&all))
}
