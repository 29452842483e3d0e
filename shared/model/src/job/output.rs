//! The output of an alloc: standard output and standard error as one sequence of bytes, in the order in which they
//! came. [`Switches`] say which byte is of which.
//!
//! Guarantees: wrong switches from a broken node give bytes to the wrong stream, and lose none.
//! Does not: hold or store the bytes.

use crate::Span;
use serde::{Deserialize, Serialize};

/// How long a node stores the output of an alloc as it comes, unless a follower asks for it again.
pub const FOLLOW_LASTS: Span = Span::from_s(90);

/// Where a command prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stream {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}

impl Stream {
    /// The stream after this many switches.
    pub const fn after(switches: usize) -> Self {
        if switches.is_multiple_of(2) { Self::Out } else { Self::Err }
    }
}

/// The stream of each byte of a text: the places, in bytes from its beginning, at which the stream changes. The text begins with
/// standard output, so `[0]` is all standard error. Without a switch all is standard output.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Switches(Vec<u64>);

impl Switches {
    /// The switches at these places, in order.
    #[cfg(any(test, feature = "fixtures"))]
    pub const fn new(at: Vec<u64>) -> Self {
        Self(at)
    }

    /// Whether all is standard output.
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub const fn len(&self) -> usize {
        self.0.len()
    }

    /// Notes that the byte at this place is of this stream. Places only grow.
    pub fn note(&mut self, at: u64, stream: Stream) {
        if Stream::after(self.0.len()) != stream {
            self.0.push(at);
        }
    }

    pub fn stream_at(&self, at: u64) -> Stream {
        Stream::after(self.0.partition_point(|switch| *switch <= at))
    }

    /// The switches of the part of the text that begins at byte `from`, and comes after `before` other bytes of standard
    /// output.
    #[must_use]
    pub fn part(&self, from: u64, before: u64) -> Self {
        let mut part = Self::default();
        part.note(before, self.stream_at(from));
        for (n, at) in self.0.iter().enumerate().filter(|(_, at)| **at > from) {
            part.note(at.saturating_sub(from).saturating_add(before), Stream::after(n.saturating_add(1)));
        }
        part
    }

    /// The first byte from which on the text has at most `most` switches.
    pub fn begin_of_last(&self, most: usize) -> u64 {
        // The part may need one more switch at its beginning.
        let dropped = (self.0.len() > most).then(|| self.0.len().saturating_sub(most));
        dropped.and_then(|dropped| self.0.get(dropped)).copied().unwrap_or(0)
    }

    /// The bytes of the text in parts of one stream each. Places outside of the text, or out of order, change nothing else.
    pub fn split<'a>(&'a self, text: &'a [u8]) -> impl Iterator<Item = (Stream, &'a [u8])> + 'a {
        let mut from = 0;
        let ends = self.0.iter().copied().chain([u64::MAX]).enumerate();
        ends.filter_map(move |(n, end)| {
            let end = usize::try_from(end).unwrap_or(usize::MAX).clamp(from, text.len().max(from));
            let part = text.get(from..end).unwrap_or_default();
            from = end;
            (!part.is_empty()).then_some((Stream::after(n), part))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(at: &[u64], text: &str) -> Vec<(Stream, String)> {
        let switches = Switches::new(at.to_vec());
        switches.split(text.as_bytes()).map(|(s, part)| (s, String::from_utf8(part.to_vec()).unwrap())).collect()
    }

    #[test]
    fn each_byte_is_of_one_stream_and_a_part_keeps_its_streams() {
        use Stream::{Err, Out};
        assert_eq!(split(&[], "abc"), [(Out, "abc".into())]);
        assert_eq!(split(&[0], "abc"), [(Err, "abc".into())]);
        assert_eq!(split(&[1, 2], "abc"), [(Out, "a".into()), (Err, "b".into()), (Out, "c".into())]);
        // Wrong switches of a broken node lose no byte.
        for bad in [&[2, 1][..], &[9, 3], &[u64::MAX, 0], &[1, 1, 1]] {
            assert_eq!(split(bad, "abc").into_iter().map(|(_, part)| part).collect::<String>(), "abc", "{bad:?}");
        }
        let mut noted = Switches::default();
        for (at, stream) in [(0, Out), (2, Err), (3, Err), (5, Out), (6, Err)] {
            noted.note(at, stream);
        }
        assert_eq!(noted, Switches::new(vec![2, 5, 6]));
        let streams = |of: &Switches, bytes: u64| (0..bytes).map(|at| of.stream_at(at)).collect::<Vec<_>>();
        for from in 0..8 {
            assert_eq!(streams(&noted.part(from, 0), 8 - from), streams(&noted, 8)[from as usize..], "{from}");
        }
        assert_eq!(noted.part(3, 4), Switches::new(vec![4, 6, 7]));
    }
}
