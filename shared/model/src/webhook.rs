//! Where the webhook calls, and the key that it signs its calls with.
//!
//! The signature is that of Standard Webhooks (<https://www.standardwebhooks.com>), so that receivers can use a library.
//!
//! Guarantees: a receiver has HTTPS, or is on this machine; a key has 24 to 64 bytes and is never printed.
//! Does not: call anybody, or know where the key is kept.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// What a key begins with when people pass it on.
pub const KEY_PREFIX: &str = "whsec_";
/// The lengths of keys that the specification allows, in bytes.
const KEY_BYTES: std::ops::RangeInclusive<usize> = 24..=64;
/// The longest URL that is taken, in bytes.
const MAX_URL_BYTES: usize = 2048;

/// The URL that the webhook calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceiverUrl(String);

/// Not a URL that the webhook may call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the URL must begin with https:// and a host, without a user name, or with http:// and this machine \
     (http://127.0.0.1:8080/): the documents say what runs in the cluster"
)]
pub struct BadReceiver;

impl FromStr for ReceiverUrl {
    type Err = BadReceiver;

    fn from_str(text: &str) -> Result<Self, BadReceiver> {
        let printable = text.len() <= MAX_URL_BYTES && text.bytes().all(|b| b.is_ascii_graphic() && b != b'\\');
        let (scheme, rest) = text.split_once("://").filter(|_| printable).ok_or(BadReceiver)?;
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        let host = host_of(authority).ok_or(BadReceiver)?;
        let allowed = scheme == "https" || (scheme == "http" && is_this_machine(host));
        if allowed { Ok(Self(text.to_owned())) } else { Err(BadReceiver) }
    }
}

impl fmt::Display for ReceiverUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl ReceiverUrl {
    /// The URL as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Scheme and host, for logs: the path of a webhook's URL is often a secret.
    pub fn origin(&self) -> &str {
        let start = self.0.find("://").map_or(0, |at| at + 3);
        let end = self.0.get(start..).and_then(|rest| rest.find(['/', '?', '#'])).map_or(self.0.len(), |at| start + at);
        self.0.get(..end).unwrap_or_default()
    }
}

/// The host in `host`, `host:port`, `[v6]` or `[v6]:port`.
fn host_of(authority: &str) -> Option<&str> {
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (host, after) = rest.split_once(']')?;
            host.parse::<std::net::Ipv6Addr>().ok()?;
            (host, after.is_empty().then_some(None).or_else(|| after.strip_prefix(':').map(Some))?)
        }
        None => {
            let (host, port) = authority.split_once(':').map_or((authority, None), |(host, port)| (host, Some(port)));
            let named = host.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'.' || b == b'-');
            (Some(host).filter(|host| named && !host.is_empty())?, port)
        }
    };
    port.is_none_or(|port| port.parse::<u16>().is_ok_and(|port| port > 0)).then_some(host)
}

fn is_this_machine(host: &str) -> bool {
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// The key of the signatures. Both sides have it.
#[derive(Clone)]
pub struct SigningKey(Vec<u8>);

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SigningKey(…)")
    }
}

/// Not a key for signatures.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the key of the webhook must be {KEY_PREFIX} and the base64 of 24 to 64 bytes: make one with \
     `echo {KEY_PREFIX}$(head -c 32 /dev/urandom | base64)`"
)]
pub struct BadSigningKey;

impl FromStr for SigningKey {
    type Err = BadSigningKey;

    /// Reads `whsec_` and base64. The prefix may be left out: Secrets Manager generates the rest alone.
    fn from_str(text: &str) -> Result<Self, BadSigningKey> {
        let text = text.trim();
        let bytes = STANDARD.decode(text.strip_prefix(KEY_PREFIX).unwrap_or(text)).map_err(|_| BadSigningKey)?;
        if KEY_BYTES.contains(&bytes.len()) { Ok(Self(bytes)) } else { Err(BadSigningKey) }
    }
}

impl SigningKey {
    /// The signature of a body that is sent at this time, in seconds since the epoch: `v1,` and base64. `id` has no dot,
    /// because dots separate what is signed.
    pub fn sign(&self, id: &str, at_s: i64, body: &[u8]) -> String {
        // This cannot fail: HMAC takes a key of any length.
        let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(&self.0) else { return String::new() };
        mac.update(format!("{id}.{at_s}.").as_bytes());
        mac.update(body);
        format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example that the libraries of Standard Webhooks share.
    #[test]
    fn a_signature_is_that_of_the_specification() {
        let key: SigningKey = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".parse().unwrap();
        let signature = key.sign("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, br#"{"test": 2432232314}"#);
        assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
        let bare: SigningKey = " MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n".parse().unwrap();
        assert_eq!(bare.sign("a", 1, b"x"), key.sign("a", 1, b"x"));
        assert_ne!(bare.sign("a", 2, b"x"), key.sign("a", 1, b"x"));
    }

    #[test]
    fn a_key_has_24_to_64_bytes() {
        let of = |bytes: usize| format!("whsec_{}", STANDARD.encode(vec![7; bytes])).parse::<SigningKey>();
        assert!([24, 32, 64].into_iter().all(|bytes| of(bytes).is_ok()));
        assert!([0, 23, 65].into_iter().all(|bytes| of(bytes).is_err()));
        assert!("whsec_not base64".parse::<SigningKey>().is_err());
        // What Secrets Manager generates for the template: 64 letters and digits.
        assert!("aB3".repeat(21).parse::<SigningKey>().is_err(), "63 characters are no base64");
        assert!("aB3x".repeat(16).parse::<SigningKey>().is_ok());
        assert_eq!(format!("{:?}", of(32).unwrap()), "SigningKey(…)");
    }

    #[test]
    fn a_receiver_has_https_or_is_on_this_machine() {
        for good in [
            "https://example.org/hook?x=1",
            "https://example.org:8443",
            "https://[2001:db8::1]/hook",
            "http://127.0.0.1:8080/",
            "http://localhost/x",
            "http://[::1]:9",
        ] {
            assert_eq!(good.parse::<ReceiverUrl>().map(|url| url.to_string()), Ok(good.to_owned()));
        }
        for bad in [
            "",
            "example.org",
            "https://",
            "https:///x",
            "http://example.org/",
            "http://127.0.0.1.example.org/",
            "http://127.0.0.1@example.org/",
            "https://user@example.org/",
            "https://example.org:0/",
            "https://example.org:x/",
            "http://127.0.0.1\\@example.org/",
            "https://exa mple.org/",
            "https://example.org/\n",
            "ftp://127.0.0.1/",
            "HTTPS//x",
            "http://10.0.0.1/",
        ] {
            assert_eq!(bad.parse::<ReceiverUrl>(), Err(BadReceiver), "{bad}");
        }
        let url: ReceiverUrl = "https://example.org:8443/secret?also".parse().unwrap();
        assert_eq!(url.origin(), "https://example.org:8443");
        assert_eq!("https://example.org".parse::<ReceiverUrl>().unwrap().origin(), "https://example.org");
    }
}
