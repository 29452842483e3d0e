//! Submissions that are made once, however often they are given: by their keys, or a file by its content.
//!
//! Guarantees: one key makes one job, or the jobs of one array or file, under any race, lost answer or restart. A row of the events
//! table, with the subject `key#…`, remembers the key. It is written in one transaction with the jobs, or before them if they are
//! too many for one. The same key with other content is an error that names what differs.
//! Does not: remember a key longer than [`KEPT`], or make a job again that has ended and is not stored any more: it says so.

use super::bulk::{self, Together, Written};
use crate::changes::operate::retention;
use crate::console::{Cluster, Context, UsageError, show};
use anyhow::{Context as _, ensure};
use model::auth::hex;
use model::events::Event;
use model::ids::{JobId, Ulid};
use model::time::{Span, Time};
use model::{ActionName, Job, JobSpec};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use store::transactions::JOBS_TOGETHER;
use store::{Store, WriteError};

/// How long a key is remembered: longer than a job can run.
const KEPT: Span = Span::from_s(2 * 366 * 86_400);
/// The id of the row of a key. It is fixed: of two programs that begin at once, only one can write the row.
const REMEMBERED: Ulid = Ulid::nil();
/// How often a submission is tried, if other programs make the same one at the same time.
pub(in crate::commands) const TRIES: usize = 5;

/// What is submitted: a digest of each part that is given, by the name of the part.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(in crate::commands) struct GivenParts(BTreeMap<String, String>);

impl GivenParts {
    /// The fields of a job, and what it names: the jobs that it follows count as they are named, because a name may stand for another
    /// job later.
    pub(in crate::commands) fn of(spec: &JobSpec, names: &Value) -> anyhow::Result<Self> {
        let mut parts = serde_json::from_value::<Map<String, Value>>(serde_json::to_value(spec)?)?;
        parts.remove("key");
        parts.extend(names.as_object().cloned().unwrap_or_default());
        let digest = |part: &Value| digest([part.to_string().as_bytes()]).chars().take(16).collect();
        Ok(Self(
            parts.iter().filter(|(_, part)| !part.is_null()).map(|(name, part)| (name.clone(), digest(part))).collect(),
        ))
    }

    /// These parts: for people, and what is given.
    pub(in crate::commands) fn of_parts<const N: usize>(parts: [(&str, String); N]) -> Self {
        Self(parts.into_iter().map(|(name, given)| (name.to_owned(), given)).collect())
    }

    fn differences(&self, other: &Self) -> String {
        let names: BTreeSet<&String> = self.0.keys().chain(other.0.keys()).collect();
        let differing = names.into_iter().filter(|name| self.0.get(*name) != other.0.get(*name));
        differing.map(String::as_str).collect::<Vec<_>>().join(", ")
    }
}

/// The SHA-256 of these parts together, as text.
pub(in crate::commands) fn digest<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> String {
    let mut hash = Sha256::new();
    parts.into_iter().for_each(|part| hash.update(part));
    hex(&hash.finalize())
}

/// What the row of a key holds.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Remembered {
    /// The first of its jobs. The others of an array or of a file have the next ids.
    first: JobId,
    given: GivenParts,
    /// Whether all of its jobs were written.
    complete: bool,
}

impl Remembered {
    fn of(row: &Event) -> anyhow::Result<Self> {
        let detail = serde_json::to_value(&row.detail).and_then(serde_json::from_value);
        detail.context("the row of its key cannot be read")
    }
}

/// A key, and what is submitted with it.
#[derive(Clone, Debug)]
pub(in crate::commands) struct Keyed {
    subject: String,
    given: GivenParts,
}

/// An earlier submission with the same key and the same content.
#[derive(Clone, Debug)]
pub(in crate::commands) struct Earlier {
    row: Event,
    pub(in crate::commands) first: JobId,
    pub(in crate::commands) is_complete: bool,
}

impl Earlier {
    /// Says on standard error that nothing, or only the rest, is written.
    pub(in crate::commands) fn announce(&self, context: &mut Context<'_>) -> io::Result<()> {
        let before = show::when(self.first.made_at(), context.now());
        match self.is_complete {
            true => writeln!(context.err, "it was submitted {before} with the same key, so nothing was written"),
            false => writeln!(context.err, "it was begun {before}: only what is missing is written"),
        }
    }
}

/// What is known of a submission before it is written.
#[derive(Clone, Copy, Debug)]
pub(in crate::commands) enum Begin<'a> {
    New,
    /// Some of its jobs may be stored.
    GoOn(&'a Earlier),
    /// The jobs of the earlier one have ended, and it is made once more.
    Anew(&'a Earlier),
}

impl Keyed {
    pub(in crate::commands) fn new(key: &str, given: GivenParts) -> Self {
        Self { subject: format!("key#{}", digest([key.as_bytes()])), given }
    }

    /// A file that has no key: its content stands for it.
    pub(in crate::commands) fn of_file(content: &str) -> Self {
        Self { subject: format!("key#file-{content}"), given: GivenParts::default() }
    }

    /// The row of this key for jobs that begin with this one.
    pub(in crate::commands) fn row(&self, first: JobId, is_complete: bool, now: Time) -> anyhow::Result<Event> {
        let remembered = Remembered { first, given: self.given.clone(), complete: is_complete };
        Ok(Event {
            subject: self.subject.clone(),
            id: REMEMBERED.to_string(),
            action: ActionName::Submit.to_string(),
            reason: String::new(),
            detail: serde_json::from_value(serde_json::to_value(remembered)?)?,
            expires_at: (now + KEPT).as_epoch_s(),
            once: None,
        })
    }

    /// The first job of what was submitted with this key, whatever that was.
    pub(in crate::commands) async fn first(store: &Store, key: &str) -> anyhow::Result<Option<JobId>> {
        let Self { subject, .. } = Self::new(key, GivenParts::default());
        let rows = store.events_with([(subject.as_str(), REMEMBERED)]).await?;
        rows.first().map(|row| Ok(Remembered::of(row)?.first)).transpose()
    }

    /// The earlier submission with this key. If other content was submitted with it, an error says what differs.
    pub(in crate::commands) async fn earlier(&self, store: &Store) -> anyhow::Result<Option<Earlier>> {
        earlier(store, [self]).await?.pop().flatten().transpose()
    }

    /// Writes its jobs, and that they are written: all or none, if one transaction takes them. `None` if another program has begun
    /// with this key meanwhile: the caller looks for it.
    pub(in crate::commands) async fn write(
        &self,
        cluster: &Cluster,
        begin: Begin<'_>,
        jobs: &[Job],
        now: Time,
    ) -> anyhow::Result<Option<Written>> {
        let first = jobs.first().context("a submission has no job")?.summary.job_id;
        let (begun, complete) = (self.row(first, false, now)?, self.row(first, true, now)?);
        if matches!(begin, Begin::New) && jobs.len() <= JOBS_TOGETHER {
            let written = bulk::write(cluster, vec![Together { jobs, keys: vec![(first, complete)] }], false).await;
            return Ok(Some(written).filter(|written| !matches!(written.error, Some(WriteError::Conflict(_)))));
        }
        let begun = match begin {
            Begin::New => cluster.store.record(&begun).await.map(|()| begun),
            Begin::Anew(before) => cluster.store.record_over(&before.row, &begun).await.map(|()| begun),
            Begin::GoOn(before) => {
                let keep = retention(cluster).await?.finished;
                ensure!(
                    now.since(first.made_at()) < keep,
                    "it was begun {}, and not all of it was written; jobs that have ended since may not be stored any more, so \
                     it is not known what is missing: submit all of it anew, with --again or another key",
                    show::when(first.made_at(), now)
                );
                Ok(before.row.clone())
            }
        };
        let begun = match begun {
            Err(WriteError::Conflict(_)) => return Ok(None),
            begun => begun?,
        };
        let written = bulk::write(cluster, bulk::in_order(jobs), matches!(begin, Begin::GoOn(_))).await;
        if written.error.is_none() {
            match cluster.store.record_over(&begun, &complete).await {
                // Another program has done so.
                Ok(()) | Err(WriteError::Conflict(_)) => {}
                Err(e) => {
                    return Err(
                        anyhow::Error::new(e).context("every job is stored, but the row of the key does not say so")
                    );
                }
            }
        }
        Ok(Some(written))
    }
}

/// The earlier submissions with these keys, in the order of the keys. Where other content was submitted, an error says what differs.
pub(in crate::commands) async fn earlier(
    store: &Store,
    keys: impl IntoIterator<Item = &Keyed>,
) -> anyhow::Result<Vec<Option<anyhow::Result<Earlier>>>> {
    let keys: Vec<&Keyed> = keys.into_iter().collect();
    let rows = store.events_with(keys.iter().map(|key| (key.subject.as_str(), REMEMBERED))).await?;
    let rows: BTreeMap<&str, &Event> = rows.iter().map(|row| (row.subject.as_str(), row)).collect();
    let read = |key: &Keyed, row: &Event| {
        let Remembered { first, given, complete } = Remembered::of(row)?;
        let differing = given.differences(&key.given);
        if !differing.is_empty() {
            return Err(UsageError(format!(
                "job {first} was submitted with this key and with another {differing}: give the same again, or another key"
            ))
            .into());
        }
        Ok(Earlier { row: row.clone(), first, is_complete: complete })
    };
    Ok(keys.into_iter().map(|key| rows.get(key.subject.as_str()).map(|row| read(key, row))).collect())
}

/// Writes the jobs of a submission that `jobs` makes, from the id of the first one on. With a key, what was written before is not
/// written again.
pub(in crate::commands) async fn submit_once(
    cluster: &Cluster,
    key: Option<&Keyed>,
    mut earlier: Option<Earlier>,
    fresh: JobId,
    now: Time,
    jobs: impl Fn(JobId) -> Result<Vec<Job>, UsageError>,
) -> anyhow::Result<Written> {
    let Some(key) = key else { return Ok(bulk::write(cluster, bulk::in_order(&jobs(fresh)?), false).await) };
    for _ in 0..TRIES {
        let jobs = jobs(earlier.as_ref().map_or(fresh, |earlier| earlier.first))?;
        let written = match &earlier {
            Some(earlier) if earlier.is_complete => {
                let ids: Vec<JobId> = jobs.iter().map(|job| job.summary.job_id).collect();
                let jobs = stored(&cluster.store, &ids, now).await?;
                Some(Written { jobs, ..Written::default() })
            }
            Some(earlier) => key.write(cluster, Begin::GoOn(earlier), &jobs, now).await?,
            None => key.write(cluster, Begin::New, &jobs, now).await?,
        };
        match written {
            Some(written) => return Ok(written),
            None => earlier = key.earlier(&cluster.store).await?,
        }
    }
    Err(contended())
}

/// The error of a submission that other programs kept from beginning.
pub(in crate::commands) fn contended() -> anyhow::Error {
    anyhow::anyhow!("other programs submit with the same key at the same time: try again")
}

/// The jobs of an earlier submission, in the order of their ids. It is an error if one of them is not stored any more.
pub(in crate::commands) async fn stored(store: &Store, ids: &[JobId], now: Time) -> anyhow::Result<Vec<Job>> {
    let mut jobs = store.jobs_of(ids.iter().copied()).await?.all()?;
    jobs.sort_by_key(|job| job.summary.job_id);
    let there: BTreeSet<JobId> = jobs.iter().map(|job| job.summary.job_id).collect();
    match ids.iter().find(|id| !there.contains(id)) {
        None => Ok(jobs),
        Some(gone) => Err(UsageError(format!(
            "job {gone} was submitted with this key {}; it has ended and is not stored any more, so how it ended is not known: \
             give another key to submit it anew",
            show::when(gone.made_at(), now)
        ))
        .into()),
    }
}
