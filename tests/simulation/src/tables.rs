//! The database of a world: the model with its faults. If asked for, also the real store, which must give the same
//! answers.
//!
//! Guarantees: a fault never changes the effect of a committed write, only its time and the answer that the caller
//! gets; consistent reads are consistent; the checks see every write.
//! Does not: know what the rows mean.

use crate::caller::{Caller, Kind};
use crate::check::Check;
use crate::core::{Core, Fault, lock};
use crate::database::{Backup, Change, Model, Part, segment_of};
use crate::embedded::Embedded;
use async_trait::async_trait;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use store::{
    Answer, Db, DbError, Effect, Index, Item, Key, Page, PageKey, Query, Row, Scan, Segment, Table, Write, WriteError,
    to_json,
};

/// The greatest age of a stale scan, in milliseconds.
pub const STALE_MS: i64 = 20_000;

/// The recent changes, from which a stale scan is made.
#[derive(Default)]
struct Past(VecDeque<(i64, Change)>);

pub struct Tables {
    core: Arc<Core>,
    /// The model, which has the rows.
    pub model: Arc<Mutex<Model>>,
    check: Arc<Check>,
    /// The real store, which must give the same answers.
    twin: Option<Arc<Embedded>>,
    past: Mutex<Past>,
}

impl Tables {
    pub fn new(core: Arc<Core>, check: Arc<Check>, twin: Option<Arc<Embedded>>) -> Self {
        let lagging = Arc::clone(&core);
        let delay = move |_: Index| {
            if lagging.happens(Fault::IndexLags) { lagging.of(Fault::IndexLags, 500, 90_000) } else { 0 }
        };
        let model = Arc::new(Mutex::new(Model::new(Some(Box::new(delay)))));
        Self { core, model, check, twin, past: Mutex::default() }
    }

    /// Deletes expired rows, as DynamoDB does some time after they expired.
    pub async fn expire(&self) {
        let keys = lock(&self.model).expire(self.core.now().as_epoch_s());
        if let Some(twin) = &self.twin {
            for key in keys {
                let delete = Write { key, when: Vec::new(), effect: Effect::Delete };
                let deleted = twin.write(&delete, Answer::None).await;
                self.invariant_the_model_and_the_real_store_agree("expire", &"ok None".to_owned(), &kind(&deleted));
            }
        }
    }

    pub fn restore(&self, backup: &Backup) {
        let mut model = lock(&self.model);
        // Each table has its own backup, so one table may stay as it is. (The others must be restored together,
        // because their rows name each other's ids.)
        let but =
            if self.core.maybe(0.3) { Some(Table::Handles) } else { self.core.maybe(0.15).then_some(Table::Control) };
        model.restore(backup, but);
        lock(&self.past).0.clear();
        self.check.restored(&model);
    }

    /// Sometimes makes a call slow. Returns whether it did. A slow call excuses a late action, unless it is a list.
    async fn slow(&self, caller: &Caller, lists: bool) -> bool {
        let slow = self.core.happens(Fault::DbSlow);
        if slow {
            let ms = self.core.of(Fault::DbSlow, 500, 20_000);
            tokio::time::sleep(Duration::from_millis(ms.unsigned_abs())).await;
            if !lists {
                caller.was_held_up(self.core.now());
            }
        }
        slow
    }

    /// Before a call: takes time, and may fail.
    async fn before(&self, operation: &'static str, lists: bool) -> Result<Arc<Caller>, DbError> {
        let caller = Caller::current();
        caller.point().await;
        if !self.slow(&caller, lists).await && self.core.maybe(0.25) {
            let ms = self.core.between(1, self.core.scenario.latency_ms);
            tokio::time::sleep(Duration::from_millis(ms.unsigned_abs())).await;
        }
        if self.core.happens(Fault::DbThrottles) {
            caller.is_unanswered();
            return Err(DbError::Throttled { operation });
        }
        if self.core.happens(Fault::DbFails) {
            caller.is_unanswered();
            return Err(DbError::Unreachable { operation, detail: "it broke (simulated)".into() });
        }
        Ok(caller)
    }

    fn called(&self, caller: &Caller, operation: &str, table: Table, index: Option<Index>) {
        let index = index.map(|i| format!("/{}", i.name)).unwrap_or_default();
        self.core.called(caller.function(), &format!("dynamodb:{operation}"), &format!("{}{index}", table.suffix()));
    }

    /// After a write: the caller may be killed, or may not get the answer.
    async fn after(&self, caller: &Caller, operation: &'static str) -> Result<(), DbError> {
        caller.point().await;
        self.slow(caller, false).await;
        if self.core.happens(Fault::DbAnswerLost) {
            caller.is_unanswered();
            return Err(DbError::Unreachable { operation, detail: "the answer was lost (simulated)".into() });
        }
        Ok(())
    }

    async fn commit(&self, caller: &Caller, write: &Write, answer: Answer) -> Result<Option<Row>, WriteError> {
        let result = {
            let mut model = lock(&self.model);
            let result = model.write(write, answer, self.core.ms());
            if let Ok((_, change)) = &result {
                let changes = change.iter().cloned().collect();
                self.wrote(caller, &model, std::slice::from_ref(write), changes);
            }
            result.map(|(row, _)| row)
        };
        if let Some(twin) = &self.twin {
            let real = twin.write(write, answer).await;
            self.invariant_the_model_and_the_real_store_agree("write", &kind(&result), &kind(&real));
            return real;
        }
        result
    }

    fn saw(caller: &Caller, table: Table, items: &[Row], listed: bool) {
        if table == Table::Nodes && matches!(caller.kind, Kind::Run(_)) {
            for item in items {
                Check::saw(caller, item, listed);
            }
        }
    }

    /// The rows of a table as they were `ago` milliseconds ago.
    fn stale(&self, table: Table, ago: i64) -> Vec<Row> {
        let model = lock(&self.model);
        let key = table.definition().key;
        let name = |row: &Row| (row.get(key.hash.name).cloned(), key.range.and_then(|r| row.get(r.name).cloned()));
        let mut rows: Vec<Row> = model.rows(table).cloned().collect();
        let since = self.core.ms() - ago;
        for (at, change) in lock(&self.past).0.iter().rev() {
            if *at <= since {
                break;
            }
            if change.table != table {
                continue;
            }
            if let Some(after) = &change.after {
                rows.retain(|r| name(r) != name(after));
            }
            rows.extend(change.before.iter().cloned());
        }
        rows
    }

    /// Shows the checks what a write changed, and keeps the changes for stale scans.
    fn wrote(&self, caller: &Caller, model: &Model, writes: &[Write], changes: Vec<Change>) {
        if self.core.is_telling() {
            for change in changes.iter().filter(|c| c.table != Table::Events) {
                self.core.tell(|| caller.name(), || describe(change));
            }
        }
        self.check.wrote(caller, model, writes, &changes);
        let now = self.core.ms();
        let mut past = lock(&self.past);
        for change in changes.into_iter().filter(|c| matches!(c.table, Table::Nodes | Table::Control)) {
            past.0.push_back((now, change));
        }
        while past.0.front().is_some_and(|(at, _)| *at < now - STALE_MS) {
            past.0.pop_front();
        }
    }

    /// The model of the tables gives the same answers as the real store.
    fn invariant_the_model_and_the_real_store_agree<T: PartialEq + std::fmt::Debug>(
        &self,
        what: &str,
        model: &T,
        real: &T,
    ) {
        if model != real {
            self.core.broken(
                "invariant_the_model_and_the_real_store_agree",
                format!("{what}: the model answers {model:?}, the real store {real:?}"),
            );
        }
    }

    /// Compares the real store's answer to a list with the model's, and returns it. Returns the model's page without a
    /// comparison if the model differs on purpose, because its page is short or its index lags.
    async fn twin_page(
        &self,
        what: &str,
        table: Table,
        model: Page,
        index: Option<Index>,
        query: Option<&Query>,
    ) -> Result<Page, DbError> {
        let lags = index.is_some_and(|index| !lock(&self.model).is_settled(table, index));
        let Some(twin) = self.twin.as_ref().filter(|_| !lags && model.next.is_none()) else { return Ok(model) };
        let mut items: Vec<Row> = Vec::new();
        let mut from = None;
        loop {
            let page = match query {
                Some(query) => twin.query(query, from).await?,
                None => twin.scan(&Scan::all(table, index), from).await?,
            };
            items.extend(page.items);
            from = page.next;
            if from.is_none() {
                break;
            }
        }
        let plain = |items: &[Row]| {
            let mut rows: Vec<String> = items.iter().map(|i| to_json(i).to_string()).collect();
            if query.is_none() {
                // A scan has no order.
                rows.sort_unstable();
            }
            rows
        };
        self.invariant_the_model_and_the_real_store_agree(what, &plain(&model.items), &plain(&items));
        Ok(Page { items, next: None })
    }
}

fn describe(change: &Change) -> String {
    let text = |item: &Row| to_json(item);
    match (&change.before, &change.after) {
        (None, Some(after)) => format!("{:?} + {}", change.table, text(after)),
        (Some(before), None) => format!("{:?} - {}", change.table, text(before)),
        (Some(before), Some(after)) => {
            let (before, after) = (text(before), text(after));
            let empty = serde_json::Map::new();
            let (b, a) = (before.as_object().unwrap_or(&empty), after.as_object().unwrap_or(&empty));
            let key = change.table.definition().key;
            let name = |k: &str| a.get(k).map(ToString::to_string).unwrap_or_default();
            let mut parts: Vec<String> = Vec::new();
            for (k, v) in a.iter().filter(|(k, v)| b.get(*k) != Some(v)) {
                if k != "modified_at" {
                    parts.push(format!("{k} {} → {v}", b.get(k).map_or("–".into(), ToString::to_string)));
                }
            }
            parts.extend(b.keys().filter(|k| !a.contains_key(*k)).map(|k| format!("{k} gone")));
            let range = key.range.map(|r| name(r.name)).unwrap_or_default();
            format!("{:?} {} {range}: {}", change.table, name(key.hash.name), parts.join(", "))
        }
        (None, None) => String::new(),
    }
}

#[async_trait]
impl Db for Tables {
    async fn get(&self, key: &Key) -> Result<Option<Row>, DbError> {
        let caller = self.before("GetItem", false).await?;
        self.called(&caller, "GetItem", key.table, None);
        let mut row = lock(&self.model).read(key)?.cloned();
        if let Some(twin) = &self.twin {
            let real = twin.get(key).await?;
            self.invariant_the_model_and_the_real_store_agree(
                "get",
                &row.as_ref().map(|r| to_json(r)),
                &real.as_ref().map(|r| to_json(r)),
            );
            row = real;
        }
        Self::saw(&caller, key.table, row.as_slice(), false);
        caller.point().await;
        Ok(row)
    }

    async fn get_many(&self, keys: &[Key]) -> Result<Vec<Row>, DbError> {
        let caller = self.before("BatchGetItem", false).await?;
        keys.iter().for_each(|key| self.called(&caller, "BatchGetItem", key.table, None));
        let mut rows = lock(&self.model).read_many(keys)?;
        if let Some(twin) = &self.twin {
            let sorted = |items: &[Row]| {
                let mut rows: Vec<String> = items.iter().map(|i| to_json(i).to_string()).collect();
                rows.sort_unstable();
                rows
            };
            let real = twin.get_many(keys).await?;
            self.invariant_the_model_and_the_real_store_agree("get_many", &sorted(&rows), &sorted(&real));
            rows = real;
        }
        caller.point().await;
        Ok(rows)
    }

    async fn query(&self, query: &Query, from: Option<PageKey>) -> Result<Page, DbError> {
        let caller = self.before("Query", query.index.is_some()).await?;
        self.called(&caller, "Query", query.table, query.index);
        if from.is_some() && self.core.happens(Fault::PageFails) {
            return Err(DbError::Unreachable { operation: "Query", detail: "a page failed (simulated)".into() });
        }
        let most = self.core.scenario.page_rows;
        let mut page = lock(&self.model).query(query, from.as_ref(), most, self.core.ms())?;
        if from.is_none() && query.limit.is_none() {
            page = self.twin_page("query", query.table, page, query.index, Some(query)).await?;
        }
        caller.point().await;
        Ok(page)
    }

    async fn scan(&self, scan: &Scan, from: Option<PageKey>) -> Result<Page, DbError> {
        let Scan { table, index, segment, .. } = *scan;
        let caller = self.before("Scan", true).await?;
        self.called(&caller, "Scan", table, index);
        if table == Table::Control && from.is_none() && matches!(caller.kind, Kind::Run(_)) {
            // An observation begins with the control table.
            caller.observes_from(self.core.now());
        }
        if from.is_some() && self.core.happens(Fault::PageFails) {
            return Err(DbError::Unreachable { operation: "Scan", detail: "a page failed (simulated)".into() });
        }
        let observing = matches!(caller.kind, Kind::Run(_));
        if index.is_none() && from.is_none() && observing && self.core.happens(Fault::StaleScan) {
            let mut items = self.stale(table, self.core.of(Fault::StaleScan, 100, STALE_MS - 1));
            items.retain(|item| is_in(segment, table, item));
            Self::saw(&caller, table, &items, true);
            return Ok(Page { items, next: None });
        }
        let most = self.core.scenario.page_rows;
        let mut page = lock(&self.model).scan(scan, from.as_ref(), most, self.core.ms())?;
        // The two stores divide rows into segments in different ways.
        if from.is_none() && segment.is_none() {
            page = self.twin_page("scan", table, page, index, None).await?;
        }
        Self::saw(&caller, table, &page.items, true);
        caller.point().await;
        Ok(page)
    }

    async fn write(&self, write: &Write, answer: Answer) -> Result<Option<Row>, WriteError> {
        let operation = operation(write);
        let caller = self.before(operation, false).await?;
        self.called(&caller, operation, write.key.table, None);
        if write.key.table == Table::Events {
            // Only the faults of `before` happen to events, so that the same seeds give the same worlds as without
            // events.
            return self.commit(&caller, write, answer).await;
        }
        if self.core.happens(Fault::DbContended) {
            caller.loses();
            return Err(WriteError::Contended);
        }
        let mut result = self.commit(&caller, write, answer).await;
        if result.is_ok() && self.core.happens(Fault::DbSentTwice) {
            caller.is_unanswered();
            result = self.commit(&caller, write, answer).await;
        }
        if result.is_err() {
            caller.loses();
            self.core.count("a condition failed");
        }
        let row = result?;
        self.after(&caller, operation).await?;
        Ok(row)
    }

    async fn transact(&self, writes: &[Write]) -> Result<(), WriteError> {
        let operation = "TransactWriteItems";
        let caller = self.before(operation, false).await?;
        // A transaction needs the permissions of its parts.
        writes.iter().for_each(|write| self.called(&caller, self::operation(write), write.key.table, None));
        if self.core.happens(Fault::DbContended) {
            caller.loses();
            return Err(WriteError::Contended);
        }
        let result = {
            let mut model = lock(&self.model);
            let result = model.transact(writes, self.core.ms());
            result.map(|changes| self.wrote(&caller, &model, writes, changes))
        };
        if let Some(twin) = &self.twin {
            let real = twin.transact(writes).await;
            self.invariant_the_model_and_the_real_store_agree(
                "transact",
                &kind(&result.as_ref().map(|()| None).map_err(again)),
                &kind(&real.map(|()| None)),
            );
        }
        if result.is_err() {
            caller.loses();
            self.core.count("a transaction's condition failed");
        }
        result?;
        self.after(&caller, operation).await?;
        Ok(())
    }

    async fn put_new(&self, table: Table, rows: &[Item]) -> Result<(), DbError> {
        let operation = "BatchWriteItem";
        let caller = self.before(operation, false).await?;
        self.called(&caller, operation, table, None);
        let schema = table.definition().key;
        let value = |row: &Item, name: &str| row.get(name).cloned();
        for row in rows {
            let Some(hash) = value(row, schema.hash.name) else { continue };
            let key = Key { table, hash, range: schema.range.and_then(|range| value(row, range.name)) };
            let write = Write { key, when: Vec::new(), effect: Effect::Put(row.clone()) };
            match self.commit(&caller, &write, Answer::None).await {
                Ok(_) => {}
                Err(WriteError::Db(e)) => return Err(e),
                Err(other) => {
                    return Err(DbError::Unreachable { operation, detail: other.to_string() });
                }
            }
        }
        Ok(())
    }
}

/// Whether a row of the table is in this segment.
fn is_in(segment: Option<Segment>, table: Table, row: &Item) -> bool {
    let hash = row.get(table.definition().key.hash.name).and_then(Part::of);
    segment.is_none_or(|s| hash.is_some_and(|hash| segment_of(&hash, s.of) == s.number))
}

/// The operation that carries out this write, and whose permission it needs.
fn operation(write: &Write) -> &'static str {
    match write.effect {
        Effect::Put(_) => "PutItem",
        Effect::Update { .. } => "UpdateItem",
        Effect::Delete => "DeleteItem",
        Effect::Check => "ConditionCheckItem",
    }
}

fn again(e: &WriteError) -> WriteError {
    match e {
        WriteError::Conflict(row) => WriteError::Conflict(row.clone()),
        WriteError::Contended => WriteError::Contended,
        WriteError::Db(e) => DbError::Refused { operation: "", code: String::new(), message: e.to_string() }.into(),
    }
}

/// The kind of an answer, with its row, as a text.
fn kind(result: &Result<Option<Row>, WriteError>) -> String {
    match result {
        Ok(row) => format!("ok {:?}", row.as_ref().map(|r| to_json(r))),
        Err(WriteError::Conflict(row)) => format!("conflict {:?}", row.as_ref().map(|r| to_json(r))),
        Err(WriteError::Contended) => "contended".into(),
        Err(WriteError::Db(_)) => "refused".into(),
    }
}
