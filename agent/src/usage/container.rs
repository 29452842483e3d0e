//! Measures a container. The daemon of docker runs it, or podman beside it: it is no child of the supervisor.
//!
//! The runtime is asked once for the first process of the container. From then on each look reads the kernel's own files: those of
//! the control group of version 2 that has the container and nothing else, or those of its processes in `/proc` where there is no
//! such group.
//!
//! Guarantees: what another container or the agent uses never counts; a pid that belongs to a later process, or to another machine,
//! is not looked at; no count ever gets smaller.
//! Does not: see a container that ended before it was found, or its use after the last look, which is up to half a second before
//! its end.

use super::{group, processes};
use crate::isolation::cgroup;
use crate::process_table::{self, descendants_now};
use crate::runtime::{FirstProcess, RuntimeKind};
use model::ids::AllocId;
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::sleep;

/// The wait before the runtime is asked for the first time. Until then, most containers have started.
const FIRST: Duration = Duration::from_millis(300);
/// The longest wait between two questions to a runtime that has not started the container yet.
const MOST: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) cpu_ms: Option<u64>,
    /// The most memory so far.
    pub(super) memory_kib: Option<u64>,
    /// Read and written bytes.
    pub(super) io: Option<(u64, u64)>,
}

#[derive(Debug)]
pub(crate) struct ContainerMeter {
    asked: Arc<OnceLock<FirstProcess>>,
    asks: JoinHandle<()>,
    found: Option<Found>,
    counts: Counts,
}

#[derive(Debug)]
struct Found {
    pid: i32,
    start_ticks: u64,
    /// The control group of this container alone, if there is one.
    group: Option<PathBuf>,
}

impl ContainerMeter {
    /// Finds the container of this alloc when it has started.
    pub(crate) fn start(runtime: RuntimeKind, alloc: AllocId) -> Self {
        let asked = Arc::new(OnceLock::new());
        let answer = Arc::clone(&asked);
        let asks = tokio::spawn(async move {
            let mut wait = FIRST;
            loop {
                sleep(wait).await;
                if let Ok(Some(first)) = runtime.first_process(alloc).await {
                    let _is_first_answer = answer.set(first);
                    return;
                }
                wait = (wait * 2).min(MOST);
            }
        });
        Self { asked, asks, found: None, counts: Counts::default() }
    }

    pub(super) fn look(&mut self) {
        if self.found.is_none() {
            self.found = self.asked.get().and_then(Found::of);
        }
        if let Some(now) = self.found.as_ref().and_then(Found::counts) {
            let Counts { cpu_ms, memory_kib, io } = self.counts;
            let more = |(read, written): (u64, u64), (r, w): (u64, u64)| (read.max(r), written.max(w));
            self.counts = Counts {
                cpu_ms: cpu_ms.max(now.cpu_ms),
                memory_kib: memory_kib.max(now.memory_kib),
                io: io.into_iter().chain(now.io).reduce(more),
            };
        }
    }

    pub(super) const fn counts(&self) -> Counts {
        self.counts
    }

    pub(super) fn end(&self) {
        self.asks.abort();
    }
}

impl Drop for ContainerMeter {
    fn drop(&mut self) {
        self.end();
    }
}

impl Found {
    /// `None` if there is no such process on this machine: docker may run elsewhere, and the agent in a container itself.
    fn of(first: &FirstProcess) -> Option<Self> {
        let pid = first.pid;
        let start_ticks = process_table::read(pid)?.start_ticks;
        let file = |name: &str| fs::read_to_string(format!("/proc/{pid}/{name}")).ok();
        if !is_first(&file("status")?) {
            return None;
        }
        let group = file("cgroup").and_then(|text| own_group(&text, &first.container, &cgroup::ROOTS.map(Path::new)));
        Some(Self { pid, start_ticks, group })
    }

    /// `None` if the container has ended.
    fn counts(&self) -> Option<Counts> {
        let mut pids = vec![self.pid];
        pids.extend(descendants_now(self.pid).iter().map(|p| p.pid));
        let group = self.group.as_deref();
        let counts = Counts {
            cpu_ms: group.and_then(group::cpu_ms).or_else(|| Some(processes::cpu_ms(&pids))),
            memory_kib: group.and_then(group::memory_kib).or_else(|| processes::memory_kib(&pids)),
            io: group.and_then(group::io).or_else(|| processes::io(&pids)),
        };
        // This check comes last, so that nothing that was read is of a later process with the same pid.
        process_table::is_alive(self.pid, self.start_ticks).then_some(counts)
    }
}

/// Whether the process with this status is the first one of a namespace of its own.
fn is_first(status: &str) -> bool {
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:")).unwrap_or_default();
    let pids: Vec<&str> = line.split_ascii_whitespace().collect();
    pids.len() > 1 && pids.last() == Some(&"1")
}

/// The group of version 2 that is named after the container, of a process that is in it or below. The container may have made
/// groups of its own in there.
fn own_group(of_process: &str, container: &str, roots: &[&Path]) -> Option<PathBuf> {
    let path = of_process.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let parts: Vec<Component<'_>> = Path::new(path).components().collect();
    let is_named = |part: &Component<'_>| part.as_os_str().to_str().is_some_and(|name| name.contains(container));
    let last = parts.iter().rposition(is_named).filter(|_| !container.is_empty())?;
    if parts.iter().any(|part| !matches!(part, Component::Normal(_))) {
        return None;
    }
    let path: PathBuf = parts.iter().take(last.saturating_add(1)).collect();
    roots.iter().map(|root| root.join(&path)).find(|group| group.join("cpu.stat").exists())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command};

    const ID: &str = "49eaf34765abe21946a048e1d666201ebfaee7ea0598f52d670fb0b10e30469a";

    fn meter(found: Found) -> ContainerMeter {
        let asks = tokio::spawn(std::future::ready(()));
        ContainerMeter { asked: Arc::default(), asks, found: Some(found), counts: Counts::default() }
    }

    /// The first process of a namespace of pids, as in a container, and one below it.
    fn first_process(script: &str) -> (Child, FirstProcess) {
        let child = Command::new("unshare").args(["--fork", "--pid", "sh", "-c", script]).spawn().unwrap();
        let found = || descendants_now(child.id() as i32).first().map(|p| p.pid);
        let pid = std::iter::from_fn(|| Some(found())).flatten().next().unwrap();
        (child, FirstProcess { pid, container: ID.to_owned() })
    }

    #[test]
    fn the_group_of_a_container_is_the_one_that_is_named_after_it() {
        let root = tempfile::tempdir().unwrap();
        let other = tempfile::tempdir().unwrap();
        let is = |path: &str, want: Option<&str>| {
            let text = format!("12:memory:/docker/{ID}\n0::{path}\n");
            let found = own_group(&text, ID, &[other.path(), root.path()]);
            assert_eq!(found, want.map(|want| root.path().join(want)), "{path}");
        };
        let docker = format!("system.slice/docker-{ID}.scope");
        is(&format!("/{docker}"), None);
        for group in [&docker, &format!("machine.slice/libpod-{ID}.scope"), &format!("docker/{ID}")] {
            fs::create_dir_all(root.path().join(group)).unwrap();
            fs::write(root.path().join(group).join("cpu.stat"), "").unwrap();
            is(&format!("/{group}"), Some(group));
            is(&format!("/{group}/init.scope"), Some(group));
        }
        // The groups of the machine and of the agent, and a path as seen from within another group.
        for path in ["/", "/system.slice/nodekeeper-agent.service", &format!("/../docker/{ID}")] {
            is(path, None);
        }
        assert_eq!(own_group("4:memory:/x\n", ID, &[root.path()]), None, "version 1");
        assert_eq!(own_group("0::/docker\n", "", &[root.path()]), None);
    }

    #[tokio::test]
    async fn the_group_of_a_container_says_what_it_used_and_what_was_counted_never_gets_less() {
        let group = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(group.path().join(name), text).unwrap();
        let own = process_table::read(std::process::id() as i32).unwrap();
        let (pid, start_ticks) = (own.pid, own.start_ticks);
        let mut meter = meter(Found { pid, start_ticks, group: Some(group.path().to_owned()) });
        write("cpu.stat", "usage_usec 2500999\nuser_usec 1\n");
        write("memory.current", "73400320\n");
        write("memory.stat", "anon 5\ninactive_file 10485760\n");
        write("io.stat", "8:0 rbytes=1000 wbytes=20\n8:16 rbytes=5 wbytes=7\n");
        meter.look();
        let seen = Counts { cpu_ms: Some(2500), memory_kib: Some(60 << 10), io: Some((1005, 27)) };
        assert_eq!(meter.counts(), seen);
        write("cpu.stat", "usage_usec 3000000\n");
        write("memory.current", "0\n");
        write("io.stat", "8:0 rbytes=1 wbytes=30\n");
        meter.look();
        let more = Counts { cpu_ms: Some(3000), io: Some((1005, 30)), ..seen };
        assert_eq!(meter.counts(), more);
        // Another process has the pid now.
        meter.found = Some(Found { pid, start_ticks: start_ticks + 1, group: Some(group.path().to_owned()) });
        write("cpu.stat", "usage_usec 9000000\n");
        meter.look();
        assert_eq!(meter.counts(), more);
    }

    #[tokio::test]
    async fn without_a_group_the_processes_of_a_container_say_what_it_used() {
        if !nix::unistd::geteuid().is_root() {
            return eprintln!("skipped: only root makes a namespace of pids");
        }
        let (mut child, first) =
            first_process("perl -e '$x = \"x\" x (40 << 20); 1 while (times)[0] < 0.3; sleep 60'; true");
        let mut meter = meter(Found::of(&first).unwrap());
        assert_eq!(meter.found.as_ref().unwrap().group, None);
        while meter.counts().cpu_ms < Some(300) || meter.counts().memory_kib < Some(40 << 10) {
            assert!(child.try_wait().unwrap().is_none());
            meter.look();
        }
        let seen = meter.counts();
        assert!(seen.cpu_ms < Some(3000), "{seen:?}");
        process_table::send(first.pid, nix::sys::signal::Signal::SIGKILL);
        child.wait().unwrap();
        meter.look();
        assert_eq!(meter.counts(), seen, "it has ended");
    }

    #[test]
    fn a_process_that_is_not_the_first_one_of_a_container_is_not_looked_at() {
        let pid = std::process::id() as i32;
        for pid in [pid, i32::MAX, 0, -1] {
            assert!(Found::of(&FirstProcess { pid, container: ID.to_owned() }).is_none(), "{pid}");
        }
        for (status, want) in
            [("NSpid:\t7115\t1\n", true), ("NSpid:\t7115\t12\n", false), ("NSpid:\t1\n", false), ("", false)]
        {
            assert_eq!(is_first(status), want, "{status}");
        }
    }
}
