//! What a person gives in a file or on standard input.
//!
//! Guarantees: a bounded amount is read, also of a pipe or a device without end, and more is an error that says how much may come; a
//! text is UTF-8, without the mark that some editors write before it.
//! Does not: know what the text means.

use super::UsageError;
use anyhow::{Context as _, bail};
use std::fs::File;
use std::io::{self, BufRead, Read};
use std::path::Path;

/// The most bytes of a file that is read whole, such as a policy or an environment.
pub(crate) const MOST: u64 = 4 << 20;
/// The most bytes of what has a line for each of many things: a file of jobs, or the state of a large fleet in one line.
pub(crate) const MOST_OF_MANY: u64 = 256 << 20;
/// The most bytes of an answer on a terminal.
pub(crate) const MOST_ANSWER: u64 = 4096;

/// Everything that comes, if it is at most this many bytes.
pub(crate) fn bytes(from: impl Read, shown: &str, most: u64) -> anyhow::Result<Vec<u8>> {
    let mut all = Vec::new();
    let read = from.take(most.saturating_add(1)).read_to_end(&mut all);
    read.with_context(|| format!("{shown} cannot be read"))?;
    if all.len() as u64 > most {
        let most = if most < 1 << 20 { format!("{most} bytes") } else { format!("{} MiB", most >> 20) };
        bail!(UsageError(format!("{shown} has more than {most}: give less at once")));
    }
    Ok(all)
}

/// The text of a file.
pub(crate) fn file(path: &Path) -> anyhow::Result<String> {
    let shown = path.display().to_string();
    let file = File::open(path).with_context(|| format!("{shown} cannot be read"))?;
    Ok(text(&bytes(file, &shown, MOST)?, &shown)?.to_owned())
}

/// The text of these bytes, without the byte order mark.
pub(crate) fn text<'b>(bytes: &'b [u8], shown: &str) -> Result<&'b str, UsageError> {
    let is_utf16 = bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff]);
    let text = std::str::from_utf8(bytes).map_err(|_| {
        let is = if is_utf16 { "is text in UTF-16: save it as UTF-8" } else { "is not text in UTF-8" };
        UsageError(format!("{shown} {is}"))
    })?;
    Ok(text.strip_prefix('\u{feff}').unwrap_or(text))
}

/// The next line with its end; empty at the end of the input.
pub(crate) fn line(from: &mut dyn BufRead, most: u64) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    from.take(most.saturating_add(1)).read_until(b'\n', &mut line)?;
    if line.len() as u64 > most {
        return Err(io::Error::other(format!("a line has more than {most} bytes")));
    }
    Ok(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_end_is_refused_and_not_read_to_its_end() {
        assert_eq!(bytes(&b"1234"[..], "it", 4).unwrap(), b"1234");
        for most in [0, 3, MOST] {
            let error = bytes(io::repeat(b'x'), "it", most).unwrap_err();
            assert!(error.is::<UsageError>() && error.to_string().starts_with("it has more than "), "{error}");
        }
        let error = file(Path::new("/dev/zero")).unwrap_err().to_string();
        assert_eq!(error, "/dev/zero has more than 4 MiB: give less at once");
        let mut endless = io::BufReader::new(io::repeat(b'x'));
        assert!(line(&mut endless, MOST_ANSWER).unwrap_err().to_string().contains("more than 4096 bytes"));
        let mut two = &b"ab\ncd"[..];
        assert_eq!([(); 3].map(|()| line(&mut two, 3).unwrap()), [b"ab\n".to_vec(), b"cd".to_vec(), Vec::new()]);
        assert!(file(Path::new("/")).unwrap_err().to_string().contains("/ cannot be read"));
    }

    #[test]
    fn a_mark_before_the_text_is_no_part_of_it() {
        assert_eq!(text("\u{feff}a\r\n".as_bytes(), "f").unwrap(), "a\r\n");
        let utf16: Vec<u8> = "\u{feff}{}".encode_utf16().flat_map(u16::to_le_bytes).collect();
        assert_eq!(text(&utf16, "f").unwrap_err().to_string(), "f is text in UTF-16: save it as UTF-8");
        assert_eq!(text(b"{\xe9}", "f").unwrap_err().to_string(), "f is not text in UTF-8");
    }
}
