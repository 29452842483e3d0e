//! When an alloc gets its notice, is asked to stop, and is killed.
//!
//! ```text
//! a stop is ordered ─▶ notice ─ stop_notice_s ─▶ asked ─ kill_timeout_s ─▶ killed, again and again
//! a time limit             notice ─ stop_notice_s ─▶ the limit: asked ─ kill_timeout_s ─▶ killed
//! ```
//!
//! Guarantees: notice and asking come once each, in this order, and killing is repeated; an order never makes a step later than the
//! time limit does; without a notice an alloc is asked at once.
//! Does not: send signals, or know why an alloc stops.

use model::{FailurePolicy, Time};
use std::time::Duration;
use tokio::time::Instant;

/// The wait before everything is killed again.
const KILL_AGAIN: Duration = Duration::from_secs(1);

/// How often to look whether something is left, once a stop has begun.
pub(crate) const RECHECK: Duration = Duration::from_millis(50);

/// Far more than any alloc runs.
pub(crate) const FAR: Duration = Duration::from_secs(100 * 365 * 86_400);

/// A step of a stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StopStep {
    /// Tell the alloc that it will be asked to stop.
    Notify,
    Ask,
    Kill,
}

/// The steps of one alloc that are still to come.
pub(crate) struct Stops {
    notice: Duration,
    /// The time from asking the command to stop to killing it.
    patience: Duration,
    next: StopStep,
    /// `None` while no stop is known.
    ask_at: Option<Instant>,
    kill_at: Instant,
}

impl Stops {
    /// The steps of an alloc that starts now. `timeout_s` is its time limit, 0 for none.
    pub(crate) fn new(policy: &FailurePolicy, timeout_s: u64, now: Instant) -> Self {
        let seconds = |s: u64| Duration::from_secs(s).min(FAR);
        let notice = seconds(policy.stop_notice_s);
        Self {
            notice,
            patience: seconds(policy.kill_timeout_s),
            next: if notice.is_zero() { StopStep::Ask } else { StopStep::Notify },
            ask_at: (timeout_s > 0).then(|| now + seconds(timeout_s)),
            kill_at: now + FAR,
        }
    }

    /// Notes an order to stop.
    pub(crate) fn order(&mut self, now: Instant) {
        let ask_at = now + self.notice;
        self.ask_at = Some(self.ask_at.map_or(ask_at, |at| at.min(ask_at)));
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.next == StopStep::Kill
    }

    /// Whether a step was carried out.
    pub(crate) fn has_begun(&self) -> bool {
        self.is_stopping() || (self.next == StopStep::Ask && !self.notice.is_zero())
    }

    pub(crate) fn next_at(&self) -> Instant {
        let far = self.kill_at;
        match self.next {
            StopStep::Notify => self.ask_at.map_or(far, |at| at.checked_sub(self.notice).unwrap_or(at)),
            StopStep::Ask => self.ask_at.unwrap_or(far),
            StopStep::Kill => self.kill_at,
        }
    }

    /// Returns the next step, for the caller to carry out, and goes on to the one after it.
    pub(crate) fn take(&mut self, now: Instant) -> StopStep {
        let step = self.next;
        match step {
            StopStep::Notify => self.next = StopStep::Ask,
            StopStep::Ask => (self.next, self.kill_at) = (StopStep::Kill, now + self.patience),
            StopStep::Kill => self.kill_at = now + KILL_AGAIN,
        }
        step
    }
}

/// The variable with the time at which the time limit asks a command to stop, in seconds since the epoch by the node's clock.
/// `None` without a time limit.
pub(crate) fn stop_at(timeout_s: u64, now: Time) -> Option<(String, String)> {
    let limit_s = i64::try_from(timeout_s).ok().filter(|s| *s > 0)?;
    Some(("NODEKEEPER_STOP_AT".to_owned(), now.as_epoch_s().saturating_add(limit_s).to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The steps with their seconds, if a stop is ordered at the second of `order`.
    fn steps(stop_notice_s: u64, timeout_s: u64, order: Option<u64>) -> Vec<(StopStep, u64)> {
        let policy = FailurePolicy { kill_timeout_s: 5, stop_notice_s, ..FailurePolicy::default() };
        let (now, mut found) = (Instant::now(), Vec::new());
        let mut stops = Stops::new(&policy, timeout_s, now);
        for s in 0..400 {
            let at = now + Duration::from_secs(s);
            if order == Some(s) {
                stops.order(at);
            }
            while found.len() < 5 && stops.next_at() <= at {
                found.push((stops.take(at), s));
            }
        }
        found.truncate(found.iter().position(|(step, _)| *step == StopStep::Kill).map_or(5, |n| n + 2));
        found
    }

    #[test]
    fn an_alloc_hears_of_its_stop_before_it_is_asked_and_is_asked_before_it_is_killed() {
        use StopStep::{Ask, Kill, Notify};
        assert_eq!(steps(0, 0, None), []);
        assert_eq!(steps(60, 0, None), []);
        assert_eq!(steps(0, 0, Some(7)), [(Ask, 7), (Kill, 12), (Kill, 13)]);
        assert_eq!(steps(60, 0, Some(7)), [(Notify, 7), (Ask, 67), (Kill, 72), (Kill, 73)]);
        assert_eq!(steps(0, 100, None), [(Ask, 100), (Kill, 105), (Kill, 106)]);
        assert_eq!(steps(60, 100, None), [(Notify, 40), (Ask, 100), (Kill, 105), (Kill, 106)]);
        // An order while the time limit is near changes nothing, and an earlier one comes first.
        assert_eq!(steps(60, 100, Some(70)), [(Notify, 40), (Ask, 100), (Kill, 105), (Kill, 106)]);
        assert_eq!(steps(60, 100, Some(10)), [(Notify, 10), (Ask, 70), (Kill, 75), (Kill, 76)]);
        assert_eq!(steps(60, 100, Some(102)), [(Notify, 40), (Ask, 100), (Kill, 105), (Kill, 106)]);
    }
}
