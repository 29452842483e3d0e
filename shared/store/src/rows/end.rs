//! How a job ended, as far as the index of the queue keeps ends apart.
//!
//! Guarantees: each state of an ended job belongs to one of these ends, and each end has its own values of `queue`.
//! Does not: say why a job ended. Its cause does.

use model::{JobId, JobState};

/// The values of `queue` of one end: its word with each of these numbers.
macro_rules! spread {
    ($end:literal: $($number:literal)*) => { &[$(concat!($end, "#", $number)),*] };
}

/// How a job ended. The index keeps ends apart, so that a list of failed jobs does not read the other jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Complete,
    /// Failed or rejected.
    Failed,
    Cancelled,
}

impl End {
    pub const ALL: [Self; 3] = [Self::Complete, Self::Failed, Self::Cancelled];
    pub const NOT_CANCELLED: [Self; 2] = [Self::Complete, Self::Failed];

    /// The end of a job in this state; `None` if it has not ended.
    pub const fn of(state: JobState) -> Option<Self> {
        match state {
            JobState::Complete => Some(Self::Complete),
            JobState::Failed | JobState::Rejected => Some(Self::Failed),
            JobState::Cancelled => Some(Self::Cancelled),
            JobState::Queued | JobState::Placing | JobState::Placed | JobState::Regrouping => None,
        }
    }

    /// The values of `queue` that jobs have after this end. There are several for the same reason as for waiting jobs
    /// (see `QUEUED`).
    pub(crate) const fn values(self) -> &'static [&'static str; 8] {
        match self {
            Self::Complete => spread!("complete": 0 1 2 3 4 5 6 7),
            Self::Failed => spread!("failed": 0 1 2 3 4 5 6 7),
            Self::Cancelled => spread!("cancelled": 0 1 2 3 4 5 6 7),
        }
    }

    /// The value of `queue` for this job.
    pub(crate) fn of_job(self, id: JobId) -> &'static str {
        let [first, ..] = self.values();
        self.values().get(usize::from(id.random_byte()) % self.values().len()).unwrap_or(first)
    }
}
