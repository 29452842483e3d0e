//! What processes use, as `/proc` counts it.
//!
//! Guarantees: a sample reads a few small files for each process.
//! Does not: see a process that ended without being waited for, or count shared pages once: the memory is never too low.

use super::text::{behind, number};
use process_table::memory_kib as kib_of;
use std::fs;
use std::path::Path;

/// The clock ticks of `/proc` in a second are 100 on Linux.
const MS_PER_TICK: u64 = 10;

/// The memory of all these processes now. If one of them alone once held more, the larger number.
pub(super) fn memory_kib(pids: &[i32]) -> Option<u64> {
    let all: Vec<[u64; 2]> = pids.iter().map(|pid| kib_of(*pid, "status", ["VmRSS", "VmHWM"])).collect();
    let together = all.iter().map(|[now, _]| *now).fold(0, u64::saturating_add);
    let once = all.iter().map(|[_, once]| *once).max()?;
    Some(together.max(once)).filter(|kib| *kib > 0)
}

/// The CPU time of these processes, and of their descendants that were waited for. Parents must come first: otherwise a child that
/// ends meanwhile would count twice.
pub(super) fn cpu_ms(pids: &[i32]) -> u64 {
    let of_each = pids.iter().filter_map(|pid| ticks_ms(&text(&of(*pid), "stat")?, 11, 4));
    of_each.fold(0, u64::saturating_add)
}

/// What these processes, and the children that they have waited for, have read and written; `None` if nobody counts it.
pub(super) fn io(pids: &[i32]) -> Option<(u64, u64)> {
    let add = |(read, written): (u64, u64), (r, w)| (read.saturating_add(r), written.saturating_add(w));
    pids.iter().filter_map(|pid| children_io(&of(*pid))).reduce(add)
}

/// The CPU time of the children that the process in this directory of `/proc` has waited for, and of theirs.
pub(super) fn children_cpu_ms(own: &Path) -> Option<u64> {
    ticks_ms(&text(own, "stat")?, 13, 2)
}

/// The bytes read and written by the process in this directory of `/proc`, and by the children that it has waited for.
pub(super) fn children_io(own: &Path) -> Option<(u64, u64)> {
    let io = text(own, "io")?;
    Some((behind(&io, "read_bytes: ")?, behind(&io, "write_bytes: ")?))
}

/// The sum of `count` fields after the name of the process.
fn ticks_ms(stat: &str, first: usize, count: usize) -> Option<u64> {
    let (_, fields) = stat.rsplit_once(')')?;
    let times: Vec<u64> = fields.split_ascii_whitespace().skip(first).take(count).map(number).collect::<Option<_>>()?;
    (times.len() == count).then(|| times.into_iter().fold(0, u64::saturating_add).saturating_mul(MS_PER_TICK))
}

fn of(pid: i32) -> std::path::PathBuf {
    Path::new("/proc").join(pid.to_string())
}

/// The name of a process may not be valid UTF-8.
fn text(process: &Path, file: &str) -> Option<String> {
    fs::read(process.join(file)).ok().map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_of_processes_is_what_they_hold_or_once_held() {
        let own = std::process::id() as i32;
        let one = memory_kib(&[own]).unwrap();
        assert!(memory_kib(&[own, own]).unwrap() >= one && one > 0);
        assert_eq!((memory_kib(&[]), memory_kib(&[i32::MAX])), (None, None));
    }

    #[test]
    fn the_times_of_a_process_are_its_own_and_those_of_ended_children() {
        let stat = "42 (a) b (c) S 7 42 41 0 -1 4194560 1 2 3 4 5 6 120 34 20 0 1 0 987654 1 2 3";
        assert_eq!((ticks_ms(stat, 11, 4), ticks_ms(stat, 13, 2)), (Some(1650), Some(1540)));
        for bad in ["", "42 (a", "42 (a) S 1 2", "42 (a) S 7 42 41 0 -1 4194560 1 2 3 4 5 6 -1 x"] {
            assert_eq!(ticks_ms(bad, 13, 2), None, "{bad}");
        }
        assert_eq!((cpu_ms(&[i32::MAX]), io(&[i32::MAX]), io(&[])), (0, None, None));
    }
}
