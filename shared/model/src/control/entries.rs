//! The entries of the control table that end: limits on launches, brakes, releases and notes of what happened last.
//!
//! Guarantees: all of them have the format of [`EntryRow`]; each has a type of its own.
//! Does not: say when a limit begins or grows (`limits` does), or when a brake holds (`brake` does).

use super::ControlKey;
use crate::node::Version;
use crate::time::{Span, Time};
use serde::{Deserialize, Serialize};

/// The row of an entry that ends. All of these entries share this format.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntryRow {
    /// A [`ControlKey`] as text.
    pub key: String,
    /// Raised by every write.
    #[serde(default = "unwritten")]
    pub version: Version,
    /// Until when the entry applies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until_at: Option<Time>,
    /// Since when the entry applies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since_at: Option<Time>,
    /// For `ingest`: the time of the note before the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before_at: Option<Time>,
    /// The last wait, in seconds. The next one doubles it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_s: Option<i64>,
    /// A count: of failed starts, of what a brake holds back, of accepted heartbeats or of attempts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// The policy version that the entry belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy_version: Option<u64>,
    /// The reason, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

pub(super) const fn unwritten() -> Version {
    Version::UNWRITTEN
}

impl EntryRow {
    /// A row that was never written.
    pub fn new(key: &ControlKey) -> Self {
        Self {
            key: key.to_string(),
            version: Version::UNWRITTEN,
            until_at: None,
            since_at: None,
            before_at: None,
            wait_s: None,
            count: None,
            policy_version: None,
            message: None,
        }
    }

    pub(crate) fn applies(&self, now: Time) -> bool {
        self.until_at.is_some_and(|until| now < until)
    }
}

/// A kind of entry.
pub trait Entry: Clone {
    /// The entry of this row.
    fn from_row(row: EntryRow) -> Self;
    /// The row of this entry.
    fn row(&self) -> &EntryRow;
}

/// A change of an entry, for the store to write: the row as read and the new row.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct EntryChange {
    pub key: ControlKey,
    pub before: EntryRow,
    pub after: EntryRow,
}

macro_rules! entries {
    ($($(#[$doc:meta])* $name:ident)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct $name(pub(crate) EntryRow);

        impl Entry for $name {
            fn from_row(row: EntryRow) -> Self {
                Self(row)
            }
            fn row(&self) -> &EntryRow {
                &self.0
            }
        }

        impl $name {
            /// Whether the entry applies at this time.
            pub fn applies(&self, now: Time) -> bool {
                self.0.applies(now)
            }

            /// Until when the entry applies.
            pub const fn until_at(&self) -> Option<Time> {
                self.0.until_at
            }

            /// Since when the entry applies; for a refusal by EC2, the time of the last refusal.
            pub const fn since_at(&self) -> Option<Time> {
                self.0.since_at
            }

            /// The reason, for people.
            pub fn message(&self) -> Option<&str> {
                self.0.message.as_deref()
            }
        }
    )*};
}

entries! {
    /// EC2 was short of an offering: this type, in this market and place.
    Shortage
    /// The account's limit was reached.
    Quota
    /// EC2 throttled launch calls.
    Backoff
    /// EC2 called the launch request of a size wrong. Applies to one version of the policy.
    BadRequest
    /// EC2 did not accept the caller: its credentials, clock or permissions.
    NotAllowed
    /// Starts that failed in a row. Enough of them pause launching.
    FailedStarts
    /// What a brake holds back, and since when.
    BrakeEntry
    /// An operator's release of a brake.
    Release
    /// When the last run of poll-and-scale began.
    LastRun
    /// When heartbeat-ingest last accepted heartbeats.
    IngestSummary
    /// Where the next run goes on in a queue that is too long for one run.
    QueuePlace
}

impl QueuePlace {
    /// The rank of the last job that was read there; `None` if the next run begins behind the head.
    pub fn rank(&self) -> Option<&str> {
        self.message()
    }

    /// How many jobs were read since this round began behind the head.
    pub fn passed(&self) -> u64 {
        self.0.count.unwrap_or(0)
    }

    /// The entry after more jobs were read.
    #[must_use]
    pub fn moved(&self, rank: Option<String>, passed: u64) -> Self {
        Self(EntryRow { message: rank, count: Some(passed), ..self.0.clone() })
    }
}

impl BrakeEntry {
    /// How many nodes, records, instances or handles the brake holds back. After the brake let go, the entry says 0
    /// until it ends. `None` if the brake never held.
    pub const fn held(&self) -> Option<u64> {
        self.0.count
    }

    /// Whether the brake holds something back now.
    pub fn holds_back(&self, now: Time) -> bool {
        self.0.applies(now) && self.0.count != Some(0)
    }

    /// When the trouble began that the brake knows of; `now` if it knows of none.
    pub fn began_at(&self, now: Time) -> Time {
        self.since_at().filter(|_| self.applies(now)).unwrap_or(now)
    }

    /// The entry after another look. `since` is when the trouble began, `held` is how many the brake holds back, and
    /// the entry is kept until `until`.
    #[must_use]
    pub fn looked_at(&self, since: Time, until: Time, held: u64, reason: &str) -> Self {
        Self(EntryRow {
            since_at: Some(since),
            until_at: Some(until),
            count: Some(held),
            message: Some(reason.to_owned()),
            ..self.0.clone()
        })
    }
}

impl Release {
    /// A release that is given now and lasts for `keep`.
    #[must_use]
    pub fn given(&self, message: Option<String>, keep: Span, now: Time) -> Self {
        Self(EntryRow { since_at: Some(now), until_at: Some(now + keep), message, ..self.0.clone() })
    }
}

impl LastRun {
    /// The entry after a run that begins now.
    #[must_use]
    pub fn begun(&self, now: Time) -> Self {
        Self(EntryRow { since_at: Some(now), ..self.0.clone() })
    }

    /// When a run will begin that waits for it; `None` if no run waits.
    pub fn promised_at(&self, now: Time) -> Option<Time> {
        self.until_at().filter(|at| *at > now)
    }

    /// The entry after a run promised to begin at this time.
    #[must_use]
    pub fn promised(&self, at: Time) -> Self {
        Self(EntryRow { until_at: Some(at), ..self.0.clone() })
    }
}

impl IngestSummary {
    /// The shortest time between two notes. A node whose call failed tries again within this time, also if the call hung
    /// before it failed.
    pub const GAP: Span = Span::from_s(60);

    /// The time of the note before the last one: at least [`IngestSummary::GAP`] before the last one.
    pub const fn before_at(&self) -> Option<Time> {
        self.0.before_at
    }

    /// The entry after `count` heartbeats were accepted since the last note of this process. `None` if another process
    /// has just noted one.
    #[must_use]
    pub fn noted(&self, count: u64, now: Time) -> Option<Self> {
        let last = self.0.since_at;
        let due = last.is_none_or(|at| now.since(at) >= Self::GAP);
        due.then(|| Self(EntryRow { since_at: Some(now), before_at: last, count: Some(count), ..self.0.clone() }))
    }
}
