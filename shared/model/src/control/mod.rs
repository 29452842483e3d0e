//! The control table: the policy, the functions' last runs, and the entries that end.
//!
//! Guarantees: an entry is a versioned row like any other.
//! Does not: hold anything that correctness depends on, except the policy. Entries only avoid useless
//! attempts: they end by themselves, and if one is lost, an attempt is repeated.

pub mod announced;
pub mod brake;
mod demand_set;
mod entries;
pub(crate) mod key;
pub mod next_jobs;
pub mod totals;

pub use demand_set::WantedSet;
pub use entries::{
    AnnouncedRow, Announcements, BrakeEntry, BrakePart, BrakeState, CatalogueRow, DemandSet, DemandTerms, Document,
    Entry, EntryRow, FailedStarts, IngestNote, IngestSummary, LaunchWait, LimitChange, ListPlace, ListReport,
    PolicyRow, PollTurn, ReadPlace, Release, RunNote, RunRow, RunTurn,
};
pub use key::ControlKey;
pub use next_jobs::{NextDraw, NextJobs, NextList, NextTurn};
pub use totals::{Totals, TotalsRow};

use crate::enums::BrakeKind;
use crate::{Catalogue, Offering, Policy, Span, Time, Version, left_out};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::cell::RefCell;
use std::collections::BTreeMap;

/// The longest error that is kept of a run, in characters.
const MAX_ERROR_CHARS: usize = 500;

/// How the actions of a run ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub done: u64,
    pub left: u64,
    pub failed: u64,
}

impl RunRow {
    /// The row of a function that has not run yet.
    pub fn of_function(function: &str) -> Self {
        Self::new(&ControlKey::Run(function.to_owned()))
    }

    /// The row of a function whose first run begins now.
    fn before_first(function: &str, now: Time) -> Self {
        let row = Self::of_function(function);
        Self { entry: RunNote { first_at: Some(now), ..row.entry }, ..row }
    }

    /// The row after a run that could observe. `before` is the row as read.
    pub fn after(function: &str, before: Option<&Self>, started_at: Time, took: Span, tally: Tally) -> Self {
        let row = before.cloned().unwrap_or_else(|| Self::before_first(function, started_at));
        let nothing_done = tally.done == 0 && tally.left + tally.failed > 0;
        row.with(RunNote {
            started_at,
            duration_ms: took.as_ms(),
            last_success_at: Some(started_at),
            actions: tally.done,
            left: tally.left,
            failed: tally.failed,
            error: None,
            failing_since_at: None,
            nothing_done_since_at: nothing_done.then(|| row.nothing_done_since_at.unwrap_or(started_at)),
            ..row.entry.clone()
        })
    }

    /// The row after a run that could not observe.
    pub fn failed(function: &str, before: Option<&Self>, started_at: Time, took: Span, error: &str) -> Self {
        let row = before.cloned().unwrap_or_else(|| Self::before_first(function, started_at));
        row.with(RunNote {
            started_at,
            duration_ms: took.as_ms(),
            actions: 0,
            left: 0,
            failed: 0,
            error: Some(error.chars().take(MAX_ERROR_CHARS).collect()),
            failing_since_at: row.failing_since_at.or(Some(started_at)),
            ..row.entry.clone()
        })
    }
}

/// The control table as read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Control {
    pub policy: Option<PolicyRow>,
    pub runs: BTreeMap<String, RunRow>,
    /// The reasons of waiting jobs that poll-and-scale has written events about.
    pub announced: Option<AnnouncedRow>,
    pub catalogue: Option<CatalogueRow>,
    /// The rows that cannot be read, and the rows with an unknown key.
    pub unreadable: Vec<UnreadableEntry>,
    /// The jobs that start next on freed room; `None`: no run has listed any.
    pub next_jobs: Option<NextList>,
    pub totals: Option<TotalsRow>,
    /// The limits on launches, and the failed starts.
    pub waits: Entries<LaunchWait>,
    pub demand_sets: Entries<DemandTerms>,
    /// The brakes and their releases.
    brakes: Entries<BrakeState>,
    places: Entries<ReadPlace>,
    ingest: Entries<IngestNote>,
}

type Entries<E> = BTreeMap<ControlKey, EntryRow<E>>;

/// The entry with this key; if there is no such row, an entry that was never written.
fn entry<E: Entry>(entries: &Entries<E>, key: &ControlKey) -> EntryRow<E> {
    entries.get(key).cloned().unwrap_or_else(|| EntryRow::new(key))
}

/// How long an entry is kept after its end: a day.
const MEMORY: Span = Span::from_s(86_400);

thread_local! {
    /// The documents of the policy and of the catalogue that were checked last, and the policy that they give. They are kept
    /// because a process answers thousands of requests with the same policy.
    static LAST_POLICY: RefCell<Option<(String, String, Policy)>> = const { RefCell::new(None) };
}

impl Control {
    /// Reads rows given as JSON: from the table, or from `plan --state`.
    ///
    /// A row that cannot be read is quarantined, and so is a row with an unknown key, which newer code may have written. The
    /// entry then counts as never written: a brake begins anew and holds, a release does not apply, and a limit of
    /// launches is met again. Without a policy that can be read, no function does anything.
    pub fn from_rows(rows: impl IntoIterator<Item = Value>) -> Self {
        let mut control = Self::default();
        rows.into_iter().for_each(|row| control.read(row));
        control
    }

    /// The rows by their keys, for [`Self::from_rows`], without those that no decision of a run reads.
    pub fn to_rows(&self) -> BTreeMap<String, Value> {
        fn rows<'r>(rows: impl Iterator<Item = &'r (impl Serialize + 'r)>) -> impl Iterator<Item = Value> {
            rows.filter_map(|row| left_out::to_json(row).ok())
        }
        let whole = rows(self.policy.iter()).chain(rows(self.catalogue.iter())).chain(rows(self.announced.iter()));
        let runs = rows(self.runs.values()).chain(rows(self.places.values())).chain(rows(self.ingest.values()));
        let held = rows(self.waits.values())
            .chain(rows(self.totals.iter()))
            .chain(rows(self.brakes.values()))
            .chain(rows(self.demand_sets.values()));
        let key = |row: &Value| row.get("key").and_then(Value::as_str).map(str::to_owned);
        whole.chain(runs).chain(held).filter_map(|row| Some((key(&row)?, row))).collect()
    }

    fn read(&mut self, row: Value) {
        let key = row.get("key").and_then(Value::as_str).unwrap_or_default().to_owned();
        let known = match key.parse::<ControlKey>() {
            Ok(known) => known,
            Err(unknown) => {
                let detail = format!("this version does not know the key: {unknown}");
                return self.unreadable.push(UnreadableEntry { key, detail, is_of_this_version: false });
            }
        };
        if let Err(error) = self.take(known, row) {
            self.unreadable.push(UnreadableEntry { key, detail: error.to_string(), is_of_this_version: true });
        }
    }

    fn take(&mut self, key: ControlKey, row: Value) -> serde_json::Result<()> {
        fn keep<K: Ord, R: DeserializeOwned>(rows: &mut BTreeMap<K, R>, key: K, row: Value) -> serde_json::Result<()> {
            rows.insert(key, serde_json::from_value(row)?);
            Ok(())
        }
        match key {
            ControlKey::Policy => self.policy = Some(serde_json::from_value(row)?),
            ControlKey::Announced => self.announced = Some(serde_json::from_value(row)?),
            ControlKey::Catalogue => {
                let row: CatalogueRow = serde_json::from_value(row)?;
                row.catalogue()?;
                self.catalogue = Some(row);
            }
            ControlKey::Run(function) => keep(&mut self.runs, function, row)?,
            ControlKey::Limit(..) | ControlKey::FailedStarts => keep(&mut self.waits, key, row)?,
            ControlKey::Brake(_) | ControlKey::Release(_) => keep(&mut self.brakes, key, row)?,
            ControlKey::Demand(_) => keep(&mut self.demand_sets, key, row)?,
            ControlKey::QueuePlace | ControlKey::AfterPlace | ControlKey::JobsPlace => {
                keep(&mut self.places, key, row)?;
            }
            ControlKey::Ingest => keep(&mut self.ingest, key, row)?,
            ControlKey::NextJobs => self.next_jobs = Some(serde_json::from_value(row)?),
            ControlKey::Totals => self.totals = Some(serde_json::from_value(row)?),
            // Nobody reads these from here, but an unreadable one is announced.
            ControlKey::LastRun | ControlKey::LimitTurn => drop(serde_json::from_value::<PollTurn>(row)?),
            ControlKey::NextTurn => drop(serde_json::from_value::<NextDraw>(row)?),
        }
        Ok(())
    }

    /// Replaces the row with the key of this one.
    #[cfg(any(test, feature = "fixtures"))]
    pub fn put(&mut self, row: impl serde::Serialize) {
        self.read(serde_json::json!(row));
    }

    /// The entries that no decision reads any more: those that ended more than a day ago, and demand sets that have ended. A wait
    /// can grow only within an hour of its end, because the longest wait is an hour. A count of failed starts goes on until a
    /// start succeeds, and notes have no end.
    pub fn over(&self, now: Time) -> Vec<(&ControlKey, Version)> {
        fn ended<E: Entry>(rows: &Entries<E>, after: Span, now: Time) -> impl Iterator<Item = (&ControlKey, Version)> {
            let is_over = move |row: &EntryRow<E>| row.until_at().is_some_and(|at| now.since(at) > after);
            rows.iter().filter(move |(_, row)| is_over(row)).map(|(key, row)| (key, row.version))
        }
        let waits = ended(&self.waits, MEMORY, now).filter(|(key, _)| **key != ControlKey::FailedStarts);
        let brakes = ended(&self.brakes, MEMORY, now);
        // A set ends at the moment that it names.
        let sets = ended(&self.demand_sets, Span::from_ms(-1), now);
        waits.chain(brakes).chain(sets).collect()
    }

    /// The policy and its version. The policy is checked again, because another version of the program, or a person, may have
    /// written it. An error if there is none, or if it is not valid for this version of the program.
    pub fn checked_policy(&self) -> Result<(Policy, u64), NoPolicy> {
        let unreadable = self.unreadable.iter().find(|entry| entry.key == ControlKey::Policy.to_string());
        if let Some(entry) = unreadable {
            return Err(NoPolicy::Bad(entry.detail.clone()));
        }
        let row = self.policy.as_ref().ok_or(NoPolicy::Missing)?;
        let version = row.version.number();
        let offers = self.catalogue.as_ref().map_or("", |row| row.document.as_str());
        LAST_POLICY.with_borrow_mut(|last| match last {
            Some((document, of, policy)) if *document == row.document && of == offers => Ok((policy.clone(), version)),
            _ => {
                let document: Value = serde_json::from_str(&row.document).map_err(|e| NoPolicy::Bad(e.to_string()))?;
                let policy = Policy::from_json(&document).map_err(|e| NoPolicy::Bad(e.to_string()))?;
                let policy = policy.with_catalogue(self.catalogue());
                *last = Some((row.document.clone(), offers.to_owned(), policy.clone()));
                Ok((policy, version))
            }
        })
    }

    /// What EC2 offers; empty if nothing is stored.
    pub fn catalogue(&self) -> Catalogue {
        self.catalogue.as_ref().and_then(|row| row.catalogue().ok()).unwrap_or_default()
    }

    /// EC2's answer to launches of this offering when it was short of it.
    pub fn shortage(&self, offering: &Offering) -> EntryRow<LaunchWait> {
        entry(&self.waits, &ControlKey::shortage_of(offering))
    }

    /// The count of failed starts, and until when it pauses launches. A row that was never written if there is none.
    pub fn failed_starts(&self) -> EntryRow<LaunchWait> {
        entry(&self.waits, &ControlKey::FailedStarts)
    }

    /// What this brake holds back. A row that was never written if there is none.
    pub fn brake(&self, kind: BrakeKind) -> BrakeEntry {
        entry(&self.brakes, &ControlKey::Brake(kind))
    }

    /// What an operator released of this brake. A row that was never written if there is none.
    pub fn release(&self, kind: BrakeKind) -> Release {
        entry(&self.brakes, &ControlKey::Release(kind))
    }

    /// Where the next run goes on in the list of this key.
    pub fn place(&self, key: &ControlKey) -> ListPlace {
        entry(&self.places, key)
    }

    /// Whether a brake holds something back.
    pub fn is_braked(&self, now: Time) -> bool {
        self.brakes.iter().any(|(key, row)| matches!(key, ControlKey::Brake(_)) && row.holds_back(now))
    }

    /// When heartbeat-ingest last accepted heartbeats. A row that was never written if there is none.
    pub fn ingest(&self) -> IngestSummary {
        entry(&self.ingest, &ControlKey::Ingest)
    }
}

/// A row of the control table that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("row {key} of table control cannot be read: {detail}")]
pub struct UnreadableEntry {
    pub key: String,
    pub detail: String,
    /// Whether this version knows the key. Newer code may have written a row with another key.
    pub is_of_this_version: bool,
}

/// Why there is no usable policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoPolicy {
    #[error("no policy is stored: write one and store it with `nodekeeper policy set FILE`")]
    Missing,
    #[error("the stored policy is not usable: {0}; store a corrected one with `nodekeeper policy set FILE`")]
    Bad(String),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::enums::{Class, Reach};
    use crate::fixtures::{at, offering};
    use crate::refusal::Scope;

    #[test]
    fn every_key_reads_back_as_itself() {
        let keys = [
            ControlKey::Policy,
            ControlKey::Run("poll-and-scale".into()),
            ControlKey::shortage_of(&offering()),
            ControlKey::Limit(Class::Throttled, Scope::ACCOUNT),
            ControlKey::Limit(Class::Quota, Scope::of(Reach::Family, &offering())),
            ControlKey::FailedStarts,
            ControlKey::Brake(BrakeKind::Leases),
            ControlKey::Release(BrakeKind::Orphans),
            ControlKey::Ingest,
            ControlKey::LastRun,
            ControlKey::QueuePlace,
            ControlKey::AfterPlace,
            ControlKey::JobsPlace,
            ControlKey::NextJobs,
            ControlKey::NextTurn,
            ControlKey::Totals,
            ControlKey::LimitTurn,
            ControlKey::Demand("ci-builds".into()),
            ControlKey::Announced,
            ControlKey::Catalogue,
        ];
        for key in keys {
            assert_eq!(key.to_string().parse(), Ok(key));
        }
        for unknown in
            ["", "brake#x", "brake", "surprise", "surprise#1", "limit#short", "limit#long#account", "limit#short#all"]
        {
            assert!(unknown.parse::<ControlKey>().is_err(), "{unknown}");
        }
    }

    #[test]
    fn heartbeats_are_noted_at_most_once_in_a_gap_together_with_the_note_before() {
        let gap = Span::from_s(40);
        let first = Control::default().ingest().noted(1, gap, at(0)).unwrap();
        assert_eq!((first.since_at, first.before_at), (Some(at(0)), None));
        assert_eq!(first.noted(1, gap, at(39)), None, "another process has just noted one");
        let second = first.noted(7, gap, at(40)).unwrap();
        assert_eq!((second.since_at, second.before_at), (Some(at(40)), Some(at(0))));
        assert_eq!(second.count, 7);
    }

    #[test]
    fn an_unknown_key_and_a_bad_row_are_quarantined() {
        let rows = [
            serde_json::json!({"key": "of_the_future", "count": 3}),
            serde_json::json!({"key": "limit#quota#account", "count": "many"}),
            serde_json::json!({"key": "run#poll-and-scale", "started_at": "yesterday"}),
            serde_json::json!({"key": 7}),
            serde_json::json!({"key": "limit#throttled#account", "version": 3, "count": 2}),
        ];
        let control = Control::from_rows(rows);
        let keys: Vec<&str> = control.unreadable.iter().map(|entry| entry.key.as_str()).collect();
        assert_eq!(keys, ["of_the_future", "limit#quota#account", "run#poll-and-scale", ""]);
        let told = control.unreadable[1].to_string();
        assert!(told.starts_with("row limit#quota#account of table control cannot be read: invalid type"), "{told}");
        assert_eq!(control.waits.keys().map(ToString::to_string).collect::<Vec<_>>(), ["limit#throttled#account"]);
        assert!(control.runs.is_empty());
    }

    #[test]
    fn entries_are_over_a_day_after_their_end() {
        let (end, later) = (at(0), at(86_401));
        for key in ["limit#short#offering#spot#m7a.large#any", "limit#wrong#account", "brake#leases", "release#orphans"]
        {
            let control = Control::from_rows([serde_json::json!({"key": key, "version": 1, "until_at": end.as_ms()})]);
            assert_eq!((control.over(later).len(), control.over(at(86_400)).len()), (1, 0), "{key}");
        }
        // A count of failed starts, and the notes, have no end.
        for key in ["boot_failures", "ingest", "last_run", "queue_place", "after_place", "jobs_place"] {
            let row = serde_json::json!({"key": key, "version": 1, "since_at": 0, "until_at": 0, "count": 1});
            let control = Control::from_rows([row]);
            assert_eq!(control.over(later), [], "{key}");
        }
    }

    #[test]
    fn a_policy_that_cannot_be_read_is_not_a_missing_one() {
        let control = Control::from_rows([serde_json::json!({"key": "policy", "version": 1, "document": 7})]);
        let said = control.checked_policy().unwrap_err().to_string();
        assert!(said.starts_with("the stored policy is not usable: invalid type"), "{said}");
    }
}
