//! Which names and addresses from outside are accepted, and whether a name matches a pattern. They reach lists, terminals,
//! environments and the keys of tables.
//!
//! Guarantees: a text that passes stays on one line, and no terminal obeys it. Only the name of a job may have characters that a
//! shell obeys.
//! Does not: make a text fit. Whoever gets a wrong one refuses it.

use std::net::IpAddr;

/// The longest name of a job, in characters.
pub const MAX_NAME_CHARS: usize = 128;

/// What is allowed as the name of a job, in words.
pub const NAME_FORM: &str =
    "1 to 128 characters on one line, without control characters, and without a space at either end";

/// The longest host name, in bytes (RFC 1123, section 2.1; RFC 1035).
const MAX_HOST_BYTES: usize = 253;
/// The longest part of a host name, in bytes.
const MAX_LABEL_BYTES: usize = 63;
/// The longest id of an instance or of a boot, in bytes.
const MAX_ID_BYTES: usize = 128;

/// Whether a terminal may obey this character: a control character, or one that ends a line or changes the direction of text,
/// so that a line reads as something else.
pub fn is_obeyed(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{61c}'
                | '\u{200e}'
                | '\u{200f}'
                | '\u{2028}'
                | '\u{2029}'
                | '\u{202a}'..='\u{202e}'
                | '\u{2066}'..='\u{2069}'
                | '\u{feff}'
        )
}

/// Whether this can be the name of a job.
pub fn is_job_name(text: &str) -> bool {
    let chars = text.chars().count();
    (1..=MAX_NAME_CHARS).contains(&chars) && !text.chars().any(is_obeyed) && text.trim() == text
}

/// Whether this is an IP address, or the name of a host by RFC 1123.
pub fn is_host(text: &str) -> bool {
    if text.parse::<IpAddr>().is_ok() {
        return true;
    }
    let is_label = |label: &str| {
        let inside = |b: u8| b.is_ascii_alphanumeric() || b == b'-';
        (1..=MAX_LABEL_BYTES).contains(&label.len())
            && label.bytes().all(inside)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    // The last part of a name is never a number: otherwise a name could be taken for an address.
    let last = text.rsplit('.').next().unwrap_or_default();
    text.len() <= MAX_HOST_BYTES && text.split('.').all(is_label) && !last.bytes().all(|b| b.is_ascii_digit())
}

/// Whether this can be the id of an instance, of a boot or of an incarnation: letters, digits, `-`, `_`, `.` and `:`.
pub fn is_id(text: &str) -> bool {
    let fits = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b':');
    (1..=MAX_ID_BYTES).contains(&text.len()) && text.bytes().all(fits)
}

/// What is allowed as a label of a size, and as a type of GPUs, in words.
pub const LABEL_FORM: &str = "1 to 32 letters, digits, '-', '_' or '.'";

/// Whether this can be a label of a size, or a type of GPUs.
pub fn is_label(text: &str) -> bool {
    text.len() <= 32 && is_plain_name(text)
}

/// What is allowed as the key and as the value of a job's label, in words.
pub const JOB_LABEL_FORM: &str =
    "KEY has 1 to 64 letters, digits, '-', '_' or '.', and VALUE may have '/', ':', '@' and '+' too";

/// Whether a job can have this label. Neither part has a character that separates labels.
pub fn is_job_label(key: &str, value: &str) -> bool {
    is_plain_name(key) && is_plain_name(&value.replace(['/', ':', '@', '+'], "-"))
}

/// Whether this is 1 to 64 letters, digits, `-`, `_` or `.`: what can be the name of a cluster, of a size, of a demand set, or of
/// an instance type in EC2, like `m7a.large`.
pub fn is_plain_name(text: &str) -> bool {
    let fits = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    (1..=64).contains(&text.len()) && text.bytes().all(fits)
}

/// Whether a text matches a pattern, where `*` is any text.
pub fn matches(pattern: &str, text: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else { return pattern == text };
    let Some(mut left) = text.strip_prefix(start) else { return false };
    let mut parts: Vec<&str> = rest.split('*').collect();
    let end = parts.pop().unwrap_or_default();
    for part in parts {
        let Some(at) = left.find(part) else { return false };
        left = left.get(at + part.len()..).unwrap_or_default();
    }
    left.ends_with(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_short_and_plain() {
        for good in ["a", "ci-builds_2.x", &"x".repeat(64)] {
            assert!(is_plain_name(good), "{good}");
        }
        for bad in ["", "a b", "a#b", "é", &"x".repeat(65)] {
            assert!(!is_plain_name(bad), "{bad}");
        }
    }

    #[test]
    fn labels_of_jobs_have_nothing_that_separates_them() {
        for (key, value) in [("team", "a"), ("cost.centre-1_x", "eu/42:x@y+z"), (&*"k".repeat(64), &*"v".repeat(64))] {
            assert!(is_job_label(key, value), "{key} {value}");
        }
        for (key, value) in [
            ("", "a"),
            ("a", ""),
            ("a/b", "c"),
            ("a", "b=c"),
            ("a", "b,c"),
            ("a", "b c"),
            ("a", "b\n"),
            ("a", "\u{202e}"),
            ("a", "\""),
            ("é", "a"),
            (&*"k".repeat(65), "v"),
            ("k", &*"v".repeat(65)),
        ] {
            assert!(!is_job_label(key, value), "{key:?} {value:?}");
        }
    }

    #[test]
    fn a_star_is_any_text() {
        for (pattern, text, is_match) in [
            ("m7a.large", "m7a.large", true),
            ("m7a.large", "m7a.large2", false),
            ("*", "m7a.large", true),
            ("*", "", true),
            ("**", "z", true),
            ("m7*.large", "m7a.large", true),
            ("m7*.large", "m7a.xlarge", false),
            ("m7*.*large", "m7a.xlarge", true),
            ("*.metal*", "m7i.metal-24xl", true),
            ("c*", "m7a.large", false),
            ("ab*ba", "aba", false),
            ("a*b*c", "axxbyyc", true),
            ("a*b*c", "acb", false),
            ("a*bb", "ab", false),
            ("a", "", false),
        ] {
            assert_eq!(matches(pattern, text), is_match, "{pattern} {text}");
        }
    }

    #[test]
    fn an_address_is_an_ip_address_or_the_name_of_a_host() {
        let label = "a".repeat(63);
        let longest = format!("{label}.{label}.{label}.{}", "b".repeat(61));
        for good in
            ["10.0.0.7", "::1", "fe80::1", "ip-10-0-0-7.ec2.internal", "node", "3com.example", "A-b.c1", &longest]
        {
            assert!(is_host(good), "{good}");
        }
        let too_long = format!("{longest}b");
        for bad in [
            "",
            " ",
            "10.0.0.7 ",
            "10.0.0.1,10.0.0.2",
            "a\nb",
            "-oProxyCommand=touch",
            "-a",
            "a-",
            "a..b",
            ".a",
            "a.",
            "a_b",
            "a b",
            "user@host",
            "host:22",
            "[::1]",
            "fe80::1%eth0",
            "10.0.0.256",
            "1.2.3",
            "7",
            "$(id)",
            "é",
            "a\0b",
            &"a".repeat(64),
            &too_long,
        ] {
            assert!(!is_host(bad), "{bad:?}");
        }
    }

    #[test]
    fn a_name_is_a_line_of_text() {
        for good in ["a", "train 7", "nightly/2027-01-15", "größe", "é".repeat(128).as_str(), "$(x)", "\"q\""] {
            assert!(is_job_name(good), "{good}");
        }
        for bad in [
            "",
            " ",
            " a",
            "a ",
            "a\n",
            "a\tb",
            "\u{1b}[31mred",
            "a\0",
            "a\u{202e}b",
            "a\u{2028}b",
            "\u{feff}a",
            "\u{9b}2J",
        ] {
            assert!(!is_job_name(bad), "{bad:?}");
        }
        assert!(!is_job_name(&"é".repeat(129)));
    }

    #[test]
    fn ids_and_types_have_no_room_for_anything_else() {
        for good in
            ["i-0123456789abcdef0", "boot-1", "123e4567-e89b-12d3-a456-426614174000", "01JD0000000000000000000000"]
        {
            assert!(is_id(good), "{good}");
        }
        for bad in ["", "a b", "i-1\n", "i-1,i-2", "\u{1b}", "é", "a/b", &"x".repeat(129)] {
            assert!(!is_id(bad) && !is_plain_name(bad), "{bad:?}");
        }
        assert!(is_plain_name("u7in-32tb.224xlarge"));
    }
}
