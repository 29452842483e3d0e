//! Node credentials: an HMAC of the node's id, with a master key that only the functions have.
//!
//! Guarantees: tokens are compared in constant time; a token is valid for one node of one cluster.
//! Does not: store anything, or know where the master key comes from.

use crate::ids::{ClusterName, NodeId};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use std::fmt;
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
#[error("the node key must be at least 64 hexadecimal digits ({MIN_KEY_BYTES} bytes)")]
pub struct BadKey;

impl MasterKey {
    /// Reads a key from hexadecimal digits.
    pub fn from_hex(text: &str) -> Result<Self, BadKey> {
        let digits: Option<Vec<u8>> =
            text.trim().chars().map(|c| c.to_digit(16).and_then(|d| u8::try_from(d).ok())).collect();
        let digits = digits.filter(|d| d.len() % 2 == 0 && d.len() >= 2 * MIN_KEY_BYTES).ok_or(BadKey)?;
        Ok(Self(digits.chunks_exact(2).map(|pair| pair.iter().fold(0, |byte, digit| byte << 4 | digit)).collect()))
    }

    /// The token of a node: hexadecimal HMAC-SHA256 of `nodekeeper/v1/{cluster}/{node_id}`.
    pub fn token(&self, cluster: &ClusterName, node_id: NodeId) -> String {
        // This cannot fail: HMAC takes a key of any length.
        let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(&self.0) else { return String::new() };
        mac.update(format!("nodekeeper/v1/{cluster}/{node_id}").as_bytes());
        hex(&mac.finalize().into_bytes())
    }

    /// Whether `token` is the token of this node in this cluster.
    pub fn accepts(&self, cluster: &ClusterName, node_id: NodeId, token: &str) -> bool {
        let right = self.token(cluster, node_id);
        !right.is_empty() && bool::from(right.as_bytes().ct_eq(token.as_bytes()))
    }
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
        let token = key.token(&a, node);
        assert_eq!(token.len(), 64);
        assert!(key.accepts(&a, node, &token));
        assert!(!key.accepts(&b, node, &token) && !key.accepts(&a, other, &token));
        assert!(!key.accepts(&a, node, "") && !key.accepts(&a, node, &token[..63]));
        assert!(!MasterKey::from_hex(&"f0".repeat(32)).unwrap().accepts(&a, node, &token));
    }

    #[test]
    fn bad_keys_are_refused_and_good_ones_never_shown() {
        for bad in ["", "00", &"0".repeat(63), &"zz".repeat(32)] {
            assert!(MasterKey::from_hex(bad).is_err(), "{bad}");
        }
        assert_eq!(format!("{:?}", MasterKey::from_hex(&"ab".repeat(32)).unwrap()), "MasterKey(…)");
    }
}
