//! Causes as text: an error with all its causes, in one line, and a reason that a record has room for.
//!
//! Guarantees: the causes are in order, the outermost first. The AWS SDK alone would only say "dispatch failure".
//! Does not: classify errors.

use std::error::Error;

/// The error and its causes, with `: ` between them.
pub fn error_chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

/// The longest `reason` kept on a record, in bytes. With a small record, a heartbeat costs one write unit.
pub const MAX_REASON_BYTES: usize = 120;

/// Shortens `reason` to [`MAX_REASON_BYTES`], on a character boundary.
pub fn short_reason(reason: &str) -> String {
    reason.get(..reason.floor_char_boundary(MAX_REASON_BYTES)).unwrap_or_default().to_owned()
}
