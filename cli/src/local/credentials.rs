//! The credentials of the local machines' role: what the instance metadata of EC2 would give them.
//!
//! Guarantees: the credentials of a machine are those of its own session, which is named after its instance, and they
//! end: agents must fetch them again.
//! Does not: check signatures (`guard` does).

use crate::console::Clock;
use guard::sigv4::{Issued, Issuer};
use model::auth::hex;
use model::time::{Span, Time};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};

/// The account of the local role.
const ACCOUNT: &str = "000000000000";
/// The name of the local role.
pub(super) const ROLE: &str = "nodekeeper-local-node";
/// How long credentials count. EC2's count for some hours; these are short, so that every local system shows that agents
/// fetch them again.
const VALID: Span = Span::from_s(600);
/// How long credentials still count when the machine gets new ones. EC2 has new ones at least five minutes before.
const OVERLAP: Span = Span::from_s(360);

/// The ARN of the local role.
pub(super) fn role_arn() -> String {
    format!("arn:aws:iam::{ACCOUNT}:role/{ROLE}")
}

/// All credentials that count.
pub(super) struct LocalCredentials {
    clock: Clock,
    by_key_id: Mutex<BTreeMap<String, Issued>>,
}

impl fmt::Debug for LocalCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LocalCredentials(…)")
    }
}

impl LocalCredentials {
    pub(super) fn new(clock: Clock) -> Self {
        Self { clock, by_key_id: Mutex::default() }
    }

    /// The credentials of this instance, as the instance metadata has them.
    pub(super) fn of_instance(&self, instance_id: &str) -> serde_json::Value {
        let now = (self.clock)();
        let arn = format!("arn:aws:sts::{ACCOUNT}:assumed-role/{ROLE}/{instance_id}");
        let mut all = self.by_key_id.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, issued| issued.expires_at > now);
        let fresh = |issued: &Issued| issued.arn == arn && issued.expires_at > now + OVERLAP;
        let known = all.iter().find(|(_, issued)| fresh(issued)).map(|(id, issued)| (id.clone(), issued.clone()));
        let (id, issued) = known.unwrap_or_else(|| {
            let id = format!("ASIA{}", random(8).to_ascii_uppercase());
            let issued = Issued {
                secret_access_key: random(20),
                session_token: Some(random(32)),
                expires_at: now + VALID,
                account: ACCOUNT.to_owned(),
                user_id: format!("AROALOCAL:{instance_id}"),
                arn,
            };
            all.insert(id.clone(), issued.clone());
            (id, issued)
        });
        serde_json::json!({
            "Code": "Success", "Type": "AWS-HMAC", "LastUpdated": time_text(now), "AccessKeyId": id,
            "SecretAccessKey": issued.secret_access_key, "Token": issued.session_token,
            "Expiration": time_text(issued.expires_at),
        })
    }
}

impl Issuer for LocalCredentials {
    fn issued(&self, access_key_id: &str) -> Option<Issued> {
        self.by_key_id.lock().unwrap_or_else(PoisonError::into_inner).get(access_key_id).cloned()
    }
}

/// A time as the instance metadata has it.
pub(super) fn time_text(time: Time) -> String {
    jiff::Timestamp::from_millisecond(time.as_ms()).map(|t| format!("{t:.0}")).unwrap_or_default()
}

#[allow(clippy::disallowed_methods, reason = "a secret, which Rng does not make")]
pub(super) fn random(bytes: usize) -> String {
    let all = rand::random::<[u8; 32]>();
    hex(all.get(..bytes).unwrap_or(&all))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicI64, Ordering};

    #[test]
    fn a_machine_gets_new_credentials_before_its_old_ones_end() {
        let now = Arc::new(AtomicI64::new(1_000_000));
        let clock = {
            let now = Arc::clone(&now);
            Arc::new(move || Time::from_ms(now.load(Ordering::Relaxed)))
        };
        let credentials = LocalCredentials::new(clock);
        let id = |instance: &str| credentials.of_instance(instance)["AccessKeyId"].as_str().unwrap().to_owned();
        let first = id("i-1");
        assert_eq!((id("i-1") == first, id("i-2") == first), (true, false));
        assert!(credentials.issued(&first).unwrap().arn.ends_with("assumed-role/nodekeeper-local-node/i-1"));
        now.fetch_add(241_000, Ordering::Relaxed);
        let second = id("i-1");
        assert!(second != first && credentials.issued(&first).is_some(), "the old ones still count");
        now.fetch_add(400_000, Ordering::Relaxed);
        assert!(id("i-1") != second && credentials.issued(&first).is_none());
    }
}
