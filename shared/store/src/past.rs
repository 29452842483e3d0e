//! Reads the past by time: the allocs that ended, and the events, the newest first.
//!
//! Both are spread over several values of the hash key of an index, which are read at the same time.
//!
//! Guarantees: what a list costs depends on its length, not on what is stored besides.
//! Does not: see more than the indexes do, which may be behind the tables, or rows that cannot be read.

use crate::db::{DbError, Query, Row};
use crate::queue::share;
use crate::rows::listed::Listed;
use crate::rows::{EVENTS_SPREAD, OTHER_EVENTS, SLOT_EVENTS, TAILS, n, recent, s};
use crate::store::Store;
use crate::tables::{ENDED, RECENT, Table};
use aws_sdk_dynamodb::types::AttributeValue;
use futures::future::try_join_all;
use model::ids::Ulid;
use model::{EndedAlloc, Event, Time};
use serde::de::DeserializeOwned;

/// A part of the past, the newest first.
#[derive(Clone, Debug, PartialEq)]
pub struct Past<R> {
    pub rows: Vec<R>,
    /// Whether there are older ones that were left out.
    pub more: bool,
}

impl Store {
    /// The allocs that ended since then, at most `most`.
    pub async fn ended_allocs(&self, since: Time, most: usize) -> Result<Past<EndedAlloc>, DbError> {
        let range_at_least = Some(n(since.as_ms()));
        let part =
            |tail| Query { range_at_least: range_at_least.clone(), ..Query::of(Table::Allocs, Some(ENDED), s(tail)) };
        self.past(Table::Allocs, TAILS.chars().map(part).collect(), most).await
    }

    /// The events of slots since then, at most `most`.
    pub async fn slot_events(&self, since: Time, most: usize) -> Result<Past<Event>, DbError> {
        self.events_of(&[SLOT_EVENTS], since, most).await
    }

    /// The newest events, at most `most`.
    pub async fn newest_events(&self, most: usize) -> Result<Past<Event>, DbError> {
        self.events_of(&[SLOT_EVENTS, OTHER_EVENTS], Time::from_ms(0), most).await
    }

    async fn events_of(&self, kinds: &[&str], since: Time, most: usize) -> Result<Past<Event>, DbError> {
        let first = Ulid::from_parts(u64::try_from(since.as_ms()).unwrap_or(0), 0).to_string();
        let of_kind = |kind: &str| (0..EVENTS_SPREAD).map(|part| recent(kind, part)).collect::<Vec<_>>();
        let part =
            |recent| Query { range_at_least: Some(s(&first)), ..Query::of(Table::Events, Some(RECENT), s(recent)) };
        self.past(Table::Events, kinds.iter().flat_map(|kind| of_kind(kind)).map(part).collect(), most).await
    }

    async fn past<R: DeserializeOwned + Send>(
        &self,
        table: Table,
        parts: Vec<Query>,
        most: usize,
    ) -> Result<Past<R>, DbError> {
        let (rows, more) = self.newest_rows(&parts, most).await?;
        Ok(Past { rows: Listed::of(table, &rows).rows, more })
    }

    /// The newest rows of these parts of an index, by its range key: at most `most`, and whether there are more.
    pub(crate) async fn newest_rows(&self, parts: &[Query], most: usize) -> Result<(Vec<Row>, bool), DbError> {
        // The rows are usually spread evenly over the parts. If not, the next turn reads more.
        let mut each = share(most, parts.len());
        loop {
            let limit = i32::try_from(each).ok();
            let read = try_join_all(parts.iter().map(|part| async move {
                // A page may have fewer than `limit` rows: DynamoDB ends it at 1 MB.
                self.rows(&Query { newest_first: true, limit, ..part.clone() }, None, each).await
            }))
            .await?;
            let of_row = |row: &Row| place(parts.first()?, row);
            // A row that is older than `known` may have a newer one on a page that was not read.
            let cut = read.iter().filter(|(_, next)| next.is_some());
            let known = cut.filter_map(|(rows, _)| rows.last().and_then(of_row)).max();
            let all = read.into_iter().flat_map(|(rows, _)| rows).filter_map(|row| Some((of_row(&row)?, row)));
            let mut rows: Vec<(String, Row)> =
                all.filter(|(place, _)| known.as_ref().is_none_or(|known| place >= known)).collect();
            if known.is_none() || rows.len() >= most || each >= most {
                rows.sort_by(|(a, _), (b, _)| b.cmp(a));
                let more = known.is_some() || rows.len() > most;
                rows.truncate(most);
                return Ok((rows.into_iter().map(|(_, row)| row).collect(), more));
            }
            each = each.saturating_mul(4).min(most);
        }
    }
}

/// The range key of a row, as a text in its order.
fn place(part: &Query, row: &Row) -> Option<String> {
    match row.get(part.index?.key.range?.name)? {
        AttributeValue::S(text) => Some(text.clone()),
        AttributeValue::N(number) => Some(format!("{number:0>15}")),
        _ => None,
    }
}
