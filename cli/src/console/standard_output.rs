//! Standard output. Its errors name it.

use std::io::{self, Stdout, Write};

#[derive(Debug)]
pub struct StandardOutput(pub Stdout);

impl Write for StandardOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes).map_err(named)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush().map_err(named)
    }
}

/// Adds the name of the stream to an error. The kind stays, because a closed pipe is recognized by it.
fn named(e: io::Error) -> io::Error {
    io::Error::new(e.kind(), format!("standard output cannot be written: {e}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::console::show;

    #[test]
    fn an_error_says_that_it_is_of_standard_output() {
        let full = named(io::ErrorKind::StorageFull.into()).to_string();
        assert!(full.starts_with("standard output cannot be written: "), "{full}");
        assert!(show::is_closed(&named(io::ErrorKind::BrokenPipe.into()).into()));
    }
}
