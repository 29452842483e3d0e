//! Submissions that are made once, however often they are given: by their keys, or a file by its content.
//!
//! Guarantees: one key makes one job, or the jobs of one array or file, under any race, lost answer or restart. A row of the events
//! table, with the subject `key#…`, remembers the key. It is written in one transaction with the jobs, or before them if they are
//! too many for one. The same key with other content is an error that names what differs.
//! Does not: remember a key longer than [`KEPT`], or make a job again that has ended and is not stored any more: it says so.

use super::bulk::{self, Together, Written};
use crate::changes::operate::retention;
use crate::console::{Cluster, Context, UsageError, show};
use anyhow::{Context as _, bail, ensure};
use model::auth::hex;
use model::ids::Ulid;
use model::{ActionName, Event, Job, JobId, JobSpec, Span, Time};
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
pub(crate) const TRIES: usize = 5;

/// What is submitted: a digest of each part that is given, by the name of the part.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct GivenParts(BTreeMap<String, String>);

impl GivenParts {
    /// The fields of a job, and what it names: the jobs that it follows count as they are named, because a name may stand for another
    /// job later.
    pub(crate) fn of(spec: &JobSpec, names: &Value) -> anyhow::Result<Self> {
        let mut parts = serde_json::from_value::<Map<String, Value>>(serde_json::to_value(spec)?)?;
        parts.remove("key");
        parts.extend(names.as_object().cloned().unwrap_or_default());
        let digest = |part: &Value| digest([part.to_string().as_bytes()]).chars().take(16).collect();
        Ok(Self(
            parts.iter().filter(|(_, part)| !part.is_null()).map(|(name, part)| (name.clone(), digest(part))).collect(),
        ))
    }

    /// These parts: for people, and what is given.
    pub(crate) fn of_parts<const N: usize>(parts: [(&str, String); N]) -> Self {
        Self(parts.into_iter().map(|(name, given)| (name.to_owned(), given)).collect())
    }

    fn differences(&self, other: &Self) -> String {
        let names: BTreeSet<&String> = self.0.keys().chain(other.0.keys()).collect();
        let differing = names.into_iter().filter(|name| self.0.get(*name) != other.0.get(*name));
        differing.map(String::as_str).collect::<Vec<_>>().join(", ")
    }
}

/// The SHA-256 of these parts together, as text.
pub(crate) fn digest<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> String {
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
pub(crate) struct Keyed {
    subject: String,
    given: GivenParts,
}

/// An earlier submission with the same key and the same content.
#[derive(Clone, Debug)]
pub(crate) struct Earlier {
    row: Event,
    pub(crate) first: JobId,
    pub(crate) is_complete: bool,
}

impl Earlier {
    /// Says on standard error that nothing, or only the rest, is written.
    fn announce(&self, context: &mut Context<'_>) -> io::Result<()> {
        let before = show::when(self.first.made_at(), context.now());
        match self.is_complete {
            true => writeln!(context.err, "the same was submitted {before}, so nothing was written"),
            false => writeln!(context.err, "it was begun {before}: only what is missing is written"),
        }
    }
}

/// How a submission begins.
#[derive(Clone, Debug)]
pub(crate) enum Begin {
    New,
    /// Some of its jobs may be stored, or all of them.
    GoesOn(Earlier),
    /// The jobs of the earlier one have ended, and it is made once more.
    Anew(Earlier),
}

impl Keyed {
    pub(crate) fn new(key: &str, given: GivenParts) -> Self {
        Self { subject: format!("key#{}", digest([key.as_bytes()])), given }
    }

    /// The key that an option gives, and how a submission with this key begins; `None` without the option.
    pub(crate) async fn of_option(
        key: Option<&str>,
        given: GivenParts,
        store: &Store,
    ) -> anyhow::Result<Option<(Self, Begin)>> {
        let Some(key) = key.map(|key| Self::new(key, given)) else { return Ok(None) };
        let begin = key.begin(store).await?;
        Ok(Some((key, begin)))
    }

    /// A file that has no key: its content stands for it.
    pub(crate) fn of_file(content: &str) -> Self {
        Self { subject: format!("key#file-{content}"), given: GivenParts::default() }
    }

    /// The row of this key for jobs that begin with this one.
    pub(crate) fn row(&self, first: JobId, is_complete: bool, now: Time) -> anyhow::Result<Event> {
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
    pub(crate) async fn first(store: &Store, key: &str) -> anyhow::Result<Option<JobId>> {
        let Self { subject, .. } = Self::new(key, GivenParts::default());
        let rows = store.events_with([(subject.as_str(), REMEMBERED)]).await?;
        rows.first().map(|row| Ok(Remembered::of(row)?.first)).transpose()
    }

    /// The earlier submission with this key. If other content was submitted with it, an error says what differs.
    pub(crate) async fn earlier(&self, store: &Store) -> anyhow::Result<Option<Earlier>> {
        earlier(store, [self]).await?.pop().flatten().transpose()
    }

    async fn begin(&self, store: &Store) -> anyhow::Result<Begin> {
        Ok(self.earlier(store).await?.map_or(Begin::New, Begin::GoesOn))
    }

    /// Writes its jobs, and that they are written: all or none, if one transaction takes them. `None` if another program has begun
    /// with this key meanwhile: the caller looks for it.
    pub(crate) async fn write(
        &self,
        cluster: &Cluster,
        begin: &Begin,
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
            Begin::GoesOn(before) => {
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
        let written = bulk::write(cluster, bulk::in_order(jobs), matches!(begin, Begin::GoesOn(_))).await;
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
pub(crate) async fn earlier(
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
            bail!(UsageError(format!(
                "job {first} was submitted with this key and with another {differing}: give the same again, or another key"
            )));
        }
        Ok(Earlier { row: row.clone(), first, is_complete: complete })
    };
    Ok(keys.into_iter().map(|key| rows.get(key.subject.as_str()).map(|row| read(key, row))).collect())
}

/// Writes the jobs of a submission, which `jobs` prepares and makes from the id of the first one on. With a key, what was written before
/// is not written again. `ids` are those of all the jobs. Returns the id of the first one, too.
pub(crate) async fn submit_once(
    context: &mut Context<'_>,
    cluster: &Cluster,
    key: Option<(Keyed, Begin)>,
    ids: impl Fn(JobId) -> Vec<JobId>,
    jobs: impl AsyncFn(&mut Context<'_>, JobId) -> anyhow::Result<Vec<Job>>,
) -> anyhow::Result<(JobId, Written)> {
    let now = context.now();
    let fresh = fresh(cluster, now);
    let Some((key, mut begin)) = key else {
        let jobs = signed(cluster, jobs(context, fresh).await?).await?;
        return Ok((fresh, bulk::write(cluster, bulk::in_order(&jobs), false).await));
    };
    for _ in 0..TRIES {
        let mut first = fresh;
        if let Begin::GoesOn(earlier) = &begin {
            earlier.announce(context)?;
            first = earlier.first;
            if earlier.is_complete {
                let jobs = stored(&cluster.store, &ids(first), now).await?;
                return Ok((first, Written { jobs, ..Written::default() }));
            }
        }
        let jobs = signed(cluster, jobs(context, first).await?).await?;
        match key.write(cluster, &begin, &jobs, now).await? {
            Some(written) => return Ok((first, written)),
            None => begin = key.begin(&cluster.store).await?,
        }
    }
    Err(contended())
}

/// These new jobs, with who submits them and for which share.
pub(crate) async fn signed(cluster: &Cluster, mut jobs: Vec<Job>) -> anyhow::Result<Vec<Job>> {
    let by = cluster.reach.who.name().await?;
    // Without a policy that can be read, nothing is known of its shares: the jobs count for the default one.
    let policy = cluster.store.ingest_control().await?.checked_policy().ok();
    for job in &mut jobs {
        let named = job.summary.share.take();
        if let Some((policy, _)) = &policy {
            job.summary.share = policy.share_for(Some(by), named.as_deref()).map_err(UsageError)?;
        }
        job.summary.by = Some(by.to_owned());
    }
    Ok(jobs)
}

/// Leaves out the shares of which the person who submits these copies is no member, or that are gone.
pub(crate) async fn without_lost_shares(cluster: &Cluster, copies: &mut [JobSpec]) -> anyhow::Result<()> {
    let by = cluster.reach.who.name().await?;
    if let Ok((policy, _)) = cluster.store.ingest_control().await?.checked_policy() {
        let is_lost = |spec: &&mut JobSpec| policy.share_for(Some(by), spec.share.as_deref()).is_err();
        copies.iter_mut().filter(is_lost).for_each(|spec| spec.share = None);
    }
    Ok(())
}

/// The id of a new job, or of the first one of several.
pub(crate) fn fresh(cluster: &Cluster, now: Time) -> JobId {
    JobId::new(cluster.store.rng().ulid(now))
}

/// The error of a submission that other programs kept from beginning.
pub(crate) fn contended() -> anyhow::Error {
    anyhow::anyhow!("other programs submit with the same key at the same time: try again")
}

/// The jobs of an earlier submission, in the order of their ids. It is an error if one of them is not stored any more.
pub(crate) async fn stored(store: &Store, ids: &[JobId], now: Time) -> anyhow::Result<Vec<Job>> {
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
