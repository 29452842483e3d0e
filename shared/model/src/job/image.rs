//! The image of a container: its reference, and the digest of the bytes that a job runs.
//!
//! Guarantees: a reference can be no option of docker or podman; with a digest, a reference names the same bytes for ever.
//! Does not: speak to a registry; the agent does.
//! Source: "Content Digests", Docker Distribution; "Digests", OCI Image Format Specification.

use crate::BadText;
use crate::text_form::text_form;
use derive_more::Display;
use serde::{Deserialize, Deserializer};
use std::str::FromStr;

/// The longest image reference, in bytes.
const MAX_IMAGE_BYTES: usize = 255;

/// The registry of a reference that names none.
pub const DEFAULT_REGISTRY: &str = "docker.io";

/// Whether this is an image reference. A text that begins with `-` is refused: docker and podman would take it for an option.
pub fn is_image_reference(image: &str) -> bool {
    let begins = |c: char| c.is_ascii_alphanumeric();
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '/' | ':' | '@');
    image.len() <= MAX_IMAGE_BYTES
        && image.starts_with(begins)
        && image.chars().all(allowed)
        && !image.contains("..")
        && !image.contains("//")
}

/// The registry of an image: what is before the first `/`, if that can be a host.
pub fn registry(image: &str) -> &str {
    let is_host = |first: &str| first.contains(['.', ':']) || first == "localhost";
    image.split_once('/').map(|(first, _)| first).filter(|first| is_host(first)).unwrap_or(DEFAULT_REGISTRY)
}

/// The reference of an image with this digest, in place of its tag.
pub fn pinned(image: &str, digest: &ImageDigest) -> String {
    let name = image.split('@').next().unwrap_or(image);
    let after_folders = name.rfind('/').map_or(0, |at| at + 1);
    let tag = name.get(after_folders..).and_then(|last| last.find(':'));
    let name = tag.and_then(|at| name.get(..after_folders + at)).unwrap_or(name);
    format!("{name}@{digest}")
}

/// `sha256:` and 64 hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Display)]
pub struct ImageDigest(String);

impl FromStr for ImageDigest {
    type Err = BadText;

    fn from_str(text: &str) -> Result<Self, BadText> {
        let is_hex = |hex: &str| hex.len() == 64 && hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        let fault = "is not the digest of an image: sha256: and 64 hexadecimal digits";
        let is_digest = text.strip_prefix("sha256:").is_some_and(is_hex);
        if is_digest { Ok(Self(text.to_owned())) } else { Err(BadText::of(text, fault)) }
    }
}

text_form!(ImageDigest);

/// Reads the digest of a node. Anything that is no digest is read as `None`.
pub(crate) fn lenient<'de, D: Deserializer<'de>>(from: D) -> Result<Option<ImageDigest>, D::Error> {
    Ok(serde_json::Value::deserialize(from)?.as_str().and_then(|text| text.parse().ok()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_takes_the_place_of_a_tag() {
        let digest: ImageDigest = format!("sha256:{}", "0a".repeat(32)).parse().unwrap();
        for (image, name, host) in [
            ("alpine", "alpine", "docker.io"),
            ("alpine:3.20", "alpine", "docker.io"),
            ("team/app:1", "team/app", "docker.io"),
            ("localhost:5000/app", "localhost:5000/app", "localhost:5000"),
            ("localhost/app:1", "localhost/app", "localhost"),
            ("registry.example.com:443/team/app:1.2", "registry.example.com:443/team/app", "registry.example.com:443"),
            ("ghcr.io/team/app@sha256:00", "ghcr.io/team/app", "ghcr.io"),
        ] {
            assert_eq!(pinned(image, &digest), format!("{name}@{digest}"));
            assert_eq!(registry(image), host, "{image}");
            assert!(is_image_reference(&pinned(image, &digest)), "{image}");
        }
        for wrong in ["", "sha256:", "sha256:0A", &format!("sha512:{}", "0".repeat(64)), &"0".repeat(64)] {
            assert!(wrong.parse::<ImageDigest>().is_err(), "{wrong}");
        }
    }
}
