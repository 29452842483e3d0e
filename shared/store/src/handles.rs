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
use model::Handle;
use model::ids::NodeId;
use model::time::{Span, Time};

/// The most handles that one run of sweep-dispatch looks at. Reading more takes so long that the run's decisions are
/// too old to be carried out, and the number would never go down.
const MOST_DUE: usize = 20_000;

impl Store {
    /// Every handle of a node, read consistently.
    pub async fn handles_of(&self, node: NodeId) -> Result<Listed<Handle>, DbError> {
        self.query(&Query::of(Table::Handles, None, s(node))).await
    }

    /// At most `most` handles of a node, in the order of their names, read consistently. The second value is the last name that was
    /// read, if there may be more.
    pub async fn first_handles(&self, node: NodeId, most: usize) -> Result<(Listed<Handle>, Option<String>), DbError> {
        let (rows, rest) = self.rows(&Query::of(Table::Handles, None, s(node)), None, most).await?;
        let last = rest.and_then(|_| rows.last()?.get("handle")?.as_s().ok().cloned());
        Ok((Listed::of(Table::Handles, &rows), last))
    }

    /// One handle, read consistently.
    pub async fn handle(&self, node: NodeId, handle: &str) -> Result<Option<Handle>, DbError> {
        self.read(&handle_key(node, handle)).await
    }

    /// The handles that are due, those that wait longest first, at most `MOST_DUE`. The index names them, and then each
    /// row is read consistently.
    ///
    /// If more are due, about every second run begins at another place. Otherwise rows that nobody can change now
    /// (those of a node whose record was quarantined, for example) would hide the others for ever.
    pub async fn handles_due(&self, now: Time) -> Result<Listed<Handle>, DbError> {
        let (mut due, more) = self.due_from(None, now).await?;
        let due_at = |row: &Row| row.get("due_at")?.as_n().ok()?.parse().ok().map(Time::from_ms);
        if let Some(oldest_at) = due.first().and_then(due_at).filter(|_| more)
            && self.rng().between(0.0, 1.0) < 0.5
        {
            let span = now.since(oldest_at).as_ms().max(0) as f64;
            let from = oldest_at + Span::from_ms(self.rng().between(0.0, span) as i64);
            (due, _) = self.due_from(Some(from), now).await?;
        }
        let key = |row: &Row| {
            let (hash, range) = (row.get("node_id")?.clone(), row.get("handle")?.clone());
            Some(Key { table: Table::Handles, hash, range: Some(range) })
        };
        Ok(Listed::of(Table::Handles, &self.get_each(due.iter().filter_map(key)).await?))
    }

    /// The index's rows of the handles that are due at `from` or later, and whether more are due.
    async fn due_from(&self, from: Option<Time>, now: Time) -> Result<(Vec<Row>, bool), DbError> {
        let (range_at_least, range_at_most) = (from.map(|at| n(at.as_ms())), Some(n(now.as_ms())));
        let query = Query { range_at_least, range_at_most, ..Query::of(Table::Handles, Some(DUE), s("due")) };
        let (mut rows, rest) = self.rows(&query, None, MOST_DUE).await?;
        let more = rest.is_some() || rows.len() > MOST_DUE;
        rows.truncate(MOST_DUE);
        Ok((rows, more))
    }
}
