//! The entries of the control table, each with a type of its own: the policy, the functions' last runs,
//! the limits on launches, brakes and releases.
//!
//! Guarantees: every key is spelled in [`ControlKey`] and nowhere else; an entry is a versioned row
//! like any other; every entry that ends has the format of [`EntryRow`].
//! Does not: hold anything that correctness depends on, except the policy. Entries only avoid useless
//! attempts: they end by themselves, and if one is lost, an attempt is repeated.

use crate::ids::BadId;
use crate::node::{Offering, Version};
use crate::policy::Policy;
use crate::time::{Span, Time};
use crate::told::ToldRow;
use crate::words::{BrakeKind, UnknownWord};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// The key of a row of the control table.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ControlKey {
    /// `policy`
    Policy,
    /// `run#{function}`: the last run of a function.
    Run(String),
    /// `shortage#{market}#{type}#{place}`: EC2 was short of an offering. See [`ControlKey::shortage_of`].
    Shortage(String),
    /// `quota`: the account's limit was reached.
    Quota,
    /// `backoff`: EC2 throttled launch calls.
    Backoff,
    /// `bad_request#{size}`: EC2 called the request for this size wrong.
    BadRequest(String),
    /// EC2 does not accept the caller.
    NotAllowed,
    /// `boot_failures`: failed starts in a row.
    FailedStarts,
    /// `brake#{kind}`: what a brake holds back.
    Brake(BrakeKind),
    /// `release#{kind}`: an operator's release of a brake.
    Release(BrakeKind),
    /// `ingest`: when heartbeat-ingest last accepted heartbeats.
    Ingest,
    /// `last_run`: when the last run of poll-and-scale began.
    LastRun,
    /// `told`: what poll-and-scale has told about waiting jobs. See [`ToldRow`].
    Told,
}

/// An offering in a key of the control table: `{market}#{type}#{place}`.
pub(crate) fn offering_key(offering: &Offering) -> String {
    let place = offering.subnet_id.as_deref().or(offering.zone.as_deref()).unwrap_or("any");
    format!("{}#{}#{place}", offering.market, offering.instance_type)
}

impl ControlKey {
    /// The key of the shortage of an offering. The place is the subnet, if the offering names one, because the
    /// subnet's zone is not known until an instance has shown it. Otherwise the place is the zone, or `any` without a
    /// zone.
    pub fn shortage_of(offering: &Offering) -> Self {
        Self::Shortage(offering_key(offering))
    }
}

impl fmt::Display for ControlKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Policy => f.write_str("policy"),
            Self::Run(function) => write!(f, "run#{function}"),
            Self::Shortage(offering) => write!(f, "shortage#{offering}"),
            Self::Quota => f.write_str("quota"),
            Self::Backoff => f.write_str("backoff"),
            Self::BadRequest(size) => write!(f, "bad_request#{size}"),
            Self::NotAllowed => f.write_str("not_allowed"),
            Self::FailedStarts => f.write_str("boot_failures"),
            Self::Brake(kind) => write!(f, "brake#{kind}"),
            Self::Release(kind) => write!(f, "release#{kind}"),
            Self::Ingest => f.write_str("ingest"),
            Self::LastRun => f.write_str("last_run"),
            Self::Told => f.write_str("told"),
        }
    }
}

impl FromStr for ControlKey {
    type Err = BadId;
    fn from_str(key: &str) -> Result<Self, BadId> {
        let bad = || BadId::new("control key", key, "a key of the control table");
        let kind = |word: &str| word.parse().map_err(|_: UnknownWord| bad());
        Ok(match key.split_once('#') {
            None => match key {
                "policy" => Self::Policy,
                "quota" => Self::Quota,
                "not_allowed" => Self::NotAllowed,
                "backoff" => Self::Backoff,
                "boot_failures" => Self::FailedStarts,
                "ingest" => Self::Ingest,
                "last_run" => Self::LastRun,
                "told" => Self::Told,
                _ => return Err(bad()),
            },
            Some(("run", function)) => Self::Run(function.to_owned()),
            Some(("shortage", offering)) => Self::Shortage(offering.to_owned()),
            Some(("bad_request", size)) => Self::BadRequest(size.to_owned()),
            Some(("brake", word)) => Self::Brake(kind(word)?),
            Some(("release", word)) => Self::Release(kind(word)?),
            Some(_) => return Err(bad()),
        })
    }
}

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
    /// For `ingest`: the accepted heartbeat that was noted before the last one.
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

const fn unwritten() -> Version {
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
}

impl IngestSummary {
    /// The shortest time between two notes. A node whose call failed tries again within this time.
    pub const GAP: Span = Span::from_s(30);

    /// When the accepted heartbeat before the last one was noted, at least [`IngestSummary::GAP`] earlier.
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

/// What a function did last: `run#{function}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunRow {
    /// `run#{function}`.
    pub key: String,
    /// Raised by every write.
    #[serde(default = "unwritten")]
    pub version: Version,
    /// When the last run began.
    pub started_at: Time,
    /// How long the last run took, in milliseconds.
    #[serde(default)]
    pub duration_ms: i64,
    /// When the last successful run began. A run is successful if it could observe and ended in time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_success_at: Option<Time>,
    /// The time from the start of the previous run to the start of the last run, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub period_ms: Option<i64>,
    /// How many nodes were in use, written by poll-and-scale. heartbeat-ingest derives the time between heartbeats
    /// from this number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_use: Option<u64>,
    /// How many actions were carried out.
    #[serde(default)]
    pub actions: u64,
    /// How many actions were left for the next run.
    #[serde(default)]
    pub left: u64,
    /// Why the run failed; `None` if it did not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// How many actions of a run were done, and how many it left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Tally {
    pub done: u64,
    /// Left for the next run.
    pub left: u64,
}

impl RunRow {
    /// The row of a function that has not run yet.
    pub fn new(function: &str) -> Self {
        Self {
            key: ControlKey::Run(function.to_owned()).to_string(),
            version: Version::UNWRITTEN,
            started_at: Time::from_ms(0),
            duration_ms: 0,
            last_success_at: None,
            period_ms: None,
            in_use: None,
            actions: 0,
            left: 0,
            error: None,
        }
    }

    /// The row after a run that could observe. `before` is the row as read.
    pub fn after(function: &str, before: Option<&Self>, started_at: Time, took: Span, tally: Tally) -> Self {
        Self {
            started_at,
            duration_ms: took.as_ms(),
            last_success_at: Some(started_at),
            period_ms: before.map(|b| started_at.since(b.started_at).as_ms()),
            actions: tally.done,
            left: tally.left,
            error: None,
            ..before.cloned().unwrap_or_else(|| Self::new(function))
        }
    }
}

/// The stored policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyRow {
    /// `policy`.
    pub key: String,
    /// Raised by every `policy set`.
    pub version: Version,
    /// The document as JSON.
    pub document: String,
}

impl PolicyRow {
    /// The first policy of a cluster.
    pub fn new(policy: &Policy) -> Self {
        Self::of_document(&policy.to_json())
    }

    /// A row with this document. The write sets the version of the row.
    pub fn of_document(document: &Value) -> Self {
        let key = ControlKey::Policy.to_string();
        Self { key, version: Version::UNWRITTEN, document: document.to_string() }
    }
}

/// The control table as read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Control {
    /// The policy's row.
    pub policy: Option<PolicyRow>,
    /// The functions' last runs, by function.
    pub runs: BTreeMap<String, RunRow>,
    /// What poll-and-scale has told about waiting jobs.
    pub told: Option<ToldRow>,
    entries: BTreeMap<ControlKey, EntryRow>,
}

thread_local! {
    /// The last checked document and its policy. They are kept because a process answers thousands of requests with
    /// the same policy.
    static LAST_POLICY: RefCell<Option<(String, Policy)>> = const { RefCell::new(None) };
}

impl Control {
    /// Reads rows given as JSON: from the table, or from `plan --state`. A row with an unknown key is
    /// left out: newer code may have written it.
    pub fn from_rows(rows: impl IntoIterator<Item = Value>) -> Result<Self, UnreadableEntry> {
        let mut control = Self::default();
        for row in rows {
            let key = row.get("key").and_then(Value::as_str).unwrap_or_default().to_owned();
            let unreadable = |e: serde_json::Error| UnreadableEntry { key: key.clone(), detail: e.to_string() };
            match key.parse() {
                Ok(ControlKey::Policy) => control.policy = Some(serde_json::from_value(row).map_err(unreadable)?),
                Ok(ControlKey::Run(function)) => {
                    control.runs.insert(function, serde_json::from_value(row).map_err(unreadable)?);
                }
                // This row is for people, so a row that cannot be read stops nothing.
                Ok(ControlKey::Told) => control.told = serde_json::from_value(row).ok(),
                Ok(_) => control.put(serde_json::from_value(row).map_err(unreadable)?),
                // An unknown key is no error, but its row must have the common format.
                Err(_) => drop(serde_json::from_value::<EntryRow>(row).map_err(unreadable)?),
            }
        }
        Ok(control)
    }

    /// Replaces the entry with this key. A row with an unknown key is ignored.
    pub fn put(&mut self, row: EntryRow) {
        if let Ok(key) = row.key.parse() {
            self.entries.insert(key, row);
        }
    }

    /// Removes an entry.
    pub fn remove(&mut self, key: &ControlKey) {
        self.entries.remove(key);
    }

    /// Every entry that was read, by key.
    pub fn entries(&self) -> impl Iterator<Item = (&ControlKey, &EntryRow)> {
        self.entries.iter()
    }

    /// The policy and its version. The policy is checked again, because another version of the program, or a
    /// person, may have written it.
    pub fn checked_policy(&self) -> Result<(Policy, u64), NoPolicy> {
        let row = self.policy.as_ref().ok_or(NoPolicy::Missing)?;
        let version = row.version.number();
        LAST_POLICY.with_borrow_mut(|last| match last {
            Some((document, policy)) if *document == row.document => Ok((policy.clone(), version)),
            _ => {
                let document: Value = serde_json::from_str(&row.document).map_err(|e| NoPolicy::Bad(e.to_string()))?;
                let policy = Policy::from_json(&document).map_err(|e| NoPolicy::Bad(e.to_string()))?;
                *last = Some((row.document.clone(), policy.clone()));
                Ok((policy, version))
            }
        })
    }

    /// The entry with this key; if there is no such row, an entry that was never written.
    fn entry<E: Entry>(&self, key: &ControlKey) -> E {
        E::from_row(self.entries.get(key).cloned().unwrap_or_else(|| EntryRow::new(key)))
    }

    /// The last shortage of an offering, as EC2 reported it.
    pub fn shortage(&self, offering: &Offering) -> Shortage {
        self.entry(&ControlKey::shortage_of(offering))
    }

    /// When EC2 last said that the account's limit is reached.
    pub fn quota(&self) -> Quota {
        self.entry(&ControlKey::Quota)
    }

    /// When EC2 last did not accept the caller.
    pub fn not_allowed(&self) -> NotAllowed {
        self.entry(&ControlKey::NotAllowed)
    }

    /// When EC2 last throttled launch calls.
    pub fn backoff(&self) -> Backoff {
        self.entry(&ControlKey::Backoff)
    }

    /// When EC2 last called the launch request of a size wrong.
    pub fn bad_request(&self, size: &str) -> BadRequest {
        self.entry(&ControlKey::BadRequest(size.to_owned()))
    }

    /// Failed starts in a row.
    pub fn failed_starts(&self) -> FailedStarts {
        self.entry(&ControlKey::FailedStarts)
    }

    /// What a brake holds back.
    pub fn brake(&self, kind: BrakeKind) -> BrakeEntry {
        self.entry(&ControlKey::Brake(kind))
    }

    /// An operator's release of a brake.
    pub fn release(&self, kind: BrakeKind) -> Release {
        self.entry(&ControlKey::Release(kind))
    }

    /// When heartbeat-ingest last accepted heartbeats.
    pub fn ingest(&self) -> IngestSummary {
        self.entry(&ControlKey::Ingest)
    }
}

/// A row of the control table that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("row {key} of table control cannot be understood: {detail}: repair or delete it")]
#[allow(missing_docs, reason = "the names say it")]
pub struct UnreadableEntry {
    pub key: String,
    pub detail: String,
}

/// Why there is no usable policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoPolicy {
    /// No policy is stored.
    #[error("no policy is stored: write one and store it with `nodekeeper policy set FILE`")]
    Missing,
    /// The stored policy does not pass the check.
    #[error("the stored policy is not usable: {0}; store a corrected one with `nodekeeper policy set FILE`")]
    Bad(String),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::at;

    #[test]
    fn every_key_reads_back_as_itself() {
        let keys = [
            ControlKey::Policy,
            ControlKey::Run("poll-and-scale".into()),
            ControlKey::Shortage("spot#m7a.large#any".into()),
            ControlKey::Quota,
            ControlKey::Backoff,
            ControlKey::BadRequest("small".into()),
            ControlKey::NotAllowed,
            ControlKey::FailedStarts,
            ControlKey::Brake(BrakeKind::Leases),
            ControlKey::Release(BrakeKind::Handles),
            ControlKey::Ingest,
            ControlKey::LastRun,
            ControlKey::Told,
        ];
        for key in keys {
            assert_eq!(key.to_string().parse(), Ok(key));
        }
        for unknown in ["", "brake#x", "brake", "surprise", "surprise#1"] {
            assert!(unknown.parse::<ControlKey>().is_err(), "{unknown}");
        }
    }

    #[test]
    fn heartbeats_are_noted_at_most_twice_a_minute_together_with_the_note_before() {
        let first = Control::default().ingest().noted(1, at(0)).unwrap();
        assert_eq!((first.since_at(), first.before_at()), (Some(at(0)), None));
        assert_eq!(first.noted(1, at(29)), None, "another process has just noted one");
        let second = first.noted(7, at(30)).unwrap();
        assert_eq!((second.since_at(), second.before_at()), (Some(at(30)), Some(at(0))));
        assert_eq!(second.row().count, Some(7));
    }

    #[test]
    fn an_unknown_key_is_left_out_and_a_bad_row_is_named() {
        let rows = |row: Value| Control::from_rows([row]);
        assert_eq!(rows(serde_json::json!({"key": "of_the_future", "count": 3})), Ok(Control::default()));
        let error = rows(serde_json::json!({"key": "quota", "count": "many"})).unwrap_err().to_string();
        assert!(error.starts_with("row quota of table control cannot be understood: invalid type"), "{error}");
    }
}
