//! Finds an alloc that uses more memory than it may.
//!
//! Guarantees: a page that several processes share counts once; files in the alloc's own `/dev/shm` count, even if no process maps
//! them; never counts more than the alloc uses. In a pack, the elements that use the most are named, as few as are enough, so that
//! the others go on.
//! Does not: look at an alloc whose memory the kernel limits; kill (the supervisor does); see memory that no process of the alloc
//! maps and that is not in `/dev/shm`: memory files, detached System V segments, buffers of pipes, file systems that a job mounts
//! in a user namespace of its own.

use super::alloc_dir::AllocTask;
use crate::isolation::cgroup;
use model::EndCause;
use nix::sys::stat::stat;
use nix::sys::statvfs::statvfs;
use process_table::{ProcessEntry, memory_kib};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Over {
    Alloc(EndCause),
    /// The processes of each of these elements. The first process of each element leads its group.
    Elements(Vec<Vec<i32>>),
}

/// Whether the kernel killed a process of the alloc for the memory limit of its control group.
pub(crate) fn was_killed(task: &AllocTask) -> bool {
    task.order.needs.memory_mib > 0 && task.cgroup().and_then(cgroup::memory_kills).is_some_and(|kills| kills > 0)
}

/// What must be killed of these processes; `None` for nothing. In a pack, `runner` is the process that starts the elements.
pub(crate) fn over_memory(task: &AllocTask, found: &[ProcessEntry], runner: i32) -> Option<Over> {
    let allowed_mib = task.order.needs.memory_mib;
    if allowed_mib == 0 || task.container.is_some() || task.cgroup().is_some_and(cgroup::limits_memory) {
        return None;
    }
    let mut left: Vec<i32> = found.iter().map(|p| p.pid).collect();
    let used_mib = above_mib(allowed_mib, &left)?;
    let mut running = if task.order.work.pack.is_some() { elements(found, runner) } else { Vec::new() };
    running.sort_by_cached_key(|pids| pids.iter().flat_map(|pid| memory_kib(*pid, "status", ["VmRSS"])).sum::<u64>());
    let mut largest = Vec::new();
    while above_mib(allowed_mib, &left).is_some() {
        // Without any element it is still too much: the memory is shared, or the process that starts the elements uses it.
        let Some(element) = running.pop() else {
            return Some(Over::Alloc(EndCause::OverMemory { allowed_mib, used_mib: Some(used_mib) }));
        };
        left.retain(|pid| !element.contains(pid));
        largest.push(element);
    }
    Some(Over::Elements(largest))
}

/// The processes of each element: a child of the runner, and all processes below that child.
fn elements(found: &[ProcessEntry], runner: i32) -> Vec<Vec<i32>> {
    let parents: BTreeMap<i32, i32> = found.iter().map(|p| (p.pid, p.parent)).collect();
    let element_of = |pid: i32| {
        let above = std::iter::successors(Some(pid), |pid| parents.get(pid).copied()).take(found.len());
        above.into_iter().find(|pid| parents.get(pid) == Some(&runner))
    };
    let mut elements: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
    for p in found {
        if let Some(element) = element_of(p.pid) {
            elements.entry(element).or_default().push(p.pid);
        }
    }
    // The first process of an element need not have the smallest pid.
    for (first, pids) in &mut elements {
        pids.sort_unstable_by_key(|pid| pid != first);
    }
    elements.into_values().collect()
}

const SHARED: &str = "/dev/shm";

/// How many MiB these processes use together, if that is more than `allowed`.
fn above_mib(allowed: u64, pids: &[i32]) -> Option<u64> {
    let resident: u64 = pids.iter().flat_map(|pid| memory_kib(*pid, "status", ["VmRSS"])).sum();
    let named = named_kib(pids);
    // Shared pages count more than once in this sum, so it is never too low. To count them once takes far longer.
    if (resident + named) / 1024 <= allowed {
        return None;
    }
    let (mut own, mut shared) = (0, 0);
    for pid in pids {
        let [all, shared_memory] = memory_kib(*pid, "smaps_rollup", ["Pss", "Pss_Shmem"]);
        // If `smaps_rollup` cannot be read, memory that the process shares counts as its own.
        let all = if all == 0 { memory_kib(*pid, "status", ["VmRSS"]).into_iter().sum() } else { all };
        own += all.saturating_sub(shared_memory);
        shared += shared_memory;
    }
    // Files in `/dev/shm` may be mapped too. Which of them are is not known.
    let used = (own + shared.max(named)) / 1024;
    (used > allowed).then_some(used)
}

/// The size of the files in the `/dev/shm` that only these processes see, in KiB.
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
    use nix::sys::signal::Signal;
    use process_table::{descendants, send};
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

    #[test]
    fn the_processes_of_an_element_are_those_below_the_child_of_the_runner() {
        let entry = |pid, parent| ProcessEntry {
            pid,
            parent,
            group: 1,
            has_terminal: false,
            session: 1,
            start_ticks: 0,
            zombie: false,
        };
        // 9 is the runner. 40 was adopted. 3 has a smaller pid than the first process of its element.
        let found = [entry(9, 1), entry(20, 9), entry(3, 20), entry(30, 9), entry(31, 3), entry(40, 1)];
        assert_eq!(elements(&found, 9), [vec![20, 3, 31], vec![30]]);
        assert!(elements(&found, 1000).is_empty());
    }
}
