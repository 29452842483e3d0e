//! What work on the files of a stranger may cost: bytes, entries and time.
//!
//! Guarantees: work that has an allowance ends soon after its bytes or its entries are used up, or after its owner lost interest.
//! Does not: know a clock. The owner has one, and drops its [`CancelOnDrop`].

use std::cell::Cell;
use std::fmt;
use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The most bytes of one file or folder: those of one content.
pub use model::files::MAX_CONTENT_BYTES as MAX_BYTES;
/// The most files, folders and links of one folder.
pub const MAX_ENTRIES: u64 = 1_000_000;

/// How many bytes and entries some work may still use.
pub struct Allowance {
    bytes: Cell<u64>,
    entries: Cell<u64>,
    /// The bytes and the entries at the beginning, for the text of an error.
    most: (u64, u64),
    lost: Arc<AtomicBool>,
}

/// The interest of somebody who waits for the work. When this value is dropped, the work ends.
pub struct CancelOnDrop(Arc<AtomicBool>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Why some work ended early: the payload of its `io::Error`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OverBounds {
    #[error("it is too large: it has more than {}", ByteCount(*.0))]
    Bytes(u64),
    #[error("it has too many files and folders: more than {0}")]
    Entries(u64),
    #[error("it was given up")]
    Cancelled,
}

impl From<OverBounds> for io::Error {
    fn from(over: OverBounds) -> Self {
        Self::other(over)
    }
}

impl OverBounds {
    /// Why the work with this error ended early; `None` for another error.
    pub fn of(error: &io::Error) -> Option<Self> {
        error.get_ref()?.downcast_ref().copied()
    }
}

/// A number of bytes, for people.
#[derive(Clone, Copy, Debug)]
pub struct ByteCount(pub u64);

impl fmt::Display for ByteCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
        match units.into_iter().find(|(bits, _)| self.0 >> bits > 0) {
            Some((bits, unit)) => write!(f, "{} {unit}", self.0 >> bits),
            None => write!(f, "{} bytes", self.0),
        }
    }
}

impl Default for Allowance {
    /// As much as any folder may have. Nobody ends the work.
    fn default() -> Self {
        Self::of((MAX_BYTES, MAX_ENTRIES), Arc::default())
    }
}

impl Allowance {
    const fn of(most: (u64, u64), lost: Arc<AtomicBool>) -> Self {
        Self { bytes: Cell::new(most.0), entries: Cell::new(most.1), most, lost }
    }

    /// At most this many bytes and entries, as long as the interest lasts.
    pub fn new(bytes: u64, entries: u64) -> (Self, CancelOnDrop) {
        let lost = Arc::default();
        (Self::of((bytes, entries), Arc::clone(&lost)), CancelOnDrop(lost))
    }

    /// As much as this one began with, for the same owner.
    #[must_use]
    pub fn again(&self) -> Self {
        Self::of(self.most, Arc::clone(&self.lost))
    }

    /// Fails before anything is read of something that has more bytes than are left.
    pub fn check(&self, bytes: u64) -> io::Result<()> {
        if bytes > self.bytes.get() { Err(OverBounds::Bytes(self.most.0).into()) } else { Ok(()) }
    }

    /// Uses up this many bytes. An error if fewer are left, or if nobody waits for the work any more.
    pub fn take_bytes(&self, bytes: u64) -> io::Result<()> {
        if self.lost.load(Ordering::Relaxed) {
            return Err(OverBounds::Cancelled.into());
        }
        self.check(bytes)?;
        self.bytes.set(self.bytes.get().saturating_sub(bytes));
        Ok(())
    }

    /// Uses up one entry: a file, a folder or a link. An error as of [`Self::take_bytes`].
    pub fn take_entry(&self) -> io::Result<()> {
        self.take_bytes(0)?;
        self.entries.set(self.entries.get().checked_sub(1).ok_or(OverBounds::Entries(self.most.1))?);
        Ok(())
    }

    /// A reader whose bytes this allowance counts.
    pub const fn reading<R: Read>(&self, from: R) -> CountedRead<'_, R> {
        CountedRead { from, allowance: self }
    }
}

pub struct CountedRead<'a, R> {
    from: R,
    allowance: &'a Allowance,
}

impl<R: Read> Read for CountedRead<'_, R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.from.read(into)?;
        self.allowance.take_bytes(read as u64)?;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_ends_when_its_allowance_is_used_up_or_nobody_waits_for_it() {
        let over = |done: io::Result<()>| done.err().and_then(|error| OverBounds::of(&error));
        let (allowance, interest) = Allowance::new(3, 1);
        assert_eq!(over(allowance.check(4)), Some(OverBounds::Bytes(3)));
        assert_eq!(over(allowance.reading(&b"abc"[..]).read_to_end(&mut Vec::new()).map(drop)), None);
        assert_eq!(over(allowance.take_bytes(1)), Some(OverBounds::Bytes(3)));
        assert_eq!((over(allowance.take_entry()), over(allowance.take_entry())), (None, Some(OverBounds::Entries(1))));
        drop(interest);
        assert_eq!(over(allowance.take_bytes(0)), Some(OverBounds::Cancelled));
    }

    #[test]
    fn a_size_is_said_in_its_largest_unit() {
        for (bytes, text) in [(5 << 40, "5 TiB"), (1 << 20, "1 MiB"), (1023, "1023 bytes")] {
            assert_eq!(ByteCount(bytes).to_string(), text);
        }
    }
}
