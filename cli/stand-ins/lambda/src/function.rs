//! One function: its processes, the invocations that wait for them, and how they are matched.
//!
//! Flow: [`Function::submit`] puts an invocation into the queue; a process that polls the Runtime API
//! ([`Function::poll`]) gets the first; its answer ([`Function::respond`]) goes to the caller that waits for it. Each
//! process has one task that watches it; only this task kills it.
//!
//! Guarantees: a process works on one invocation at a time; an invocation goes to one process only, and its caller
//! gets exactly one outcome; when a caller learns of a time-out, the process is dead.
//!
//! Does not: run a function twice for one invocation, or end idle processes.

use crate::error::{FunctionError, InvokeError};
use crate::host::Host;
use crate::process::{ProcessSpec, spawn};
use crate::request_id::new_request_id;
use crate::settings::FunctionConfig;
use crate::stats::{Counts, Ended, Stats};
use axum::body::Bytes;
use model::time::{Span, Time};
use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// As in AWS, a new process must poll within this time.
const START_LIMIT: Duration = Duration::from_secs(10);
/// The time between SIGTERM and SIGKILL when the stand-in stops.
const STOP_GRACE: Duration = Duration::from_secs(2);
/// The wait after the first failed start; each further failure doubles it.
const BACK_OFF: Duration = Duration::from_millis(250);
const BACK_OFF_MAX: Duration = Duration::from_secs(10);

/// How an invocation ends. A dropped sender means that the stand-in stops.
pub(crate) type Outcome = Result<Bytes, FunctionError>;

/// A submitted invocation.
#[derive(Debug)]
pub(crate) struct Ticket {
    pub(crate) request_id: Arc<str>,
    pub(crate) outcome: oneshot::Receiver<Outcome>,
}

impl Ticket {
    pub(crate) async fn wait(self) -> Result<Bytes, InvokeError> {
        match self.outcome.await {
            Ok(outcome) => Ok(outcome?),
            Err(_) => Err(InvokeError::ShuttingDown),
        }
    }
}

/// The invocation that a polling process gets.
#[derive(Debug)]
pub(crate) struct Work {
    pub(crate) request_id: Arc<str>,
    pub(crate) payload: Bytes,
    pub(crate) deadline: Time,
}

#[derive(Debug)]
struct Invocation {
    request_id: Arc<str>,
    payload: Bytes,
    origin: Origin,
    answer: oneshot::Sender<Outcome>,
}

/// Who asked for an invocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    Caller,
    Schedule,
}

/// An invocation that a process works on.
#[derive(Debug)]
struct Working {
    request_id: Arc<str>,
    answer: oneshot::Sender<Outcome>,
    since: Instant,
    deadline: Instant,
}

/// The state of a process.
#[derive(Debug)]
enum ProcessState {
    /// The process has not polled yet.
    Starting {
        until: Instant,
    },
    /// The process polls, and there is no work for it.
    Idle(oneshot::Sender<Work>),
    Working(Working),
    /// The process has answered and will poll again.
    Returning {
        until: Instant,
    },
    /// The process exceeded a limit, with or without an invocation, and is being killed.
    Overdue(Option<Working>),
}

#[derive(Debug)]
struct FunctionProcess {
    state: ProcessState,
    polled: bool,
    init_error: Option<FunctionError>,
}

#[derive(Debug, Default)]
struct Pool {
    waiting: VecDeque<Invocation>,
    /// By number. A number is never used again, so a late answer of an ended process cannot count for another one.
    processes: BTreeMap<u64, FunctionProcess>,
    started: u64,
    failed_starts: u32,
    no_start_before: Option<Instant>,
    /// Whether a task waits for `no_start_before`.
    start_planned: bool,
    stopped: bool,
    counts: Counts,
}

/// The process of a poll, or the invocation of an answer, no longer exists.
#[derive(Debug)]
pub(crate) struct Gone;

#[derive(Debug)]
pub(crate) struct Function {
    pub(crate) config: FunctionConfig,
    pub(crate) arn: String,
    host: Arc<Host>,
    pool: Mutex<Pool>,
}

impl Function {
    pub(crate) fn new(config: FunctionConfig, host: Arc<Host>) -> Self {
        let arn = format!("arn:aws:lambda:{}:000000000000:function:{}", host.region, config.name);
        Self { config, arn, host, pool: Mutex::default() }
    }

    /// Queues an invocation, unless the queue is full.
    pub(crate) fn submit(self: &Arc<Self>, payload: Bytes) -> Result<Ticket, InvokeError> {
        let mut pool = self.pool();
        if pool.stopped {
            return Err(InvokeError::ShuttingDown);
        }
        if !self.has_room(&mut pool) {
            pool.counts.throttles += 1;
            return Err(InvokeError::TooManyRequests {
                function: self.config.name.clone(),
                waiting: pool.waiting.len(),
            });
        }
        Ok(self.enqueue(&mut pool, payload, Origin::Caller))
    }

    /// Queues a scheduled run. If one waits already, the run is skipped and counted.
    pub(crate) fn submit_scheduled(self: &Arc<Self>, payload: Bytes) -> Option<Ticket> {
        let mut pool = self.pool();
        if pool.stopped {
            return None;
        }
        if pool.waiting.iter().any(|invocation| invocation.origin == Origin::Schedule) || !self.has_room(&mut pool) {
            pool.counts.skipped += 1;
            return None;
        }
        Some(self.enqueue(&mut pool, payload, Origin::Schedule))
    }

    /// A process asks for work. The work comes through the receiver, perhaps much later. If the receiver fails, the
    /// process should end.
    pub(crate) fn poll(self: &Arc<Self>, number: u64) -> Result<oneshot::Receiver<Work>, Gone> {
        let (poller, work) = oneshot::channel();
        let mut pool = self.pool();
        if pool.stopped {
            return Err(Gone);
        }
        let process = pool.processes.get_mut(&number).ok_or(Gone)?;
        match std::mem::replace(&mut process.state, ProcessState::Idle(poller)) {
            ProcessState::Working(working) => {
                let error =
                    format!("RequestId: {} Error: the next event was asked for before this", working.request_id);
                self.finish(&mut pool, working, Err(FunctionError::new("Runtime.InvalidState", error)));
            }
            ProcessState::Overdue(held) => {
                process.state = ProcessState::Overdue(held);
                return Err(Gone);
            }
            ProcessState::Starting { .. } => {
                process.polled = true;
                pool.failed_starts = 0;
                pool.no_start_before = None;
            }
            // An idle process polls again after the connection of its poll broke.
            ProcessState::Idle(_) | ProcessState::Returning { .. } => {}
        }
        self.dispatch(&mut pool);
        Ok(work)
    }

    /// A process answers. Its invocation may have timed out before.
    pub(crate) fn respond(&self, number: u64, request_id: &str, outcome: Outcome) -> Result<(), Gone> {
        let mut pool = self.pool();
        let process = pool.processes.get_mut(&number).ok_or(Gone)?;
        match &process.state {
            ProcessState::Working(working) if *working.request_id == *request_id => {
                let until = working.deadline;
                if let ProcessState::Working(working) =
                    std::mem::replace(&mut process.state, ProcessState::Returning { until })
                {
                    self.finish(&mut pool, working, outcome);
                }
                Ok(())
            }
            _ => Err(Gone),
        }
    }

    /// A process reports why it cannot start. The waiting callers get the error when the process has ended.
    pub(crate) fn init_error(&self, number: u64, error: FunctionError) -> Result<(), Gone> {
        let mut pool = self.pool();
        pool.processes.get_mut(&number).ok_or(Gone)?.init_error = Some(error);
        Ok(())
    }

    /// Whether a process has this number.
    pub(crate) fn has_process(&self, number: u64) -> bool {
        self.pool().processes.contains_key(&number)
    }

    /// Refuses new invocations and drops waiting ones. The tasks that watch the processes end them.
    pub(crate) fn stop(&self) {
        let mut pool = self.pool();
        pool.stopped = true;
        pool.waiting.clear();
    }

    pub(crate) fn stats(&self) -> Stats {
        let pool = self.pool();
        let counts = &pool.counts;
        Stats {
            function: self.config.name.clone(),
            invocations: counts.invocations,
            errors: counts.errors,
            timeouts: counts.timeouts,
            throttles: counts.throttles,
            skipped: counts.skipped,
            cold_starts: counts.cold_starts,
            processes: pool.processes.len(),
            running: pool
                .processes
                .values()
                .filter(|process| matches!(process.state, ProcessState::Working(_)))
                .count(),
            waiting: pool.waiting.len(),
            last: counts.last.as_ref().map(Ended::to_last_run),
        }
    }

    fn pool(&self) -> MutexGuard<'_, Pool> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn has_room(&self, pool: &mut Pool) -> bool {
        // Some of the waiting invocations get a process at once: they take no place in the queue.
        let working =
            pool.processes.values().filter(|process| matches!(process.state, ProcessState::Working(_))).count();
        let free = self.config.max_concurrency.saturating_sub(working);
        let room = self.config.max_waiting.saturating_add(free);
        if pool.waiting.len() >= room {
            // Callers that hung up take no place either.
            pool.waiting.retain(|invocation| !invocation.answer.is_closed());
        }
        pool.waiting.len() < room
    }

    fn enqueue(self: &Arc<Self>, pool: &mut Pool, payload: Bytes, origin: Origin) -> Ticket {
        let (answer, outcome) = oneshot::channel();
        let request_id: Arc<str> = new_request_id().into();
        pool.waiting.push_back(Invocation { request_id: Arc::clone(&request_id), payload, origin, answer });
        self.dispatch(pool);
        Ticket { request_id, outcome }
    }

    /// Gives waiting invocations to idle processes, then starts processes for the rest.
    fn dispatch(self: &Arc<Self>, pool: &mut Pool) {
        let budget = Duration::from_millis(self.config.timeout_ms);
        let now = Instant::now();
        for process in pool.processes.values_mut() {
            if !matches!(process.state, ProcessState::Idle(_)) {
                continue;
            }
            // An invocation whose caller hung up is not run.
            let Some(invocation) =
                std::iter::from_fn(|| pool.waiting.pop_front()).find(|waiting| !waiting.answer.is_closed())
            else {
                break;
            };
            let until = now + budget;
            if let ProcessState::Idle(poller) = std::mem::replace(&mut process.state, ProcessState::Returning { until })
            {
                let Invocation { request_id, payload, origin, answer } = invocation;
                let deadline = (self.host.clock)() + Span::from_ms(as_i64(self.config.timeout_ms));
                let work = Work { request_id: Arc::clone(&request_id), payload, deadline };
                match poller.send(work) {
                    Ok(()) => {
                        process.state =
                            ProcessState::Working(Working { request_id, answer, since: now, deadline: until });
                    }
                    // The connection of the poll broke. The process polls again or ends, and the invocation keeps
                    // waiting.
                    Err(Work { payload, .. }) => {
                        pool.waiting.push_front(Invocation { request_id, payload, origin, answer });
                    }
                }
            }
        }
        self.start_missing(pool, now);
    }

    /// Starts a process for each waiting invocation that no starting or returning process will take.
    fn start_missing(self: &Arc<Self>, pool: &mut Pool, now: Instant) {
        let coming = |process: &&FunctionProcess| {
            matches!(process.state, ProcessState::Starting { .. } | ProcessState::Returning { .. })
        };
        let coming = pool.processes.values().filter(coming).count();
        let mut missing = pool.waiting.len().saturating_sub(coming);
        if missing == 0 || pool.stopped {
            return;
        }
        if pool.failed_starts > 0 {
            // After a failed start, only one process is started at a time.
            missing = usize::from(coming == 0);
            if let Some(at) = pool.no_start_before.filter(|at| now < *at) {
                if missing > 0 && !pool.start_planned {
                    pool.start_planned = true;
                    tokio::spawn(Arc::clone(self).start_at(at));
                }
                return;
            }
        }
        let room = self.config.max_concurrency.saturating_sub(pool.processes.len());
        for _ in 0..missing.min(room) {
            let number = pool.started;
            pool.started += 1;
            pool.counts.cold_starts += 1;
            let state = ProcessState::Starting { until: now + START_LIMIT };
            pool.processes.insert(number, FunctionProcess { state, polled: false, init_error: None });
            tokio::spawn(Arc::clone(self).watch(number));
        }
    }

    async fn start_at(self: Arc<Self>, at: Instant) {
        let mut stop = self.host.stop_signal();
        tokio::select! {
            () = tokio::time::sleep_until(at) => {}
            () = stop.raised() => return,
        }
        let mut pool = self.pool();
        pool.start_planned = false;
        self.dispatch(&mut pool);
    }

    /// Starts one process and watches it until it has ended.
    async fn watch(self: Arc<Self>, number: u64) {
        let mut stop = self.host.stop_signal();
        let spec = ProcessSpec { program: self.config.program.clone(), env: self.environment(number) };
        let mut running = match spawn(spec, &self.config.name, &self.host.log).await {
            Ok(running) => running,
            Err(error) => {
                let program = self.config.program.display();
                return self.ended(number, &format!("{program} cannot be run: {error}"), None);
            }
        };
        let mut check_at = Instant::now();
        let status = loop {
            tokio::select! {
                status = running.wait() => break status,
                () = tokio::time::sleep_until(check_at) => match self.check_limit(number) {
                    Some(at) => check_at = at,
                    None => {
                        running.kill();
                        break running.wait().await;
                    }
                },
                () = stop.raised() => {
                    break running.terminate(STOP_GRACE).await;
                }
            }
        };
        let last_line = running.last_line().await;
        let how = status.map_or_else(|error| error.to_string(), |status| status.to_string());
        self.ended(number, &how, last_line);
    }

    /// When to check the process's limit again; `None` if the limit has passed and the process must be killed.
    ///
    /// Deadlines are exact without a timer for each invocation: the process is checked again at the latest one time-out
    /// after each check, and an invocation that begins in between cannot time out before the next check.
    fn check_limit(&self, number: u64) -> Option<Instant> {
        let now = Instant::now();
        let mut pool = self.pool();
        let process = pool.processes.get_mut(&number)?;
        let limit = match &process.state {
            ProcessState::Starting { until } | ProcessState::Returning { until } => *until,
            ProcessState::Working(working) => working.deadline,
            ProcessState::Idle(_) => now + Duration::from_millis(self.config.timeout_ms),
            ProcessState::Overdue(_) => now,
        };
        if limit > now {
            // Before its limit, a starting or returning process may get an invocation with another deadline.
            return Some(limit.min(now + Duration::from_millis(self.config.timeout_ms)));
        }
        // From now on the process gets no work and its answers are refused.
        process.state = match std::mem::replace(&mut process.state, ProcessState::Overdue(None)) {
            ProcessState::Working(working) => ProcessState::Overdue(Some(working)),
            _ => ProcessState::Overdue(None),
        };
        None
    }

    /// Called when a process has ended. The caller of its invocation gets the reason, and other processes take its
    /// place.
    fn ended(self: &Arc<Self>, number: u64, how: &str, last_line: Option<String>) {
        let mut pool = self.pool();
        let Some(process) = pool.processes.remove(&number) else { return };
        if pool.stopped {
            return;
        }
        let last_line = last_line.map(|line| format!("; its last line: {line}")).unwrap_or_default();
        match process.state {
            ProcessState::Overdue(Some(working)) => {
                pool.counts.timeouts += 1;
                let seconds = Span::from_ms(as_i64(self.config.timeout_ms)).as_s();
                let message =
                    format!("RequestId: {} Error: Task timed out after {seconds:.2} seconds", working.request_id);
                self.finish(&mut pool, working, Err(FunctionError::new("Sandbox.Timedout", message)));
            }
            ProcessState::Working(working) => {
                let id = &working.request_id;
                let message = format!("RequestId: {id} Error: Runtime exited without answering: {how}{last_line}");
                self.finish(&mut pool, working, Err(FunctionError::new("Runtime.ExitError", message)));
            }
            state if !process.polled => {
                let late =
                    if matches!(state, ProcessState::Overdue(_)) { ", killed for not polling within 10 s" } else { "" };
                let name = &self.config.name;
                let error = process.init_error.unwrap_or_else(|| {
                    let error = format!("function {name} ended before it could take work: {how}{late}{last_line}");
                    FunctionError::new("Runtime.ExitError", error)
                });
                tracing::warn!(function = %name, error = %error, "a function does not start");
                self.start_failed(&mut pool, &error);
            }
            ProcessState::Starting { .. }
            | ProcessState::Idle(_)
            | ProcessState::Returning { .. }
            | ProcessState::Overdue(None) => {}
        }
        self.dispatch(&mut pool);
    }

    fn start_failed(&self, pool: &mut Pool, error: &FunctionError) {
        let doubled = BACK_OFF.saturating_mul(1 << pool.failed_starts.min(10));
        pool.no_start_before = Some(Instant::now() + doubled.min(BACK_OFF_MAX));
        pool.failed_starts = pool.failed_starts.saturating_add(1);
        // If another process lives, it takes the waiting invocations.
        if pool.processes.is_empty() {
            for Invocation { request_id, answer, .. } in std::mem::take(&mut pool.waiting) {
                let now = Instant::now();
                let working = Working { request_id, answer, since: now, deadline: now };
                self.finish(pool, working, Err(error.clone()));
            }
        }
    }

    fn finish(&self, pool: &mut Pool, working: Working, outcome: Outcome) {
        let took = Span::from_ms(i64::try_from(working.since.elapsed().as_millis()).unwrap_or(i64::MAX));
        pool.counts.invocations += 1;
        pool.counts.errors += u64::from(outcome.is_err());
        pool.counts.last = Some(Ended { at: (self.host.clock)(), took, outcome: outcome.clone() });
        // An error means that the caller hung up.
        let _ = working.answer.send(outcome);
    }

    /// The environment of a process, as in AWS: reserved variables win over those in the function's settings.
    fn environment(&self, number: u64) -> BTreeMap<String, String> {
        let name = &self.config.name;
        let mut env = self.host.inherited_env.clone();
        env.extend(self.config.env.clone());
        let handler = Path::new(&self.config.program).file_name().map(|file| file.to_string_lossy().into_owned());
        env.extend(
            [
                ("AWS_LAMBDA_FUNCTION_NAME", name.clone()),
                ("AWS_LAMBDA_FUNCTION_VERSION", "$LATEST".to_owned()),
                ("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", self.config.memory_mb.to_string()),
                ("AWS_LAMBDA_LOG_GROUP_NAME", format!("/aws/lambda/{name}")),
                ("AWS_LAMBDA_LOG_STREAM_NAME", format!("local/[$LATEST]{number}")),
                ("AWS_LAMBDA_INITIALIZATION_TYPE", "on-demand".to_owned()),
                // The path tells which process polls. lambda_runtime needs the scheme, which AWS leaves out.
                ("AWS_LAMBDA_RUNTIME_API", format!("http://{}/.rt/{name}/{number}", self.host.address)),
                ("AWS_REGION", self.host.region.clone()),
                ("AWS_DEFAULT_REGION", self.host.region.clone()),
                ("_HANDLER", handler.unwrap_or_default()),
            ]
            .map(|(key, value)| (key.to_owned(), value)),
        );
        env
    }
}

fn as_i64(ms: u64) -> i64 {
    i64::try_from(ms).unwrap_or(i64::MAX)
}
