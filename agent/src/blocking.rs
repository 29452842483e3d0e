//! Work that blocks, beside the loops and not in them.
//!
//! Guarantees: if the work panics, that is an error like one of the disk.

use std::io::{Error, Result};

pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(Error::other)?
}
