//! The output of an alloc on its way from the node to a reader: who wants it, and the pieces that the node sends.
//!
//! A reader writes a [`Follow`] on the record of the node. The answer to the node's next heartbeat carries it, and the agent
//! then sends the output in pieces, which the reader finds in the table `output`.
//!
//! Guarantees: a follow ends by itself if its reader does not renew it; the pieces of a follow have consecutive numbers
//! without a gap, and each begins where the one before ends.
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

/// How long a piece is kept.
pub const PIECE_KEPT: Span = Span::from_s(3600);

/// Somebody reads the output of an alloc. It is on the record of the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Follow {
    /// A new id for each reader: readers do not share pieces.
    pub follow_id: String,
    /// The alloc whose output is read.
    pub alloc_id: AllocId,
    /// The reader wants only so many bytes of what there is when the follow begins; `None`: all that the node has.
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
    /// How many bytes the piece has.
    pub bytes: u64,
    /// How many bytes the output had when the piece was read.
    pub size: u64,
    /// What comes after the piece.
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
