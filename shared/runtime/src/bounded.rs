//! Ends calls of the database before the run must end.
//!
//! The SDK gives a call up to 20 s. A run that has less time left would be cut off by Lambda while it waits, and could
//! neither answer nor say what went wrong.
//!
//! Guarantees: within [`until`], a call of [`Bounded`] lasts at most half of the time that is left. So the run always
//! has time to say what went wrong. A call that is given up is an error that says so, and it is not known whether a
//! write happened. Without [`until`], calls are not bounded.
//! Does not: end anything else that waits.

use async_trait::async_trait;
use std::future::Future;
use store::{Answer, Db, DbError, Item, Key, Page, PageKey, Query, Row, Scan, Table, Write, WriteError};
use tokio::time::{Instant, timeout_at};

tokio::task_local! {
    /// When the run of this task must end.
    static END: Instant;
}

/// Carries out a run that must end at this time.
pub async fn until<T>(end: Instant, work: impl Future<Output = T>) -> T {
    END.scope(end, work).await
}

/// A database whose calls end in time.
#[derive(Debug)]
pub struct Bounded<D>(pub D);

async fn in_time<T, E: From<DbError>>(
    operation: &'static str,
    call: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    let Ok(end) = END.try_with(|end| *end) else { return call.await };
    let now = Instant::now();
    let detail = || "no answer while the run had time to wait".to_owned();
    let too_late = |_| Err(DbError::Unreachable { operation, detail: detail() }.into());
    timeout_at(now + end.saturating_duration_since(now) / 2, call).await.unwrap_or_else(too_late)
}

#[async_trait]
impl<D: Db> Db for Bounded<D> {
    async fn get(&self, key: &Key) -> Result<Option<Row>, DbError> {
        in_time("GetItem", self.0.get(key)).await
    }

    async fn get_many(&self, keys: &[Key]) -> Result<Vec<Row>, DbError> {
        in_time("BatchGetItem", self.0.get_many(keys)).await
    }

    async fn query(&self, query: &Query, from: Option<PageKey>) -> Result<Page, DbError> {
        in_time("Query", self.0.query(query, from)).await
    }

    async fn scan(&self, scan: &Scan, from: Option<PageKey>) -> Result<Page, DbError> {
        in_time("Scan", self.0.scan(scan, from)).await
    }

    async fn write(&self, write: &Write, answer: Answer) -> Result<Option<Row>, WriteError> {
        in_time("a single write", self.0.write(write, answer)).await
    }

    async fn transact(&self, writes: &[Write]) -> Result<(), WriteError> {
        in_time("TransactWriteItems", self.0.transact(writes)).await
    }

    async fn put_new(&self, table: Table, rows: &[Item]) -> Result<(), DbError> {
        in_time("BatchWriteItem", self.0.put_new(table, rows)).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::fixtures;
    use std::future::pending;
    use std::sync::Arc;
    use std::time::Duration;
    use store::Store;

    /// A database that never answers.
    struct Silent;

    #[async_trait]
    impl Db for Silent {
        async fn get(&self, _: &Key) -> Result<Option<Row>, DbError> {
            pending().await
        }
        async fn get_many(&self, _: &[Key]) -> Result<Vec<Row>, DbError> {
            pending().await
        }
        async fn query(&self, _: &Query, _: Option<PageKey>) -> Result<Page, DbError> {
            pending().await
        }
        async fn scan(&self, _: &Scan, _: Option<PageKey>) -> Result<Page, DbError> {
            pending().await
        }
        async fn write(&self, _: &Write, _: Answer) -> Result<Option<Row>, WriteError> {
            pending().await
        }
        async fn transact(&self, _: &[Write]) -> Result<(), WriteError> {
            pending().await
        }
        async fn put_new(&self, _: Table, _: &[Item]) -> Result<(), DbError> {
            pending().await
        }
    }

    #[tokio::test(start_paused = true)]
    async fn calls_that_follow_each_other_leave_the_run_time_to_say_what_went_wrong() {
        let began = Instant::now();
        let store = Store::new(Arc::new(Bounded(Silent)));
        let run = until(began + Duration::from_secs(12), async {
            let control = store.control().await.unwrap_err();
            (control.to_string(), store.node(fixtures::slot(0)).await.unwrap_err().to_string())
        });
        let (control, node) = run.await;
        for error in [control, node] {
            assert!(error.contains("no answer while the run had time to wait"), "{error}");
        }
        assert_eq!(began.elapsed(), Duration::from_secs(6 + 3));
    }
}
