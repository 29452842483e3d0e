//! One supervisor: a process that runs one alloc and outlives the agent.
//!
//! Flow: leave the agent's session, claim the alloc, start the command in a process group of
//! its own, wait, kill what is left, write down the end.
//! Guarantees: the command is started only by whoever claims it, so at most once; when the
//! end is written, nothing the command started is running, not even what made itself a
//! daemon; it ends within `timeout_s` and `kill_timeout_s` (its end is told later where docker does
//! not answer or the disk is full), and is killed above `memory_mib`.
//! Does not: survive being killed itself; the agent then kills the session and says so.
//! Memory is resident memory summed over the tree and looked at twice a second: pages that
//! processes share count for each of them.

use crate::config::Runtime;
use crate::docker;
use crate::durable::Reserve;
use crate::process;
use crate::task::{AllocDir, Exit, Started, Task};
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::{Pid, User};
use shared::time::Time;
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

/// How often memory is looked at.
const LOOK: Duration = Duration::from_millis(500);

/// After how long what cannot be done now is tried again.
const AGAIN: Duration = Duration::from_secs(5);

/// For how long a container is tried to be removed before its alloc has ended all the same.
const REMOVE_FOR: Duration = Duration::from_secs(120);

/// Set aside for the end: the job may fill the disk.
const RESERVE_BYTES: usize = 16 << 10;

/// How long a container may take beyond its own kill timeout.
const DOCKER_GRACE: Duration = Duration::from_secs(35);

/// What `main` reads for a supervisor.
pub struct Surroundings {
    /// `PATH`, `HOME` and `LANG` as far as they are set.
    pub env: BTreeMap<String, String>,
    /// This program, to become the job's user with.
    pub program: PathBuf,
    /// The clock, for the times people read.
    pub clock: Arc<dyn Fn() -> Time + Send + Sync>,
}

/// Runs the alloc in `dir` to its end.
pub async fn run(dir: AllocDir, around: &Surroundings) -> io::Result<()> {
    nix::unistd::setsid()?;
    // What loses its parent becomes ours instead of init's, so that it can be found.
    nix::sys::prctl::set_child_subreaper(true)?;
    // Before the claim: from then on the agent may send TERM.
    let mut term = signal(SignalKind::terminate())?;
    let Some(task) = dir.task()? else {
        return Err(io::Error::new(io::ErrorKind::NotFound, format!("no task in {}", dir.path().display())));
    };
    let own = std::process::id() as i32;
    // Before the claim: without its start nobody could tell this supervisor from another process.
    let start_ticks = process::read(own).map(|p| p.start_ticks);
    let start_ticks = start_ticks.ok_or_else(|| io::Error::other("cannot read /proc/self/stat"))?;
    if !dir.claim(&Started { pid: own, start_ticks, boot_id: task.boot_id.clone() })? {
        return Ok(());
    }
    let reserve = Reserve::make(dir.path().join("reserve"), RESERVE_BYTES);
    let started_at = (around.clock)();
    let mut exit = match start(&task, &dir, around) {
        Ok(child) => {
            let exit = supervise(&task, &dir, child, &mut term).await;
            if task.runtime == Runtime::Docker {
                remove_container(&task).await;
            }
            exit
        }
        Err(exit) => exit,
    };
    kill_descendants(own).await;
    exit.started_at = Some(started_at);
    exit.finished_at = Some((around.clock)());
    // On a full disk how it ended waits for room: until then it counts as running.
    loop {
        match reserve.behind(|| dir.end(&exit)) {
            Err(error) if error.kind() == io::ErrorKind::StorageFull => {
                tracing::warn!(%error, "cannot write down how it ended: tried again");
                tokio::time::sleep(AGAIN).await;
            }
            ended => {
                reserve.give_up();
                return ended;
            }
        }
    }
}

/// Removes the alloc's container: as long as docker has not, it may run on. Of a docker that does not
/// answer the end is not waited for for ever: the container is swept later.
async fn remove_container(task: &Task) {
    let patience = Instant::now() + REMOVE_FOR;
    while let Err(error) = docker::remove(&task.order.alloc_id.to_string()).await {
        // Not found: there is no docker here, nor a container.
        if error.kind() == io::ErrorKind::NotFound || Instant::now() > patience {
            tracing::warn!(%error, "its container stays");
            return;
        }
        tracing::warn!(%error, "its container cannot be removed: tried again");
        tokio::time::sleep(AGAIN).await;
    }
}

/// Starts the command, or says how it ended before it began.
fn start(task: &Task, dir: &AllocDir, around: &Surroundings) -> Result<Child, Exit> {
    let cannot = |what: &str, e: &io::Error| Exit::without_code(format!("cannot {what}: {e}"));
    let user = match task.job_user.as_deref().map(|name| (name, User::from_name(name))) {
        None => None,
        Some((_, Ok(Some(user)))) => Some(user),
        Some((name, _)) => return Err(Exit::without_code(format!("there is no user {name:?} on the node"))),
    };
    prepare(task, dir, user.as_ref()).map_err(|e| cannot("prepare the directories", &e))?;
    let out = output(dir).map_err(|e| cannot("open the output file", &e))?;
    let err = out.try_clone().map_err(|e| cannot("open the output file", &e))?;
    let env = environment(task, &around.env, user.as_ref());
    let (program, args) = program(task, dir, around, &env, user.as_ref())?;
    let mut command = Command::new(&program);
    command.args(args).current_dir(dir.work()).process_group(0);
    command.stdin(Stdio::null()).stdout(out).stderr(err).env_clear();
    match task.runtime {
        Runtime::Process => command.envs(&env),
        // The job's environment is the container's, not the docker command's.
        Runtime::Docker => command.envs(&around.env),
    };
    command.spawn().map_err(|e| {
        let exit_code = if e.kind() == io::ErrorKind::NotFound { 127 } else { 126 };
        let message = format!("cannot start {}: {e}", program.display());
        Exit { exit_code: Some(exit_code), message: Some(message), ..Exit::default() }
    })
}

/// What is executed, with its arguments.
fn program(
    task: &Task,
    dir: &AllocDir,
    around: &Surroundings,
    env: &BTreeMap<String, String>,
    user: Option<&User>,
) -> Result<(PathBuf, Vec<String>), Exit> {
    match task.runtime {
        Runtime::Docker => {
            let image = task.order.image.as_deref();
            let image =
                image.ok_or_else(|| Exit::without_code("the job names no image, and this node runs containers"))?;
            let user = user.map(|u| format!("{}:{}", u.uid, u.gid));
            Ok(("docker".into(), docker::run_args(task, dir, env, image, user.as_deref())))
        }
        Runtime::Process => {
            let (program, args) =
                task.order.command.split_first().ok_or_else(|| Exit::without_code("the command is empty"))?;
            match user {
                Some(user) => {
                    let head = ["as-user".to_owned(), user.name.clone(), "--".to_owned(), program.clone()];
                    Ok((around.program.clone(), head.into_iter().chain(args.iter().cloned()).collect()))
                }
                None => Ok((program.into(), args.to_vec())),
            }
        }
    }
}

/// Makes the work directory and the caches, and gives them to the job's user.
fn prepare(task: &Task, dir: &AllocDir, user: Option<&User>) -> io::Result<()> {
    let give = |path: &Path| match user {
        Some(user) => std::os::unix::fs::chown(path, Some(user.uid.as_raw()), Some(user.gid.as_raw())),
        None => Ok(()),
    };
    fs::set_permissions(dir.work(), fs::Permissions::from_mode(0o700))?;
    give(&dir.work())?;
    task.caches.iter().try_for_each(|(_, path)| give(path))
}

fn output(dir: &AllocDir) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(0o600).open(dir.output())
}

/// The environment of the command: a little of ours, the job's, and who it is, in this
/// order, so that no job can pretend to be another member.
pub fn environment(task: &Task, inherited: &BTreeMap<String, String>, user: Option<&User>) -> BTreeMap<String, String> {
    let order = &task.order;
    let mut env = match task.runtime {
        Runtime::Process => inherited.clone(),
        Runtime::Docker => BTreeMap::new(),
    };
    if let (Some(user), Runtime::Process) = (user, task.runtime) {
        env.insert("HOME".into(), user.dir.display().to_string());
        env.insert("USER".into(), user.name.clone());
        env.insert("LOGNAME".into(), user.name.clone());
    }
    env.extend(order.env.clone());
    for (name, path) in &task.caches {
        let variable: String =
            name.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' }).collect();
        let path = if task.runtime == Runtime::Docker { docker::cache_path(name) } else { path.clone() };
        env.insert(format!("NODEKEEPER_CACHE_{variable}"), path.display().to_string());
    }
    let own = [
        ("NODEKEEPER_JOB_ID", order.job_id().to_string()),
        ("NODEKEEPER_ALLOC_ID", order.alloc_id.to_string()),
        ("NODEKEEPER_MEMBER", order.alloc_id.member.to_string()),
        ("NODEKEEPER_NODES", order.nodes.to_string()),
        ("NODEKEEPER_HOSTS", order.hosts.join(",")),
    ];
    env.extend(own.map(|(name, value)| (name.to_owned(), value)));
    env
}

/// Waits for the command, and ends it when it must end.
async fn supervise(task: &Task, dir: &AllocDir, mut child: Child, term: &mut tokio::signal::unix::Signal) -> Exit {
    let order = &task.order;
    let own = std::process::id() as i32;
    let group = child.id().map_or(0, |pid| pid as i32);
    let far = Instant::now() + Duration::from_secs(100 * 365 * 86_400);
    let after = |s: u64| Instant::now().checked_add(Duration::from_secs(s)).unwrap_or(far).min(far);
    let timeout_at = if order.timeout_s > 0 { after(order.timeout_s) } else { far };
    let mut kill_at = far;
    // The first reason stands: what comes after is its consequence.
    let mut why: Option<String> = None;
    let mut look = interval(LOOK);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let status = loop {
        let ending = kill_at < far;
        let stop = tokio::select! {
            status = child.wait() => break status,
            _ = term.recv(), if !ending => Some(dir.stop_reason().unwrap_or_else(|| "stopped".to_owned())),
            () = sleep_until(timeout_at), if !ending => Some(format!("ran longer than its time limit of {} s", order.timeout_s)),
            () = sleep_until(kill_at), if ending => {
                kill_all(own, group);
                kill_at = after(1);
                None
            }
            _ = look.tick() => {
                reap_strangers(own, group);
                if let Some(over) = over_memory(task, own) {
                    why.get_or_insert(over);
                    kill_all(own, group);
                }
                // Ordered before we could hear the signal.
                dir.stop_reason().filter(|_| !ending)
            }
        };
        if let Some(stop) = stop {
            why.get_or_insert(stop);
            kill_at = after(order.kill_timeout_s);
            if task.runtime == Runtime::Docker {
                let name = order.alloc_id.to_string();
                let kill_timeout_s = order.kill_timeout_s;
                kill_at += DOCKER_GRACE;
                tokio::spawn(async move { docker::stop(&name, kill_timeout_s).await });
            } else {
                process::send_group(group, Signal::SIGTERM);
            }
        }
    };
    exit_of(status, why, task)
}

/// How the command ended, in numbers and words.
fn exit_of(status: io::Result<ExitStatus>, why: Option<String>, task: &Task) -> Exit {
    let status = match status {
        Ok(status) => status,
        Err(e) => return Exit::without_code(format!("its supervisor could not wait for it: {e}")),
    };
    let signal = status.signal();
    let exit_code = status.code().or(signal.map(|n| 128 + n));
    let said = match (signal, exit_code, task.runtime) {
        (Some(n), _, _) => Some(format!("killed by signal {n}")),
        (None, Some(125), Runtime::Docker) => Some("docker could not run the container: see the output".to_owned()),
        _ => None,
    };
    Exit { exit_code, message: why.or(said), ..Exit::default() }
}

/// Says so if the tree uses more memory than it may. Containers are held by docker itself.
fn over_memory(task: &Task, own: i32) -> Option<String> {
    let allowed = task.order.memory_mib;
    if allowed == 0 || task.runtime == Runtime::Docker {
        return None;
    }
    let used_kib: u64 = process::descendants(own).iter().map(|p| process::resident_kib(p.pid)).sum();
    let used = used_kib / 1024;
    (used > allowed).then(|| format!("killed: it used {used} MiB of memory and may use {allowed} MiB"))
}

fn kill_all(own: i32, group: i32) {
    process::send_group(group, Signal::SIGKILL);
    for p in process::descendants(own).iter().filter(|p| !p.zombie) {
        process::send(p.pid, Signal::SIGKILL);
    }
}

/// Waits for the dead that became our children when their parents ended; the command itself
/// is tokio's to wait for.
fn reap_strangers(own: i32, main: i32) {
    for p in process::descendants(own).iter().filter(|p| p.zombie && p.parent == own && p.pid != main) {
        let _gone_is_fine = waitpid(Pid::from_raw(p.pid), Some(WaitPidFlag::WNOHANG));
    }
}

/// Kills until nothing is left, however fast it forks.
async fn kill_descendants(own: i32) {
    loop {
        reap_strangers(own, 0);
        let left = process::descendants(own);
        if left.is_empty() {
            return;
        }
        for p in &left {
            process::send(p.pid, Signal::SIGKILL);
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Becomes `user` and then `command`; returns only if it cannot.
pub fn become_user(user: &str, command: &[String]) -> io::Error {
    let become_and_run = || -> io::Result<io::Error> {
        let user = User::from_name(user)?.ok_or_else(|| io::Error::other(format!("there is no user {user:?}")))?;
        let (program, args) = command.split_first().ok_or_else(|| io::Error::other("the command is empty"))?;
        if nix::unistd::geteuid() != user.uid {
            let name = std::ffi::CString::new(user.name.as_str())?;
            nix::unistd::initgroups(&name, user.gid)?;
            nix::unistd::setgid(user.gid)?;
            nix::unistd::setuid(user.uid)?;
        }
        Ok(std::os::unix::process::CommandExt::exec(std::process::Command::new(program).args(args)))
    };
    become_and_run().unwrap_or_else(|e| e)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::testing::{node_id, order};

    fn task(runtime: Runtime) -> Task {
        let mut order = order(0, 1);
        order.env = BTreeMap::from([("A".into(), "1".into()), ("NODEKEEPER_MEMBER".into(), "7".into())]);
        order.hosts = vec!["10.0.0.1".into(), "10.0.0.2".into()];
        order.memory_mib = 64;
        let caches = vec![("m2-repo".to_owned(), PathBuf::from("/data/caches/m2-repo"))];
        Task { node_id: node_id(), order, runtime, job_user: None, boot_id: "b".into(), caches }
    }

    #[test]
    fn a_job_knows_who_it_is_and_cannot_pretend_otherwise() {
        let inherited = BTreeMap::from([("PATH".to_owned(), "/bin".to_owned())]);
        let env = environment(&task(Runtime::Process), &inherited, None);
        assert_eq!(env["PATH"], "/bin");
        assert_eq!(env["A"], "1");
        assert_eq!(env["NODEKEEPER_MEMBER"], "0");
        assert_eq!(env["NODEKEEPER_HOSTS"], "10.0.0.1,10.0.0.2");
        assert_eq!(env["NODEKEEPER_CACHE_M2_REPO"], "/data/caches/m2-repo");
    }

    #[test]
    fn a_container_gets_the_same_by_its_own_paths() {
        let task = task(Runtime::Docker);
        let env = environment(&task, &BTreeMap::from([("PATH".to_owned(), "/bin".to_owned())]), None);
        assert!(!env.contains_key("PATH"), "the image has its own");
        let args = docker::run_args(&task, &AllocDir::at("/a".into()), &env, "busybox", None).join(" ");
        assert!(args.contains(&format!("--label {}={}", docker::LABEL, node_id())), "{args}");
        assert!(args.contains("--memory 64m"), "{args}");
        assert!(args.contains("--volume /data/caches/m2-repo:/caches/m2-repo"), "{args}");
        assert!(args.contains("--env NODEKEEPER_CACHE_M2_REPO=/caches/m2-repo"), "{args}");
        assert!(args.ends_with(" busybox true"), "{args}");
    }
}
