//! The store: everything nodekeeper reads from and writes to DynamoDB.
//!
//! The only files that know table, key and index names and how a condition is written.
//!
//! Guarantees: every write is conditional, on a version as read or on the row's absence; a
//! list is read to its last page or not at all; a transaction conflict is retried three times
//! with jitter, a failed condition never.
//! Does not: decide what to write, or repeat anything that failed for another reason: the
//! next run does.

mod control;
mod db;
mod de;
mod dynamo;
mod rows;
mod ser;
mod tables;
mod write;

pub use control::{Control, Memory, NoPolicy, POLICY, PolicyRow, RunRow, control_key};
pub use db::{Answer, Db, DbError, Page, PageKey, Query, Row, WriteError};
pub use dynamo::Dynamo;
pub use rows::{Record, alloc_key, as_read, change, handle_key, job_key, node_key, row, to_json, unchanged};
pub use tables::to_json as tables_json;
pub use tables::{DUE, Definition, Index, KeyAttribute, KeySchema, KeyType, LIVE, QUEUE, TABLES, Table};
pub use write::{Aliases, Cond, Effect, Item, Key, Write};

use crate::chance::Chance;
use crate::events::Event;
use crate::ids::{AllocId, JobId, NodeId, Slot};
use crate::model::{Alloc, AllocSummary, Handle, HandleState, Job, JobSummary, NodeRecord};
use crate::time::Time;
use rows::{Readable, from_row, handle_row, n, s};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// How often a transaction that met another one is tried again.
const CONTENTION_RETRIES: u32 = 3;

/// The tables of one cluster. Cheap to clone.
#[derive(Clone)]
pub struct Store {
    db: Arc<dyn Db>,
    chance: Chance,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Store")
    }
}

/// The pulse of a steady heartbeat, and what must be as the caller says.
#[derive(Clone, Debug)]
pub struct Pulse<'a> {
    /// Who calls.
    pub node_id: NodeId,
    /// From which instance.
    pub instance_id: &'a str,
    /// In which incarnation.
    pub incarnation: &'a str,
    /// In which boot.
    pub boot_id: &'a str,
    /// Whether it is busy with something other than allocs.
    pub busy: bool,
    /// Now.
    pub now: Time,
    /// The renewed lease's end.
    pub lease_expires_at: Time,
}

impl Store {
    /// The store on this database.
    pub fn new(db: Arc<dyn Db>) -> Self {
        Self::with_chance(db, Chance::real())
    }

    /// The store on this database, with this chance.
    pub fn with_chance(db: Arc<dyn Db>, chance: Chance) -> Self {
        Self { db, chance }
    }

    /// What ids of rows are made with, and when to come again: these are made where rows are
    /// written.
    pub const fn chance(&self) -> &Chance {
        &self.chance
    }

    async fn scan<R: Readable>(&self, table: Table, index: Option<Index>) -> Result<Vec<R>, DbError> {
        let mut rows = Vec::new();
        let mut from = None;
        loop {
            let page = self.db.scan(table, index, from).await?;
            for item in &page.items {
                rows.push(from_row(table, item)?);
            }
            from = page.next;
            if from.is_none() {
                return Ok(rows);
            }
        }
    }

    async fn query<R: Readable>(&self, query: &Query) -> Result<Vec<R>, DbError> {
        let mut rows = Vec::new();
        let mut from = None;
        loop {
            let page = self.db.query(query, from).await?;
            for item in &page.items {
                rows.push(from_row(query.table, item)?);
            }
            from = page.next;
            if from.is_none() || query.limit.is_some() {
                return Ok(rows);
            }
        }
    }

    async fn read<R: Readable>(&self, key: &Key) -> Result<Option<R>, DbError> {
        self.db.get(key).await?.map(|item| from_row(key.table, &item)).transpose()
    }

    /// Every node record, read consistently.
    pub async fn nodes(&self) -> Result<Vec<NodeRecord>, DbError> {
        self.scan(Table::Nodes, None).await
    }

    /// A slot's record, read consistently.
    pub async fn node(&self, slot: Slot) -> Result<Option<NodeRecord>, DbError> {
        self.read(&node_key(slot)).await
    }

    /// Every job that is queued, placed or regrouping, as the index shows them: in the order
    /// they are served, queued ones first.
    pub async fn queue(&self) -> Result<Vec<JobSummary>, DbError> {
        let mut jobs: Vec<JobSummary> = Vec::new();
        for state in ["queued", "placed"] {
            let query = Query {
                table: Table::Jobs,
                index: Some(QUEUE),
                hash: s(state),
                range_at_most: None,
                newest_first: false,
                limit: None,
            };
            // A job that moves between the two queries may be seen twice: the later one stands.
            for job in self.query::<JobSummary>(&query).await? {
                match jobs.iter_mut().find(|j| state == "placed" && j.job_id == job.job_id) {
                    Some(seen) => *seen = job,
                    None => jobs.push(job),
                }
            }
        }
        Ok(jobs)
    }

    /// Every job there is, for people.
    pub async fn jobs(&self) -> Result<Vec<Job>, DbError> {
        self.scan(Table::Jobs, None).await
    }

    /// A job, read consistently.
    pub async fn job(&self, job: JobId) -> Result<Option<Job>, DbError> {
        self.read(&job_key(job)).await
    }

    /// Every live alloc, as the index shows them: it may be behind.
    pub async fn live_allocs(&self) -> Result<Vec<AllocSummary>, DbError> {
        self.scan(Table::Allocs, Some(LIVE)).await
    }

    /// These allocs, read consistently; those that do not exist are left out.
    pub async fn allocs(&self, ids: impl IntoIterator<Item = AllocId>) -> Result<Vec<Alloc>, DbError> {
        let keys: Vec<Key> = ids.into_iter().map(alloc_key).collect();
        self.db.get_many(&keys).await?.iter().map(|item| from_row(Table::Allocs, item)).collect()
    }

    /// An alloc, read consistently.
    pub async fn alloc(&self, id: AllocId) -> Result<Option<Alloc>, DbError> {
        self.read(&alloc_key(id)).await
    }

    /// Every alloc of a job that is still kept, ended ones included: its ids are counted, so no
    /// index is needed.
    pub async fn allocs_of(&self, job: &Job) -> Result<Vec<Alloc>, DbError> {
        let (id, nodes, copies) = (job.summary.job_id, job.summary.nodes, job.summary.copies);
        let ids = (0..copies).flat_map(|copy| (0..nodes).map(move |member| AllocId { job_id: id, member, copy }));
        let mut allocs = self.allocs(ids).await?;
        allocs.sort_by_key(|a| (a.id().copy, a.id().member));
        Ok(allocs)
    }

    /// Every handle of a node, read consistently.
    pub async fn handles_of(&self, node: NodeId) -> Result<Vec<Handle>, DbError> {
        self.query(&Query {
            table: Table::Handles,
            index: None,
            hash: s(node),
            range_at_most: None,
            newest_first: false,
            limit: None,
        })
        .await
    }

    /// One handle, read consistently.
    pub async fn handle(&self, node: NodeId, handle: &str) -> Result<Option<Handle>, DbError> {
        self.read(&handle_key(node, handle)).await
    }

    /// The handles that are due, read consistently after the index named them.
    pub async fn handles_due(&self, now: Time) -> Result<Vec<Handle>, DbError> {
        let query = Query {
            table: Table::Handles,
            index: Some(DUE),
            hash: s("due"),
            range_at_most: Some(n(now.as_ms())),
            newest_first: false,
            limit: None,
        };
        let mut keys = Vec::new();
        let mut from = None;
        loop {
            let page = self.db.query(&query, from).await?;
            for item in &page.items {
                if let (Some(hash), Some(range)) = (item.get("node_id"), item.get("handle")) {
                    keys.push(Key { table: Table::Handles, hash: hash.clone(), range: Some(range.clone()) });
                }
            }
            from = page.next;
            if from.is_none() {
                break;
            }
        }
        self.db.get_many(&keys).await?.iter().map(|item| from_row(Table::Handles, item)).collect()
    }

    /// The whole control table, read consistently.
    pub async fn control(&self) -> Result<Control, DbError> {
        Control::from_rows(self.scan::<Value>(Table::Control, None).await?)
    }

    /// The policy's row and poll-and-scale's last run: what the ingest needs, in two reads.
    pub async fn ingest_control(&self) -> Result<Control, DbError> {
        let keys = [control_key(POLICY), control_key("run#poll-and-scale")];
        Control::from_rows(self.db.get_many(&keys).await?.iter().map(|row| to_json(row)))
    }

    /// A memory, read consistently.
    pub async fn memory(&self, key: &str) -> Result<Memory, DbError> {
        Ok(self.read(&control_key(key)).await?.unwrap_or_else(|| Memory::new(key)))
    }

    /// The newest events of a subject.
    pub async fn history(&self, subject: &str, limit: i32) -> Result<Vec<Event>, DbError> {
        self.query(&Query {
            table: Table::Events,
            index: None,
            hash: s(subject),
            range_at_most: None,
            newest_first: true,
            limit: Some(limit),
        })
        .await
    }

    /// Every event there is, for a page that shows them as they come.
    pub async fn events(&self) -> Result<Vec<Event>, DbError> {
        self.scan(Table::Events, None).await
    }

    /// Writes what changed between a record as read and as it must become. Returns it as
    /// written. `more` must hold besides the version.
    pub async fn write<R: Record>(&self, before: Option<&R>, after: &R, more: Vec<Cond>) -> Result<R, WriteError> {
        let (mut write, after) = change(before, after);
        write.when.extend(more);
        self.write_one(&write, Answer::None).await?;
        Ok(after)
    }

    /// A memory that was perhaps never written before.
    pub async fn remember(&self, before: &Memory, after: &Memory) -> Result<Memory, WriteError> {
        self.write((before.version != crate::model::Version::UNWRITTEN).then_some(before), after, Vec::new()).await
    }

    /// All of these writes or none.
    pub async fn transact(&self, writes: &[Write]) -> Result<(), WriteError> {
        let mut tries = 0;
        loop {
            match self.db.transact(writes).await {
                Err(WriteError::Contended) if tries < CONTENTION_RETRIES => {
                    tries += 1;
                    self.jitter(tries).await;
                }
                Err(WriteError::Contended) => return Err(WriteError::CONFLICT),
                other => return other,
            }
        }
    }

    async fn write_one(&self, write: &Write, answer: Answer) -> Result<Option<Row>, WriteError> {
        let mut tries = 0;
        loop {
            match self.db.write(write, answer).await {
                Err(WriteError::Contended) if tries < CONTENTION_RETRIES => {
                    tries += 1;
                    self.jitter(tries).await;
                }
                other => return other,
            }
        }
    }

    async fn jitter(&self, tries: u32) {
        let most_s = 0.02 * f64::from(1_u32 << tries.min(6));
        tokio::time::sleep(Duration::from_secs_f64(self.chance.between(most_s / 2.0, most_s))).await;
    }

    /// A steady heartbeat: one conditional write and no read. `Ok(Ok)` is the record after it,
    /// `Ok(Err)` the record as it is when something is not as the caller says, `None` without a
    /// record.
    pub async fn pulse(&self, pulse: &Pulse<'_>) -> Result<Result<NodeRecord, Option<NodeRecord>>, DbError> {
        let set = BTreeMap::from([
            ("last_ping_at".to_owned(), n(pulse.now.as_ms())),
            ("lease_expires_at".to_owned(), n(pulse.lease_expires_at.as_ms())),
        ]);
        let busy = if pulse.busy {
            Cond::Eq("busy", aws_sdk_dynamodb::types::AttributeValue::Bool(true))
        } else {
            Cond::Absent("busy")
        };
        let write = Write {
            key: node_key(pulse.node_id.slot()),
            when: vec![
                Cond::Eq("node_id", s(pulse.node_id)),
                Cond::Eq("instance_id", s(pulse.instance_id)),
                Cond::Eq("incarnation", s(pulse.incarnation)),
                Cond::Eq("boot_id", s(pulse.boot_id)),
                busy,
                Cond::Lt("last_ping_at", n(pulse.now.as_ms())),
                // No lease gets shorter.
                Cond::Lt("lease_expires_at", n(pulse.lease_expires_at.as_ms().saturating_add(1))),
                Cond::In("state", vec![s("in_use"), s("shutting_down")]),
                Cond::In("status", vec![s("syncing"), s("ready")]),
            ],
            effect: Effect::Update { set, remove: Vec::new() },
        };
        match self.write_one(&write, Answer::Row).await {
            Ok(Some(item)) => Ok(Ok(from_row(Table::Nodes, &item)?)),
            Ok(None) => Ok(Err(self.node(pulse.node_id.slot()).await?)),
            Err(WriteError::Conflict(Some(item))) => Ok(Err(Some(from_row(Table::Nodes, &item)?))),
            Err(WriteError::Conflict(None)) => Ok(Err(None)),
            Err(WriteError::Contended) => Err(DbError::Throttled { operation: "UpdateItem" }),
            Err(WriteError::Db(e)) => Err(e),
        }
    }

    /// Notes the number of a report that was taken, without raising the version: only if it is
    /// the newest of the current incarnation.
    pub async fn note_report(
        &self,
        node_id: NodeId,
        incarnation: &str,
        counter: ReportCounter,
        report_no: u64,
        settled: Option<&str>,
    ) -> Result<(), WriteError> {
        let name = counter.attribute();
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
        self.write_one(&write, Answer::None).await.map(|_| ())
    }

    /// One write that is not a record's.
    pub async fn apply(&self, write: &Write) -> Result<(), WriteError> {
        self.write_one(write, Answer::None).await.map(|_| ())
    }

    /// Keeps an event. Events are for people: nothing is decided from them, and a failure to
    /// keep one stops nothing.
    pub async fn record(&self, event: &Event) -> Result<(), WriteError> {
        let item = rows::to_item(event);
        let key = Key { table: Table::Events, hash: s(&event.subject), range: Some(s(&event.id)) };
        self.write_one(&Write { key, when: vec![Cond::Absent("id")], effect: Effect::Put(item) }, Answer::None)
            .await
            .map(|_| ())
    }

    /// Keeps an event where nobody waits for it: a failure is said in the log.
    pub async fn tell(&self, event: &Event) {
        if let Err(e) = self.record(event).await {
            tracing::warn!(subject = event.subject, action = event.action, error = %e, "an event was not kept");
        }
    }

    /// Writes the row of a scheduled run.
    pub async fn write_run(&self, before: Option<&RunRow>, row: &RunRow) {
        // Another run wrote its own: that is as good.
        if let Err(WriteError::Db(e)) = self.write(before, row, Vec::new()).await {
            tracing::warn!(error = %e, "the run's row was not written");
        }
    }
}

/// Which of an agent's two report counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReportCounter {
    /// `alloc_report_no`
    Allocs,
    /// `handle_report_no`
    Handles,
}

impl ReportCounter {
    const fn attribute(self) -> &'static str {
        match self {
            Self::Allocs => "alloc_report_no",
            Self::Handles => "handle_report_no",
        }
    }
}

/// The condition that a node has been silent since it was read: the node that just spoke wins.
pub fn silent_since(record: &NodeRecord) -> Cond {
    record.contact().map_or(Cond::Absent("last_ping_at"), |c| Cond::Eq("last_ping_at", n(c.last_ping_at.as_ms())))
}

/// The condition that nothing runs on a node.
pub const fn no_live_allocs() -> Cond {
    Cond::Absent("allocs")
}

/// A new handle row, only where there is none.
pub fn insert_handle(handle: &Handle) -> Write {
    Write {
        key: handle_key(handle.node_id, &handle.handle),
        when: vec![Cond::Absent("handle")],
        effect: Effect::Put(handle_row(handle)),
    }
}

/// A handle row made by an order, where there is none or only a tombstone: no older report can judge
/// it, for it carries a later `seq`. (The tombstone of an alloc's own id can be there after the
/// tables were restored from a backup: the id is given a second time.)
pub fn make_handle(handle: &Handle) -> Write {
    let gone = Cond::Eq("state", s(HandleState::Gone));
    Write { when: vec![Cond::Any(vec![Cond::Absent("handle"), gone])], ..insert_handle(handle) }
}

/// A handle row changed, only if nobody else changed it since it was read.
pub fn change_handle(before: &Handle, after: &Handle) -> Write {
    Write {
        key: handle_key(before.node_id, &before.handle),
        when: handle_as_read(before),
        effect: rows::difference(handle_row(before), handle_row(after)),
    }
}

/// The check that a handle's row is as it was read.
pub fn handle_unchanged(handle: &Handle) -> Write {
    Write { key: handle_key(handle.node_id, &handle.handle), when: handle_as_read(handle), effect: Effect::Check }
}

/// A handle row deleted, only if nobody else changed it since it was read.
pub fn delete_handle(before: &Handle) -> Write {
    Write { key: handle_key(before.node_id, &before.handle), when: handle_as_read(before), effect: Effect::Delete }
}

/// A handle has no version of its own: what it is decided by stands for it.
fn handle_as_read(handle: &Handle) -> Vec<Cond> {
    let keep = if handle.keep {
        Cond::Eq("keep", aws_sdk_dynamodb::types::AttributeValue::Bool(true))
    } else {
        Cond::Absent("keep")
    };
    vec![
        Cond::Eq("state", s(handle.state)),
        Cond::Eq("seq", n(handle.seq)),
        Cond::Eq("due_at", n(handle.due_at.as_ms())),
        handle.missing_seen_at.map_or(Cond::Absent("missing_seen_at"), |at| Cond::Eq("missing_seen_at", n(at.as_ms()))),
        keep,
    ]
}

/// A node record's row deleted, only if it is as it was read.
pub fn delete_node(record: &NodeRecord) -> Write {
    Write { key: node_key(record.slot), when: vec![as_read(record)], effect: Effect::Delete }
}

/// A check that a job's row is not there: a job that is missing counts as ended.
pub fn no_job(job: JobId) -> Write {
    Write { key: job_key(job), when: vec![Cond::Absent("job_id")], effect: Effect::Check }
}
