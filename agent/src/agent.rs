//! The parts put together: what they share, and how it all ends.
//!
//! Guarantees: what is changed through [`Shared::update`] is on disk before anybody sees it;
//! the agent's own orderly end leaves allocs running, unless told otherwise.
//! Does not: know the protocol, or processes.

use crate::busy;
use crate::client::Client;
use crate::config::{Args, ConfigError, Runtime};
use crate::control;
use crate::handles::Places;
use crate::imds::{self, Imds, ImdsError};
use crate::protocol::{Durable, Identity, Node, Seen, Work};
use crate::runner::{Runner, Setup};
use crate::state::{DataDir, StateError};
use crate::sweep;
use shared::wire::NodeFile;
use std::future::Future;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::process::Command;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

/// How often the machine is looked at.
const LOOK: Duration = Duration::from_millis(200);

/// How much longer than its kill timeout an alloc may take to end, when all must end.
const LAST_GRACE: Duration = Duration::from_secs(10);

/// Why the agent cannot start.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The command line or the node file.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The data directory.
    #[error(transparent)]
    State(#[from] StateError),
    /// The instance metadata.
    #[error(transparent)]
    Imds(#[from] ImdsError),
    /// HTTP cannot be set up.
    #[error("cannot set up HTTP: {0}; are the system's certificates installed?")]
    Http(#[from] reqwest::Error),
}

/// Everything the agent starts from: nothing is read from the surroundings later.
#[derive(Clone, Debug)]
pub struct Config {
    /// The node file.
    pub node: NodeFile,
    /// The command line.
    pub args: Args,
    /// Which boot this is.
    pub boot_id: String,
    /// This program, to start supervisors with.
    pub program: PathBuf,
}

/// How the agent ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The node is no more; all work was stopped and `--on-gone` was run.
    Gone,
    /// It was asked to end.
    Stopped,
}

/// What the loops share.
#[derive(Debug)]
pub struct Shared {
    node: Mutex<Node>,
    data: DataDir,
    /// The last change could not be saved.
    unsaved: AtomicBool,
    heard: Mutex<Instant>,
    /// Heartbeat now.
    pub urgent: Notify,
    /// There may be something to report.
    pub changed: Notify,
    /// Report handles soon.
    pub sweep: Notify,
}

impl Shared {
    /// Looks at the node.
    pub fn read<T>(&self, look: impl FnOnce(&Node) -> T) -> T {
        look(&lock(&self.node))
    }

    /// Changes the node: on disk first, then in memory. If it cannot be saved, it did not
    /// happen.
    pub fn update<T>(&self, change: impl FnOnce(&mut Node) -> T) -> Result<T, StateError> {
        let mut node = lock(&self.node);
        let mut next = node.clone();
        let result = change(&mut next);
        if next.durable != node.durable {
            self.save(&next.durable)?;
        }
        *node = next;
        Ok(result)
    }

    /// Stops all work on the agent's own account, and answers how much there was left to stop. Whether
    /// that can be saved or not: an agent that starts again would see the same.
    fn stop_all(&self, why: &str) -> usize {
        let mut node = lock(&self.node);
        let stopped = node.stop_all(why);
        if stopped > 0
            && let Err(error) = self.save(&node.durable)
        {
            tracing::error!(%error, "cannot save that work is stopped: stopping it all the same");
        }
        stopped
    }

    fn save(&self, durable: &Durable) -> Result<(), StateError> {
        let saved = self.data.save(durable);
        self.unsaved.store(saved.is_err(), Ordering::Relaxed);
        saved
    }

    /// Whether what the node is told can be kept: after a failure, whether it can again.
    pub fn can_save(&self) -> Result<(), StateError> {
        if self.unsaved.load(Ordering::Relaxed) { self.save(&lock(&self.node).durable) } else { Ok(()) }
    }

    /// The control plane answered.
    pub fn heard_now(&self) {
        *lock(&self.heard) = Instant::now();
    }

    /// When it last did.
    pub fn last_heard(&self) -> Instant {
        *lock(&self.heard)
    }
}

/// A panic while it was held left the old value: a change replaces it as a whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs the agent until the node is gone or `shutdown` is.
pub async fn run(config: Config, shutdown: impl Future<Output = ()>) -> Result<Outcome, AgentError> {
    let Config { node: file, args, boot_id, program } = config;
    let imds = if args.no_imds { None } else { Some(Imds::new(&args.imds_url)?) };
    let identity = identity(&args, imds.as_ref()).await?;
    let data = DataDir::open(&args.data_dir)?;
    let durable = data.load(file.node_id, &boot_id)?;
    data.save(&durable)?;
    tracing::info!(
        node_id = %file.node_id, instance_id = identity.instance_id, allocs = durable.allocs.len(),
        registered = durable.incarnation.is_some(), "the agent starts"
    );
    let client = Client::new(file.node_id, file.token.clone())?;
    let job_user = args.job_user.clone();
    let setup = Setup { node_id: file.node_id, boot_id, runtime: args.runtime, job_user, program };
    let mut runner = Runner::new(setup, &data);
    let places = Places::new(&data, args.runtime, file.node_id);
    let sweeper = sweep::Sweeper::new(places, usize::from(args.max_destroys), args.destroy_timeout_s);
    let shared = Shared {
        node: Mutex::new(Node::new(identity, durable)),
        data,
        unsaved: AtomicBool::new(false),
        heard: Mutex::new(Instant::now()),
        urgent: Notify::new(),
        changed: Notify::new(),
        sweep: Notify::new(),
    };
    // What is on the machine is known before the first report is made of it.
    look(&shared, &mut runner).await;
    let outcome = tokio::select! {
        () = control::run(&shared, &client, &file.heartbeat_url) => Outcome::Gone,
        () = sweeper.run(&shared, &client, &file.sweep_url) => Outcome::Gone,
        () = supervise(&shared, &mut runner, args.stop_after_s) => Outcome::Stopped,
        () = watch_interruption(&shared, imds) => Outcome::Stopped,
        () = watch_busy(&shared, args.busy_check.as_deref(), args.busy_check_every_s) => Outcome::Stopped,
        () = shutdown => Outcome::Stopped,
    };
    match outcome {
        Outcome::Gone => {
            tracing::warn!("this node is no more: stopping all work");
            stop_everything(&shared, &mut runner, args.runtime, "the node is no more").await;
            on_gone(&args.on_gone).await;
        }
        Outcome::Stopped if args.stop_work_on_exit => {
            stop_everything(&shared, &mut runner, args.runtime, "the agent was ended with its work").await;
        }
        Outcome::Stopped => tracing::info!("the agent ends; allocs go on"),
    }
    Ok(outcome)
}

async fn identity(args: &Args, imds: Option<&Imds>) -> Result<Identity, AgentError> {
    let instance_id = match (&args.instance_id, imds) {
        (Some(id), _) => id.clone(),
        (None, Some(imds)) => imds.instance_id().await?,
        (None, None) => return Err(ConfigError::NoInstanceId.into()),
    };
    let address = match (&args.address, imds) {
        (Some(address), _) => Some(address.clone()),
        (None, Some(imds)) => imds.address().await?,
        (None, None) => None,
    };
    Ok(Identity { instance_id, address })
}

/// Sees how allocs are, and does what is to be done about them.
async fn look(shared: &Shared, runner: &mut Runner) {
    for id in shared.read(Node::unfinished) {
        let seen = match runner.observe(id).await {
            Ok(seen) => seen,
            Err(error) => {
                tracing::warn!(alloc_id = %id, %error, "its directory cannot be read");
                continue;
            }
        };
        if shared.read(|n| *n.seen(id) == seen) {
            continue;
        }
        let end = matches!(seen, Seen::Ended(_));
        match shared.update(|n| n.observe(id, seen)) {
            Ok(_) => shared.changed.notify_one(),
            Err(error) => tracing::error!(%error, "cannot save"),
        }
        if end {
            tracing::info!(alloc_id = %id, "ended");
            shared.sweep.notify_one();
        }
    }
    for work in shared.read(Node::work) {
        match work {
            Work::Run(order) => runner.run(&order),
            Work::Stop(order, why) => runner.stop(&order, &why),
        }
    }
    runner.forget_all_but(|id| shared.read(|n| n.durable.allocs.contains_key(&id)));
}

/// Looks again and again, and at the silence of the control plane.
async fn supervise(shared: &Shared, runner: &mut Runner, stop_after: Option<Duration>) {
    loop {
        look(shared, runner).await;
        if let Some(limit) = stop_after
            && shared.last_heard().elapsed() > limit
        {
            let why = format!("stopped: no answer from the control plane for {} s", limit.as_secs_f64());
            let allocs = shared.stop_all(&why);
            if allocs > 0 {
                tracing::error!(allocs, "{why}");
            }
        }
        sleep(LOOK).await;
    }
}

/// Asks EC2 whether it takes the instance, until it does.
async fn watch_interruption(shared: &Shared, imds: Option<Imds>) {
    let Some(imds) = imds else { return std::future::pending().await };
    loop {
        // Without an answer nothing is known, and the next question is soon.
        if let Ok(Some(at)) = imds.interrupt_at().await
            && shared.read(|n| n.interrupt_at) != Some(at)
        {
            tracing::warn!(interrupt_at = %at, "EC2 takes this instance away");
            let saved = shared.update(|n| n.interrupt_at = Some(at));
            saved.map_or_else(|error| tracing::error!(%error, "cannot save"), |()| shared.urgent.notify_one());
        }
        sleep(imds::POLL).await;
    }
}

/// Asks whether other work keeps the node busy, and says so at once when that changes.
async fn watch_busy(shared: &Shared, command: Option<&str>, every: Duration) {
    let Some(command) = command else { return std::future::pending().await };
    loop {
        let busy = Some(busy::ask(command).await);
        if shared.read(|n| n.busy) != busy {
            let saved = shared.update(|n| n.busy = busy);
            saved.map_or_else(|error| tracing::error!(%error, "cannot save"), |()| shared.urgent.notify_one());
        }
        sleep(every).await;
    }
}

/// Stops every alloc and waits until none is left: TERM, KILL after its kill timeout.
async fn stop_everything(shared: &Shared, runner: &mut Runner, runtime: Runtime, why: &str) {
    shared.stop_all(why);
    let orders = shared.read(|n| n.durable.allocs.values().map(|a| a.order.kill_timeout_s).collect::<Vec<_>>());
    let longest = Duration::from_secs(orders.into_iter().max().unwrap_or(0).min(86_400));
    let docker = if runtime == Runtime::Docker { Duration::from_secs(60) } else { Duration::ZERO };
    let deadline = Instant::now() + longest + docker + LAST_GRACE;
    loop {
        look(shared, runner).await;
        let left = shared.read(Node::unfinished);
        if left.is_empty() {
            return;
        }
        if Instant::now() > deadline {
            tracing::error!(left = left.len(), "these do not end: killing them");
            left.into_iter().for_each(|id| runner.kill(id));
            return;
        }
        sleep(LOOK / 4).await;
    }
}

async fn on_gone(command: &str) {
    tracing::warn!(command, "running what is to be run when the node is gone");
    match Command::new("sh").args(["-c", command]).status().await {
        Ok(status) if status.success() => {}
        Ok(status) => tracing::error!(%status, command, "failed"),
        Err(error) => tracing::error!(%error, command, "cannot be run"),
    }
}
