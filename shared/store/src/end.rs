//! How jobs end, as the index of the queue tells it.
//!
//! Guarantees: every state of a job that has ended is one of these ends, and each has values of `queue` of its own.
//! Does not: say why a job ended. Its cause does.

use model::JobState;
use model::ids::JobId;

/// How a job ended, as far as the index of the queue tells ends apart: a list of those that failed must not read those that
/// did not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Complete,
    /// Failed or rejected.
    Failed,
    Cancelled,
}

impl End {
    /// Every end.
    pub const ALL: [Self; 3] = [Self::Complete, Self::Failed, Self::Cancelled];
    /// Every end that nobody asked for.
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

    /// The values of `queue` that jobs have after this end. Several, as those of waiting jobs.
    pub(crate) const fn values(self) -> &'static [&'static str; 8] {
        match self {
            Self::Complete => &[
                "complete#0",
                "complete#1",
                "complete#2",
                "complete#3",
                "complete#4",
                "complete#5",
                "complete#6",
                "complete#7",
            ],
            Self::Failed => {
                &["failed#0", "failed#1", "failed#2", "failed#3", "failed#4", "failed#5", "failed#6", "failed#7"]
            }
            Self::Cancelled => &[
                "cancelled#0",
                "cancelled#1",
                "cancelled#2",
                "cancelled#3",
                "cancelled#4",
                "cancelled#5",
                "cancelled#6",
                "cancelled#7",
            ],
        }
    }

    /// The value of `queue` for this job.
    pub(crate) fn of_job(self, id: JobId) -> &'static str {
        let [first, ..] = self.values();
        self.values().get(usize::from(id.random_byte()) % self.values().len()).unwrap_or(first)
    }
}
