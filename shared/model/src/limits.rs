//! The limits on launches: how each limit begins, grows and ends, and how it is explained to a person.
//!
//! | limit | begins | ends |
//! | --- | --- | --- |
//! | shortage | EC2 has no capacity for an offering | after `shortage.ttl_s`, doubled with each further refusal; then one attempt in a run, doubled with each success |
//! | quota | EC2 says that the account's limit is reached | after `quota.retry_s`, or when an instance of the cluster has terminated |
//! | back-off | EC2 throttles launch calls | after 5 s, doubled with each further throttling |
//! | failed starts | `boot.failures_before_pause` starts fail in a row | after a minute, doubled in each later run with a failure; or when a node starts well |
//! | not allowed | EC2 does not accept the caller: credentials, clock or permissions | after a minute, doubled with each further refusal |
//! | bad request | EC2 calls the request for a size wrong | with the next version of the policy |
//!
//! Guarantees: every limit ends by itself or with a new policy; the plan, the acting run and the commands
//! `status` and `job` use the same functions, so they cannot disagree.
//! Does not: count nodes. The plan keeps to `nodes.max`, the price cap and the maximum of a size.
//! Source: Arvados #2881 (what a node manager does when the cloud refuses).

use crate::cloud::LaunchError;
use crate::control::{
    Backoff, BadRequest, Control, ControlKey, Entry, EntryChange, EntryRow, FailedStarts, NotAllowed, Quota, Shortage,
    offering_key,
};
use crate::node::Offering;
use crate::policy::Policy;
use crate::reason::Reason;
use crate::time::{Span, Time};
use std::fmt;

/// Doubling never makes a wait longer than this, in seconds.
const LONGEST_WAIT_S: i64 = 3600;
/// A refusal within this time after the end of a shortage doubles the old wait. The time is this long because
/// the next attempt may first have to wait until idle nodes have ended and made room.
const SHORTAGE_CONTINUES_S: i64 = 900;
/// The first wait after a throttled call, in seconds.
const BACKOFF_S: i64 = 5;
/// Throttling within this time after the end of a back-off doubles the wait. The time is two periods of
/// poll-and-scale.
const BACKOFF_CONTINUES_S: i64 = 120;
/// The first pause after EC2 did not accept the caller, in seconds.
const NOT_ALLOWED_S: i64 = 60;
/// The first pause after failed starts, in seconds.
const FAILED_STARTS_PAUSE_S: i64 = 60;

/// A limit that keeps a launch from being made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Limit {
    /// The account's limit is reached.
    Quota(Quota),
    /// EC2 throttles launch calls.
    Backoff(Backoff),
    /// Too many starts failed in a row.
    FailedStarts(FailedStarts),
    /// EC2 is short of an offering. The text is market, type and place, as in the control key.
    Shortage(String, Shortage),
    /// EC2 does not accept the caller.
    NotAllowed(NotAllowed),
    /// EC2 calls the request for this size wrong.
    BadRequest(String, BadRequest),
}

impl Limit {
    /// EC2 is short of this offering.
    pub fn short_of(offering: &Offering, entry: Shortage) -> Self {
        Self::Shortage(offering_key(offering), entry)
    }

    /// Whether the limit stops every launch. If not, it stops only the launches of one offering or size.
    pub const fn stops_all(&self) -> bool {
        matches!(self, Self::Quota(_) | Self::NotAllowed(_) | Self::Backoff(_) | Self::FailedStarts(_))
    }

    /// The key of the limit's entry in the control table.
    pub fn key(&self) -> ControlKey {
        match self {
            Self::Quota(_) => ControlKey::Quota,
            Self::NotAllowed(_) => ControlKey::NotAllowed,
            Self::Backoff(_) => ControlKey::Backoff,
            Self::FailedStarts(_) => ControlKey::FailedStarts,
            Self::Shortage(offering, _) => ControlKey::Shortage(offering.clone()),
            Self::BadRequest(size, _) => ControlKey::BadRequest(size.clone()),
        }
    }

    /// The limit as a reason, with the time that is left of it.
    pub fn reason(&self, now: Time) -> Reason {
        let left = self.until_at().map_or(Span::ZERO, |until| until.since(now));
        match self {
            Self::Shortage(offering, _) => Reason::OfferingShort { offering: offering.replace('#', " "), left },
            Self::BadRequest(size, _) => Reason::SizeRefused { size: size.clone() },
            _ => Reason::LaunchPaused { limit: self.to_string(), left },
        }
    }

    fn row(&self) -> &EntryRow {
        match self {
            Self::Quota(e) => e.row(),
            Self::NotAllowed(e) => e.row(),
            Self::Backoff(e) => e.row(),
            Self::FailedStarts(e) => e.row(),
            Self::Shortage(_, e) => e.row(),
            Self::BadRequest(_, e) => e.row(),
        }
    }

    /// When the limit ends; `None` for one that ends with the next policy.
    pub fn until_at(&self) -> Option<Time> {
        if let Self::BadRequest(..) = self { None } else { self.row().until_at }
    }

    /// The message of EC2, if there was one.
    pub fn message(&self) -> Option<&str> {
        self.row().message.as_deref()
    }

    /// What a person can do about it; empty if the limit ends by itself and nothing needs to be done.
    pub const fn to_do(&self) -> &'static str {
        match self {
            Self::Quota(_) => "raise the account's limit, or lower nodes.max",
            Self::NotAllowed(_) => "correct the role, the credentials or the clock of poll-and-scale: see the message",
            Self::FailedStarts(_) => {
                "see their console output in `nodekeeper history cluster`, and correct image or user data"
            }
            Self::BadRequest(..) => "correct the policy or the launch template, then `nodekeeper policy set FILE`",
            Self::Backoff(_) | Self::Shortage(..) => "",
        }
    }
}

impl fmt::Display for Limit {
    /// The limit in words, without its end and its message.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Quota(_) => f.write_str("the account's limit is reached"),
            Self::NotAllowed(_) => f.write_str("EC2 does not accept our credentials or permissions"),
            Self::Backoff(_) => f.write_str("EC2 throttles launches"),
            Self::FailedStarts(e) => write!(f, "{} starts failed in a row", e.count()),
            Self::Shortage(offering, _) => write!(f, "EC2 is short of {}", offering.replace('#', " ")),
            Self::BadRequest(size, _) => write!(f, "EC2 refuses to launch size {size}"),
        }
    }
}

impl Control {
    /// Every limit that applies now, those that stop all launches first.
    pub fn limits(&self, now: Time) -> Vec<Limit> {
        let version = self.policy.as_ref().map(|p| p.version.number());
        let mut limits: Vec<Limit> = self
            .entries()
            .filter_map(|(key, row)| {
                let applies = row.applies(now);
                let row = row.clone();
                match key {
                    ControlKey::Quota if applies => Some(Limit::Quota(Quota(row))),
                    ControlKey::NotAllowed if applies => Some(Limit::NotAllowed(NotAllowed(row))),
                    ControlKey::Backoff if applies => Some(Limit::Backoff(Backoff(row))),
                    ControlKey::FailedStarts if applies => Some(Limit::FailedStarts(FailedStarts(row))),
                    ControlKey::Shortage(offering) if applies => Some(Limit::Shortage(offering.clone(), Shortage(row))),
                    ControlKey::BadRequest(size) if version.is_some() && row.policy_version == version => {
                        Some(Limit::BadRequest(size.clone(), BadRequest(row)))
                    }
                    _ => None,
                }
            })
            .collect();
        limits.sort_by_key(|l| !l.stops_all());
        limits
    }

    /// The limit that stops every launch now, if one does.
    pub fn launch_pause(&self, now: Time) -> Option<Limit> {
        let (quota, backoff, starts) = (self.quota(), self.backoff(), self.failed_starts());
        let not_allowed = self.not_allowed();
        if quota.applies(now) {
            Some(Limit::Quota(quota))
        } else if not_allowed.applies(now) {
            Some(Limit::NotAllowed(not_allowed))
        } else if backoff.applies(now) {
            Some(Limit::Backoff(backoff))
        } else {
            starts.applies(now).then_some(Limit::FailedStarts(starts))
        }
    }

    /// The change of the control table after a launch of this offering failed with `error`; `None` if this error
    /// starts no limit.
    pub fn after_refusal(
        &self,
        offering: &Offering,
        error: &LaunchError,
        policy: &Policy,
        policy_version: u64,
        now: Time,
    ) -> Option<EntryChange> {
        let (key, before, after) = match error {
            LaunchError::Capacity(_) => {
                let before = self.shortage(offering).0;
                let after = longer_wait(&before, policy.shortage.ttl_s, SHORTAGE_CONTINUES_S, now);
                (ControlKey::shortage_of(offering), before, after)
            }
            LaunchError::Quota(_) => {
                let before = self.quota().0;
                let until_at = Some(now + Span::from_s(policy.quota.retry_s));
                (ControlKey::Quota, before.clone(), EntryRow { until_at, ..before })
            }
            LaunchError::Throttled(_) => {
                let before = self.backoff().0;
                let after = longer_wait(&before, BACKOFF_S, BACKOFF_CONTINUES_S, now);
                (ControlKey::Backoff, before, after)
            }
            LaunchError::NotAllowed(_) => {
                let before = self.not_allowed().0;
                let after = longer_wait(&before, NOT_ALLOWED_S, BACKOFF_CONTINUES_S, now);
                (ControlKey::NotAllowed, before, after)
            }
            LaunchError::BadRequest(_) => {
                let before = self.bad_request(&offering.size).0;
                let key = ControlKey::BadRequest(offering.size.clone());
                (key, before.clone(), EntryRow { policy_version: Some(policy_version), ..before })
            }
            LaunchError::Spent(_) | LaunchError::Lost(_) => return None,
        };
        let after = EntryRow { message: Some(error.to_string()), since_at: Some(now), ..after };
        Some(EntryChange { key, before, after })
    }
}

/// Whether another run has already written this refusal. After a refusal the entry has no `count`; after a successful
/// launch it has one. The times of the two cannot be compared, because they come from the clocks of different runs.
pub fn is_refused_already(row: &EntryRow, now: Time) -> bool {
    row.count.is_none() && row.applies(now)
}

impl Shortage {
    /// How many attempts a run may make at an offering that was short: one after the wait, and twice as many after
    /// each success. `None`: there is no limit, because the offering was never short, or was short long ago. `at` is
    /// the start of the run and not the current time. Otherwise the limit could end during the run, and all remaining
    /// launches of the run would try the offering.
    pub fn attempts(&self, at: Time) -> Option<u64> {
        let continues_s = self.0.wait_s?.max(SHORTAGE_CONTINUES_S);
        let recent = at.since(self.0.until_at?) <= Span::from_s(continues_s);
        recent.then(|| self.0.count.unwrap_or(1).max(1))
    }

    /// The entry after a success when `attempts` were allowed: the next run may make twice as many.
    #[must_use]
    pub fn succeeded(&self, attempts: u64, max_per_run: u32, now: Time) -> Self {
        let more = attempts.saturating_mul(2);
        let over = more >= u64::from(max_per_run);
        let wait_s = self.0.wait_s.filter(|_| !over);
        Self(EntryRow { count: Some(more), wait_s, until_at: Some(now), ..self.0.clone() })
    }
}

impl Quota {
    /// The entry after something terminated: there is room for a launch again. `None` if there is no pause.
    #[must_use]
    pub fn after_termination(&self, now: Time) -> Option<Self> {
        self.applies(now).then(|| Self(EntryRow { until_at: Some(now), ..self.0.clone() }))
    }
}

impl BadRequest {
    /// Whether the refusal applies to this version of the policy.
    pub fn applies_to(&self, policy_version: u64) -> bool {
        self.0.policy_version == Some(policy_version)
    }
}

impl FailedStarts {
    /// How many starts failed in a row.
    pub fn count(&self) -> u64 {
        self.0.count.unwrap_or(0)
    }

    /// How long launches pause after the last failure, in seconds; `None` if there is no pause.
    pub const fn pause_s(&self) -> Option<i64> {
        self.0.wait_s
    }

    /// The entry after a successful start: the count is 0 and the pause is over. `first_ping` is the newest first
    /// heartbeat of all nodes. `None` if no node has started since the last failure, or if the count is 0 already.
    pub fn after_success(&self, first_ping: Option<Time>) -> Option<Self> {
        let changes = self.count() > 0 && first_ping > self.0.since_at;
        changes.then(|| Self(EntryRow { count: Some(0), wait_s: None, until_at: None, ..self.0.clone() }))
    }

    /// The entry after one more failed start. `read` is the entry as the run read it, so that the pause doubles
    /// at most once in a run.
    #[must_use]
    pub fn failed(&self, read: &Self, failures_before_pause: u32, now: Time) -> Self {
        let count = self.count().saturating_add(1);
        let pauses = count >= u64::from(failures_before_pause);
        let longer = |wait: i64| wait.saturating_mul(2);
        let wait_s = pauses.then(|| read.0.wait_s.map_or(FAILED_STARTS_PAUSE_S, longer).min(LONGEST_WAIT_S));
        Self(EntryRow {
            since_at: Some(now),
            count: Some(count),
            wait_s,
            until_at: wait_s.map(|w| now + Span::from_s(w)),
            ..self.0.clone()
        })
    }
}

/// The entry after another refusal. The wait is `first_s`, or twice the last wait if that wait ended recently.
/// Recently means within the length of the last wait or `continues_s`, whichever is longer.
fn longer_wait(before: &EntryRow, first_s: i64, continues_s: i64, now: Time) -> EntryRow {
    let continues_s = before.wait_s.unwrap_or(0).max(continues_s);
    let recent = before.until_at.is_some_and(|until| now.since(until) <= Span::from_s(continues_s));
    let wait_s = match before.wait_s {
        Some(wait) if recent => wait.saturating_mul(2).min(LONGEST_WAIT_S).max(first_s),
        _ => first_s,
    };
    EntryRow { wait_s: Some(wait_s), until_at: Some(now + Span::from_s(wait_s)), count: None, ..before.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{at, offering};
    use crate::policy::example_json;

    fn waits(error: &LaunchError, times: &[i64]) -> Vec<Option<i64>> {
        let policy = Policy::from_json(&example_json()).unwrap();
        let mut control = Control::default();
        let mut waits = Vec::new();
        for s in times {
            let change = control.after_refusal(&offering(), error, &policy, 1, at(*s)).unwrap();
            waits.push(change.after.wait_s);
            control.put(change.after);
        }
        waits
    }

    #[test]
    fn a_refusal_doubles_the_wait_also_if_idle_nodes_had_to_make_room_first() {
        // The second and third refusal come 330 s after the wait ended, the last one after a day.
        let short = LaunchError::Capacity("none".into());
        let times = [0, 180 + 330, 180 + 330 + 360 + 330, 90_000];
        assert_eq!(waits(&short, &times), [Some(180), Some(360), Some(720), Some(180)]);
        // EC2 throttles three runs in a row, and then one run every ten minutes.
        let throttled = LaunchError::Throttled("slow".into());
        let times = [0, 60, 120, 720, 1320];
        assert_eq!(waits(&throttled, &times), [Some(5), Some(10), Some(20), Some(5), Some(5)]);
    }

    #[test]
    fn a_limit_on_all_launches_is_listed_first_and_ends() {
        let policy = Policy::from_json(&example_json()).unwrap();
        let mut control = Control::default();
        for error in [LaunchError::Capacity("c".into()), LaunchError::Quota("q".into())] {
            let change = control.after_refusal(&offering(), &error, &policy, 1, at(0)).unwrap();
            control.put(change.after);
        }
        let said: Vec<String> = control.limits(at(1)).iter().map(Limit::to_string).collect();
        assert_eq!(said, ["the account's limit is reached", "EC2 is short of on_demand m7a.large any"]);
        assert!(matches!(control.launch_pause(at(59)), Some(Limit::Quota(_))));
        assert_eq!(control.launch_pause(at(60)), None);
        assert!(control.limits(at(180)).is_empty());
    }

    #[test]
    fn a_start_that_succeeds_ends_the_count_of_failed_ones() {
        let mut failed = Control::default().failed_starts();
        let read = failed.clone();
        for _ in 0..3 {
            failed = failed.failed(&read, 3, at(10));
        }
        assert_eq!((failed.count(), failed.pause_s(), failed.applies(at(69))), (3, Some(60), true));
        assert_eq!(failed.after_success(Some(at(10))), None, "before the last failure");
        assert_eq!(failed.after_success(Some(at(11))).map(|e| (e.count(), e.pause_s())), Some((0, None)));
    }
}
