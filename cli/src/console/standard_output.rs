//! Standard output. Its errors name it.
//!
//! Guarantees: a closed pipe at standard output is told apart from a connection that breaks.
//! Does not: decide what follows from an error.

use std::io::{self, Stdout, Write};

pub struct StandardOutput(pub Stdout);

impl Write for StandardOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes).map_err(named)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush().map_err(named)
    }
}

#[derive(Debug, thiserror::Error)]
#[error("standard output cannot be written: {0}")]
struct Unwritable(io::Error);

/// Adds the name of the stream to an error. The kind stays, because a closed pipe is recognized by it.
fn named(e: io::Error) -> io::Error {
    io::Error::new(e.kind(), Unwritable(e))
}

/// Whether the reader of standard output has closed the pipe. A connection that breaks has the same kind of error.
pub fn is_closed(error: &anyhow::Error) -> bool {
    let is_unwritable = |e: &io::Error| e.get_ref().is_some_and(|inner| inner.is::<Unwritable>());
    let mut causes = error.chain().filter_map(|cause| cause.downcast_ref::<io::Error>());
    causes.any(|e| e.kind() == io::ErrorKind::BrokenPipe && is_unwritable(e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_says_that_it_is_of_standard_output() {
        let full = named(io::ErrorKind::StorageFull.into()).to_string();
        assert!(full.starts_with("standard output cannot be written: "), "{full}");
        let pipe = || io::Error::from(io::ErrorKind::BrokenPipe);
        assert!(is_closed(&anyhow::Error::from(named(pipe())).context("more")));
        assert!(!is_closed(&anyhow::Error::from(pipe()).context("S3 does not answer")));
        assert!(!is_closed(&named(io::ErrorKind::StorageFull.into()).into()));
    }
}
