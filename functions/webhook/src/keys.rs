//! The keys of the signatures, read again while the process runs.
//!
//! Guarantees: after a change of the secret every process signs with the new key within [`MAX_AGE`]; it signs with the key
//! before it too, so that the receiver can take the new key at any time later. A secret that cannot be read leaves the keys as they
//! are.
//! Does not: make or store keys.

use async_trait::async_trait;
use model::time::{Span, Time};
use model::webhook::SigningKey;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, PoisonError};

/// The age at which keys are read again.
pub const MAX_AGE: Span = Span::from_s(300);

/// Where keys come from.
#[async_trait]
pub trait KeySecret: Debug + Send + Sync {
    /// Reads the keys, the current one first. The error says why they cannot be read.
    async fn read(&self) -> Result<Vec<SigningKey>, String>;
}

/// The keys of a process.
#[derive(Debug)]
pub struct Keys {
    secret: Option<Arc<dyn KeySecret>>,
    known: Mutex<(Time, Vec<SigningKey>)>,
}

impl Keys {
    /// One key that never changes.
    pub fn fixed(key: SigningKey) -> Self {
        Self { secret: None, known: Mutex::new((Time::from_ms(0), vec![key])) }
    }

    /// Reads the keys from this secret, now and again when they are [`MAX_AGE`] old.
    pub async fn of_secret(secret: Arc<dyn KeySecret>, now: Time) -> Result<Self, String> {
        let keys = secret.read().await?;
        Ok(Self { secret: Some(secret), known: Mutex::new((now, keys)) })
    }

    /// The keys, the current one first.
    pub async fn current(&self, now: Time) -> Vec<SigningKey> {
        let (secret, known) = {
            let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
            let old = now.since(known.0) >= MAX_AGE;
            if old {
                // The time is noted before the call, so that events at the same time do not read the secret too.
                known.0 = now;
            }
            (self.secret.as_ref().filter(|_| old), known.1.clone())
        };
        let Some(secret) = secret else { return known };
        match secret.read().await {
            Ok(keys) => {
                self.known.lock().unwrap_or_else(PoisonError::into_inner).1.clone_from(&keys);
                keys
            }
            Err(error) => {
                tracing::warn!(error, "the key of the webhook cannot be read again: the known one is used");
                known
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::fixtures::at;

    /// Gives the key of this number; none at 0.
    #[derive(Debug, Default)]
    struct Numbered(Mutex<usize>);

    fn key(n: usize) -> SigningKey {
        ["aB3x", "aB3y", "aB3z"][n].repeat(16).parse().unwrap()
    }

    #[async_trait]
    impl KeySecret for Numbered {
        async fn read(&self) -> Result<Vec<SigningKey>, String> {
            match *self.0.lock().unwrap() {
                0 => Err("away".to_owned()),
                n => Ok((0..n).map(key).collect()),
            }
        }
    }

    #[tokio::test]
    async fn keys_are_read_again_when_they_are_old_and_stay_if_they_cannot_be() {
        let secret = Arc::new(Numbered::default());
        assert_eq!(Keys::of_secret(secret.clone(), at(0)).await.unwrap_err(), "away");
        *secret.0.lock().unwrap() = 1;
        let keys = Keys::of_secret(secret.clone(), at(0)).await.unwrap();
        *secret.0.lock().unwrap() = 2;
        let count = async |s: i64| keys.current(at(s)).await.len();
        assert_eq!((count(299).await, count(300).await, count(301).await), (1, 2, 2));
        *secret.0.lock().unwrap() = 0;
        assert_eq!((count(600).await, count(601).await), (2, 2));
        assert_eq!(Keys::fixed(key(0)).current(at(9000)).await.len(), 1);
    }
}
