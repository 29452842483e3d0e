//! The one boundary to the database: seven operations and their errors.
//!
//! [`super::Dynamo`] implements it for DynamoDB. Tests implement it to count calls, to kill a run and to
//! inject faults.
//! Guarantees: a failed condition and a transaction conflict are different errors.
//! Does not: retry; [`super::Store`] retries transaction conflicts.

use crate::tables::{Index, Table};
use crate::write::{Item, Key, Write};
use async_trait::async_trait;
use aws_sdk_dynamodb::types::AttributeValue;
use std::sync::Arc;

/// A row as read. Rows are shared, because nobody changes a row, and tables in memory hold theirs too.
pub type Row = Arc<Item>;

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
}

impl Scan {
    /// All rows, in one part.
    pub const fn all(table: Table, index: Option<Index>) -> Self {
        Self { table, index, segment: None }
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
    #[error("table {0} does not exist: check NODEKEEPER_CLUSTER and the region, or make the cluster (`nodekeeper up`)")]
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

    /// A contention as a conflict.
    pub(crate) fn or_conflict(self) -> Self {
        if matches!(self, Self::Contended) { Self::CONFLICT } else { self }
    }

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
    /// Of an update, the whole row: after the write, or, if a condition failed, the current one.
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
