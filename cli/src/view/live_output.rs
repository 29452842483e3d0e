//! The stored part of an output, which grows while its alloc runs: how much there is, and its last lines.
//!
//! Guarantees: few calls, however long the output is.
//! Does not: know whether the command has printed more than its node has stored.

use model::stored::{END, PIECE_BYTES};
use model::{Alloc, S3Place};
use s3::{Head, S3, S3Error, again};
use serde::Serialize;

/// How many bytes of a running alloc's output are shown.
const SHOWN: u64 = 8 * 1024;

/// The stored part of an output.
pub(crate) struct Stored {
    /// The number of stored bytes, from the beginning on.
    pub(crate) size: u64,
    pub(crate) is_all: bool,
}

/// Finds how many bytes are stored, in few calls. An earlier call found `before` of them. The error says why nothing is stored, or why
/// it is not known.
pub(crate) async fn find(s3: &S3, place: &S3Place, before: u64) -> Result<Stored, String> {
    let first = before.saturating_sub(1) / PIECE_BYTES;
    let (no, head) = last_piece(s3, place, first).await.map_err(|error| text_of(&error, place))?;
    let size = no.saturating_mul(PIECE_BYTES).saturating_add(head.bytes);
    Ok(Stored { size, is_all: head.then.as_deref() == Some(END) })
}

/// The number of the last piece, and its head. The search begins with the piece `first`.
async fn last_piece(s3: &S3, place: &S3Place, first: u64) -> Result<(u64, Head), S3Error> {
    let mut last: (u64, Head) = (first, again(async || s3.head(&place.piece(first)).await).await?);
    let (mut step, mut absent): (u64, Option<u64>) = (1, None);
    while last.1.bytes == PIECE_BYTES && last.1.then.as_deref() != Some(END) {
        let no = match absent {
            None => last.0.saturating_add(step),
            Some(absent) => last.0.midpoint(absent),
        };
        if no == last.0 {
            break;
        }
        match again(async || s3.head(&place.piece(no)).await).await {
            Ok(head) => {
                last = (no, head);
                step = step.saturating_mul(2);
            }
            // The first piece could be read, so this one is absent. Without the permission to list the bucket, S3 says "denied" for that.
            Err(S3Error::Absent | S3Error::Denied(_)) => absent = Some(no),
            Err(error) => return Err(error),
        }
    }
    Ok(last)
}

/// The end of the stored output of an alloc.
#[derive(Serialize)]
pub(crate) struct LiveOutput {
    /// The last whole lines.
    text: String,
    /// Why there are none.
    error: Option<String>,
    /// How many bytes are stored.
    bytes: u64,
}

/// The last lines that are stored of an alloc; `None`: the policy named no place for them.
pub(crate) async fn last_lines(s3: &S3, alloc: &Alloc) -> Option<LiveOutput> {
    let place = alloc.output_s3.as_ref()?;
    let read = async {
        let bytes = find(s3, place, 0).await?.size;
        let from = bytes.saturating_sub(SHOWN);
        let first = from.min(bytes.saturating_sub(1)) / PIECE_BYTES;
        let object = place.piece(bytes.saturating_sub(1) / PIECE_BYTES);
        // Near the beginning of a piece there may be fewer lines than usual.
        let from = if first == bytes.saturating_sub(1) / PIECE_BYTES { from % PIECE_BYTES } else { 0 };
        let got = again(async || s3.get_from(&object, from, SHOWN).await).await;
        let (_, text) = got.map_err(|error| text_of(&error, place))?;
        let text = String::from_utf8_lossy(&text).into_owned();
        let is_cut = bytes > SHOWN;
        let whole = text.split_once('\n').filter(|_| is_cut).map(|(_, rest)| rest.to_owned());
        Ok(LiveOutput { text: whole.unwrap_or(text), error: None, bytes })
    };
    Some(read.await.unwrap_or_else(|why: String| LiveOutput { text: String::new(), error: Some(why), bytes: 0 }))
}

pub(crate) fn text_of(error: &S3Error, place: &S3Place) -> String {
    match error {
        S3Error::Absent => format!("{place} is not there: its node has not stored it yet"),
        // S3 also gives this answer for an absent object if the caller may not list the bucket.
        S3Error::Denied(why) => format!(
            "{place} is not there yet, or your permissions do not allow it (s3:GetObject on it, and s3:ListBucket to tell \
             the two apart): {why}"
        ),
        other => format!("{place} cannot be read: {other}"),
    }
}
