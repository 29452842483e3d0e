//! The loop of heartbeats and alloc reports.
//!
//! Guarantees: makes one call at a time, so that answers arrive in order; sends a heartbeat when the last answer asked
//! for it, when there is urgent news, and after a failure when the wait of `backoff` is over; sends a report as soon as
//! there is something to report; ends only after 410 `gone`; sends nothing while the state cannot be saved (a full
//! disk). A node that cannot save its orders must not look healthy: otherwise the control plane would wait for its work
//! for ever.
//! Does not: stop work after any other answer, or without an answer.

use crate::backoff::{self, History};
use crate::client::{CallError, ControlPlaneClient, next_call};
use crate::data_dir::DataDirError;
use crate::node_state::NodeState;
use crate::protocol::Node;
use model::rng::Rng;
use model::wire::{AllocReport, AllocReportAnswer, ErrorCode, Heartbeat, HeartbeatAnswer};
use nix::time::{ClockId, clock_gettime};
use std::ops::ControlFlow;
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

/// When the next calls are due, and how the last ones went.
struct CallSchedule {
    heartbeat_at: Instant,
    report_at: Instant,
    /// When the next heartbeat was due after the last answer; absent before the first answer.
    due_at: Option<Instant>,
    /// A node that has room asks for work more often than usual. Then this is the time between its last heartbeat and
    /// the next one.
    soon: Option<Duration>,
    failed_heartbeats: u32,
    failed_reports: u32,
}

/// Sends heartbeats and reports until the node is gone.
pub async fn run(state: &NodeState, client: &ControlPlaneClient, url: &str) {
    let now = Instant::now();
    let mut schedule = CallSchedule {
        heartbeat_at: now,
        report_at: now,
        due_at: None,
        soon: None,
        failed_heartbeats: 0,
        failed_reports: 0,
    };
    loop {
        if Instant::now() >= schedule.heartbeat_at && heartbeat(state, client, url, &mut schedule).await.is_break() {
            return;
        }
        let may_report = Instant::now() >= schedule.report_at && schedule.failed_heartbeats == 0;
        if may_report && send_reports(state, client, url, &mut schedule).await.is_break() {
            return;
        }
        let to_report = schedule.failed_heartbeats == 0 && state.read(Node::has_report);
        let heartbeat_at = schedule.heartbeat_at;
        let wake_at = if to_report { heartbeat_at.min(schedule.report_at) } else { heartbeat_at };
        tokio::select! {
            () = sleep_until(wake_at) => {}
            () = state.allocs_changed.notified() => {}
            // While heartbeats fail, an extra one does not help. The next attempt carries the news.
            () = state.heartbeat_now.notified(), if schedule.failed_heartbeats == 0 => {
                schedule.heartbeat_at = Instant::now();
            }
        }
    }
}

impl CallSchedule {
    fn history(&self, attempts: u32) -> History {
        match self.due_at {
            None => History::Never { attempts },
            Some(due) => History::Overdue(Instant::now().saturating_duration_since(due)),
        }
    }

    fn wait(&self, attempts: u32, retry_after: Option<Duration>) -> Duration {
        backoff::delay(self.history(attempts), retry_after, chance())
    }

    /// The wait after a refusal that a new registration, a heartbeat or a new report number solves: none after the
    /// first failure in a row, and the usual wait after each later one.
    fn wait_unless_first(&self, attempts: u32) -> Duration {
        if attempts <= 1 { Duration::ZERO } else { self.wait(attempts, None) }
    }
}

fn chance() -> f64 {
    Rng::real().between(0.0, 1.0)
}

fn not_saved(error: &DataDirError) -> CallError {
    CallError::Failed { what: error.to_string(), retry_after: None }
}

async fn heartbeat(
    state: &NodeState,
    client: &ControlPlaneClient,
    url: &str,
    schedule: &mut CallSchedule,
) -> ControlFlow<()> {
    match send_heartbeat(state, client, url).await {
        Ok(answer) => {
            if schedule.failed_heartbeats > 0 {
                tracing::info!(failures = schedule.failed_heartbeats, "heartbeats are answered again");
            }
            schedule.failed_heartbeats = 0;
            let usual = next_call(answer.next_heartbeat_s);
            let now = Instant::now();
            // Work that came ends the haste; otherwise each wait is twice the one before.
            let doubled = schedule.soon.map(|soon| soon.saturating_mul(2));
            schedule.soon = doubled.filter(|soon| *soon < usual && answer.allocs.as_ref().is_none_or(Vec::is_empty));
            schedule.heartbeat_at = now + schedule.soon.unwrap_or(usual);
            schedule.due_at = Some(now + usual);
            ControlFlow::Continue(())
        }
        Err(error) => heartbeat_failed(state, schedule, &error),
    }
}

/// Sends a heartbeat, and saves the answer.
async fn send_heartbeat(
    state: &NodeState,
    client: &ControlPlaneClient,
    url: &str,
) -> Result<HeartbeatAnswer, CallError> {
    state.check_saving().map_err(|e| not_saved(&e))?;
    let heartbeat = Heartbeat { uptime_ms: uptime_ms(), ..state.read(Node::heartbeat) };
    let answer: HeartbeatAnswer = client.post(url, "heartbeat", &heartbeat).await?;
    let registered = state.update(|n| n.on_heartbeat(&answer)).map_err(|e| not_saved(&e))?;
    state.answered();
    state.want(answer.follows.clone());
    if answer.report_handles {
        state.handles_changed.notify_one();
    }
    if registered {
        tracing::info!(incarnation = answer.incarnation, status = %answer.status, "registered");
        state.handles_changed.notify_one();
    }
    Ok(answer)
}

/// How long the machine has been up, in milliseconds, sleep included. The clock never goes back, and an agent that starts
/// again goes on with it.
fn uptime_ms() -> Option<u64> {
    let up = clock_gettime(ClockId::CLOCK_BOOTTIME).ok()?;
    u64::try_from(Duration::from(up).as_millis()).ok()
}

fn heartbeat_failed(state: &NodeState, schedule: &mut CallSchedule, error: &CallError) -> ControlFlow<()> {
    schedule.failed_heartbeats = schedule.failed_heartbeats.saturating_add(1);
    let failures = schedule.failed_heartbeats;
    let mut wait = schedule.wait(failures, error.retry_after());
    match error.code() {
        Some(ErrorCode::Gone) => return ControlFlow::Break(()),
        Some(ErrorCode::WrongIncarnation) => {
            wait = schedule.wait_unless_first(failures);
            state.update_or_log(Node::register_anew);
        }
        // The node's record is bound to another instance. Only an operator or time can change that.
        Some(ErrorCode::ForeignInstance) => {
            wait = wait.max(backoff::delay(History::Never { attempts: 6 }, None, chance()));
        }
        _ => {}
    }
    // Logs the 1st, 2nd, 4th, 8th … failure.
    if failures.is_power_of_two() {
        let retry_in_s = wait.as_secs();
        tracing::warn!(failures, retry_in_s, %error, "a heartbeat failed; allocs keep running");
    }
    schedule.heartbeat_at = Instant::now() + wait;
    ControlFlow::Continue(())
}

/// Sends reports until there is nothing more to report or a report is not accepted.
async fn send_reports(
    state: &NodeState,
    client: &ControlPlaneClient,
    url: &str,
    schedule: &mut CallSchedule,
) -> ControlFlow<()> {
    while state.read(Node::has_report) {
        // The report number is on disk before it is used.
        let sent = match state.update(Node::report) {
            Ok(None) => break,
            Ok(Some(report)) => send_report(state, client, url, &report).await,
            Err(error) => Err(not_saved(&error)),
        };
        match sent {
            Ok(soon) => {
                schedule.failed_reports = 0;
                if let Some(soon) = soon {
                    // Jitter, because the members of a job end together.
                    let soon = next_call(soon * Rng::real().between(1.0, 1.5));
                    schedule.soon = Some(soon);
                    schedule.heartbeat_at = schedule.heartbeat_at.min(Instant::now() + soon);
                }
            }
            Err(error) => return report_failed(state, schedule, &error),
        }
    }
    ControlFlow::Continue(())
}

/// Sends one report, and saves the answer. Returns when to ask for new work, in seconds, if the answer says so.
async fn send_report(
    state: &NodeState,
    client: &ControlPlaneClient,
    url: &str,
    report: &AllocReport,
) -> Result<Option<f64>, CallError> {
    let answer: AllocReportAnswer = client.post(url, "allocs", report).await?;
    for refusal in &answer.refused {
        tracing::warn!(alloc_id = %refusal.alloc_id, reason = refusal.reason, "the status of this alloc was refused");
    }
    state.update(|n| n.on_report(&answer)).map_err(|e| not_saved(&e))?;
    state.answered();
    // The answer may acknowledge the end of an alloc, whose handles may be destroyed from now on.
    state.handles_changed.notify_one();
    Ok(answer.next_heartbeat_s)
}

fn report_failed(state: &NodeState, schedule: &mut CallSchedule, error: &CallError) -> ControlFlow<()> {
    schedule.failed_reports = schedule.failed_reports.saturating_add(1);
    let failures = schedule.failed_reports;
    let mut wait = schedule.wait(failures, error.retry_after());
    if let Some(code) = error.code() {
        // The control plane answers, but refuses the report. Trying more often does not help, so the wait grows with
        // each refusal.
        let refused = History::Never { attempts: failures };
        wait = wait.max(backoff::delay(refused, None, chance()));
        state.update_or_log(|n| n.on_report_refused(code));
        match code {
            ErrorCode::Gone => return ControlFlow::Break(()),
            ErrorCode::NotReady | ErrorCode::WrongIncarnation => {
                wait = schedule.wait_unless_first(failures);
                schedule.heartbeat_at = schedule.heartbeat_at.min(Instant::now() + wait);
            }
            ErrorCode::StaleReport => wait = schedule.wait_unless_first(failures),
            _ => {}
        }
    }
    if failures.is_power_of_two() {
        tracing::warn!(failures, %error, "an alloc report was not accepted; allocs keep running");
    }
    schedule.report_at = Instant::now() + wait;
    ControlFlow::Continue(())
}
