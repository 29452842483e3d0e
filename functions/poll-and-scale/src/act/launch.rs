//! Launching, safe against a crash between any two steps.
//!
//! 1. claim the slot: one conditional write with the whole request, its digest and the claim;
//! 2. call RunInstances with the tags and the token `{node_id}-{attempt}`;
//! 3. bind the instance.
//!
//! Killed after 1, the next run whose rendering is the same repeats the call after the claim is
//! over; killed after 2, it sees the tagged instance and binds it, or repeats the call and gets
//! the same instance. Rule: EC2 API reference, "Ensuring idempotency".
//!
//! Guarantees: the call is made only by the run that wrote the claim; only the claimant changes
//! the offering, in a write of its own before the next call.

use super::{ActError, Acting, CONFLICT};
use crate::plan::{PERIOD_S, bad_request_key, shortage_key};
use shared::cloud::{Instance, LaunchError, LaunchRequest, client_token};
use shared::events::Subject;
use shared::ids::{NodeId, Slot};
use shared::model::{NewLife, NodeRecord, Offering};
use shared::run::Done;
use shared::store::{Cond, Memory, WriteError};
use shared::time::{Span, Time};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::Instant;

/// The version of the master key new nodes' tokens are made with.
const KEY_VERSION: u32 = 1;
/// The longest that waiting doubles to, in seconds.
const LONGEST_WAIT_S: i64 = 3600;

/// A shortage is the last one again for at least so many seconds after that one's waiting was over: the
/// next attempt may have to wait until idle nodes have made room for it and ended.
const AGAIN_S: i64 = 900;

/// Launch calls, so many a second; none after EC2, or too many failed starts, said to stop.
pub(crate) struct Pace {
    gap: Duration,
    next: Mutex<Option<Instant>>,
    stopped: AtomicBool,
    /// What EC2 refused in this run: not asked for again.
    refused: std::sync::Mutex<BTreeSet<String>>,
    /// How often what was short a while ago was asked for in this run.
    tried: std::sync::Mutex<BTreeMap<String, u64>>,
}

impl Pace {
    pub(super) fn new(calls_per_second: f64) -> Self {
        let gap = Duration::from_secs_f64(1.0 / calls_per_second.max(0.01));
        Self {
            gap,
            next: Mutex::new(None),
            stopped: AtomicBool::new(false),
            refused: std::sync::Mutex::default(),
            tried: std::sync::Mutex::default(),
        }
    }

    /// Waits for a call's turn; `false`, at once, if that would come too late: then it is not taken.
    async fn wait(&self, latest: Instant) -> bool {
        let mut next = self.next.lock().await;
        let at = next.unwrap_or_else(Instant::now).max(Instant::now());
        if at > latest {
            return false;
        }
        *next = Some(at + self.gap);
        drop(next);
        tokio::time::sleep_until(at).await;
        true
    }

    fn refuse(&self, key: String) {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner).insert(key);
    }

    fn is_refused(&self, offering: &Offering) -> bool {
        let refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        refused.contains(&shortage_key(offering)) || refused.contains(&bad_request_key(&offering.size))
    }

    /// Counts an attempt at what was short a while ago; whether it is one of the `most` of this run.
    fn try_again(&self, key: String, most: u64) -> bool {
        let mut tried = self.tried.lock().unwrap_or_else(PoisonError::into_inner);
        let n = tried.entry(key).or_default();
        let may = *n < most;
        *n += u64::from(may);
        may
    }

    pub(super) fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }
}

impl Acting<'_> {
    /// Waits for the turn of a launch call; whether it may be made then.
    async fn may_call(&self) -> bool {
        self.pace.wait(self.latest_start()).await && !self.pace.is_stopped() && self.may_begin()
    }

    /// How many attempts a run may make at an offering that was short: one when its waiting is over, and
    /// twice as many after each that succeeded. `None`: it was not, or long ago.
    fn attempts(&self, offering: &Offering) -> Option<u64> {
        let memory = self.seen.control.memory(&shortage_key(offering));
        let again_s = memory.wait_s?.max(AGAIN_S);
        // At the run's beginning: what ends meanwhile would let all of the rest try.
        let recent = self.seen.observed_at.since(memory.until_at?) <= Span::from_s(again_s);
        recent.then(|| memory.count.unwrap_or(1).max(1))
    }

    /// Whether an offering is to be tried in this run, and once more.
    fn may_try(&self, offering: &Offering) -> bool {
        !self.pace.is_refused(offering)
            && self.attempts(offering).is_none_or(|most| self.pace.try_again(shortage_key(offering), most))
    }

    /// What was short is there again: the next run may try twice as many.
    async fn remember_success(&self, offering: &Offering) {
        let Some(most) = self.attempts(offering) else { return };
        let before = self.seen.control.memory(&shortage_key(offering));
        let more = most.saturating_mul(2);
        let all = more >= u64::from(self.seen.policy.launch.max_per_run);
        let wait_s = before.wait_s.filter(|_| !all);
        let after = Memory { count: Some(more), wait_s, until_at: Some(self.now()), ..before.clone() };
        if let Err(e) = self.store.remember(&before, &after).await
            && !e.is_conflict()
        {
            tracing::warn!(key = after.key, error = %e, "a launch that succeeded was not noted");
        }
    }

    /// Claims the slot and launches the first of these that EC2 has.
    pub(super) async fn launch(&self, slot: Slot, offerings: &[Offering], reason: &str) -> Result<Done, ActError> {
        let in_time = self.may_call().await;
        let mut rest = offerings.iter();
        if !in_time {
            return Ok(Done::Left);
        }
        let Some(first) = rest.find(|o| self.may_try(o)) else { return Ok(Done::Left) };
        let now = self.now();
        let node_id = NodeId::new(slot, self.store.chance().ulid(now));
        let request = self.render(node_id, first);
        let life =
            NewLife { node_id, offering: first.clone(), request_digest: request.digest(), key_version: KEY_VERSION };
        let previous = self.lanes.record(slot);
        let claimed = NodeRecord::assign(slot, previous.as_ref(), life, now, reason)?;
        let mut record = self.store.write(previous.as_ref(), &claimed, Vec::new()).await?;
        self.lanes.wrote(record.clone());
        loop {
            let error = match self.call(&record).await {
                Ok(instance) => {
                    let bound = self.bind(&record, &instance).await;
                    if let Some(life) = record.life() {
                        self.remember_success(&life.offering).await;
                    }
                    return bound.map(|()| Done::Yes);
                }
                Err(error) => error,
            };
            self.remember_refusal(&record, &error).await;
            let capacity = matches!(error, LaunchError::Capacity(_));
            let next = if capacity { rest.find(|o| self.may_try(o)) } else { None };
            if let Some(next) = next {
                // The call's turn first: the claim is for the call, not for waiting.
                if !self.may_call().await {
                    return self.refused(&record, error).await;
                }
                // Only now, and in a write of its own, does the attempt change.
                let digest = self.render(node_id, next).digest();
                let after = record.next_attempt(next.clone(), digest, self.now())?;
                record = self.write_node(&record, &after, Vec::new()).await?;
                continue;
            }
            return self.refused(&record, error).await;
        }
    }

    /// Repeats a launch of which no answer came, with the same token.
    pub(super) async fn relaunch(&self, node_id: NodeId) -> Result<Done, ActError> {
        let record = self.life(node_id)?;
        let Some(life) = record.life() else { return Err(CONFLICT) };
        if self.render(node_id, &life.offering).digest() != life.request_digest {
            // The policy changed in between: EC2 would refuse the token. The tagged instance is
            // waited for, or the launch is abandoned.
            return Ok(Done::Said);
        }
        if !self.may_call().await {
            return Ok(Done::Left);
        }
        let claimed = record.reclaim(self.now())?;
        let record = self.write_node(&record, &claimed, vec![Cond::Absent("instance_id")]).await?;
        match self.call(&record).await {
            Ok(instance) => {
                self.bind(&record, &instance).await?;
                Ok(Done::Yes)
            }
            Err(error) => {
                self.remember_refusal(&record, &error).await;
                self.refused(&record, error).await
            }
        }
    }

    fn render(&self, node_id: NodeId, offering: &Offering) -> LaunchRequest {
        LaunchRequest::render(self.settings, &self.seen.policy, node_id, offering)
    }

    async fn call(&self, record: &NodeRecord) -> Result<Instance, LaunchError> {
        let Some(life) = record.life() else { return Err(LaunchError::Lost("the record is cleaned".into())) };
        let request = self.render(life.node_id, &life.offering);
        self.cloud.launch(&request, &client_token(life)).await
    }

    async fn bind(&self, record: &NodeRecord, instance: &Instance) -> Result<(), ActError> {
        let bound = record.bind(&instance.instance_id, instance.zone.as_deref(), self.now())?;
        self.write_node(record, &bound, Vec::new()).await?;
        Ok(())
    }

    /// A definite refusal frees the slot at once; anything else leaves the record as it is.
    async fn refused(&self, record: &NodeRecord, error: LaunchError) -> Result<Done, ActError> {
        let definite = match &error {
            LaunchError::Capacity(_) | LaunchError::BadRequest(_) | LaunchError::Spent(_) => true,
            LaunchError::Quota(_) => {
                self.pace.stop();
                true
            }
            LaunchError::Throttled(_) => {
                self.pace.stop();
                false
            }
            LaunchError::Lost(_) => false,
        };
        if definite {
            // A cut-off run of ours may have made an earlier call of this life that did launch:
            // the write requires that nothing has spoken or been bound since.
            self.clean(record, &error.to_string(), vec![Cond::Absent("instance_id"), Cond::Absent("first_ping_at")])
                .await?;
        }
        Err(error.into())
    }

    /// Errors have memories that end: a shortage, a quota, a pause, a size nobody can launch.
    async fn remember_refusal(&self, record: &NodeRecord, error: &LaunchError) {
        let Some(life) = record.life() else { return };
        let (policy, now) = (&self.seen.policy, self.now());
        let after = match error {
            LaunchError::Capacity(_) => {
                self.pace.refuse(shortage_key(&life.offering));
                let before = self.seen.control.memory(&shortage_key(&life.offering));
                waiting(before, policy.shortage.ttl_s, AGAIN_S, now)
            }
            LaunchError::Quota(_) => {
                let before = self.seen.control.memory("quota");
                (before.clone(), Memory { until_at: Some(now + Span::from_s(policy.quota.retry_s)), ..before })
            }
            LaunchError::Throttled(_) => waiting(self.seen.control.memory("backoff"), 5, 2 * PERIOD_S, now),
            LaunchError::BadRequest(_) => {
                self.pace.refuse(bad_request_key(&life.offering.size));
                let before = self.seen.control.memory(&bad_request_key(&life.offering.size));
                (before.clone(), Memory { policy_version: Some(self.seen.policy_version), ..before })
            }
            LaunchError::Spent(_) | LaunchError::Lost(_) => return,
        };
        let after = (after.0, Memory { message: Some(error.to_string()), since_at: Some(now), ..after.1 });
        let written = match self.store.remember(&after.0, &after.1).await {
            Err(e) if e.is_conflict() => self.remember_over(&after.1).await,
            other => other.map(|_| ()),
        };
        if let Err(e) = written
            && !e.is_conflict()
        {
            tracing::warn!(key = after.1.key, error = %e, "a refusal was not remembered");
        }
        let action = if matches!(error, LaunchError::BadRequest(_)) { "warn" } else { "hold_back" };
        self.tell(&Subject::Slot(record.slot), action, &format!("{}: {error}", life.offering.size)).await;
    }

    /// A launch that succeeded wrote first, of this run or of another: the refusal is news all the same.
    /// Another refusal that holds is enough. (Told apart by the count that only a success leaves: the time
    /// it wrote is another run's clock.)
    async fn remember_over(&self, after: &Memory) -> Result<(), WriteError> {
        let before = self.store.memory(&after.key).await?;
        if before.count.is_none() && before.until_at.is_some_and(|until| until > self.now()) {
            return Ok(());
        }
        self.store.remember(&before, after).await.map(|_| ())
    }
}

/// A memory that lasts `first_s`, and twice as long each time it was not long enough: when it is needed
/// again within its own length, or within `again_s`, after its end.
fn waiting(before: Memory, first_s: i64, again_s: i64, now: Time) -> (Memory, Memory) {
    let again_s = before.wait_s.unwrap_or(0).max(again_s);
    let recent = before.until_at.is_some_and(|until| now.since(until) <= Span::from_s(again_s));
    let wait_s = match before.wait_s {
        Some(wait) if recent => wait.saturating_mul(2).min(LONGEST_WAIT_S).max(first_s),
        _ => first_s,
    };
    let until_at = Some(now + Span::from_s(wait_s));
    (before.clone(), Memory { wait_s: Some(wait_s), until_at, count: None, ..before })
}

#[cfg(test)]
mod tests {
    use super::*;
    use shared::model::fixtures::at;

    #[test]
    fn a_refusal_waits_twice_as_long_also_where_room_had_to_be_made_for_it() {
        let mut memory = Memory::new("shortage#spot#m7a.large#any");
        // Refused again only after idle nodes have made way, and at last after a day.
        let mut waits = Vec::new();
        for s in [0, 180 + 330, 180 + 330 + 360 + 330, 90_000] {
            memory = waiting(memory, 180, AGAIN_S, at(s)).1;
            waits.push(memory.wait_s);
        }
        assert_eq!(waits, [Some(180), Some(360), Some(720), Some(180)]);
        // Throttled in one run after the other, and once in a while.
        let mut memory = Memory::new("backoff");
        let mut waits = Vec::new();
        for s in [0, 60, 120, 720, 1320] {
            memory = waiting(memory, 5, 2 * PERIOD_S, at(s)).1;
            waits.push(memory.wait_s);
        }
        assert_eq!(waits, [Some(5), Some(10), Some(20), Some(5), Some(5)]);
    }
}
