//! The limits that EC2 publishes for launches.
//!
//! Source: EC2 Developer Guide, "Request throttling for the Amazon EC2 API": RunInstances.

use model::Time;

/// The most calls that EC2 takes at once.
const REQUESTS: i64 = 5;
/// The most instances that EC2 launches at once.
const INSTANCES: i64 = 1000;
/// How many calls and instances become free again in a second.
const REFILL: i64 = 2;

/// How many calls and instances EC2 still allows a new account.
#[derive(Default)]
pub struct LaunchLimits {
    requests: Bucket,
    instances: Bucket,
}

impl LaunchLimits {
    /// Counts a call for this many instances. False if EC2 refuses the call at this moment.
    pub fn allow(&mut self, instances: usize, now: Time) -> bool {
        self.requests.take(1, REQUESTS, now) && self.instances.take(instances, INSTANCES, now)
    }
}

/// A token bucket, in thousandths of a token; full at first.
#[derive(Default)]
struct Bucket {
    milli: i64,
    filled_at: Option<Time>,
}

impl Bucket {
    /// Takes `n` tokens from a bucket of this size that gets `REFILL` tokens a second. False if too few are left.
    fn take(&mut self, n: usize, size: i64, now: Time) -> bool {
        let back = self.filled_at.map_or(size * 1000, |at| now.since(at).as_ms() * REFILL);
        self.milli = (self.milli + back).min(size * 1000);
        self.filled_at = Some(now);
        let wanted = n as i64 * 1000;
        let enough = wanted <= self.milli;
        self.milli -= if enough { wanted } else { 0 };
        enough
    }
}
