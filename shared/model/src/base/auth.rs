//! How a node proves who it is: in AWS by the session of its instance role, in a local system by an HMAC of its id with a key
//! that only the functions have.
//!
//! Guarantees: tokens are compared in constant time; a token is valid for one node of one cluster, and so for one life; a
//! session counts only if it is one of the configured role and is named after an instance.
//! Does not: store anything, replace a key or a token, or check signatures (AWS does).

use crate::{BadText, ClusterName, NodeId};
use derive_more::Debug;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use std::str::FromStr;
use subtle::ConstantTimeEq;

/// The shortest key, in bytes.
pub const MIN_KEY_BYTES: usize = 32;

/// The key that the tokens of a local system's nodes are made with. It is never printed.
#[derive(Clone, Debug)]
#[debug("NodeKey(…)")]
pub struct NodeKey(Vec<u8>);

impl FromStr for NodeKey {
    type Err = BadText;

    /// Reads a key from hexadecimal digits.
    fn from_str(text: &str) -> Result<Self, BadText> {
        // The key itself is in no message.
        let bad = || BadText(format!("the node key must be at least 64 hexadecimal digits ({MIN_KEY_BYTES} bytes)"));
        let digits: Option<Vec<u8>> =
            text.trim().chars().map(|c| c.to_digit(16).and_then(|d| u8::try_from(d).ok())).collect();
        let digits = digits.filter(|d| d.len() % 2 == 0 && d.len() >= 2 * MIN_KEY_BYTES).ok_or_else(bad)?;
        Ok(Self(digits.chunks_exact(2).map(|pair| pair.iter().fold(0, |byte, digit| byte << 4 | digit)).collect()))
    }
}

impl NodeKey {
    /// The token of a node: hexadecimal HMAC-SHA256 of `nodekeeper/v1/{cluster}/{node_id}`.
    pub fn token(&self, cluster: &ClusterName, node_id: NodeId) -> String {
        // This cannot fail: HMAC takes a key of any length.
        let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(&self.0) else { return String::new() };
        mac.update(format!("nodekeeper/v1/{cluster}/{node_id}").as_bytes());
        hex(&mac.finalize().into_bytes())
    }

    /// Whether this is the token of this node in this cluster.
    pub fn accepts(&self, cluster: &ClusterName, node_id: NodeId, token: &str) -> bool {
        let right = self.token(cluster, node_id);
        !right.is_empty() && bool::from(right.as_bytes().ct_eq(token.as_bytes()))
    }
}

/// The role of the nodes' instances.
///
/// EC2 names the session of an instance profile after the instance. Somebody could give a session of another role such a name, so
/// the role is compared too. AWS checks that the caller has the session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeRole {
    partition: String,
    account: String,
    /// The name without its path. It is unique in its account ("IAM identifiers", IAM User Guide).
    name: String,
}

impl FromStr for NodeRole {
    type Err = BadText;

    fn from_str(arn: &str) -> Result<Self, BadText> {
        let bad = || BadText::of(arn, "is not the ARN of a role: it must be like arn:aws:iam::123456789012:role/NAME");
        let (partition, account, resource) = parts(arn, "iam").ok_or_else(bad)?;
        let path = resource.strip_prefix("role/").ok_or_else(bad)?;
        let name = path.rsplit('/').next().filter(|name| !name.is_empty()).ok_or_else(bad)?;
        Ok(Self { partition: partition.to_owned(), account: account.to_owned(), name: name.to_owned() })
    }
}

impl NodeRole {
    /// The instance whose session this is: `arn:aws:sts::{account}:assumed-role/{role}/{instance}`. `None` if it is
    /// another caller.
    pub fn instance<'a>(&self, caller_arn: &'a str) -> Option<&'a str> {
        let (partition, account, resource) = parts(caller_arn, "sts")?;
        let (role, session) = resource.strip_prefix("assumed-role/")?.split_once('/')?;
        let is_ours = partition == self.partition && account == self.account && role == self.name;
        let digits = session.strip_prefix("i-")?;
        let is_instance = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_alphanumeric());
        (is_ours && is_instance).then_some(session)
    }
}

/// The partition, the account and the resource of an ARN of this service.
fn parts<'a>(arn: &'a str, service: &str) -> Option<(&'a str, &'a str, &'a str)> {
    let mut parts = arn.splitn(6, ':');
    let head = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let (account, resource) = (parts.next()?, parts.next()?);
    let ("arn", partition, found, "") = head else { return None };
    let is_account = account.len() == 12 && account.bytes().all(|b| b.is_ascii_digit());
    (found == service && is_account && !partition.is_empty()).then_some((partition, account, resource))
}

/// Lower-case hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_one_nodes_of_one_cluster() {
        let key: NodeKey = "0f".repeat(32).parse().unwrap();
        let (a, b): (ClusterName, ClusterName) = ("a".parse().unwrap(), "b".parse().unwrap());
        let node: NodeId = "0-01JD0000000000000000000000".parse().unwrap();
        let token = key.token(&a, node);
        assert_eq!(token.len(), 64);
        assert!(key.accepts(&a, node, &token) && !key.accepts(&b, node, &token));
        // Another slot, and another life of the same slot.
        for other in ["1-01JD0000000000000000000000", "0-01JC0000000000000000000000"] {
            assert!(!key.accepts(&a, other.parse().unwrap(), &token), "{other}");
        }
        assert!(!key.accepts(&a, node, "") && !key.accepts(&a, node, &token[..63]));
        assert!(!"f0".repeat(32).parse::<NodeKey>().unwrap().accepts(&a, node, &token));
    }

    #[test]
    fn only_a_session_of_the_nodes_role_that_is_named_after_an_instance_counts() {
        let role: NodeRole = "arn:aws:iam::123456789012:role/some/path/node".parse().unwrap();
        let of = |arn: &str| role.instance(arn).map(str::to_owned);
        let right = "arn:aws:sts::123456789012:assumed-role/node/i-0123456789abcdef0";
        assert_eq!(of(right).as_deref(), Some("i-0123456789abcdef0"));
        for wrong in [
            // Another role, whose session somebody named after the victim.
            "arn:aws:sts::123456789012:assumed-role/other/i-0123456789abcdef0",
            "arn:aws:sts::123456789012:assumed-role/node2/i-0123456789abcdef0",
            "arn:aws:sts::123456789012:assumed-role/path/node/i-0123456789abcdef0",
            "arn:aws:sts::999999999999:assumed-role/node/i-0123456789abcdef0",
            "arn:aws-cn:sts::123456789012:assumed-role/node/i-0123456789abcdef0",
            "arn:aws:sts::123456789012:assumed-role/node/somebody",
            "arn:aws:sts::123456789012:assumed-role/node/i-",
            "arn:aws:sts::123456789012:assumed-role/node/i-1/x",
            "arn:aws:iam::123456789012:role/node",
            "arn:aws:iam::123456789012:user/i-0123456789abcdef0",
            "arn:aws:sts:eu-west-1:123456789012:assumed-role/node/i-0123456789abcdef0",
            "arn:aws:sts::123456789012:federated-user/i-0123456789abcdef0",
            "i-0123456789abcdef0",
            "",
        ] {
            assert_eq!(of(wrong), None, "{wrong}");
        }
        for wrong in [
            "",
            "node",
            "arn:aws:iam::123456789012:user/node",
            "arn:aws:iam::12345:role/node",
            "arn:aws:iam::123456789012:role/",
        ] {
            assert!(wrong.parse::<NodeRole>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn bad_keys_are_refused_and_good_ones_never_shown() {
        for bad in ["", "00", &"0".repeat(63), &"zz".repeat(32)] {
            assert!(bad.parse::<NodeKey>().is_err(), "{bad}");
        }
        assert_eq!(format!("{:?}", "ab".repeat(32).parse::<NodeKey>().unwrap()), "NodeKey(…)");
    }
}
