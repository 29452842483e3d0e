//! The pace of launch calls in one run, and the refusals of EC2 in that run.
//!
//! Guarantees: calls are at least 1 / `launch.calls_per_second` apart; what EC2 refused is not tried again in this run; no
//! further call is made after EC2 throttled a call or did not accept the caller, or after too many failed starts.
//! Does not: call EC2.

use model::{LaunchCall, Offering, Scope};
use std::collections::BTreeSet;
use std::sync::PoisonError;
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::Instant;

pub(crate) struct LaunchRate {
    gap: Duration,
    next: Mutex<Option<Instant>>,
    /// What EC2 refused in this run.
    refused: std::sync::Mutex<BTreeSet<Scope>>,
}

impl LaunchRate {
    pub(super) fn new(calls_per_second: f64) -> Self {
        let gap = Duration::from_secs_f64(1.0 / calls_per_second.max(0.01));
        Self { gap, next: Mutex::new(None), refused: std::sync::Mutex::default() }
    }

    /// Waits for the turn of a call. Returns `false` at once, without taking the turn, if the turn would come after
    /// `latest`.
    pub(super) async fn wait(&self, latest: Instant) -> bool {
        let mut next = self.next.lock().await;
        let at = next.unwrap_or_else(Instant::now).max(Instant::now());
        if at > latest {
            return false;
        }
        *next = Some(at + self.gap);
        drop(next);
        tokio::time::sleep_until(at).await;
        true
    }

    pub(super) fn refuse(&self, scope: Scope) {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner).insert(scope);
    }

    pub(super) fn is_refused(&self, offering: &Offering) -> bool {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner).iter().any(|scope| scope.covers(offering))
    }

    /// Which call the next launch is.
    pub(super) fn launch_call(&self) -> LaunchCall {
        let is_refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner).contains(&Scope::FLEET);
        if is_refused { LaunchCall::One } else { LaunchCall::Fleet }
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner).contains(&Scope::ACCOUNT)
    }

    /// Refuses every further launch of this run.
    pub(super) fn stop(&self) {
        self.refuse(Scope::ACCOUNT);
    }
}
