//! The one boundary to the database: seven operations and their errors.
//!
//! [`super::Dynamo`] implements it for DynamoDB. Tests implement it to count calls, to kill a run and to
//! inject faults.
//! Guarantees: a failed condition and a transaction conflict are different errors.
//! Does not: retry; [`super::Store`] retries transaction conflicts.

use crate::rows::raw;
use crate::tables::{Index, Table};
use crate::write::{Cond, Item, Key, Write};
use async_trait::async_trait;
use aws_sdk_dynamodb::types::AttributeValue;
use serde_json::value::RawValue;
use std::any::Any;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

/// A row as read. Rows are shared, because nobody changes a row.
///
/// A row can have several holders: tables in memory hold their rows too. Such a row keeps its record after the first
/// deserialization, because deserializing costs far more than finding the row in memory.
#[derive(Clone, Debug)]
pub struct Row(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    /// The row as the database sent it, if it came in a list.
    raw: Option<Box<RawValue>>,
    /// The attributes. A raw row gets them when somebody asks for them, and most rows never do.
    item: OnceLock<Item>,
    read: OnceLock<Box<dyn Any + Send + Sync>>,
}

impl Row {
    /// The text of a row that the database sent in a list.
    pub fn raw(&self) -> Option<&str> {
        self.0.raw.as_deref().map(RawValue::get)
    }

    /// The row as a record. `read` is called only if the row was not read as this type before.
    pub(crate) fn read_as<R: Clone + Send + Sync + 'static, E>(
        &self,
        read: impl FnOnce() -> Result<R, E>,
    ) -> Result<R, E> {
        if let Some(known) = self.0.read.get().and_then(|known| known.downcast_ref::<R>()) {
            return Ok(known.clone());
        }
        let record = read()?;
        if Arc::strong_count(&self.0) > 1 {
            // If the row was first read as another type, the record of that type is kept.
            let _ = self.0.read.set(Box::new(record.clone()));
        }
        Ok(record)
    }
}

impl From<Item> for Row {
    fn from(item: Item) -> Self {
        Self(Arc::new(Shared { item: item.into(), ..Shared::default() }))
    }
}

impl From<Box<RawValue>> for Row {
    fn from(raw: Box<RawValue>) -> Self {
        Self(Arc::new(Shared { raw: Some(raw), ..Shared::default() }))
    }
}

impl Deref for Row {
    type Target = Item;
    fn deref(&self) -> &Item {
        self.0.item.get_or_init(|| self.raw().and_then(raw::item).unwrap_or_default())
    }
}

impl PartialEq for Row {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

/// Where the next page of a list begins.
pub type PageKey = Item;

#[derive(Clone, Debug, Default)]
pub struct Page {
    pub items: Vec<Row>,
    /// Where the next page begins; `None` on the last page.
    pub next: Option<PageKey>,
}

/// A query of one hash value, in order.
#[derive(Clone, Debug)]
pub struct Query {
    pub table: Table,
    /// `None` for the table itself, which is read consistently.
    pub index: Option<Index>,
    pub hash: AttributeValue,
    /// Only rows whose range key is at least this.
    pub range_at_least: Option<AttributeValue>,
    /// Only rows whose range key is at most this.
    pub range_at_most: Option<AttributeValue>,
    /// Whether the largest range key comes first.
    pub newest_first: bool,
    /// The most rows on a page.
    pub limit: Option<i32>,
}

impl Query {
    /// The query of all rows with this hash value, the smallest range key first.
    pub const fn of(table: Table, index: Option<Index>, hash: AttributeValue) -> Self {
        Self { table, index, hash, range_at_least: None, range_at_most: None, newest_first: false, limit: None }
    }
}

/// A list of a whole table or index, or of one part of it. A table is read consistently; an index may be behind.
#[derive(Clone, Copy, Debug)]
pub struct Scan {
    pub table: Table,
    pub index: Option<Index>,
    /// `None` for all rows.
    pub segment: Option<Segment>,
    pub only: Option<Words>,
}

impl Scan {
    pub const fn all(table: Table, index: Option<Index>) -> Self {
        Self { table, index, segment: None, only: None }
    }
}

/// The values accepted for an attribute. The database reads the other rows too, and does not send them.
#[derive(Clone, Copy, Debug)]
pub struct Words {
    pub attribute: &'static str,
    pub words: &'static [&'static str],
}

impl Words {
    pub fn condition(self) -> Cond {
        Cond::In(self.attribute, self.words.iter().map(|word| AttributeValue::S((*word).to_owned())).collect())
    }
}

/// One of several parts of a list, which can be read at the same time. The database decides which rows are in which part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// From 0.
    pub number: i32,
    /// How many parts there are.
    pub of: i32,
}

#[derive(Debug, thiserror::Error)]
pub enum DbError {
    #[error(
        "table {0} does not exist: check NODEKEEPER_CLUSTER and the region, or make the tables (`nodekeeper init`, or deploy the stack)"
    )]
    NoTable(String),
    #[error(
        "DynamoDB did not answer ({operation}): check AWS_ENDPOINT_URL_DYNAMODB, the region and the credentials: {detail}"
    )]
    Unreachable { operation: &'static str, detail: String },
    #[error("DynamoDB throttles ({operation}): the next run tries again")]
    Throttled { operation: &'static str },
    /// DynamoDB answered with another error.
    #[error("DynamoDB refused {operation}: {code}: {message}")]
    Refused { operation: &'static str, code: String, message: String },
    /// A row cannot be read as the model's type.
    #[error("row {key} of table {table} cannot be understood: {detail}: repair or delete it")]
    Corrupt { table: &'static str, key: String, detail: String },
}

#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// A condition did not hold: someone else was first. Contains the current row if the caller asked for it.
    #[error("someone else was first")]
    Conflict(Option<Row>),
    /// Another transaction is writing one of the rows. No condition failed: try again.
    #[error("another transaction was in the way")]
    Contended,
    /// The database failed. It is not known whether the write happened.
    #[error(transparent)]
    Db(#[from] DbError),
}

impl WriteError {
    /// A failed condition, without the row.
    pub const CONFLICT: Self = Self::Conflict(None);

    /// Whether somebody else was first.
    pub const fn is_conflict(&self) -> bool {
        matches!(self, Self::Conflict(_) | Self::Contended)
    }
}

/// What was written; `None` after a lost race.
pub fn unless_raced<T>(written: Result<T, WriteError>) -> Result<Option<T>, DbError> {
    match written {
        Ok(written) => Ok(Some(written)),
        Err(WriteError::Db(error)) => Err(error),
        Err(_) => Ok(None),
    }
}

/// Counts a lost race as success.
pub fn ignore_conflict<T>(written: Result<T, WriteError>) -> Result<(), WriteError> {
    Ok(unless_raced(written).map(drop)?)
}

/// What a single write returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    None,
    /// The whole row: after the write, or, if a condition failed, the current one.
    Row,
}

/// The seven operations of the database.
#[async_trait]
pub trait Db: Send + Sync {
    /// One row, read consistently.
    async fn get(&self, key: &Key) -> Result<Option<Row>, DbError>;
    /// Many rows of one table, read consistently. Rows that do not exist are left out.
    async fn get_many(&self, keys: &[Key]) -> Result<Vec<Row>, DbError>;
    /// One page of a query. An index may be behind its table.
    async fn query(&self, query: &Query, from: Option<PageKey>) -> Result<Page, DbError>;
    async fn scan(&self, scan: &Scan, from: Option<PageKey>) -> Result<Page, DbError>;
    async fn write(&self, write: &Write, answer: Answer) -> Result<Option<Row>, WriteError>;
    /// All of these writes, or none.
    async fn transact(&self, writes: &[Write]) -> Result<(), WriteError>;
    /// Puts rows whose keys nobody else uses, without a condition. If it fails, some of them may be there.
    async fn put_new(&self, table: Table, rows: &[Item]) -> Result<(), DbError>;
}
