//! The end of a command: when it has come, and its cause.
//!
//! Guarantees: what nodekeeper sent is never told as a signal of somebody else; the first reason to end a command stays its cause,
//! because a later one follows from it; the exit code is that of the first process.
//! Does not: wait. The supervisor does.

use super::remains::Remains;
use super::stops::{RECHECK, StopStep, Stops};
use super::unended;
use crate::work::alloc_dir::AllocTask;
use crate::work::over_memory::was_killed;
use model::EndCause;
use model::wire::AllocOrder;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use tokio::time::Instant;

/// What a shell adds to the number of a signal that ended a command.
const SIGNALLED: i32 = 128;

pub(crate) struct CommandEnd<'a> {
    task: &'a AllocTask,
    remains: Remains<'a>,
    stops: Stops,
    /// Whether a stop was ordered.
    pub(crate) is_ordered: bool,
    /// Why the supervisor ends the command.
    pub(crate) reason: Option<EndCause>,
    /// When it was killed first.
    killed_at: Option<Instant>,
}

impl<'a> CommandEnd<'a> {
    pub(crate) const fn new(task: &'a AllocTask, remains: Remains<'a>, stops: Stops) -> Self {
        Self { task, remains, stops, is_ordered: false, reason: None, killed_at: None }
    }

    /// Notes an order to stop. If the time limit has asked the command to stop already, the limit stays the cause.
    pub(crate) fn order(&mut self, why: String) {
        self.is_ordered = true;
        if !self.stops.is_stopping() {
            self.reason.get_or_insert(EndCause::Stopped { why, code: None });
            self.stops.order(Instant::now());
        }
    }

    /// Kills the command at once.
    pub(crate) fn kill(&mut self, why: EndCause) {
        self.reason.get_or_insert(why);
        self.killed_at.get_or_insert(Instant::now());
        self.remains.processes().kill();
    }

    /// Whether the command was killed and does not die.
    pub(crate) fn is_unended(&self) -> bool {
        self.killed_at.is_some_and(|at| at.elapsed() >= unended::PATIENCE)
    }

    /// When [`CommandEnd::step`] must be called.
    pub(crate) fn next_at(&self) -> Instant {
        let next = self.stops.next_at();
        if self.stops.has_begun() { next.min(Instant::now() + RECHECK) } else { next }
    }

    /// Carries out the next step of the stop, if it is due.
    pub(crate) fn step(&mut self) {
        let (now, policy) = (Instant::now(), &self.task.order.failure_policy);
        if now < self.stops.next_at() {
            return;
        }
        match self.stops.take(now) {
            StopStep::Notify => self.remains.notify(policy.notice_signal()),
            StopStep::Ask => {
                self.reason.get_or_insert(EndCause::OverTime { limit_s: self.task.order.work.timeout_s });
                self.remains.notify(policy.ask_signal());
            }
            StopStep::Kill => {
                self.killed_at.get_or_insert(now);
                self.remains.kill();
            }
        }
    }

    /// Whether the command has ended: with its first process, or when nothing of it remains if a stop has begun.
    pub(crate) fn has_come(&mut self, has_first_ended: bool) -> bool {
        if self.stops.has_begun() { self.remains.have_ended(has_first_ended) } else { has_first_ended }
    }

    /// Why the command ended, if this is how its first process did.
    pub(crate) fn cause(self, first: io::Result<ExitStatus>) -> EndCause {
        let status = match first {
            Ok(status) => status,
            Err(e) => return EndCause::Lost { why: format!("the supervisor could not wait for the command: {e}") },
        };
        let own = match (status.code(), status.signal()) {
            (Some(code), _) => EndCause::Exited { code },
            (None, signal) => EndCause::Signalled { signal: signal.unwrap_or(0) },
        };
        let AllocOrder { needs, work, failure_policy, .. } = &self.task.order;
        let of_notice = SIGNALLED.saturating_add(failure_policy.notice_signal().number());
        let has_saved = work.keep.is_some() && own == EndCause::Exited { code: 0 };
        match self.reason {
            Some(EndCause::Stopped { why, .. }) => EndCause::Stopped { why, code: own.exit_code() },
            Some(reason) => reason,
            // Only the notice of the time limit has been sent, and ended it. What can go on later has perhaps only saved its work.
            None if self.stops.has_begun() && (own.exit_code() == Some(of_notice) || has_saved) => {
                EndCause::OverTime { limit_s: work.timeout_s }
            }
            // A command that goes on after it lost a process, and succeeds, has succeeded.
            None if own != (EndCause::Exited { code: 0 }) && was_killed(self.task) => {
                EndCause::OverMemory { allowed_mib: needs.memory_mib, used_mib: None }
            }
            None => own,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::remains::Processes;
    use super::*;
    use crate::protocol::testing;
    use process_table::Notice;
    use std::time::Duration;

    #[tokio::test(start_paused = true)]
    async fn a_command_that_was_killed_a_minute_ago_and_still_runs_cannot_be_ended() {
        let mut task = testing::task(testing::order(0, 1));
        (task.order.failure_policy.kill_timeout_s, task.order.failure_policy.stop_notice_s) = (5, 0);
        let end = || {
            let notice = Notice::default();
            let processes = Processes { supervisor: i32::MAX, first: 0, is_pack: false, cgroup: None, notice };
            let stops = Stops::new(&task.order.failure_policy, 0, Instant::now());
            CommandEnd::new(&task, Remains::Processes(processes), stops)
        };
        let (mut stopped, mut killed) = (end(), end());
        stopped.order("cancelled".to_owned());
        killed.kill(EndCause::Lost { why: String::new() });
        for (s, want) in [(0, [false, false]), (59, [false, false]), (60, [false, true]), (65, [true, true])] {
            let at = killed.killed_at.unwrap() + Duration::from_secs(s);
            while Instant::now() < at {
                stopped.step();
                tokio::time::advance(Duration::from_secs(1)).await;
            }
            assert_eq!([stopped.is_unended(), killed.is_unended()], want, "{s} s");
        }
    }
}
