//! The machines behind the instances of the EC2 stand-in: each is a real agent process.
//!
//! A machine is a directory with an agent. At its start it runs the commands of `launch.user_data` once, as cloud-init does.
//! Then the agent runs as with the image of the launch template: it gets the node file of its user data, restarts when it
//! fails, and ends with its instance. [`LocalMachines::metadata`] has the answers for an agent's requests to the instance
//! metadata service.
//!
//! Guarantees: when a machine is down, its processes have ended and its directory is removed; its log stays. A daemon
//! that left its parents and cleared its environment ends only with the whole program (see `processes`).
//! A machine of a size with GPUs pretends to have as many: a file lists them, and a person may change it while the machine runs.
//! Does not: start an agent if `launch.user_data` fails, or limit a machine to the size of its instance type.

pub(crate) mod agent_program;
pub(crate) mod credentials;
pub(crate) mod isolation;
pub(crate) mod processes;

use crate::local::directory::{OPEN, fresh_directory, log_file, new_directory, new_file};
use ec2_stand_in::{MachineStart, Machines};
use isolation::JobIsolation;
use model::cloud::SIZE_TAG;
use model::launch::{commands_in, node_file_in};
use model::{Rng, Time};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use remove_tree::remove_tree;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::net::Ipv4Addr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use store::Store;
use tokio::runtime::Handle;
use tokio::sync::mpsc;

/// How long an agent may take to end its jobs when its machine goes down.
const GRACE: Duration = Duration::from_secs(2);
/// An agent is restarted this long after a failure, as by a service manager.
const RESTART: Duration = Duration::from_secs(1);
/// How often an agent is checked.
const CHECK: Duration = Duration::from_millis(50);
/// The size of the console output: the last bytes of a machine's log, as many as EC2 keeps.
const CONSOLE_BYTES: u64 = 64 * 1024;
/// The agent makes this file in its home when its node is gone. The file means that the agent powered the machine off.
const POWERED_OFF: &str = "powered-off";

/// The file with the GPUs that a machine pretends to have. A person may change it to see what follows.
const GPUS: &str = "gpus.json";

#[derive(Clone)]
pub struct MachineSettings {
    pub agent: PathBuf,
    /// The parent of the machines' directories: an absolute path in the locked working directory.
    pub dir: PathBuf,
    pub logs: PathBuf,
    pub(in crate::local) isolation: JobIsolation,
    /// The URL of the metadata service: `{metadata_url}/{instance_id}/latest/…`.
    pub metadata_url: String,
    /// The tables with the policy, which says how many GPUs a size has.
    pub store: Store,
    /// Runs the reads of the tables for the machines' threads.
    pub runtime: Handle,
    /// Whether machines run the commands of `launch.user_data`.
    pub user_data: bool,
    /// The variables of agents and jobs: PATH, the filter of the log, settings of SDKs, docker and podman, and the keys of S3.
    pub variables: Vec<(&'static str, String)>,
}

/// The machines that are up. Cheap to clone.
#[derive(Clone)]
pub struct LocalMachines(Arc<Host>);

struct Host {
    settings: MachineSettings,
    up: Mutex<Up>,
    /// Gets the instance id of each machine that powered itself off.
    powered_off: mpsc::UnboundedSender<String>,
}

#[derive(Debug, Default)]
struct Up {
    machines: BTreeMap<String, Arc<LocalMachine>>,
    closed: bool,
}

#[derive(Debug)]
struct LocalMachine {
    /// A number that no other machine has while this one is up.
    number: u32,
    start: MachineStart,
    dir: PathBuf,
    log: PathBuf,
    orders: Mutex<MachineOrders>,
    ordered: Condvar,
}

#[derive(Debug, Default)]
struct MachineOrders {
    stop: Option<Stop>,
    /// When EC2 will terminate the instance.
    interrupt_at: Option<Time>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    /// The agent gets time to end its jobs.
    Orderly,
    Now,
}

impl LocalMachines {
    /// Starts without machines. The receiver gets the instance ids of machines that power themselves off. Processes and
    /// files of an earlier, killed system in the directory are ended and removed.
    pub fn new(settings: MachineSettings) -> anyhow::Result<(Self, mpsc::UnboundedReceiver<String>)> {
        processes::kill_all(|| processes::of_machine(&settings.dir));
        fresh_directory(&settings.dir, OPEN)?;
        let (powered_off, receiver) = mpsc::unbounded_channel();
        Ok((Self(Arc::new(Host { settings, up: Mutex::default(), powered_off })), receiver))
    }

    /// How this machine was started, and when EC2 will terminate its instance, if that was announced. `None` if no such machine
    /// is up.
    pub fn metadata(&self, instance_id: &str) -> Option<(MachineStart, Option<Time>)> {
        let machine = self.0.up().machines.get(instance_id).cloned()?;
        let interrupt_at = machine.orders().interrupt_at;
        Some((machine.start.clone(), interrupt_at))
    }

    pub fn processes(&self) -> usize {
        processes::of_machine(&self.0.settings.dir).len()
    }

    /// Takes all machines down, starts no new ones, and returns when all are down.
    pub async fn shut_down(&self) {
        self.close(Stop::Orderly);
        while !self.0.up().machines.is_empty() {
            tokio::time::sleep(CHECK).await;
        }
    }

    /// Takes all machines down at once. The agents get no time to end their jobs, and the call does not wait.
    pub fn kill(&self) {
        self.close(Stop::Now);
    }

    fn close(&self, stop: Stop) {
        let mut up = self.0.up();
        up.closed = true;
        for machine in up.machines.values() {
            machine.order(stop);
        }
    }
}

impl Host {
    fn up(&self) -> MutexGuard<'_, Up> {
        self.up.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a machine from start to end. Each machine has its own thread, because the kernel ends the agent when the
    /// thread that started it ends.
    fn run(&self, machine: &LocalMachine) {
        let powered_off = machine.run(&self.settings);
        let left = processes::kill_all(|| processes::of_machine(&machine.dir));
        if left > 0 {
            tracing::error!(
                instance_id = machine.start.instance_id,
                left,
                "some processes of a machine cannot be ended"
            );
        }
        if let Err(error) = remove_tree(&machine.dir) {
            tracing::warn!(dir = %machine.dir.display(), %error, "the directory of a machine cannot be removed");
        }
        self.up().machines.remove(&machine.start.instance_id);
        if powered_off {
            // An error means that the whole system is ending.
            let _ = self.powered_off.send(machine.start.instance_id.clone());
        }
    }
}

impl Machines for LocalMachines {
    fn start(&self, start: MachineStart) {
        let mut up = self.0.up();
        if up.closed {
            return;
        }
        let settings = &self.0.settings;
        let instance_id = start.instance_id.clone();
        let is_free = |number: &u32| up.machines.values().all(|m| m.number != *number);
        let machine = Arc::new(LocalMachine {
            number: (0..u32::MAX).find(is_free).unwrap_or(0),
            dir: settings.dir.join(&instance_id),
            log: settings.logs.join(format!("{instance_id}.log")),
            start,
            orders: Mutex::default(),
            ordered: Condvar::new(),
        });
        let (inner, runs) = (Arc::clone(&self.0), Arc::clone(&machine));
        match thread::Builder::new().name("machine".to_owned()).spawn(move || inner.run(&runs)) {
            Ok(_) => _ = up.machines.insert(instance_id, machine),
            Err(error) => tracing::error!(instance_id, %error, "a machine does not boot: it cannot get a thread"),
        }
    }

    fn stop(&self, instance_id: &str) {
        if let Some(machine) = self.0.up().machines.get(instance_id) {
            machine.order(Stop::Orderly);
        }
    }

    fn warn(&self, instance_id: &str, at: Time) {
        if let Some(machine) = self.0.up().machines.get(instance_id) {
            machine.orders().interrupt_at = Some(at);
        }
    }

    fn console(&self, instance_id: &str) -> Option<String> {
        // The stand-in asks for its own ids only. Anything else must not become part of a path.
        if !instance_id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-') {
            return None;
        }
        let mut log = File::open(self.0.settings.logs.join(format!("{instance_id}.log"))).ok()?;
        let length = log.metadata().ok()?.len();
        log.seek(SeekFrom::Start(length.saturating_sub(CONSOLE_BYTES))).ok()?;
        let mut tail = Vec::new();
        log.take(CONSOLE_BYTES).read_to_end(&mut tail).ok()?;
        Some(String::from_utf8_lossy(&tail).into_owned())
    }
}

impl LocalMachine {
    fn orders(&self) -> MutexGuard<'_, MachineOrders> {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn order(&self, stop: Stop) {
        self.orders().stop = Some(stop);
        self.ordered.notify_all();
    }

    /// Waits for an order to stop; `None` if none came in this time.
    fn wait(&self, at_most: Duration) -> Option<Stop> {
        let waited = self.ordered.wait_timeout_while(self.orders(), at_most, |orders| orders.stop.is_none());
        waited.unwrap_or_else(PoisonError::into_inner).0.stop
    }

    /// Runs the agent until the machine must stop, and restarts it if it fails. True if the machine powered itself off.
    fn run(&self, settings: &MachineSettings) -> bool {
        let boot_id = format!("{:032x}", Rng::real().bits());
        match self.boot(settings) {
            Ok(true) => {}
            Ok(false) => return false,
            Err(error) => {
                // As in EC2: an instance whose user data fails stays up, and its node never registers.
                self.note(&format!("nodekeeper local: the agent is not started: {error}"));
                while self.wait(Duration::from_secs(3600)).is_none() {}
                return false;
            }
        }
        loop {
            match self.agent(settings, &boot_id).and_then(|child| self.watch(child)) {
                Ok(None) => return false,
                Ok(Some(_)) if self.dir.join(POWERED_OFF).exists() => return true,
                Ok(Some(status)) => {
                    self.note(&format!("nodekeeper local: the agent ended with {status} and is restarted"))
                }
                Err(error) => self.note(&format!("nodekeeper local: the agent cannot be started: {error}")),
            }
            if self.wait(RESTART).is_some() {
                return false;
            }
        }
    }

    /// Does what the user data does: writes the node file, and runs the commands of `launch.user_data` to their end. Returns
    /// `false` if the machine was told to stop meanwhile.
    fn boot(&self, settings: &MachineSettings) -> io::Result<bool> {
        let Some(file) = node_file_in(&self.start.user_data) else {
            return Err(io::Error::other("its user data has no node file"));
        };
        new_directory(&self.dir, OPEN)?;
        new_directory(&self.dir.join("data"), OPEN)?;
        new_file(&self.dir.join("node.json"))?.write_all(&serde_json::to_vec(&file)?)?;
        // `nodekeeper exec` starts this program.
        std::os::unix::fs::symlink(&settings.agent, self.dir.join("agent"))?;
        if let Some(gpus) = self.gpus(settings) {
            new_file(&self.dir.join(GPUS))?.write_all(format!("{gpus:#}\n").as_bytes())?;
        }
        let commands = commands_in(&self.start.user_data);
        if !settings.user_data || commands.trim().is_empty() {
            return Ok(true);
        }
        let script = self.dir.join("user-data");
        new_file(&script)?.write_all(commands.as_bytes())?;
        let mut shell = self.program(settings, Path::new("/bin/sh"))?;
        shell.arg(&script).env("NODEKEEPER_LOCAL", "1");
        let failed = |why: String| io::Error::other(format!("{why}; its output is in {}", self.log.display()));
        let shell = shell.spawn().map_err(|e| failed(format!("launch.user_data cannot be run: {e}")))?;
        match self.watch(shell)? {
            None => Ok(false),
            Some(status) if status.success() => Ok(true),
            Some(status) => Err(failed(format!("launch.user_data ended with {status}"))),
        }
    }

    /// The GPUs that the machine pretends to have, in the form of `--gpus-from`. Their number and type are those of the policy that
    /// is stored now. `None` if its size has none.
    fn gpus(&self, settings: &MachineSettings) -> Option<Value> {
        let control = settings.runtime.block_on(settings.store.control()).ok()?;
        let (policy, _) = control.checked_policy().ok()?;
        let (id, size) = (&self.start.instance_id, self.start.tags.get(SIZE_TAG)?);
        let size = policy.size.into_iter().find(|s| s.name == *size && s.instance_type == self.start.instance_type)?;
        let model = size.kind.gpu_type.as_deref().unwrap_or("pretended");
        let gpu = |n| json!({"uuid": format!("GPU-{id}-{n}"), "model": model, "sick": false});
        (size.capacity.gpus > 0).then(|| (0..size.capacity.gpus).map(gpu).collect())
    }

    fn note(&self, line: &str) {
        tracing::warn!(instance_id = self.start.instance_id, "{line}");
        let _ = log_file(&self.log).and_then(|mut log| writeln!(log, "{line}"));
    }

    fn agent(&self, settings: &MachineSettings, boot_id: &str) -> io::Result<Child> {
        let mut command = self.program(settings, &settings.agent)?;
        let id = &self.start.instance_id;
        command.arg("--config").arg(self.dir.join("node.json")).arg("--data-dir").arg(self.dir.join("data"));
        command.args(["--instance-id", id, "--boot-id", boot_id]);
        command.args(["--imds-url", &format!("{}/{id}", settings.metadata_url)]);
        command.args(["--address", &address(self.number).to_string(), "--stop-work-on-exit"]);
        command.args(settings.isolation.agent_options(self.number));
        if self.dir.join(GPUS).exists() {
            command.arg("--gpus-from").arg(self.dir.join(GPUS));
        }
        command.args(["--on-gone", &format!("touch \"$HOME/{POWERED_OFF}\"")]);
        command.spawn()
    }

    /// A program of this machine. Its output goes to the machine's log.
    fn program(&self, settings: &MachineSettings, program: &Path) -> io::Result<Command> {
        let mut command = match death_signal_wrapper() {
            Some(setpriv) => {
                let mut command = Command::new(setpriv);
                // The agent ends its jobs even if this program is killed.
                command.args(["--pdeathsig", "TERM", "--"]).arg(program);
                command
            }
            None => Command::new(program),
        };
        command.env_clear().env("HOME", &self.dir).envs(settings.variables.iter().map(|(name, value)| (name, value)));
        let log = log_file(&self.log)?;
        command.current_dir(&self.dir).process_group(0).stdin(Stdio::null());
        command.stdout(log.try_clone()?).stderr(log);
        Ok(command)
    }

    /// Waits until the program ends by itself, and returns its status; `None` if the machine must
    /// stop and the program has ended or was killed.
    fn watch(&self, mut program: Child) -> io::Result<Option<ExitStatus>> {
        let mut asked_at: Option<Instant> = None;
        loop {
            if let Some(status) = program.try_wait()? {
                return Ok(asked_at.is_none().then_some(status));
            }
            match (self.wait(CHECK), asked_at) {
                (None, _) => {}
                (Some(Stop::Orderly), None) => {
                    asked_at = Some(Instant::now());
                    if let Ok(pid) = i32::try_from(program.id()) {
                        let _has_ended = kill(Pid::from_raw(pid), Signal::SIGTERM);
                    }
                }
                (Some(Stop::Orderly), Some(since)) if since.elapsed() < GRACE => thread::sleep(CHECK),
                (Some(_), _) => {
                    program.kill()?;
                    program.wait()?;
                    return Ok(None);
                }
            }
        }
    }
}
/// Where util-linux installs `setpriv`. The `setpriv` of BusyBox cannot set a parent death signal, so each path is
/// tried before use.
const SETPRIV: [&str; 2] = ["/usr/bin/setpriv", "/bin/setpriv"];

/// The path of a `setpriv` that can set a parent death signal, if this machine has one.
fn death_signal_wrapper() -> Option<&'static str> {
    static WRAPPER: OnceLock<Option<&str>> = OnceLock::new();
    *WRAPPER.get_or_init(|| {
        let found = SETPRIV.into_iter().find(|path| {
            let tried = Command::new(path).args(["--pdeathsig", "KILL", "true"]).stdin(Stdio::null()).output();
            tried.is_ok_and(|done| done.status.success())
        });
        if found.is_none() {
            tracing::warn!(
                "no setpriv of util-linux at {}: if this program is killed, machines go on; install util-linux",
                SETPRIV.join(" or ")
            );
        }
        found
    })
}

/// The address of a machine. All machines run on this computer, and each has a loopback address of its own, so that the members
/// of a job can use the same port.
fn address(number: u32) -> Ipv4Addr {
    const FIRST: u32 = u32::from_be_bytes([127, 1, 0, 1]);
    // One computer runs far fewer machines than there are such addresses.
    Ipv4Addr::from(FIRST.saturating_add(number.min(0x00fe_ffff)))
}
