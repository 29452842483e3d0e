//! A database that counts what DynamoDB would bill for each call.
//!
//! Guarantees: sizes are DynamoDB's (the embedded DynamoDB computes them, names included). A read unit is 4 KiB, half
//! of it if the read may be old. A write unit is 1 KiB of the larger of the rows before and after. A transaction costs
//! double, also its checks. A failed condition costs as much as the write. An index costs writes of its own, but only
//! if what it shows changes.
//! Does not: count storage, or what is free (streams, deletion of expired rows).
//! Source: Amazon DynamoDB Developer Guide, "DynamoDB read and write operations", "Global secondary indexes: write
//! considerations", "Managing complex workflows with transactions".

use async_trait::async_trait;
use nodekeeper_simulation::database::Model;
use nodekeeper_simulation::embedded;
use std::ops::{Add, AddAssign, Mul, Sub};
use std::sync::{Arc, Mutex};
use store::{Answer, Db, DbError, Index, Item, Key, Page, PageKey, Query, Row, Scan, Table, Write, WriteError};

const READ_UNIT_BYTES: usize = 4096;
const WRITE_UNIT_BYTES: usize = 1024;
/// The most bytes of one page of a list, and the most keys of one batch read (`BATCH_KEYS` in `shared/store`).
const PAGE_BYTES: usize = 1024 * 1024;
const BATCH_KEYS: usize = 100;
/// The most rows of one batch write (`BATCH_ROWS` in `shared/store`).
const BATCH_ROWS: usize = 25;
/// A list is one page here, because a fleet in a test is small.
const ROWS: usize = 1_000_000;

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Use {
    /// Read request units.
    pub reads: f64,
    /// Write request units.
    pub writes: f64,
    /// Calls of DynamoDB. They take time, and are not billed.
    pub calls: f64,
    /// Calls of EC2. They are free, but limited.
    pub ec2: f64,
}

impl Add for Use {
    type Output = Self;
    fn add(self, o: Self) -> Self {
        Self {
            reads: self.reads + o.reads,
            writes: self.writes + o.writes,
            calls: self.calls + o.calls,
            ec2: self.ec2 + o.ec2,
        }
    }
}

impl AddAssign for Use {
    fn add_assign(&mut self, o: Self) {
        *self = *self + o;
    }
}

impl Mul<f64> for Use {
    type Output = Self;
    fn mul(self, n: f64) -> Self {
        Self { reads: self.reads * n, writes: self.writes * n, calls: self.calls * n, ec2: self.ec2 * n }
    }
}

impl Sub for Use {
    type Output = Self;
    fn sub(self, o: Self) -> Self {
        self + o * -1.0
    }
}

/// The tables of a cluster. All its meters share them.
pub type Tables = Arc<Mutex<Model>>;

/// The tables, seen by one invocation or one function.
#[derive(Clone)]
pub struct Meter {
    pub tables: Tables,
    pub used: Arc<Mutex<Use>>,
}

impl Meter {
    pub fn new(tables: &Tables) -> Self {
        Self { tables: Arc::clone(tables), used: Arc::default() }
    }

    /// What was used since the last call of this function.
    pub fn take(&self) -> Use {
        std::mem::take(&mut *self.used.lock().unwrap())
    }

    pub fn count(&self, used: Use) {
        *self.used.lock().unwrap() += used;
    }

    fn list(&self, page: &Page, index: Option<Index>) {
        let bytes: usize = page.items.iter().map(|row| embedded::size(row)).sum();
        let calls = bytes.div_ceil(PAGE_BYTES).max(1) as f64;
        let reads = read_units(bytes) * if index.is_none() { 1.0 } else { 0.5 };
        self.count(Use { reads, calls, ..Use::default() });
    }

    fn row(&self, key: &Key) -> Option<Row> {
        self.tables.lock().unwrap().get(key).cloned()
    }
}

fn units(bytes: usize, unit: usize) -> f64 {
    bytes.div_ceil(unit).max(1) as f64
}

fn read_units(bytes: usize) -> f64 {
    units(bytes, READ_UNIT_BYTES)
}

/// The bytes of a row in storage, with the 100 bytes that DynamoDB adds to each row, and with its copies in the
/// indexes.
pub fn stored_bytes(table: Table, row: &Item) -> usize {
    let indexes = table.definition().indexes;
    let copies: usize = indexes.iter().filter_map(|i| shown(table, *i, row)).map(|r| embedded::size(&r) + 100).sum();
    embedded::size(row) + 100 + copies
}

/// What an index shows of a row; `None` if the row is not in it.
fn shown(table: Table, index: Index, row: &Item) -> Option<Item> {
    let keys = [table.definition().key, index.key].into_iter().flat_map(|k| [Some(k.hash), k.range]).flatten();
    let is_in = [Some(index.key.hash), index.key.range].into_iter().flatten().all(|k| row.contains_key(k.name));
    let names = keys.map(|k| k.name).chain(index.projected.unwrap_or_default().iter().copied());
    is_in.then(|| names.filter_map(|n| Some((n.to_owned(), row.get(n)?.clone()))).collect())
}

/// The write units of a change: those of the row, and those of the indexes.
fn write_units(table: Table, before: Option<&Item>, after: Option<&Item>) -> (f64, f64) {
    let size = |row: Option<&Item>| row.map_or(0, embedded::size);
    let of_row = units(size(before).max(size(after)), WRITE_UNIT_BYTES);
    let of_index = |index: &Index| {
        let entry = |row: Option<&Item>| row.and_then(|r| shown(table, *index, r));
        let place = |row: &Item| {
            (row.get(index.key.hash.name).cloned(), index.key.range.and_then(|r| row.get(r.name).cloned()))
        };
        let bill = |row: &Item| units(embedded::size(row), WRITE_UNIT_BYTES);
        match (entry(before), entry(after)) {
            (None, None) => 0.0,
            (Some(one), None) | (None, Some(one)) => bill(&one),
            (Some(old), Some(new)) if old == new => 0.0,
            (Some(old), Some(new)) if place(&old) == place(&new) => bill(&old).max(bill(&new)),
            (Some(old), Some(new)) => bill(&old) + bill(&new),
        }
    };
    (of_row, table.definition().indexes.iter().map(of_index).sum())
}

#[async_trait]
impl Db for Meter {
    async fn get(&self, key: &Key) -> Result<Option<Row>, DbError> {
        let row = self.tables.lock().unwrap().read(key)?.cloned();
        let reads = read_units(row.as_ref().map_or(0, |r| embedded::size(r)));
        self.count(Use { reads, calls: 1.0, ..Use::default() });
        Ok(row)
    }

    async fn get_many(&self, keys: &[Key]) -> Result<Vec<Row>, DbError> {
        let rows = self.tables.lock().unwrap().read_many(keys)?;
        let found: f64 = rows.iter().map(|row| read_units(embedded::size(row))).sum();
        let missing = (keys.len() - rows.len()) as f64;
        self.count(Use { reads: found + missing, calls: keys.len().div_ceil(BATCH_KEYS) as f64, ..Use::default() });
        Ok(rows)
    }

    async fn query(&self, query: &Query, from: Option<PageKey>) -> Result<Page, DbError> {
        let page = self.tables.lock().unwrap().query(query, from.as_ref(), ROWS, 0)?;
        self.list(&page, query.index);
        Ok(page)
    }

    async fn scan(&self, scan: &Scan, from: Option<PageKey>) -> Result<Page, DbError> {
        let page = self.tables.lock().unwrap().scan(scan, from.as_ref(), ROWS, 0)?;
        self.list(&page, scan.index);
        Ok(page)
    }

    async fn write(&self, write: &Write, answer: Answer) -> Result<Option<Row>, WriteError> {
        let before = self.row(&write.key);
        let result = self.tables.lock().unwrap().write(write, answer, 0).map(|(row, _)| row);
        let after = self.row(&write.key);
        let (row, indexes) = write_units(write.key.table, before.as_deref(), after.as_deref());
        self.count(Use { writes: row + indexes, calls: 1.0, ..Use::default() });
        result
    }

    async fn transact(&self, writes: &[Write]) -> Result<(), WriteError> {
        let before: Vec<Option<Row>> = writes.iter().map(|w| self.row(&w.key)).collect();
        let result = self.tables.lock().unwrap().transact(writes, 0).map(|_| ());
        for (write, before) in writes.iter().zip(before) {
            let (row, indexes) = write_units(write.key.table, before.as_deref(), self.row(&write.key).as_deref());
            self.count(Use { writes: 2.0 * row + indexes, ..Use::default() });
        }
        self.count(Use { calls: 1.0, ..Use::default() });
        result
    }
    async fn put_new(&self, table: Table, rows: &[Item]) -> Result<(), DbError> {
        let written: f64 =
            rows.iter().map(|row| write_units(table, None, Some(row))).map(|(row, index)| row + index).sum();
        self.count(Use { writes: written, calls: rows.len().div_ceil(BATCH_ROWS) as f64, ..Use::default() });
        Ok(())
    }
}
