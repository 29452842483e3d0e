//! A stand-in for AWS Lambda on this machine: it runs the very binaries that are deployed.
//!
//! Each function is a process built on `lambda_runtime` that polls the Runtime API served here (`runtime_api.rs`).
//! Callers come through the Invoke API as the AWS SDK and `aws lambda invoke` speak it (`invoke_api.rs`), through
//! function URLs (`url.rs`), by schedule (`event.rs`), or from this program ([`Lambda::invoke`]).
//!
//! Guarantees: one invocation at a time per process; true deadlines, kept by killing; function errors, time-outs and
//! crashes look to the caller as in AWS; no process outlives
//! [`Lambda::shutdown`] or this program.
//!
//! Deliberately absent: authorisation (every local caller may do everything), memory limits, response streaming,
//! events for extensions (they may register and wait), versions and aliases (a qualifier is ignored), reserved
//! concurrency. Unlike in AWS, callers beyond `max_concurrency` wait for a while instead of being refused at once.

mod error;
mod event;
mod function;
mod invoke_api;
mod process;
mod runtime_api;
mod stats;
#[cfg(test)]
mod tests;
mod url;

pub use error::{ConfigError, FunctionError, InvokeError};
pub use event::Schedule;
pub(super) use process::wrapper as death_signal_wrapper;
pub use stats::{LastRun, Stats};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::serve::ListenerExt;
use function::Function;
use futures::StreamExt;
use serde_json::Value;
use shared::time::Time;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::sync::watch;

/// Where the functions' lines go: the function's name and one line of its output.
pub type LogSink = Arc<dyn Fn(&str, &str) + Send + Sync>;

/// Where the time comes from.
pub type Clock = Arc<dyn Fn() -> Time + Send + Sync>;

/// What AWS takes at most as the payload of a synchronous invocation, and as a function's answer.
const MAX_PAYLOAD: usize = 6 * 1024 * 1024;

/// The functions to run and when.
#[derive(Clone, Debug)]
pub struct Config {
    /// All functions; names are unique.
    pub functions: Vec<FunctionConfig>,
    /// What runs by the clock.
    pub schedules: Vec<Schedule>,
    /// The region in the functions' environment and ARNs.
    pub region: String,
    /// What every function's environment begins with: `PATH`, `HOME` and `RUST_LOG` of this program. Nothing else of
    /// this program's environment reaches a function.
    pub inherited_env: BTreeMap<String, String>,
    /// How long a failed asynchronous invocation waits before its first and its second retry.
    pub event_retry_ms: [u64; 2],
}

impl Config {
    /// The waits between the attempts of an asynchronous invocation in AWS.
    pub const AWS_EVENT_RETRY_MS: [u64; 2] = [60_000, 120_000];
}

/// One function.
#[derive(Clone, Debug)]
pub struct FunctionConfig {
    /// Its name, in paths and ARNs.
    pub name: String,
    /// The binary.
    pub program: PathBuf,
    /// Its environment beyond what Lambda itself sets.
    pub env: BTreeMap<String, String>,
    /// An invocation is cut off after this time.
    pub timeout_ms: u64,
    /// What the function is told it has; nothing enforces it here.
    pub memory_mb: u32,
    /// At most so many processes.
    pub max_concurrency: usize,
    /// At most so many invocations wait while all processes are busy; more are refused with 429.
    pub max_waiting: usize,
    /// How often a failed asynchronous invocation is retried: 0 to 2, in AWS 2 unless configured.
    pub event_retries: usize,
}

/// The running stand-in. Dropping it stops everything too, but does not wait for that.
#[derive(Debug)]
pub struct Lambda {
    functions: Arc<Functions>,
}

/// What all parts share.
struct Host {
    address: SocketAddr,
    region: String,
    inherited_env: BTreeMap<String, String>,
    event_retry_ms: [u64; 2],
    clock: Clock,
    log: LogSink,
    /// Turns true once.
    stop: watch::Sender<bool>,
}

impl Host {
    fn stop_signal(&self) -> StopSignal {
        StopSignal(self.stop.subscribe())
    }
}

/// Tells a task to end. The shutdown waits until every task has dropped its own.
struct StopSignal(watch::Receiver<bool>);

impl StopSignal {
    async fn raised(&mut self) {
        // An error means that the sender is gone: the same thing.
        let _ = self.0.wait_for(|stop| *stop).await;
    }
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Host").field("address", &self.address).finish_non_exhaustive()
    }
}

/// All functions by name: the state of every HTTP handler.
#[derive(Debug)]
struct Functions {
    by_name: BTreeMap<String, Arc<Function>>,
    host: Arc<Host>,
}

impl Functions {
    fn get(&self, name: &str) -> Result<&Arc<Function>, InvokeError> {
        self.by_name.get(name).ok_or_else(|| InvokeError::UnknownFunction {
            function: name.to_owned(),
            known: self.by_name.keys().map(String::as_str).collect::<Vec<_>>().join(", "),
        })
    }
}

impl Lambda {
    /// Serves `config` at `listener`, which is to be bound to a loopback address, and starts its schedules. Processes
    /// start when they are needed. To be called within a tokio runtime.
    pub fn start(config: Config, listener: TcpListener, log: LogSink, clock: Clock) -> Result<Self, ConfigError> {
        check(&config)?;
        let host = Arc::new(Host {
            address: listener.local_addr()?,
            region: config.region,
            inherited_env: config.inherited_env,
            event_retry_ms: config.event_retry_ms,
            clock,
            log,
            stop: watch::Sender::new(false),
        });
        let by_name = config
            .functions
            .into_iter()
            .map(|function| (function.name.clone(), Arc::new(Function::new(function, Arc::clone(&host)))))
            .collect();
        let lambda = Self { functions: Arc::new(Functions { by_name, host }) };
        for schedule in config.schedules {
            if let Some(function) = lambda.functions.by_name.get(&schedule.function) {
                tokio::spawn(event::keep(schedule, Arc::clone(function), Arc::clone(&lambda.functions.host)));
            }
        }
        tokio::spawn(serve(listener, lambda.router(), lambda.functions.host.stop_signal()));
        Ok(lambda)
    }

    /// The HTTP side: Runtime API, Invoke API and function URLs. [`Lambda::start`] serves it already; a program may
    /// merge it into a router of its own besides.
    pub fn router(&self) -> Router {
        Router::new()
            .merge(runtime_api::routes())
            .merge(invoke_api::routes())
            .merge(url::routes())
            .with_state(Arc::clone(&self.functions))
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.functions.host.address
    }

    /// Where a function's URL begins, without a slash at the end.
    pub fn url(&self, function: &str) -> String {
        format!("http://{}/lambda-url/{function}", self.address())
    }

    /// Runs a function and waits for its answer.
    pub async fn invoke(&self, function: &str, payload: &Value) -> Result<Value, InvokeError> {
        let ticket = self.functions.get(function)?.submit(payload.to_string().into())?;
        let answer = ticket.wait().await?;
        serde_json::from_slice(&answer).map_err(|source| InvokeError::NotJson { function: function.to_owned(), source })
    }

    /// Has a function run soon, with retries, and does not wait: what AWS calls an `Event` invocation.
    pub fn send_event(&self, function: &str, payload: &Value) -> Result<(), InvokeError> {
        event::send(self.functions.get(function)?, &self.functions.host, payload.to_string().into()).map(drop)
    }

    /// What every function has done so far, by name.
    pub fn stats(&self) -> Vec<Stats> {
        self.functions.by_name.values().map(|function| function.stats()).collect()
    }

    /// Stops the schedules, gives up what waits, ends all processes (SIGTERM, after two seconds SIGKILL) and returns
    /// when none is left. Callers that still wait get [`InvokeError::ShuttingDown`].
    pub async fn shutdown(&self) {
        self.stop();
        self.functions.host.stop.closed().await;
    }

    fn stop(&self) {
        for function in self.functions.by_name.values() {
            function.stop();
        }
        self.functions.host.stop.send_replace(true);
    }
}

impl Drop for Lambda {
    fn drop(&mut self) {
        self.stop();
    }
}

fn check(config: &Config) -> Result<(), ConfigError> {
    let mut names = BTreeSet::new();
    for function in &config.functions {
        let name = &function.name;
        let known = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        if !(1..=64).contains(&name.len()) || !name.chars().all(known) {
            return Err(ConfigError::BadName(name.clone()));
        }
        if !names.insert(name.as_str()) {
            return Err(ConfigError::Duplicate(name.clone()));
        }
        for (knob, is_zero) in [
            ("timeout_ms", function.timeout_ms == 0),
            ("max_concurrency", function.max_concurrency == 0),
            ("max_waiting", function.max_waiting == 0),
        ] {
            if is_zero {
                return Err(ConfigError::Zero { function: name.clone(), knob });
            }
        }
    }
    for schedule in &config.schedules {
        if !names.contains(schedule.function.as_str()) {
            return Err(ConfigError::UnknownFunction(schedule.function.clone()));
        }
        if schedule.every_ms == 0 {
            return Err(ConfigError::Zero { function: schedule.function.clone(), knob: "every_ms of a schedule" });
        }
    }
    Ok(())
}

async fn serve(listener: TcpListener, router: Router, mut stop: StopSignal) {
    // Answers are small and waited for: none is held back for more to come.
    let listener = listener.tap_io(|stream| {
        let _ = stream.set_nodelay(true);
    });
    let server = axum::serve(listener, router.into_make_service_with_connect_info::<SocketAddr>());
    // Open connections end with the processes and callers at their other ends.
    tokio::select! {
        ended = server => {
            if let Err(error) = ended {
                tracing::error!(%error, "the local Lambda no longer listens: restart it");
            }
        }
        () = stop.raised() => {}
    }
}

/// A body larger than allowed, or one that broke off.
enum Unread {
    TooLarge,
    Broken,
}

/// Reads a body of at most `limit` bytes. A larger one is read on for a while and thrown away, since many clients
/// take no answer before they have sent everything.
async fn read_body(body: Body, limit: usize) -> Result<Bytes, Unread> {
    let mut chunks = body.into_data_stream();
    let mut first = Bytes::new();
    let mut rest = Vec::new();
    let mut size = 0usize;
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk.map_err(|_| Unread::Broken)?;
        size = size.saturating_add(chunk.len());
        if size > limit.saturating_mul(4) {
            break;
        }
        if first.is_empty() {
            first = chunk;
        } else if size <= limit {
            // Most bodies are one chunk and never copied.
            if rest.is_empty() {
                rest.extend_from_slice(&first);
            }
            rest.extend_from_slice(&chunk);
        }
    }
    match size {
        _ if size > limit => Err(Unread::TooLarge),
        _ if rest.is_empty() => Ok(first),
        _ => Ok(rest.into()),
    }
}
