//! The one run loop of the scheduled functions.
//!
//! For each call of a plan the loop waits for the locks, checks freshness and deadline, makes one attempt, and writes
//! an event. At the end it writes the run's row. The metrics and the log line of the run are made from its answer
//! (see `metrics`).
//!
//! Guarantees: no action starts with too little time left, or on an observation that is too old; actions on the same
//! record run one after the other, and each sees what this run wrote before; every action that was carried out leaves
//! an event with its reason, unless the plan says that nobody would look it up.
//! Does not: repeat anything. The next run does.
//! Source: Arvados #8236, carried over from a server to functions: Lambda ends a function that hangs, so a
//! run must stop in time and say what it left.

use crate::answer::{ActError, ActionAnswer, ActionOutcome, ActionResult, tally, terminated};
use crate::clock::RunClock;
use crate::observation::Observation;
use crate::record_locks::RecordLocks;
use crate::signs::listing;
use async_trait::async_trait;
use futures::{FutureExt, StreamExt};
use model::action::Planned;
use model::control::{ListPlace, RunNote, RunRow};
use model::functions::POLL_AND_SCALE;
use model::{
    ActionName, BrakeChange, ControlKey, Describe, Event, EventPolicy, Function, Plan, Reason, Span, Subject, Time,
};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use store::{Store, WriteError, ignore_conflict};
use tokio::time::Instant;

/// How many events are written together at most.
const EVENTS_TOGETHER: usize = 25;

/// How a function carries out its actions.
#[async_trait]
pub trait Perform<A>: Sync {
    /// The calls of a plan. A step begins when the one before it has ended.
    fn steps<'p>(&self, plan: &'p Plan<A>) -> Vec<CallStep<'p, A>>;

    /// Makes one attempt at the actions of a call, which are of one kind. Returns what became of each, in the same order, or
    /// one error for all of them. `now` is the time of the attempt.
    async fn perform(&self, call: &[&Planned<A>], now: Time) -> Result<Vec<ActionResult>, ActError>;

    /// Notes what the next runs need besides the actions.
    async fn note(&self, _plan: &Plan<A>) {}
}

pub struct Run<'a> {
    pub function: Function,
    pub store: &'a Store,
    pub observed: &'a Observation,
    pub clock: RunClock,
    pub locks: RecordLocks<'a>,
    events: Mutex<Events>,
}

/// The events that wait to be written.
#[derive(Debug, Default)]
struct Events {
    waiting: Vec<Event>,
    /// Whether an action of the run is writing events. It also writes those that are added meanwhile.
    is_writing: bool,
}

/// An action and its place in the plan.
pub type Numbered<'p, A> = (usize, &'p Planned<A>);

/// Actions that are carried out with one attempt: most often one.
pub type ActionCall<'p, A> = Vec<Numbered<'p, A>>;

/// Calls that are made at the same time.
pub struct CallStep<'p, A> {
    calls: Vec<ActionCall<'p, A>>,
    /// How many of them.
    at_once: usize,
}

impl<'p, A> CallStep<'p, A> {
    pub const fn new(calls: Vec<ActionCall<'p, A>>, at_once: usize) -> Self {
        Self { calls, at_once }
    }

    /// Each of these actions is a call of its own.
    pub fn each_alone(actions: impl IntoIterator<Item = Numbered<'p, A>>, at_once: usize) -> Self {
        Self::new(actions.into_iter().map(|numbered| vec![numbered]).collect(), at_once)
    }
}

impl<'a> Run<'a> {
    pub fn new(function: Function, store: &'a Store, seen: &'a Observation, clock: RunClock) -> Self {
        Self { function, store, observed: seen, clock, locks: RecordLocks::new(&seen.nodes), events: Mutex::default() }
    }

    pub fn now(&self) -> Time {
        self.clock.now()
    }

    /// Whether an action may still be started: enough time is left, and the observation is fresh.
    pub fn may_begin(&self) -> bool {
        let policy = &self.observed.policy;
        let age = self.now().since(self.observed.observed_at);
        self.clock.has_left(policy.watchdog.reserve_ms) && age <= Span::from_s(policy.poll.stale_after_s)
    }

    /// The latest time at which an action may be started.
    pub fn latest_start(&self) -> Instant {
        let policy = &self.observed.policy;
        let fresh = (self.observed.observed_at + Span::from_s(policy.poll.stale_after_s)).since(self.now());
        let fresh = Instant::now() + Duration::from_millis(u64::try_from(fresh.as_ms()).unwrap_or(0));
        fresh.min(self.clock.latest(policy.watchdog.reserve_ms))
    }

    /// Writes an event with the time of the run. An event that cannot be written is logged.
    pub async fn record_event(&self, subject: &Subject, action: ActionName, reason: &Reason) {
        self.keep([self.event(subject, action, &reason.to_string())]).await;
    }

    fn event(&self, subject: &Subject, action: ActionName, reason: &str) -> Event {
        let keep = self.observed.policy.history.keep_events();
        Event::new(subject, action, reason, self.now(), keep, self.store.rng())
    }

    /// Writes these events. If another action of the run is writing events, it takes these too, so that several events
    /// are one call. An action ends only when it has written the events that it took, so no event waits for long.
    async fn keep(&self, events: impl IntoIterator<Item = Event>) {
        {
            let mut held = self.events();
            held.waiting.extend(events);
            if std::mem::replace(&mut held.is_writing, true) {
                return;
            }
        }
        loop {
            let next: Vec<Event> = {
                let mut held = self.events();
                let many = held.waiting.len().min(EVENTS_TOGETHER);
                held.is_writing = many > 0;
                held.waiting.drain(..many).collect()
            };
            if next.is_empty() {
                return;
            }
            self.store.record_events(&next).await;
        }
    }

    fn events(&self) -> MutexGuard<'_, Events> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Carries out a plan, and writes the run's row for the watchdog and for `status`. The answers are in the order of the plan.
    pub async fn act<A: Describe + Sync>(&self, performer: &impl Perform<A>, plan: &Plan<A>) -> Vec<ActionAnswer> {
        let mut answers = Vec::with_capacity(plan.actions.len());
        for CallStep { calls, at_once } in performer.steps(plan) {
            let work: Vec<_> = calls.into_iter().map(|call| self.one(performer, call).boxed()).collect();
            let of_step: Vec<Vec<_>> = futures::stream::iter(work).buffer_unordered(at_once).collect().await;
            answers.extend(of_step.into_iter().flatten());
        }
        answers.sort_by_key(|(n, _)| *n);
        let answers: Vec<ActionAnswer> = answers.into_iter().map(|(_, answer)| answer).collect();
        self.use_releases(plan, &answers).await;
        performer.note(plan).await;
        self.write_row(&answers).await;
        answers
    }

    /// Carries out a call. Calls that change the same record run one after the other.
    async fn one<A: Describe + Sync>(
        &self,
        performer: &impl Perform<A>,
        call: ActionCall<'_, A>,
    ) -> Vec<(usize, ActionAnswer)> {
        let _locks = self.locks.enter(call.iter().flat_map(|(_, planned)| planned.action.about().lock_keys())).await;
        let planned: Vec<&Planned<A>> = call.iter().map(|(_, planned)| *planned).collect();
        // A call without a planned action ends what the run itself has begun.
        let results = if planned.is_empty() || self.may_begin() {
            let performed = performer.perform(&planned, self.now()).await;
            performed.unwrap_or_else(|error| vec![error.into(); planned.len()])
        } else {
            vec![ActionResult::LEFT; planned.len()]
        };
        let (mut answers, mut events) = (Vec::with_capacity(call.len()), Vec::new());
        for ((n, planned), result) in call.iter().zip(results) {
            let (answer, event) = self.ended(planned, result);
            answers.push((*n, answer));
            events.extend(event);
        }
        self.keep(events).await;
        answers
    }

    /// The answer of an action that has ended, and its event.
    fn ended<A: Describe>(&self, planned: &Planned<A>, result: ActionResult) -> (ActionAnswer, Option<Event>) {
        let row = planned.row();
        if result.outcome == ActionOutcome::Failed {
            let error = result.error.as_deref().unwrap_or_default();
            tracing::warn!(action = %row.action, subject = row.subject, error, "an action failed");
            let event = self.failed(planned, row.action, error);
            return (ActionAnswer::new(row, result), event);
        }
        let told = planned.event_policy != EventPolicy::Quiet && leaves_event(row.action, result.outcome);
        let event = told.then(|| {
            let subject = planned.action.about().subject();
            let event = self.event(&subject, row.action, &row.reason);
            // The event names the way that EC2 has chosen.
            let launches = matches!(row.action, ActionName::Launch | ActionName::Relaunch | ActionName::BindInstance);
            let record = row.slot.filter(|_| launches && result.outcome == ActionOutcome::Done);
            let launched = record.and_then(|slot| self.locks.record(slot)?.life().map(|l| l.offering.to_string()));
            let (size, ways, handle) = (row.size.clone(), row.ways.clone(), row.handle.clone());
            let details = [("size", size), ("ways", ways), ("launched", launched), ("handle", handle)];
            let event = details.into_iter().fold(event, |event, (name, value)| match value {
                Some(value) => event.with(name, value),
                None => event,
            });
            // The record of the slot keeps nothing of this life, so the event tells it.
            let life =
                row.node_id.filter(|_| row.action == ActionName::Clean).and_then(|id| self.observed.node(id)?.life());
            match life {
                Some(life) => event.of_life(life),
                None => event,
            }
        });
        (ActionAnswer::new(row, result), event)
    }

    /// The event of an action that failed: one an hour, because it may fail in every run. A launch writes its refusal
    /// itself.
    fn failed<A: Describe>(&self, planned: &Planned<A>, action: ActionName, error: &str) -> Option<Event> {
        let keep = self.observed.policy.history.keep_events();
        let (subject, text) = (planned.action.about().subject(), format!("not done: {error}"));
        let is_launch = matches!(action, ActionName::Launch | ActionName::Relaunch);
        (!is_launch).then(|| Event::once_in(AN_HOUR, &subject, action, ("failed", &text), self.now(), keep))
    }

    /// Stores what a brake holds. A conflict means that another run has changed the entry.
    pub async fn hold_back(&self, change: &BrakeChange) -> Result<(), WriteError> {
        match &change.entry {
            Some((before, after)) => self.store.write_entry(before, after).await.map(drop),
            None => Ok(()),
        }
    }

    /// Ends the releases that this run has carried out. If an action failed or was left to the next run, the next run still
    /// needs them.
    async fn use_releases<A: Describe>(&self, plan: &Plan<A>, answers: &[ActionAnswer]) {
        if answers.iter().any(|answer| matches!(answer.outcome, ActionOutcome::Left | ActionOutcome::Failed)) {
            return;
        }
        for (before, after) in plan.actions.iter().filter_map(|p| p.action.brake()?.release.as_ref()) {
            // A conflict is fine: an operator has given a new release, or another run has used this one up.
            if let Err(error) = ignore_conflict(self.store.write_entry(before, after).await) {
                tracing::warn!(%error, "a release was not ended: it ends by itself");
            }
        }
    }

    /// Notes where the next run goes on in a long list. If the note is lost, the next run reads the same part again.
    pub async fn note_place(&self, key: &ControlKey, after: &ListPlace) {
        let before = self.observed.control.place(key);
        if *after == before || !self.may_begin() {
            return;
        }
        if let Err(error) = ignore_conflict(self.store.write_entry(&before, after).await) {
            tracing::warn!(%error, %key, "the place in a list was not noted");
        }
    }

    async fn write_row(&self, answers: &[ActionAnswer]) {
        let name = self.function.name;
        let before = self.observed.control.runs.get(name);
        let after = RunRow::after(name, before, self.observed.observed_at, self.clock.elapsed(), tally(answers));
        let in_use = (self.function == POLL_AND_SCALE).then(|| self.observed.in_use() as u64).or(after.in_use);
        let list = listing::note(self.function, self.observed, terminated(answers), self.now());
        self.store.write_run(before, &after.with(RunNote { in_use, list, ..after.entry.clone() })).await;
    }
}

/// How often an action that fails in every run leaves an event.
const AN_HOUR: Span = Span::from_s(3600);

/// Whether an action with this outcome leaves an event. A warning or a hold-back leaves one when it was reported. Any
/// other action leaves one only if it was carried out.
const fn leaves_event(action: ActionName, outcome: ActionOutcome) -> bool {
    match outcome {
        // The row of the alloc shows the placement.
        ActionOutcome::Done => !matches!(action, ActionName::Place),
        ActionOutcome::Reported => matches!(action, ActionName::Warn | ActionName::HoldBack),
        ActionOutcome::Conflict | ActionOutcome::Failed | ActionOutcome::Left => false,
    }
}
