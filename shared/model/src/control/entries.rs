//! The entries of the control table that end: limits on launches, brakes, releases and notes of what happened last.
//!
//! Guarantees: a row has the key, the version and the fields of its kind of entry, and no others.
//! Does not: say when a limit begins or grows (`limits` does), or when a brake holds (`brake` does).

use super::key::ControlKey;
use crate::{Catalogue, JobId, Policy, Span, Time, Version, left_out};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;

/// A kind of entry. The default is an entry that was never written.
pub trait Entry: Clone + Default + PartialEq + Send + Sync + Serialize + DeserializeOwned + 'static {
    /// Until when the entry applies; `None` if it does not apply, or is a note that has no end.
    fn until_at(&self) -> Option<Time> {
        None
    }
}

/// The row of an entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntryRow<E> {
    /// A [`ControlKey`] as text.
    pub key: String,
    /// Raised by every write.
    #[serde(default)]
    pub version: Version,
    #[serde(flatten)]
    pub entry: E,
}

impl<E> Deref for EntryRow<E> {
    type Target = E;
    fn deref(&self) -> &E {
        &self.entry
    }
}

impl<E: Entry> EntryRow<E> {
    /// A row that was never written.
    pub fn new(key: &ControlKey) -> Self {
        Self { key: key.to_string(), version: Version::UNWRITTEN, entry: E::default() }
    }

    /// The row with this entry, for the store to write.
    #[must_use]
    pub fn with(&self, entry: E) -> Self {
        Self { entry, ..self.clone() }
    }

    /// Whether the entry has not ended yet. One without an end, or one that was never written, does not apply.
    pub fn applies(&self, now: Time) -> bool {
        self.entry.until_at().is_some_and(|until| now < until)
    }
}

macro_rules! entries {
    ($($(#[$doc:meta])* $name:ident $(ends $until:ident)? { $($(#[$fdoc:meta])* $field:ident: $t:ty),* $(,)? })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(default)]
        pub struct $name { $($(#[$fdoc])* pub $field: $t),* }

        impl Entry for $name {
            $(fn until_at(&self) -> Option<Time> {
                self.$until
            })?
        }
    )*};
}

entries! {
    /// Launches wait: EC2 refused some, or too many starts failed in a row.
    LaunchWait ends until_at {
        until_at: Option<Time>,
        /// The time of the first refusal in a row, or of the last failed start.
        since_at: Option<Time>,
        /// The last wait, in seconds. The next wait is twice as long.
        wait_s: Option<i64>,
        /// How many attempts the next run may make; `None` after a refusal. Of failed starts: how many there were.
        count: Option<u64>,
        /// The policy version that a refusal is about; `None` if it is about any.
        policy_version: Option<u64>,
        /// The reason, for people.
        message: Option<String>,
    }

    /// What a brake holds back, or what an operator releases of it, and since when.
    BrakeState ends until_at {
        until_at: Option<Time>,
        since_at: Option<Time>,
        /// How many nodes, records or instances the brake holds back. After the brake let go, the entry says 0 until
        /// it ends. `None` if the brake never held, and in a release.
        count: Option<u64>,
        /// The reason, for people.
        message: Option<String>,
        /// What is held, or released, for each source. A source is a function, by its name.
        parts: BTreeMap<String, BrakePart>,
    }

    /// When the last run of poll-and-scale began, and until when a run waits for its turn.
    RunTurn ends until_at {
        since_at: Option<Time>,
        until_at: Option<Time>,
    }

    /// When heartbeat-ingest last accepted heartbeats.
    IngestNote {
        since_at: Option<Time>,
        /// The time of the note before the last one. Between the two, every node whose call had failed has called again
        /// ([`crate::policy::HeartbeatPolicy::calls_again_within`]).
        before_at: Option<Time>,
        /// How many heartbeats were accepted between the two.
        count: u64,
    }

    /// Where the next run goes on in a list that is too long for one run.
    ReadPlace {
        /// The last one that was read; `None` if the next run begins at the start of the list, or behind the head of the queue.
        last: Option<String>,
        /// How many jobs were read since this round began behind the head of the queue.
        passed: u64,
        /// The jobs whose rows cannot be read: at most `MAX_UNREADABLE`.
        unreadable: BTreeSet<JobId>,
    }

    /// The last run of a function.
    RunNote {
        /// When the first run began.
        first_at: Option<Time>,
        /// When the last run began.
        started_at: Time,
        /// How long the last run took, in milliseconds.
        duration_ms: i64,
        /// When the last successful run began. A run is successful if it could observe and ended in time.
        last_success_at: Option<Time>,
        /// How many nodes were in use, written by poll-and-scale. heartbeat-ingest derives the time between heartbeats
        /// from this number.
        in_use: Option<u64>,
        /// How many actions were carried out.
        actions: u64,
        /// How many actions were left for the next run.
        left: u64,
        /// Why the last run failed; `None` if it did not.
        error: Option<String>,
        /// When the first failed run since the last success began.
        failing_since_at: Option<Time>,
        /// How many actions failed.
        failed: u64,
        /// When the first run in a row began that did nothing of what it had to do; `None` if the last run did something, or had
        /// nothing to do.
        nothing_done_since_at: Option<Time>,
        /// What the last successful run found in EC2's list. Only poll-and-scale and clean-stale-records read the list.
        list: Option<ListReport>,
    }
    /// The policy, or the catalogue: one text is read faster than thousands of attributes.
    Document {
        /// The document as JSON.
        document: String,
        /// The shares that the policy has, and those that it had, because their jobs may still wait.
        #[serde(skip_serializing_if = "BTreeSet::is_empty")]
        shares: BTreeSet<String>,
        /// The shares that the policy no longer has, and since when.
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        gone: BTreeMap<String, Time>,
    }
    /// What poll-and-scale has written events about.
    Announcements {
        /// The words of the reasons that the last event of each job named.
        jobs: BTreeMap<JobId, String>,
        /// The limits that apply and that no entry shows: see `Reason::key`.
        caps: BTreeSet<String>,
    }
    /// The nodes that a controller wants for a while.
    DemandTerms ends until_at {
        until_at: Option<Time>,
        since_at: Option<Time>,
        /// The name of a size in the policy: each is a node of this size, without anything else on it. `None` if the set was never
        /// written.
        size: Option<String>,
        /// How many nodes it wants.
        count: u64,
        /// How often what is wanted has changed.
        revision: u64,
    }
}

/// Starts that failed in a row. Enough of them pause launching.
pub type FailedStarts = EntryRow<LaunchWait>;
pub type BrakeEntry = EntryRow<BrakeState>;
pub type Release = EntryRow<BrakeState>;
pub type PollTurn = EntryRow<RunTurn>;
pub type IngestSummary = EntryRow<IngestNote>;
pub type ListPlace = EntryRow<ReadPlace>;
pub type DemandSet = EntryRow<DemandTerms>;
pub type RunRow = EntryRow<RunNote>;
pub type PolicyRow = EntryRow<Document>;
pub type CatalogueRow = EntryRow<Document>;
pub type AnnouncedRow = EntryRow<Announcements>;

/// What a run found when it compared EC2's list with the records, for people.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ListReport {
    /// How many records name an instance.
    #[serde(skip_serializing_if = "crate::left_out::is_default")]
    pub named: u64,
    /// How many of these instances EC2 did not list.
    #[serde(skip_serializing_if = "crate::left_out::is_default")]
    pub unlisted: u64,
    /// Since when EC2 has not listed all of them.
    pub unlisted_since_at: Option<Time>,
    /// Instances with the tag of the cluster and without a readable node id: at most 20. clean-stale-records says this.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub strangers: Vec<String>,
    /// How many instances belong to no record. clean-stale-records says this.
    #[serde(skip_serializing_if = "crate::left_out::is_default")]
    pub orphans: u64,
    /// Since when there have been orphans.
    pub orphans_since_at: Option<Time>,
    /// How many runs in a row have found orphans.
    #[serde(skip_serializing_if = "crate::left_out::is_default")]
    pub orphans_runs: u64,
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
    /// How many of the same trouble an operator has released.
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

/// A change of a limit on launches, for the store to write: the row as read and the new row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitChange {
    pub key: ControlKey,
    pub before: EntryRow<LaunchWait>,
    pub after: EntryRow<LaunchWait>,
}

impl ReadPlace {
    /// The last job that was read. A text that is no job id counts as `None`: the database would refuse it in every run.
    pub fn job(&self) -> Option<&str> {
        self.last.as_deref().filter(|job| job.parse::<JobId>().is_ok())
    }

    /// The rank of the last job that was read. A text that is no rank counts as `None`.
    pub fn rank(&self) -> Option<&str> {
        let is_rank = |text: &&str| text.split_once('#').is_some_and(|(_, id)| id.parse::<JobId>().is_ok());
        self.last.as_deref().filter(is_rank)
    }
}

impl ListPlace {
    /// The row after the list was read up to `last`; `None` at its end.
    #[must_use]
    pub fn moved(&self, last: Option<String>, passed: u64) -> Self {
        self.with(ReadPlace { last, passed, ..self.entry.clone() })
    }

    /// The row with these unreadable jobs, as many as are kept.
    #[must_use]
    pub fn with_unreadable(&self, jobs: impl IntoIterator<Item = JobId>) -> Self {
        let unreadable = jobs.into_iter().take(MAX_UNREADABLE).collect();
        self.with(ReadPlace { unreadable, ..self.entry.clone() })
    }
}

impl BrakeState {
    /// Whether the brake holds something back now.
    pub fn holds_back(&self, now: Time) -> bool {
        self.until_at.is_some_and(|until| now < until) && self.count != Some(0)
    }

    /// Each id that is held, with its source.
    pub fn ids(&self) -> impl Iterator<Item = (&str, &str)> {
        self.parts.iter().flat_map(|(source, part)| part.ids.iter().map(move |id| (source.as_str(), id.as_str())))
    }

    /// What the brake holds of this source.
    ///
    /// A part with an impossible time counts as unknown, because a wrong clock must not hold anything for ever. A small difference
    /// is allowed: the clocks of two runs differ a little, and the one that is ahead may write first.
    pub(crate) fn part(&self, source: &str, memory: Span, now: Time) -> Option<BrakePart> {
        let part = self.parts.get(source)?.clone();
        let may_be = part.since_at <= now + CLOCKS_DIFFER && part.until_at <= now + memory + CLOCKS_DIFFER;
        (may_be && now < part.until_at).then_some(part)
    }

    /// The entry with this part of a source; `None` removes the source. Parts whose time is over are removed too.
    #[must_use]
    pub(crate) fn with_part(&self, source: &str, part: Option<BrakePart>, message: Option<String>, now: Time) -> Self {
        let mut parts = self.parts.clone();
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
        Self {
            since_at: parts.values().map(|p| p.since_at).min(),
            until_at: Some(parts.values().map(|p| p.until_at).max().unwrap_or(now)),
            count: Some(parts.values().map(|p| p.count).sum()),
            message: message.or_else(|| self.message.clone()),
            parts,
        }
    }
}

impl Release {
    /// A release that is given now, of what this brake holds. It lasts for `keep`.
    #[must_use]
    pub fn given(&self, brake: &BrakeState, keep: Span, now: Time) -> Self {
        let mut parts = brake.parts.clone();
        parts.retain(|_, part| part.count > 0 && now < part.until_at);
        let (since_at, until_at) = (Some(now), Some(now + keep));
        self.with(BrakeState { since_at, until_at, parts, ..BrakeState::default() })
    }

    /// The ids of this source that are released.
    pub(crate) fn ids_of(&self, source: &str) -> &[String] {
        self.parts.get(source).map_or(&[], |part| &part.ids)
    }

    /// The release without the ids of this source; `None` if it has none.
    pub(crate) fn used(&self, source: &str, now: Time) -> Option<Self> {
        let mut after = self.clone();
        after.entry.parts.remove(source)?;
        if after.parts.is_empty() {
            after.entry.until_at = Some(now);
        }
        Some(after)
    }
}

impl PollTurn {
    /// The row after a run that begins now.
    #[must_use]
    pub fn begun(&self, now: Time) -> Self {
        self.with(RunTurn { since_at: Some(now), ..self.entry.clone() })
    }

    /// When a waiting run will begin; `None` if no run waits.
    pub fn promised_at(&self, now: Time) -> Option<Time> {
        self.until_at.filter(|at| *at > now)
    }

    /// The row after a run promised to begin at this time.
    #[must_use]
    pub fn promised(&self, at: Time) -> Self {
        self.with(RunTurn { until_at: Some(at), ..self.entry.clone() })
    }
}

impl IngestSummary {
    /// The row after `count` heartbeats were accepted since the last note of this process. `None` if another process
    /// has noted one within `gap`.
    #[must_use]
    pub fn noted(&self, count: u64, gap: Span, now: Time) -> Option<Self> {
        let before_at = self.since_at;
        let due = before_at.is_none_or(|at| now.since(at) >= gap);
        due.then(|| self.with(IngestNote { since_at: Some(now), before_at, count }))
    }
}

impl PolicyRow {
    /// The first policy of a cluster.
    pub fn of_policy(policy: &Policy) -> Self {
        Self::of_document(&policy.to_json(), None, Time::from_ms(0))
    }

    /// A row with this document as the policy in place of another row, from now on. The write sets the version of the row.
    pub fn of_document(document: &Value, before: Option<&Self>, now: Time) -> Self {
        let named = document.get("share").and_then(Value::as_array).into_iter().flatten();
        let mut shares: BTreeSet<String> =
            named.filter_map(|share| share.get("name")?.as_str()).map(str::to_owned).collect();
        let since = |row: &Self, name: &String| row.gone.get(name).copied().unwrap_or(now);
        let had = before.into_iter().flat_map(|row| row.shares.iter().map(|name| (name.clone(), since(row, name))));
        let gone: BTreeMap<String, Time> = had.filter(|(name, _)| !shares.contains(name)).collect();
        shares.extend(gone.keys().cloned());
        Self::new(&ControlKey::Policy).with(Document { document: document.to_string(), shares, gone })
    }
}

impl CatalogueRow {
    /// A row with this catalogue, never written.
    pub fn of_catalogue(catalogue: &Catalogue) -> Self {
        let document = left_out::to_json(catalogue).map(|document| document.to_string()).unwrap_or_default();
        Self::new(&ControlKey::Catalogue).with(Document { document, ..Document::default() })
    }

    /// The catalogue, if the row is the one of the catalogue.
    pub fn catalogue(&self) -> Result<Catalogue, serde_json::Error> {
        serde_json::from_str(&self.document)
    }
}
