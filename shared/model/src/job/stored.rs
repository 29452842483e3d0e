//! Where outputs and files of allocs are stored in S3: whole outputs, and files by their content.
//!
//! ```text
//! PLACE/000000.log        the first 8 MiB (`PIECE_BYTES`), and so on; the last one may have fewer bytes, and grows while the
//! PLACE/000001.log        command runs; its metadata says whether it is the end: see [`THEN_HEADER`]
//! PLACE/000001.switches   where the stream changes in that piece, as a list in JSON; absent if all of it is standard output
//! CLUSTER/files/SHA256    a file, or a folder as a tar archive
//! CLUSTER/files/JOB/MEMBER-COPY-N   a checkpoint of a try, which a later one of the same try may replace
//! ```
//!
//! Guarantees: a prefix can be written into a URL and into a policy of IAM as it is; each alloc of each cluster has a place of
//! its own; a place and its text are the same.
//! Does not: know the API of S3 (`nodekeeper-s3` does), or whether something is stored at a place.

use crate::text_form::text_form;
use crate::{AllocId, BadText, ClusterName};
use derive_more::Display;
use std::str::FromStr;

/// How a place begins.
const SCHEME: &str = "s3://";
/// The longest prefix of an operator, in bytes. A key has at most 1024, and the rest of a key is shorter than 150.
pub const MAX_PREFIX_BYTES: usize = 512;
/// The longest key, in bytes.
const MAX_KEY_BYTES: usize = 1024;

/// The form of a prefix or a place, for people.
pub const PREFIX_FORM: &str = "`s3://BUCKET` or `s3://BUCKET/PREFIX`: the bucket has 3 to 63 lowercase letters, digits, '-' or \
     '.', and the prefix at most 512 letters, digits, '-', '_', '.' or '/'";

/// How many bytes each object of an output has, except the last.
pub const PIECE_BYTES: u64 = 8 * 1024 * 1024;

/// The part of a key between the name of the cluster and the digest of a content.
const FILES: &str = "files";

/// The metadata of a piece that says what comes after it: [`END`] or [`MORE`].
pub const THEN_HEADER: &str = "x-amz-meta-nodekeeper-then";
/// The metadata of a piece that says which streams it has: [`OUT`] or [`BOTH`].
pub const STREAMS_HEADER: &str = "x-amz-meta-nodekeeper-streams";
/// [`THEN_HEADER`] of the last piece of an output that is stored whole.
pub const END: &str = "end";
/// [`THEN_HEADER`] of every other piece.
pub const MORE: &str = "more";
/// [`STREAMS_HEADER`] of a piece that is all standard output.
pub const OUT: &str = "out";
/// [`STREAMS_HEADER`] of a piece with switches.
pub const BOTH: &str = "both";

/// The beginning of the places of all allocs of a cluster: a bucket and perhaps a part of a key.
#[derive(Clone, Debug, PartialEq, Eq, Display)]
#[display("{SCHEME}{bucket}{}{prefix}", if prefix.is_empty() { "" } else { "/" })]
pub struct S3Prefix {
    bucket: String,
    /// Empty, or without a slash at its ends.
    prefix: String,
}

/// The place of an output, or of one object of it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Display)]
#[display("{SCHEME}{bucket}/{key}")]
pub struct S3Place {
    bucket: String,
    key: String,
}

impl S3Prefix {
    /// The place of the output of this alloc: `s3://BUCKET/PREFIX/CLUSTER/JOB/MEMBER-COPY`.
    pub fn place(&self, cluster: &ClusterName, id: AllocId) -> S3Place {
        let between = if self.prefix.is_empty() { "" } else { "/" };
        let AllocId { job_id, member, copy } = id;
        let key = format!("{}{between}{cluster}/{job_id}/{member}-{copy}", self.prefix);
        S3Place { bucket: self.bucket.clone(), key }
    }

    /// The place of the content with this digest: `s3://BUCKET/PREFIX/CLUSTER/files/SHA256`.
    pub fn content(&self, cluster: &ClusterName, sha256: &str) -> S3Place {
        let between = if self.prefix.is_empty() { "" } else { "/" };
        let key = format!("{}{between}{cluster}/{FILES}/{sha256}", self.prefix);
        S3Place { bucket: self.bucket.clone(), key }
    }
}

impl S3Place {
    pub fn bucket(&self) -> &str {
        &self.bucket
    }

    /// Where the bytes of this piece of the output are.
    #[must_use]
    pub fn piece(&self, no: u64) -> Self {
        self.object(no, "log")
    }

    /// Where the switches of this piece of the output are.
    #[must_use]
    pub fn switches(&self, no: u64) -> Self {
        self.object(no, "switches")
    }

    fn object(&self, no: u64, kind: &str) -> Self {
        Self { bucket: self.bucket.clone(), key: format!("{}/{no:06}.{kind}", self.key) }
    }

    /// Where the content with this digest is, if this is the place of an alloc of its cluster.
    #[must_use]
    pub fn content(&self, sha256: &str) -> Self {
        let cluster = self.key.rsplitn(3, '/').nth(2).unwrap_or_default();
        Self { bucket: self.bucket.clone(), key: format!("{cluster}/{FILES}/{sha256}") }
    }

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

/// Whether this can be the key of an object that somebody else has named. `..` is refused, because an HTTP client would resolve it.
fn is_key(text: &str) -> bool {
    let is_part = |part: &str| !part.is_empty() && part != "." && part != "..";
    text.len() <= MAX_KEY_BYTES && !text.chars().any(char::is_control) && text.split('/').all(is_part)
}

/// Whether this can begin a key without being changed on its way.
fn is_plain_key(text: &str) -> bool {
    is_key(text) && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/'))
}

fn no_place(text: &str) -> BadText {
    BadText::of(text, format!("is not a place in S3: it must be {PREFIX_FORM}"))
}

impl FromStr for S3Prefix {
    type Err = BadText;
    /// A slash at the end changes nothing.
    fn from_str(text: &str) -> Result<Self, BadText> {
        let bad = || no_place(text);
        let (bucket, prefix) = parts(text).ok_or_else(bad)?;
        let prefix = prefix.strip_suffix('/').unwrap_or(prefix);
        if !prefix.is_empty() && (prefix.len() > MAX_PREFIX_BYTES || !is_plain_key(prefix)) {
            return Err(bad());
        }
        Ok(Self { bucket: bucket.to_owned(), prefix: prefix.to_owned() })
    }
}

impl FromStr for S3Place {
    type Err = BadText;
    fn from_str(text: &str) -> Result<Self, BadText> {
        let place = parts(text).filter(|(_, key)| is_key(key));
        let (bucket, key) = place.ok_or_else(|| no_place(text))?;
        Ok(Self { bucket: bucket.to_owned(), key: key.to_owned() })
    }
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
            assert_eq!(place.to_string(), format!("{begin}{}/3-12", id.job_id));
            assert_eq!(place.piece(7).to_string(), format!("{place}/000007.log"));
            let content = prefix.parse::<S3Prefix>().unwrap().content(&cluster, "ab12");
            assert_eq!((content.to_string(), &content), (format!("{begin}files/ab12"), &place.content("ab12")));
            assert_eq!(place.switches(1_234_567).to_string(), format!("{place}/1234567.switches"));
            assert_eq!(place.to_string().parse::<S3Place>().unwrap(), place);
        }
        let long = format!("s3://logs/{}", "p".repeat(MAX_PREFIX_BYTES));
        let widest = AllocId { member: u32::MAX, copy: u32::MAX, ..id };
        let place = long.parse::<S3Prefix>().unwrap().place(&"c".repeat(64).parse().unwrap(), widest);
        let last = place.switches(u64::MAX / PIECE_BYTES);
        assert!(last.to_string().parse::<S3Place>().is_ok(), "the longest prefix has room for the rest");
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
        for text in ["s3://logs", "s3://logs/", "s3://logs/a/", "s3://logs/../a", "s3://logs/a\nb"] {
            assert!(text.parse::<S3Place>().is_err(), "{text} names no object");
        }
        for text in ["s3://logs/year=2026/a b+c&d (1)?#%.csv", "s3://logs/é"] {
            assert_eq!(
                text.parse::<S3Place>().unwrap().to_string(),
                text,
                "an object has the name that its owner gave it"
            );
        }
    }
}
