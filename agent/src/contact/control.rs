//! The loop of heartbeats and alloc reports.
//!
//! Guarantees: makes one call at a time, so that answers arrive in order; sends a heartbeat when the last answer asked
//! for it, when there is urgent news, and after a failure when the wait of `backoff` is over; sends a report as soon as
//! there is something to report; ends only after 410 `gone`; sends nothing while the state cannot be saved (a full
//! disk). A node that cannot save its orders must not look healthy: otherwise the control plane would wait for its work
//! for ever.
//! Does not: stop work after any other answer, or without an answer.

use super::backoff::{self, LastCalls};
use super::client::{CallError, ControlPlaneClient, next_call};
use super::shared_node::SharedNode;
use crate::protocol::Node;
use model::Rng;
use model::wire::{
    AllocReport, AllocReportAnswer, ErrorCode, HeartbeatAnswer, LONGEST_RETRY_S, OrderList, SHORTEST_RETRY_S,
    heartbeat_timeout_s,
};
use nix::time::{ClockId, clock_gettime};
use std::ops::ControlFlow;
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

/// While jobs wait, a node waits an eighth of the time since its room came: the rule of heartbeat-ingest for idle nodes.
const IDLE_TO_WAIT: u32 = 8;

/// The calls of a node: when the next ones are due, and how the last ones went.
struct CallPlan<'a> {
    state: &'a SharedNode,
    client: &'a ControlPlaneClient,
    url: &'a str,
    heartbeat_at: Instant,
    report_at: Instant,
    /// When the next heartbeat was due after the last answer; absent before the first answer.
    due_at: Option<Instant>,
    /// The early questions of a node with room; `None` if it asks at the usual times.
    early: Option<EarlyQuestions>,
    /// The `retry_s` of the last answer.
    retry_s: f64,
    failed_heartbeats: u32,
    failed_reports: u32,
}

/// How a node that has room asks for work more often than usual.
struct EarlyQuestions {
    /// When the room came.
    since: Instant,
    /// The wait before the first question.
    first: Duration,
    jobs_wait: bool,
}

impl EarlyQuestions {
    /// The wait after a question. If no jobs wait, each wait is twice the one before.
    fn wait(&self, now: Instant) -> Duration {
        let elapsed = now.duration_since(self.since);
        if self.jobs_wait { self.first.max(elapsed / IDLE_TO_WAIT) } else { self.first + elapsed }
    }
}

fn brings_work(orders: Option<&OrderList>) -> bool {
    orders.is_some_and(|list| !list.allocs.is_empty())
}

/// Sends heartbeats and reports until the node is gone.
pub async fn run(state: &SharedNode, client: &ControlPlaneClient, url: &str) {
    let now = Instant::now();
    let mut calls = CallPlan {
        state,
        client,
        url,
        heartbeat_at: now,
        report_at: now,
        due_at: None,
        early: None,
        retry_s: LONGEST_RETRY_S,
        failed_heartbeats: 0,
        failed_reports: 0,
    };
    loop {
        if Instant::now() >= calls.heartbeat_at && calls.heartbeat().await.is_break() {
            return;
        }
        let may_report = Instant::now() >= calls.report_at && calls.failed_heartbeats == 0;
        if may_report && calls.send_reports().await.is_break() {
            return;
        }
        let to_report = calls.failed_heartbeats == 0 && state.read(Node::has_report);
        let heartbeat_at = calls.heartbeat_at;
        let wake_at = if to_report { heartbeat_at.min(calls.report_at) } else { heartbeat_at };
        tokio::select! {
            () = sleep_until(wake_at) => {}
            () = state.allocs_changed.notified() => {}
            // While heartbeats fail, an extra one does not help. The next attempt carries the news.
            () = state.heartbeat_now.notified(), if calls.failed_heartbeats == 0 => {
                calls.heartbeat_at = Instant::now();
            }
        }
    }
}

impl CallPlan<'_> {
    fn wait(&self, attempts: u32, retry_after: Option<Duration>) -> Duration {
        backoff::wait(LastCalls::of(self.due_at, attempts), retry_after)
    }

    /// The wait after a refusal that a new registration, a heartbeat or a new report number solves: none after the
    /// first failure in a row, and the usual wait after each later one.
    fn wait_unless_first(&self, attempts: u32) -> Duration {
        if attempts <= 1 { Duration::ZERO } else { self.wait(attempts, None) }
    }

    async fn heartbeat(&mut self) -> ControlFlow<()> {
        match self.send_heartbeat().await {
            Ok(answer) => {
                if self.failed_heartbeats > 0 {
                    tracing::info!(failures = self.failed_heartbeats, "heartbeats are answered again");
                }
                self.failed_heartbeats = 0;
                self.retry_s = answer.retry_s.clamp(SHORTEST_RETRY_S, LONGEST_RETRY_S);
                let usual = next_call(answer.next_heartbeat_s);
                let now = Instant::now();
                // After work has come, the node calls at the usual times again.
                self.early.take_if(|_| brings_work(answer.orders.as_ref()));
                self.heartbeat_at = now + self.early.as_ref().map_or(usual, |early| early.wait(now).min(usual));
                self.due_at = Some(now + usual);
                ControlFlow::Continue(())
            }
            Err(error) => self.heartbeat_failed(&error).await,
        }
    }

    /// Sends a heartbeat, and saves the answer.
    async fn send_heartbeat(&self) -> Result<HeartbeatAnswer, CallError> {
        let state = self.state;
        state.check_saving().await?;
        let heartbeat = state.read(|n| n.heartbeat(uptime_ms()));
        let timeout = Duration::from_secs_f64(heartbeat_timeout_s(self.retry_s));
        let answer: HeartbeatAnswer = self.client.post_within(timeout, self.url, "heartbeat", &heartbeat).await?;
        let registered = state.update(|n| n.on_heartbeat(&answer)).await?;
        state.answered();
        state.follow(answer.follows.clone());
        if answer.report_handles {
            state.handles_changed.notify_one();
        }
        if registered {
            tracing::info!(incarnation = answer.incarnation, status = %answer.status, "registered");
            state.handles_changed.notify_one();
        }
        Ok(answer)
    }

    async fn heartbeat_failed(&mut self, error: &CallError) -> ControlFlow<()> {
        self.failed_heartbeats = self.failed_heartbeats.saturating_add(1);
        let failures = self.failed_heartbeats;
        let most = Duration::from_secs_f64(self.retry_s);
        let mut wait = backoff::wait_at_most(most, LastCalls::of(self.due_at, failures), error.retry_after);
        match error.code {
            Some(ErrorCode::Gone) => return ControlFlow::Break(()),
            Some(ErrorCode::WrongIncarnation) => {
                wait = self.wait_unless_first(failures);
                self.state.update_or_log(Node::register_anew).await;
            }
            // The node's record is bound to another instance. Only an operator or time can change that.
            Some(ErrorCode::ForeignInstance) => {
                wait = wait.max(backoff::wait(LastCalls::Never { attempts: 6 }, None));
            }
            _ => {}
        }
        // Logs the 1st, 2nd, 4th, 8th … failure.
        if failures.is_power_of_two() {
            let retry_in_s = wait.as_secs();
            tracing::warn!(failures, retry_in_s, %error, "a heartbeat failed; allocs keep running");
        }
        self.heartbeat_at = Instant::now() + wait;
        ControlFlow::Continue(())
    }

    /// Sends reports until there is nothing more to report or a report is not accepted.
    async fn send_reports(&mut self) -> ControlFlow<()> {
        while self.state.read(Node::has_report) {
            // That the report number is used is on disk before.
            let sent = match self.state.update(Node::report).await {
                Ok(None) => break,
                Ok(Some(report)) => self.send_report(&report).await,
                Err(error) => Err(error.into()),
            };
            match sent {
                Ok(answer) => {
                    self.failed_reports = 0;
                    self.plan_early(&answer, Instant::now());
                }
                Err(error) => return self.report_failed(&error).await,
            }
        }
        ControlFlow::Continue(())
    }

    /// Plans the next question after the answer to a report.
    fn plan_early(&mut self, answer: &AllocReportAnswer, now: Instant) {
        if brings_work(answer.orders.as_ref()) {
            if self.early.take().is_some() {
                self.heartbeat_at = self.due_at.unwrap_or(now);
            }
        } else if let Some(first_s) = answer.next_heartbeat_s {
            // Jitter, because the members of a job end together.
            let first = next_call(first_s * Rng::real().between(1.0, 1.25));
            self.early = Some(EarlyQuestions { since: now, first, jobs_wait: answer.jobs_wait });
            self.heartbeat_at = self.heartbeat_at.min(now + first);
        }
    }

    /// Sends one report, and saves the answer.
    async fn send_report(&self, report: &AllocReport) -> Result<AllocReportAnswer, CallError> {
        self.state.check_saving().await?;
        let answer: AllocReportAnswer = self.client.post(self.url, "allocs", report).await?;
        for refusal in &answer.refused {
            tracing::warn!(alloc_id = %refusal.alloc_id, reason = refusal.reason, "the status of this alloc was refused");
        }
        self.state.update(|n| n.on_report(&answer)).await?;
        self.state.answered();
        // The answer may acknowledge the end of an alloc, whose handles may be destroyed from now on.
        self.state.handles_changed.notify_one();
        Ok(answer)
    }

    async fn report_failed(&mut self, error: &CallError) -> ControlFlow<()> {
        self.failed_reports = self.failed_reports.saturating_add(1);
        let failures = self.failed_reports;
        let mut wait = self.wait(failures, error.retry_after);
        if let Some(code) = error.code {
            // The control plane answers, but refuses the report. Trying more often does not help, so the wait grows with
            // each refusal.
            let refused = LastCalls::Never { attempts: failures };
            wait = wait.max(backoff::wait(refused, None));
            self.state.update_or_log(|n| n.on_report_refused(code)).await;
            match code {
                ErrorCode::Gone => return ControlFlow::Break(()),
                ErrorCode::NotReady | ErrorCode::WrongIncarnation => {
                    wait = self.wait_unless_first(failures);
                    self.heartbeat_at = self.heartbeat_at.min(Instant::now() + wait);
                }
                ErrorCode::StaleReport => wait = self.wait_unless_first(failures),
                _ => {}
            }
        }
        if failures.is_power_of_two() {
            tracing::warn!(failures, %error, "an alloc report was not accepted; allocs keep running");
        }
        self.report_at = Instant::now() + wait;
        ControlFlow::Continue(())
    }
}

/// How long the machine has been up, in milliseconds, sleep included. The clock never goes back, and an agent that starts
/// again goes on with it.
fn uptime_ms() -> Option<u64> {
    let up = clock_gettime(ClockId::CLOCK_BOOTTIME).ok()?;
    u64::try_from(Duration::from(up).as_millis()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn while_jobs_wait_the_waits_grow_with_the_time_and_otherwise_each_is_twice_the_one_before() {
        let (since, first) = (Instant::now(), Duration::from_secs(1));
        let waits_s = |jobs_wait| {
            let (early, mut now) = (EarlyQuestions { since, first, jobs_wait }, since + first);
            let mut next = || {
                let wait = early.wait(now);
                now += wait;
                wait.as_secs_f64()
            };
            (0..16).map(|_| next()).collect::<Vec<_>>()
        };
        assert_eq!(waits_s(false)[..4], [2.0, 4.0, 8.0, 16.0]);
        let waits = waits_s(true);
        assert_eq!((&waits[..8], waits[8]), (&[1.0; 8][..], 9.0 / 8.0));
        assert!(waits[15] < 3.0, "{waits:?}");
    }
}
