//! Prints an output from S3, where its node stores it in pieces: see `model::stored`.
//!
//! Guarantees: the bytes come in order and once, without a gap. One piece is in memory at a time.
//! Does not: wait for an output that is not stored yet.

use super::output_printer::{Printer, Route, Text};
use crate::console::{Cluster, Context};
use crate::view::live_output::text_of;
use model::stored::{BOTH, PIECE_BYTES};
use model::{S3Place, Switches};
use s3::{S3Error, again};
use std::ops::Range;

/// The most bytes of the list of switches of a piece: each has at most eight digits and a comma.
const LIST_BYTES: u64 = 9 * PIECE_BYTES + 2;

/// Prints these bytes of the stored part. Returns the end of the printed bytes, and why it stopped there if some are missing.
pub(crate) async fn print(
    cluster: &Cluster,
    context: &mut Context<'_>,
    printer: &mut Printer,
    place: &S3Place,
    range: Range<u64>,
) -> anyhow::Result<(u64, Option<String>)> {
    let mut at = range.start;
    while at < range.end {
        match piece(cluster, place, at, range.end).await {
            Ok(text) => printer.print(context, &text)?,
            Err(error) => return Ok((at, Some(text_of(&error, place)))),
        }
        at = (at / PIECE_BYTES).saturating_add(1).saturating_mul(PIECE_BYTES);
    }
    Ok((range.end.max(range.start), None))
}

/// The byte from which an output of this size is read for its last lines: the beginning of a piece.
pub(crate) fn begin_of_last(lines: usize, route: Route, size: u64) -> u64 {
    let first = route.last_bytes(lines).map_or(0, |bytes| size.saturating_sub(bytes) / PIECE_BYTES);
    first.saturating_mul(PIECE_BYTES)
}

/// The bytes from `at` on of one piece of an output, which has at least `size` stored bytes.
async fn piece(cluster: &Cluster, place: &S3Place, at: u64, size: u64) -> Result<Text, S3Error> {
    let (s3, no, from) = (&cluster.outputs, at / PIECE_BYTES, at % PIECE_BYTES);
    let object = place.piece(no);
    let (head, mut bytes) = again(async || s3.get_from(&object, from, PIECE_BYTES).await).await?;
    let want = size.saturating_sub(at).min(PIECE_BYTES.saturating_sub(from));
    if (bytes.len() as u64) < want {
        return Err(S3Error::Failed(format!("{object} has become smaller")));
    }
    // The piece may have grown since its size was read.
    bytes.truncate(usize::try_from(want).unwrap_or(usize::MAX));
    let mut switches = Switches::default();
    if head.streams.as_deref() == Some(BOTH) {
        let (_, list) = again(async || s3.get(&place.switches(no), LIST_BYTES).await).await?;
        switches = serde_json::from_slice(&list).map_err(|e| S3Error::Failed(format!("its switches: {e}")))?;
    }
    Ok(Text::new(&bytes, switches.part(from, 0)))
}
