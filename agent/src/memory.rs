//! The memory of an alloc, where no control group counts it.
//!
//! Guarantees: a page that several processes share counts once; what lies in the alloc's own `/dev/shm` counts, also if no
//! process maps it; no more counts than the alloc uses.
//! Does not: see memory that no process of the alloc maps and that is not in `/dev/shm`: memory files, detached System V
//! segments, buffers of pipes, file systems that a job mounts in a user namespace of its own.

use crate::process_table::memory_kib;
use nix::sys::stat::stat;
use nix::sys::statvfs::statvfs;
use std::fs;
use std::path::Path;

/// Where shared memory has names.
const SHARED: &str = "/dev/shm";

/// How many MiB these processes use together, if that is more than `allowed`.
pub(crate) fn above_mib(allowed: u64, pids: &[i32]) -> Option<u64> {
    let resident: u64 = pids.iter().flat_map(|pid| memory_kib(*pid, "status", ["VmRSS"])).sum();
    let named = named_kib(pids);
    // Shared pages are in this sum more than once, so it is never too low. Counting them once takes far longer.
    if (resident + named) / 1024 <= allowed {
        return None;
    }
    let (mut own, mut shared) = (0, 0);
    for pid in pids {
        let [all, shared_memory] = memory_kib(*pid, "smaps_rollup", ["Pss", "Pss_Shmem"]);
        // A process that may not be looked at so closely counts with all that it shares.
        let all = if all == 0 { memory_kib(*pid, "status", ["VmRSS"]).into_iter().sum() } else { all };
        own += all.saturating_sub(shared_memory);
        shared += shared_memory;
    }
    // What is in `/dev/shm` may be mapped too. Which of it is not known.
    let used = (own + shared.max(named)) / 1024;
    (used > allowed).then_some(used)
}

/// What is in the `/dev/shm` that only these processes see, in KiB.
fn named_kib(pids: &[i32]) -> u64 {
    let user_namespace = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/user")).ok();
    let own = user_namespace("self");
    // In a user namespace of its own, a job may have put another file system there, which may never answer.
    let mut trusted = pids.iter().filter(|pid| own.is_some() && user_namespace(&pid.to_string()) == own);
    let found = trusted.find_map(|pid| {
        let path = Path::new("/proc").join(pid.to_string()).join("root/dev/shm");
        let is_private = stat(&path).ok()?.st_dev != stat(SHARED).ok()?.st_dev;
        statvfs(&path).ok().filter(|_| is_private)
    });
    found.map_or(0, |found| {
        let used = found.blocks().saturating_sub(found.blocks_free());
        used.saturating_mul(found.fragment_size()) / 1024
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process_table::{descendants, send};
    use nix::sys::signal::Signal;
    use std::process::{Child, Command};

    fn perl(script: &str) -> (Child, impl Fn() -> Vec<i32>) {
        let child = Command::new("perl").args(["-e", script]).spawn().unwrap();
        let pid = child.id() as i32;
        (child, move || [vec![pid], descendants(pid).iter().map(|p| p.pid).collect()].concat())
    }

    fn until(child: &mut Child, mut is_so: impl FnMut() -> bool) {
        while !is_so() {
            assert!(child.try_wait().unwrap().is_none());
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_page_that_processes_share_counts_once() {
        let (mut child, pids) = perl("$x = 'x' x (40 << 20); fork; fork; sleep 1000");
        until(&mut child, || pids().len() == 4 && above_mib(39, &pids()).is_some());
        assert_eq!(above_mib(120, &pids()), None);
        pids().into_iter().for_each(|pid| send(pid, Signal::SIGKILL));
        child.wait().unwrap();
    }

    #[test]
    fn the_memory_of_a_process_whose_main_thread_has_ended_counts() {
        let exit = if cfg!(target_arch = "aarch64") { 93 } else { 60 };
        let script =
            format!("use threads; $x = 'x' x (40 << 20); threads->create(sub {{ sleep 1000 }}); syscall({exit}, 0)");
        let (mut child, pids) = perl(&script);
        let stat = format!("/proc/{}/stat", child.id());
        until(&mut child, || fs::read_to_string(&stat).unwrap().contains(") Z"));
        assert!(above_mib(39, &pids()).is_some());
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
