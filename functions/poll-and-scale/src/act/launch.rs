//! Launching, safe against a crash between any two steps (`docs/rules.md#R5`).
//!
//! 1. claim the slot: one conditional write with the whole request, its digest and the claim;
//! 2. call RunInstances with the tags and the token `{node_id}-{attempt}`;
//! 3. bind the instance.
//!
//! If a run is killed between 1 and 2, a later run repeats the call after the claim has ended, but only if that run
//! renders the same request. If a run is killed between 2 and 3, the next run sees the tagged instance and binds it, or
//! repeats the call and gets the same instance. Source: EC2 API reference, "Ensuring idempotency".
//!
//! Guarantees: only the run that wrote the claim makes the call; only that run changes the offering, in a
//! write of its own before the next call.
//! Does not: choose what to launch, or count the attempts at an offering that EC2 was short of; the plan does.

use super::acting::Acting;
use model::cloud::{Instance, LaunchError};
use model::control::{ControlKey, EntryChange, EntryRow};
use model::events::Subject;
use model::ids::{NodeId, Slot};
use model::launch::{LaunchRequest, client_token};
use model::limits::is_refused_already;
use model::reason::Reason;
use model::{ActionName, NewLife, NodeRecord, Offering};
use runtime::answer::{ActError, Outcome};
use store::{Cond, WriteError};

impl Acting<'_> {
    /// Waits for the turn of a launch call. Returns whether the call may be made then.
    async fn may_call(&self) -> bool {
        self.pace.wait(self.run.latest_start()).await && !self.pace.is_stopped() && self.run.may_begin()
    }

    /// Notes that a launch of an offering that was short succeeded: the next run may try this offering twice as often.
    async fn note_launch(&self, offering: &Offering) {
        let before = self.run.seen.control.shortage(offering);
        let Some(attempts) = before.attempts(self.run.seen.observed_at) else { return };
        let after = before.succeeded(attempts, self.run.seen.policy.launch.max_per_run, self.run.now());
        if let Err(e) = self.run.store.write_entry(&before, &after).await
            && !e.is_conflict()
        {
            tracing::warn!(key = %ControlKey::shortage_of(offering), error = %e, "a launch that succeeded was not noted");
        }
    }

    /// Claims the slot and launches the first of these offerings that EC2 has.
    pub(super) async fn launch(&self, slot: Slot, offerings: &[Offering], reason: &str) -> Result<Outcome, ActError> {
        let in_time = self.may_call().await;
        let mut rest = offerings.iter();
        if !in_time {
            return Ok(Outcome::Left);
        }
        let Some(first) = rest.find(|o| !self.pace.is_refused(o)) else { return Ok(Outcome::Left) };
        let now = self.run.now();
        let node_id = NodeId::new(slot, self.run.store.chance().ulid(now));
        let key_version = self.settings.key_version();
        let request = self.render(node_id, key_version, first);
        let life = NewLife { node_id, offering: first.clone(), request_digest: request.digest(), key_version };
        let previous = self.run.lanes.record(slot);
        let claimed = NodeRecord::assign(slot, previous.as_ref(), life, now, reason)?;
        let mut record = self.run.store.write(previous.as_ref(), &claimed, Vec::new()).await?;
        self.run.lanes.wrote(record.clone());
        loop {
            let error = match self.call(&record).await {
                Ok(instance) => {
                    let bound = self.bind(&record, &instance.instance_id, instance.zone.as_deref()).await;
                    if let Some(life) = record.life() {
                        self.note_launch(&life.offering).await;
                    }
                    return bound.map(|()| Outcome::Done);
                }
                Err(error) => error,
            };
            self.note_refusal(&record, &error).await;
            let capacity = matches!(error, LaunchError::Capacity(_));
            let next = if capacity { rest.find(|o| !self.pace.is_refused(o)) } else { None };
            if let Some(next) = next {
                // Wait for the turn before the claim is renewed: the claim is for the call, not for the wait.
                if !self.may_call().await {
                    return self.refused(&record, error).await;
                }
                // The attempt changes in a write of its own, before the call.
                let digest = self.render(node_id, key_version, next).digest();
                let after = record.next_attempt(next.clone(), digest, self.run.now())?;
                record = self.write_node(&record, &after, Vec::new()).await?;
                continue;
            }
            return self.refused(&record, error).await;
        }
    }

    /// Repeats a launch whose answer never came, with the same token.
    pub(super) async fn relaunch(&self, node_id: NodeId) -> Result<Outcome, ActError> {
        let record = self.record(node_id)?;
        let Some(life) = record.life() else { return Err(ActError::CONFLICT) };
        if self.render(node_id, life.key_version, &life.offering).digest() != life.request_digest {
            // The policy has changed, so EC2 would refuse the token with another request. Later runs wait for the
            // tagged instance, or abandon the launch.
            return Ok(Outcome::Said);
        }
        if !self.may_call().await {
            return Ok(Outcome::Left);
        }
        let claimed = record.reclaim(self.run.now())?;
        let record = self.write_node(&record, &claimed, vec![Cond::Absent("instance_id")]).await?;
        match self.call(&record).await {
            Ok(instance) => {
                self.bind(&record, &instance.instance_id, instance.zone.as_deref()).await?;
                Ok(Outcome::Done)
            }
            Err(error) => {
                self.note_refusal(&record, &error).await;
                if let LaunchError::NotAllowed(_) = error {
                    // EC2 checks the caller before the token, so this says nothing about the first call, which may have
                    // launched an instance.
                    self.pace.stop();
                    return Err(error.into());
                }
                self.refused(&record, error).await
            }
        }
    }

    fn render(&self, node_id: NodeId, key_version: u32, offering: &Offering) -> LaunchRequest {
        LaunchRequest::render(self.settings, &self.run.seen.policy, node_id, key_version, offering)
    }

    async fn call(&self, record: &NodeRecord) -> Result<Instance, LaunchError> {
        let Some(life) = record.life() else { return Err(LaunchError::Lost("the record is cleaned".into())) };
        let request = self.render(life.node_id, life.key_version, &life.offering);
        self.cloud.launch(&request, &client_token(life)).await
    }

    /// Frees the slot at once after a definite refusal. After any other error the record stays as it is.
    async fn refused(&self, record: &NodeRecord, error: LaunchError) -> Result<Outcome, ActError> {
        let definite = match &error {
            LaunchError::Capacity(_) | LaunchError::BadRequest(_) | LaunchError::Spent(_) => true,
            LaunchError::Quota(_) | LaunchError::NotAllowed(_) => {
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
            // An earlier call of this life, by a run that was killed, may have launched an instance. So the write
            // requires that no instance is bound and no heartbeat has arrived.
            self.clean(record, &error.to_string(), vec![Cond::Absent("instance_id"), Cond::Absent("first_ping_at")])
                .await?;
        }
        Err(error.into())
    }

    /// Stores the limit that follows from a refusal, and writes an event.
    async fn note_refusal(&self, record: &NodeRecord, error: &LaunchError) {
        let Some(life) = record.life() else { return };
        let (seen, now, offering) = (self.run.seen, self.run.now(), &life.offering);
        let change = seen.control.after_refusal(offering, error, &seen.policy, seen.policy_version, now);
        let Some(change) = change else { return };
        match error {
            LaunchError::Capacity(_) => self.pace.refuse(ControlKey::shortage_of(offering)),
            LaunchError::BadRequest(_) => self.pace.refuse(ControlKey::BadRequest(offering.size.clone())),
            _ => {}
        }
        let key = change.key.clone();
        let written = match self.run.store.change_entry(&change).await {
            Err(e) if e.is_conflict() => self.note_refusal_again(&change.key, change.after).await,
            other => other.map(|_| ()),
        };
        if let Err(e) = written
            && !e.is_conflict()
        {
            tracing::warn!(%key, error = %e, "a refusal was not noted");
        }
        let bad = matches!(error, LaunchError::BadRequest(_) | LaunchError::NotAllowed(_));
        let action = if bad { ActionName::Warn } else { ActionName::HoldBack };
        let reason = Reason::LaunchRefused { size: offering.size.clone(), error: error.to_string() };
        self.run.tell(&Subject::Slot(record.slot), action, &reason).await;
    }

    /// Stores the limit again after a lost race against a successful launch or another refusal. An entry whose refusal
    /// still applies stays. Any other entry is overwritten.
    async fn note_refusal_again(&self, key: &ControlKey, after: EntryRow) -> Result<(), WriteError> {
        let before = self.run.store.entry_row(key).await?;
        if is_refused_already(&before, self.run.now()) {
            return Ok(());
        }
        self.run.store.change_entry(&EntryChange { key: key.clone(), before, after }).await.map(|_| ())
    }
}
