//! The tables for a reader whose permissions may hide the environments of jobs.
//!
//! Flow: a read asks for whole rows. If DynamoDB denies it, this read and all later ones leave out the environments.
//! Guarantees: a reader who may see environments sees them; the others see everything else, and are told once.
//! Does not: hide anything. The permissions do, and DynamoDB enforces them.

use async_trait::async_trait;
use std::sync::atomic::{AtomicBool, Ordering};
use store::{Answer, Db, DbError, Dynamo, Item, Key, Page, PageKey, Query, Row, Scan, Table, Write, WriteError};

#[derive(Debug)]
pub struct HiddenEnv {
    whole: Dynamo,
    without_env: Dynamo,
    denied: AtomicBool,
}

impl HiddenEnv {
    pub fn new(dynamo: Dynamo) -> Self {
        Self { without_env: dynamo.without_env(), whole: dynamo, denied: AtomicBool::new(false) }
    }

    /// Reads whole rows. If DynamoDB denies this read or denied an earlier one, reads without environments, and warns once.
    async fn read<T>(
        &self,
        table: Table,
        whole: impl Future<Output = Result<T, DbError>> + Send,
        without_env: impl Future<Output = Result<T, DbError>> + Send,
    ) -> Result<T, DbError> {
        let hides = table.without_env().is_some();
        if !hides || !self.denied.load(Ordering::Relaxed) {
            match whole.await {
                Err(DbError::Refused { code, .. }) if hides && code == "AccessDeniedException" => {}
                other => return other,
            }
        }
        let read = without_env.await;
        if read.is_ok() && !self.denied.swap(true, Ordering::Relaxed) {
            tracing::warn!("your permissions hide the environments of jobs: they are not shown");
        }
        read
    }
}

#[async_trait]
impl Db for HiddenEnv {
    async fn get(&self, key: &Key) -> Result<Option<Row>, DbError> {
        self.read(key.table, self.whole.get(key), self.without_env.get(key)).await
    }
    async fn get_many(&self, keys: &[Key]) -> Result<Vec<Row>, DbError> {
        let Some(first) = keys.first() else { return Ok(Vec::new()) };
        self.read(first.table, self.whole.get_many(keys), self.without_env.get_many(keys)).await
    }
    async fn query(&self, query: &Query, from: Option<PageKey>) -> Result<Page, DbError> {
        self.whole.query(query, from).await
    }
    async fn scan(&self, scan: &Scan, from: Option<PageKey>) -> Result<Page, DbError> {
        if scan.index.is_some() {
            return self.whole.scan(scan, from).await;
        }
        self.read(scan.table, self.whole.scan(scan, from.clone()), self.without_env.scan(scan, from)).await
    }
    async fn write(&self, write: &Write, answer: Answer) -> Result<Option<Row>, WriteError> {
        self.whole.write(write, answer).await
    }
    async fn transact(&self, writes: &[Write]) -> Result<(), WriteError> {
        self.whole.transact(writes).await
    }
    async fn put_new(&self, table: Table, rows: &[Item]) -> Result<(), DbError> {
        self.whole.put_new(table, rows).await
    }
}
