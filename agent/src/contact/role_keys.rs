//! The credentials of the instance's role.
//!
//! Guarantees: the credentials are fetched again before they end, and after a refusal. A wrong clock does not lock the node out:
//! the answer to a refused call says which time it is.
//! Does not: keep credentials on disk.

use super::imds::{Imds, ImdsError};
use aws_credential_types::Credentials;
use jiff::{SignedDuration, Timestamp};
use s3::Access;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime};
use tokio::sync::Mutex;

/// How long before their end credentials are fetched again. EC2 has new ones at least five minutes before.
const REFRESH: Duration = Duration::from_secs(240);

/// A smaller difference between the clocks is not corrected.
const SMALL_SKEW_S: i64 = 30;

pub struct RoleKeys {
    imds: Imds,
    cached: Mutex<Option<Credentials>>,
    /// The seconds by which AWS's clock is ahead of the node's.
    skew_s: AtomicI64,
}

impl RoleKeys {
    pub const fn new(imds: Imds) -> Self {
        Self { imds, cached: Mutex::const_new(None), skew_s: AtomicI64::new(0) }
    }

    /// Credentials that count at this time of the node's clock, and AWS's time.
    pub async fn access(&self, at: Timestamp) -> Result<Access, ImdsError> {
        let at = SystemTime::from(self.corrected(at));
        Ok(Access { credentials: self.at(at).await?, at })
    }

    /// AWS's time at this time of the node's clock.
    fn corrected(&self, at: Timestamp) -> Timestamp {
        let at = at.saturating_add(SignedDuration::from_secs(self.skew_s.load(Ordering::Relaxed)));
        at.unwrap_or(Timestamp::UNIX_EPOCH)
    }

    /// Credentials that count at this time of AWS's clock.
    async fn at(&self, at: SystemTime) -> Result<Credentials, ImdsError> {
        let mut cached = self.cached.lock().await;
        let left = |c: &Credentials| c.expiry().and_then(|end| end.duration_since(at).ok()).unwrap_or_default();
        if let Some(known) = cached.as_ref().filter(|c| left(c) > REFRESH) {
            return Ok(known.clone());
        }
        match (self.imds.credentials().await, cached.as_ref()) {
            (Ok(new), _) => {
                *cached = Some(new.clone());
                Ok(new)
            }
            // If the service does not answer, the old credentials are used until they end.
            (Err(_), Some(old)) if !left(old).is_zero() => Ok(old.clone()),
            (Err(error), _) => Err(error),
        }
    }

    /// Notes that AWS refused a signature. `at` is the time by the node's clock, and `date` is the time in AWS's answer. The
    /// next call then has new credentials and a corrected time.
    pub async fn refused(&self, date: Option<&str>, at: Timestamp) {
        *self.cached.lock().await = None;
        let Some(real) = date.and_then(|date| jiff::fmt::rfc2822::parse(date).ok()) else { return };
        let skew = real.timestamp().duration_since(at).as_secs();
        let known = self.skew_s.load(Ordering::Relaxed);
        if skew.abs_diff(known) > SMALL_SKEW_S.unsigned_abs() {
            tracing::warn!(seconds = skew, "the node's clock differs from AWS's: requests are signed with AWS's time");
            self.skew_s.store(skew, Ordering::Relaxed);
        }
    }
}
