//! The shapes of a job and of a node, for `--json` and the page: `docs/contract/commands.md#shapes`.
//!
//! Guarantees: only this module turns a record into what other programs read. No value of an environment is in it.
//! Does not: read anything.

use super::array::{States, is_bad};
use super::next::NextRun;
use super::status::node_word;
use crate::console::show;
use model::{
    ActionName, AllocId, Array, Capacity, EndCause, Event, Job, JobId, JobState, JobSummary, NodeRecord, Reason, Slot,
    Span, Subject, Time,
};
use serde::{Serialize, Serializer};
use serde_json::{Value, json};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// The longest command in a list, in characters.
const COMMAND: usize = 200;
/// How many allocs of a node are named in a list.
const NAMED: usize = 8;
/// How long a failed job is listed before the queue.
const NEWS: Span = Span::from_s(86_400);

/// The object with these fields in addition.
pub(crate) fn with(mut object: Value, more: Value) -> Value {
    if let (Value::Object(fields), Value::Object(more)) = (&mut object, more) {
        fields.extend(more);
    }
    object
}

/// A job in a list.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct JobRow {
    #[serde(flatten, serialize_with = "summary_fields")]
    pub(crate) summary: JobSummary,
    /// The key with which it was submitted.
    pub(crate) key: Option<String>,
    pub(crate) finished_at: Option<Time>,
    /// Why the job is in its state. Without a reason, a pack has the counts of its elements here.
    pub(crate) reason: Option<String>,
    /// Why it waits, or what the next run does with it.
    pub(crate) waits_because: Option<String>,
    pub(crate) command: Option<String>,
    /// Of a row that stands for its array: how many of the listed elements are in each state.
    pub(crate) array_states: Option<States>,
    /// The slots of its live allocs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) slots: Vec<Slot>,
}

/// The fields that the index of the queue has, too. `cause` is why the job ended, or why its last try ended; `usage` is that of its
/// last try.
fn summary_fields<S: Serializer>(job: &JobSummary, to: S) -> Result<S::Ok, S::Error> {
    let JobSummary {
        job_id, name, by, share, labels, state, priority, needs, submitted_at, tries, array_count, ..
    } = job;
    let Capacity { vcpus, memory_mib, scratch_gib, gpus } = needs.capacity();
    let fields = json!({
        "job_id": job_id, "name": name, "by": by, "share": share, "labels": (!labels.is_empty()).then_some(labels), "state": state, "priority": priority, "submitted_at": submitted_at,
        "nodes": needs.nodes, "vcpus": vcpus, "memory_mib": memory_mib, "scratch_gib": scratch_gib, "gpus": gpus,
        "cause": tries.cause, "exit_code": tries.cause.as_ref().and_then(EndCause::exit_code),
        "usage": tries.usage, "elements": tries.elements,
        "array_index": job.array_index(), "array_count": array_count,
        "paused": job.paused.then_some(true), "not_before_at": tries.not_before_at,
    });
    fields.serialize(to)
}

impl JobRow {
    pub(crate) fn of(job: &Job) -> Self {
        let command: String = show::command(&job.work.command).chars().take(COMMAND).collect();
        let row = Self::of_summary(&job.summary);
        let reason = job.reason.clone().or(row.reason);
        Self { key: job.key.clone(), finished_at: job.finished_at, reason, command: Some(command), ..row }
    }

    /// The row with what the index has of the job.
    pub(crate) fn of_summary(job: &JobSummary) -> Self {
        Self {
            summary: job.clone(),
            key: None,
            finished_at: None,
            reason: job.tries.elements.map(|counts| counts.to_string()),
            waits_because: None,
            command: None,
            array_states: None,
            slots: Vec::new(),
        }
    }

    /// Adds why it waits, and where its live allocs are.
    pub(crate) fn add_live(&mut self, waits_because: Option<String>, places: &BTreeMap<AllocId, Slot>) {
        self.waits_because = waits_because;
        self.slots = self.summary.allocs.iter().filter_map(|id| places.get(id).copied()).collect();
    }

    /// Why the job waits, or else why it is in its state.
    pub(crate) fn why(&self) -> Option<&str> {
        self.waits_because.as_deref().or(self.reason.as_deref())
    }

    /// The place of the row in the lists of the page, the smallest first.
    pub(super) fn order(&self, now: Time) -> (u8, Reverse<u32>, Reverse<Time>, JobId) {
        let JobSummary { job_id, state, priority, submitted_at, .. } = self.summary;
        let news = self.finished_at.is_some_and(|at| now.since(at) <= NEWS);
        let newest = Reverse(self.finished_at.unwrap_or(submitted_at));
        match state {
            JobState::Placing | JobState::Placed | JobState::Regrouping => (0, Reverse(0), newest, job_id),
            JobState::Failed | JobState::Rejected if news => (1, Reverse(0), newest, job_id),
            // The order of the queue.
            JobState::Queued => (2, Reverse(priority), Reverse(Time::from_ms(0)), job_id),
            _ => (3, Reverse(0), newest, job_id),
        }
    }
}

/// The rows of a list as its lines: those of an array together, in the place of its first row.
pub(crate) fn by_array(rows: Vec<JobRow>) -> Vec<Vec<JobRow>> {
    let (mut lines, mut arrays) = (Vec::<Vec<JobRow>>::new(), BTreeMap::new());
    for row in rows {
        let array = row.summary.array_count.map(|_| Array::of(row.summary.job_id));
        let place = array.map_or(lines.len(), |array| *arrays.entry(array).or_insert(lines.len()));
        match lines.get_mut(place) {
            Some(line) => line.push(row),
            None => lines.push(vec![row]),
        }
    }
    lines
}

/// The rows of a list with each array as one row: the first of its rows, with the states of all of them.
pub(crate) fn folded(rows: Vec<JobRow>) -> Vec<JobRow> {
    let fold = |line: Vec<JobRow>| {
        let states = States::of(line.iter().map(|row| &row.summary));
        // The states of an array say how it is. If an element failed, the row says why.
        let bad = line.iter().find(|row| is_bad(row.summary.state)).and_then(|row| row.summary.tries.cause.as_ref());
        let bad = bad.map(ToString::to_string);
        let first = line.into_iter().next()?;
        match first.summary.array_count {
            Some(_) => Some(JobRow { array_states: Some(states), reason: bad, ..first }),
            None => Some(first),
        }
    };
    by_array(rows).into_iter().filter_map(fold).collect()
}

/// A node in a list. `state` is the status of a node in use, otherwise the state of the record; `work` has the first [`NAMED`]
/// allocs. `names` has the names of the live jobs.
pub(crate) fn node_row(record: &NodeRecord, next: Option<&NextRun>, names: &BTreeMap<JobId, &str>) -> Value {
    let (life, contact) = (record.life(), record.contact());
    let offering = life.map(|l| &l.offering);
    let gpus = offering.map(|o| o.capacity.gpus).filter(|gpus| *gpus > 0);
    let allocs = life.map(|l| l.allocs.iter()).into_iter().flatten();
    let named = |id: &AllocId| json!({ "alloc_id": id, "job_id": id.job_id, "name": names.get(&id.job_id) });
    json!({
        "slot": record.slot, "state": node_word(record), "node_id": life.map(|l| l.node_id),
        "size": offering.map(|o| &o.size), "instance_type": offering.map(|o| &o.instance_type),
        "market": offering.map(|o| o.market), "price_per_hour": offering.map(|o| o.price_per_hour),
        "instance_id": life.and_then(|l| l.instance_id.as_ref()), "intent": life.map(|l| l.intent),
        "assigned_at": life.map(|l| l.assigned_at), "heard_at": contact.map(|c| c.last_ping_at),
        "gpus": gpus, "gpus_usable": gpus.map(|_| record.usable_gpus()), "busy": contact.is_some_and(|c| c.health.busy),
        "reason": record.why(), "next": next.and_then(|n| n.of_slot(record.slot)),
        "allocs": allocs.clone().count(), "work": allocs.take(NAMED).map(named).collect::<Vec<_>>(),
    })
}

/// The actions of housekeeping.
const HOUSEKEEPING: [ActionName; 10] = [
    ActionName::MarkDestroying,
    ActionName::ForgetHandle,
    ActionName::Purge,
    ActionName::LookLater,
    ActionName::SetIdle,
    ActionName::BindInstance,
    ActionName::ForgetEntry,
    ActionName::ReadOffers,
    ActionName::ListAlloc,
    ActionName::Heartbeat,
];

/// An event on the page. `name` is that of its job. Nobody has to know of what is `housekeeping`.
pub(crate) fn event_row(event: &Event, name: Option<String>) -> Value {
    let housekeeping = event.action.parse::<ActionName>().is_ok_and(|action| HOUSEKEEPING.contains(&action));
    with(json!(event), json!({ "at": event.at(), "housekeeping": housekeeping, "name": name }))
}

/// The end of a job as an event on the page. It is made from the row, because no event is stored for an end.
pub(crate) fn end_row(job: &JobRow) -> Option<Value> {
    let JobSummary { job_id, name, state, tries, .. } = &job.summary;
    let why = tries.cause.as_ref().filter(|_| *state != JobState::Complete);
    let message = why.map_or_else(String::new, |why| format!(": {why}"));
    let reason = Reason::JobNow { state: *state, message }.to_string();
    let (subject, action) = (Subject::Job(*job_id).to_string(), ActionName::EndJob);
    let at = job.finished_at?;
    Some(
        json!({ "id": job_id, "at": at, "subject": subject, "action": action, "reason": reason, "name": name, "housekeeping": false }),
    )
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
