//! The credentials of the local machines' role, as the instance metadata of EC2 has them.
//!
//! Guarantees: each machine has credentials of its own session, which is named after its instance. They expire, so agents must
//! fetch them again.
//! Does not: check signatures (`guard` does).

use model::{Span, Time};
use rights_stand_in::{Sessions, date};
use serde_json::{Value, json};

/// The account of the local role.
const ACCOUNT: &str = "000000000000";
pub(in crate::local) const ROLE: &str = "nodekeeper-local-node";
/// How long credentials are valid. Those of EC2 are valid for some hours; these are short, so that every local system shows
/// that agents fetch them again.
const VALID: Span = Span::from_s(600);
/// How long credentials are still valid when the machine gets new ones. EC2 gives new ones at least five minutes before.
const OVERLAP: Span = Span::from_s(360);

pub(in crate::local) fn role_arn() -> String {
    format!("arn:aws:iam::{ACCOUNT}:role/{ROLE}")
}

/// The credentials of this instance, in the form of the instance metadata.
pub(in crate::local) fn of_instance(sessions: &Sessions, instance_id: &str, now: Time) -> Value {
    let arn = format!("arn:aws:sts::{ACCOUNT}:assumed-role/{ROLE}/{instance_id}");
    let known = sessions.lasting(&arn, now + OVERLAP);
    let (id, issued) = known.unwrap_or_else(|| sessions.open(arn, now, VALID));
    json!({
        "Code": "Success", "Type": "AWS-HMAC", "LastUpdated": date(now), "AccessKeyId": id,
        "SecretAccessKey": issued.secret_access_key, "Token": issued.session_token,
        "Expiration": date(issued.expires_at),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use guard::sigv4::Issuer;

    #[test]
    fn a_machine_gets_new_credentials_before_its_old_ones_end() {
        let sessions = Sessions::default();
        let id = |instance: &str, after_s: i64| {
            let credentials = of_instance(&sessions, instance, Time::from_ms(1_000_000 + after_s * 1000));
            credentials["AccessKeyId"].as_str().unwrap().to_owned()
        };
        let first = id("i-1", 0);
        assert_eq!((id("i-1", 0) == first, id("i-2", 0) == first), (true, false));
        let issued = sessions.issued(&first).unwrap();
        assert!(issued.arn.ends_with("assumed-role/nodekeeper-local-node/i-1"));
        assert_eq!((issued.account.as_str(), issued.user_id.as_str()), (ACCOUNT, "AROALOCAL:i-1"));
        let second = id("i-1", 241);
        assert!(second != first && sessions.issued(&first).is_some(), "the old ones still count");
        assert!(id("i-1", 641) != second && sessions.issued(&first).is_none());
    }
}
