//! The texts of errors of files and of the system.
//!
//! Guarantees: the message is one line that says what failed and what to do; the cause follows it.
//! Does not: tell kinds of errors apart. Only a person reads them.

use anyhow::{Error, anyhow};
use std::io;
use std::path::Path;

/// For `map_err` on file operations.
pub(super) fn file(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    let text = format!("cannot {what} {} (check it, or name another directory with --dir)", path.display());
    move |source| Error::new(source).context(text)
}

/// The error about something that no earlier start made.
pub(super) fn not_ours(path: &Path) -> Error {
    anyhow!(
        "{} is there, and `nodekeeper local` did not make it: it removes what has this name, so move it, or name another \
         directory with --dir",
        path.display()
    )
}
