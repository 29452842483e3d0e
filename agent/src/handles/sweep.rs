//! The loop of handle reports, which destroys the handles that an answer names.
//!
//! Guarantees: `as_of` is read before the listing begins; nothing of an alloc is destroyed while the alloc runs, or
//! before its end was acknowledged; a destroy that hangs delays the others for a bounded time, and is not started a
//! second time; the loop ends only after 410 `gone`.
//! Does not: choose what to destroy. The next report shows what was destroyed.

use super::{HandleStore, HandleTarget};
use crate::contact::backoff::{self, LastCalls};
use crate::contact::client::{CallError, ControlPlaneClient, next_call};
use crate::contact::shared_node::{SharedNode, lock};
use crate::protocol::{HandleList, HandleRound, Node};
use model::wire::{ErrorCode, HandleReportAnswer};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

/// The wait before a report that follows a change: several changes close together make one report.
const CHANGE_DELAY: Duration = Duration::from_millis(500);

/// The wait before the next attempt while the node is not registered.
const UNREGISTERED_DELAY: Duration = Duration::from_secs(60);

/// After this time, the handles are reported once more although nothing asked for it. A table that was restored from a
/// backup may not know what this node knows.
const AT_LEAST_EVERY: Duration = Duration::from_secs(3600);

pub struct Sweeper {
    handles: HandleStore,
    max_at_a_time: usize,
    timeout: Duration,
    /// The handles that are being destroyed now.
    in_progress: Arc<Mutex<BTreeSet<String>>>,
    /// Why handles could not be destroyed when they were last tried.
    failed: Arc<Mutex<BTreeMap<String, String>>>,
}

#[derive(Default)]
struct ReportHistory {
    /// When the next report was due after the last answer; absent before the first answer.
    due_at: Option<Instant>,
    failures: u32,
    /// The wait before the handles are listed again, by the last answer.
    next: Duration,
    reported_at: Option<Instant>,
}

impl Sweeper {
    /// Destroys at most `max_at_a_time` handles at a time, and waits for each at most `timeout`.
    pub fn new(handles: HandleStore, max_at_a_time: usize, timeout: Duration) -> Self {
        Self { handles, max_at_a_time, timeout, in_progress: Arc::default(), failed: Arc::default() }
    }

    /// Reports until the node is gone.
    pub async fn run(&self, state: &Arc<SharedNode>, client: &ControlPlaneClient, url: &str) {
        self.handles.remove_leftovers().await;
        let mut history = ReportHistory::default();
        loop {
            let wait = match self.report(state, client, url, &mut history).await {
                Ok(wait) => wait,
                Err(error) => match report_failed(state, &error, &mut history).await {
                    ControlFlow::Continue(wait) => wait,
                    ControlFlow::Break(()) => return,
                },
            };
            let at = Instant::now() + wait;
            tokio::select! {
                () = sleep_until(at) => {}
                () = state.handles_changed.notified(), if history.failures == 0 => sleep(CHANGE_DELAY).await,
            }
        }
    }

    /// Lists the handles, and reports them unless they are settled. Destroys the handles that the answer names. Returns when to look
    /// again, also if these handles are settled, or the node is not registered.
    async fn report(
        &self,
        state: &Arc<SharedNode>,
        client: &ControlPlaneClient,
        url: &str,
        history: &mut ReportHistory,
    ) -> Result<Duration, CallError> {
        let as_of = state.read(|n| n.durable.as_of);
        let list = self.with_failures(self.handles.list());
        if history.reported_at.is_some_and(|at| at.elapsed() >= AT_LEAST_EVERY) {
            state.update_or_log(Node::report_handles_again).await;
        }
        if state.read(|n| n.durable.incarnation.is_none()) {
            return Ok(UNREGISTERED_DELAY);
        }
        let Some(round) = state.read(|n| n.handle_round(as_of, list)) else { return Ok(history.next) };
        history.reported_at = Some(Instant::now());
        let Some(report) = state.update(|n| n.handle_report(&round)).await? else { return Ok(UNREGISTERED_DELAY) };
        let answer = client.post(url, "handles", &report).await?;
        history.failures = 0;
        state.update_or_log(|n| n.end_handle_round(&round, &answer)).await;
        Ok(self.apply(state, &round, &answer, history).await)
    }

    /// Adds to the list why handles could not be destroyed. Forgets the reasons of handles that are not listed.
    fn with_failures(&self, mut list: HandleList) -> HandleList {
        let mut failed = lock(&self.failed);
        let listed = list.handles.iter_mut().filter_map(|handle| {
            handle.stays = failed.remove(&handle.handle);
            Some((handle.handle.clone(), handle.stays.clone()?))
        });
        let still = listed.collect();
        *failed = still;
        list
    }

    /// Destroys the handles that the answer names, and returns the wait before the next report.
    async fn apply(
        &self,
        state: &Arc<SharedNode>,
        round: &HandleRound,
        answer: &HandleReportAnswer,
        history: &mut ReportHistory,
    ) -> Duration {
        // A handle that was not reported does not exist here, so it is no reason for an early report. One without a label
        // is not this agent's.
        let label_of = |handle: &String| round.reported(handle)?.label.clone();
        let to_destroy = answer.destroy.iter().filter_map(|handle| Some((handle, label_of(handle)?)));
        let destroyed = self.destroy_all(state, to_destroy).await;
        let next = next_call(answer.next_report_s);
        (history.next, history.due_at) = (next, Some(Instant::now() + next));
        // An early report shows what was destroyed, and its answer may name more.
        if destroyed > 0 || answer.left > 0 { next.min(CHANGE_DELAY) } else { next }
    }

    /// Destroys these handles, except those in use. Returns how many were destroyed.
    async fn destroy_all(&self, state: &Arc<SharedNode>, handles: impl Iterator<Item = (&String, String)>) -> usize {
        let semaphore = Arc::new(Semaphore::new(self.max_at_a_time));
        let mut tasks = JoinSet::new();
        for (handle, label) in handles {
            let Some(target) = HandleTarget::parse(handle) else {
                tracing::error!(handle, "refused to destroy it: this is not the name of a handle on this node");
                continue;
            };
            let in_progress = lock(&self.in_progress).contains(handle);
            if !in_progress && state.read(|n| self.handles.is_free(n, &target)) {
                tasks.spawn(self.destroy_one(state.clone(), handle.clone(), target, label, semaphore.clone()));
            }
        }
        tasks.join_all().await.into_iter().filter(|destroyed| *destroyed).count()
    }

    fn destroy_one(
        &self,
        state: Arc<SharedNode>,
        handle: String,
        target: HandleTarget,
        label: String,
        semaphore: Arc<Semaphore>,
    ) -> impl Future<Output = bool> + Send + use<> {
        let (handles, in_progress, timeout) = (self.handles.clone(), self.in_progress.clone(), self.timeout);
        let failed = self.failed.clone();
        async move {
            let _permit = semaphore.acquire().await;
            lock(&in_progress).insert(handle.clone());
            let name = handle.clone();
            // Runs as a separate task. If the task hangs, we stop waiting, but the handle stays in progress, so the
            // destroy is not started again.
            let work = tokio::spawn(async move {
                let result = handles.destroy(&target, &label, &state).await;
                lock(&in_progress).remove(&name);
                match &result {
                    Ok(()) => _ = lock(&failed).remove(&name),
                    Err(error) => _ = lock(&failed).insert(name, model::short_reason(&error.to_string())),
                }
                result
            });
            match tokio::time::timeout(timeout, work).await {
                Ok(Ok(Ok(()))) => return true,
                Ok(Ok(Err(error))) => {
                    tracing::warn!(handle, %error, "cannot destroy it: tried again when an answer names it again");
                }
                Ok(Err(error)) => tracing::error!(handle, %error, "the task that destroys it failed"),
                Err(_) => tracing::warn!(handle, "destroying it takes too long: going on with the others"),
            }
            false
        }
    }
}

/// What to do after a report failed: end, or wait for this long.
async fn report_failed(
    state: &SharedNode,
    error: &CallError,
    history: &mut ReportHistory,
) -> ControlFlow<(), Duration> {
    history.failures = history.failures.saturating_add(1);
    let failures = history.failures;
    match error.code {
        Some(ErrorCode::Gone) => return ControlFlow::Break(()),
        Some(ErrorCode::WrongIncarnation) => {
            state.update_or_log(Node::register_anew).await;
            state.heartbeat_now.notify_one();
        }
        Some(ErrorCode::NotReady) => state.heartbeat_now.notify_one(),
        _ => {}
    }
    // Logs the 1st, 2nd, 4th, 8th … failure.
    if failures.is_power_of_two() {
        tracing::warn!(failures, %error, "a handle report was not accepted");
    }
    ControlFlow::Continue(backoff::wait(LastCalls::of(history.due_at, failures), error.retry_after))
}
