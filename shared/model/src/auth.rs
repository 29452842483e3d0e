//! How a node proves who it is: by an HMAC of the node's id with a master key that only the functions have, or by the
//! session of its instance role.
//!
//! Guarantees: tokens are compared in constant time; a token is valid for one node of one cluster; a session counts only
//! if it is one of the configured role and is named after an instance.
//! Does not: store anything, know where the master key comes from, or check signatures (AWS does).

use crate::ids::{ClusterName, NodeId};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use std::fmt;
use std::str::FromStr;
use subtle::ConstantTimeEq;

/// The shortest master key, in bytes.
pub const MIN_KEY_BYTES: usize = 32;

/// The key that all node tokens are made with. It is never printed.
#[derive(Clone)]
pub struct MasterKey(Vec<u8>);

impl fmt::Debug for MasterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MasterKey(…)")
    }
}

/// Not a valid master key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the node key must be at least 64 hexadecimal digits ({MIN_KEY_BYTES} bytes), or its version, a colon and these"
)]
pub struct BadKey;

impl MasterKey {
    /// Reads a key from hexadecimal digits.
    pub fn from_hex(text: &str) -> Result<Self, BadKey> {
        let digits: Option<Vec<u8>> =
            text.trim().chars().map(|c| c.to_digit(16).and_then(|d| u8::try_from(d).ok())).collect();
        let digits = digits.filter(|d| d.len() % 2 == 0 && d.len() >= 2 * MIN_KEY_BYTES).ok_or(BadKey)?;
        Ok(Self(digits.chunks_exact(2).map(|pair| pair.iter().fold(0, |byte, digit| byte << 4 | digit)).collect()))
    }

    /// The token of a node: hexadecimal HMAC-SHA256 of `nodekeeper/v1/{cluster}/{node_id}`, for a session with
    /// `/session` after it.
    pub fn token(&self, cluster: &ClusterName, node_id: NodeId, kind: TokenKind) -> String {
        // This cannot fail: HMAC takes a key of any length.
        let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(&self.0) else { return String::new() };
        let end = match kind {
            TokenKind::Boot => "",
            TokenKind::Session => "/session",
        };
        mac.update(format!("nodekeeper/v1/{cluster}/{node_id}{end}").as_bytes());
        hex(&mac.finalize().into_bytes())
    }

    fn accepts(&self, cluster: &ClusterName, node_id: NodeId, kind: TokenKind, token: &str) -> bool {
        let right = self.token(cluster, node_id, kind);
        !right.is_empty() && bool::from(right.as_bytes().ct_eq(token.as_bytes()))
    }
}

/// What a token is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenKind {
    /// Stands in the user data of the instance. It counts until the node has used its session token.
    Boot,
    /// The answer to a heartbeat with a boot token, or with a token of an older key, has the session token of the current
    /// key.
    Session,
}

/// A master key with its number. Each rotation raises the number by one.
#[derive(Clone, Debug)]
pub struct NumberedKey {
    /// The number, from 1 on: `key_version` of a node record.
    pub version: u32,
    /// The key.
    pub key: MasterKey,
}

impl FromStr for NumberedKey {
    type Err = BadKey;

    /// Reads `{version}:{hexadecimal digits}`, or the digits alone, whose version is 1.
    fn from_str(text: &str) -> Result<Self, BadKey> {
        let (version, digits) = text.trim().split_once(':').unwrap_or(("1", text));
        let version = version.parse().ok().filter(|v| *v > 0).ok_or(BadKey)?;
        Ok(Self { version, key: MasterKey::from_hex(digits)? })
    }
}

/// The keys whose tokens count: the current one, and the one before.
#[derive(Clone, Debug)]
pub struct KeyRing {
    current: NumberedKey,
    previous: Option<NumberedKey>,
}

/// What a token proves about its bearer.
#[derive(Clone, PartialEq, Eq)]
pub struct TokenProof {
    /// The number of the key that the token is made with.
    pub version: u32,
    /// What the token is for.
    pub kind: TokenKind,
    /// The token that the bearer should use from now on; `None` if it is this one.
    pub next: Option<String>,
}

impl fmt::Debug for TokenProof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TokenProof({:?}, version {})", self.kind, self.version)
    }
}

impl KeyRing {
    /// The ring of these keys. A previous key that is not older does not count.
    pub fn new(current: NumberedKey, previous: Option<NumberedKey>) -> Self {
        let previous = previous.filter(|p| p.version < current.version);
        Self { current, previous }
    }

    /// The number of the current key.
    pub const fn version(&self) -> u32 {
        self.current.version
    }

    /// The boot token of a node whose record has this key version. Without that key, that of the current key.
    pub fn boot_token(&self, cluster: &ClusterName, node_id: NodeId, version: u32) -> String {
        let of_version = self.previous.iter().find(|p| p.version == version);
        of_version.unwrap_or(&self.current).key.token(cluster, node_id, TokenKind::Boot)
    }

    /// What this token proves; `None` if it is not a token of this node in this cluster.
    pub fn proves(&self, cluster: &ClusterName, node_id: NodeId, token: &str) -> Option<TokenProof> {
        let keys = [Some(&self.current), self.previous.as_ref()];
        let mut proofs = keys
            .into_iter()
            .flatten()
            .flat_map(|key| [TokenKind::Session, TokenKind::Boot].map(|kind| (key.version, kind, &key.key)));
        let (version, kind, _) = proofs.find(|(_, kind, key)| key.accepts(cluster, node_id, *kind, token))?;
        let is_last = version == self.current.version && kind == TokenKind::Session;
        let next = (!is_last).then(|| self.current.key.token(cluster, node_id, TokenKind::Session));
        Some(TokenProof { version, kind, next })
    }
}

/// The role of the nodes' instances.
///
/// EC2 names the session of an instance profile after the instance. Any other role whose session somebody names after
/// an instance would be as good, so the role is compared too. AWS checks that the caller has the session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeRole {
    partition: String,
    account: String,
    /// The name without its path. It is unique in its account ("IAM identifiers", IAM User Guide).
    name: String,
}

/// Not the ARN of a role.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not the ARN of a role: it must be like arn:aws:iam::123456789012:role/NAME")]
pub struct BadRole(pub String);

impl FromStr for NodeRole {
    type Err = BadRole;

    fn from_str(arn: &str) -> Result<Self, BadRole> {
        let bad = || BadRole(arn.to_owned());
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
        let key = MasterKey::from_hex(&"0f".repeat(32)).unwrap();
        let (a, b): (ClusterName, ClusterName) = ("a".parse().unwrap(), "b".parse().unwrap());
        let node: NodeId = "0-01JD0000000000000000000000".parse().unwrap();
        let other: NodeId = "1-01JD0000000000000000000000".parse().unwrap();
        let (token, boot) = (key.token(&a, node, TokenKind::Boot), TokenKind::Boot);
        assert_eq!(token.len(), 64);
        assert!(key.accepts(&a, node, boot, &token));
        assert!(!key.accepts(&b, node, boot, &token) && !key.accepts(&a, other, boot, &token));
        assert!(!key.accepts(&a, node, boot, "") && !key.accepts(&a, node, boot, &token[..63]));
        assert!(!key.accepts(&a, node, TokenKind::Session, &token));
        assert!(!MasterKey::from_hex(&"f0".repeat(32)).unwrap().accepts(&a, node, boot, &token));
    }

    #[test]
    fn the_tokens_of_the_current_key_and_of_the_one_before_count() {
        let key =
            |version, digits: &str| NumberedKey { version, key: MasterKey::from_hex(&digits.repeat(32)).unwrap() };
        let (cluster, node): (ClusterName, NodeId) =
            ("a".parse().unwrap(), "0-01JD0000000000000000000000".parse().unwrap());
        let [old, before, current] = [(1, "0f"), (2, "1f"), (3, "2f")].map(|(version, digits)| key(version, digits));
        let ring = KeyRing::new(current.clone(), Some(before.clone()));
        let token = |key: &NumberedKey, kind| key.key.token(&cluster, node, kind);
        let session = token(&current, TokenKind::Session);
        for (key, kind, want) in [
            (&current, TokenKind::Session, Some((3, None))),
            (&current, TokenKind::Boot, Some((3, Some(session.clone())))),
            (&before, TokenKind::Session, Some((2, Some(session.clone())))),
            (&before, TokenKind::Boot, Some((2, Some(session.clone())))),
            (&old, TokenKind::Session, None),
            (&old, TokenKind::Boot, None),
        ] {
            let proof = ring.proves(&cluster, node, &token(key, kind));
            assert_eq!(proof, want.map(|(version, next)| TokenProof { version, kind, next }));
        }
        assert_eq!(ring.boot_token(&cluster, node, 2), token(&before, TokenKind::Boot));
        assert_eq!(
            ring.boot_token(&cluster, node, 1),
            token(&current, TokenKind::Boot),
            "there is no such key any more"
        );
        // A key that is put back must not make older tokens count.
        assert!(KeyRing::new(before, Some(current)).proves(&cluster, node, &session).is_none());
        let shown = format!("{:?}", ring.proves(&cluster, node, &session));
        assert!(!shown.contains(&session), "{shown}");
    }

    #[test]
    fn a_key_has_a_number() {
        let digits = "0f".repeat(32);
        let version = |text: &str| text.parse::<NumberedKey>().map(|k| k.version);
        assert_eq!((version(&digits), version(&format!("7:{digits}"))), (Ok(1), Ok(7)));
        for bad in ["", ":", "7:", "0:", "x:", "-1:"] {
            assert!(version(&format!("{bad}{}", if bad.is_empty() { "zz" } else { &digits })).is_err() || bad == "7:");
        }
        assert!(version("7:").is_err());
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
            assert!(MasterKey::from_hex(bad).is_err(), "{bad}");
        }
        assert_eq!(format!("{:?}", MasterKey::from_hex(&"ab".repeat(32)).unwrap()), "MasterKey(…)");
    }
}
