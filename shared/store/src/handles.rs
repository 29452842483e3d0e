//! Reads handles: those of a node, and those that are due.
//!
//! Guarantees: each row is read consistently, also if an index named it; a run reads a bounded number of due handles.
//! Does not: decide what becomes of a handle, or change one.

use crate::db::{DbError, Query, Row};
use crate::rows::listed::Listed;
use crate::rows::{handle_key, n, s};
use crate::store::Store;
use crate::tables::{DUE, Table};
use crate::write::Key;
use model::{Handle, NodeId, Time};

/// The most handles that one run of sweep-dispatch looks at. Reading more takes so long that the run's decisions are
/// too old to be carried out, and the number would never go down.
const MOST_DUE: usize = 20_000;

impl Store {
    /// Every handle of a node, read consistently.
    pub async fn handles_of(&self, node: NodeId) -> Result<Listed<Handle>, DbError> {
        self.query(&Query::of(Table::Handles, None, s(node))).await
    }

    /// At most about `most` handles of a node, read consistently, and whether there are more.
    pub async fn first_handles(&self, node: NodeId, most: usize) -> Result<(Listed<Handle>, bool), DbError> {
        let (rows, rest) = self.rows(&Query::of(Table::Handles, None, s(node)), None, most).await?;
        Ok((Listed::of(Table::Handles, &rows), rest.is_some()))
    }

    /// One handle, read consistently.
    pub async fn handle(&self, node: NodeId, handle: &str) -> Result<Option<Handle>, DbError> {
        self.read(&handle_key(node, handle)).await
    }

    /// The handles that are due, those that wait longest first, at most `MOST_DUE`. The index names them, and then each
    /// row is read consistently. Those that a run leaves alone, because the record of their node cannot be read, stay the first.
    pub async fn handles_due(&self, now: Time) -> Result<Listed<Handle>, DbError> {
        let range_at_most = Some(n(now.as_ms()));
        let query = Query { range_at_most, ..Query::of(Table::Handles, Some(DUE), s("due")) };
        let (due, _) = self.rows(&query, None, MOST_DUE).await?;
        let key = |row: &Row| {
            let (hash, range) = (row.get("node_id")?.clone(), row.get("handle")?.clone());
            Some(Key { table: Table::Handles, hash, range: Some(range) })
        };
        Ok(Listed::of(Table::Handles, &self.get_each(due.iter().take(MOST_DUE).filter_map(key)).await?))
    }
}
