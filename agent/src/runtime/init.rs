//! The init of a container (tini of docker, catatonit of podman), as this machine sees it: the first process of the container, above
//! all processes of its command.
//!
//! The end of an init is the end of its container: the kernel kills every process that is left there. So an init that is halted keeps
//! the container, also when the first process of the command has ended. When it goes on, it ends with the exit code of that process.
//!
//! Guarantees: a pid that belongs to a later process, or to another machine, is never taken for an init.
//! Does not: see processes that a person started in the container: they are not below the init.

use super::{ContainerRuntime, FirstProcess};
use crate::isolation::cgroup;
use model::AllocId;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use process_table::{self, ProcessEntry, descendants_now};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::sleep;

/// The wait before the runtime is asked for the first time.
const FIRST: Duration = Duration::from_millis(100);
/// The longest wait between two questions to a runtime that has not started the container yet.
const MOST: Duration = Duration::from_secs(10);

/// Where the groups of version 1 that limit memory are mounted.
const V1_MEMORY: &str = "/sys/fs/cgroup/memory";

pub(crate) struct Init {
    pub(crate) pid: i32,
    pub(crate) start_ticks: u64,
    /// The control group of version 2 of this container alone, if there is one.
    pub(crate) group: Option<PathBuf>,
    /// The control group that limits its memory, of either version.
    pub(crate) memory: Option<PathBuf>,
}

impl Init {
    /// `None` if there is no such process on this machine: docker may run elsewhere, and the agent in a container itself.
    pub(crate) fn of(first: &FirstProcess) -> Option<Self> {
        let pid = first.pid;
        let start_ticks = process_table::read(pid)?.start_ticks;
        let file = |name: &str| fs::read_to_string(format!("/proc/{pid}/{name}")).ok();
        if !is_first(&file("status")?) {
            return None;
        }
        let groups = file("cgroup").unwrap_or_default();
        let group = own_group(v2_path(&groups), &first.container, &cgroup::ROOTS.map(Path::new));
        let v1 = || own_group(v1_memory_path(&groups), &first.container, &[Path::new(V1_MEMORY)]);
        let memory = group.clone().filter(|group| cgroup::memory_kills(group).is_some()).or_else(v1);
        Some(Self { pid, start_ticks, group, memory })
    }

    pub(crate) fn is_alive(&self) -> bool {
        process_table::is_alive(self.pid, self.start_ticks)
    }

    /// The processes of the command that run.
    pub(crate) fn below(&self) -> Vec<ProcessEntry> {
        let look = || descendants_now(self.pid).into_iter().filter(|p| !p.zombie).collect::<Vec<_>>();
        // One may be left out while its parent ends. So nothing counts only if it is found twice.
        let found = Some(look()).filter(|found| !found.is_empty()).unwrap_or_else(look);
        // This check comes last, so that nothing of a later process with the same pid is found.
        if self.is_alive() { found } else { Vec::new() }
    }

    /// Signals the init alone.
    pub(crate) fn send(&self, signal: Signal) -> nix::Result<()> {
        if self.is_alive() { kill(nix::unistd::Pid::from_raw(self.pid), signal) } else { Ok(()) }
    }

    /// How many of its processes the kernel has killed for its memory limit.
    fn memory_kills(&self) -> u64 {
        self.memory.as_deref().and_then(cgroup::memory_kills).unwrap_or(0)
    }

    /// Waits for the end of the container. Its runtime removes its control groups a little later.
    fn wait(&self) -> io::Result<()> {
        let pid = Pid::from_raw(self.pid).ok_or(io::ErrorKind::NotFound)?;
        let process = pidfd_open(pid, PidfdFlags::empty())?;
        while self.is_alive() {
            let _interrupted_is_fine = poll(&mut [PollFd::new(process.as_fd(), PollFlags::POLLIN)], PollTimeout::NONE);
        }
        Ok(())
    }
}

/// Whether the process with this status is the first one of a namespace of its own.
fn is_first(status: &str) -> bool {
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:")).unwrap_or_default();
    let pids: Vec<&str> = line.split_ascii_whitespace().collect();
    pids.len() > 1 && pids.last() == Some(&"1")
}

fn v2_path(of_process: &str) -> Option<&str> {
    of_process.lines().find_map(|line| line.strip_prefix("0::/"))
}

fn v1_memory_path(of_process: &str) -> Option<&str> {
    of_process.lines().find_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(":/")?;
        controllers.split(',').any(|controller| controller == "memory").then_some(path)
    })
}

/// The group that is named after the container, of a process that is in it or below. The container may have made groups of its own in
/// there.
fn own_group(path: Option<&str>, container: &str, roots: &[&Path]) -> Option<PathBuf> {
    let parts: Vec<Component<'_>> = Path::new(path?).components().collect();
    let is_named = |part: &Component<'_>| part.as_os_str().to_str().is_some_and(|name| name.contains(container));
    let last = parts.iter().rposition(is_named).filter(|_| !container.is_empty())?;
    if parts.iter().any(|part| !matches!(part, Component::Normal(_))) {
        return None;
    }
    let path: PathBuf = parts.iter().take(last.saturating_add(1)).collect();
    roots.iter().map(|root| root.join(&path)).find(|group| group.join("cgroup.procs").exists())
}

/// The init of the container of an alloc, as soon as it is found.
pub(crate) struct InitWatch {
    process: Arc<InitProcess>,
    asks: JoinHandle<()>,
}

#[derive(Default)]
struct InitProcess {
    /// `None` in it if the container does not run on this machine.
    init: OnceLock<Option<Init>>,
    /// Whether the kernel has killed one of its processes for its memory limit.
    is_out_of_memory: AtomicBool,
}

impl InitWatch {
    pub(crate) fn start(runtime: ContainerRuntime, alloc: AllocId) -> Self {
        let process = Arc::<InitProcess>::default();
        let asks = tokio::spawn(find(Arc::clone(&process), runtime, alloc));
        Self { process, asks }
    }

    /// The init; `None` if it is not known, or not on this machine.
    pub(crate) fn init(&self) -> Option<&Init> {
        self.process.init.get()?.as_ref()
    }

    pub(crate) fn is_elsewhere(&self) -> bool {
        matches!(self.process.init.get(), Some(None))
    }

    /// Notes what the control group of the container counts now. It is gone soon after the container.
    pub(crate) fn note_kills(&self) {
        self.process.note_kills();
    }

    pub(crate) fn is_out_of_memory(&self) -> bool {
        self.process.is_out_of_memory.load(Ordering::Relaxed)
    }

    pub(crate) fn end(&self) {
        self.asks.abort();
    }
}

impl Drop for InitWatch {
    fn drop(&mut self) {
        self.end();
    }
}

impl InitProcess {
    fn note_kills(&self) {
        if self.init.get().and_then(Option::as_ref).is_some_and(|init| init.memory_kills() > 0) {
            self.is_out_of_memory.store(true, Ordering::Relaxed);
        }
    }
}

async fn find(process: Arc<InitProcess>, runtime: ContainerRuntime, alloc: AllocId) {
    let mut wait = FIRST;
    let first = loop {
        sleep(wait).await;
        if let Ok(Some(first)) = runtime.first_process(alloc).await {
            break first;
        }
        wait = (wait * 3 / 2).min(MOST);
    };
    let _is_first_answer = process.init.set(Init::of(&first));
    let waits = move || {
        if let Some(init) = process.init.get().and_then(Option::as_ref) {
            // On a kernel without process descriptors, only the checks while it runs count.
            let _best_effort = init.wait();
            process.note_kills();
        }
    };
    if let Err(error) = thread::Builder::new().name("container".to_owned()).spawn(waits) {
        tracing::warn!(%error, "cannot wait for the end of the container");
    }
}

#[cfg(test)]
impl Init {
    /// A process without groups.
    pub(crate) const fn at(pid: i32, start_ticks: u64) -> Self {
        Self { pid, start_ticks, group: None, memory: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "49eaf34765abe21946a048e1d666201ebfaee7ea0598f52d670fb0b10e30469a";

    #[test]
    fn the_groups_of_a_container_are_those_that_are_named_after_it() {
        let root = tempfile::tempdir().unwrap();
        let other = tempfile::tempdir().unwrap();
        let roots = [other.path(), root.path()];
        let is = |path: &str, want: Option<&str>| {
            let text = format!("12:cpu:/x\n11:hugetlb,memory:{path}\n0::{path}\n");
            let want = want.map(|want| root.path().join(want));
            assert_eq!(own_group(v2_path(&text), ID, &roots), want, "{path}");
            assert_eq!(own_group(v1_memory_path(&text), ID, &roots), want, "{path}");
        };
        let docker = format!("system.slice/docker-{ID}.scope");
        is(&format!("/{docker}"), None);
        for group in [&docker, &format!("machine.slice/libpod-{ID}.scope"), &format!("docker/{ID}")] {
            fs::create_dir_all(root.path().join(group)).unwrap();
            fs::write(root.path().join(group).join("cgroup.procs"), "").unwrap();
            is(&format!("/{group}"), Some(group));
            is(&format!("/{group}/init.scope"), Some(group));
        }
        // The groups of the machine and of the agent, and a path as seen from within another group.
        for path in ["/", "/system.slice/nodekeeper-agent.service", &format!("/../docker/{ID}")] {
            is(path, None);
        }
        let text = format!("4:memory:/docker/{ID}\n");
        assert_eq!((v2_path(&text), v1_memory_path("0::/x\n3:memory2:/x\n")), (None, None));
        assert_eq!(own_group(v2_path("0::/docker\n"), "", &roots), None);
    }

    #[test]
    fn a_process_that_is_not_the_first_one_of_a_container_is_no_init() {
        let pid = std::process::id() as i32;
        for pid in [pid, i32::MAX, 0, -1] {
            assert!(Init::of(&FirstProcess { pid, container: ID.to_owned() }).is_none(), "{pid}");
        }
        for (status, want) in
            [("NSpid:\t7115\t1\n", true), ("NSpid:\t7115\t12\n", false), ("NSpid:\t1\n", false), ("", false)]
        {
            assert_eq!(is_first(status), want, "{status}");
        }
    }
}
