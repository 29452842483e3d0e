//! The entries of the control table that end: limits on launches, brakes, releases and notes of what happened last.
//!
//! Guarantees: all of them have the format of [`EntryRow`]; each has a type of its own.
//! Does not: say when a limit begins or grows (`limits` does), or when a brake holds (`brake` does).

use super::key::ControlKey;
use crate::catalogue::Catalogue;
use crate::ids::JobId;
use crate::machine::{Capacity, MachineNeed};
use crate::node::Version;
use crate::time::{Span, Time};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// The row of an entry that ends. All of these entries share this format.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntryRow {
    /// A [`ControlKey`] as text.
    pub key: String,
    /// Raised by every write.
    #[serde(default)]
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
    /// The last wait, in seconds. The next wait is twice as long. A limit on launches began this long before its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_s: Option<i64>,
    /// A count: of failed starts, of what a brake holds back, of accepted heartbeats, of attempts or of demands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// The policy version that the entry belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy_version: Option<u64>,
    /// The reason, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// For a brake: what each source holds. For a release: what it releases of each source. A source is the name of a
    /// function.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub parts: BTreeMap<String, BrakePart>,
    /// For `jobs_place`: the jobs whose rows cannot be read.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub unreadable: BTreeSet<JobId>,
    /// For a demand set: what each of its demands needs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub need: Option<DemandNeed>,
    /// For a demand set: how often what is wanted has changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<u64>,
}

/// The needs of each demand of a set: a whole node of a size, or a share of any node that fits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DemandNeed {
    /// The name of a size in the policy: a node of this size, without anything else on it. The other fields then say nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<String>,
    #[serde(flatten)]
    pub capacity: Capacity,
    #[serde(flatten)]
    pub machine: MachineNeed,
    /// Whether each demand gets a node for itself.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub exclusive: bool,
}

/// The part of a brake's entry that is about one source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BrakePart {
    /// The ids of the nodes or instances that are held. If there are too many for one row, only the first ones.
    #[serde(default)]
    pub ids: Vec<String>,
    /// How many are held.
    #[serde(default)]
    pub count: u64,
    /// How many of the same trouble a release has let go.
    #[serde(default)]
    pub permit: u64,
    /// Since when the source sees the trouble.
    pub since_at: Time,
    /// Until when the trouble is remembered.
    pub until_at: Time,
}

/// The most bytes of ids in one row. DynamoDB's limit for a row is 400 KB, and each KB costs a write unit.
const MAX_ID_BYTES: usize = 64_000;

/// How far the clocks of two runs may differ without one of them taking the other's times for wrong.
const CLOCKS_DIFFER: Span = Span::from_s(60);
/// The most unreadable jobs that are remembered. Each run reads them, to see whether they were repaired.
const MAX_UNREADABLE: usize = 1000;

/// How long an entry is kept after its end, in seconds: a day.
const MEMORY_S: i64 = 86_400;

impl EntryRow {
    /// A row that was never written.
    pub fn new(key: &ControlKey) -> Self {
        Self { key: key.to_string(), ..Self::default() }
    }

    pub(crate) fn applies(&self, now: Time) -> bool {
        self.until_at.is_some_and(|until| now < until)
    }

    /// Whether no decision looks at the entry any more: it ended more than a day ago, or is a demand set that has ended. A wait
    /// can grow only within an hour of its end, because the longest wait is an hour.
    pub fn is_over(&self, key: &ControlKey, now: Time) -> bool {
        if let ControlKey::Demand(_) = key {
            return !self.applies(now);
        }
        let ended_at = match key {
            ControlKey::Limit(..) | ControlKey::Brake(_) | ControlKey::Release(_) => self.until_at,
            // A count of failed starts goes on until a start succeeds. The other entries are notes that have no end.
            ControlKey::FailedStarts
            | ControlKey::Ingest
            | ControlKey::LastRun
            | ControlKey::QueuePlace
            | ControlKey::AfterPlace
            | ControlKey::JobsPlace
            | ControlKey::Demand(_)
            | ControlKey::Policy
            | ControlKey::Run(_)
            | ControlKey::Announced
            | ControlKey::Catalogue => None,
        };
        ended_at.is_some_and(|at| now.since(at) > Span::from_s(MEMORY_S))
    }
}

/// A kind of entry.
pub trait Entry: Clone {
    fn from_row(row: EntryRow) -> Self;
    fn row(&self) -> &EntryRow;
}

/// A change of an entry, for the store to write: the row as read and the new row.
#[derive(Clone, Debug, PartialEq, Eq)]
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
            pub fn applies(&self, now: Time) -> bool {
                self.0.applies(now)
            }

            pub const fn until_at(&self) -> Option<Time> {
                self.0.until_at
            }

            /// Since when the entry applies. For a limit on launches, the time of the first refusal in a row.
            pub const fn since_at(&self) -> Option<Time> {
                self.0.since_at
            }

            pub fn message(&self) -> Option<&str> {
                self.0.message.as_deref()
            }
        }
    )*};
}

entries! {
    /// EC2 was short of an offering: this type, in this market and place.
    Shortage
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
    /// Where the next run goes on in a long list of jobs that follow others.
    AfterPlace
    /// Where the next run of clean-stale-records goes on in the jobs table.
    JobsPlace
    /// The nodes, or shares of nodes, that a controller wants for a while.
    DemandSet
}

impl JobsPlace {
    /// The last job that was read; `None` if the next run begins at the start of the table. A text that is no job id counts as
    /// `None`: the database would refuse it in every run.
    pub fn job(&self) -> Option<&str> {
        self.message().filter(|job| job.parse::<JobId>().is_ok())
    }

    pub const fn unreadable(&self) -> &BTreeSet<JobId> {
        &self.0.unreadable
    }

    /// The entry after the jobs up to `job` were read; `job` is `None` at the end of the table. At most `MAX_UNREADABLE` unreadable
    /// jobs are kept. Returns `None` if nothing changes.
    #[must_use]
    pub fn moved(&self, job: Option<String>, unreadable: impl IntoIterator<Item = JobId>) -> Option<Self> {
        let unreadable: BTreeSet<JobId> = unreadable.into_iter().take(MAX_UNREADABLE).collect();
        let changes = job.as_deref() != self.message() || unreadable != self.0.unreadable;
        changes.then(|| Self(EntryRow { message: job, unreadable, ..self.0.clone() }))
    }

    /// The entry with more jobs whose rows cannot be read; `None` if nothing changes.
    #[must_use]
    pub fn noting(&self, unreadable: impl IntoIterator<Item = JobId>) -> Option<Self> {
        let all = self.0.unreadable.iter().copied().chain(unreadable);
        let all: BTreeSet<JobId> = all.take(MAX_UNREADABLE).collect();
        (all != self.0.unreadable).then(|| Self(EntryRow { unreadable: all, ..self.0.clone() }))
    }
}

impl QueuePlace {
    /// The rank of the last job that was read there; `None` if the next run begins behind the head. A text that is no rank counts
    /// as `None`: the database would refuse it in every run.
    pub fn rank(&self) -> Option<&str> {
        self.message().filter(|rank| is_rank(rank))
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

impl AfterPlace {
    /// The rank of the last job that was read; `None` if the next run begins at the start of the list. A text that is no rank
    /// counts as `None`.
    pub fn rank(&self) -> Option<&str> {
        self.message().filter(|rank| is_rank(rank))
    }

    /// The entry after the jobs up to this rank were read; the rank is `None` at the end of the list.
    #[must_use]
    pub fn moved(&self, rank: Option<String>) -> Self {
        Self(EntryRow { message: rank, ..self.0.clone() })
    }
}

fn is_rank(text: &str) -> bool {
    text.split_once('#').is_some_and(|(_, id)| id.parse::<JobId>().is_ok())
}

impl BrakeEntry {
    /// How many nodes, records or instances the brake holds back. After the brake let go, the entry says 0
    /// until it ends. `None` if the brake never held.
    pub const fn holding(&self) -> Option<u64> {
        self.0.count
    }

    /// Whether the brake holds something back now.
    pub fn holds_back(&self, now: Time) -> bool {
        self.0.applies(now) && self.0.count != Some(0)
    }

    /// Each id that is held, with its source.
    pub fn ids(&self) -> impl Iterator<Item = (&str, &str)> {
        let parts = self.0.parts.iter();
        parts.flat_map(|(source, part)| part.ids.iter().map(move |id| (source.as_str(), id.as_str())))
    }

    pub(crate) fn names(&self, source: &str) -> bool {
        self.0.parts.contains_key(source)
    }

    /// What the brake holds of this source.
    ///
    /// A part with an impossible time counts as unknown, because a wrong clock must not hold anything for ever. A small difference
    /// is allowed: the clocks of two runs differ a little, and the one that is ahead may write first.
    pub(crate) fn part(&self, source: &str, memory: Span, now: Time) -> Option<BrakePart> {
        let part = self.0.parts.get(source)?.clone();
        let may_be = part.since_at <= now + CLOCKS_DIFFER && part.until_at <= now + memory + CLOCKS_DIFFER;
        (may_be && now < part.until_at).then_some(part)
    }

    /// The entry with this part of a source; `None` removes the source. Parts whose time is over are removed too.
    #[must_use]
    pub(crate) fn with(&self, source: &str, part: Option<BrakePart>, message: Option<String>, now: Time) -> Self {
        let mut parts = self.0.parts.clone();
        parts.retain(|other, part| other != source && now < part.until_at);
        if let Some(mut part) = part {
            let bytes = |part: &BrakePart| part.ids.iter().map(|id| id.len() + 3).sum::<usize>();
            let all: usize = parts.values().map(bytes).sum();
            let mut room = MAX_ID_BYTES.saturating_sub(all);
            let fits = part.ids.iter().take_while(|id| {
                let left = room.checked_sub(id.len() + 3);
                room = left.unwrap_or(0);
                left.is_some()
            });
            let fits = fits.count();
            part.ids.truncate(fits);
            parts.insert(source.to_owned(), part);
        }
        Self(EntryRow {
            since_at: parts.values().map(|p| p.since_at).min(),
            until_at: Some(parts.values().map(|p| p.until_at).max().unwrap_or(now)),
            count: Some(parts.values().map(|p| p.count).sum()),
            message: message.or_else(|| self.0.message.clone()),
            parts,
            ..self.0.clone()
        })
    }
}

impl Release {
    /// A release that is given now, of what the entry of this brake holds. It lasts for `keep`.
    #[must_use]
    pub fn given(&self, held: &BrakeEntry, message: Option<String>, keep: Span, now: Time) -> Self {
        let mut parts = held.0.parts.clone();
        parts.retain(|_, part| part.count > 0 && now < part.until_at);
        let count = Some(parts.values().map(|p| p.ids.len() as u64).sum());
        Self(EntryRow { since_at: Some(now), until_at: Some(now + keep), message, count, parts, ..self.0.clone() })
    }

    pub(crate) fn ids(&self, source: &str) -> &[String] {
        self.0.parts.get(source).map_or(&[], |part| &part.ids)
    }

    /// The release without the ids of this source; `None` if it has none.
    pub(crate) fn used(&self, source: &str, now: Time) -> Option<Self> {
        let mut parts = self.0.parts.clone();
        parts.remove(source)?;
        let until_at = if parts.is_empty() { Some(now) } else { self.0.until_at };
        let count = Some(parts.values().map(|p| p.ids.len() as u64).sum());
        Some(Self(EntryRow { until_at, count, parts, ..self.0.clone() }))
    }
}

impl LastRun {
    /// The entry after a run that begins now.
    #[must_use]
    pub fn begun(&self, now: Time) -> Self {
        Self(EntryRow { since_at: Some(now), ..self.0.clone() })
    }

    /// When a waiting run will begin; `None` if no run waits.
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
    /// The time of the note before the last one. Between the two, every node whose call had failed has called again
    /// ([`crate::policy::HeartbeatPolicy::calls_again_within`]).
    pub const fn before_at(&self) -> Option<Time> {
        self.0.before_at
    }

    /// The entry after `count` heartbeats were accepted since the last note of this process. `None` if another process
    /// has noted one within `gap`.
    #[must_use]
    pub fn noted(&self, count: u64, gap: Span, now: Time) -> Option<Self> {
        let last = self.0.since_at;
        let due = last.is_none_or(|at| now.since(at) >= gap);
        due.then(|| Self(EntryRow { since_at: Some(now), before_at: last, count: Some(count), ..self.0.clone() }))
    }
}

/// The catalogue in the control table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CatalogueRow {
    /// `catalogue`.
    pub key: String,
    /// Raised by every write.
    pub version: Version,
    /// The catalogue as JSON. One text is read faster than thousands of attributes.
    pub document: String,
}

impl CatalogueRow {
    /// A row with this catalogue, never written.
    pub fn new(catalogue: &Catalogue) -> Self {
        let document = serde_json::to_string(catalogue).unwrap_or_default();
        Self { key: ControlKey::Catalogue.to_string(), version: Version::UNWRITTEN, document }
    }

    pub fn catalogue(&self) -> Result<Catalogue, serde_json::Error> {
        serde_json::from_str(&self.document)
    }
}
