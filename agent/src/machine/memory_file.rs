//! Files in memory, to pass data to a process that is started.
//!
//! Guarantees: the data is on no disk: an environment may hold secrets, and a full disk keeps no job from starting.
//! Does not: close the file in a process that inherited it.

use nix::sys::memfd::{MFdFlags, memfd_create};
use std::fs::File;
use std::io::{self, Seek, Write};
use std::process::Stdio;

/// The standard input that carries these bytes to a helper.
pub fn as_stdin_bytes(content: &[u8]) -> io::Result<Stdio> {
    in_memory(content).map(Stdio::from)
}

/// A file in memory with these bytes, which every program that is started while it is open inherits under its number.
pub fn inherited(content: &[u8]) -> io::Result<File> {
    file(content, MFdFlags::empty())
}

/// A file in memory with these bytes.
pub fn in_memory(content: &[u8]) -> io::Result<File> {
    file(content, MFdFlags::MFD_CLOEXEC)
}

fn file(content: &[u8], flags: MFdFlags) -> io::Result<File> {
    let mut file = File::from(memfd_create("nodekeeper-helper", flags)?);
    file.write_all(content)?;
    file.rewind()?;
    Ok(file)
}
