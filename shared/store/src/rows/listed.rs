//! Lists in which some rows cannot be read.
//!
//! Guarantees: a row that cannot be read does not hide the others; it comes with its table, its key and the mistake.
//! Does not: decide what follows from such a row. The observation does.

use super::{from_item, key_text};
use crate::db::{DbError, Row};
use crate::tables::Table;
use aws_sdk_dynamodb::types::AttributeValue;
use derive_more::{Debug, Display};
use model::{AllocId, JobId, NodeId, Slot};
use serde::de::DeserializeOwned;

/// A row that cannot be read as the model's type.
#[derive(Clone, PartialEq, Debug, Display)]
#[display("row {} of table {} cannot be read: {detail}", self.key(), table.suffix())]
#[debug("Unreadable({self})")]
pub struct Unreadable {
    pub table: Table,
    pub detail: String,
    row: Row,
}

impl Unreadable {
    /// The text of an attribute that is a string or a number.
    pub fn text(&self, name: &str) -> Option<&str> {
        match self.row.get(name)? {
            AttributeValue::S(text) | AttributeValue::N(text) => Some(text),
            _ => None,
        }
    }

    fn id<T: std::str::FromStr>(&self, name: &str) -> Option<T> {
        self.text(name)?.parse().ok()
    }

    /// The key of the row, for people.
    pub fn key(&self) -> String {
        key_text(self.table, &self.row)
    }

    /// The slot of a node record; `None` if the key is no slot.
    pub fn slot(&self) -> Option<Slot> {
        self.id("slot").filter(|_| self.table == Table::Nodes)
    }

    /// The job of a row of the jobs table; `None` if the key is no job id.
    pub fn job_id(&self) -> Option<JobId> {
        self.id("job_id").filter(|_| self.table == Table::Jobs)
    }

    /// The alloc of a row of the allocs table; `None` if the key is no alloc id.
    pub fn alloc_id(&self) -> Option<AllocId> {
        self.id("alloc_id").filter(|_| self.table == Table::Allocs)
    }

    /// The node that the row names, if it names one.
    pub fn node_id(&self) -> Option<NodeId> {
        self.id("node_id").or_else(|| self.id("live_node"))
    }

    pub fn handle(&self) -> Option<&str> {
        self.text("handle").filter(|_| self.table == Table::Handles)
    }

    /// The error of a reader that needs every row.
    pub fn error(&self) -> DbError {
        DbError::Corrupt { table: self.table.suffix(), key: self.key(), detail: self.detail.clone() }
    }
}

/// A list whose unreadable rows do not hide the others.
#[derive(Clone, Debug)]
pub struct Listed<R> {
    pub rows: Vec<R>,
    pub unreadable: Vec<Unreadable>,
}

impl<R> Default for Listed<R> {
    fn default() -> Self {
        Self { rows: Vec::new(), unreadable: Vec::new() }
    }
}

impl<R> Listed<R> {
    pub(crate) fn add(&mut self, table: Table, row: &Row)
    where
        R: DeserializeOwned,
    {
        match from_item(table, row) {
            Ok(read) => self.rows.push(read),
            Err(DbError::Corrupt { detail, .. }) => {
                self.unreadable.push(Unreadable { table, detail, row: row.clone() });
            }
            // Reading a row as a record makes no other error.
            Err(other) => self.unreadable.push(Unreadable { table, detail: other.to_string(), row: row.clone() }),
        }
    }

    pub(crate) fn of<'r>(table: Table, rows: impl IntoIterator<Item = &'r Row>) -> Self
    where
        R: DeserializeOwned,
    {
        let mut listed = Self::default();
        rows.into_iter().for_each(|row| listed.add(table, row));
        listed
    }

    /// The rows, if all of them can be read.
    pub fn all(self) -> Result<Vec<R>, DbError> {
        match self.unreadable.first() {
            Some(first) => Err(first.error()),
            None => Ok(self.rows),
        }
    }

    /// Both lists together.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.rows.extend(other.rows);
        self.unreadable.extend(other.unreadable);
        self
    }
}
