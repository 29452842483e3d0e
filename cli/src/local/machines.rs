//! Machines of this machine: behind each instance of the stand-in stands a real agent process.
//!
//! A machine is a directory and an agent in it, as the launch template's image would start it:
//! with the node file of its user data, started again when it fails, ended with its instance.
//! What the agent would ask the instance metadata service is answered by [`LocalMachines::metadata`].
//!
//! Guarantees: when a machine is down nothing that ran on it is left, jobs that made themselves
//! daemons included, and its directory is gone; its log stays.
//! Does not: run `launch.user_data`, or hold a machine to the size it pretends to be.

use super::ec2::{MachineStart, Machines};
use super::lambda::death_signal_wrapper;
use super::processes;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use shared::chance::Chance;
use shared::cloud::node_file_in;
use shared::time::Time;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// How long an agent has to end its work when its machine goes down.
const GRACE: Duration = Duration::from_secs(2);
/// An agent that fails is started again after this time, as a service manager would.
const RESTART: Duration = Duration::from_secs(1);
/// From one look at an agent to the next.
const LOOK: Duration = Duration::from_millis(50);
/// How much of a log is the console: what EC2 keeps.
const CONSOLE_BYTES: u64 = 64 * 1024;
/// Made by an agent whose node is no more, in its home: the machine is off then.
const POWERED_OFF: &str = "powered-off";

/// What all machines have in common.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The agent's binary.
    pub agent: PathBuf,
    /// Where each machine gets a directory.
    pub dir: PathBuf,
    /// Where each machine's log stands.
    pub logs: PathBuf,
    /// Where [`LocalMachines::metadata`] is served: `{this}/{instance_id}/latest/…`.
    pub metadata_url: String,
    /// `PATH` for agents and jobs.
    pub path: Option<String>,
    /// `RUST_LOG` for agents.
    pub rust_log: Option<String>,
}

/// The machines that are up. Cheap to clone.
#[derive(Clone, Debug)]
pub struct LocalMachines(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    settings: Settings,
    up: Mutex<Up>,
    /// Told when a machine powered itself off.
    powered_off: mpsc::UnboundedSender<String>,
}

#[derive(Debug, Default)]
struct Up {
    machines: BTreeMap<String, Arc<Machine>>,
    closed: bool,
}

#[derive(Debug)]
struct Machine {
    start: MachineStart,
    dir: PathBuf,
    log: PathBuf,
    orders: Mutex<Orders>,
    told: Condvar,
}

#[derive(Debug, Default)]
struct Orders {
    stop: Option<Stop>,
    /// When EC2 takes it back.
    interrupt_at: Option<Time>,
}

/// How a machine goes down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    /// With a moment for its agent.
    Orderly,
    Now,
}

/// What the instance metadata service says of a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metadata {
    /// Its address.
    pub private_ip: String,
    /// When EC2 takes it back, if it does.
    pub interrupt_at: Option<Time>,
}

impl LocalMachines {
    /// No machines yet. The receiver is told the instance ids of those that power themselves off.
    /// What an earlier, killed system left in the directory is ended and removed.
    pub fn new(settings: Settings) -> io::Result<(Self, mpsc::UnboundedReceiver<String>)> {
        fs::create_dir_all(&settings.dir)?;
        let settings = Settings { dir: settings.dir.canonicalize()?, ..settings };
        processes::kill_all(|| processes::of_machine(&settings.dir));
        fs::remove_dir_all(&settings.dir)?;
        fs::create_dir_all(&settings.dir)?;
        let (powered_off, receiver) = mpsc::unbounded_channel();
        Ok((Self(Arc::new(Inner { settings, up: Mutex::default(), powered_off })), receiver))
    }

    /// What the metadata service of this machine says; `None` without such a machine.
    pub fn metadata(&self, instance_id: &str) -> Option<Metadata> {
        let machine = self.0.up().machines.get(instance_id).cloned()?;
        let interrupt_at = machine.orders().interrupt_at;
        Some(Metadata { private_ip: machine.start.private_ip.clone(), interrupt_at })
    }

    /// The processes that belong to any machine.
    pub fn processes(&self) -> usize {
        processes::of_machine(&self.0.settings.dir).len()
    }

    /// Takes all machines down, starts no more, and returns when all are down.
    pub async fn shut_down(&self) {
        self.close(Stop::Orderly);
        while !self.0.up().machines.is_empty() {
            tokio::time::sleep(LOOK).await;
        }
    }

    /// The same without a moment for the agents, and without waiting.
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

impl Inner {
    fn up(&self) -> MutexGuard<'_, Up> {
        self.up.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The whole life of a machine, on a thread of its own: the kernel ties the end of the agent
    /// to the end of the thread that started it.
    fn live(&self, machine: &Machine) {
        let powered_off = machine.live(&self.settings);
        let left = processes::kill_all(|| processes::of_machine(&machine.dir));
        if left > 0 {
            tracing::error!(instance_id = machine.start.instance_id, left, "processes of a machine cannot be ended");
        }
        if let Err(error) = fs::remove_dir_all(&machine.dir) {
            tracing::warn!(dir = %machine.dir.display(), %error, "a machine's directory stays");
        }
        self.up().machines.remove(&machine.start.instance_id);
        if powered_off {
            // Nobody listens any more when everything ends.
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
        let machine = Arc::new(Machine {
            dir: settings.dir.join(&instance_id),
            log: settings.logs.join(format!("{instance_id}.log")),
            start,
            orders: Mutex::default(),
            told: Condvar::new(),
        });
        let (inner, lives) = (Arc::clone(&self.0), Arc::clone(&machine));
        match thread::Builder::new().name("machine".to_owned()).spawn(move || inner.live(&lives)) {
            Ok(_) => _ = up.machines.insert(instance_id, machine),
            Err(error) => tracing::error!(instance_id, %error, "a machine does not boot: no thread for it"),
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
        // The stand-in asks for ids of its own only; a path must not come of anything else.
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

impl Machine {
    fn orders(&self) -> MutexGuard<'_, Orders> {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn order(&self, stop: Stop) {
        self.orders().stop = Some(stop);
        self.told.notify_all();
    }

    /// Waits for an order to stop, and gives it; `None` after so long without one.
    fn wait(&self, at_most: Duration) -> Option<Stop> {
        let waited = self.told.wait_timeout_while(self.orders(), at_most, |orders| orders.stop.is_none());
        waited.unwrap_or_else(PoisonError::into_inner).0.stop
    }

    /// Runs agents until the machine is to stop. True if it powered itself off.
    fn live(&self, settings: &Settings) -> bool {
        let boot_id = format!("{:032x}", Chance::real().bits());
        if let Err(error) = self.boot() {
            // As in EC2: an instance whose user data fails is up, and never heard from.
            self.note(&format!("nodekeeper local: no agent is started: {error}"));
            while self.wait(Duration::from_secs(3600)).is_none() {}
            return false;
        }
        loop {
            match self.agent(settings, &boot_id).and_then(|child| self.watch(child)) {
                Ok(None) => return false,
                Ok(Some(_)) if self.dir.join(POWERED_OFF).exists() => return true,
                Ok(Some(status)) => self.note(&format!("nodekeeper local: the agent ended with {status}: again")),
                Err(error) => self.note(&format!("nodekeeper local: the agent cannot be started: {error}")),
            }
            if self.wait(RESTART).is_some() {
                return false;
            }
        }
    }

    /// What the user data does, but for the commands of `launch.user_data`.
    fn boot(&self) -> io::Result<()> {
        let Some(file) = node_file_in(&self.start.user_data) else {
            return Err(io::Error::other("its user data holds no node file"));
        };
        fs::create_dir_all(self.dir.join("data"))?;
        fs::write(self.dir.join("node.json"), serde_json::to_vec(&file)?)
    }

    fn log(&self) -> io::Result<File> {
        File::options().append(true).create(true).open(&self.log)
    }

    fn note(&self, line: &str) {
        tracing::warn!(instance_id = self.start.instance_id, "{line}");
        let _ = self.log().and_then(|mut log| writeln!(log, "{line}"));
    }

    fn agent(&self, settings: &Settings, boot_id: &str) -> io::Result<Child> {
        let mut command = match death_signal_wrapper() {
            Some(setpriv) => {
                let mut command = Command::new(setpriv);
                // It stops its work even when we are killed.
                command.args(["--pdeathsig", "TERM", "--"]).arg(&settings.agent);
                command
            }
            None => Command::new(&settings.agent),
        };
        let id = &self.start.instance_id;
        command.arg("--config").arg(self.dir.join("node.json")).arg("--data-dir").arg(self.dir.join("data"));
        command.args(["--instance-id", id, "--boot-id", boot_id]);
        command.args(["--imds-url", &format!("{}/{id}", settings.metadata_url)]);
        // All machines are this one.
        command.args(["--address", "127.0.0.1", "--stop-work-on-exit"]);
        command.args(["--on-gone", &format!("touch \"$HOME/{POWERED_OFF}\"")]);
        command.env_clear().env("HOME", &self.dir);
        let given = [("PATH", &settings.path), ("RUST_LOG", &settings.rust_log)];
        command.envs(given.into_iter().filter_map(|(name, value)| Some((name, value.as_ref()?))));
        let log = self.log()?;
        command.current_dir(&self.dir).process_group(0).stdin(Stdio::null());
        command.stdout(log.try_clone()?).stderr(log).spawn()
    }

    /// Waits for the agent's own end, and gives its status; `None` when the machine is to stop
    /// and the agent has ended or was killed.
    fn watch(&self, mut agent: Child) -> io::Result<Option<ExitStatus>> {
        let mut asked: Option<Instant> = None;
        loop {
            if let Some(status) = agent.try_wait()? {
                return Ok(asked.is_none().then_some(status));
            }
            match (self.wait(LOOK), asked) {
                (None, _) => {}
                (Some(Stop::Orderly), None) => {
                    asked = Some(Instant::now());
                    if let Ok(pid) = i32::try_from(agent.id()) {
                        let _gone_is_fine = kill(Pid::from_raw(pid), Signal::SIGTERM);
                    }
                }
                (Some(Stop::Orderly), Some(since)) if since.elapsed() < GRACE => thread::sleep(LOOK),
                (Some(_), _) => {
                    agent.kill()?;
                    agent.wait()?;
                    return Ok(None);
                }
            }
        }
    }
}
