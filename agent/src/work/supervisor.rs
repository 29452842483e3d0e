//! The supervisor of one alloc: a process of its own, which survives the agent.
//!
//! Flow: leave the agent's session, claim the alloc, fetch its inputs, start the command in a process group of its own, wait, kill
//! what is left, write the rest of the output, store the outputs, take the files away from the job's user, write the exit record.
//! Guarantees: only the supervisor that claims the alloc starts its command, so the command starts at most once. When the exit
//! record is written, no process that the command started is running, not even a daemon. The command gets a notice `stop_notice_s`
//! before `timeout_s` is over, is asked to stop then, and is killed `kill_timeout_s` later. It is killed when it uses more than
//! `memory_mib`, and soon after its files take up more than `scratch_gib`. The cause of the end says which of these it was,
//! whatever the command did. A fault of the node is never a failure of the command.
//! The exit record comes later while the disk is full, or while a container cannot be removed. Where the alloc has a control group
//! with a memory controller, the kernel limits the memory. Elsewhere `over_memory` measures it twice a second.
//! Does not: survive being killed itself; the agent then ends what is left, has another supervisor store the checkpoint, and writes the
//! exit record.

use super::alloc_dir::{AllocDir, ExitRecord, StartRecord};
use super::image;
use super::over_memory::{Over, over_memory};
use super::provision::Provided;
use super::scratch::{self, MostScratch};
use super::supervised::{Supervised, SupervisorContext};
use super::user_ids::UserIds;
use crate::elements::ElementsLog;
use crate::ending::command_end::CommandEnd;
use crate::ending::remains::{ContainerStop, Processes, Remains, reap_all};
use crate::ending::stops::{FAR, Stops, stop_at};
use crate::ending::unended;
use crate::isolation::cgroup::{self, Dies};
use crate::isolation::{self, TaskIsolation};
use crate::machine::atomic_file::Spare;
use crate::output::capture::{Capture, Printers};
use crate::output::output_files::output_tail;
use crate::rights;
use crate::runtime::init::InitWatch;
use crate::runtime::{ALLOC_PATH, CACHES, CommandSpec, HOSTS_FILE, Process, ProcessEnv, WORK_DIR, process};
use crate::usage::{GpuMeter, Meter};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use model::wire::AllocOrder;
use model::{EndCause, INPUT_VARIABLE, cache_variable};
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;
use process_table::{Notice, ProcessEntry};
use std::io;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::process::{Child, Command};
use tokio::signal::unix::{Signal as UnixSignal, SignalKind, signal};
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep_until};

/// How often memory and the stop file are checked.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// The wait before a failed step is tried again.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// How long the removal of a container is retried before the alloc ends without it.
const REMOVE_TIMEOUT: Duration = Duration::from_secs(120);

/// How many bytes of the end of the output are read to find the error message of a runtime.
const MESSAGE_BYTES: usize = 4096;

/// Runs the alloc in `dir` to its end.
pub async fn run(dir: AllocDir, context: &SupervisorContext) -> io::Result<()> {
    nix::unistd::setsid()?;
    // A process that loses its parent becomes our child instead of init's, so that it can be found.
    nix::sys::prctl::set_child_subreaper(true)?;
    // Listens for TERM before the claim, because the agent may send TERM as soon as the alloc is claimed.
    let mut term = signal(SignalKind::terminate())?;
    listen_to_ignored();
    let Some(task) = dir.task()? else {
        return Err(io::Error::new(io::ErrorKind::NotFound, format!("no task in {}", dir.path().display())));
    };
    let own_pid = std::process::id() as i32;
    // Reads its start time before the claim. Without it, a later process with the same pid could be taken for this
    // supervisor.
    let own_entry = process_table::read(own_pid).ok_or_else(|| io::Error::other("cannot read /proc/self/stat"))?;
    let start = StartRecord { pid: own_pid, start_ticks: own_entry.start_ticks, boot_id: task.boot_id.clone() };
    let is_first = dir.claim(&start)?;
    let alloc = Supervised { task, dir, context };
    if !is_first {
        return alloc.keep_what_is_left().await;
    }
    let reserve = alloc.dir.reserve();
    let Supervised { task, dir, .. } = &alloc;
    let started_at = alloc.now();
    let mut meter = Meter::new(task.cgroup(), GpuMeter::new(&task.gpus, dir), Instant::now());
    let provided = alloc.provide().await;
    let timeout_s = task.order.work.timeout_s;
    let limit = (timeout_s > 0).then(|| Instant::now() + Duration::from_secs(timeout_s).min(FAR));
    let (mut cause, capture, role) = match provided {
        Ok(Provided { env, role }) => {
            let (cause, capture) = alloc.work(&env, &mut meter, &mut term).await;
            (cause, capture, role)
        }
        Err(fault) => (fault.into(), None, None),
    };
    unended::ended(dir, kill_descendants(own_pid)).await;
    meter.scratch().measure_last(&dir.of_scratch());
    let usage = meter.usage();
    if let Some(isolation) = &task.isolation {
        UserIds::of(dir).end(isolation, &context.program, dir).await;
        // Processes that were ended just now may have become our children.
        reap_all();
    }
    if let Some(mut capture) = capture {
        let lost = capture.finish().await.map(|why| without_output(why, dir, &meter.scratch()));
        // Readers take the output of a command that ended by itself for complete. So lost output changes the cause.
        cause = lost.filter(|_| matches!(cause, EndCause::Exited { .. })).unwrap_or(cause);
        if let (Some(pack), Some(log)) = (&task.order.work.pack, capture.elements()) {
            cause = log.end(cause, pack);
        }
    }
    let (cause, kept) = alloc.keep(role, cause, limit).await;
    if task.isolation.is_some() {
        close(dir).await;
    } else if let Err(error) = dir.forget_rights() {
        tracing::warn!(%error, "cannot remove the token and the secrets of the job");
    }
    let exit = ExitRecord { cause, started_at: Some(started_at), finished_at: Some(alloc.now()), usage, kept };
    write_exit_record(dir, &exit, &reserve).await
}

/// The command would ignore each signal that the starter of this program ignores, as a shell does for `nohup` and `&`. A handler
/// prevents that: when a program is executed, a signal with a handler gets its default action.
pub(crate) fn listen_to_ignored() {
    for number in process_table::ignored_signals() {
        // The C library keeps some signals for itself, and refuses a handler for them.
        let _best_effort = signal(SignalKind::from_raw(number));
    }
}

impl Supervised<'_> {
    /// Runs the command of the alloc to its end. The caller writes the rest of its output.
    async fn work(&self, rights: &ProcessEnv, meter: &mut Meter, term: &mut UnixSignal) -> (EndCause, Option<Capture>) {
        match self.start_command(rights) {
            Ok((child, mut capture, process)) => {
                // The command is no child of the client, so its container is measured instead.
                let container = match process {
                    Process::Client(runtime, _) => Some(Arc::new(InitWatch::start(runtime, self.task.order.alloc_id))),
                    Process::Helper(_) => None,
                };
                meter.begin(container.clone(), Instant::now());
                let cause = tokio::select! {
                    cause = self.supervise(child, &capture, container.as_ref(), meter, term) => cause,
                    never = self.keep_checkpoints() => never,
                };
                if container.is_some() {
                    // `judge` reads what the client printed.
                    capture.finish().await;
                }
                let is_out_of_memory = container.is_some_and(|watch| watch.is_out_of_memory());
                let cause = self.judge(cause, process, is_out_of_memory).await;
                remove_container(&self.dir).await;
                (cause, Some(capture))
            }
            Err(cause) => (cause, None),
        }
    }

    /// Corrects the cause of a command that ended by itself, by what its helper or its container runtime says.
    async fn judge(&self, cause: EndCause, process: Process, is_out_of_memory: bool) -> EndCause {
        let EndCause::Exited { code } = cause else { return cause };
        let other = match process {
            Process::Helper(result) => result.read(),
            Process::Client(..) if code == 0 => None,
            Process::Client(runtime, _) => {
                let said = output_tail(&self.dir.output_files(), MESSAGE_BYTES).unwrap_or_default().0;
                runtime.judge(&self.task.order, code, &said, is_out_of_memory).await
            }
        };
        other.unwrap_or(cause)
    }

    fn start_command(&self, rights: &ProcessEnv) -> Result<Started, EndCause> {
        let Self { task, dir, context } = self;
        let cannot = |what: &str, e: &io::Error| EndCause::NotStarted { why: format!("cannot {what}: {e}") };
        let uid = task.uid().map_err(|e| cannot("find out who runs the command", &e))?;
        self.prepare().map_err(|e| cannot("prepare the files and the limits", &e))?;
        let pack = task.order.work.pack.as_ref();
        let group = task.cgroup().map(Path::to_owned);
        let elements = pack.map(|_| ElementsLog::create(dir.elements(), group)).transpose();
        let elements = elements.map_err(|e| cannot("make the file of the elements", &e))?;
        let captured = Capture::start(&dir.output_files(), uid, elements);
        let (capture, Printers { out, err }) = captured.map_err(|e| cannot("capture the output", &e))?;
        let mut env = self.environment(rights, uid);
        env.extend(stop_at(task.order.work.timeout_s, self.now()).filter(|_| pack.is_none()));
        let input = env.remove(INPUT_VARIABLE).map(|text| BASE64_STANDARD.decode(text)).transpose();
        let input = input.map_err(|e| EndCause::Rejected { why: format!("{INPUT_VARIABLE} must be base64: {e}") })?;
        let image = image::reference(task, dir);
        let spec = CommandSpec {
            node_id: task.node_id,
            order: &task.order,
            image: image.as_deref(),
            caches: &task.caches,
            alloc_dir: dir.path(),
            gpus: &task.gpus,
            env: &env,
            input: input.as_deref(),
            isolation: task.isolation.as_ref(),
            agent_env: &context.env,
            agent_program: &context.program,
        };
        let invocation =
            task.container.map_or_else(|| process::invocation(&spec), |runtime| runtime.invocation(&spec))?;
        let mut command = Command::new(&invocation.program);
        if !matches!(invocation.process, Process::Client(..)) {
            command.env_clear();
        }
        command.args(invocation.args).envs(invocation.env);
        command.current_dir(dir.work()).process_group(0).stdin(invocation.stdin).stdout(out).stderr(err);
        let child = command.spawn().map_err(|e| cannot(&format!("start {}", invocation.program.display()), &e))?;
        Ok((child, capture, invocation.process))
    }

    /// Writes the files that the command needs, and makes its control group.
    fn prepare(&self) -> io::Result<()> {
        let Self { task, dir, .. } = self;
        let AllocOrder { hosts, needs, .. } = &task.order;
        if hosts.len() > 1 {
            let lines = hosts.iter().map(|host| format!("{host} slots={}\n", needs.vcpus)).collect::<String>();
            isolation::write_for_job(&dir.path().join(HOSTS_FILE), lines.as_bytes())?;
        }
        let Some(TaskIsolation { uid, max_tasks, cgroup, .. }) = &task.isolation else { return Ok(()) };
        if let Some(group) = cgroup {
            let dies = if task.order.work.pack.is_some() { Dies::OneProcess } else { Dies::All };
            cgroup::create(group, needs, *max_tasks, dies)?;
        }
        isolation::write_closed(dir.path())?;
        isolation::write_user_files(dir.path(), *uid, &dir.work())
    }

    /// The environment of the command: the runtime's variables, then the job's, then nodekeeper's. The last value of a
    /// variable wins, so a job cannot replace nodekeeper's variables and pretend to be another member.
    fn environment(&self, rights: &ProcessEnv, uid: Option<u32>) -> ProcessEnv {
        let Self { task, dir, context } = self;
        let order = &task.order;
        let mut env = match task.container {
            // The image has its own variables, except for the home of a user that the image does not know.
            Some(_) => uid.map(|_| ("HOME".to_owned(), WORK_DIR.to_owned())).into_iter().collect(),
            None => process::base_environment(&context.env, uid, &dir.work()),
        };
        env.extend(order.env.clone());
        // The job may replace a default, such as the region.
        let is_given = |name: &String| !rights::is_default(name) || !order.env.contains_key(name);
        env.extend(rights.iter().filter(|(name, _)| is_given(name)).map(|(name, value)| (name.clone(), value.clone())));
        if !rights.is_empty() {
            rights::pass_proxies_by(&mut env);
        }
        for (name, path) in &task.caches {
            let path = task.path_for_job(&format!("{CACHES}/{name}"), path);
            env.insert(cache_variable(name), path.display().to_string());
        }
        let own = [
            ("NODEKEEPER_JOB_ID", order.job_id().to_string()),
            ("NODEKEEPER_ALLOC_ID", order.alloc_id.to_string()),
            ("NODEKEEPER_MEMBER", order.alloc_id.member.to_string()),
            ("NODEKEEPER_NODES", order.needs.nodes.to_string()),
            ("NODEKEEPER_HOSTS", order.hosts.join(",")),
        ];
        env.extend(own.map(|(name, value)| (name.to_owned(), value)));
        if order.hosts.len() > 1 {
            let path = task.path_for_job(ALLOC_PATH, dir.path()).join(HOSTS_FILE);
            env.insert("NODEKEEPER_HOSTFILE".to_owned(), path.display().to_string());
        }
        env.extend(gpu_variables(&task.gpus).map(|(name, value)| (name.to_owned(), value)));
        env
    }

    /// Waits for the command, and ends it when it must end.
    async fn supervise(
        &self,
        mut child: Child,
        capture: &Capture,
        container: Option<&Arc<InitWatch>>,
        meter: &mut Meter,
        term: &mut UnixSignal,
    ) -> EndCause {
        let (task, dir, order) = (&self.task, &self.dir, &self.task.order);
        let own_pid = std::process::id() as i32;
        let group = child.id().map_or(0, |pid| pid as i32);
        // In a pack, each element has its own time limit.
        let limit_s = if order.work.pack.is_some() { 0 } else { order.work.timeout_s };
        let stops = Stops::new(&order.failure_policy, limit_s, Instant::now());
        let mut end = CommandEnd::new(task, self.remains(group, container), stops);
        // How the first process ended.
        let mut first = None;
        // Most commands end soon, so the first check comes after an interval.
        let mut check = interval_at(Instant::now() + CHECK_INTERVAL, CHECK_INTERVAL);
        check.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut over_scratch = pin!(scratch::over(order.needs.scratch_gib, dir.of_scratch(), meter.scratch()));
        let status = loop {
            tokio::select! {
                status = child.wait(), if first.is_none() => first = Some(status),
                _ = term.recv(), if !end.is_ordered => {
                    end.order(dir.stop_reason().unwrap_or_else(|| "stopped".to_owned()));
                }
                () = sleep_until(end.next_at()) => end.step(),
                // The first reason stays. And a future that has completed must not be polled again.
                over = &mut over_scratch, if end.reason.is_none() => end.kill(over),
                _ = check.tick() => {
                    let found = process_table::descendants_now(own_pid);
                    reap_adopted_children(&found, own_pid, group);
                    let pids: Vec<i32> = found.iter().map(|p| p.pid).collect();
                    meter.measure(&pids, dir, Instant::now());
                    dir.note_unended(end.is_unended());
                    if let Some(why) = self.must_end(capture, &found, group, &meter.scratch()) {
                        end.kill(why);
                    }
                    // The stop may have been ordered before we could receive the signal.
                    if let Some(why) = dir.stop_reason().filter(|_| !end.is_ordered) {
                        end.order(why);
                    }
                }
            };
            if end.has_come(first.is_some())
                && let Some(status) = first.take()
            {
                break status;
            }
        };
        dir.note_unended(false);
        meter.end(Instant::now());
        end.cause(status)
    }

    fn remains(&self, first: i32, container: Option<&Arc<InitWatch>>) -> Remains<'_> {
        let Self { task, .. } = self;
        let is_pack = task.order.work.pack.is_some();
        let notice = Notice::new(Duration::from_secs(task.order.failure_policy.kill_timeout_s));
        let supervisor = std::process::id() as i32;
        let processes = Processes { supervisor, first, is_pack, cgroup: task.cgroup(), notice };
        match container.zip(task.container) {
            None => Remains::Processes(processes),
            Some((watch, runtime)) => {
                Remains::Container(ContainerStop::new(processes, Arc::clone(watch), runtime, task.order.alloc_id))
            }
        }
    }

    /// Why the command must be killed: its processes use too much memory, or the node cannot write its output. In a pack, this may
    /// kill some elements instead.
    fn must_end(
        &self,
        capture: &Capture,
        found: &[ProcessEntry],
        runner: i32,
        scratch: &MostScratch,
    ) -> Option<EndCause> {
        let elements = match over_memory(&self.task, found, runner) {
            Some(Over::Alloc(cause)) => return Some(cause),
            Some(Over::Elements(elements)) => elements,
            None => Vec::new(),
        };
        for pids in &elements {
            capture.out_of_memory();
            pids.first().iter().for_each(|group| process_table::send_group(**group, Signal::SIGKILL));
            pids.iter().for_each(|pid| process_table::send(*pid, Signal::SIGKILL));
        }
        capture.given_up().map(|why| without_output(why, &self.dir, scratch))
    }
}

/// The end of an alloc whose output cannot be written: its own fault if it has filled the disk.
fn without_output(why: String, dir: &AllocDir, scratch: &MostScratch) -> EndCause {
    scratch.fill(dir.path()).unwrap_or(EndCause::Lost { why })
}

/// The variables by which CUDA and NVIDIA's container runtime give a command its GPUs and no others. Without GPUs the values name
/// none: an image may ask for all, and a program takes all that it sees.
fn gpu_variables(uuids: &[String]) -> [(&'static str, String); 2] {
    let all = uuids.join(",");
    let visible = if uuids.is_empty() { "void".to_owned() } else { all.clone() };
    [("CUDA_VISIBLE_DEVICES", all), ("NVIDIA_VISIBLE_DEVICES", visible)]
}

/// Writes the exit record. On a full disk this waits for space, and until then the alloc counts as running.
async fn write_exit_record(dir: &AllocDir, exit: &ExitRecord, reserve: &Spare) -> io::Result<()> {
    loop {
        match dir.write_exit_record_on(reserve, exit) {
            Err(error) if error.kind() == io::ErrorKind::StorageFull => {
                tracing::warn!(%error, "cannot write the exit record: trying again");
                tokio::time::sleep(RETRY_INTERVAL).await;
            }
            written => {
                reserve.release();
                return written;
            }
        }
    }
}

/// Takes the files away from the job's user. Until that succeeds, the alloc counts as running: its user id is not free.
async fn close(dir: &AllocDir) {
    while let Err(error) = dir.close() {
        tracing::warn!(%error, "cannot take the files away from the job's user: trying again");
        tokio::time::sleep(RETRY_INTERVAL).await;
    }
}

/// Removes the container of the alloc, if there is one, because the command may still run in it. If the removal fails
/// for `REMOVE_TIMEOUT`, the alloc ends without it, and the container is swept later.
async fn remove_container(dir: &AllocDir) {
    let deadline = Instant::now() + REMOVE_TIMEOUT;
    while let Err(error) = dir.remove_container().await {
        if Instant::now() > deadline {
            tracing::warn!(%error, "the container is left behind");
            if let Err(error) = dir.leave_container() {
                tracing::warn!(%error, "cannot write down that the container is left behind");
            }
            return;
        }
        tracing::warn!(%error, "cannot remove the container: trying again");
        tokio::time::sleep(RETRY_INTERVAL).await;
    }
}

type Started = (Child, Capture, Process);

/// Reaps the adopted children among these processes: they became ours when their parents ended. Tokio reaps the command itself.
fn reap_adopted_children(found: &[ProcessEntry], own_pid: i32, command_pid: i32) {
    let adopted = |pid: i32, parent: i32| parent == own_pid && pid != command_pid;
    for p in found.iter().filter(|p| p.zombie && adopted(p.pid, p.parent)) {
        let _ended_is_fine = waitpid(Pid::from_raw(p.pid), Some(WaitPidFlag::WNOHANG));
    }
}

/// Kills all descendants until none is left, however fast they fork. It reads `/proc` only if there are some.
async fn kill_descendants(own_pid: i32) {
    while !reap_all() {
        process_table::kill_descendants(own_pid);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contact::s3_access::S3Environment;
    use crate::protocol::testing::{node_id, order};
    use crate::runtime::ContainerRuntime;
    use crate::work::alloc_dir::AllocTask;
    use std::path::PathBuf;

    fn task(container: Option<ContainerRuntime>) -> AllocTask {
        let mut order = order(0, 1);
        order.env = ProcessEnv::from([("A".into(), "1".into()), ("NODEKEEPER_MEMBER".into(), "7".into())]);
        order.hosts = vec!["10.0.0.1".into(), "10.0.0.2".into()];
        let caches = vec![("m2-repo".to_owned(), PathBuf::from("/data/caches/m2-repo"))];
        AllocTask {
            node_id: node_id(),
            order,
            container,
            isolation: None,
            unisolated: true,
            gpus: Vec::new(),
            boot_id: "b".into(),
            caches,
            credentials: None,
            files: None,
        }
    }

    fn environment(task: AllocTask) -> ProcessEnv {
        let context = SupervisorContext {
            env: ProcessEnv::from([("PATH".to_owned(), "/bin".to_owned())]),
            program: PathBuf::from("/agent"),
            endpoints: ProcessEnv::new(),
            s3: S3Environment::default(),
            clock: || jiff::Timestamp::UNIX_EPOCH,
        };
        let alloc = Supervised { task, dir: AllocDir::at("/a".into()), context: &context };
        alloc.environment(&ProcessEnv::new(), None)
    }

    #[test]
    fn a_job_cannot_replace_the_variables_that_say_which_member_it_is() {
        let env = environment(task(None));
        assert_eq!(env["PATH"], "/bin");
        assert_eq!(env["A"], "1");
        assert_eq!(env["NODEKEEPER_MEMBER"], "0");
        assert_eq!(env["NODEKEEPER_HOSTS"], "10.0.0.1,10.0.0.2");
        assert_eq!(env["NODEKEEPER_HOSTFILE"], "/a/hosts");
        assert_eq!(env["NODEKEEPER_CACHE_M2_REPO"], "/data/caches/m2-repo");
    }

    #[test]
    fn a_command_sees_its_own_gpus_and_no_others_whatever_its_job_says() {
        for (gpus, cuda, nvidia) in [(&[][..], "", "void"), (&["GPU-a", "GPU-b"], "GPU-a,GPU-b", "GPU-a,GPU-b")] {
            let mut task = task(None);
            task.gpus = gpus.iter().map(|uuid| (*uuid).to_owned()).collect();
            task.order.env.insert("CUDA_VISIBLE_DEVICES".into(), "0,1,2,3".into());
            task.order.env.insert("NVIDIA_VISIBLE_DEVICES".into(), "all".into());
            let env = environment(task);
            assert_eq!((&*env["CUDA_VISIBLE_DEVICES"], &*env["NVIDIA_VISIBLE_DEVICES"]), (cuda, nvidia));
        }
    }

    #[test]
    fn a_container_gets_the_same_variables_with_its_own_paths() {
        let env = environment(task(Some(ContainerRuntime::Docker)));
        assert!(!env.contains_key("PATH"), "the image has its own");
        assert_eq!(env["NODEKEEPER_MEMBER"], "0");
        assert_eq!(env["NODEKEEPER_CACHE_M2_REPO"], "/caches/m2-repo");
    }
}
