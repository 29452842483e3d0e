//! Launching, safe against a crash between any two steps (`docs/rules.md#R5`).
//!
//! 1. claim the slots: one conditional write with the whole request, its digest and the claim;
//! 2. call RunInstances with the tags and the token `{node_id}-{attempt}`, or `{ULID of the batch}-{attempt}`;
//! 3. bind the instances that EC2 launched, and free the slots that got no instance.
//!
//! If a run is killed between 1 and 2, a later run repeats the call after the claim has ended, but only if that run
//! renders the same request. If a run is killed between 2 and 3, the next run sees the tagged instances and binds them, or
//! repeats the call and gets the same instances. Source: EC2 API reference, "Ensuring idempotency".
//!
//! One call launches a batch of nodes if the user data holds nothing of one node. Then step 1 is one transaction, and a
//! batch is never half claimed. Step 3 is one transaction too. If somebody has changed one of the records meanwhile, each
//! record is written alone instead.
//!
//! Guarantees: only the run that wrote the claim makes the call; only that run changes the offering or the batch, in a
//! write of its own before the next call.
//! No node is launched for a job that has changed since it was read: it may have been placed.
//! After a refusal the same run tries the next way that the refusal does not speak of.
//! Does not: choose what to launch, or count the attempts at an offering that EC2 was short of; the plan does.

use super::acting::Acting;
use crate::plan::{Action, Planned};
use model::Class;
use model::batch::Batch;
use model::cloud::{Instance, LaunchError, Refusal};
use model::control::{ControlKey, EntryChange, EntryRow};
use model::events::Subject;
use model::ids::{JobId, NodeId, Slot};
use model::launch::{LaunchRequest, Launched, client_token};
use model::limits::is_refused_already;
use model::reason::Reason;
use model::{ActionName, Life, NewLife, NodeRecord, Offering};
use runtime::answer::{ActError, ActionResult, Outcome};
use std::collections::{BTreeMap, BTreeSet};
use store::{Attempts, Cond, WriteError};

/// What became of the launches of one call, by slot.
type Results = BTreeMap<Slot, ActionResult>;

/// The change of a record: as it was, and as it will be.
type Change = (Option<NodeRecord>, NodeRecord);

/// The job that a launch is for.
const fn job_of(planned: &Planned) -> Option<JobId> {
    if let Action::Launch { job_id, .. } = &planned.action { *job_id } else { None }
}

fn every(slots: impl Iterator<Item = Slot>, result: &ActionResult) -> Results {
    slots.map(|slot| (slot, result.clone())).collect()
}

fn of_all(records: &[NodeRecord], result: &ActionResult) -> Results {
    every(records.iter().map(|r| r.slot), result)
}

impl Acting<'_> {
    /// Waits for the turn of a launch call. Returns whether a call may be made then.
    async fn may_call(&self) -> bool {
        self.rate.wait(self.run.latest_start()).await && !self.rate.is_stopped() && self.run.may_begin()
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

    /// Claims these slots, each for its reason, and launches the first of these offerings that EC2 has. The next run
    /// launches the slots that do not fit into one batch.
    pub(super) async fn launch(&self, call: &[&Planned], offerings: &[Offering]) -> Vec<ActionResult> {
        let slot = |p: &Planned| if let Action::Launch { slot, .. } = &p.action { Some(*slot) } else { None };
        let waiting = match self.still_waiting(call).await {
            Ok(waiting) => waiting,
            Err(error) => return vec![error.into(); call.len()],
        };
        let needed = call.iter().filter(|p| job_of(p).is_none_or(|job| waiting.contains(&job)));
        let wanted: Vec<(Slot, String)> = needed.filter_map(|p| Some((slot(p)?, p.reason.to_string()))).collect();
        if wanted.is_empty() {
            return vec![ActionResult::CONFLICT; call.len()];
        }
        let is_whole =
            call.len() > 1 && call.iter().all(|p| matches!(p.action, Action::Launch { is_member: true, .. }));
        let mut results = self.launch_in(&wanted, offerings, is_whole).await;
        call.iter().map(|p| slot(p).and_then(|slot| results.remove(&slot)).unwrap_or(ActionResult::CONFLICT)).collect()
    }

    /// Those jobs of these launches that have not changed since the plan saw them. The queue is read before the nodes. Between the two
    /// reads, another run may have placed a job, on a node that the plan then saw as full.
    async fn still_waiting(&self, call: &[&Planned]) -> Result<BTreeSet<JobId>, ActError> {
        let jobs: BTreeSet<JobId> = call.iter().filter_map(|p| job_of(p)).collect();
        if jobs.is_empty() {
            return Ok(jobs);
        }
        let rows = self.run.store.jobs_of(jobs).await?.rows;
        Ok(rows.iter().filter(|job| self.reading().is_as_read(job)).map(|job| job.summary.job_id).collect())
    }

    async fn launch_in(&self, wanted: &[(Slot, String)], offerings: &[Offering], is_whole: bool) -> Results {
        let mut outcomes = every(wanted.iter().map(|(slot, _)| *slot), &ActionResult::LEFT);
        let mut rest = offerings.iter();
        let Some(first) = self.next_way(&mut rest).await else { return outcomes };
        match self.claim(wanted, first, is_whole).await {
            Ok(records) => outcomes.extend(self.launch_claimed(records, rest).await),
            Err(error) => return every(wanted.iter().map(|(slot, _)| *slot), &error.into()),
        }
        outcomes
    }

    /// The next of these offerings that this run may try, once its turn has come.
    async fn next_way<'o>(&self, rest: &mut impl Iterator<Item = &'o Offering>) -> Option<&'o Offering> {
        loop {
            let offering = rest.find(|o| !self.rate.is_refused(o))?;
            if !self.may_call().await {
                return None;
            }
            // Another call of this run may have met a refusal meanwhile.
            if !self.rate.is_refused(offering) {
                return Some(offering);
            }
        }
    }

    /// Claims these slots for one call, all or none.
    async fn claim(
        &self,
        wanted: &[(Slot, String)],
        offering: &Offering,
        is_whole: bool,
    ) -> Result<Vec<NodeRecord>, ActError> {
        let now = self.run.now();
        let ulid = self.run.store.rng().ulid(now);
        let slots = || wanted.iter().map(|(slot, _)| *slot);
        let batch = if wanted.len() > 1 { Batch::of_lowest(ulid, slots().collect()) } else { None };
        let mut changes: Vec<Change> = Vec::with_capacity(wanted.len());
        let mut digest = None;
        for (slot, reason) in wanted.iter().filter(|(s, _)| batch.as_ref().is_none_or(|b| b.slots().contains(s))) {
            let node_id = NodeId::new(*slot, ulid);
            let launched = Launched::of(node_id, batch.as_ref(), is_whole);
            let request_digest = digest.get_or_insert_with(|| self.render(launched, offering).digest()).clone();
            let life = NewLife { node_id, offering: offering.clone(), request_digest, batch: batch.clone(), is_whole };
            let previous = self.run.locks.record(*slot);
            let claimed = NodeRecord::assign(*slot, previous.as_ref(), life, now, reason)?;
            changes.push((previous, claimed));
        }
        Ok(self.write_nodes(&changes, &[]).await?)
    }

    /// Launches what is claimed. After a refusal that another offering may avoid, the next offering is tried.
    async fn launch_claimed<'o>(
        &self,
        mut records: Vec<NodeRecord>,
        mut rest: impl Iterator<Item = &'o Offering>,
    ) -> Results {
        let mut outcomes = Results::new();
        loop {
            let Some(life) = records.first().and_then(NodeRecord::life).cloned() else { return outcomes };
            let error = match self.call(&records).await {
                Ok(instances) => {
                    outcomes.extend(self.settle(&records, &instances).await);
                    return outcomes;
                }
                Err(error) => error,
            };
            self.note_refusal(&records, &error).await;
            // The turn is waited for before the claim is renewed: the claim is for the call, not for the wait.
            let next = match &error {
                LaunchError::Refused(refusal) => self.after_refusal(refusal, &life, &mut rest).await,
                _ => None,
            };
            let Some((offering, batch)) = next else { return extended(outcomes, self.refused(&records, error).await) };
            match self.next_attempt(&records, &offering, batch.as_ref(), &error).await {
                Ok((claimed, freed)) => {
                    outcomes.extend(every(freed.into_iter(), &error.into()));
                    records = claimed;
                }
                Err(error) => return extended(outcomes, of_all(&records, &error.into())),
            }
        }
    }

    /// What is called next after a refusal, once its turn has come: the quota may still have room for half of the batch;
    /// otherwise the next offering is tried.
    async fn after_refusal<'o>(
        &self,
        refusal: &Refusal,
        life: &Life,
        rest: &mut impl Iterator<Item = &'o Offering>,
    ) -> Option<(Offering, Option<Batch>)> {
        let may_be_half = refusal.class == Class::Quota && !life.is_whole;
        let half = life.batch.as_ref().and_then(Batch::half).filter(|_| may_be_half);
        if let Some(half) = half {
            return self.may_call().await.then(|| (life.offering.clone(), Some(half)));
        }
        let offering = self.next_way(rest).await?;
        Some((offering.clone(), life.batch.clone()))
    }

    /// Changes the offering or the batch of what is claimed, in a write of its own before the call. Slots that are no
    /// longer in the batch are freed by the same write. Returns what is claimed then, and the slots that were freed.
    async fn next_attempt(
        &self,
        records: &[NodeRecord],
        offering: &Offering,
        batch: Option<&Batch>,
        error: &LaunchError,
    ) -> Result<(Vec<NodeRecord>, Vec<Slot>), ActError> {
        let now = self.run.now();
        let mut changes: Vec<Change> = Vec::with_capacity(records.len());
        let mut freed = Vec::new();
        for record in records {
            let Some(life) = record.life() else { return Err(ActError::CONFLICT) };
            let after = if batch.is_some_and(|b| !b.slots().contains(&record.slot)) {
                freed.push(record.slot);
                record.clean(now, &error.to_string())?
            } else {
                let launched = Launched::of(life.node_id, batch, life.is_whole);
                let digest = self.render(launched, offering).digest();
                record.next_attempt(offering.clone(), batch.cloned(), digest, now)?
            };
            changes.push((Some(record.clone()), after));
        }
        let mut written = self.write_nodes(&changes, &[Cond::says_nothing("instance_id")]).await?;
        written.retain(|r| !r.is_cleaned());
        Ok((written, freed))
    }

    /// Repeats a launch whose answer never came, with the same token. `nodes` are those of its nodes that have no instance.
    pub(super) async fn relaunch(&self, call: &[&Planned]) -> Vec<ActionResult> {
        let node = |p: &Planned| if let Action::Relaunch(node_id) = &p.action { Some(*node_id) } else { None };
        let nodes: Vec<NodeId> = call.iter().filter_map(|p| node(p)).collect();
        let mut results = self.relaunch_in(&nodes).await;
        let mut of = |node_id: NodeId| results.remove(&node_id.slot());
        call.iter().map(|p| node(p).and_then(&mut of).unwrap_or(ActionResult::CONFLICT)).collect()
    }

    async fn relaunch_in(&self, nodes: &[NodeId]) -> Results {
        let all = |result: &ActionResult| every(nodes.iter().map(|n| n.slot()), result);
        let records: Result<Vec<NodeRecord>, ActError> = nodes.iter().map(|n| self.record(*n)).collect();
        let records = match records {
            Ok(records) => records,
            Err(error) => return all(&error.into()),
        };
        let Some(life) = records.first().and_then(NodeRecord::life) else { return all(&ActionResult::CONFLICT) };
        if self.render(life.launched(), &life.offering).digest() != life.request_digest {
            // The policy has changed, so EC2 would refuse the token with another request. Later runs wait for the
            // tagged instances, or abandon the launch.
            return all(&ActionResult::of(Outcome::Said));
        }
        if !self.may_call().await || self.rate.is_refused(&life.offering) {
            return all(&ActionResult::LEFT);
        }
        let records = match self.reclaim(&records).await {
            Ok(records) => records,
            Err(error) => return all(&error.into()),
        };
        match self.call(&records).await {
            Ok(instances) => self.settle(&records, &instances).await,
            Err(error) => {
                self.note_refusal(&records, &error).await;
                if let LaunchError::Refused(refusal) = &error
                    && !refusal.is_after_token()
                {
                    // This says nothing about the first call, which may have launched instances.
                    return all(&error.into());
                }
                self.refused(&records, error).await
            }
        }
    }

    /// Renews the claim of these records, all or none.
    async fn reclaim(&self, records: &[NodeRecord]) -> Result<Vec<NodeRecord>, ActError> {
        let now = self.run.now();
        let mut changes: Vec<Change> = Vec::with_capacity(records.len());
        for record in records {
            changes.push((Some(record.clone()), record.reclaim(now)?));
        }
        Ok(self.write_nodes(&changes, &[Cond::says_nothing("instance_id")]).await?)
    }

    fn render<'l>(&self, launched: impl Into<Launched<'l>>, offering: &Offering) -> LaunchRequest {
        LaunchRequest::render(self.settings, &self.run.seen.policy, launched, offering)
    }

    /// Makes the launch call of these records, which all have the same one.
    async fn call(&self, records: &[NodeRecord]) -> Result<Vec<Instance>, LaunchError> {
        let life = records.first().and_then(NodeRecord::life);
        let Some(life) = life else { return Err(LaunchError::Lost("the record is cleaned".into())) };
        let request = self.render(life.launched(), &life.offering);
        self.cloud.launch(&request, &client_token(life)).await
    }

    /// Binds each record to its instance, and frees the slots that got no instance.
    async fn settle(&self, records: &[NodeRecord], instances: &[Instance]) -> Results {
        let Some(life) = records.first().and_then(NodeRecord::life) else { return Results::new() };
        let now = self.run.now();
        let asked = life.batch.as_ref().map_or(1, Batch::len);
        let few =
            LaunchError::from(Refusal::short(format!("EC2 launched {} of the {asked} instances", instances.len())));
        let of = |record: &NodeRecord| match record.life().map(|l| l.launched()) {
            Some(Launched::Batch(batch) | Launched::Whole(batch)) => {
                let own = |i: &&Instance| i.launch_index.and_then(|k| batch.node(k)) == record.node_id();
                instances.iter().find(own)
            }
            _ => instances.first(),
        };
        let mut changes: Vec<Change> = Vec::with_capacity(records.len());
        let mut outcomes = Results::new();
        let mut is_short = false;
        for record in records {
            let after = match of(record) {
                Some(instance) => {
                    outcomes.insert(record.slot, ActionResult::DONE);
                    record.bind(&instance.instance_id, instance.zone.as_deref(), now)
                }
                None => {
                    is_short = true;
                    outcomes.insert(record.slot, ActionResult::from(ActError::from(few.clone())));
                    record.clean(now, &few.to_string())
                }
            };
            match after {
                Ok(after) => changes.push((Some(record.clone()), after)),
                Err(error) => _ = outcomes.insert(record.slot, error.into()),
            }
        }
        outcomes.extend(self.write_each_if_not_all(&changes, &[]).await);
        if is_short {
            self.note_refusal(records, &few).await;
        } else {
            self.note_launch(&life.offering).await;
        }
        outcomes
    }

    /// Writes these changes together, or each alone if somebody has changed one of the records. Returns what failed.
    async fn write_each_if_not_all(&self, changes: &[Change], conditions: &[Cond]) -> Results {
        let mut failed = Results::new();
        let mut attempts = Attempts::new(changes);
        while let Some(some) = attempts.take_next() {
            let written = self.write_nodes(some, conditions).await;
            if !attempts.part_after(&written)
                && let Err(error) = written
            {
                failed.extend(every(some.iter().map(|(_, after)| after.slot), &error.into()));
            }
        }
        failed
    }

    /// Frees the slots at once after a definite refusal. After any other error the records stay as they are.
    async fn refused(&self, records: &[NodeRecord], error: LaunchError) -> Results {
        let in_batch = records.first().and_then(NodeRecord::life).is_some_and(|l| l.batch.is_some());
        let definite = match &error {
            LaunchError::Refused(_) => true,
            // Other instances of a batch may live. EC2 lists the terminated ones.
            LaunchError::Spent(_) => !in_batch,
            LaunchError::Throttled(_) | LaunchError::Lost(_) => false,
        };
        let (now, reason) = (self.run.now(), error.to_string());
        let mut outcomes = of_all(records, &error.into());
        if !definite {
            return outcomes;
        }
        // An earlier call of this life, by a run that was killed, may have launched an instance. So the write requires
        // that no instance is bound and no heartbeat has arrived.
        let conditions = [Cond::says_nothing("instance_id"), Cond::says_nothing("first_ping_at")];
        let mut changes: Vec<Change> = Vec::with_capacity(records.len());
        for record in records {
            match record.clean(now, &reason) {
                Ok(after) => changes.push((Some(record.clone()), after)),
                Err(error) => _ = outcomes.insert(record.slot, error.into()),
            }
        }
        outcomes.extend(self.write_each_if_not_all(&changes, &conditions).await);
        outcomes
    }

    /// Stores the limit that follows from a refusal, and writes an event.
    async fn note_refusal(&self, records: &[NodeRecord], error: &LaunchError) {
        let Some((record, life)) = records.first().and_then(|r| Some((r, r.life()?))) else { return };
        let (seen, now, offering) = (self.run.seen, self.run.now(), &life.offering);
        let change = seen.control.after_refusal(offering, error, &seen.policy, seen.policy_version, now);
        let Some(change) = change else { return };
        let key = change.key.clone();
        // An answer that EC2 did not give says nothing about the other calls of this run.
        if let ControlKey::Limit(class, scope) = &key
            && *class != Class::Unanswered
        {
            self.rate.refuse(scope.clone());
        }
        let written = match self.run.store.change_entry(&change).await {
            Err(e) if e.is_conflict() => self.note_refusal_again(&change.key, change.after).await,
            other => other.map(|_| ()),
        };
        if let Err(e) = written
            && !e.is_conflict()
        {
            tracing::warn!(%key, error = %e, "a refusal was not noted");
        }
        let bad = matches!(error, LaunchError::Refused(r) if matches!(r.class, Class::Refused | Class::Wrong));
        let action = if bad { ActionName::Warn } else { ActionName::HoldBack };
        let reason = Reason::LaunchRefused { size: offering.size.clone(), error: error.to_string() };
        self.run.record_event(&Subject::Slot(record.slot), action, &reason).await;
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

fn extended(mut outcomes: Results, more: Results) -> Results {
    outcomes.extend(more);
    outcomes
}
