//! The tables in memory. They do what DynamoDB does with the product's reads and writes, and interpret the same values
//! from which the product renders expressions for DynamoDB.
//!
//! Guarantees: conditions, transactions, index membership, projections, order and pages are as in DynamoDB (a contract
//! test compares this and the real store); an index shows a change only after its delay, and never an older row
//! after a newer one.
//! Does not: fail, throttle or lose anything ([`crate::tables`] does), or limit item sizes.

use crate::rules::{self, Refusal};
use async_trait::async_trait;
use aws_sdk_dynamodb::types::AttributeValue;
use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Bound;
use std::sync::{Mutex, PoisonError};
use store::{
    Answer, Db, DbError, Effect, Index, Item, Key, KeySchema, Page, PageKey, Query, Row, Scan, TABLES, Table, Write,
    WriteError,
};

/// The most items of one transaction (DynamoDB API reference, TransactWriteItems).
const MOST_ITEMS: usize = 100;
/// The most keys of one batch read.
const BATCH_KEYS: usize = 100;

/// All rows of all tables at one moment.
pub type Backup = Vec<(Table, Vec<Row>)>;

/// One key attribute's value, in DynamoDB's order.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    /// A whole number, as all number keys of these tables are.
    Number(i128),
    /// A text. Texts are ordered by their bytes.
    Text(String),
}

impl Part {
    pub fn of(value: &AttributeValue) -> Option<Self> {
        match value {
            AttributeValue::N(n) => n.parse().ok().or_else(|| rules::number(n)?.parse().ok()).map(Self::Number),
            AttributeValue::S(s) => Some(Self::Text(s.clone())),
            _ => None,
        }
    }
}

/// A row's key: hash and range.
pub type RowKey = (Part, Option<Part>);

/// The change of one row by one write.
#[derive(Clone, Debug)]
pub struct Change {
    pub table: Table,
    /// `None` if the row did not exist.
    pub before: Option<Row>,
    /// `None` if the row does not exist any more.
    pub after: Option<Row>,
}

type Place = (Part, Option<Part>, RowKey);

struct View {
    /// The table's own key.
    table: KeySchema,
    index: Index,
    rows: BTreeMap<Place, Row>,
    places: HashMap<RowKey, Place>,
    /// Changes that are not visible yet, by the time at which they become visible.
    pending: BTreeMap<(i64, u64), (RowKey, Option<Row>)>,
    /// Until when changes of a row are pending. A later change becomes visible no sooner.
    last: HashMap<RowKey, i64>,
}

impl View {
    fn new(table: KeySchema, index: Index) -> Self {
        Self {
            table,
            index,
            rows: BTreeMap::new(),
            places: HashMap::new(),
            pending: BTreeMap::new(),
            last: HashMap::new(),
        }
    }

    fn show(&mut self, key: RowKey, row: Option<Row>) {
        if let Some(place) = self.places.remove(&key) {
            self.rows.remove(&place);
        }
        let Some(row) = row else { return };
        let hash = row.get(self.index.key.hash.name).and_then(Part::of);
        let range = match self.index.key.range {
            Some(r) => match row.get(r.name).and_then(Part::of) {
                Some(part) => Some(part),
                None => return,
            },
            None => None,
        };
        if let Some(hash) = hash {
            let place = (hash, range, key.clone());
            self.places.insert(key, place.clone());
            let shown = Row::from(self.project(&row));
            self.rows.insert(place, shown);
        }
    }

    fn settle(&mut self, now: i64) {
        while let Some(entry) = self.pending.first_entry() {
            if entry.key().0 > now {
                break;
            }
            let (key, row) = entry.remove();
            if self.last.get(&key).is_some_and(|at| *at <= now) {
                self.last.remove(&key);
            }
            self.show(key, row);
        }
    }

    fn project(&self, row: &Item) -> Item {
        let keys = [Some(self.table.hash), self.table.range, Some(self.index.key.hash), self.index.key.range];
        let names = keys.into_iter().flatten().map(|k| k.name);
        let names = names.chain(self.index.projected.unwrap_or_default().iter().copied());
        names.filter_map(|n| Some((n.to_owned(), row.get(n)?.clone()))).collect()
    }
}

struct Data {
    table: Table,
    key: KeySchema,
    rows: BTreeMap<RowKey, Row>,
    views: Vec<View>,
}

/// How long an index takes to show a change, in milliseconds.
pub type Delay = Box<dyn FnMut(Index) -> i64 + Send>;

pub struct Model {
    tables: Vec<Data>,
    delay: Option<Delay>,
    order: u64,
}

impl Default for Model {
    fn default() -> Self {
        Self::new(None)
    }
}

impl Model {
    /// Empty tables whose indexes lag by `delay`.
    pub fn new(delay: Option<Delay>) -> Self {
        let data = |d: &store::Definition| Data {
            table: d.table,
            key: d.key,
            rows: BTreeMap::new(),
            views: d.indexes.iter().copied().map(|i| View::new(d.key, i)).collect(),
        };
        Self { tables: TABLES.iter().map(data).collect(), delay, order: 0 }
    }

    fn data(&self, table: Table) -> Option<&Data> {
        self.tables.iter().find(|d| d.table == table)
    }

    pub fn rows(&self, table: Table) -> impl Iterator<Item = &Row> {
        self.data(table).into_iter().flat_map(|d| d.rows.values())
    }

    pub fn len(&self, table: Table) -> usize {
        self.data(table).map_or(0, |d| d.rows.len())
    }

    pub fn get(&self, key: &Key) -> Option<&Row> {
        self.data(key.table)?.rows.get(&row_key(key)?)
    }

    /// The rows of a table with this text as their hash key.
    pub fn with_hash(&self, table: Table, hash: &str) -> Vec<Row> {
        let Some((data, hash)) = self.data(table).zip(Part::of(&AttributeValue::S(hash.to_owned()))) else {
            return Vec::new();
        };
        let from = data.rows.range((hash.clone(), None)..);
        from.take_while(|((of, _), _)| *of == hash).map(|(_, row)| row.clone()).collect()
    }

    /// Replaces a row without a condition. It counts as nobody's write.
    pub fn replace(&mut self, key: &Key, row: Item, now: i64) {
        let before = self.get(key).cloned();
        drop(self.apply(key, before, Some(Row::from(row)), now));
    }

    /// Reads one row, after checking its key.
    pub fn read(&self, key: &Key) -> Result<Option<&Row>, DbError> {
        refused("GetItem", rules::key(key))?;
        Ok(self.get(key))
    }

    /// Reads many rows, each once, in batches of a hundred.
    pub fn read_many(&self, keys: &[Key]) -> Result<Vec<Row>, DbError> {
        keys.chunks(BATCH_KEYS).try_for_each(|batch| refused("BatchGetItem", rules::keys(batch)))?;
        Ok(keys.iter().filter_map(|k| self.get(k)).cloned().collect())
    }

    /// Deletes rows that expired before `now_s`, an epoch second.
    pub fn expire(&mut self, now_s: i64) -> Vec<Key> {
        let mut expired = Vec::new();
        for data in self.tables.iter_mut().filter(|d| d.table.definition().expires) {
            let over = |row: &Row| match row.get("expires_at") {
                Some(AttributeValue::N(at)) => at.parse::<i64>().is_ok_and(|at| at < now_s),
                _ => false,
            };
            let keys: Vec<RowKey> = data.rows.iter().filter(|(_, row)| over(row)).map(|(k, _)| k.clone()).collect();
            for key in keys {
                if let Some(row) = data.rows.remove(&key) {
                    expired.extend(key_as_read(data.table, &row));
                }
                for view in &mut data.views {
                    // A pending change must not bring the row back.
                    view.pending.retain(|_, (of, _)| *of != key);
                    view.last.remove(&key);
                    view.show(key.clone(), None);
                }
            }
        }
        expired
    }

    /// A copy of all rows, to restore later.
    pub fn backup(&self) -> Backup {
        self.tables.iter().map(|d| (d.table, d.rows.values().cloned().collect())).collect()
    }

    /// Restores all rows, except those of the table `but`. Builds the indexes again.
    pub fn restore(&mut self, backup: &Backup, but: Option<Table>) {
        for data in self.tables.iter_mut().filter(|d| Some(d.table) != but) {
            data.rows.clear();
            for view in &mut data.views {
                *view = View::new(view.table, view.index);
            }
            let rows = backup.iter().filter(|(t, _)| *t == data.table).flat_map(|(_, rows)| rows);
            for row in rows {
                if let Some(key) = key_of(data.key, row) {
                    for view in &mut data.views {
                        view.show(key.clone(), Some(Row::clone(row)));
                    }
                    data.rows.insert(key, Row::clone(row));
                }
            }
        }
    }

    /// Whether an index shows every change by now.
    pub fn is_settled(&self, table: Table, index: Index) -> bool {
        let view = self.data(table).and_then(|d| d.views.iter().find(|v| v.index.name == index.name));
        view.is_some_and(|v| v.pending.is_empty())
    }

    /// A page of a query, at most `most` rows long.
    pub fn query(&mut self, query: &Query, from: Option<&PageKey>, most: usize, now: i64) -> Result<Page, DbError> {
        refused("Query", rules::query(query, from))?;
        let most = query.limit.and_then(|l| usize::try_from(l).ok()).map_or(most, |l| l.min(most)).max(1);
        let hash = Part::of(&query.hash).ok_or_else(|| invalid("Query", "the hash value has the wrong type"))?;
        let key = query.index.map_or(query.table.definition().key, |i| i.key);
        // Bounds have no meaning without a range key.
        let bound = |bound: &Option<AttributeValue>| bound.as_ref().filter(|_| key.range.is_some()).and_then(Part::of);
        let of = Asked { hash, at_least: bound(&query.range_at_least), at_most: bound(&query.range_at_most) };
        let all = Scan::all(query.table, query.index);
        self.page(&all, Some(&of), query.newest_first, from, most, now)
    }

    /// A page of everything, at most `most` rows long.
    pub fn scan(&mut self, scan: &Scan, from: Option<&PageKey>, most: usize, now: i64) -> Result<Page, DbError> {
        if let Some(from) = from {
            let table = scan.table.definition().key;
            refused("Scan", rules::place(&[table, scan.index.map_or(table, |i| i.key)], from))?;
        }
        self.page(scan, None, false, from, most.max(1), now)
    }

    fn page(
        &mut self,
        scan: &Scan,
        of: Option<&Asked>,
        newest_first: bool,
        from: Option<&PageKey>,
        most: usize,
        now: i64,
    ) -> Result<Page, DbError> {
        let operation = if of.is_some() { "Query" } else { "Scan" };
        let Scan { table, index, segment, .. } = *scan;
        let in_segment = |hash: &Part| segment.is_none_or(|s| segment_of(hash, s.of) == s.number);
        let data = self.tables.iter_mut().find(|d| d.table == table).ok_or_else(|| invalid(operation, "no table"))?;
        let schema = data.key;
        let Some(index) = index else {
            let from = from.and_then(|f| key_of(schema, f));
            let first = of.map(|asked| (asked.hash.clone(), asked.at_least.clone()));
            let within = |k: &RowKey| of.is_none_or(|asked| asked.takes(&k.0, k.1.as_ref()));
            let (rows, more) = select(&data.rows, first, from, newest_first, most, within, |k| in_segment(&k.0));
            let next = rows.last().filter(|_| more).map(|r| keys(&[schema], r));
            return Ok(Page { items: rows, next });
        };
        let view = data.views.iter_mut().find(|v| v.index.name == index.name);
        let view = view.ok_or_else(|| invalid(operation, "no index of that name"))?;
        view.settle(now);
        let from = match from {
            Some(f) => Some((
                f.get(view.index.key.hash.name).and_then(Part::of).ok_or_else(|| invalid(operation, "bad start"))?,
                view.index.key.range.and_then(|r| f.get(r.name)).and_then(Part::of),
                key_of(schema, f).ok_or_else(|| invalid(operation, "bad start"))?,
            )),
            None => None,
        };
        let lowest = (Part::Number(i128::MIN), None);
        let first = of.map(|asked| (asked.hash.clone(), asked.at_least.clone(), lowest));
        let within = |k: &Place| of.is_none_or(|asked| asked.takes(&k.0, k.1.as_ref()));
        let (rows, more) = select(&view.rows, first, from, newest_first, most, within, |k| in_segment(&k.0));
        let next = rows.last().filter(|_| more).map(|r| keys(&[schema, view.index.key], r));
        Ok(Page { items: rows, next })
    }

    /// Makes one conditional write. Returns the database's answer and the change.
    pub fn write(
        &mut self,
        write: &Write,
        answer: Answer,
        now: i64,
    ) -> Result<(Option<Row>, Option<Change>), WriteError> {
        let operation = match write.effect {
            Effect::Put(_) => "PutItem",
            Effect::Update { .. } => "UpdateItem",
            Effect::Delete => "DeleteItem",
            Effect::Check => "TransactWriteItems",
        };
        refused(operation, rules::write(write))?;
        let wants = answer == Answer::Row && matches!(write.effect, Effect::Update { .. });
        let before = self.get(&write.key).cloned();
        if !rules::holds(&write.when, before.as_deref()) {
            return Err(WriteError::Conflict(before.filter(|_| wants)));
        }
        let Some(after) = rules::outcome(write, before.as_deref()) else { return Ok((None, None)) };
        let after = after.map(Row::from);
        let shown = after.clone().filter(|_| wants);
        Ok((shown, Some(self.apply(&write.key, before, after, now))))
    }

    /// Makes all of these writes or none.
    pub fn transact(&mut self, writes: &[Write], now: i64) -> Result<Vec<Change>, WriteError> {
        let operation = "TransactWriteItems";
        if writes.is_empty() || writes.len() > MOST_ITEMS {
            return Err(invalid(operation, "1 to 100 items are allowed").into());
        }
        for (n, write) in writes.iter().enumerate() {
            refused(operation, rules::write(write))?;
            if writes.iter().take(n).any(|other| rules::alike(&other.key, &write.key)) {
                return Err(invalid(operation, "an item is named twice").into());
            }
        }
        if writes.iter().any(|write| !rules::holds(&write.when, self.get(&write.key).map(|row| &**row))) {
            return Err(WriteError::CONFLICT);
        }
        let mut changes = Vec::with_capacity(writes.len());
        for write in writes {
            let before = self.get(&write.key).cloned();
            if let Some(after) = rules::outcome(write, before.as_deref()) {
                changes.push(self.apply(&write.key, before, after.map(Row::from), now));
            }
        }
        Ok(changes)
    }

    fn apply(&mut self, key: &Key, before: Option<Row>, after: Option<Row>, now: i64) -> Change {
        let change = Change { table: key.table, before, after };
        let (Some(data), Some(key)) = (self.tables.iter_mut().find(|d| d.table == key.table), row_key(key)) else {
            return change;
        };
        match &change.after {
            Some(row) => _ = data.rows.insert(key.clone(), Row::clone(row)),
            None => _ = data.rows.remove(&key),
        }
        for view in &mut data.views {
            let delay = self.delay.as_mut().map_or(0, |d| d(view.index));
            let at = (now + delay).max(view.last.get(&key).copied().unwrap_or(i64::MIN));
            if at <= now {
                view.settle(now);
                view.show(key.clone(), change.after.clone());
            } else {
                self.order += 1;
                view.last.insert(key.clone(), at);
                view.pending.insert((at, self.order), (key.clone(), change.after.clone()));
            }
        }
        change
    }
}

/// Which rows a query wants.
struct Asked {
    hash: Part,
    at_least: Option<Part>,
    at_most: Option<Part>,
}

impl Asked {
    fn takes(&self, hash: &Part, range: Option<&Part>) -> bool {
        let at_least = self.at_least.as_ref().is_none_or(|least| range.is_some_and(|range| range >= least));
        let at_most = self.at_most.as_ref().is_none_or(|most| range.is_some_and(|range| range <= most));
        *hash == self.hash && at_least && at_most
    }
}

/// The `wanted` rows of one page, and whether more may follow. Forwards, the rows `within` are next to each other. A
/// full page may be the last one. Then the next page is empty, as in DynamoDB.
fn select<K: Ord>(
    rows: &BTreeMap<K, Row>,
    first: Option<K>,
    from: Option<K>,
    newest_first: bool,
    most: usize,
    within: impl Fn(&K) -> bool,
    wanted: impl Fn(&K) -> bool,
) -> (Vec<Row>, bool) {
    let rows: Vec<Row> = if newest_first {
        let end = from.map_or(Bound::Unbounded, Bound::Excluded);
        let start = first.map_or(Bound::Unbounded, Bound::Included);
        rows.range((start, end)).rev().filter(|(k, _)| within(k)).map(|(_, r)| r.clone()).take(most).collect()
    } else {
        let start = match (from, first) {
            (Some(from), _) => Bound::Excluded(from),
            (None, Some(first)) => Bound::Included(first),
            (None, None) => Bound::Unbounded,
        };
        let all = rows.range((start, Bound::Unbounded));
        all.take_while(|(k, _)| within(k)).filter(|(k, _)| wanted(k)).map(|(_, r)| r.clone()).take(most).collect()
    };
    let more = rows.len() == most;
    (rows, more)
}

fn invalid(operation: &'static str, message: &str) -> DbError {
    DbError::Refused { operation, code: "ValidationException".into(), message: message.into() }
}

fn refused(operation: &'static str, result: Result<(), Refusal>) -> Result<(), DbError> {
    result.map_err(|why| invalid(operation, why))
}

fn row_key(key: &Key) -> Option<RowKey> {
    let range = match &key.range {
        Some(range) => Some(Part::of(range)?),
        None => None,
    };
    Some((Part::of(&key.hash)?, range))
}

fn key_of(schema: KeySchema, row: &Item) -> Option<RowKey> {
    let range = match schema.range {
        Some(range) => Some(row.get(range.name).and_then(Part::of)?),
        None => None,
    };
    Some((row.get(schema.hash.name).and_then(Part::of)?, range))
}

pub fn key_as_read(table: Table, row: &Item) -> Option<Key> {
    let schema = table.definition().key;
    let range = schema.range.and_then(|r| row.get(r.name).cloned());
    Some(Key { table, hash: row.get(schema.hash.name)?.clone(), range })
}

fn keys(schemas: &[KeySchema], row: &Item) -> Item {
    let names = schemas.iter().flat_map(|s| [Some(s.hash), s.range]).flatten().map(|k| k.name);
    names.filter_map(|n| Some((n.to_owned(), row.get(n)?.clone()))).collect()
}

/// The model as a database without faults. The contract test compares it with the real one.
#[derive(Default)]
pub struct Plain {
    model: Mutex<Model>,
}

/// The rows of one page of [`Plain`]: few, so that lists have several pages.
const PLAIN_PAGE: usize = 7;

impl Plain {
    pub fn new() -> Self {
        Self::default()
    }

    fn model(&self) -> std::sync::MutexGuard<'_, Model> {
        self.model.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Db for Plain {
    async fn get(&self, key: &Key) -> Result<Option<Row>, DbError> {
        Ok(self.model().read(key)?.cloned())
    }
    async fn get_many(&self, keys: &[Key]) -> Result<Vec<Row>, DbError> {
        self.model().read_many(keys)
    }
    async fn query(&self, query: &Query, from: Option<PageKey>) -> Result<Page, DbError> {
        self.model().query(query, from.as_ref(), PLAIN_PAGE, 0)
    }
    async fn scan(&self, scan: &Scan, from: Option<PageKey>) -> Result<Page, DbError> {
        self.model().scan(scan, from.as_ref(), PLAIN_PAGE, 0)
    }
    async fn write(&self, write: &Write, answer: Answer) -> Result<Option<Row>, WriteError> {
        self.model().write(write, answer, 0).map(|(row, _)| row)
    }
    async fn transact(&self, writes: &[Write]) -> Result<(), WriteError> {
        self.model().transact(writes, 0).map(|_| ())
    }
    async fn put_new(&self, table: Table, rows: &[Item]) -> Result<(), DbError> {
        let schema = table.definition().key;
        for row in rows {
            let value = |name: &str| row.get(name).cloned();
            let hash = value(schema.hash.name).ok_or_else(|| invalid("BatchWriteItem", "a row without its key"))?;
            let key = Key { table, hash, range: schema.range.and_then(|range| value(range.name)) };
            let write = Write { key, when: Vec::new(), effect: Effect::Put(row.clone()) };
            self.model().write(&write, Answer::None, 0).map_err(|e| invalid("BatchWriteItem", &e.to_string()))?;
        }
        Ok(())
    }
}

/// The segment of a row in a list that is read in `of` parts.
pub fn segment_of(hash: &Part, of: i32) -> i32 {
    let mut hasher = DefaultHasher::new();
    hash.hash(&mut hasher);
    i32::try_from(hasher.finish() % u64::from(of.unsigned_abs().max(1))).unwrap_or(0)
}
