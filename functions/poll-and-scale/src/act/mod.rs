//! Carrying a plan out: conditional writes and EC2 calls, each made once.
//!
//! Guarantees: nothing is decided here but "someone else was first"; actions on one record
//! follow each other and build on this run's own writes; nothing is begun with too little time
//! left or on an observation that is too old; every action done leaves an event with its reason.
//! Does not: repeat anything that failed: the next run does.

mod launch;

use crate::plan::{Action, Note, Plan, Planned, window_over};
use futures::{FutureExt, StreamExt};
use shared::cloud::{Cloud, CloudError, InstanceState, LaunchSettings};
use shared::events::{Event, Subject};
use shared::ids::{AllocId, JobId, NodeId};
use shared::model::{
    Alloc, ClientStatus, Desired, Ending, Job, JobState, NodeRecord, NodeState, NodeStatus, NotPossible,
};
use shared::observation::Observation;
use shared::run::{ActionAnswer, Done, Lane, Lanes, RunClock};
use shared::steps::{self, Keep};
use shared::store::{
    Cond, DbError, Memory, RunRow, Store, Write, WriteError, change, no_job, no_live_allocs, silent_since, unchanged,
};
use shared::time::{Span, Time};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// The memory of failed starts in a row.
const BOOT_FAILURES: &str = "boot_failures";
/// How many actions are under way at once.
const CONCURRENCY: usize = 8;

/// Why an action was not done.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ActError {
    #[error(transparent)]
    Write(#[from] WriteError),
    #[error(transparent)]
    Cloud(#[from] CloudError),
    #[error("{0}")]
    NotPossible(#[from] NotPossible),
    #[error("{0}")]
    Launch(#[from] shared::cloud::LaunchError),
}

impl From<DbError> for ActError {
    fn from(e: DbError) -> Self {
        Self::Write(e.into())
    }
}

const CONFLICT: ActError = ActError::Write(WriteError::CONFLICT);

pub(crate) struct Acting<'a> {
    pub(crate) store: &'a Store,
    pub(crate) cloud: &'a dyn Cloud,
    pub(crate) settings: &'a LaunchSettings,
    pub(crate) seen: &'a Observation,
    pub(crate) clock: RunClock,
    pub(crate) lanes: Lanes,
    pub(crate) keep: Keep,
    /// Instances to terminate, in as few calls as EC2 takes.
    terminate: Mutex<Vec<String>>,
    pub(crate) pace: launch::Pace,
    /// The count of failed starts as this run last wrote it.
    failed_starts: tokio::sync::Mutex<Option<Memory>>,
}

/// Does what was planned. The answers are in the plan's order.
pub async fn act(
    store: &Store,
    cloud: &dyn Cloud,
    settings: &LaunchSettings,
    seen: &Observation,
    plan: Plan,
    clock: RunClock,
) -> Vec<ActionAnswer> {
    let acting = Acting {
        store,
        cloud,
        settings,
        seen,
        clock,
        lanes: Lanes::new(&seen.nodes),
        keep: Keep::of(&seen.policy),
        terminate: Mutex::default(),
        pace: launch::Pace::new(seen.policy.launch.calls_per_second),
        failed_starts: tokio::sync::Mutex::default(),
    };
    acting.note_success().await;
    // Launches last: they wait for each other, and nothing should wait for them.
    let (launches, others): (Vec<_>, Vec<_>) = plan
        .actions
        .iter()
        .enumerate()
        .partition(|(_, p)| matches!(p.action, Action::Launch { .. } | Action::Relaunch(_)));
    let mut answers = acting.all(others).await;
    let terminated = acting.terminate_batch().await;
    if let Err(error) = &terminated {
        for (n, _) in plan.actions.iter().enumerate().filter(|(_, p)| matches!(p.action, Action::Terminate { .. })) {
            if let Some((_, answer)) = answers.iter_mut().find(|(at, a)| *at == n && a.done) {
                answer.done = false;
                answer.outcome = Done::Failed;
                answer.error = Some(error.to_string());
            }
        }
    }
    answers.extend(acting.all(launches).await);
    answers.sort_by_key(|(n, _)| *n);
    let answers: Vec<ActionAnswer> = answers.into_iter().map(|(_, a)| a).collect();
    acting.write_run(&answers).await;
    answers
}

impl Acting<'_> {
    pub(crate) fn now(&self) -> Time {
        self.clock.now()
    }

    async fn all(&self, actions: Vec<(usize, &Planned)>) -> Vec<(usize, ActionAnswer)> {
        let work: Vec<_> =
            actions.into_iter().map(|(n, planned)| async move { (n, self.one(planned).await) }.boxed()).collect();
        futures::stream::iter(work).buffer_unordered(CONCURRENCY).collect().await
    }

    fn may_begin(&self) -> bool {
        let policy = &self.seen.policy;
        let age = self.now().since(self.seen.observed_at);
        self.clock.has_left(policy.watchdog.reserve_ms) && age <= Span::from_s(policy.poll.stale_after_s)
    }

    /// Until when something may be begun.
    pub(crate) fn latest_start(&self) -> Instant {
        let policy = &self.seen.policy;
        let fresh = (self.seen.observed_at + Span::from_s(policy.poll.stale_after_s)).since(self.now());
        let fresh = Instant::now() + Duration::from_millis(u64::try_from(fresh.as_ms()).unwrap_or(0));
        fresh.min(self.clock.latest(policy.watchdog.reserve_ms))
    }

    async fn one(&self, planned: &Planned) -> ActionAnswer {
        let _lanes = self.lanes.enter(lanes(&planned.action)).await;
        if !self.may_begin() {
            return ActionAnswer::new(planned.row(), Done::Left, None);
        }
        let result = self.perform(&planned.action, &planned.reason).await;
        let (outcome, error) = match result {
            Ok(done) => (done, None),
            Err(ActError::Write(e)) if e.is_conflict() => (Done::Conflict, None),
            Err(ActError::NotPossible(e)) => (Done::Conflict, Some(e.to_string())),
            Err(e) => {
                tracing::warn!(action = planned.row().action, subject = %planned.subject(), error = %e, "not done");
                (Done::Failed, Some(e.to_string()))
            }
        };
        // A launch that must not be repeated is no news in every run: that it was given up is.
        let not_repeated = matches!(planned.action, Action::Relaunch(_)) && outcome == Done::Said;
        let quiet = matches!(planned.action, Action::SetIdle(..)) || !planned.news || not_repeated;
        if matches!(outcome, Done::Yes | Done::Said) && !quiet {
            self.tell(&planned.subject(), planned.row().action, &planned.reason).await;
        }
        ActionAnswer::new(planned.row(), outcome, error)
    }

    pub(crate) async fn tell(&self, subject: &Subject, action: &str, reason: &str) {
        let keep = self.seen.policy.history.keep_events();
        self.store.tell(&Event::new(subject, action, reason, self.now(), keep, self.store.chance())).await;
    }

    pub(crate) fn life(&self, node_id: NodeId) -> Result<NodeRecord, ActError> {
        self.lanes.life(node_id).ok_or(CONFLICT)
    }

    /// Writes a record that was read, or written by this run, as it must become.
    pub(crate) async fn write_node(
        &self,
        before: &NodeRecord,
        after: &NodeRecord,
        more: Vec<Cond>,
    ) -> Result<NodeRecord, ActError> {
        let written = self.store.write(Some(before), after, more).await?;
        self.lanes.wrote(written.clone());
        Ok(written)
    }

    async fn alloc(&self, id: AllocId) -> Result<Alloc, ActError> {
        let alloc = self.store.alloc(id).await?.ok_or(CONFLICT)?;
        let read = self.seen.allocs.iter().find(|a| a.alloc_id == id).map(|a| a.version);
        // The index may have been behind: then what was decided is about something else.
        if alloc.summary.client.is_final() || read != Some(alloc.summary.version) { Err(CONFLICT) } else { Ok(alloc) }
    }

    async fn job(&self, id: JobId) -> Result<Job, ActError> {
        let job = self.store.job(id).await?.ok_or(CONFLICT)?;
        let read = self.seen.jobs.iter().find(|j| j.job_id == id).map(|j| j.version);
        if read == Some(job.summary.version) { Ok(job) } else { Err(CONFLICT) }
    }

    async fn perform(&self, action: &Action, reason: &str) -> Result<Done, ActError> {
        let now = self.now();
        match action {
            Action::Launch { slot, offerings } => return self.launch(*slot, offerings, reason).await,
            Action::Relaunch(node_id) => return self.relaunch(*node_id).await,
            Action::BindInstance { node_id, instance_id, zone } => {
                let record = self.life(*node_id)?;
                self.write_node(&record, &record.bind(instance_id, zone.as_deref(), now)?, Vec::new()).await?;
            }
            Action::Abandon(node_id) => {
                let record = self.life(*node_id)?;
                self.clean(&record, reason, vec![Cond::Absent("instance_id"), silent_since(&record)]).await?;
            }
            Action::ShutDown { node_id, silent, failed_start } => {
                let record = self.life(*node_id)?;
                let after = record.shut_down(now, reason)?;
                let mut more = Vec::new();
                let deadline = record.life().and_then(|l| l.drain_by_at).is_some_and(|by| now >= by);
                if !deadline {
                    more.push(no_live_allocs());
                }
                if *silent {
                    more.push(silent_since(&record));
                }
                let written = self.write_node(&record, &after, more).await?;
                if *failed_start {
                    self.count_failed_start(&written, now).await;
                }
                if let Some(id) = written.life().and_then(|l| l.instance_id.clone()) {
                    self.terminate_later(id);
                }
            }
            Action::Terminate { node_id, instance_id } => {
                self.life(*node_id)?;
                self.terminate_later(instance_id.clone());
            }
            Action::Clean { node_id, missing } => {
                let record = self.life(*node_id)?;
                let mut more = Vec::new();
                if let Some(instance_id) = missing {
                    // Unknown when asked for by id: the last proof of four.
                    // (EC2 may know a terminated one for an hour after its tags are gone.)
                    let known = self.cloud.instance(instance_id).await?;
                    if known.is_some_and(|i| i.state != InstanceState::Terminated) {
                        return Err(CONFLICT);
                    }
                    more.push(silent_since(&record));
                }
                // Terminated by itself, by EC2 or by others before it called: it did not start either.
                let failed_start = missing.is_none() && matches!(record.state, NodeState::Assigned(_));
                self.clean(&record, reason, more).await?;
                if failed_start {
                    self.count_failed_start(&record, now).await;
                }
            }
            Action::Disconnect(node_id) => self.miss(*node_id, NodeStatus::Disconnected, reason).await?,
            Action::MarkDown(node_id) => self.miss(*node_id, NodeStatus::Down, reason).await?,
            Action::LoseAlloc(id, node_id) => {
                let alloc = self.alloc(*id).await?;
                let record = self.lanes.life(*node_id);
                // The scan may be older than what was read of the alloc: then its node is new, not gone.
                if record.is_none()
                    && self.store.node(node_id.slot()).await?.and_then(|r| r.node_id()) == Some(*node_id)
                {
                    return Err(CONFLICT);
                }
                self.nobody_waits_for(&alloc, record.as_ref()).await?;
                let ending = Ending::lost(reason);
                let written = steps::end_alloc(self.store, record.as_ref(), &alloc, &ending, self.keep, now).await?;
                if let Some(written) = written {
                    self.lanes.wrote(written);
                }
            }
            Action::UnknownAlloc(id, node_id) => {
                let alloc = self.alloc(*id).await?;
                let record = self.life(*node_id)?;
                let after = alloc.unknown(reason, now).ok_or(CONFLICT)?;
                let mut writes: Vec<Write> = vec![change(Some(&alloc), &after).0];
                // Still disconnected or down, at the version read.
                writes.push(unchanged(&record));
                self.store.transact(&writes).await?;
            }
            Action::StopAlloc(id, node_id) => self.stop(*id, *node_id, reason).await?,
            Action::ResolveReconnect { keep, stop } => self.resolve(*keep, stop, reason).await?,
            Action::Place { job_id, on } => {
                let job = self.job(*job_id).await?;
                let records: Vec<NodeRecord> = on.iter().map(|(_, n)| self.life(*n)).collect::<Result<_, _>>()?;
                let members: Vec<(u32, &NodeRecord)> = on.iter().map(|(m, _)| *m).zip(&records).collect();
                for written in steps::place(self.store, &job, &members, None, self.keep, now).await? {
                    self.lanes.wrote(written);
                }
            }
            Action::Replace { original, on } => {
                let (alloc, job) = (self.alloc(*original).await?, self.job(original.job_id).await?);
                let record = self.life(*on)?;
                let members = [(original.member, &record)];
                for written in steps::place(self.store, &job, &members, Some(&alloc), self.keep, now).await? {
                    self.lanes.wrote(written);
                }
            }
            Action::Reject(job_id) => {
                let job = self.job(*job_id).await?;
                let after = job.reject(reason, self.keep.finished, now).ok_or(CONFLICT)?;
                self.store.write(Some(&job), &after, Vec::new()).await?;
            }
            Action::Requeue(job_id) => {
                let job = self.job(*job_id).await?;
                let rows = self.store.allocs(job.summary.allocs.iter().copied()).await?;
                if rows.iter().any(|a| !a.summary.client.is_final()) {
                    return Err(CONFLICT);
                }
                self.store.write(Some(&job), &job.requeue(reason).ok_or(CONFLICT)?, Vec::new()).await?;
            }
            Action::SetIdle(node_id, idle) => {
                let record = self.life(*node_id)?;
                self.write_node(&record, &record.seen_idle(*idle, now)?, Vec::new()).await?;
            }
            Action::Drain(id, node_id) => {
                let (alloc, record) = (self.alloc(*id).await?, self.life(*node_id)?);
                let written = steps::forsake_alloc(self.store, &record, &alloc, reason, self.keep, now).await?;
                self.lanes.wrote(written);
            }
            Action::Warn(_) => return Ok(Done::Said),
            Action::HoldBack { note, .. } => {
                match note {
                    Note::Nothing => {}
                    Note::Absent(node_id, since) => {
                        let record = self.life(*node_id)?;
                        self.write_node(&record, &record.absent(*since, now)?, Vec::new()).await?;
                    }
                    Note::Brake(memory) => {
                        let before = self.seen.control.memory(&memory.key);
                        self.store.remember(&before, memory).await?;
                    }
                }
                return Ok(Done::Said);
            }
        }
        Ok(Done::Yes)
    }

    pub(crate) async fn clean(&self, record: &NodeRecord, reason: &str, more: Vec<Cond>) -> Result<(), ActError> {
        let cleaned = steps::clean_node(self.store, record, reason, more, self.keep, self.now()).await?;
        self.lanes.wrote(cleaned);
        Ok(())
    }

    async fn miss(&self, node_id: NodeId, status: NodeStatus, reason: &str) -> Result<(), ActError> {
        let record = self.life(node_id)?;
        let after = record.miss(status, self.now(), reason)?;
        // The node that just spoke wins.
        self.write_node(&record, &after, vec![silent_since(&record)]).await?;
        Ok(())
    }

    /// The queue index may be behind: that its job does not regroup, which begins again only when all
    /// that was told to stop has stopped, is read again before a silent node's alloc is given up.
    async fn nobody_waits_for(&self, alloc: &Alloc, record: Option<&NodeRecord>) -> Result<(), ActError> {
        let silent = matches!(record.and_then(NodeRecord::status), Some(NodeStatus::Disconnected | NodeStatus::Down));
        let might_run = matches!(alloc.summary.client, ClientStatus::Running | ClientStatus::Unknown);
        let told = alloc.summary.desired == Desired::Stop;
        let waits = alloc.summary.terms.lost_after_s > 0 && !window_over(&alloc.summary, self.now());
        if silent && might_run && told && waits {
            let job = self.store.job(alloc.id().job_id).await?;
            if job.is_some_and(|j| j.summary.state == JobState::Regrouping) {
                return Err(CONFLICT);
            }
        }
        Ok(())
    }

    /// The queue index may be behind: that the job no longer wants the alloc is read again, and
    /// checked in the transaction.
    async fn stop(&self, id: AllocId, node_id: NodeId, reason: &str) -> Result<(), ActError> {
        let (alloc, record) = (self.alloc(id).await?, self.life(node_id)?);
        let job = self.store.job(id.job_id).await?;
        let wanted = |j: &Job| j.summary.state == JobState::Placed && !j.summary.done.contains(&id.member);
        if job.as_ref().is_some_and(wanted) {
            return Err(CONFLICT);
        }
        let now = self.now();
        let stopped = alloc.stop(reason, now).ok_or(CONFLICT)?;
        let (write, told) = change(Some(&record), &record.with_news(now)?);
        let check = job.as_ref().map_or_else(|| no_job(id.job_id), unchanged);
        self.store.transact(&[change(Some(&alloc), &stopped).0, write, check]).await?;
        self.lanes.wrote(told);
        Ok(())
    }

    /// One transaction for all live copies of a member that are not unknown; the job's version says
    /// that there are no others.
    async fn resolve(&self, keep: AllocId, stop: &[AllocId], reason: &str) -> Result<(), ActError> {
        let now = self.now();
        let mut writes = vec![unchanged(&self.job(keep.job_id).await?)];
        let mut told: Vec<(NodeRecord, NodeRecord)> = Vec::new();
        for id in std::iter::once(&keep).chain(stop) {
            let alloc = self.alloc(*id).await?;
            if alloc.summary.client == ClientStatus::Unknown {
                return Err(CONFLICT);
            }
            let after = alloc.resolved(*id == keep, reason, now);
            writes.push(change(Some(&alloc), &after).0);
            if alloc.summary.desired == Desired::Run && after.summary.desired == Desired::Stop {
                let record = self.life(alloc.summary.node_id)?;
                if !told.iter().any(|(before, _)| before.slot == record.slot) {
                    let after = record.with_news(now)?;
                    told.push((record, after));
                }
            }
        }
        let mut written = Vec::new();
        for (before, after) in &told {
            let (write, after) = change(Some(before), after);
            writes.push(write);
            written.push(after);
        }
        self.store.transact(&writes).await?;
        for record in written {
            self.lanes.wrote(record);
        }
        Ok(())
    }

    fn terminate_later(&self, instance_id: String) {
        self.terminate.lock().unwrap_or_else(PoisonError::into_inner).push(instance_id);
    }

    async fn terminate_batch(&self) -> Result<(), CloudError> {
        let mut ids = std::mem::take(&mut *self.terminate.lock().unwrap_or_else(PoisonError::into_inner));
        ids.sort_unstable();
        ids.dedup();
        if ids.is_empty() { Ok(()) } else { self.cloud.terminate(&ids).await }
    }

    /// One start that succeeded since the last failure ends the count, and the pause with it. Looked at
    /// in every run: by the next failure the node that started well may be gone.
    async fn note_success(&self) {
        let before = self.seen.control.memory(BOOT_FAILURES);
        let success = self.seen.nodes.iter().filter_map(|n| n.contact()).map(|c| c.first_ping_at).max();
        if before.count.unwrap_or(0) == 0 || success <= before.since_at {
            return;
        }
        let after = Memory { count: Some(0), wait_s: None, until_at: None, ..before.clone() };
        match self.store.remember(&before, &after).await {
            Ok(written) => *self.failed_starts.lock().await = Some(written),
            Err(e) => tracing::warn!(error = %e, "a start that succeeded was not noted"),
        }
    }

    async fn count_failed_start(&self, record: &NodeRecord, now: Time) {
        let read = self.seen.control.memory(BOOT_FAILURES);
        // Many may fail in one run: each is counted on what this run wrote last.
        let mut last = self.failed_starts.lock().await;
        let before = last.clone().unwrap_or_else(|| read.clone());
        let count = before.count.unwrap_or(0).saturating_add(1);
        let pause = count >= u64::from(self.seen.policy.boot.failures_before_pause);
        let wait_s = pause.then(|| read.wait_s.map_or(60, |w| w.saturating_mul(2)).min(3600));
        let first = pause && !before.holds(now);
        let output = match record.life().and_then(|l| l.instance_id.as_deref()) {
            Some(id) if first => self.cloud.console_output(id).await.ok().flatten(),
            _ => None,
        };
        let after = Memory {
            since_at: Some(now),
            count: Some(count),
            wait_s,
            until_at: wait_s.map(|w| now + Span::from_s(w)),
            ..before.clone()
        };
        match self.store.remember(&before, &after).await {
            Ok(written) => *last = Some(written),
            Err(e) => tracing::warn!(error = %e, "a failed start was not counted"),
        }
        if pause {
            // From now on: what this run had planned to launch as well.
            self.pace.stop();
        }
        if first {
            let tail: String =
                output.unwrap_or_default().chars().rev().take(4000).collect::<Vec<_>>().into_iter().rev().collect();
            let reason = format!(
                "{count} starts failed in a row: launching pauses for {} s; console: {tail}",
                wait_s.unwrap_or(0)
            );
            self.tell(&Subject::Cluster, "hold_back", &reason).await;
        }
    }

    /// What this run did, for the watchdog and for `status`.
    async fn write_run(&self, answers: &[ActionAnswer]) {
        let before = self.seen.control.runs.get(crate::FUNCTION);
        let row = RunRow {
            in_use: Some(self.seen.nodes.iter().filter(|n| n.status().is_some()).count() as u64),
            ..RunRow::after(crate::FUNCTION, before, self.seen.observed_at, self.clock.elapsed(), answers)
        };
        self.store.write_run(before, &row).await;
    }
}

/// The records an action reads and writes.
fn lanes(action: &Action) -> Vec<Lane> {
    let of_alloc = |a: &AllocId, n: &NodeId| vec![Lane::Slot(n.slot()), Lane::Job(a.job_id)];
    match action {
        Action::Launch { slot, .. } => vec![Lane::Slot(*slot)],
        Action::Relaunch(n)
        | Action::Abandon(n)
        | Action::Disconnect(n)
        | Action::MarkDown(n)
        | Action::SetIdle(n, _)
        | Action::BindInstance { node_id: n, .. }
        | Action::ShutDown { node_id: n, .. }
        | Action::Terminate { node_id: n, .. }
        | Action::Clean { node_id: n, .. } => vec![Lane::Slot(n.slot())],
        Action::LoseAlloc(a, n)
        | Action::UnknownAlloc(a, n)
        | Action::StopAlloc(a, n)
        | Action::Drain(a, n)
        | Action::Replace { original: a, on: n } => of_alloc(a, n),
        Action::ResolveReconnect { keep, .. } => vec![Lane::Job(keep.job_id)],
        Action::Place { job_id, on } => {
            std::iter::once(Lane::Job(*job_id)).chain(on.iter().map(|(_, n)| Lane::Slot(n.slot()))).collect()
        }
        Action::Reject(j) | Action::Requeue(j) => vec![Lane::Job(*j)],
        Action::HoldBack { note: Note::Absent(n, _), .. } => vec![Lane::Slot(n.slot())],
        Action::Warn(_) | Action::HoldBack { .. } => Vec::new(),
    }
}
