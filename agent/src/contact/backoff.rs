//! How long to wait after a failed call.
//!
//! Guarantees: the wait is short after the first failures and longer after many; it is always random, so that the
//! nodes of a fleet do not all call at the same moment.
//! Does not: give up.

use model::Rng;
use std::time::Duration;
use tokio::time::Instant;

/// The longest wait, unless the control plane asks for more.
const MAX_DELAY: Duration = Duration::from_secs(30);

/// The longest `Retry-After` that is honoured: no answer may silence a node for good.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(300);

/// How the last calls went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LastCalls {
    /// No call was ever answered.
    Never {
        /// The failed attempts, at least 1.
        attempts: u32,
    },
    /// A call was answered before. The next answer was due this long ago (zero: not due yet).
    Overdue(Duration),
}

impl LastCalls {
    /// The history after `attempts` failures, if the next answer was due at this time: absent before the first answer.
    pub fn of(due_at: Option<Instant>, attempts: u32) -> Self {
        due_at.map_or(Self::Never { attempts }, |due| Self::Overdue(Instant::now().saturating_duration_since(due)))
    }
}

pub fn wait(history: LastCalls, retry_after: Option<Duration>) -> Duration {
    wait_at_most(MAX_DELAY, history, retry_after)
}

/// [`wait`] with a shorter longest wait, for a node that answered before.
pub fn wait_at_most(most: Duration, history: LastCalls, retry_after: Option<Duration>) -> Duration {
    delay(most, history, retry_after, Rng::real().between(0.0, 1.0))
}

/// How long to wait after a failure. `chance` is a random number in 0..1.
fn delay(most: Duration, history: LastCalls, retry_after: Option<Duration>, chance: f64) -> Duration {
    let wait = match history {
        // 1 s, 1–2 s, 2–4 s … 15–30 s: a node that has just booted tries often, and a node that has failed for long
        // tries seldom.
        LastCalls::Never { attempts } => {
            let most = f64::from(2_u32.saturating_pow(attempts.saturating_sub(1))).min(MAX_DELAY.as_secs_f64());
            (most * (1.0 + chance) / 2.0).max(1.0)
        }
        LastCalls::Overdue(by) if by <= MAX_DELAY => 1.0 + chance,
        LastCalls::Overdue(_) => 1.0 + chance * (most.min(MAX_DELAY).as_secs_f64() - 1.0),
    };
    let wait = Duration::from_secs_f64(wait.clamp(1.0, MAX_DELAY.as_secs_f64()));
    // This wait is random too, but never shorter than the wait asked for, up to the limit.
    let asked = retry_after.map_or(Duration::ZERO, |asked| asked.min(MAX_RETRY_AFTER).mul_f64(1.0 + chance / 2.0));
    wait.max(asked)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(history: LastCalls) -> (f64, f64) {
        let at = |chance| delay(MAX_DELAY, history, None, chance).as_secs_f64();
        (at(0.0), at(0.999_999).round())
    }

    #[test]
    fn heartbeat_ingest_waits_with_its_next_note_until_every_node_has_called_again() {
        for (ttl_s, in_use) in [(1, 1), (2, 3), (5, 10), (20, 1), (60, 1), (60, 100_000), (3600, 10)] {
            let mut document = model::policy::example_json();
            document["heartbeat"] = serde_json::json!({"ttl_s": ttl_s});
            let policy = model::policy::Policy::from_json(&document).unwrap().heartbeat;
            let retry = Duration::from_secs_f64(policy.retry_s(in_use));
            let hung = Duration::from_secs_f64(model::wire::heartbeat_timeout_s(policy.retry_s(in_use)));
            for overdue in [0, 29, 31, 10_000] {
                let wait = delay(retry, LastCalls::Overdue(Duration::from_secs(overdue)), None, 1.0);
                let gap = u64::try_from(policy.calls_again_within(in_use).as_ms()).unwrap();
                assert!(hung + wait <= Duration::from_millis(gap), "{ttl_s} s, {in_use} nodes: {hung:?} and {wait:?}");
            }
        }
    }

    #[test]
    fn hb_23_never_answered_grows_to_15_to_30_s() {
        assert_eq!(range(LastCalls::Never { attempts: 1 }), (1.0, 1.0));
        assert_eq!(range(LastCalls::Never { attempts: 3 }), (2.0, 4.0));
        assert_eq!(range(LastCalls::Never { attempts: 6 }), (15.0, 30.0));
        assert_eq!(range(LastCalls::Never { attempts: u32::MAX }), (15.0, 30.0));
    }

    #[test]
    fn hb_24_shortly_overdue_is_1_to_2_s() {
        assert_eq!(range(LastCalls::Overdue(Duration::ZERO)), (1.0, 2.0));
        assert_eq!(range(LastCalls::Overdue(Duration::from_secs(29))), (1.0, 2.0));
    }

    #[test]
    fn hb_25_long_overdue_is_1_to_30_s() {
        assert_eq!(range(LastCalls::Overdue(Duration::from_secs(31))), (1.0, 30.0));
        assert_eq!(range(LastCalls::Overdue(Duration::from_secs(86_400))), (1.0, 30.0));
    }

    #[test]
    fn retry_after_is_honoured_up_to_a_limit() {
        let soon = LastCalls::Overdue(Duration::ZERO);
        assert_eq!(delay(MAX_DELAY, soon, Some(Duration::from_secs(60)), 0.0), Duration::from_secs(60));
        assert_eq!(delay(MAX_DELAY, soon, Some(Duration::from_secs(86_400)), 0.0), MAX_RETRY_AFTER);
        assert_eq!(delay(MAX_DELAY, soon, Some(Duration::ZERO), 0.0), Duration::from_secs(1));
    }
}
