//! Control groups of version 2. They limit an alloc, and they end all its processes in one step.
//!
//! Every alloc has the group `nodekeeper-{first user id}/{alloc_id}`: agents that share a machine have different user ids.
//! The kernel holds the processes of the group within memory, tasks and CPU weight, as far as the machine's version 2
//! hierarchy has these controllers.
//! Guarantees: a group that cannot be made or used is an error; a machine without version 2 has no groups, which is not
//! an error.
//! Does not: use version 1, whose groups cannot be ended in one step. Without groups the supervisor measures memory, the
//! kernel limits tasks for each user id, and nothing limits CPU.

use model::Needs;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where version 2 is mounted: alone, or beside version 1.
pub const ROOTS: [&str; 2] = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];

/// The controllers that limit an alloc.
const CONTROLLERS: [&str; 3] = ["memory", "pids", "cpu"];

/// The weight of one vCPU, of 10,000 at most. 100 is the kernel's default for a group.
const WEIGHT_PER_VCPU: u64 = 100;

/// The wait between two checks of a group that ends.
const STEP: Duration = Duration::from_millis(10);

/// How long a group may take to become empty after its processes were killed.
const END_TIMEOUT: Duration = Duration::from_secs(10);

/// Which processes of an alloc the kernel kills when the alloc has no memory left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dies {
    All,
    /// One of its processes, about the largest.
    OneProcess,
}

/// Makes the group of all allocs of an agent, with the controllers that the machine has. `None` if there is no version
/// 2, or if this process may not make groups. `first_uid` is the first user id of the agent's allocs.
pub fn set_up(first_uid: u32) -> Option<PathBuf> {
    ROOTS.iter().find_map(|root| set_up_in(Path::new(root), &format!("nodekeeper-{first_uid}")).ok())
}

fn set_up_in(root: &Path, name: &str) -> io::Result<PathBuf> {
    let known = fs::read_to_string(root.join("cgroup.controllers"))?;
    let parent = root.join(name);
    make(&parent)?;
    for controller in known.split_ascii_whitespace().filter(|c| CONTROLLERS.contains(c)) {
        // A controller that cannot be passed on is missing in the groups of the allocs, and its limit with it.
        let _missing_is_fine = fs::write(root.join("cgroup.subtree_control"), format!("+{controller}"));
        let _missing_is_fine = fs::write(parent.join("cgroup.subtree_control"), format!("+{controller}"));
    }
    // A group that cannot be ended in one step is of no use here (Linux before 5.14).
    let probe = parent.join(format!("probe-{}", std::process::id()));
    make(&probe)?;
    let usable = probe.join("cgroup.kill").exists();
    fs::remove_dir(&probe)?;
    if usable { Ok(parent) } else { Err(io::ErrorKind::Unsupported.into()) }
}

fn make(group: &Path) -> io::Result<()> {
    match fs::create_dir(group) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => Err(e),
        _ => Ok(()),
    }
}

/// Makes the group of an alloc, with its limits: the memory that it needs (0: no limit), and `max_tasks` processes and threads. The
/// vCPUs that it needs become its share when the machine is busy.
pub fn create(group: &Path, needs: &Needs, max_tasks: u64, dies: Dies) -> io::Result<()> {
    make(group)?;
    let weight = u64::from(needs.vcpus).saturating_mul(WEIGHT_PER_VCPU).clamp(1, 10_000);
    let mut files = vec![("pids.max", max_tasks.to_string()), ("cpu.weight", weight.to_string())];
    if needs.memory_mib > 0 {
        files.push(("memory.max", needs.memory_mib.saturating_mul(1024 * 1024).to_string()));
        files.push(("memory.swap.max", "0".to_owned()));
        files.push(("memory.oom.group", u8::from(dies == Dies::All).to_string()));
    }
    for (name, value) in files {
        let file = group.join(name);
        // A file that is not there belongs to a controller that the machine does not have.
        if file.exists() {
            fs::write(file, value)?;
        }
    }
    Ok(())
}

pub fn enter(group: &Path) -> io::Result<()> {
    fs::write(group.join("cgroup.procs"), "0")
}

/// Whether the kernel holds the group within its memory.
pub fn limits_memory(group: &Path) -> bool {
    group.join("memory.max").exists()
}

/// How many processes of the group the kernel has killed because the group had no memory left; `None` if the kernel does not count
/// them. A container may have a group of version 1, whose count is in another file.
pub fn memory_kills(group: &Path) -> Option<u64> {
    let counts =
        ["memory.events", "memory.oom_control"].iter().find_map(|file| fs::read_to_string(group.join(file)).ok())?;
    counts.lines().find_map(|line| line.strip_prefix("oom_kill "))?.trim().parse().ok()
}

/// Kills every process of the group. Does nothing if there is no such group.
pub fn kill(group: &Path) {
    let _no_group_is_fine = fs::write(group.join("cgroup.kill"), "1");
}

/// Kills every process of the group, and removes the group with those below it. A group that does not exist counts as
/// removed.
pub async fn remove(group: &Path) -> io::Result<()> {
    let deadline = tokio::time::Instant::now() + END_TIMEOUT;
    loop {
        kill(group);
        match remove_empty(group) {
            Ok(()) => return Ok(()),
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(e) if tokio::time::Instant::now() > deadline => return Err(e),
            Err(_) => tokio::time::sleep(STEP).await,
        }
    }
}

/// Removes the group of all allocs, unless it has groups or processes.
pub fn remove_if_empty(parent: &Path) {
    let _others_are_fine = fs::remove_dir(parent);
}

/// Removes the group and the groups below it, innermost first. Fails if one of them has processes.
fn remove_empty(group: &Path) -> io::Result<()> {
    for entry in fs::read_dir(group)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove_empty(&entry.path())?;
        }
    }
    fs::remove_dir(group)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn needs(memory_mib: u64, vcpus: u32) -> Needs {
        Needs { memory_mib, vcpus, ..Needs::default() }
    }

    #[test]
    fn a_group_gets_the_limits_that_its_controllers_have() {
        let group = tempfile::tempdir().unwrap();
        for file in ["memory.max", "memory.swap.max", "memory.oom.group", "pids.max", "cpu.weight"] {
            fs::write(group.path().join(file), "").unwrap();
        }
        let read = |file: &str| fs::read_to_string(group.path().join(file)).unwrap();
        create(group.path(), &needs(64, 4), 7, Dies::All).unwrap();
        let written = ["memory.max", "memory.swap.max", "memory.oom.group", "pids.max", "cpu.weight"].map(read);
        assert_eq!(written, ["67108864", "0", "1", "7", "400"]);
        create(group.path(), &needs(0, 1000), 7, Dies::All).unwrap();
        assert_eq!((read("memory.max").as_str(), read("cpu.weight").as_str()), ("67108864", "10000"));
        assert!(limits_memory(group.path()));
        // Without controllers nothing is written.
        let bare = tempfile::tempdir().unwrap();
        create(bare.path(), &needs(64, 4), 7, Dies::All).unwrap();
        assert_eq!(fs::read_dir(bare.path()).unwrap().count(), 0);
        assert!(!limits_memory(bare.path()));
    }

    #[test]
    fn a_kill_for_memory_is_read_from_the_events() {
        let group = tempfile::tempdir().unwrap();
        assert_eq!(memory_kills(group.path()), None);
        let write = |text: &str| fs::write(group.path().join("memory.events"), text).unwrap();
        write("low 0\nmax 12\noom 0\noom_kill 0\noom_group_kill 0\n");
        assert_eq!(memory_kills(group.path()), Some(0));
        write("low 0\nmax 12\noom 1\noom_kill 3\noom_group_kill 1\n");
        assert_eq!(memory_kills(group.path()), Some(3));
        let version_1 = tempfile::tempdir().unwrap();
        fs::write(version_1.path().join("memory.oom_control"), "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n")
            .unwrap();
        assert_eq!(memory_kills(version_1.path()), Some(1));
    }

    #[tokio::test]
    async fn every_process_of_a_group_ends_and_the_group_is_removed() {
        let Some(parent) = set_up(std::process::id()) else {
            return eprintln!("skipped: this machine has no control groups of version 2 that this process may use");
        };
        let group = parent.join(format!("test-{}", std::process::id()));
        create(&group, &needs(0, 1), 100, Dies::All).unwrap();
        let script = format!(
            "echo 0 > {}/cgroup.procs; mkdir {}/below; sleep 1000 & setsid sleep 1000",
            group.display(),
            group.display()
        );
        let mut child = std::process::Command::new("sh").args(["-c", &script]).spawn().unwrap();
        while fs::read_to_string(group.join("cgroup.procs")).unwrap().lines().count() < 3 {
            std::thread::yield_now();
        }
        remove(&group).await.unwrap();
        assert!(!group.exists());
        child.wait().unwrap();
        remove(&group).await.unwrap();
        remove(&parent).await.unwrap();
    }
}
