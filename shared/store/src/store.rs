//! Reading and writing the tables of one cluster.
//!
//! Guarantees: every write has a condition: the row is as it was read, or there is no row. Only events in a batch have
//! none, because nobody else uses their keys. A list is read to its last page, or the whole read fails. A transaction
//! conflict is retried three times with jitter, a failed condition never (`docs/rules.md#R3`).
//! Errors: a [`Listed`] leaves out the rows that cannot be read, and names them; elsewhere one such row is [`DbError::Corrupt`].
//! A write that lost a race is [`WriteError::Conflict`], also when a contention outlasted the retries.
//! Does not: decide what to write, or retry anything that failed for another reason. The next run does.

use crate::db::{Answer, Db, DbError, PageKey, Query, Row, Scan, Segment, WriteError, ignore_conflict};
use crate::rows::json::to_json;
use crate::rows::listed::{Listed, Unreadable};
use crate::rows::{self, Record, alloc_key, change, control_key, from_item, job_key, n, node_key, s};
use crate::tables::{Index, LIVE, Table};
use crate::write::{Cond, Effect, Item, Key, Write};
use aws_sdk_dynamodb::types::AttributeValue;
use futures::future::{join_all, try_join_all};
use model::control::{Entry, EntryRow, RunRow};
use model::functions::POLL_AND_SCALE;
use model::ids::Ulid;
use model::wire::{Heartbeat, NodeHealth, ReportCounter};
use model::{
    Alloc, AllocId, AllocSummary, Control, ControlKey, Event, Job, JobId, MAX_NODES, NodeId, NodeRecord, Rng, Slot,
    Time, Version,
};
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

/// How many copies of a job's members are looked for: more than any job keeps rows of.
const COPIES: u32 = 1000;

/// How often a write is retried after a conflict with another transaction.
const CONTENTION_RETRIES: u32 = 3;

/// The tables of one cluster. Cheap to clone.
#[derive(Clone)]
pub struct Store {
    pub(crate) db: Arc<dyn Db>,
    rng: Rng,
}

/// A steady heartbeat: the new pulse, and the attributes that the record must have for the heartbeat to be steady.
#[derive(Clone, Debug)]
pub struct Pulse<'a> {
    pub node_id: NodeId,
    /// What the agent says. Its health must be [`NodeHealth::clipped`], as on the record.
    pub heartbeat: &'a Heartbeat,
    pub incarnation: &'a str,
    pub now: Time,
    /// When the renewed lease expires.
    pub lease_expires_at: Time,
}

impl Store {
    pub fn new(db: Arc<dyn Db>) -> Self {
        Self::with_rng(db, Rng::real())
    }

    /// With these random values, so that a simulation can repeat a run.
    pub fn with_rng(db: Arc<dyn Db>, rng: Rng) -> Self {
        Self { db, rng }
    }

    /// The source of random values for ids, for jitter, and for the time of a node's next call.
    pub const fn rng(&self) -> &Rng {
        &self.rng
    }

    /// All rows; an error if one of them cannot be read.
    async fn scan<R: DeserializeOwned + Send>(&self, table: Table, index: Option<Index>) -> Result<Vec<R>, DbError> {
        self.scan_at_once(table, index, 1).await?.all()
    }

    /// All rows, in any order. Several segments are read at the same time.
    async fn scan_at_once<R: DeserializeOwned + Send>(
        &self,
        table: Table,
        index: Option<Index>,
        segments: i32,
    ) -> Result<Listed<R>, DbError> {
        let segment = |number| (segments > 1).then_some(Segment { number, of: segments });
        let scans = (0..segments.max(1)).map(|number| Scan { segment: segment(number), ..Scan::all(table, index) });
        let lists = scans.map(|scan| async move {
            let (mut listed, mut from) = (Listed::default(), None);
            loop {
                let page = self.db.scan(&scan, from).await?;
                page.items.iter().for_each(|row| listed.add(table, row));
                from = page.next;
                if from.is_none() {
                    return Ok(listed);
                }
            }
        });
        Ok(try_join_all(lists).await?.into_iter().fold(Listed::default(), Listed::and))
    }

    /// A list, read to its last page; one page of it, if the query has a limit.
    pub(crate) async fn query<R: DeserializeOwned + Send>(&self, query: &Query) -> Result<Listed<R>, DbError> {
        let (mut listed, mut from) = (Listed::default(), None);
        loop {
            let (page, rest) = self.rows(query, from, 0).await?;
            page.iter().for_each(|row| listed.add(query.table, row));
            from = rest;
            if from.is_none() || query.limit.is_some() {
                return Ok(listed);
            }
        }
    }

    /// Reads pages of a list until it has at least `most` rows. Returns the rows, and where the rest begins.
    pub(crate) async fn rows(
        &self,
        query: &Query,
        mut from: Option<PageKey>,
        most: usize,
    ) -> Result<(Vec<Row>, Option<PageKey>), DbError> {
        let mut rows = Vec::new();
        loop {
            let page = self.db.query(query, from).await?;
            rows.extend(page.items);
            from = page.next;
            if from.is_none() || rows.len() >= most {
                return Ok((rows, from));
            }
        }
    }

    /// Reads these rows, each once: DynamoDB refuses a batch that names one twice.
    pub(crate) async fn get_each(&self, keys: impl IntoIterator<Item = Key>) -> Result<Vec<Row>, DbError> {
        let text = |value: &AttributeValue| match value {
            AttributeValue::S(text) | AttributeValue::N(text) => text.clone(),
            _ => String::new(),
        };
        let mut known = HashSet::new();
        let is_new = |key: &Key| known.insert((text(&key.hash), key.range.as_ref().map(text)));
        let keys: Vec<Key> = keys.into_iter().filter(is_new).collect();
        self.db.get_many(&keys).await
    }

    pub(crate) async fn read<R: DeserializeOwned + Send>(&self, key: &Key) -> Result<Option<R>, DbError> {
        self.db.get(key).await?.map(|item| from_item(key.table, &item)).transpose()
    }

    /// Every node record, read consistently; an error if one of them cannot be read.
    pub async fn nodes(&self) -> Result<Vec<NodeRecord>, DbError> {
        self.scan(Table::Nodes, None).await
    }

    /// Every node record, read consistently, in any order, in `segments` parts that are read at the same time.
    pub async fn nodes_listed(&self, segments: i32) -> Result<Listed<NodeRecord>, DbError> {
        self.scan_at_once(Table::Nodes, None, segments).await
    }

    /// A slot's record, read consistently.
    pub async fn node(&self, slot: Slot) -> Result<Option<NodeRecord>, DbError> {
        self.read(&node_key(slot)).await
    }

    /// The records of these slots, read consistently; those that do not exist are left out.
    pub async fn nodes_of(&self, slots: impl IntoIterator<Item = Slot>) -> Result<Listed<NodeRecord>, DbError> {
        let keys: Vec<Key> = slots.into_iter().map(node_key).collect();
        Ok(Listed::of(Table::Nodes, &self.get_each(keys).await?))
    }

    /// Every job; an error if one of them cannot be read. It reads the whole table: no decision may need it.
    pub async fn jobs(&self) -> Result<Vec<Job>, DbError> {
        self.scan(Table::Jobs, None).await
    }

    /// These jobs, read consistently; those that do not exist are left out.
    pub async fn jobs_of(&self, ids: impl IntoIterator<Item = JobId>) -> Result<Listed<Job>, DbError> {
        let keys: Vec<Key> = ids.into_iter().map(job_key).collect();
        Ok(Listed::of(Table::Jobs, &self.get_each(keys).await?))
    }

    /// A job, read consistently.
    pub async fn job(&self, job: JobId) -> Result<Option<Job>, DbError> {
        self.read(&job_key(job)).await
    }

    /// The rows of one page of the jobs table, behind this job, that cannot be read, and the last job of the page if more follow.
    pub async fn jobs_unreadable_behind(
        &self,
        behind: Option<&str>,
    ) -> Result<(Vec<Unreadable>, Option<String>), DbError> {
        let from = behind.map(|job| PageKey::from([("job_id".into(), s(job))]));
        let page = self.db.scan(&Scan::all(Table::Jobs, None), from).await?;
        let unreadable = Listed::<Job>::of(Table::Jobs, &page.items).unreadable;
        let end = page.next.and_then(|key| key.get("job_id")?.as_s().ok().cloned());
        Ok((unreadable, end))
    }

    /// The rows of these jobs that cannot be read, read consistently.
    pub async fn jobs_unreadable(&self, ids: impl IntoIterator<Item = JobId>) -> Result<Vec<Unreadable>, DbError> {
        Ok(self.jobs_of(ids).await?.unreadable)
    }

    /// Every live alloc, in any order, in `segments` parts that are read at the same time. The index may be behind the
    /// table.
    pub async fn live_allocs_listed(&self, segments: i32) -> Result<Listed<AllocSummary>, DbError> {
        self.scan_at_once(Table::Allocs, Some(LIVE), segments).await
    }

    /// These allocs, read consistently; those that do not exist are left out. An error if one of them cannot be read.
    pub async fn allocs(&self, ids: impl IntoIterator<Item = AllocId>) -> Result<Vec<Alloc>, DbError> {
        self.allocs_listed(ids).await?.all()
    }

    /// These allocs, read consistently; those that do not exist are left out.
    pub async fn allocs_listed(&self, ids: impl IntoIterator<Item = AllocId>) -> Result<Listed<Alloc>, DbError> {
        let keys: Vec<Key> = ids.into_iter().map(alloc_key).collect();
        Ok(Listed::of(Table::Allocs, &self.get_each(keys).await?))
    }

    /// An alloc, read consistently.
    pub async fn alloc(&self, id: AllocId) -> Result<Option<Alloc>, DbError> {
        self.read(&alloc_key(id)).await
    }

    /// The allocs of these jobs that still have rows, ended ones too, of the last copies. No index is needed, because the
    /// ids follow from the numbers of members and copies.
    pub async fn allocs_of<'j>(&self, jobs: impl IntoIterator<Item = &'j Job>) -> Result<Listed<Alloc>, DbError> {
        let mut ids = Vec::new();
        for job in jobs {
            let (job_id, nodes, copies) =
                (job.summary.job_id, job.summary.needs.nodes.min(MAX_NODES), job.summary.tries.copies);
            let copies = copies.saturating_sub(COPIES)..copies;
            ids.extend(copies.flat_map(|copy| (0..nodes).map(move |member| AllocId { job_id, member, copy })));
        }
        let mut listed = self.allocs_listed(ids).await?;
        listed.rows.sort_by_key(|a| (a.id().job_id, a.id().copy, a.id().member));
        Ok(listed)
    }

    /// The whole control table, read consistently.
    pub async fn control(&self) -> Result<Control, DbError> {
        Ok(Control::from_rows(self.scan::<Value>(Table::Control, None).await?))
    }

    /// The policy's row and the row of poll-and-scale's last run: all that heartbeat-ingest needs.
    pub async fn ingest_control(&self) -> Result<Control, DbError> {
        let keys = [control_key(&ControlKey::Policy), control_key(&ControlKey::Run(POLL_AND_SCALE.name.to_owned()))];
        Ok(Control::from_rows(self.get_each(keys).await?.iter().map(|row| to_json(row))))
    }

    /// The row of an entry of the control table, read consistently. If there is no such row, or it cannot be read: a row that
    /// was never written. An unreadable row is not overwritten, because the write is then a conflict.
    pub async fn entry<E: Entry>(&self, key: &ControlKey) -> Result<EntryRow<E>, DbError> {
        match self.read::<EntryRow<E>>(&control_key(key)).await {
            Ok(row) => Ok(row.unwrap_or_else(|| EntryRow::new(key))),
            Err(error @ DbError::Corrupt { .. }) => {
                tracing::warn!(%error, "an entry counts as never written");
                Ok(EntryRow::new(key))
            }
            Err(other) => Err(other),
        }
    }

    /// The newest events of a subject, without those that cannot be read.
    pub async fn history(&self, subject: &str, limit: i32) -> Result<Vec<Event>, DbError> {
        let query = Query { newest_first: true, limit: Some(limit), ..Query::of(Table::Events, None, s(subject)) };
        self.query(&query).await.map(|listed| listed.rows)
    }

    /// The events with these subjects and ids, in any order.
    pub async fn events_with<'a>(
        &self,
        keys: impl IntoIterator<Item = (&'a str, Ulid)>,
    ) -> Result<Vec<Event>, DbError> {
        let keys = keys.into_iter().map(|(subject, id)| rows::event_key(subject, &id.to_string()));
        let rows = self.get_each(keys).await?;
        Ok(Listed::of(Table::Events, &rows).rows)
    }

    /// Writes what changed between `before` (the record as read) and `after`. The conditions `more` must hold besides the
    /// version. Returns the record as written. A conflict means that somebody has changed the row since `before` was read, or
    /// that a condition does not hold.
    pub async fn write<R: Record>(&self, before: Option<&R>, after: &R, more: Vec<Cond>) -> Result<R, WriteError> {
        let (mut write, after) = change(before, after);
        write.when.extend(more);
        self.apply(&write).await?;
        Ok(after)
    }

    /// [`Store::write`] for several records, at most 100: all of them change, or none. Returns the records as written.
    pub async fn write_together<R: Record>(
        &self,
        changes: &[(Option<R>, R)],
        more: &[Cond],
    ) -> Result<Vec<R>, WriteError> {
        let mut writes = Vec::with_capacity(changes.len());
        let mut written = Vec::with_capacity(changes.len());
        for (before, after) in changes {
            let (mut write, after) = change(before.as_ref(), after);
            write.when.extend_from_slice(more);
            writes.push(write);
            written.push(after);
        }
        self.write_all(&writes).await?;
        Ok(written)
    }

    /// Makes all of these writes, at most 100, or none.
    pub async fn write_all(&self, writes: &[Write]) -> Result<(), WriteError> {
        match writes {
            [] => Ok(()),
            // A single write costs half as much as a transaction.
            [write] => self.apply(write).await,
            _ => self.transact(writes).await,
        }
    }

    /// Writes the change of an entry of the control table: `before` is the row as read, `after` is the new row.
    /// Returns the row as written.
    pub async fn write_entry<E: Entry>(
        &self,
        before: &EntryRow<E>,
        after: &EntryRow<E>,
    ) -> Result<EntryRow<E>, WriteError> {
        let before = (before.version != Version::UNWRITTEN).then_some(before);
        self.write(before, after, Vec::new()).await
    }

    /// Replaces a row that cannot be read by this record, if nobody changes the row meanwhile. Only for what an
    /// operator asks for, and for rows that runs can make again: other such rows wait for a person.
    pub async fn replace_unreadable<R: Record>(&self, record: &R) -> Result<R, WriteError> {
        let (mut after, key) = (record.clone(), record.key());
        let found = self.db.get(&key).await?;
        let as_found = |name: &'static str| match found.as_ref().and_then(|row| row.get(name)) {
            Some(value) => Cond::Eq(name, value.clone()),
            None => Cond::Absent(name),
        };
        let when = ["version", "document", "message", "until_at", "since_at"].map(as_found).to_vec();
        let number = found.as_ref().and_then(|row| row.get("version")?.as_n().ok()?.parse::<u64>().ok());
        after.set_version(Version::after(number));
        self.apply(&Write { key, when, effect: Effect::Put(rows::row(&after)) }).await?;
        Ok(after)
    }

    /// Makes all of these writes, or none. A contention that outlasts the retries is a conflict.
    pub async fn transact(&self, writes: &[Write]) -> Result<(), WriteError> {
        self.retried(|| self.db.transact(writes)).await.map_err(WriteError::or_conflict)
    }

    /// Makes one write as it is, without a version. A contention that outlasts the retries is a conflict.
    pub async fn apply(&self, write: &Write) -> Result<(), WriteError> {
        self.retried(|| self.db.write(write, Answer::None)).await.map(drop).map_err(WriteError::or_conflict)
    }

    /// The result of this write, which is tried again after a contention.
    async fn retried<T, F>(&self, write: impl Fn() -> F) -> Result<T, WriteError>
    where
        F: Future<Output = Result<T, WriteError>>,
    {
        let mut tries = 0;
        loop {
            match write().await {
                Err(WriteError::Contended) if tries < CONTENTION_RETRIES => tries += 1,
                other => return other,
            }
            let most_s = 0.02 * f64::from(1_u32 << tries);
            tokio::time::sleep(Duration::from_secs_f64(self.rng.between(most_s / 2.0, most_s))).await;
        }
    }

    /// A steady heartbeat: one conditional write and no read. `Ok(Ok)` is the record after the write. `Ok(Err)` means
    /// that the heartbeat is not steady, because the record differs from what the caller says. It contains the
    /// current record, or `None` if there is no record.
    pub async fn pulse(&self, pulse: &Pulse<'_>) -> Result<Result<NodeRecord, Option<NodeRecord>>, DbError> {
        let mut set = BTreeMap::from([
            ("last_ping_at".to_owned(), n(pulse.now.as_ms())),
            ("lease_expires_at".to_owned(), n(pulse.lease_expires_at.as_ms())),
        ]);
        let said = pulse.heartbeat;
        let mut when = vec![
            Cond::Eq("node_id", s(pulse.node_id)),
            Cond::Eq("instance_id", s(&said.instance_id)),
            Cond::Eq("incarnation", s(pulse.incarnation)),
            Cond::Eq("boot_id", s(&said.boot_id)),
            Cond::Lt("last_ping_at", n(pulse.now.as_ms())),
            // A heartbeat never shortens the lease.
            Cond::Lt("lease_expires_at", n(pulse.lease_expires_at.as_ms().saturating_add(1))),
            Cond::In("state", vec![s("in_use"), s("shutting_down")]),
            Cond::In("status", vec![s("syncing"), s("ready")]),
        ];
        let mut health = rows::to_item(&said.health);
        when.extend(NodeHealth::FIELDS.iter().map(|name| Cond::is(name, health.remove(*name))));
        if let Some(uptime_ms) = said.uptime_ms {
            set.insert("uptime_ms".to_owned(), n(uptime_ms));
            // Equal is allowed, because the same heartbeat may arrive twice.
            let newest = Cond::Lt("uptime_ms", n(uptime_ms.saturating_add(1)));
            when.push(Cond::Any(vec![Cond::Absent("uptime_ms"), newest]));
        }
        let effect = Effect::Update { set, remove: Vec::new() };
        let write = Write { key: node_key(pulse.node_id.slot()), when, effect };
        match self.retried(|| self.db.write(&write, Answer::Row)).await {
            Ok(Some(item)) => Ok(Ok(from_item(Table::Nodes, &item)?)),
            Ok(None) => Ok(Err(self.node(pulse.node_id.slot()).await?)),
            Err(WriteError::Conflict(Some(item))) => Ok(Err(Some(from_item(Table::Nodes, &item)?))),
            Err(WriteError::Conflict(None)) => Ok(Err(None)),
            Err(WriteError::Contended) => Err(DbError::Throttled { operation: "UpdateItem" }),
            Err(WriteError::Db(e)) => Err(e),
        }
    }

    /// Notes the number of a report that was taken. The write does not raise the version, and happens only if
    /// the report is the newest of the current incarnation.
    pub async fn note_report(
        &self,
        node_id: NodeId,
        incarnation: &str,
        counter: ReportCounter,
        report_no: u64,
        settled: Option<&str>,
    ) -> Result<(), WriteError> {
        let name = match counter {
            ReportCounter::Allocs => "alloc_report_no",
            ReportCounter::Handles => "handle_report_no",
        };
        let mut set = BTreeMap::from([(name.to_owned(), n(report_no))]);
        let mut remove = Vec::new();
        match (counter, settled) {
            (ReportCounter::Handles, Some(settled)) => _ = set.insert("settled".to_owned(), s(settled)),
            (ReportCounter::Handles, None) => remove.push("settled".to_owned()),
            (ReportCounter::Allocs, _) => {}
        }
        let write = Write {
            key: node_key(node_id.slot()),
            when: vec![
                Cond::Eq("node_id", s(node_id)),
                Cond::Eq("incarnation", s(incarnation)),
                Cond::Any(vec![Cond::Absent(name), Cond::Lt(name, n(report_no))]),
            ],
            effect: Effect::Update { set, remove },
        };
        self.apply(&write).await
    }

    /// An event as a write, for a transaction.
    pub fn event_write(event: &Event) -> Write {
        let key = rows::event_key(&event.subject, &event.id);
        Write { key, when: vec![Cond::Absent("id")], effect: Effect::Put(rows::event_row(event)) }
    }

    /// Writes an event. An event that may stand only once within a time, and already does, is a conflict.
    pub async fn record(&self, event: &Event) -> Result<(), WriteError> {
        match &event.once {
            None => self.apply(&Self::event_write(event)).await,
            Some(once) => self.transact(&[rows::once_write(once), Self::event_write(event)]).await,
        }
    }

    /// Writes an event over an older one with the same key, unless somebody else has changed the older one.
    pub async fn record_over(&self, before: &Event, event: &Event) -> Result<(), WriteError> {
        let detail = rows::to_item(before).remove("detail").map(|detail| Cond::Eq("detail", detail));
        let write = Write { when: detail.into_iter().collect(), ..Self::event_write(event) };
        self.apply(&write).await
    }

    /// Writes an event. If that fails, only the log says so: events are for people, and no decision uses them.
    pub async fn record_event(&self, event: &Event) {
        // A conflict is fine: the same event was written already.
        if let Err(e) = ignore_conflict(self.record(event).await) {
            tracing::warn!(subject = event.subject, action = event.action, error = %e, "an event was not written");
        }
    }

    /// [`Store::record_event`] for several events, in batches. No other row has their keys, unless it is the same event.
    pub async fn record_events(&self, events: &[Event]) {
        let (once, always): (Vec<&Event>, Vec<&Event>) = events.iter().partition(|event| event.once.is_some());
        join_all(once.into_iter().map(|event| self.record_event(event))).await;
        if let [event] = always.as_slice() {
            return self.record_event(event).await;
        }
        let rows: Vec<Item> = always.into_iter().map(rows::event_row).collect();
        if rows.is_empty() {
            return;
        }
        if let Err(error) = self.db.put_new(Table::Events, &rows).await {
            tracing::warn!(events = rows.len(), %error, "some of these events were not written");
        }
    }

    /// Writes the row of a scheduled run, unless a run that began later has written it. If that fails, only the log says so.
    pub async fn write_run(&self, before: Option<&RunRow>, row: &RunRow) {
        if before.is_some_and(|before| before.started_at > row.started_at) {
            return;
        }
        // A conflict needs no warning: another run wrote its own row.
        if let Err(WriteError::Db(e)) = self.write(before, row, Vec::new()).await {
            tracing::warn!(error = %e, "the run's row was not written");
        }
    }
}
