//! The shapes of a job and of a node, for `--json` and the page: `docs/contract/commands.md#shapes`.
//!
//! Guarantees: only this module turns a record into what other programs read. No value of an environment is in it.
//! Does not: read anything.

use super::list::{Searched, holds};
use super::next::NextRun;
use super::present::Snapshot;
use super::status::node_word;
use crate::console::show;
use model::elements::Counts;
use model::ids::{AllocId, JobId, NodeId, Slot};
use model::money::Usd;
use model::time::{Span, Time};
use model::{Capacity, EndCause, Intent, Job, JobState, JobSummary, Market, NodeRecord, Usage};
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// The longest command in a list, in characters.
const COMMAND: usize = 200;
/// How many allocs of a node are named in a list.
const NAMED: usize = 8;
/// How long a failed job is listed before the queue.
const NEWS: Span = Span::from_s(86_400);

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
    /// Why the job is in its state. Without a reason, a pack has the counts of its elements here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
    /// Why it waits, or what the next run does with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) waits_because: Option<String>,
    /// Why the job ended, or why its last try ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cause: Option<EndCause>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) exit_code: Option<i32>,
    /// The usage of its last try. Of several members, each number is the highest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) usage: Option<Usage>,
    /// How many elements of a pack are in which state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) elements: Option<Counts>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) command: Option<String>,
    /// The slots of its live allocs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) slots: Vec<Slot>,
}

/// An alloc on a node, with its job.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct NodeWork {
    pub(crate) alloc_id: AllocId,
    pub(crate) job_id: JobId,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
}

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
    /// The GPUs of its size; `None` if it has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) gpus: Option<u32>,
    /// How many of these GPUs work may use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) gpus_usable: Option<u32>,
    pub(crate) busy: bool,
    pub(crate) reason: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) next: Option<String>,
    pub(crate) allocs: usize,
    /// The first [`NAMED`] allocs.
    pub(crate) work: Vec<NodeWork>,
}

impl JobRow {
    pub(crate) fn of(job: &Job) -> Self {
        let command: String = show::command(&job.work.command).chars().take(COMMAND).collect();
        let row = Self::of_summary(&job.summary);
        let reason = job.reason.clone().or(row.reason);
        Self { finished_at: job.finished_at, reason, command: Some(command), ..row }
    }

    /// The row with what the index has of the job.
    pub(crate) fn of_summary(job: &JobSummary) -> Self {
        Self {
            job_id: job.job_id,
            name: job.name.clone(),
            state: job.state,
            priority: job.priority,
            nodes: job.needs.nodes,
            capacity: job.needs.capacity(),
            submitted_at: job.submitted_at,
            finished_at: None,
            reason: job.tries.elements.map(|counts| counts.to_string()),
            waits_because: None,
            cause: job.tries.cause.clone(),
            exit_code: job.tries.cause.as_ref().and_then(EndCause::exit_code),
            usage: job.tries.usage,
            elements: job.tries.elements,
            command: None,
            slots: Vec::new(),
        }
    }

    /// Adds what the present says of the job: its state, why it waits, and where its allocs are.
    pub(crate) fn add_snapshot(&mut self, job: &JobSummary, present: &Snapshot, places: &BTreeMap<AllocId, Slot>) {
        self.state = job.state;
        self.finished_at = None;
        self.waits_because = present.waits_because(job.job_id).map(str::to_owned);
        self.slots = job.allocs.iter().filter_map(|id| places.get(id).copied()).collect();
    }

    /// Why the job waits, or else why it is in its state.
    pub(crate) fn why(&self) -> Option<&str> {
        self.waits_because.as_deref().or(self.reason.as_deref())
    }

    /// The order of the page.
    pub(super) fn order(&self, now: Time) -> (u8, Reverse<u32>, Reverse<Time>, JobId) {
        let news = self.finished_at.is_some_and(|at| now.since(at) <= NEWS);
        let newest = Reverse(self.finished_at.unwrap_or(self.submitted_at));
        match self.state {
            JobState::Placing | JobState::Placed | JobState::Regrouping => (0, Reverse(0), newest, self.job_id),
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
        let texts = [&self.name, &self.command, &self.reason, &self.waits_because];
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

impl NodeRow {
    /// The row of a node. `names` has the names of the live jobs.
    pub(crate) fn of(record: &NodeRecord, next: Option<&NextRun>, names: &BTreeMap<JobId, &str>) -> Self {
        let life = record.life();
        let gpus = life.map(|l| l.offering.capacity.gpus).filter(|gpus| *gpus > 0);
        let named = |id: &AllocId| NodeWork {
            alloc_id: *id,
            job_id: id.job_id,
            name: names.get(&id.job_id).map(|name| (*name).to_owned()),
        };
        Self {
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
            gpus,
            gpus_usable: gpus.map(|_| record.usable_gpus()),
            busy: record.contact().is_some_and(|c| c.busy),
            reason: record.why(),
            next: next.and_then(|n| n.of_slot(record.slot)).map(str::to_owned),
            allocs: life.map_or(0, |l| l.allocs.len()),
            work: life.map(|l| l.allocs.iter().take(NAMED).map(named).collect()).unwrap_or_default(),
        }
    }
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct RuleRow {
    pub(crate) rule: String,
    pub(crate) used: u32,
}

impl RuleRow {
    /// `exit:75=again*3: used 1 time`
    pub(crate) fn line(&self) -> String {
        format!("{}: used {}", self.rule, show::several(self.used, "time"))
    }
}

pub(crate) fn retry_rules(job: &Job) -> Vec<RuleRow> {
    let uses = job.summary.tries.rule_uses.iter().copied().chain(std::iter::repeat(0));
    job.failure_policy.rules().zip(uses).map(|(rule, used)| RuleRow { rule: rule.to_string(), used }).collect()
}
