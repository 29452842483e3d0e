//! Output to the terminal. A terminal that is gone does not end the local system.

use std::io::Write;

/// Prints one or more lines. If the reader has gone, the program goes on.
pub(super) fn say(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{text}").and_then(|()| out.flush());
}
