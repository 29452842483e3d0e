//! One run of a scheduled function: its clock, its deadline, its lanes, its answer.
//!
//! Guarantees: nothing is begun with too little time left, or on an observation that is too
//! old; two actions on one record follow each other and build on this run's own writes.
//! Does not: repeat anything: the next run does. Rule: Arvados #8236, for functions instead of
//! a server: what hangs is cut off, so what matters is to stop in time and to say what is left.

use crate::cloud::CloudError;
use crate::ids::{AllocId, JobId, NodeId, Slot};
use crate::model::NodeRecord;
use crate::store::{DbError, NoPolicy};
use crate::time::{Span, Time};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::OwnedMutexGuard;
use tokio::time::Instant;

/// A deadline before this is no deadline: the emulators that do not know it send 1970.
const IMPOSSIBLE_BEFORE: Time = Time::from_ms(1_000_000_000_000);

/// The time within one run: read once at its start, then measured.
#[derive(Clone, Copy, Debug)]
pub struct RunClock {
    start: Time,
    began: Instant,
    deadline: Instant,
}

impl RunClock {
    /// A run that begins at `now` and must be over at `deadline`. A deadline long past, or none,
    /// means that it is not known: then the run has `budget`.
    pub fn new(now: Time, deadline: Option<Time>, budget: Duration) -> Self {
        let began = Instant::now();
        let left = match deadline {
            Some(at) if at > IMPOSSIBLE_BEFORE => {
                Duration::from_millis(u64::try_from(at.since(now).as_ms()).unwrap_or(0))
            }
            _ => budget,
        };
        Self { start: now, began, deadline: began + left.min(Duration::from_secs(900)) }
    }

    /// The time now.
    pub fn now(&self) -> Time {
        self.start + Span::from_ms(i64::try_from(self.began.elapsed().as_millis()).unwrap_or(i64::MAX))
    }

    /// Whether something may still be begun that reserves this much time.
    pub fn has_left(&self, reserve_ms: u64) -> bool {
        Instant::now() < self.latest(reserve_ms)
    }

    /// Until when something may be begun that reserves this much time.
    pub fn latest(&self, reserve_ms: u64) -> Instant {
        self.deadline.checked_sub(Duration::from_millis(reserve_ms)).unwrap_or(self.began)
    }

    /// How long the run has taken.
    pub fn elapsed(&self) -> Span {
        self.now().since(self.start)
    }
}

/// Why a run could not observe: then it does nothing, and fails.
#[derive(Debug, thiserror::Error)]
pub enum ObserveError {
    /// The database.
    #[error(transparent)]
    Db(#[from] DbError),
    /// EC2.
    #[error(transparent)]
    Cloud(#[from] CloudError),
    /// There is nothing to go by.
    #[error(transparent)]
    Policy(#[from] NoPolicy),
}

/// One planned action, in the words of the contract.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PlanRow {
    /// What.
    pub action: &'static str,
    /// On what.
    pub subject: String,
    /// The slot, where it is about one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slot: Option<Slot>,
    /// The size, of a launch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<String>,
    /// The job, where it is about one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job_id: Option<JobId>,
    /// The alloc, where it is about one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alloc_id: Option<AllocId>,
    /// The node, where it is about one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_id: Option<NodeId>,
    /// The handle, where it is about one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub handle: Option<String>,
    /// Why.
    pub reason: String,
}

/// What `plan` answers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PlanAnswer {
    /// What would be done, in order.
    pub actions: Vec<PlanRow>,
    /// Nodes wanted, by size.
    pub wanted: BTreeMap<String, u32>,
    /// Slots whose nodes are not needed.
    pub surplus: Vec<Slot>,
}

/// How an action came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Done {
    /// Done.
    Yes,
    /// Someone else was first: the next run sees what is now.
    Conflict,
    /// It failed.
    Failed,
    /// Not begun: no time was left, or the observation was too old.
    Left,
    /// A dry run, or something that is only said.
    Said,
}

/// One action of a run's answer.
#[derive(Clone, Debug, Serialize)]
pub struct ActionAnswer {
    /// What.
    pub action: &'static str,
    /// On what.
    pub subject: String,
    /// Why.
    pub reason: String,
    /// Whether it was done.
    pub done: bool,
    /// How it came out.
    pub outcome: Done,
    /// What went wrong, if something did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl ActionAnswer {
    /// What became of a planned action.
    pub fn new(row: PlanRow, outcome: Done, error: Option<String>) -> Self {
        let done = outcome == Done::Yes;
        Self { action: row.action, subject: row.subject, reason: row.reason, done, outcome, error }
    }

    /// What a dry run answers.
    pub fn said(rows: impl IntoIterator<Item = PlanRow>) -> Vec<Self> {
        rows.into_iter().map(|row| Self::new(row, Done::Said, None)).collect()
    }
}

/// What was observed, counted.
#[derive(Clone, Copy, Debug, Default, Serialize)]
#[allow(missing_docs, reason = "their names say it")]
pub struct Observed {
    pub nodes: usize,
    pub instances: usize,
    pub jobs: usize,
    pub allocs: usize,
}

/// What a scheduled run answers.
#[derive(Clone, Debug, Serialize)]
pub struct RunAnswer {
    /// Which function.
    pub function: &'static str,
    /// When it began to observe.
    pub observed_at: Time,
    /// What it saw.
    pub observed: Observed,
    /// What it decided, and how that came out.
    pub actions: Vec<ActionAnswer>,
    /// How many actions were not begun.
    pub left_for_next_run: usize,
    /// How long it took, in milliseconds.
    pub duration_ms: i64,
}

impl RunAnswer {
    /// An answer from what became of each action.
    pub fn new(
        function: &'static str,
        observed_at: Time,
        observed: Observed,
        actions: Vec<ActionAnswer>,
        clock: &RunClock,
    ) -> Self {
        let left_for_next_run = actions.iter().filter(|a| a.outcome == Done::Left).count();
        Self { function, observed_at, observed, actions, left_for_next_run, duration_ms: clock.elapsed().as_ms() }
    }
}

/// What actions of one run must not touch at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lane {
    /// A node record.
    Slot(Slot),
    /// A job's record.
    Job(JobId),
}

/// Lanes: actions that share one run one after the other. A slot's lane also holds the record
/// as this run knows it: as read, or as its own last write made it.
#[derive(Debug, Default)]
pub struct Lanes {
    locks: Mutex<HashMap<Lane, Arc<tokio::sync::Mutex<()>>>>,
    records: Mutex<HashMap<Slot, NodeRecord>>,
}

impl Lanes {
    /// Lanes that begin with these records.
    pub fn new(records: &[NodeRecord]) -> Self {
        let records = records.iter().map(|r| (r.slot, r.clone())).collect();
        Self { locks: Mutex::default(), records: Mutex::new(records) }
    }

    /// Waits for all of these lanes, in one order for everybody, so that nobody waits in a circle.
    pub async fn enter(&self, lanes: impl IntoIterator<Item = Lane>) -> Vec<OwnedMutexGuard<()>> {
        let wanted: BTreeSet<Lane> = lanes.into_iter().collect();
        let mut guards = Vec::with_capacity(wanted.len());
        for lane in wanted {
            let lock = {
                let mut locks = self.locks.lock().unwrap_or_else(PoisonError::into_inner);
                Arc::clone(locks.entry(lane).or_default())
            };
            guards.push(lock.lock_owned().await);
        }
        guards
    }

    /// The record of a slot as this run knows it.
    pub fn record(&self, slot: Slot) -> Option<NodeRecord> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner).get(&slot).cloned()
    }

    /// The record of a slot, if it still is this life's.
    pub fn life(&self, node_id: NodeId) -> Option<NodeRecord> {
        self.record(node_id.slot()).filter(|r| r.node_id() == Some(node_id))
    }

    /// Keeps what this run's own write made of a record.
    pub fn wrote(&self, record: NodeRecord) {
        self.records.lock().unwrap_or_else(PoisonError::into_inner).insert(record.slot, record);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_impossible_deadline_is_an_unknown_one() {
        let now = Time::from_ms(1_800_000_000_000);
        let unknown = RunClock::new(now, Some(Time::from_ms(10_000)), Duration::from_secs(50));
        assert!(unknown.has_left(49_000) && !unknown.has_left(50_000));
        let known = RunClock::new(now, Some(now + Span::from_s(8)), Duration::from_secs(50));
        assert!(known.has_left(5000));
        tokio::time::advance(Duration::from_secs(4)).await;
        assert!(!known.has_left(5000));
        assert_eq!(known.now(), now + Span::from_s(4));
    }
}
