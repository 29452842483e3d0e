//! Runs blocking work on other threads, so that no loop waits for it.
//!
//! Guarantees: a panic of the work becomes an error, like one of the disk; work on the files of a job ends soon after nobody waits
//! for it any more.
//! Does not: limit how much work runs at the same time.

use files::{Allowance, MAX_ENTRIES};
use std::io::{Error, Result};

pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(Error::other)?
}

/// Work on the files of a job, with at most this many bytes. To end it, drop the future.
pub(crate) async fn on_files<T: Send + 'static>(
    bytes: u64,
    work: impl FnOnce(&mut Allowance) -> Result<T> + Send + 'static,
) -> Result<T> {
    let (mut allowance, _interest) = Allowance::new(bytes, MAX_ENTRIES);
    blocking(move || work(&mut allowance)).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    #[tokio::test]
    async fn work_that_nobody_waits_for_ends() {
        let (ended, end) = channel();
        let endless = on_files(1, move |allowance| {
            while allowance.take_bytes(0).is_ok() {
                std::thread::yield_now();
            }
            ended.send(()).map_err(Error::other)
        });
        assert!(tokio::time::timeout(Duration::from_millis(1), endless).await.is_err());
        end.recv_timeout(Duration::from_secs(60)).unwrap();
    }
}
