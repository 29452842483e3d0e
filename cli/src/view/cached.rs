//! A value that was read from the cluster, kept for a while.
//!
//! Guarantees: only one caller reads at a time, and reads take only a small part of the time. During a read, the other
//! callers get the old value, unless it is much too old.
//! Does not: read by itself. Nothing is read without a caller.
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// During a read, a value is shown up to this many times the time for which it is fresh.
const MUCH_TOO_OLD: u32 = 10;

pub(crate) struct Cached<T> {
    last: Mutex<Option<LastRead<T>>>,
    reading: tokio::sync::Mutex<()>,
    /// The least time for which a value is fresh.
    age: Duration,
    /// A value is fresh at least for this many times the time that its read took.
    times: u32,
}

struct LastRead<T> {
    value: Arc<T>,
    read_at: Instant,
    fresh_for: Duration,
}

impl<T> Cached<T> {
    pub(crate) fn new(age: Duration, times: u32) -> Self {
        Self { last: Mutex::new(None), reading: tokio::sync::Mutex::default(), age, times }
    }

    /// The value, if its age is below `times` times the time for which it is fresh.
    fn younger(&self, times: u32) -> Option<Arc<T>> {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh = last.as_ref().filter(|last| last.read_at.elapsed() < last.fresh_for.saturating_mul(times));
        fresh.map(|last| Arc::clone(&last.value))
    }

    /// The value. If it is too old, `read` gives a new one; otherwise `read` is not begun.
    pub(crate) async fn get<E>(&self, read: impl Future<Output = Result<T, E>>) -> Result<Arc<T>, E> {
        if let Some(value) = self.younger(1) {
            return Ok(value);
        }
        let _reading = match self.reading.try_lock() {
            Ok(reading) => reading,
            Err(_) => match self.younger(MUCH_TOO_OLD) {
                Some(value) => return Ok(value),
                None => self.reading.lock().await,
            },
        };
        // Another caller may have read the value while this one waited.
        if let Some(value) = self.younger(1) {
            return Ok(value);
        }
        let began = Instant::now();
        let value = Arc::new(read.await?);
        let fresh_for = self.age.max(began.elapsed().saturating_mul(self.times));
        let last = LastRead { value: Arc::clone(&value), read_at: Instant::now(), fresh_for };
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(last);
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
    async fn a_slow_read_is_rare_and_keeps_nobody_waiting() {
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
        assert_eq!((*first.unwrap(), *second.unwrap()), (3, 1), "the second sees what is there");
    }
}
