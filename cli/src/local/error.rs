//! What errors of files and of the system say.
//!
//! Guarantees: the message is one line that says what and what to do; the cause stands behind it.
//! Does not: tell errors apart. Nothing decides by them: a person reads them.

use anyhow::{Error, anyhow};
use std::io;
use std::path::Path;

/// For `map_err` on file operations.
pub(super) fn file(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    let text = format!("cannot {what} {} (check it, or name another directory with --dir)", path.display());
    move |source| Error::new(source).context(text)
}

/// Something is there that an earlier start did not make.
pub(super) fn not_ours(path: &Path) -> Error {
    anyhow!(
        "{} is there, and `nodekeeper local` did not make it: it removes what has this name, so move it, or name another \
         directory with --dir",
        path.display()
    )
}
