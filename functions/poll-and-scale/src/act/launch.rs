//! Launching, safe against a crash between any two steps (`docs/rules.md#R5`).
//!
//! 1. claim the slots: one conditional write with the whole request, its digest and the claim;
//! 2. call EC2 with the tags and the token `{node_id}-{attempt}`, or `{ULID of the batch}-{attempt}`;
//! 3. bind the instances that EC2 launched, and free the slots that got no instance (`bind`).
//!
//! If a run is killed between 1 and 2, a later run repeats the call after the claim has ended, but only if that run
//! renders the same request. If a run is killed between 2 and 3, the next run sees the tagged instances and binds them, or
//! repeats the call and gets the same instances. Source: EC2 API reference, "Ensuring idempotency".
//!
//! One call launches a batch of nodes, unless the user data holds the token of one node (in a local system). Step 1 is then
//! one transaction, so a batch is never half claimed. The call is CreateFleet, which names several ways (`ways` says which).
//! Where EC2 does not take it, the call is RunInstances by one way, and the limit `fleet` remembers that.
//!
//! Guarantees: only the run that wrote the claim makes the call; only that run changes the ways or the batch, in a write of
//! its own before the next call; no node is launched for a job that has changed since it was read, because it may be placed
//! already; after a refusal the same run tries the ways that the refusal does not cover.
//! Does not: choose what to launch, or count the attempts at an offering that EC2 was short of; the plan does.

use super::acting::Acting;
use super::ways::{CallWays, calls_of, first_of};
use crate::plan::{Action, PlannedAction};
use model::control::{LaunchWait, LimitChange};
use model::launch::{Launched, client_token};
use model::{
    ActionName, Batch, Class, ControlKey, JobId, LaunchAnswer, LaunchCall, LaunchError, LaunchRequest, Life, NewLife,
    NodeId, NodeRecord, Offering, Reach, Reason, Refusal, Slot, Subject,
};
use runtime::answer::{ActError, ActionResult};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use store::{Cond, WriteError, ignore_conflict, together};

/// The results of the launches of one call, by slot.
pub(super) type LaunchResults = BTreeMap<Slot, ActionResult>;

/// A record before and after a change. `None` before: the slot has no row yet.
pub(super) type Change = (Option<NodeRecord>, NodeRecord);

const fn job_of(planned: &PlannedAction) -> Option<JobId> {
    if let Action::Launch { job_id, .. } = &planned.action { *job_id } else { None }
}

pub(super) fn every(slots: impl Iterator<Item = Slot>, result: &ActionResult) -> LaunchResults {
    slots.map(|slot| (slot, result.clone())).collect()
}

fn of_all(records: &[NodeRecord], result: &ActionResult) -> LaunchResults {
    every(records.iter().map(|r| r.slot), result)
}

impl Acting<'_> {
    /// Waits until `launch.calls_per_second` allows a call. Returns whether the run may still make it.
    async fn may_call(&self) -> bool {
        self.rate.wait(self.run.latest_start()).await && !self.rate.is_stopped() && self.run.may_begin()
    }

    /// Notes that a launch of an offering that was short succeeded: the next run may try this offering twice as often.
    async fn note_launch(&self, offering: &Offering) {
        let before = self.run.observed.control.shortage(offering);
        let Some(attempts) = before.attempts(self.run.observed.observed_at) else { return };
        let after = before.succeeded(attempts, self.run.observed.policy.launch.max_per_run, self.run.now());
        if let Err(e) = ignore_conflict(self.run.store.write_entry(&before, &after).await) {
            tracing::warn!(key = %ControlKey::shortage_of(offering), error = %e, "a launch that succeeded was not noted");
        }
    }

    /// Claims these slots, each for its reason, and launches the first of these offerings that EC2 has. The next run
    /// launches the slots that do not fit into one batch.
    pub(super) async fn launch(
        &self,
        call: &[&PlannedAction],
        offerings: &[Offering],
    ) -> Result<Vec<ActionResult>, ActError> {
        let slot = |p: &PlannedAction| if let Action::Launch { slot, .. } = &p.action { Some(*slot) } else { None };
        let waiting = self.still_waiting(call).await?;
        let needed = call.iter().filter(|p| job_of(p).is_none_or(|job| waiting.contains(&job)));
        let wanted: Vec<(Slot, String)> = needed.filter_map(|p| Some((slot(p)?, p.reason.to_string()))).collect();
        if wanted.is_empty() {
            return Err(ActError::CONFLICT);
        }
        let is_whole =
            call.len() > 1 && call.iter().all(|p| matches!(p.action, Action::Launch { is_member: true, .. }));
        let mut results = self.launch_in(&wanted, offerings, is_whole).await;
        let result =
            |p: &&PlannedAction| slot(p).and_then(|slot| results.remove(&slot)).unwrap_or(ActionResult::CONFLICT);
        Ok(call.iter().map(result).collect())
    }

    /// The jobs of these launches that have not changed since the plan saw them. The queue is read before the nodes. Between the
    /// two reads, another run may have placed a job on a node that the plan then saw as full.
    async fn still_waiting(&self, call: &[&PlannedAction]) -> Result<BTreeSet<JobId>, ActError> {
        let jobs: BTreeSet<JobId> = call.iter().filter_map(|p| job_of(p)).collect();
        if jobs.is_empty() {
            return Ok(jobs);
        }
        let rows = self.run.store.jobs_of(jobs).await?.rows;
        Ok(rows.iter().filter(|job| self.is_as_read(job)).map(|job| job.summary.job_id).collect())
    }

    async fn launch_in(&self, wanted: &[(Slot, String)], offerings: &[Offering], is_whole: bool) -> LaunchResults {
        let mut outcomes = every(wanted.iter().map(|(slot, _)| *slot), &ActionResult::LEFT);
        let mut rest = calls_of(offerings, self.run.observed.policy.launch.zone_share, self.rate.launch_call());
        let Some(first) = self.next_ways(&mut rest).await else { return outcomes };
        match self.claim(wanted, first, is_whole).await {
            Ok(records) => outcomes.extend(self.launch_claimed(records, rest).await),
            Err(error) => return every(wanted.iter().map(|(slot, _)| *slot), &error.into()),
        }
        outcomes
    }

    /// The ways of the next call that this run may make. Waits for the turn of that call.
    pub(super) async fn next_ways(&self, rest: &mut VecDeque<CallWays>) -> Option<CallWays> {
        loop {
            let mut ways = rest.pop_front()?;
            ways.retain(|way| !self.rate.is_refused(way));
            if ways.is_empty() {
                continue;
            }
            if !self.may_call().await {
                return None;
            }
            // EC2 may have refused another call of this run during the wait.
            ways.retain(|way| !self.rate.is_refused(way));
            if !ways.is_empty() {
                return Some(ways);
            }
        }
    }

    /// Claims these slots for one call, all or none.
    async fn claim(
        &self,
        wanted: &[(Slot, String)],
        ways: CallWays,
        is_whole: bool,
    ) -> Result<Vec<NodeRecord>, ActError> {
        let now = self.run.now();
        let ulid = self.run.store.rng().ulid(now);
        let slots = || wanted.iter().map(|(slot, _)| *slot);
        let batch = if wanted.len() > 1 { Batch::of_lowest(ulid, slots().collect()) } else { None };
        let mut changes: Vec<Change> = Vec::with_capacity(wanted.len());
        let mut digest = None;
        let (offering, others) = first_of(&ways)?;
        for (slot, reason) in wanted.iter().filter(|(s, _)| batch.as_ref().is_none_or(|b| b.slots().contains(s))) {
            let node_id = NodeId::new(*slot, ulid);
            let launched = Launched::of(node_id, batch.as_ref(), is_whole);
            let request_digest = digest.get_or_insert_with(|| self.render(launched, &ways).digest()).clone();
            let (offering, others) = (offering.clone(), others.clone());
            let life = NewLife { node_id, offering, others, request_digest, batch: batch.clone(), is_whole };
            let previous = self.run.locks.record(*slot);
            let claimed = NodeRecord::assign(*slot, previous.as_ref(), life, now, reason)?;
            changes.push((previous, claimed));
        }
        Ok(self.write_nodes(&changes, &[]).await?)
    }

    /// Launches the claimed nodes. After a refusal, tries the ways that the refusal does not cover.
    async fn launch_claimed(&self, mut records: Vec<NodeRecord>, mut rest: VecDeque<CallWays>) -> LaunchResults {
        let mut outcomes = LaunchResults::new();
        let last = loop {
            let Some(life) = records.first().and_then(NodeRecord::life).cloned() else { return outcomes };
            let error = match self.call(&records).await {
                Ok(answer) if answer.instances.is_empty() => {
                    rest.push_front(answer.untried.clone());
                    answer.why_nothing()
                }
                Ok(answer) => break self.settle(&records, &answer).await,
                Err(error @ LaunchError::Refused(_)) => {
                    self.split(&error, &life, &mut rest);
                    error
                }
                // EC2 does not read a call that it throttles, so nothing was launched.
                Err(error @ LaunchError::Throttled(_)) => break self.refused(&records, error).await,
                // It is not known whether EC2 launched anything, so the records stay as they are.
                Err(error) => break of_all(&records, &error.into()),
            };
            // The run renews the claim only after the wait for its turn, because the claim must last for the whole call.
            let next = self.after_refusal(&error, &life, &mut rest).await;
            let Some((ways, batch)) = next else { break self.refused(&records, error).await };
            match self.next_attempt(&records, &ways, batch.as_ref(), &error).await {
                Ok((claimed, freed)) => {
                    outcomes.extend(every(freed.into_iter(), &error.into()));
                    records = claimed;
                }
                Err(error) => break of_all(&records, &error.into()),
            }
        };
        outcomes.extend(last);
        outcomes
    }

    /// Makes each way a call of its own if EC2 does not take the call of several ways.
    fn split(&self, error: &LaunchError, life: &Life, rest: &mut VecDeque<CallWays>) {
        if matches!(error, LaunchError::Refused(refusal) if refusal.reach == Reach::Fleet) {
            let ways: CallWays = life.ways().into_iter().chain(rest.drain(..).flatten()).collect();
            *rest = calls_of(&ways, self.run.observed.policy.launch.zone_share, LaunchCall::One);
        }
    }

    /// The ways and the batch of the next call after a refusal. A quota may still have room for half of the batch; otherwise the
    /// next ways are tried. Waits for the turn of the call. `None`: no way is left, or the run may make no further call.
    async fn after_refusal(
        &self,
        error: &LaunchError,
        life: &Life,
        rest: &mut VecDeque<CallWays>,
    ) -> Option<(CallWays, Option<Batch>)> {
        let is_quota = matches!(error, LaunchError::Refused(refusal) if refusal.class == Class::Quota);
        let may_be_half = is_quota && !life.is_whole;
        let half = life.batch.as_ref().and_then(Batch::half).filter(|_| may_be_half);
        if let Some(half) = half {
            return self.may_call().await.then(|| (life.ways(), Some(half)));
        }
        Some((self.next_ways(rest).await?, life.batch.clone()))
    }

    /// Changes the ways or the batch of the claimed records, in a write of its own before the call. The same write frees the
    /// slots that are no longer in the batch. Returns the records that stay claimed, and the freed slots.
    async fn next_attempt(
        &self,
        records: &[NodeRecord],
        ways: &CallWays,
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
                let digest = self.render(launched, ways).digest();
                record.next_attempt(first_of(ways)?, batch.cloned(), digest, now)?
            };
            changes.push((Some(record.clone()), after));
        }
        let mut written = self.write_nodes(&changes, &[Cond::Absent("instance_id")]).await?;
        written.retain(|r| !r.is_cleaned());
        Ok((written, freed))
    }

    /// Repeats a launch whose answer never came, with the same token, for its nodes that have no instance.
    pub(super) async fn relaunch(&self, call: &[&PlannedAction]) -> Vec<ActionResult> {
        let node = |p: &PlannedAction| if let Action::Relaunch(node_id) = &p.action { Some(*node_id) } else { None };
        let nodes: Vec<NodeId> = call.iter().filter_map(|p| node(p)).collect();
        let all = |result: ActionResult| every(nodes.iter().map(|n| n.slot()), &result);
        let mut results = self.relaunch_in(&nodes).await.unwrap_or_else(all);
        let mut of = |node_id: NodeId| results.remove(&node_id.slot());
        call.iter().map(|p| node(p).and_then(&mut of).unwrap_or(ActionResult::CONFLICT)).collect()
    }

    /// The result of each node. The error is one result for all of them.
    async fn relaunch_in(&self, nodes: &[NodeId]) -> Result<LaunchResults, ActionResult> {
        let records: Vec<NodeRecord> = nodes.iter().map(|n| self.record(*n)).collect::<Result<_, _>>()?;
        let Some(life) = records.first().and_then(NodeRecord::life) else { return Err(ActionResult::CONFLICT) };
        if self.claimed(life).is_none() {
            // The policy has changed, so EC2 would refuse the token with another request. Later runs wait for the
            // tagged instances, or abandon the launch.
            return Err(ActionResult::REPORTED);
        }
        if !self.may_call().await || life.ways().iter().all(|way| self.rate.is_refused(way)) {
            return Err(ActionResult::LEFT);
        }
        let records = self.reclaim(&records).await?;
        match self.call(&records).await {
            Ok(answer) if answer.instances.is_empty() => Ok(self.refused(&records, answer.why_nothing()).await),
            Ok(answer) => Ok(self.settle(&records, &answer).await),
            // This error says nothing about the first call, which may have launched instances.
            Err(error) => Err(error.into()),
        }
    }

    async fn reclaim(&self, records: &[NodeRecord]) -> Result<Vec<NodeRecord>, ActError> {
        let now = self.run.now();
        let reclaimed = |record: &NodeRecord| Ok((Some(record.clone()), record.reclaim(now)?));
        let changes = records.iter().map(reclaimed).collect::<Result<Vec<Change>, ActError>>()?;
        Ok(self.write_nodes(&changes, &[Cond::Absent("instance_id")]).await?)
    }

    /// The request by these ways. Several ways are a fleet.
    pub(super) fn render<'l>(&self, launched: impl Into<Launched<'l>>, ways: &[Offering]) -> LaunchRequest {
        let call = if ways.len() == 1 { self.rate.launch_call() } else { LaunchCall::Fleet };
        LaunchRequest { call, ..LaunchRequest::render(self.settings, &self.run.observed.policy, launched, ways) }
    }

    /// The request that this life has claimed, whichever call it is. `None` if the policy renders another one by now.
    fn claimed(&self, life: &Life) -> Option<LaunchRequest> {
        let request = LaunchRequest::render(self.settings, &self.run.observed.policy, life.launched(), &life.ways());
        let of_call = |call| LaunchRequest { call, ..request.clone() };
        [LaunchCall::Fleet, LaunchCall::One].map(of_call).into_iter().find(|r| r.digest() == life.request_digest)
    }

    /// Makes the one launch call of these records, and notes what EC2 refused.
    async fn call(&self, records: &[NodeRecord]) -> Result<LaunchAnswer, LaunchError> {
        let claimed = |record: &NodeRecord| Some((record.slot, record.life()?.clone(), self.claimed(record.life()?)?));
        let Some((slot, life, request)) = records.first().and_then(claimed) else {
            return Err(LaunchError::Lost("the record is cleaned, or the policy is another".into()));
        };
        let answer = self.cloud.launch(&request, &client_token(&life)).await;
        match &answer {
            Ok(answer) => {
                for (way, error) in &answer.refused {
                    self.note_refusal(slot, way, error).await;
                }
            }
            Err(error) => self.note_refusal(slot, &life.offering, error).await,
        }
        answer
    }

    /// Binds each record to an instance, and frees the slots without one.
    async fn settle(&self, records: &[NodeRecord], answer: &LaunchAnswer) -> LaunchResults {
        let Some(life) = records.first().and_then(NodeRecord::life) else { return LaunchResults::new() };
        let asked = life.batch.as_ref().map_or(1, |batch| batch.slots().len());
        let few = Refusal::short(format!("EC2 launched {} of the {asked} instances", answer.instances.len()));
        let few = LaunchError::from(few);
        let slots: Vec<Slot> = records.iter().map(|record| record.slot).collect();
        let outcomes = self.bind(life.node_id.ulid(), &slots, &answer.instances, Some(&few)).await;
        if answer.instances.len() < asked && answer.refused.is_empty() {
            if let Some(record) = records.first() {
                self.note_refusal(record.slot, &life.offering, &few).await;
            }
            return outcomes;
        }
        let mut launched: Vec<&Offering> = answer.instances.iter().map(|instance| life.way_of(instance)).collect();
        launched.sort_by_key(|way| ControlKey::shortage_of(way));
        launched.dedup();
        for way in launched {
            self.note_launch(way).await;
        }
        outcomes
    }

    /// Frees the slots at once, because EC2 has launched nothing for them.
    async fn refused(&self, records: &[NodeRecord], error: LaunchError) -> LaunchResults {
        let (now, reason) = (self.run.now(), error.to_string());
        let mut outcomes = of_all(records, &error.into());
        // An earlier call of this life, by a run that was killed, may have launched an instance. So the write requires
        // that no instance is bound and no heartbeat has arrived.
        let conditions = [Cond::Absent("instance_id"), Cond::Absent("first_ping_at")];
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

    /// Writes these changes together, or each alone if somebody has changed one of the records. Returns what failed.
    async fn write_each_if_not_all(&self, changes: &[Change], conditions: &[Cond]) -> LaunchResults {
        let mut failed = LaunchResults::new();
        for (some, written) in together(changes, |some| self.write_nodes(some, conditions)).await {
            if let Err(error) = written {
                failed.extend(every(some.iter().map(|(_, after)| after.slot), &error.into()));
            }
        }
        failed
    }

    /// The limit that follows from a refusal. This run makes no further call that it covers.
    pub(super) fn limit_after(&self, offering: &Offering, error: &LaunchError) -> LimitChange {
        let (observed, now) = (self.run.observed, self.run.now());
        let change = observed.control.after_refusal(offering, error, &observed.policy, observed.policy_version, now);
        // An answer that EC2 did not give says nothing about the other calls of this run.
        if let ControlKey::Limit(class, scope) = &change.key
            && *class != Class::Unanswered
        {
            self.rate.refuse(scope.clone());
        }
        change
    }

    /// Stores the limit that follows from a refusal, and writes an event.
    async fn note_refusal(&self, slot: Slot, offering: &Offering, error: &LaunchError) {
        let change = self.limit_after(offering, error);
        let key = change.key.clone();
        let written = match self.run.store.write_entry(&change.before, &change.after).await {
            Err(e) if e.is_conflict() => self.note_refusal_again(&change).await,
            other => other.map(|_| ()),
        };
        if let Err(e) = ignore_conflict(written) {
            tracing::warn!(%key, error = %e, "a refusal was not noted");
        }
        let is_bad = |r: &Refusal| matches!(r.class, Class::Refused | Class::Wrong) && r.reach != Reach::Fleet;
        let bad = matches!(error, LaunchError::Refused(refusal) if is_bad(refusal));
        let action = if bad { ActionName::Warn } else { ActionName::HoldBack };
        let reason = Reason::LaunchRefused { size: offering.size.clone(), error: error.to_string() };
        self.run.record_event(&Subject::Slot(slot), action, &reason).await;
    }

    /// Stores the limit again after a lost race against a successful launch or another refusal. An entry whose refusal
    /// still applies stays. Any other entry is overwritten.
    async fn note_refusal_again(&self, change: &LimitChange) -> Result<(), WriteError> {
        let before = self.run.store.entry::<LaunchWait>(&change.key).await?;
        if before.is_refused_already(self.run.now()) {
            return Ok(());
        }
        self.run.store.write_entry(&before, &change.after).await.map(|_| ())
    }
}
