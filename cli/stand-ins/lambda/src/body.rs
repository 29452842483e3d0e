//! Reads HTTP bodies up to a limit.

use axum::body::{Body, Bytes};
use futures::StreamExt;

/// The largest payload of a synchronous invocation, and the largest answer of a function, in AWS.
pub(crate) const MAX_PAYLOAD: usize = 6 * 1024 * 1024;

/// Why a body could not be read.
pub(crate) enum BodyError {
    TooLarge,
    /// The connection broke.
    Broken,
}

/// Reads a body of at most `limit` bytes. Up to four times the limit is read and thrown away: many
/// clients read no answer before they have sent everything.
pub(crate) async fn read_body(body: Body, limit: usize) -> Result<Bytes, BodyError> {
    let mut chunks = body.into_data_stream();
    let mut first = Bytes::new();
    let mut rest = Vec::new();
    let mut size = 0usize;
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk.map_err(|_| BodyError::Broken)?;
        size = size.saturating_add(chunk.len());
        if size > limit.saturating_mul(4) {
            break;
        }
        if first.is_empty() {
            first = chunk;
        } else if size <= limit {
            // Most bodies are one chunk and are never copied.
            if rest.is_empty() {
                rest.extend_from_slice(&first);
            }
            rest.extend_from_slice(&chunk);
        }
    }
    match size {
        _ if size > limit => Err(BodyError::TooLarge),
        _ if rest.is_empty() => Ok(first),
        _ => Ok(rest.into()),
    }
}
