//! The keys of node tokens, read again while the process runs.
//!
//! Guarantees: after a rotation every process uses the new key within its maximum age, and accepts tokens made with it within
//! [`MIN_AGE`]. Strangers cannot make a process read the secret more often than that. A secret that cannot be read leaves
//! the keys as they are.
//! Does not: make or store keys.

use async_trait::async_trait;
use model::auth::KeyRing;
use model::time::{Span, Time};
use std::fmt::Debug;
use std::sync::{Arc, Mutex, PoisonError};

/// The age at which keys are read again, if nothing else is said.
pub const MAX_AGE: Span = Span::from_s(300);

/// The age at which keys are read again for a token that they do not accept: it may be of a newer key.
pub const MIN_AGE: Span = Span::from_s(20);

/// Where keys come from.
#[async_trait]
pub trait KeySecret: Debug + Send + Sync {
    /// Reads the keys. The error says why they cannot be read.
    async fn read(&self) -> Result<KeyRing, String>;
}

/// The keys of a process. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Keys {
    secret: Option<Arc<dyn KeySecret>>,
    max_age: Span,
    known: Arc<Mutex<(Time, KeyRing)>>,
}

impl Keys {
    /// Keys that never change.
    pub fn fixed(ring: KeyRing) -> Self {
        Self { secret: None, max_age: MAX_AGE, known: Arc::new(Mutex::new((Time::from_ms(0), ring))) }
    }

    /// Reads the keys from this secret, now and again when they are `max_age` old.
    pub async fn of_secret(secret: Arc<dyn KeySecret>, max_age: Span, now: Time) -> Result<Self, String> {
        let ring = secret.read().await?;
        Ok(Self { secret: Some(secret), max_age, known: Arc::new(Mutex::new((now, ring))) })
    }

    /// The keys, at most the maximum age old.
    pub async fn ring(&self, now: Time) -> KeyRing {
        match self.read_if_older(self.max_age, now).await {
            Some(ring) => ring,
            None => self.known.lock().unwrap_or_else(PoisonError::into_inner).1.clone(),
        }
    }

    /// The keys, read again because a token was not accepted. `None` if they were read a moment ago.
    pub async fn ring_again(&self, now: Time) -> Option<KeyRing> {
        self.read_if_older(MIN_AGE.min(self.max_age), now).await
    }

    async fn read_if_older(&self, age: Span, now: Time) -> Option<KeyRing> {
        let secret = self.secret.as_ref()?;
        {
            let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
            if now.since(known.0) < age {
                return None;
            }
            // Before the call, so that other requests do not read too.
            known.0 = now;
        }
        match secret.read().await {
            Ok(ring) => {
                self.known.lock().unwrap_or_else(PoisonError::into_inner).1 = ring.clone();
                Some(ring)
            }
            Err(error) => {
                tracing::warn!(error, "the keys of node tokens cannot be read again: the known ones are used");
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Default)]
    struct Secret {
        version: Mutex<u32>,
        reads: Mutex<u32>,
    }

    #[async_trait]
    impl KeySecret for Secret {
        async fn read(&self) -> Result<KeyRing, String> {
            *self.reads.lock().unwrap() += 1;
            let version = *self.version.lock().unwrap();
            let key = format!("{version}:{}", "0f".repeat(32)).parse();
            key.map(|key| KeyRing::new(key, None)).map_err(|e: model::auth::BadKey| e.to_string())
        }
    }

    #[tokio::test]
    async fn keys_are_read_again_when_they_are_old_or_refuse_a_token() {
        let secret = Arc::new(Secret { version: Mutex::new(1), ..Secret::default() });
        let at = |s: i64| Time::from_ms(0) + Span::from_s(s);
        let keys = Keys::of_secret(secret.clone(), MAX_AGE, at(0)).await.unwrap();
        *secret.version.lock().unwrap() = 2;
        let version = async |s: i64| keys.ring(at(s)).await.version();
        assert_eq!((version(1).await, version(299).await), (1, 1));
        assert!(keys.ring_again(at(19)).await.is_none(), "a stranger makes no call");
        assert_eq!(keys.ring_again(at(20)).await.unwrap().version(), 2);
        assert_eq!((version(21).await, *secret.reads.lock().unwrap()), (2, 2));
        // The secret cannot be read: the known keys stay, and the next attempt waits.
        *secret.version.lock().unwrap() = 0;
        assert_eq!((version(400).await, version(401).await, *secret.reads.lock().unwrap()), (2, 2, 3));
    }
}
