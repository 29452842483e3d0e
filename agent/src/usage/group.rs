//! What a control group of version 2 counts.
//!
//! Guarantees: if a controller is missing, its counts are absent, and not 0; the memory does not include files that the kernel
//! keeps only as long as nobody needs the room.
//! Does not: make groups (`isolation::cgroup` does).

use super::text::{behind, number};
use std::fs;
use std::path::Path;

pub(super) fn cpu_ms(group: &Path) -> Option<u64> {
    behind(&text(group, "cpu.stat")?, "usage_usec ").map(|us| us / 1000)
}

/// What the processes of a group hold, without files that nobody has used lately.
pub(super) fn memory_kib(group: &Path) -> Option<u64> {
    let current = number(&text(group, "memory.current")?)?;
    let idle = behind(&text(group, "memory.stat").unwrap_or_default(), "inactive_file ");
    Some(current.saturating_sub(idle.unwrap_or(0)) / 1024)
}

/// The most memory that they held, with all files.
pub(super) fn peak_kib(group: &Path) -> Option<u64> {
    number(&text(group, "memory.peak")?).map(|bytes| bytes / 1024)
}

/// What was read and written by a group, over all devices.
pub(super) fn io(group: &Path) -> Option<(u64, u64)> {
    let stat = text(group, "io.stat")?;
    let sum = |word: &str| {
        let of_line = |line: &str| line.split_ascii_whitespace().find_map(|field| number(field.strip_prefix(word)?));
        stat.lines().filter_map(of_line).reduce(u64::saturating_add)
    };
    Some((sum("rbytes=")?, sum("wbytes=")?))
}

fn text(group: &Path, file: &str) -> Option<String> {
    fs::read_to_string(group.join(file)).ok()
}
