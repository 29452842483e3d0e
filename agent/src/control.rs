//! The loop of heartbeats and alloc reports.
//!
//! Guarantees: one call at a time, so that answers come in order; heartbeats when told, when
//! something urgent is to be said, and after failures as `backoff` says; reports as soon as
//! there is something to report. Ends for 410 `gone` alone. While nothing can be saved (a full
//! disk) it is silent: a node that cannot keep what it is told must not seem well, or its work
//! would be waited for without end.
//! Does not: stop work for any other answer, or for none.

use crate::agent::Shared;
use crate::backoff::{self, History};
use crate::client::{CallError, Client, next_call};
use crate::protocol::Node;
use shared::chance::Chance;
use shared::wire::{AllocReportAnswer, ErrorCode, HeartbeatAnswer};
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

/// Until when the next attempts wait, and how the last ones went.
struct Pace {
    heartbeat_at: Instant,
    report_at: Instant,
    /// When the next answer to a heartbeat was due; none before the first.
    due_at: Option<Instant>,
    failures: u32,
    report_failures: u32,
}

/// Calls until the node is gone.
pub async fn run(shared: &Shared, client: &Client, url: &str) {
    let now = Instant::now();
    let mut pace = Pace { heartbeat_at: now, report_at: now, due_at: None, failures: 0, report_failures: 0 };
    loop {
        if Instant::now() >= pace.heartbeat_at
            && let Gone::Yes = heartbeat(shared, client, url, &mut pace).await
        {
            return;
        }
        if Instant::now() >= pace.report_at
            && pace.failures == 0
            && let Gone::Yes = report(shared, client, url, &mut pace).await
        {
            return;
        }
        let to_report = pace.failures == 0 && shared.read(Node::has_report);
        let wake_at = if to_report { pace.heartbeat_at.min(pace.report_at) } else { pace.heartbeat_at };
        tokio::select! {
            () = sleep_until(wake_at) => {}
            () = shared.changed.notified() => {}
            // While nobody answers, urgency does not help; it is said with the next attempt.
            () = shared.urgent.notified(), if pace.failures == 0 => pace.heartbeat_at = Instant::now(),
        }
    }
}

#[derive(PartialEq, Eq)]
enum Gone {
    Yes,
    No,
}

impl Pace {
    fn history(&self, attempts: u32) -> History {
        match self.due_at {
            None => History::Never { attempts },
            Some(due) => History::Overdue(Instant::now().saturating_duration_since(due)),
        }
    }

    fn wait(&self, attempts: u32, retry_after: Option<Duration>) -> Duration {
        backoff::delay(self.history(attempts), retry_after, Chance::real().between(0.0, 1.0))
    }

    /// After a refusal that another heartbeat or number puts right: at once, but not in a loop.
    fn once_at_once(&self, attempts: u32) -> Duration {
        if attempts <= 1 { Duration::ZERO } else { self.wait(attempts, None) }
    }
}

async fn heartbeat(shared: &Shared, client: &Client, url: &str, pace: &mut Pace) -> Gone {
    let called = match shared.can_save() {
        Ok(()) => client.post::<HeartbeatAnswer>(url, "heartbeat", &shared.read(Node::heartbeat)).await,
        Err(error) => Err(CallError::Failed { what: error.to_string(), retry_after: None }),
    };
    let error = match called {
        Ok(answer) => match shared.update(|n| n.on_heartbeat(&answer)) {
            Ok(registered) => {
                shared.heard_now();
                if registered {
                    tracing::info!(incarnation = answer.incarnation, status = %answer.status, "registered");
                    shared.sweep.notify_one();
                }
                if pace.failures > 0 {
                    tracing::info!(failures = pace.failures, "heartbeats are answered again");
                }
                pace.failures = 0;
                let due = Instant::now() + next_call(answer.next_heartbeat_s);
                pace.heartbeat_at = due;
                pace.due_at = Some(due);
                return Gone::No;
            }
            Err(error) => CallError::Failed { what: error.to_string(), retry_after: None },
        },
        Err(error) => error,
    };
    pace.failures = pace.failures.saturating_add(1);
    let mut wait = pace.wait(pace.failures, error.retry_after());
    match error.code() {
        Some(ErrorCode::Gone) => return Gone::Yes,
        Some(ErrorCode::WrongIncarnation) => {
            wait = pace.once_at_once(pace.failures);
            save(shared.update(Node::register_anew));
        }
        // Another instance holds the record: only an operator or time puts that right.
        Some(ErrorCode::ForeignInstance) => {
            wait = wait.max(backoff::delay(History::Never { attempts: 6 }, None, Chance::real().between(0.0, 1.0)))
        }
        _ => {}
    }
    // One line when it begins, and one now and then while it lasts.
    if pace.failures.is_power_of_two() {
        tracing::warn!(failures = pace.failures, retry_in_s = wait.as_secs(), %error, "heartbeat failed; work goes on");
    }
    pace.heartbeat_at = Instant::now() + wait;
    Gone::No
}

/// Sends reports while there is something to say and they are taken.
async fn report(shared: &Shared, client: &Client, url: &str, pace: &mut Pace) -> Gone {
    loop {
        if !shared.read(Node::has_report) {
            return Gone::No;
        }
        // Its number is on disk before it is used.
        let called = match shared.update(Node::report) {
            Ok(None) => return Gone::No,
            Ok(Some(report)) => client.post::<AllocReportAnswer>(url, "allocs", &report).await,
            Err(error) => Err(CallError::Failed { what: error.to_string(), retry_after: None }),
        };
        let error = match called {
            Ok(answer) => {
                for refusal in &answer.refused {
                    tracing::warn!(alloc_id = %refusal.alloc_id, reason = refusal.reason, "a report of it was refused");
                }
                match shared.update(|n| n.on_report(&answer)) {
                    Ok(()) => {
                        shared.heard_now();
                        pace.report_failures = 0;
                        // What ended and was taken over may now be destroyed.
                        shared.sweep.notify_one();
                        continue;
                    }
                    Err(error) => CallError::Failed { what: error.to_string(), retry_after: None },
                }
            }
            Err(error) => error,
        };
        pace.report_failures = pace.report_failures.saturating_add(1);
        let mut wait = pace.wait(pace.report_failures, error.retry_after());
        if let Some(code) = error.code() {
            // It is heard and refused, though heartbeats are taken: asking faster will not help.
            let refused = History::Never { attempts: pace.report_failures };
            wait = wait.max(backoff::delay(refused, None, Chance::real().between(0.0, 1.0)));
            save(shared.update(|n| n.on_report_refused(code)));
            match code {
                ErrorCode::Gone => return Gone::Yes,
                ErrorCode::NotReady | ErrorCode::WrongIncarnation => {
                    wait = pace.once_at_once(pace.report_failures);
                    pace.heartbeat_at = pace.heartbeat_at.min(Instant::now() + wait);
                }
                ErrorCode::StaleReport => wait = pace.once_at_once(pace.report_failures),
                _ => {}
            }
        }
        if pace.report_failures.is_power_of_two() {
            tracing::warn!(failures = pace.report_failures, %error, "an alloc report was not taken; work goes on");
        }
        pace.report_at = Instant::now() + wait;
        return Gone::No;
    }
}

fn save(result: Result<(), crate::state::StateError>) {
    if let Err(error) = result {
        tracing::error!(%error, "cannot save");
    }
}
