//! Where the whole output of an alloc is stored: places in S3.
//!
//! Guarantees: a place can be written into a URL and into a policy of IAM as it is; each alloc of each cluster has a place of
//! its own; a place and its text are the same.
//! Does not: know the API of S3 (`nodekeeper-s3` does), or whether something is stored at a place.

use crate::ids::{AllocId, ClusterName};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// How a place begins.
const SCHEME: &str = "s3://";
/// The longest prefix of an operator, in bytes. A key has at most 1024, and the rest of a key is shorter than 150.
pub const MAX_PREFIX_BYTES: usize = 512;
/// The longest key, in bytes.
const MAX_KEY_BYTES: usize = 1024;

/// What a prefix or a place must look like, for people.
pub const PREFIX_FORM: &str = "`s3://BUCKET` or `s3://BUCKET/PREFIX`: the bucket has 3 to 63 lowercase letters, digits, '-' or \
     '.', and the prefix at most 512 letters, digits, '-', '_', '.' or '/'";

/// Text that is not a place in S3.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a place in S3: it must be {PREFIX_FORM}")]
pub struct BadPlace(String);

/// What comes before the places of all allocs of a cluster: a bucket and perhaps a part of a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct S3Prefix {
    bucket: String,
    /// Empty, or without a slash at its ends.
    prefix: String,
}

/// The place of one object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct S3Place {
    bucket: String,
    key: String,
}

impl S3Prefix {
    /// The place of the output of this alloc: `s3://BUCKET/PREFIX/CLUSTER/JOB/MEMBER-COPY.log`.
    pub fn place(&self, cluster: &ClusterName, id: AllocId) -> S3Place {
        let between = if self.prefix.is_empty() { "" } else { "/" };
        let AllocId { job_id, member, copy } = id;
        let key = format!("{}{between}{cluster}/{job_id}/{member}-{copy}.log", self.prefix);
        S3Place { bucket: self.bucket.clone(), key }
    }
}

impl S3Place {
    /// The bucket.
    pub fn bucket(&self) -> &str {
        &self.bucket
    }

    /// The key of the object in the bucket.
    pub fn key(&self) -> &str {
        &self.key
    }
}

/// The bucket of a text, and what follows it.
fn parts(text: &str) -> Option<(&str, &str)> {
    let rest = text.strip_prefix(SCHEME)?;
    let (bucket, key) = rest.split_once('/').unwrap_or((rest, ""));
    let ends_well = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let is_bucket = (3..=63).contains(&bucket.len())
        && bucket.chars().all(|c| ends_well(c) || c == '-' || c == '.')
        && bucket.starts_with(ends_well)
        && bucket.ends_with(ends_well)
        && !bucket.contains("..");
    is_bucket.then_some((bucket, key))
}

/// Whether this can be a key, or a part of one, without being changed on its way: an HTTP client would resolve `..`.
fn is_key(text: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/');
    let is_part = |part: &str| !part.is_empty() && part != "." && part != "..";
    text.len() <= MAX_KEY_BYTES && text.chars().all(allowed) && text.split('/').all(is_part)
}

impl FromStr for S3Prefix {
    type Err = BadPlace;
    /// A slash at the end changes nothing.
    fn from_str(text: &str) -> Result<Self, BadPlace> {
        let bad = || BadPlace(text.to_owned());
        let (bucket, prefix) = parts(text).ok_or_else(bad)?;
        let prefix = prefix.strip_suffix('/').unwrap_or(prefix);
        if !prefix.is_empty() && (prefix.len() > MAX_PREFIX_BYTES || !is_key(prefix)) {
            return Err(bad());
        }
        Ok(Self { bucket: bucket.to_owned(), prefix: prefix.to_owned() })
    }
}

impl FromStr for S3Place {
    type Err = BadPlace;
    fn from_str(text: &str) -> Result<Self, BadPlace> {
        let place = parts(text).filter(|(_, key)| is_key(key));
        let (bucket, key) = place.ok_or_else(|| BadPlace(text.to_owned()))?;
        Ok(Self { bucket: bucket.to_owned(), key: key.to_owned() })
    }
}

impl fmt::Display for S3Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let between = if self.prefix.is_empty() { "" } else { "/" };
        write!(f, "{SCHEME}{}{between}{}", self.bucket, self.prefix)
    }
}

impl fmt::Display for S3Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}/{}", self.bucket, self.key)
    }
}

macro_rules! text_form {
    ($($t:ty),*) => {$(
        impl TryFrom<String> for $t {
            type Error = BadPlace;
            fn try_from(text: String) -> Result<Self, BadPlace> {
                text.parse()
            }
        }
        impl From<$t> for String {
            fn from(place: $t) -> String {
                place.to_string()
            }
        }
    )*};
}
text_form!(S3Prefix, S3Place);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;

    #[test]
    fn each_alloc_has_a_place_of_its_own_and_a_place_is_its_text() {
        let cluster: ClusterName = "lab".parse().unwrap();
        let id = AllocId { member: 3, copy: 12, ..fixtures::alloc_id(0) };
        for (prefix, begin) in [
            ("s3://logs", "s3://logs/lab/"),
            ("s3://logs/", "s3://logs/lab/"),
            ("s3://my.logs-1/a/b_c.d/", "s3://my.logs-1/a/b_c.d/lab/"),
        ] {
            let place = prefix.parse::<S3Prefix>().unwrap().place(&cluster, id);
            assert_eq!(place.to_string(), format!("{begin}{}/3-12.log", id.job_id));
            assert_eq!(place.to_string().parse::<S3Place>().unwrap(), place);
        }
        let long = format!("s3://logs/{}", "p".repeat(MAX_PREFIX_BYTES));
        let widest = AllocId { member: u32::MAX, copy: u32::MAX, ..id };
        let place = long.parse::<S3Prefix>().unwrap().place(&"c".repeat(64).parse().unwrap(), widest);
        assert!(place.to_string().parse::<S3Place>().is_ok(), "the longest prefix has room for the rest");
    }

    #[test]
    fn what_a_url_or_a_policy_would_change_is_no_prefix() {
        let long = format!("s3://logs/{}", "p".repeat(MAX_PREFIX_BYTES + 1));
        let bad = [
            "",
            "logs",
            "s3://",
            "s3:///a",
            "S3://logs",
            "s3://ab",
            "s3://Logs",
            "s3://-logs",
            "s3://logs.",
            "s3://a..b",
            "s3://logs//a",
            "s3://logs/a//b",
            "s3://logs/../x",
            "s3://logs/./x",
            "s3://logs/a b",
            "s3://logs/*",
            "s3://logs/${x}",
            "s3://logs/é",
            "s3://logs/a?b",
            "https://logs/a",
            &long,
        ];
        for text in bad {
            assert!(text.parse::<S3Prefix>().is_err(), "{text}");
        }
        for text in ["s3://logs", "s3://logs/", "s3://logs/a/"] {
            assert!(text.parse::<S3Place>().is_err(), "{text} names no object");
        }
    }
}
