//! The output of an alloc on its way from the node to a reader: the follow of the reader, and the pieces that the node sends.
//!
//! A reader writes a [`Follow`] on the record of the node. The answer to the node's next heartbeat carries it, and the agent
//! then sends the output in pieces, which the reader finds in the table `output`.
//!
//! Guarantees: a follow ends by itself if its reader does not renew it; the pieces of a follow have consecutive numbers
//! without a gap, and each begins where the one before ends.
//! Standard output and standard error are one sequence of bytes, in the order in which they came, and [`Switches`] say which
//! byte is of which.
//! Does not: keep output for long. A piece is deleted about an hour after it was written.

use crate::ids::AllocId;
use crate::time::{Span, Time};
use serde::{Deserialize, Serialize};

/// The most bytes of output in one piece. A row of DynamoDB takes 400 KB, and the bytes are in base64 there.
pub const MAX_PIECE_BYTES: usize = 256 * 1024;

/// The most follows of one node at a time. They are on its record, which every heartbeat writes.
pub const MAX_FOLLOWS: usize = 8;

/// The longest id of a follow, in bytes.
pub const MAX_FOLLOW_ID_BYTES: usize = 64;

/// How long a follow lasts unless its reader renews it.
pub const FOLLOW_LASTS: Span = Span::from_s(90);

/// The most switches between standard output and standard error in one piece. They are in the same row.
pub const MAX_PIECE_SWITCHES: usize = 2_000;

/// How long a piece is kept.
pub const PIECE_KEPT: Span = Span::from_s(3600);

/// Somebody reads the output of an alloc. It is on the record of the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Follow {
    /// A new id for each reader: readers do not share pieces.
    pub follow_id: String,
    /// The alloc whose output is read.
    pub alloc_id: AllocId,
    /// The reader wants only the last so many bytes of the output that there is when the follow begins; `None`: all that the node
    /// has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_bytes: Option<u64>,
    /// The node sends pieces until this time.
    pub until_at: Time,
}

/// A row of the table `output`: one piece of the output of an alloc.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Piece {
    /// The follow that the piece is for.
    pub follow_id: String,
    /// The number of the piece, from 0 on.
    pub no: u64,
    /// Where the piece begins in the output, in bytes.
    pub offset: u64,
    /// The bytes of the piece in base64, at most [`MAX_PIECE_BYTES`] of them.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub data: String,
    /// Which bytes are standard error.
    #[serde(default, skip_serializing_if = "Switches::is_empty")]
    pub switches: Switches,
    /// How many bytes the piece has.
    pub bytes: u64,
    /// How many bytes the output had when the piece was read.
    pub size: u64,
    pub then: Then,
    /// Epoch **seconds**: DynamoDB deletes the row some time after.
    pub expires_at: i64,
}

/// What comes after a piece of output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Then {
    /// More may come.
    More,
    /// Nothing: the alloc has ended, and this is the end of its output.
    End,
    /// Nothing: the node does not have this output, or not any more.
    Missing,
}

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

    /// Keeps at most `most` switches. Returns where the text must be cut for that; `None` if nowhere.
    pub fn limit(&mut self, most: usize) -> Option<u64> {
        let end = self.0.get(most).copied();
        self.0.truncate(most);
        end
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
