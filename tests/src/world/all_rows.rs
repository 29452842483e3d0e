//! Lists of all rows, for what tests expect.

use async_trait::async_trait;
use model::{AllocSummary, Event};
use store::{DbError, Store};

/// All rows at once. The product reads them in parts, and goes on beside one that cannot be read.
#[async_trait]
pub trait AllRows {
    /// An error if one of them cannot be read.
    async fn live_allocs(&self) -> Result<Vec<AllocSummary>, DbError>;
    async fn events(&self) -> Result<Vec<Event>, DbError>;
}

#[async_trait]
impl AllRows for Store {
    async fn live_allocs(&self) -> Result<Vec<AllocSummary>, DbError> {
        self.live_allocs_listed(1).await?.all()
    }

    async fn events(&self) -> Result<Vec<Event>, DbError> {
        Ok(self.newest_events(usize::MAX).await?.rows)
    }
}
