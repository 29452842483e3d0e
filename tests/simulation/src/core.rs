//! What every part of the world shares: the time, random numbers, the faults, the counts of what happened, and the
//! first broken invariant.
//!
//! Guarantees: one seed gives one history, because every choice is drawn from streams seeded by it. Each kind of fault
//! has its own stream. So if one kind of fault is switched off, the other kinds still happen at the same occasions,
//! counted by number. (The times of those occasions may differ.)
//! Does not: know what a fault does. The code that asks for the fault knows.

pub use crate::fault::{Broken, Fault};
use crate::happened::{self, Happened};
use crate::panics;
use crate::scenario::Scenario;
use futures::FutureExt;
use model::{ActionName, Span, Time};
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};
use runtime::answer::ActionOutcome;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, TryLockError};
use tokio::sync::Notify;
use tokio::time::Instant;

/// When every world begins.
pub const START: Time = Time::from_ms(1_800_000_000_000);

/// Locks the mutex, even if its last holder panicked.
///
/// A world runs on one thread. Waiting for a locked mutex would stop the world for ever, so this panics instead: the
/// world fails, and the message says where.
#[track_caller]
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    match mutex.try_lock() {
        Ok(guard) => guard,
        Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
        Err(TryLockError::WouldBlock) => unreachable!("a part of the world asks for what it has locked already"),
    }
}

/// How a world is run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct How {
    /// Keep the story's lines.
    pub telling: bool,
    /// Use the real (embedded) store, and compare every answer of the model with it.
    pub real_store: bool,
}

#[derive(Clone, Debug)]
pub struct Line {
    pub at: Time,
    pub who: String,
    pub what: String,
}

/// How many lines of a story are kept.
const MOST_LINES: usize = 200_000;

struct State {
    streams: Vec<Xoshiro256PlusPlus>,
    dice: Xoshiro256PlusPlus,
    counts: BTreeMap<&'static str, u64>,
    faults: Vec<u64>,
    did: BTreeMap<(&'static str, ActionName, ActionOutcome), u64>,
    calls: BTreeMap<&'static str, BTreeSet<String>>,
    lines: VecDeque<Line>,
}

/// The shared parts of one world.
pub struct Core {
    pub scenario: Scenario,
    began: Instant,
    /// The latest time that anybody asked for, in milliseconds since the world began. Another thread may read it.
    reached_ms: AtomicI64,
    state: Mutex<State>,
    broken: Mutex<Option<Broken>>,
    /// Notified when an invariant broke.
    pub stop: Notify,
    healed_at: OnceLock<Time>,
    how: How,
}

impl Core {
    pub fn new(scenario: Scenario, how: How) -> Self {
        let seed = scenario.seed;
        let stream = |n: u64| Xoshiro256PlusPlus::seed_from_u64(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ n);
        let state = State {
            streams: (0..Fault::ALL.len() as u64).map(|n| stream(n + 1)).collect(),
            dice: stream(0),
            counts: BTreeMap::new(),
            faults: vec![0; Fault::ALL.len()],
            did: BTreeMap::new(),
            calls: BTreeMap::new(),
            lines: VecDeque::new(),
        };
        Self {
            scenario,
            began: Instant::now(),
            reached_ms: AtomicI64::new(0),
            state: Mutex::new(state),
            broken: Mutex::new(None),
            stop: Notify::new(),
            healed_at: OnceLock::new(),
            how,
        }
    }

    pub fn now(&self) -> Time {
        let passed_ms = i64::try_from(self.began.elapsed().as_millis()).unwrap_or(i64::MAX);
        self.reached_ms.fetch_max(passed_ms, Ordering::Relaxed);
        START + Span::from_ms(passed_ms)
    }

    /// The latest time that this world is known to have reached. For another thread than the world's.
    pub fn reached(&self) -> Time {
        START + Span::from_ms(self.reached_ms.load(Ordering::Relaxed))
    }

    /// The time of this world, in milliseconds since the epoch.
    pub fn ms(&self) -> i64 {
        self.now().as_ms()
    }

    pub fn heal(&self) {
        let _ = self.healed_at.set(self.now());
    }

    pub fn is_healed(&self) -> bool {
        self.healed_at.get().is_some()
    }

    /// Whether faults have been over for at least `span`.
    pub fn is_healed_for(&self, span: Span) -> bool {
        self.healed_at.get().is_some_and(|at| self.now().since(*at) >= span)
    }

    /// Whether this fault happens on this occasion.
    pub fn happens(&self, fault: Fault) -> bool {
        if self.scenario.chance(fault) <= 0.0 || self.is_healed() {
            return false;
        }
        let happens = self.is_drawn(fault);
        if happens {
            self.happened_now(fault);
        }
        happens
    }

    /// Whether this fault is planned on this occasion. The fault counts only when it happens: see
    /// [`Self::happened_now`]. What is planned may never happen, because a run may end before its time comes.
    pub fn is_planned(&self, fault: Fault) -> bool {
        self.scenario.chance(fault) > 0.0 && !self.is_healed() && self.is_drawn(fault)
    }

    fn is_drawn(&self, fault: Fault) -> bool {
        let chance = self.scenario.chance(fault).min(1.0);
        lock(&self.state).streams.get_mut(fault.index()).is_some_and(|stream| stream.random_bool(chance))
    }

    pub fn happened_now(&self, fault: Fault) {
        let mut state = lock(&self.state);
        if let Some(count) = state.faults.get_mut(fault.index()) {
            *count += 1;
        }
    }

    /// A random number from this fault's own stream, ends included.
    pub fn of(&self, fault: Fault, low: i64, high: i64) -> i64 {
        let mut state = lock(&self.state);
        state.streams.get_mut(fault.index()).map_or(low, |s| s.random_range(low..=high.max(low)))
    }

    /// A random number from the general stream, ends included.
    pub fn between(&self, low: i64, high: i64) -> i64 {
        lock(&self.state).dice.random_range(low..=high.max(low))
    }

    /// Whether an event that is not a fault happens. Drawn from the general stream.
    pub fn maybe(&self, chance: f64) -> bool {
        lock(&self.state).dice.random_bool(chance.clamp(0.0, 1.0))
    }

    /// One of these, at random.
    pub fn one_of<'a, T>(&self, all: &'a [T]) -> Option<&'a T> {
        if all.is_empty() {
            return None;
        }
        let n = self.between(0, all.len() as i64 - 1);
        all.get(usize::try_from(n).unwrap_or(0))
    }

    /// Counts a situation that was reached. A situation that never happened does not count as tested.
    pub fn count(&self, what: &'static str) {
        if !happened::SITUATIONS.contains(&what) {
            self.broken("the_summary_names_all_there_is", what.to_owned());
        }
        *lock(&self.state).counts.entry(what).or_default() += 1;
    }

    /// Notes a call of AWS by a function: the operation, and the subject.
    pub fn called(&self, function: Option<&'static str>, operation: &str, what: &str) {
        let Some(function) = function else { return };
        let call = format!("{operation} {what}").trim_end().to_owned();
        lock(&self.state).calls.entry(function).or_default().insert(call);
    }

    /// Counts the outcome of an action of a function.
    pub fn did(&self, function: &'static str, action: ActionName, outcome: ActionOutcome) {
        if !happened::ACTIONS.contains(&(function, action)) {
            self.broken("the_summary_names_all_there_is", format!("{function} {action}"));
        }
        *lock(&self.state).did.entry((function, action, outcome)).or_default() += 1;
    }

    /// Adds a line to the story, if this world tells one.
    pub fn tell(&self, who: impl FnOnce() -> String, what: impl FnOnce() -> String) {
        if self.how.telling {
            let line = Line { at: self.now(), who: who(), what: what() };
            let mut state = lock(&self.state);
            state.lines.push_back(line);
            if state.lines.len() > MOST_LINES {
                state.lines.pop_front();
            }
        }
    }

    pub const fn is_telling(&self) -> bool {
        self.how.telling
    }

    /// Notes a broken invariant. Only the first one is kept.
    pub fn broken(&self, rule: &'static str, what: String) {
        self.breaks(Broken { rule, what, at: self.now() }, false);
    }

    fn breaks(&self, new: Broken, is_cause: bool) {
        let mut broken = lock(&self.broken);
        if broken.as_ref().is_none_or(|old| is_cause && old.rule != new.rule) {
            self.tell(|| "the world".into(), || format!("BROKEN {}: {}", new.rule, new.what));
            *broken = Some(new);
            self.stop.notify_waiters();
            self.stop.notify_one();
        }
    }

    /// Runs work that must not panic. Returns `None` if it panics.
    pub async fn invariant_nothing_panics<T>(&self, who: &str, work: impl Future<Output = T>) -> Option<T> {
        let result = AssertUnwindSafe(work).catch_unwind().await;
        let panicked = || panics::broken(self.scenario.seed, who, self.now());
        result.map_err(|_| self.breaks(panicked(), true)).ok()
    }

    /// A panic that nobody caught, in any task of the world, breaks the world too. It replaces an invariant that broke
    /// in the meantime, because the panic is the cause.
    pub fn invariant_no_task_panics(&self) {
        if panics::first().is_some() {
            self.breaks(panics::broken(self.scenario.seed, "a task", self.now()), true);
        }
    }

    pub fn what_broke(&self) -> Option<Broken> {
        lock(&self.broken).clone()
    }

    pub fn happened(&self) -> Happened {
        let state = lock(&self.state);
        let calls = state.calls.clone();
        Happened { faults: state.faults.clone(), counts: state.counts.clone(), did: state.did.clone(), calls }
    }

    /// The story's lines so far, for another thread than the world's. Empty while the world writes a line.
    pub fn lines_from_outside(&self) -> Vec<Line> {
        self.state.try_lock().map(|state| state.lines.iter().cloned().collect()).unwrap_or_default()
    }

    pub fn lines(&self) -> Vec<Line> {
        lock(&self.state).lines.iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "what it has locked already")]
    fn what_is_locked_twice_fails_instead_of_standing_still() {
        let mutex = Mutex::new(());
        let _held = lock(&mutex);
        drop(lock(&mutex));
    }
}
