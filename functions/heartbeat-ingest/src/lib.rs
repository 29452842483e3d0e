//! heartbeat-ingest: nodes register and heartbeat first, and may update their allocs after that.
//!
//! Guarantees: a steady heartbeat is one conditional write and no read, or one read while an idle node's lease lasts; after a lease
//! expired, alloc updates are refused until the next heartbeat; a node cannot change the rows of another node.
//! Does not: expire leases, or place or stop anything; poll-and-scale does.
//! Source: Nomad PR 15068 (heartbeat first, then updates, then ready).

mod allocs;
mod binding;
mod heartbeat;
mod next;
mod orders;

use model::control::{IngestSummary, NextList};
use model::functions::{HEARTBEAT_INGEST, POLL_AND_SCALE};
use model::policy::LONGEST_JITTER;
use model::{ActionName, ClusterName, Contact, ControlKey, Event, Life, Policy, Slot, Span, Subject, Time};
use runtime::env::FunctionNeeds;
use runtime::http::{Admitted, HttpError, NodeAdmission, NodeCredentials, answer, policy_now};
use runtime::lambda::{self, Handler, Lambda, Parts, Reply};
use serde_json::Value;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use store::{Store, WriteError};

pub const FUNCTION: &str = HEARTBEAT_INGEST.name;

pub const LAMBDA: Lambda = Lambda { name: FUNCTION, needs: FunctionNeeds { nodes: true, urls: false }, make };

fn make(parts: Parts) -> Handler {
    let ingest = Ingest::new(parts.store, parts.env.credentials, parts.env.cluster);
    lambda::handler(ingest.with_grant_url(parts.env.grant_url), async |ingest, event, clock| {
        Ok::<_, Infallible>(Reply::Http(ingest.handle(&event, clock.now()).await))
    })
}

/// How long the policy and the size of the fleet may be cached.
const CACHE: Span = Span::from_s(60);
/// The most attempts at a write that loses races, before the node is told to try again later.
pub(crate) const RACES: u32 = 5;

/// The function. Between requests it keeps only a cache, a count of heartbeats, and how often nodes called. It may lose all of
/// them.
pub struct Ingest {
    store: Store,
    admission: NodeAdmission,
    /// The base URL of grant-credentials, if the cluster has it.
    pub(crate) grant_url: Option<String>,
    cluster: ClusterName,
    cached: Mutex<Option<(Time, Arc<CachedPolicy>)>>,
    next: Mutex<Option<(Time, Arc<NextList>)>>,
    summary: Mutex<(Option<Time>, u64)>,
}

/// The cached policy, and the size of the fleet.
pub(crate) struct CachedPolicy {
    pub(crate) policy: Policy,
    pub(crate) version: u64,
    in_use: u64,
}

impl CachedPolicy {
    /// The longest wait of a node after a heartbeat that failed, in seconds.
    pub(crate) fn retry_s(&self) -> f64 {
        self.policy.heartbeat.retry_s(self.in_use)
    }

    /// When a node that has room asks for new work, in seconds.
    pub(crate) fn soon_s(&self) -> f64 {
        self.policy.heartbeat.soon_s(self.in_use)
    }
}

/// An idle node waits for its idle time divided by this number before it asks for work again.
const IDLE_TO_WAIT: f64 = 8.0;

/// When the node calls next, and when its lease expires.
///
/// Every lease is as long as the longest interval of a working node, plus the grace. The length cannot depend on whether the
/// node is idle: only the answer to the write that renews the lease shows that. The length does not depend on jitter either:
/// a lease is never shortened, so a heartbeat with less jitter than the last one would need a second write.
#[derive(Clone, Copy)]
pub(crate) struct HeartbeatTiming<'a> {
    pub(crate) cached: &'a CachedPolicy,
    /// The factor by which chance lengthens the time to the next call: between 1 and [`LONGEST_JITTER`].
    jitter: f64,
    now: Time,
}

impl HeartbeatTiming<'_> {
    pub(crate) fn lease_expires_at(&self) -> Time {
        self.now + self.cached.policy.heartbeat.lease(self.cached.in_use)
    }

    /// How long a node with this many allocs waits before its next heartbeat, in seconds. A node that has just become idle asks
    /// often, because work often comes soon after other work.
    pub(crate) fn next_s(&self, allocs: usize, idle_since: Option<Time>) -> f64 {
        let (heartbeat, in_use) = (&self.cached.policy.heartbeat, self.cached.in_use);
        let longest_s = heartbeat.idle_interval_s(in_use);
        let idle_s = |since| (self.now.since(since).as_s() / IDLE_TO_WAIT).max(self.cached.soon_s()).min(longest_s);
        self.jitter * if allocs == 0 { idle_since.map_or(longest_s, idle_s) } else { heartbeat.interval_s(in_use) }
    }

    /// How long the lease lasts after a call that comes in `wait_s`, and after the grace, in milliseconds. It is negative if the lease
    /// ends before.
    fn left_after_ms(&self, contact: &Contact, wait_s: f64) -> i64 {
        let called_at = self.now + Span::from_ms((wait_s * 1000.0) as i64);
        contact.lease_expires_at.since(called_at + Span::from_s(self.cached.policy.heartbeat.grace_s)).as_ms()
    }

    /// Whether this call need not renew the lease: it lasts until the next call and the grace are over.
    pub(crate) fn leaves_time(&self, life: &Life, contact: &Contact) -> bool {
        self.left_after_ms(contact, self.next_s(life.allocs.len(), contact.idle_since_at)) >= 0
    }

    /// How long the heartbeats of this node may only ask, in milliseconds. An idle node calls several times in one lease, and a read
    /// costs a fifth of a write. A node with allocs calls once in a lease, so each of its heartbeats renews the lease.
    pub(crate) fn may_ask_for(&self, life: &Life, contact: &Contact) -> Option<u64> {
        let longest_s = self.cached.policy.heartbeat.idle_interval_s(self.cached.in_use) * LONGEST_JITTER;
        let left = u64::try_from(self.left_after_ms(contact, longest_s)).ok();
        left.filter(|left| life.allocs.is_empty() && *left > 0)
    }
}

impl Ingest {
    pub fn new(store: Store, credentials: NodeCredentials, cluster: ClusterName) -> Self {
        let admission = NodeAdmission::new(HEARTBEAT_INGEST.routes, credentials, cluster.clone());
        let (cached, next, summary) = (Mutex::new(None), Mutex::new(None), Mutex::new((None, 0)));
        Self { store, admission, grant_url: None, cluster, cached, next, summary }
    }

    /// Adds the base URL of grant-credentials, for the orders of jobs with a role.
    #[must_use]
    pub fn with_grant_url(self, grant_url: Option<String>) -> Self {
        Self { grant_url, ..self }
    }

    /// Answers one event. Every event gets an HTTP answer.
    pub async fn handle(&self, event: &Value, now: Time) -> Value {
        answer(self.answer_of(event, now).await)
    }

    async fn answer_of(&self, event: &Value, now: Time) -> Result<Value, HttpError> {
        let Admitted { node_id, route, proven, request } = self.admission.admit(event, now)?;
        let answer = if route == "heartbeat" {
            let answer = self.heartbeat(node_id, &proven, &request.body()?, now).await?;
            self.count(now).await;
            serde_json::to_value(answer)
        } else if route == "binding" {
            serde_json::to_value(self.binding(node_id, &proven, &request.body()?).await?)
        } else {
            serde_json::to_value(self.report(node_id, &proven, &request.body()?, now).await?)
        };
        Ok(answer.unwrap_or_default())
    }

    pub(crate) async fn cached_policy(&self, now: Time) -> Result<Arc<CachedPolicy>, HttpError> {
        if let Some((at, cached)) = &*self.cached.lock().unwrap_or_else(PoisonError::into_inner)
            && now.since(*at) < CACHE
        {
            return Ok(Arc::clone(cached));
        }
        let (policy, control) = policy_now(&self.store).await?;
        let version = control.policy.as_ref().map_or(0, |row| row.version.number());
        let in_use = control.runs.get(POLL_AND_SCALE.name).and_then(|r| r.in_use).unwrap_or(0);
        let cached = Arc::new(CachedPolicy { policy, version, in_use });
        *self.cached.lock().unwrap_or_else(PoisonError::into_inner) = Some((now, Arc::clone(&cached)));
        Ok(cached)
    }

    pub(crate) fn beat<'a>(&self, cached: &'a CachedPolicy, now: Time) -> HeartbeatTiming<'a> {
        HeartbeatTiming { cached, jitter: self.store.rng().between(1.0, LONGEST_JITTER), now }
    }

    /// Counts an accepted heartbeat, and writes the summary that shows when heartbeats were last accepted.
    async fn count(&self, now: Time) {
        // The heartbeat was accepted by a policy, so it is cached.
        let Ok(cached) = self.cached_policy(now).await else { return };
        let gap = cached.policy.heartbeat.calls_again_within(cached.in_use);
        let count = {
            let mut summary = self.summary.lock().unwrap_or_else(PoisonError::into_inner);
            summary.1 = summary.1.saturating_add(1);
            if summary.0.is_some_and(|at| now.since(at) < gap) {
                return;
            }
            summary.0 = Some(now);
            std::mem::take(&mut summary.1)
        };
        let written = async {
            let before: IngestSummary = self.store.entry(&ControlKey::Ingest).await?;
            match before.noted(count, gap, now) {
                Some(after) => self.store.write_entry(&before, &after).await.map(|_| ()),
                None => Ok(()),
            }
        };
        // A conflict is fine: another process wrote its own summary.
        if let Err(WriteError::Db(e)) = written.await {
            tracing::warn!(error = %e, "the summary of accepted heartbeats was not written");
        }
    }

    pub(crate) async fn record_event(&self, slot: Slot, action: ActionName, reason: &str, keep: Span, now: Time) {
        self.store.record_event(&Event::new(&Subject::Slot(slot), action, reason, now, keep, self.store.rng())).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::policy::example_json;

    #[test]
    fn a_lease_outlasts_every_interval_and_does_not_depend_on_jitter() {
        let mut document = example_json();
        document["heartbeat"] = serde_json::json!({"ttl_s": 300, "grace_s": 10});
        let cached = CachedPolicy { policy: Policy::from_json(&document).unwrap(), version: 1, in_use: 1 };
        let now = Time::from_ms(0);
        let [long, short] = [LONGEST_JITTER, 1.0].map(|jitter| HeartbeatTiming { cached: &cached, jitter, now });
        let told = now + Span::from_ms((long.next_s(1, None) * 1000.0) as i64);
        assert_eq!([long, short].map(|beat| beat.lease_expires_at()), [told + Span::from_s(10); 2]);
    }

    #[test]
    fn a_node_that_has_just_become_idle_asks_often() {
        let cached = CachedPolicy { policy: Policy::from_json(&example_json()).unwrap(), version: 1, in_use: 1 };
        let after = |s: i64| {
            let now = Time::from_ms(1_000_000 + s * 1000);
            HeartbeatTiming { cached: &cached, jitter: 1.0, now }.next_s(0, Some(Time::from_ms(1_000_000)))
        };
        assert_eq!([0, 8, 24, 80, 300, -9].map(after), [0.6, 1.0, 3.0, 5.0, 5.0, 0.6]);
    }

    #[test]
    fn a_large_fleet_calls_less_often_also_when_idle() {
        let mut document = example_json();
        document["heartbeat"] = serde_json::json!({"ttl_s": 60, "idle_s": 10, "max_per_second": 10});
        let next = |in_use| {
            let cached = CachedPolicy { policy: Policy::from_json(&document).unwrap(), version: 1, in_use };
            let beat = HeartbeatTiming { cached: &cached, jitter: 1.0, now: Time::from_ms(0) };
            [beat.next_s(0, None), beat.next_s(1, None)]
        };
        assert_eq!([next(1), next(300), next(5000)], [[10.0, 60.0], [30.0, 60.0], [500.0, 500.0]]);
    }
}
