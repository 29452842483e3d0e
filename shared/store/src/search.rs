//! Finds jobs: the newest ones, those with a name, and those with a part of an id.
//!
//! Guarantees: the cost of a list depends on its length and not on the number of stored jobs; only a search by the end
//! of an id reads all ids of one of 32 parts. Each list is in order, the newest job first, without a gap.
//! Does not: read the jobs; see more than the indexes do, which may be behind the table; cut a list exactly. `most` is
//! a rough number: a list may be several times as long.

use crate::db::{DbError, Page, PageKey, Query, Row};
use crate::queue::share;
use crate::rows::{TAILS, named, s};
use crate::store::Store;
use crate::tables::{IDS, Index, NAMES, Table};
use aws_sdk_dynamodb::types::AttributeValue;
use model::{JobId, Time};
use std::cmp::Reverse;

/// Sorts after every character of a name or an id.
const LAST: char = char::MAX;

/// Sorts after every id: the first character of a ULID is at most 7.
const BEHIND_IDS: &str = "8";

/// Ids of jobs, the newest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobIds {
    pub ids: Vec<JobId>,
    /// Whether there may be older ones.
    pub more: bool,
}

impl Store {
    /// The newest jobs that are older than `below` and were not submitted before `since`, about `most` of them.
    pub async fn newest(&self, below: Option<JobId>, since: Time, most: usize) -> Result<JobIds, DbError> {
        let first = JobId::new(model::ids::Ulid::from_parts(since.as_ms().max(0).unsigned_abs(), 0));
        let last = below.map_or_else(|| LAST.to_string(), |id| id.to_string());
        let range = Range { index: IDS, first: first.to_string(), last };
        Ok(self.newest_in_range(&range, most).await?.below(below))
    }

    /// The newest jobs whose ids begin with `beginning`, about `most` of them.
    pub async fn with_beginning(&self, beginning: &str, most: usize) -> Result<JobIds, DbError> {
        let range = Range { index: IDS, first: beginning.to_owned(), last: format!("{beginning}{LAST}") };
        self.newest_in_range(&range, most).await
    }

    /// The newest jobs with this name that are older than `below`, about `most` of them.
    pub async fn named(&self, name: &str, below: Option<JobId>, most: usize) -> Result<JobIds, DbError> {
        let last = below.map_or_else(|| BEHIND_IDS.to_owned(), |id| id.to_string());
        let range = Range { index: NAMES, first: named(name, ""), last: named(name, last) };
        Ok(self.newest_in_range(&range, most).await?.below(below))
    }

    /// The jobs whose names begin with `beginning`, about `most` of them. If there are more, those whose names sort
    /// last.
    pub async fn with_names_beginning(&self, beginning: &str, most: usize) -> Result<JobIds, DbError> {
        let range = Range { index: NAMES, first: beginning.to_owned(), last: format!("{beginning}{LAST}") };
        let pages = self.pages(&range, most).await?;
        let more = pages.iter().any(|page| page.next.is_some());
        Ok(JobIds { ids: ids(pages.iter().flat_map(|page| &page.items)), more })
    }

    /// The jobs whose ids end with `end`. Reads all ids with the same last character.
    pub async fn with_end(&self, end: &str) -> Result<Vec<JobId>, DbError> {
        let Some(tail) = end.chars().next_back() else { return Ok(Vec::new()) };
        let (rows, _) = self.rows(&query(IDS, s(tail), None, None), None, usize::MAX).await?;
        let fits = |row: &&Row| row.get("job_id").and_then(|id| id.as_s().ok()).is_some_and(|id| id.ends_with(end));
        Ok(ids(rows.iter().filter(fits)))
    }

    async fn newest_in_range(&self, range: &Range, most: usize) -> Result<JobIds, DbError> {
        // DynamoDB refuses a range that ends before it begins.
        if range.first > range.last {
            return Ok(JobIds::default());
        }
        let pages = self.pages(range, most).await?;
        // A job that is older than `known` may have a newer one on a page that was not read.
        let cut = pages.iter().filter_map(|page| page.next.as_ref()?.get("job_id")?.as_s().ok()?.parse::<JobId>().ok());
        let known = cut.max();
        let mut ids = ids(pages.iter().flat_map(|page| &page.items).filter(|row| range.takes(row)));
        ids.retain(|id| known.is_none_or(|known| *id >= known));
        Ok(JobIds { ids, more: known.is_some() })
    }

    /// The first page of each of the 32 parts.
    async fn pages(&self, range: &Range, most: usize) -> Result<Vec<Page>, DbError> {
        let limit = i32::try_from(share(most, TAILS.len())).ok();
        let pages = TAILS.chars().map(|tail| async move {
            let asked = query(range.index, s(tail), Some((&range.first, &range.last)), limit);
            self.db.query(&asked, None::<PageKey>).await
        });
        futures::future::try_join_all(pages).await
    }
}

impl JobIds {
    /// Without the job `id`: a range includes its bounds, and the list begins behind this job.
    fn below(mut self, id: Option<JobId>) -> Self {
        self.ids.retain(|found| Some(*found) != id);
        self
    }
}

/// A range of keys of an index. It includes both bounds.
struct Range {
    index: Index,
    first: String,
    last: String,
}

impl Range {
    /// Whether the caller asked for this row of the range. The name of another job may begin with the name and `#`.
    fn takes(&self, row: &Row) -> bool {
        let text = |name: &str| row.get(name).and_then(|value| value.as_s().ok());
        self.index.name != NAMES.name
            || text("named")
                .zip(text("job_id"))
                .is_some_and(|(named, id)| named.strip_suffix(id.as_str()) == Some(&self.first))
    }
}

fn query(index: Index, hash: AttributeValue, range: Option<(&String, &String)>, limit: Option<i32>) -> Query {
    let (first, last) = range.unzip();
    let (range_at_least, range_at_most) = (first.map(s), last.map(s));
    Query { range_at_least, range_at_most, newest_first: true, limit, ..Query::of(Table::Jobs, Some(index), hash) }
}

/// The ids of these rows, the newest first.
fn ids<'a>(rows: impl Iterator<Item = &'a Row>) -> Vec<JobId> {
    let mut ids: Vec<JobId> = rows.filter_map(|row| row.get("job_id")?.as_s().ok()?.parse().ok()).collect();
    ids.sort_by_key(|id| Reverse(*id));
    ids
}
