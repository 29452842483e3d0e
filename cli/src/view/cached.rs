//! A value that was read from the cluster, kept for a while.
//!
//! Guarantees: only one caller reads at a time, the others wait for its value, and reads take only a small part of the time.
//! Does not: read by itself. Nothing is read without a caller.

use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::Instant;

pub(crate) struct Cached<T> {
    /// The value, and until when it is fresh.
    last: Mutex<Option<(Arc<T>, Instant)>>,
    /// The least time for which a value is fresh.
    age: Duration,
    /// A value is fresh at least for this many times the time that its read took.
    times: u32,
}

impl<T> Cached<T> {
    pub(crate) fn new(age: Duration, times: u32) -> Self {
        Self { last: Mutex::new(None), age, times }
    }

    /// The value. If it is too old, `read` gives a new one; otherwise `read` is not begun.
    pub(crate) async fn get<E>(&self, read: impl Future<Output = Result<T, E>>) -> Result<Arc<T>, E> {
        let mut last = self.last.lock().await;
        let began = Instant::now();
        if let Some((value, _)) = last.as_ref().filter(|(_, fresh_until)| began < *fresh_until) {
            return Ok(Arc::clone(value));
        }
        let value = Arc::new(read.await?);
        let fresh_for = self.age.max(began.elapsed().saturating_mul(self.times));
        *last = Some((Arc::clone(&value), Instant::now() + fresh_for));
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn it_is_read_again_only_when_it_is_old() {
        let cached = Cached::new(Duration::from_secs(2), 20);
        let get = async |n: u32| *cached.get(async move { Ok::<_, ()>(n) }).await.unwrap();
        assert_eq!(get(1).await, 1);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(get(2).await, 1);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(get(3).await, 3);
        tokio::time::advance(Duration::from_secs(9)).await;
        assert!(cached.get(async { Err::<u32, _>("no") }).await.is_err(), "an old value hides no error");
        assert_eq!(get(4).await, 4);
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_read_is_rare_and_made_once_for_all_who_wait() {
        let cached = Cached::new(Duration::from_secs(2), 20);
        let slow = |n: u32| {
            cached.get(async move {
                tokio::time::sleep(Duration::from_secs(3)).await;
                Ok::<_, ()>(n)
            })
        };
        assert_eq!(*slow(1).await.unwrap(), 1);
        tokio::time::advance(Duration::from_secs(59)).await;
        assert_eq!(*slow(2).await.unwrap(), 1, "3 s of reading are enough for a minute");
        tokio::time::advance(Duration::from_secs(2)).await;
        let (first, second) = tokio::join!(slow(3), slow(4));
        assert_eq!((*first.unwrap(), *second.unwrap()), (3, 3));
    }
}
