//! The digest of what is read or written.
//!
//! Guarantees: a digest counts the bytes that it is of.
//! Does not: keep content, or know where it is stored.

use crate::allowance::Allowance;
use sha2::{Digest as _, Sha256};
use std::fs::File;
use std::io::{self, BufReader, Write};

/// How much is read at a time, in bytes.
const CHUNK: usize = 256 * 1024;

/// SHA-256 as hexadecimal digits, and how many bytes there were.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Digest {
    pub sha256: String,
    pub bytes: u64,
}

/// Takes the digest of what is written through it.
pub struct Digesting<W> {
    to: W,
    sha256: Sha256,
    bytes: u64,
}

impl<W: Write> Digesting<W> {
    pub fn new(to: W) -> Self {
        Self { to, sha256: Sha256::new(), bytes: 0 }
    }

    /// Ends the writing. Returns the target, and the digest of everything that was written.
    pub fn finish(mut self) -> io::Result<(W, Digest)> {
        self.to.flush()?;
        Ok((self.to, Digest { sha256: model::auth::hex(&self.sha256.finalize()), bytes: self.bytes }))
    }
}

impl<W: Write> Write for Digesting<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.to.write(bytes)?;
        self.sha256.update(bytes.get(..written).unwrap_or_default());
        self.bytes = self.bytes.saturating_add(written as u64);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

/// The digest of a file from where it stands. One above the bounds of any folder is refused before it is read.
pub fn digest_of(file: &mut File) -> io::Result<Digest> {
    digest_within(file, &mut Allowance::default())
}

/// The digest of a file. A file that is too large is refused before it is read.
pub fn digest_within(file: &mut File, allowance: &mut Allowance) -> io::Result<Digest> {
    allowance.check(file.metadata()?.len())?;
    let mut digesting = Digesting::new(io::sink());
    io::copy(&mut BufReader::with_capacity(CHUNK, allowance.reading(file)), &mut digesting)?;
    digesting.finish().map(|(_, digest)| digest)
}
