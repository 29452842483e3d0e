//! The time within one run.
//!
//! Guarantees: the clock is read once, at the start of the run, and the time is measured from there; an
//! impossible deadline counts as unknown.
//! Does not: read the clock itself; `lambda` does.

use model::{Span, Time};
use std::time::Duration;
use tokio::time::Instant;

/// A deadline before this time counts as unknown: an emulator that does not know the deadline sends 1970.
const IMPOSSIBLE_BEFORE: Time = Time::from_ms(1_000_000_000_000);

/// The time within one run. Cheap to copy.
#[derive(Clone, Copy, Debug)]
pub struct RunClock {
    start: Time,
    began: Instant,
    deadline: Instant,
}

impl RunClock {
    /// The clock of a run that starts at `now` and must end by `deadline`, but after 900 s at the latest. If the
    /// deadline is unknown (`None`, or impossible), the run has `budget`.
    pub fn new(now: Time, deadline: Option<Time>, budget: Duration) -> Self {
        let began = Instant::now();
        let left = match deadline {
            Some(at) if at > IMPOSSIBLE_BEFORE => {
                Duration::from_millis(u64::try_from(at.since(now).as_ms()).unwrap_or(0))
            }
            _ => budget,
        };
        Self { start: now, began, deadline: began + left.min(Duration::from_secs(900)) }
    }

    /// The time of the start plus the time since then: a clock that is set during the run does not count.
    pub fn now(&self) -> Time {
        self.start + Span::from_ms(i64::try_from(self.began.elapsed().as_millis()).unwrap_or(i64::MAX))
    }

    /// When the run must end.
    pub const fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Whether an action that needs this much time may still be started.
    pub fn has_left(&self, reserve_ms: u64) -> bool {
        Instant::now() < self.latest(reserve_ms)
    }

    /// The latest time at which an action that needs this much time may be started.
    pub fn latest(&self, reserve_ms: u64) -> Instant {
        self.deadline.checked_sub(Duration::from_millis(reserve_ms)).unwrap_or(self.began)
    }

    pub fn elapsed(&self) -> Span {
        self.now().since(self.start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_impossible_deadline_counts_as_unknown() {
        let now = Time::from_ms(1_800_000_000_000);
        let unknown = RunClock::new(now, Some(Time::from_ms(10_000)), Duration::from_secs(50));
        assert!(unknown.has_left(49_000) && !unknown.has_left(50_000));
        let known = RunClock::new(now, Some(now + Span::from_s(8)), Duration::from_secs(50));
        assert!(known.has_left(5000));
        tokio::time::advance(Duration::from_secs(4)).await;
        assert!(!known.has_left(5000));
        assert_eq!(known.now(), now + Span::from_s(4));
    }
}
