//! Measures how long the observation needs for the list of waiting jobs after DynamoDB has answered: from pages of rows
//! to jobs in the order of the queue, each job once.
//!
//! `cargo bench --workspace --bench queue`. Machines are noisy: compare the sizes within one run, by the exponent of
//! the growth.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark may fail loudly")]

#[path = "../../../tests/growth.rs"]
mod growth;

use async_trait::async_trait;
use model::fixtures::{self, at};
use model::{Job, JobSpec};
use std::sync::Arc;
use store::{Answer, Db, DbError, Item, Key, Page, PageKey, Query, Row, Scan, Store, Table, Write, WriteError};

/// About as many jobs as DynamoDB puts into one page of 1 MB.
const PAGE: usize = 4000;

/// Answers each query with the same rows, page by page. There is nothing else to read, and nothing is written.
struct Rows(Vec<Row>);

#[async_trait]
impl Db for Rows {
    async fn get(&self, _: &Key) -> Result<Option<Row>, DbError> {
        Ok(None)
    }

    async fn get_many(&self, _: &[Key]) -> Result<Vec<Row>, DbError> {
        Ok(Vec::new())
    }

    async fn query(&self, _: &Query, from: Option<PageKey>) -> Result<Page, DbError> {
        let page = from.and_then(|key| key.get("page").and_then(|p| p.as_n().ok()).and_then(|n| n.parse().ok()));
        let page: usize = page.unwrap_or(0);
        let mut pages = self.0.chunks(PAGE).skip(page);
        let items = pages.next().unwrap_or_default().to_vec();
        let next = pages.next().map(|_| PageKey::from([("page".to_owned(), number(page + 1))]));
        Ok(Page { items, next })
    }

    async fn scan(&self, _: &Scan, _: Option<PageKey>) -> Result<Page, DbError> {
        Ok(Page::default())
    }

    async fn write(&self, _: &Write, _: Answer) -> Result<Option<Row>, WriteError> {
        Err(WriteError::CONFLICT)
    }

    async fn transact(&self, _: &[Write]) -> Result<(), WriteError> {
        Err(WriteError::CONFLICT)
    }

    async fn put_new(&self, _: Table, _: &[Item]) -> Result<(), DbError> {
        Ok(())
    }
}

fn number(n: usize) -> aws_sdk_dynamodb::types::AttributeValue {
    aws_sdk_dynamodb::types::AttributeValue::N(n.to_string())
}

/// A store with this many queued jobs. Each query of the queue answers with all of them, so each job is read several
/// times.
fn queued(jobs: u32) -> Store {
    let spec = JobSpec::running(["true"]);
    let job = |n| Job::submit(fixtures::job_id(n), spec.clone(), at(0)).unwrap();
    Store::new(Arc::new(Rows((0..jobs).map(|n| Row::from(store::row(&job(n)))).collect())))
}

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    growth::measure("queued jobs", &[2_000, 20_000, 200_000], queued, |store| {
        runtime.block_on(store.queue_listed(usize::MAX)).unwrap().jobs.len()
    });
}
