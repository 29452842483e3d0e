//! The one boundary to the database: six operations, and what may go wrong with them.
//!
//! Implemented by [`super::Dynamo`] for DynamoDB, and by tests that count, kill and disturb.
//! Guarantees: a failed condition and a transaction conflict are told apart.
//! Does not: retry; [`super::Store`] does where the model says so.

use crate::tables::{Index, Table};
use crate::write::{Item, Key, Write};
use async_trait::async_trait;
use aws_sdk_dynamodb::types::AttributeValue;
use model::control::UnreadableEntry;
use std::any::Any;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

/// A row as read: shared, because readers only look.
///
/// While somebody else keeps it too, as tables in memory do, it remembers the record it was read
/// as: understanding a row costs far more than finding it there.
#[derive(Clone, Debug)]
pub struct Row(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    item: Item,
    read: OnceLock<Box<dyn Any + Send + Sync>>,
}

impl Row {
    /// Reads it as a record, with `read` if it was not read as such before.
    pub(crate) fn read_as<R: Clone + Send + Sync + 'static, E>(
        &self,
        read: impl FnOnce(&Item) -> Result<R, E>,
    ) -> Result<R, E> {
        if let Some(known) = self.0.read.get().and_then(|known| known.downcast_ref::<R>()) {
            return Ok(known.clone());
        }
        let record = read(&self.0.item)?;
        if Arc::strong_count(&self.0) > 1 {
            // Already read as something else: that remains.
            let _ = self.0.read.set(Box::new(record.clone()));
        }
        Ok(record)
    }
}

impl From<Item> for Row {
    fn from(item: Item) -> Self {
        Self(Arc::new(Shared { item, read: OnceLock::new() }))
    }
}

impl Deref for Row {
    type Target = Item;
    fn deref(&self) -> &Item {
        &self.0.item
    }
}

impl PartialEq for Row {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

/// Where a list goes on.
pub type PageKey = Item;

/// One page of a list.
#[derive(Clone, Debug, Default)]
pub struct Page {
    /// Its rows.
    pub items: Vec<Row>,
    /// Where the list goes on; `None` at its end.
    pub next: Option<PageKey>,
}

/// A query of one hash value, in order.
#[derive(Clone, Debug)]
pub struct Query {
    /// Which table.
    pub table: Table,
    /// Which index; `None` for the table itself, read consistently.
    pub index: Option<Index>,
    /// The hash value.
    pub hash: AttributeValue,
    /// Only rows whose range key is at most this.
    pub range_at_most: Option<AttributeValue>,
    /// Largest range key first.
    pub newest_first: bool,
    /// At most so many rows a page.
    pub limit: Option<i32>,
}

/// Why the database did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum DbError {
    /// A table is not there.
    #[error(
        "table {0} does not exist: check NODEKEEPER_CLUSTER and the region, or make the tables (`nodekeeper init`, or deploy the stack)"
    )]
    NoTable(String),
    /// It cannot be reached, or did not answer.
    #[error(
        "DynamoDB did not answer ({operation}): check AWS_ENDPOINT_URL_DYNAMODB, the region and the credentials: {detail}"
    )]
    Unreachable {
        /// What was asked.
        operation: &'static str,
        /// What the client says.
        detail: String,
    },
    /// Too much at once.
    #[error("DynamoDB throttles ({operation}): the next run tries again")]
    Throttled {
        /// What was asked.
        operation: &'static str,
    },
    /// It refused.
    #[error("DynamoDB refused {operation}: {code}: {message}")]
    Refused {
        /// What was asked.
        operation: &'static str,
        /// Its code.
        code: String,
        /// Its words.
        message: String,
    },
    /// A row that cannot be understood.
    #[error("row {key} of table {table} cannot be understood: {detail}: repair or delete it")]
    Corrupt {
        /// Which table.
        table: &'static str,
        /// Its key.
        key: String,
        /// What is wrong.
        detail: String,
    },
}

impl From<UnreadableEntry> for DbError {
    fn from(e: UnreadableEntry) -> Self {
        Self::Corrupt { table: "control", key: e.key, detail: e.detail }
    }
}

/// Why a write did not happen.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// A condition did not hold: someone else was first. With the row as it is, where asked for.
    #[error("someone else was first")]
    Conflict(Option<Row>),
    /// Another transaction holds a row: no condition failed, try again.
    #[error("another transaction was in the way")]
    Contended,
    /// The database failed. Whether the write happened is not known.
    #[error(transparent)]
    Db(#[from] DbError),
}

impl WriteError {
    /// A condition that did not hold.
    pub const CONFLICT: Self = Self::Conflict(None);

    /// Whether someone else was first.
    pub const fn is_conflict(&self) -> bool {
        matches!(self, Self::Conflict(_))
    }
}

/// What comes back from a single write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Nothing.
    None,
    /// The whole row as it is: after the write, or, where a condition failed, before.
    Row,
}

/// The database.
#[async_trait]
pub trait Db: Send + Sync {
    /// One row, read consistently.
    async fn get(&self, key: &Key) -> Result<Option<Row>, DbError>;
    /// Many rows of one table, read consistently; those that do not exist are left out.
    async fn get_many(&self, keys: &[Key]) -> Result<Vec<Row>, DbError>;
    /// A page of a query. Of an index it may be behind.
    async fn query(&self, query: &Query, from: Option<PageKey>) -> Result<Page, DbError>;
    /// A page of everything. Of an index it may be behind; of a table it is consistent.
    async fn scan(&self, table: Table, index: Option<Index>, from: Option<PageKey>) -> Result<Page, DbError>;
    /// One conditional write.
    async fn write(&self, write: &Write, answer: Answer) -> Result<Option<Row>, WriteError>;
    /// All of these or none.
    async fn transact(&self, writes: &[Write]) -> Result<(), WriteError>;
}
