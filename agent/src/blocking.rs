//! Runs blocking work on other threads, so that no loop waits for it.
//!
//! Guarantees: a panic of the work becomes an error, like one of the disk.

use std::io::{Error, Result};

pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(Error::other)?
}
