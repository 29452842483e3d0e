//! One function: its processes, the invocations that wait for them, and who gets which.
//!
//! Flow: [`Function::submit`] puts an invocation into the queue; a process that polls the Runtime API
//! ([`Function::poll`]) is handed the first; its answer ([`Function::respond`]) goes to whoever waits for it. Each
//! process has one task that watches it and is the only one to kill it.
//!
//! Guarantees: a process works on one invocation at a time; an invocation is handed to one process only, and its
//! caller hears of it exactly once; whoever hears of a time-out can rely on the process being dead.
//!
//! Does not: run a function twice for one invocation (retries are `event.rs`), or end idle processes.

use super::error::{FunctionError, InvokeError};
use super::process::{Launch, spawn};
use super::stats::{Counts, Ended, Stats};
use super::{FunctionConfig, Host};
use axum::body::Bytes;
use shared::chance::Chance;
use shared::time::{Span, Time};
use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Semaphore, oneshot};
use tokio::time::Instant;

/// A started process must poll within this time, as in AWS.
const START_LIMIT: Duration = Duration::from_secs(10);
/// Between SIGTERM and SIGKILL when the stand-in stops.
const STOP_GRACE: Duration = Duration::from_secs(2);
/// After a failed start the next waits: this long, then twice as long, and so on.
const BACK_OFF: Duration = Duration::from_millis(250);
const BACK_OFF_MAX: Duration = Duration::from_secs(10);

/// How an invocation ends. A dropped sender instead means that the stand-in stops.
pub(super) type Outcome = Result<Bytes, FunctionError>;

/// A submitted invocation.
#[derive(Debug)]
pub(super) struct Ticket {
    pub(super) request_id: Arc<str>,
    pub(super) outcome: oneshot::Receiver<Outcome>,
}

impl Ticket {
    pub(super) async fn wait(self) -> Result<Bytes, InvokeError> {
        match self.outcome.await {
            Ok(outcome) => Ok(outcome?),
            Err(_) => Err(InvokeError::ShuttingDown),
        }
    }
}

/// What a process gets when it polls.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) request_id: Arc<str>,
    pub(super) payload: Bytes,
    pub(super) deadline: Time,
}

#[derive(Debug)]
struct Invocation {
    request_id: Arc<str>,
    payload: Bytes,
    scheduled: bool,
    answer: oneshot::Sender<Outcome>,
}

#[derive(Debug)]
struct Working {
    request_id: Arc<str>,
    answer: oneshot::Sender<Outcome>,
    since: Instant,
    deadline: Instant,
}

/// What a process is doing.
#[derive(Debug)]
enum Doing {
    /// It has not polled yet.
    Starting {
        until: Instant,
    },
    /// It polls: an idle process.
    Parked(oneshot::Sender<Work>),
    Working(Working),
    /// It has answered and is about to poll again.
    Returning {
        until: Instant,
    },
    /// It ran past its limit and is being killed: during a start, an invocation, or on its way back.
    Overdue(Option<Working>),
}

#[derive(Debug)]
struct Process {
    doing: Doing,
    polled: bool,
    init_error: Option<FunctionError>,
}

#[derive(Debug, Default)]
struct Pool {
    waiting: VecDeque<Invocation>,
    /// By number; numbers are never used again, so that a late word of an earlier process is not taken for another's.
    processes: BTreeMap<u64, Process>,
    started: u64,
    failed_starts: u32,
    no_start_before: Option<Instant>,
    /// A task waits for `no_start_before`.
    start_planned: bool,
    stopped: bool,
    counts: Counts,
}

/// A poll or answer that fits no process or invocation: it is over.
#[derive(Debug)]
pub(super) struct Over;

#[derive(Debug)]
pub(super) struct Function {
    pub(super) config: FunctionConfig,
    pub(super) arn: String,
    /// Places for events that wait for their retry.
    pub(super) retries: Semaphore,
    host: Arc<Host>,
    pool: Mutex<Pool>,
}

impl Function {
    pub(super) fn new(config: FunctionConfig, host: Arc<Host>) -> Self {
        let arn = format!("arn:aws:lambda:{}:000000000000:function:{}", host.region, config.name);
        let retries = Semaphore::new(config.max_waiting.min(Semaphore::MAX_PERMITS));
        Self { config, arn, retries, host, pool: Mutex::default() }
    }

    /// Queues an invocation, unless too many wait already.
    pub(super) fn submit(self: &Arc<Self>, payload: Bytes) -> Result<Ticket, InvokeError> {
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
        Ok(self.enqueue(&mut pool, payload, false))
    }

    /// Queues a scheduled run, unless one waits already: then it is left out, and counted.
    pub(super) fn submit_scheduled(self: &Arc<Self>, payload: Bytes) -> Option<Ticket> {
        let mut pool = self.pool();
        if pool.stopped {
            return None;
        }
        if pool.waiting.iter().any(|invocation| invocation.scheduled) || !self.has_room(&mut pool) {
            pool.counts.skipped += 1;
            return None;
        }
        Some(self.enqueue(&mut pool, payload, true))
    }

    /// A process asks for work: it gets it through the receiver, perhaps much later. A receiver that fails means that
    /// the process is no longer wanted.
    pub(super) fn poll(self: &Arc<Self>, number: u64) -> Result<oneshot::Receiver<Work>, Over> {
        let (poller, work) = oneshot::channel();
        let mut pool = self.pool();
        if pool.stopped {
            return Err(Over);
        }
        let process = pool.processes.get_mut(&number).ok_or(Over)?;
        match std::mem::replace(&mut process.doing, Doing::Parked(poller)) {
            Doing::Working(working) => {
                let error =
                    format!("RequestId: {} Error: the next event was asked for before this", working.request_id);
                self.finish(&mut pool, working, Err(FunctionError::new("Runtime.InvalidState", error)));
            }
            Doing::Overdue(held) => {
                process.doing = Doing::Overdue(held);
                return Err(Over);
            }
            Doing::Starting { .. } => {
                process.polled = true;
                pool.failed_starts = 0;
                pool.no_start_before = None;
            }
            // A second poll while one is open: its connection is gone.
            Doing::Parked(_) | Doing::Returning { .. } => {}
        }
        self.hand_out(&mut pool);
        Ok(work)
    }

    /// A process answers. Its invocation may be over already.
    pub(super) fn respond(&self, number: u64, request_id: &str, outcome: Outcome) -> Result<(), Over> {
        let mut pool = self.pool();
        let process = pool.processes.get_mut(&number).ok_or(Over)?;
        match &process.doing {
            Doing::Working(working) if *working.request_id == *request_id => {
                let until = working.deadline;
                if let Doing::Working(working) = std::mem::replace(&mut process.doing, Doing::Returning { until }) {
                    self.finish(&mut pool, working, outcome);
                }
                Ok(())
            }
            _ => Err(Over),
        }
    }

    /// A process says why it cannot start. Its callers hear it when it has ended.
    pub(super) fn init_error(&self, number: u64, error: FunctionError) -> Result<(), Over> {
        let mut pool = self.pool();
        pool.processes.get_mut(&number).ok_or(Over)?.init_error = Some(error);
        Ok(())
    }

    /// Whether there is such a process.
    pub(super) fn has_process(&self, number: u64) -> bool {
        self.pool().processes.contains_key(&number)
    }

    /// Refuses what comes and gives up what waits. The processes' own tasks end them.
    pub(super) fn stop(&self) {
        let mut pool = self.pool();
        pool.stopped = true;
        pool.waiting.clear();
    }

    pub(super) fn stats(&self) -> Stats {
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
            running: pool.processes.values().filter(|process| matches!(process.doing, Doing::Working(_))).count(),
            waiting: pool.waiting.len(),
            last: counts.last.as_ref().map(Ended::shown),
        }
    }

    fn pool(&self) -> MutexGuard<'_, Pool> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn has_room(&self, pool: &mut Pool) -> bool {
        // Of those that wait, as many as there are idle or missing processes wait for a start only.
        let working = pool.processes.values().filter(|process| matches!(process.doing, Doing::Working(_))).count();
        let free = self.config.max_concurrency.saturating_sub(working);
        let room = self.config.max_waiting.saturating_add(free);
        if pool.waiting.len() >= room {
            // Callers that have hung up hold no place.
            pool.waiting.retain(|invocation| !invocation.answer.is_closed());
        }
        pool.waiting.len() < room
    }

    fn enqueue(self: &Arc<Self>, pool: &mut Pool, payload: Bytes, scheduled: bool) -> Ticket {
        let (answer, outcome) = oneshot::channel();
        let request_id: Arc<str> = new_request_id().into();
        pool.waiting.push_back(Invocation { request_id: Arc::clone(&request_id), payload, scheduled, answer });
        self.hand_out(pool);
        Ticket { request_id, outcome }
    }

    /// Brings waiting invocations and parked processes together, then starts processes for what is left.
    fn hand_out(self: &Arc<Self>, pool: &mut Pool) {
        let budget = Duration::from_millis(self.config.timeout_ms);
        let now = Instant::now();
        for process in pool.processes.values_mut() {
            if !matches!(process.doing, Doing::Parked(_)) {
                continue;
            }
            // Nobody waits any more for the answer to an invocation whose caller has hung up.
            let Some(invocation) =
                std::iter::from_fn(|| pool.waiting.pop_front()).find(|waiting| !waiting.answer.is_closed())
            else {
                break;
            };
            let until = now + budget;
            if let Doing::Parked(poller) = std::mem::replace(&mut process.doing, Doing::Returning { until }) {
                let Invocation { request_id, payload, scheduled, answer } = invocation;
                let deadline = (self.host.clock)() + Span::from_ms(as_i64(self.config.timeout_ms));
                let work = Work { request_id: Arc::clone(&request_id), payload, deadline };
                match poller.send(work) {
                    Ok(()) => {
                        process.doing = Doing::Working(Working { request_id, answer, since: now, deadline: until });
                    }
                    // The poll's connection broke: the process will poll again or end, the invocation goes on.
                    Err(Work { payload, .. }) => {
                        pool.waiting.push_front(Invocation { request_id, payload, scheduled, answer });
                    }
                }
            }
        }
        self.start_missing(pool, now);
    }

    /// Starts as many processes as invocations wait beyond those that a process is about to ask for.
    fn start_missing(self: &Arc<Self>, pool: &mut Pool, now: Instant) {
        let coming = |process: &&Process| matches!(process.doing, Doing::Starting { .. } | Doing::Returning { .. });
        let coming = pool.processes.values().filter(coming).count();
        let mut missing = pool.waiting.len().saturating_sub(coming);
        if missing == 0 || pool.stopped {
            return;
        }
        if pool.failed_starts > 0 {
            // One tries, not all at once.
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
            let doing = Doing::Starting { until: now + START_LIMIT };
            pool.processes.insert(number, Process { doing, polled: false, init_error: None });
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
        self.hand_out(&mut pool);
    }

    /// The life of one process, from its start until nothing is left of it.
    async fn watch(self: Arc<Self>, number: u64) {
        let mut stop = self.host.stop_signal();
        let launch = Launch { program: self.config.program.clone(), env: self.environment(number) };
        let mut running = match spawn(launch, &self.config.name, &self.host.log).await {
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
                () = tokio::time::sleep_until(check_at) => match self.limit(number) {
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

    /// When to look again whether the process is past its limit; `None` if it is, and is to be killed.
    ///
    /// This keeps deadlines exactly, with no timer for each invocation: one that begins after a look ends no earlier
    /// than a whole budget after that look.
    fn limit(&self, number: u64) -> Option<Instant> {
        let now = Instant::now();
        let mut pool = self.pool();
        let process = pool.processes.get_mut(&number)?;
        let limit = match &process.doing {
            Doing::Starting { until } | Doing::Returning { until } => *until,
            Doing::Working(working) => working.deadline,
            Doing::Parked(_) => now + Duration::from_millis(self.config.timeout_ms),
            Doing::Overdue(_) => now,
        };
        if limit > now {
            // A process that starts or returns may be at work, with its own limit, before that.
            return Some(limit.min(now + Duration::from_millis(self.config.timeout_ms)));
        }
        // From here on it neither gets work nor may answer.
        process.doing = match std::mem::replace(&mut process.doing, Doing::Overdue(None)) {
            Doing::Working(working) => Doing::Overdue(Some(working)),
            _ => Doing::Overdue(None),
        };
        None
    }

    /// A process is gone: whoever waited for it hears why, and others take its place.
    fn ended(self: &Arc<Self>, number: u64, how: &str, last_line: Option<String>) {
        let mut pool = self.pool();
        let Some(process) = pool.processes.remove(&number) else { return };
        if pool.stopped {
            return;
        }
        let said = last_line.map(|line| format!("; its last line: {line}")).unwrap_or_default();
        match process.doing {
            Doing::Overdue(Some(working)) => {
                pool.counts.timeouts += 1;
                let seconds = Span::from_ms(as_i64(self.config.timeout_ms)).as_s();
                let message =
                    format!("RequestId: {} Error: Task timed out after {seconds:.2} seconds", working.request_id);
                self.finish(&mut pool, working, Err(FunctionError::new("Sandbox.Timedout", message)));
            }
            Doing::Working(working) => {
                let id = &working.request_id;
                let message = format!("RequestId: {id} Error: Runtime exited without answering: {how}{said}");
                self.finish(&mut pool, working, Err(FunctionError::new("Runtime.ExitError", message)));
            }
            doing if !process.polled => {
                let late = if matches!(doing, Doing::Overdue(_)) { ", killed for not polling within 10 s" } else { "" };
                let name = &self.config.name;
                let error = process.init_error.unwrap_or_else(|| {
                    let error = format!("function {name} ended before it could take work: {how}{late}{said}");
                    FunctionError::new("Runtime.ExitError", error)
                });
                tracing::warn!(function = %name, error = %error, "a function does not start");
                self.start_failed(&mut pool, &error);
            }
            Doing::Starting { .. } | Doing::Parked(_) | Doing::Returning { .. } | Doing::Overdue(None) => {}
        }
        self.hand_out(&mut pool);
    }

    fn start_failed(&self, pool: &mut Pool, error: &FunctionError) {
        let doubled = BACK_OFF.saturating_mul(1 << pool.failed_starts.min(10));
        pool.no_start_before = Some(Instant::now() + doubled.min(BACK_OFF_MAX));
        pool.failed_starts = pool.failed_starts.saturating_add(1);
        // While another process lives, it takes what waits.
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
        // A caller that has hung up does not mind.
        let _ = working.answer.send(outcome);
    }

    /// The environment of a process, as in AWS; what AWS reserves wins over what the function was given.
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
                // The path says which process polls. lambda_runtime wants the scheme, which AWS leaves out.
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

/// A random UUID, as AWS's request ids are.
pub(super) fn new_request_id() -> String {
    let bits = Chance::real().bits();
    let word = |shift: u32, mask: u128| (bits >> shift) & mask;
    format!(
        "{:08x}-{:04x}-4{:03x}-{:04x}-{:012x}",
        word(96, 0xffff_ffff),
        word(80, 0xffff),
        word(68, 0xfff),
        0x8000 | word(48, 0x3fff),
        word(0, 0xffff_ffff_ffff)
    )
}
