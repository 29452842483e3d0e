//! Reading handles: those of a node, and those that are due.
//!
//! Guarantees: each row is read consistently, also where an index names it; a run reads a bounded number of due handles.
//! Does not: decide what becomes of a handle, or change one.

use crate::db::{DbError, PageKey, Query};
use crate::listed::Listed;
use crate::rows::{handle_key, n, s};
use crate::store::Store;
use crate::tables::{DUE, Table};
use crate::write::Key;
use model::Handle;
use model::ids::NodeId;
use model::time::{Span, Time};

/// The most handles that one run of sweep-dispatch looks at. To read more takes so long that the run's decisions would be too
/// old to be carried out, and then no run would ever make the number less.
const MOST_DUE: usize = 20_000;

/// The keys of handles that are due.
struct DueKeys {
    keys: Vec<Key>,
    /// When the first of them was due.
    oldest_at: Option<Time>,
    /// Whether more are due.
    more: bool,
}

impl Store {
    /// Every handle of a node, read consistently.
    pub async fn handles_of(&self, node: NodeId) -> Result<Listed<Handle>, DbError> {
        self.query(&Query::of(Table::Handles, None, s(node))).await
    }

    /// At most `most` handles of a node whose names are behind `after` and at most `up_to`, in the order of their names.
    /// Read consistently. The second value is the last name that was read, if there may be more.
    pub async fn handles_between(
        &self,
        node: NodeId,
        after: Option<&str>,
        up_to: Option<&str>,
        most: usize,
    ) -> Result<(Listed<Handle>, Option<String>), DbError> {
        let query = Query { range_at_most: up_to.map(s), ..Query::of(Table::Handles, None, s(node)) };
        let (mut listed, mut count) = (Listed::default(), 0);
        // A list may begin behind a row that does not exist.
        let mut from = after.map(|after| PageKey::from([("node_id".into(), s(node)), ("handle".into(), s(after))]));
        loop {
            let page = self.db.query(&query, from).await?;
            count += page.items.len();
            page.items.iter().for_each(|row| listed.add(Table::Handles, row));
            let last = page.items.last().and_then(|row| row.get("handle")?.as_s().ok().cloned());
            from = page.next;
            match (&from, last) {
                (None, _) => return Ok((listed, None)),
                (Some(_), Some(last)) if count >= most => return Ok((listed, Some(last))),
                (Some(_), _) => {}
            }
        }
    }

    /// One handle, read consistently.
    pub async fn handle(&self, node: NodeId, handle: &str) -> Result<Option<Handle>, DbError> {
        self.read(&handle_key(node, handle)).await
    }

    /// The handles that are due, those that wait longest first, and not more than one run can decide about. The index names
    /// them, and then each row is read consistently.
    ///
    /// If more are due, every second run begins at another place. Otherwise rows that nobody can change now (those of a node
    /// whose record was quarantined, for example) would hide the others for ever.
    pub async fn handles_due(&self, now: Time) -> Result<Listed<Handle>, DbError> {
        let first = self.keys_due(now, None).await?;
        let keys = match (&first.oldest_at, first.more) {
            (Some(oldest), true) if self.rng().between(0.0, 1.0) < 0.5 => {
                let span = now.since(*oldest).as_ms().max(0) as f64;
                let from = *oldest + Span::from_ms(self.rng().between(0.0, span) as i64);
                self.keys_due(now, Some(from)).await?.keys
            }
            _ => first.keys,
        };
        Ok(Listed::of(Table::Handles, &self.get_each(keys).await?))
    }

    /// The keys of the handles that are due, from this time on.
    async fn keys_due(&self, now: Time, from: Option<Time>) -> Result<DueKeys, DbError> {
        let range_at_most = Some(n(now.as_ms()));
        let query = Query { range_at_most, ..Query::of(Table::Handles, Some(DUE), s("due")) };
        let mut found = DueKeys { keys: Vec::new(), oldest_at: None, more: false };
        // A list may begin behind a row that does not exist.
        let mut from = from.map(|at| {
            let place = [("due", s("due")), ("due_at", n(at.as_ms())), ("node_id", s("0")), ("handle", s("0"))];
            PageKey::from(place.map(|(name, value)| (name.to_owned(), value)))
        });
        loop {
            let page = self.db.query(&query, from).await?;
            for item in &page.items {
                if let (Some(hash), Some(range)) = (item.get("node_id"), item.get("handle")) {
                    found.keys.push(Key { table: Table::Handles, hash: hash.clone(), range: Some(range.clone()) });
                }
                let at = item.get("due_at").and_then(|at| at.as_n().ok()?.parse().ok()).map(Time::from_ms);
                found.oldest_at = found.oldest_at.or(at);
            }
            from = page.next;
            if from.is_none() || found.keys.len() >= MOST_DUE {
                break;
            }
        }
        found.more = from.is_some() || found.keys.len() > MOST_DUE;
        found.keys.truncate(MOST_DUE);
        Ok(found)
    }
}
