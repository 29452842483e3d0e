//! Measures a container. The daemon of docker runs it, or podman beside it: it is no child of the supervisor.
//!
//! As soon as the init of the container is found, each sample reads the kernel's own files: those of the control group of version 2 that
//! has the container and nothing else, or those of its processes in `/proc` where there is no such group.
//!
//! Guarantees: what another container or the agent uses never counts; no count ever gets smaller.
//! Does not: see a container that ended before it was found, or its use after the last look, which is up to half a second before
//! its end.

use super::{group, processes};
use crate::runtime::init::{Init, InitWatch};
use process_table::descendants_now;
use std::sync::Arc;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ContainerCounts {
    pub(super) cpu_ms: Option<u64>,
    /// The most memory so far.
    pub(super) memory_kib: Option<u64>,
    /// Read and written bytes.
    pub(super) io: Option<(u64, u64)>,
}

pub(super) struct ContainerMeter {
    pub(super) watch: Arc<InitWatch>,
    pub(super) counts: ContainerCounts,
}

impl ContainerMeter {
    pub(super) fn sample(&mut self) {
        self.watch.note_kills();
        if let Some(now) = self.watch.init().and_then(counts) {
            self.counts.add(now);
        }
    }
}

impl ContainerCounts {
    fn add(&mut self, now: Self) {
        let more = |(read, written): (u64, u64), (r, w): (u64, u64)| (read.max(r), written.max(w));
        *self = Self {
            cpu_ms: self.cpu_ms.max(now.cpu_ms),
            memory_kib: self.memory_kib.max(now.memory_kib),
            io: self.io.into_iter().chain(now.io).reduce(more),
        };
    }
}

/// `None` if the container has ended.
fn counts(init: &Init) -> Option<ContainerCounts> {
    let mut pids = vec![init.pid];
    pids.extend(descendants_now(init.pid).iter().map(|p| p.pid));
    let group = init.group.as_deref();
    let counts = ContainerCounts {
        cpu_ms: group.and_then(group::cpu_ms).or_else(|| Some(processes::cpu_ms(&pids))),
        memory_kib: group.and_then(group::memory_kib).or_else(|| processes::memory_kib(&pids)),
        io: group.and_then(group::io).or_else(|| processes::io(&pids)),
    };
    // This check comes last, so that nothing that was read is of a later process with the same pid.
    init.is_alive().then_some(counts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::FirstProcess;
    use std::fs;
    use std::process::{Child, Command};

    /// The first process of a namespace of pids, as in a container, and one below it.
    fn first_process(script: &str) -> (Child, FirstProcess) {
        let child = Command::new("unshare").args(["--fork", "--pid", "sh", "-c", script]).spawn().unwrap();
        let found = || descendants_now(child.id() as i32).first().map(|p| p.pid);
        let pid = std::iter::from_fn(|| Some(found())).flatten().next().unwrap();
        (child, FirstProcess { pid, container: "c".repeat(64) })
    }

    #[test]
    fn the_group_of_a_container_says_what_it_used_and_what_was_counted_never_gets_less() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
        let own = process_table::read(std::process::id() as i32).unwrap();
        let mut init = Init { group: Some(dir.path().to_owned()), ..Init::at(own.pid, own.start_ticks) };
        let mut seen = ContainerCounts::default();
        write("cpu.stat", "usage_usec 2500999\nuser_usec 1\n");
        write("memory.current", "73400320\n");
        write("memory.stat", "anon 5\ninactive_file 10485760\n");
        write("io.stat", "8:0 rbytes=1000 wbytes=20\n8:16 rbytes=5 wbytes=7\n");
        seen.add(counts(&init).unwrap());
        let first = ContainerCounts { cpu_ms: Some(2500), memory_kib: Some(60 << 10), io: Some((1005, 27)) };
        assert_eq!(seen, first);
        write("cpu.stat", "usage_usec 3000000\n");
        write("memory.current", "0\n");
        write("io.stat", "8:0 rbytes=1 wbytes=30\n");
        seen.add(counts(&init).unwrap());
        assert_eq!(seen, ContainerCounts { cpu_ms: Some(3000), io: Some((1005, 30)), ..first });
        // Another process has the pid now.
        init.start_ticks += 1;
        assert_eq!(counts(&init), None);
    }

    #[test]
    fn without_a_group_the_processes_of_a_container_say_what_it_used() {
        if !nix::unistd::geteuid().is_root() {
            return eprintln!("skipped: only root makes a namespace of pids");
        }
        let (mut child, first) =
            first_process("perl -e '$x = \"x\" x (40 << 20); 1 while (times)[0] < 0.3; sleep 60'; true");
        let init = Init::of(&first).unwrap();
        assert_eq!(init.group, None);
        let mut seen = ContainerCounts::default();
        while seen.cpu_ms < Some(300) || seen.memory_kib < Some(40 << 10) {
            assert!(child.try_wait().unwrap().is_none());
            seen.add(counts(&init).unwrap());
        }
        assert!(seen.cpu_ms < Some(3000), "{seen:?}");
        process_table::send(first.pid, nix::sys::signal::Signal::SIGKILL);
        child.wait().unwrap();
        assert_eq!(counts(&init), None, "it has ended");
    }
}
