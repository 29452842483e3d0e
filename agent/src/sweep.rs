//! The loop of handle reports, and destroying what an answer names.
//!
//! Guarantees: `as_of` is read before the listing begins; nothing of an alloc is destroyed
//! while it runs or before its end was taken over; one that hangs holds up the others for a
//! bounded time and is not begun twice. Ends for 410 `gone` alone.
//! Does not: choose what to destroy. The receipt is the next report.

use crate::agent::Shared;
use crate::backoff::{self, History};
use crate::client::{CallError, Client, next_call};
use crate::handles::{Places, Target};
use crate::protocol::Node;
use crate::runner::Runner;
use shared::chance::Chance;
use shared::wire::{ErrorCode, HandleReportAnswer};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

/// How soon "soon" is: several ends close together make one report.
const SOON: Duration = Duration::from_millis(500);

/// What was listed, and what was answered.
type Reported = (BTreeSet<String>, HandleReportAnswer);

/// Reports handles and destroys them.
#[derive(Debug)]
pub struct Sweeper {
    places: Places,
    at_a_time: usize,
    patience: Duration,
    in_hand: Arc<Mutex<BTreeSet<String>>>,
}

impl Sweeper {
    /// Destroys so many at a time, and waits so long for each.
    pub fn new(places: Places, at_a_time: usize, patience: Duration) -> Self {
        Self { places, at_a_time, patience, in_hand: Arc::default() }
    }

    /// Reports until the node is gone.
    pub async fn run(&self, shared: &Shared, client: &Client, url: &str) {
        let mut due_at = None;
        let mut failures = 0_u32;
        let mut held = false;
        loop {
            let wait = match self.report(shared, client, url).await {
                Ok(None) => Duration::from_secs(60),
                Ok(Some((listed, answer))) => {
                    failures = 0;
                    say_what_is_wrong(&answer, &mut held);
                    // What was not there anyway is no news to report.
                    let told = answer.destroy.iter().filter(|h| listed.contains(*h));
                    let destroyed = self.destroy_all(shared, told).await;
                    let next = next_call(answer.next_report_s);
                    due_at = Some(Instant::now() + next);
                    // The receipt, and perhaps more to do.
                    if destroyed > 0 { next.min(SOON) } else { next }
                }
                Err(error) => {
                    failures = failures.saturating_add(1);
                    match error.code() {
                        Some(ErrorCode::Gone) => return,
                        Some(ErrorCode::WrongIncarnation) => {
                            if let Err(error) = shared.update(Node::register_anew) {
                                tracing::error!(%error, "cannot save");
                            }
                            shared.urgent.notify_one();
                        }
                        Some(ErrorCode::NotReady) => shared.urgent.notify_one(),
                        _ => {}
                    }
                    if failures.is_power_of_two() {
                        tracing::warn!(failures, %error, "a handle report was not taken");
                    }
                    let history = due_at.map_or(History::Never { attempts: failures }, |due| {
                        History::Overdue(Instant::now().saturating_duration_since(due))
                    });
                    backoff::delay(history, error.retry_after(), Chance::real().between(0.0, 1.0))
                }
            };
            let at = Instant::now() + wait;
            tokio::select! {
                () = sleep_until(at) => {}
                () = shared.sweep.notified(), if failures == 0 => sleep(SOON).await,
            }
        }
    }

    /// None while the node is not registered.
    async fn report(&self, shared: &Shared, client: &Client, url: &str) -> Result<Option<Reported>, CallError> {
        let as_of = shared.read(|n| n.durable.as_of);
        let (handles, complete) = self.places.list().await;
        let listed = handles.iter().map(|h| h.handle.clone()).collect();
        let report = shared.update(|n| n.handle_report(as_of, complete, handles));
        match report.map_err(|e| CallError::Failed { what: e.to_string(), retry_after: None })? {
            None => Ok(None),
            Some(report) => client.post(url, "handles", &report).await.map(|answer| Some((listed, answer))),
        }
    }

    /// Destroys these, as far as they may be, and answers how many are gone.
    async fn destroy_all(&self, shared: &Shared, handles: impl Iterator<Item = &String>) -> usize {
        let gate = Arc::new(Semaphore::new(self.at_a_time));
        let mut tasks = JoinSet::new();
        for handle in handles {
            let Some(target) = Target::parse(handle) else {
                tracing::error!(handle, "refused to destroy it: this is no name of a handle here");
                continue;
            };
            let in_hand = self.in_hand().contains(handle);
            if !in_hand && self.may_destroy(shared, &target) {
                tasks.spawn(self.destroy_one(handle.clone(), target, gate.clone()));
            }
        }
        tasks.join_all().await.into_iter().filter(|destroyed| *destroyed).count()
    }

    fn destroy_one(
        &self,
        handle: String,
        target: Target,
        gate: Arc<Semaphore>,
    ) -> impl Future<Output = bool> + Send + use<> {
        let (places, in_hand, patience) = (self.places.clone(), self.in_hand.clone(), self.patience);
        async move {
            let _permit = gate.acquire().await;
            lock(&in_hand).insert(handle.clone());
            let name = handle.clone();
            // Its own task: when it hangs we stop waiting, but it is not begun again.
            let work = tokio::spawn(async move {
                let result = places.destroy(&target).await;
                lock(&in_hand).remove(&name);
                result
            });
            match tokio::time::timeout(patience, work).await {
                Ok(Ok(Ok(()))) => return true,
                Ok(Ok(Err(error))) => tracing::warn!(handle, %error, "cannot be destroyed: tried again when told"),
                Ok(Err(error)) => tracing::error!(handle, %error, "destroying it failed badly"),
                Err(_) => tracing::warn!(handle, "destroying it hangs: others go first"),
            }
            false
        }
    }

    fn may_destroy(&self, shared: &Shared, target: &Target) -> bool {
        match target {
            Target::Alloc(id) => {
                !shared.read(|n| n.durable.allocs.contains_key(id)) && !Runner::is_running(&self.places.allocs, *id)
            }
            Target::Cache(name) => shared.read(|n| n.durable.allocs.values().all(|a| !a.order.caches.contains(name))),
            Target::Container(_) => true,
        }
    }

    fn in_hand(&self) -> std::sync::MutexGuard<'_, BTreeSet<String>> {
        lock(&self.in_hand)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Once when it begins, not with each report.
fn say_what_is_wrong(answer: &HandleReportAnswer, held: &mut bool) {
    let wrong = answer.held || !answer.conflicts.is_empty();
    if wrong && !*held {
        tracing::warn!(held = answer.held, conflicts = ?answer.conflicts, "handles wait for an operator");
    }
    *held = wrong;
}
