//! Failed starts in a row: the count, and the pause that follows.
//!
//! Guarantees: each failed start is counted, also if several fail in one run; the pause doubles at most once in
//! a run.
//! Does not: decide that a start failed; the plan does.

use super::acting::Acting;
use model::{ActionName, NodeRecord, Reason, Subject, Time};

/// How many characters of the console output an event keeps, counted from its end.
const CONSOLE_CHARS: usize = 4000;

impl Acting<'_> {
    /// Ends the count and the pause if a node has started well since the last failed start. Every run checks this,
    /// because that node may be gone by the time of the next failure.
    pub(super) async fn note_good_start(&self) {
        let before = self.run.observed.control.failed_starts();
        let first_ping = self.run.observed.nodes.iter().filter(|n| n.refuses().is_none() && n.awaits().is_none());
        let first_ping = first_ping.filter_map(|n| n.contact()).map(|c| c.first_ping_at).max();
        let Some(after) = before.after_success(first_ping) else { return };
        match self.run.store.write_entry(&before, &after).await {
            Ok(written) => *self.failed_starts.lock().await = Some(written),
            Err(e) => tracing::warn!(error = %e, "a start that succeeded was not noted"),
        }
    }

    pub(super) async fn count_failed_start(&self, record: &NodeRecord, now: Time) {
        let read = self.run.observed.control.failed_starts();
        // Several starts may fail in one run, so each builds on the entry that this run wrote last.
        let mut last = self.failed_starts.lock().await;
        let before = last.clone().unwrap_or_else(|| read.clone());
        let after = before.failed(&read, self.run.observed.policy.boot.failures_before_pause, now);
        let pause_s = after.wait_s;
        let first = pause_s.is_some() && !before.applies(now);
        let output = match record.life().and_then(|l| l.instance_id.as_deref()) {
            Some(id) if first => self.cloud.console_output(id).await.ok().flatten(),
            _ => None,
        };
        match self.run.store.write_entry(&before, &after).await {
            Ok(written) => *last = Some(written),
            Err(e) => tracing::warn!(error = %e, "a failed start was not counted"),
        }
        if pause_s.is_some() {
            // The pause starts now, also for the launches that this run has planned.
            self.rate.stop();
        }
        if let (true, Some(pause_s)) = (first, pause_s) {
            let output = output.unwrap_or_default();
            let skipped = output.chars().count().saturating_sub(CONSOLE_CHARS);
            let console = output.chars().skip(skipped).collect();
            let reason = Reason::StartsFailed { count: after.count.unwrap_or(0), pause_s, console };
            self.run.record_event(&Subject::Cluster, ActionName::HoldBack, &reason).await;
        }
    }
}
