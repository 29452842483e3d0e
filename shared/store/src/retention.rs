//! How long things are kept, and the events of changes, which end with it.
//!
//! Guarantees: the times are those of one policy.
//! Does not: delete anything.

use crate::store::Store;
use crate::write::Write;
use model::{ActionName, Event, JobTimes, Policy, Reason, Span, Subject, Time};

/// The times of the policy that a write uses.
#[derive(Clone, Copy, Debug)]
pub struct Retention {
    /// How long ended jobs and allocs are kept.
    pub finished: Span,
    /// How long events are kept.
    pub events: Span,
    /// How long the handle of a failed alloc is kept on its node.
    pub failed_handles: Span,
    /// How long a handle may take to appear in a report of its node.
    pub creating: Span,
    /// The wait before the first retry of a job, and the longest one.
    pub retry: (Span, Span),
}

impl Retention {
    pub fn of(policy: &Policy) -> Self {
        Self {
            finished: policy.history.keep_finished(),
            events: policy.history.keep_events(),
            failed_handles: Span::from_s(policy.sweep.failed_keep_s),
            creating: Span::from_s(policy.sweep.creating_s),
            retry: (Span::from_s(policy.retry.pause_s), Span::from_s(policy.retry.most_s)),
        }
    }

    /// The times that a job needs when one of its allocs ends.
    pub fn of_jobs(self) -> JobTimes {
        JobTimes { keep: self.finished, pause: self.retry.0, most: self.retry.1 }
    }
}

/// The event of a change, as a write in the transaction of that change.
pub(crate) fn event_of(subject: &Subject, action: ActionName, reason: &Reason, keep: Retention, now: Time) -> Write {
    Store::event_write(&Event::of_change(subject, action, &reason.to_string(), now, keep.events))
}
