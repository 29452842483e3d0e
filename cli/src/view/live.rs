//! The present as the page and `top` show it: its status, and the lists of jobs and nodes.
//!
//! Flow: the live jobs come from the index of the queue, often; all jobs with their commands from the table, seldom. A job
//! that is in the table as not ended, and not in the index, has ended meanwhile: its row is read by itself.
//! Guarantees: what is shown of a job that has not ended is as new as the index.

use super::list::{Searched, holds};
use super::present::{COUNTED, Present};
use super::status::{Status, node_word};
use crate::console::show;
use futures::future::join_all;
use model::cloud::Cloud;
use model::ids::{AllocId, JobId, NodeId, Slot};
use model::money::Usd;
use model::time::{Span, Time};
use model::{Capacity, EndCause, Intent, Job, JobState, JobSummary, Market, NodeRecord};
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use store::{DbError, Store};

/// The longest command in a list, in characters.
const COMMAND: usize = 200;
/// How many jobs are kept of the table: the newest ones.
const MOST: usize = 50_000;
/// How many jobs that have ended meanwhile are read again at once.
const AGAIN: usize = 50;
/// How many allocs of a node are named in a list.
const NAMED: usize = 8;
/// How long a failed job stands before the queue.
const NEWS: Span = Span::from_s(86_400);

/// The present and its status.
pub(crate) struct Live {
    pub(crate) present: Present,
    pub(crate) status: Status,
}

/// All jobs of the table, in short.
pub(crate) struct Stored(BTreeMap<JobId, JobRow>);

/// A job in a list.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct JobRow {
    pub(crate) job_id: JobId,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    pub(crate) state: JobState,
    pub(crate) priority: u32,
    pub(crate) nodes: u32,
    #[serde(flatten)]
    pub(crate) capacity: Capacity,
    pub(crate) submitted_at: Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) finished_at: Option<Time>,
    /// Why it waits; otherwise why it is in its state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
    /// Why it ended, or why its last try did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cause: Option<EndCause>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) exit_code: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) command: Option<String>,
    /// Where its allocs are.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) slots: Vec<Slot>,
}

/// An alloc on a node, with its job.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Work {
    pub(crate) alloc_id: AllocId,
    pub(crate) job_id: JobId,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
}

/// A node in a list.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct NodeRow {
    pub(crate) slot: Slot,
    /// The status of a node in use, otherwise the state of the record.
    pub(crate) state: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) node_id: Option<NodeId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) size: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) instance_type: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) market: Option<Market>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) price_per_hour: Option<Usd>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) instance_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) intent: Option<Intent>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) assigned_at: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) heard_at: Option<Time>,
    pub(crate) busy: bool,
    pub(crate) reason: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) next: Option<String>,
    pub(crate) allocs: usize,
    /// The first of them.
    pub(crate) work: Vec<Work>,
}

impl Live {
    pub(crate) async fn read(store: &Store, cloud: &dyn Cloud, now: Time) -> Result<Self, DbError> {
        let present = Present::read(store, cloud, COUNTED, now).await?;
        Ok(Self { status: Status::of(store, &present).await?, present })
    }

    /// Why a job waits, or what the next run does with it.
    pub(crate) fn why(&self, job: JobId) -> Option<&str> {
        self.present.next.as_ref().ok()?.of_job(job)
    }

    /// All jobs: those that run, those that failed within a day, those that wait in their order, then the others, the newest
    /// first.
    pub(crate) async fn jobs(&self, stored: &Stored, store: &Store) -> Vec<JobRow> {
        let mut rows = stored.0.clone();
        let places = self.places();
        let live: BTreeMap<JobId, &JobSummary> = self.present.jobs.iter().map(|j| (j.job_id, j)).collect();
        let ended = rows.values().filter(|row| !row.state.is_ended() && !live.contains_key(&row.job_id));
        let ended: Vec<JobId> = ended.map(|row| row.job_id).take(AGAIN).collect();
        for job in join_all(ended.iter().map(|id| store.job(*id))).await.into_iter().flatten().flatten() {
            rows.insert(job.summary.job_id, JobRow::of(&job));
        }
        for job in &self.present.jobs {
            let row = rows.entry(job.job_id).or_insert_with(|| JobRow::of_summary(job));
            row.state = job.state;
            row.finished_at = None;
            row.reason = self.why(job.job_id).map(str::to_owned).or(row.reason.take());
            row.slots = job.allocs.iter().filter_map(|id| places.get(id).copied()).collect();
        }
        let mut rows: Vec<JobRow> = rows.into_values().collect();
        rows.sort_by_cached_key(|row| row.order(self.present.now));
        rows
    }

    fn places(&self) -> BTreeMap<AllocId, Slot> {
        let lives = self.present.nodes.iter().filter_map(|n| Some((n.slot, n.life()?)));
        lives.flat_map(|(slot, life)| life.allocs.iter().map(move |id| (*id, slot))).collect()
    }

    /// All nodes, in the order of their slots; free slots last.
    pub(crate) fn nodes(&self) -> Vec<NodeRow> {
        let names = self.names();
        let mut rows: Vec<NodeRow> = self.present.nodes.iter().map(|n| self.node_row(n, &names)).collect();
        rows.sort_by_key(|row| (row.node_id.is_none(), row.slot));
        rows
    }

    /// One node, as the list has it.
    pub(crate) fn node(&self, record: &NodeRecord) -> NodeRow {
        self.node_row(record, &self.names())
    }

    fn names(&self) -> BTreeMap<JobId, &str> {
        self.present.jobs.iter().filter_map(|j| Some((j.job_id, j.name.as_deref()?))).collect()
    }

    fn node_row(&self, record: &NodeRecord, names: &BTreeMap<JobId, &str>) -> NodeRow {
        let life = record.life();
        let named = |id: &AllocId| Work {
            alloc_id: *id,
            job_id: id.job_id,
            name: names.get(&id.job_id).map(|name| (*name).to_owned()),
        };
        NodeRow {
            slot: record.slot,
            state: node_word(record),
            node_id: life.map(|l| l.node_id),
            size: life.map(|l| l.offering.size.clone()),
            instance_type: life.map(|l| l.offering.instance_type.clone()),
            market: life.map(|l| l.offering.market),
            price_per_hour: life.map(|l| l.offering.price_per_hour),
            instance_id: life.and_then(|l| l.instance_id.clone()),
            intent: life.map(|l| l.intent),
            assigned_at: life.map(|l| l.assigned_at),
            heard_at: record.contact().map(|c| c.last_ping_at),
            busy: record.contact().is_some_and(|c| c.busy),
            reason: record.why(),
            next: self.present.next.as_ref().ok().and_then(|n| n.of_slot(record.slot)).map(str::to_owned),
            allocs: life.map_or(0, |l| l.allocs.len()),
            work: life.map(|l| l.allocs.iter().take(NAMED).map(named).collect()).unwrap_or_default(),
        }
    }
}

impl Stored {
    pub(crate) async fn read(store: &Store) -> Result<Self, DbError> {
        let mut rows: BTreeMap<JobId, JobRow> = BTreeMap::new();
        let keep = |job: Job| {
            rows.insert(job.summary.job_id, JobRow::of(&job));
            if rows.len() > MOST {
                rows.pop_first();
            }
        };
        store.each_job(keep).await?;
        Ok(Self(rows))
    }

    /// The name of a job.
    pub(crate) fn name(&self, job: JobId) -> Option<&str> {
        self.0.get(&job)?.name.as_deref()
    }
}

impl JobRow {
    pub(crate) fn of(job: &Job) -> Self {
        let command: String = show::command(&job.work.command).chars().take(COMMAND).collect();
        Self {
            finished_at: job.finished_at,
            reason: job.reason.clone(),
            command: Some(command),
            ..Self::of_summary(&job.summary)
        }
    }

    fn of_summary(job: &JobSummary) -> Self {
        Self {
            job_id: job.job_id,
            name: job.name.clone(),
            state: job.state,
            priority: job.priority,
            nodes: job.nodes,
            capacity: job.capacity,
            submitted_at: job.submitted_at,
            finished_at: None,
            reason: None,
            cause: job.tries.cause.clone(),
            exit_code: job.tries.cause.as_ref().and_then(EndCause::exit_code),
            command: None,
            slots: Vec::new(),
        }
    }

    fn order(&self, now: Time) -> (u8, Reverse<u32>, Reverse<Time>, JobId) {
        let news = self.finished_at.is_some_and(|at| now.since(at) <= NEWS);
        let newest = Reverse(self.finished_at.unwrap_or(self.submitted_at));
        match self.state {
            JobState::Placed | JobState::Regrouping => (0, Reverse(0), newest, self.job_id),
            JobState::Failed | JobState::Rejected if news => (1, Reverse(0), newest, self.job_id),
            // The order of the queue.
            JobState::Queued => (2, Reverse(self.priority), Reverse(Time::from_ms(0)), self.job_id),
            _ => (3, Reverse(0), newest, self.job_id),
        }
    }
}

impl Searched for JobRow {
    fn state(&self) -> &str {
        self.state.as_str()
    }

    fn has(&self, word: &str) -> bool {
        let texts = [&self.name, &self.command, &self.reason];
        texts.into_iter().flatten().any(|text| holds(text, word)) || holds(&self.job_id.to_string(), word)
    }
}

impl Searched for NodeRow {
    fn state(&self) -> &str {
        &self.state
    }

    fn has(&self, word: &str) -> bool {
        let texts = [&self.size, &self.instance_type, &self.instance_id, &self.next];
        texts.into_iter().flatten().chain([&self.reason]).any(|text| holds(text, word))
            || self.slot.to_string() == word
            || self.node_id.is_some_and(|id| holds(&id.to_string(), word))
            || self
                .work
                .iter()
                .any(|w| w.name.as_ref().is_some_and(|name| holds(name, word)) || holds(&w.alloc_id.to_string(), word))
    }
}
