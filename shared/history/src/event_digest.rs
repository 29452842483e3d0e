//! A short form of the events, made while their table is read.
//!
//! Guarantees: at most [`MOST`] of each kind are kept; of the time before `from` only what is needed to know the state
//! at `from`. Events of a subject may come in any order; in the order of time, less of them is kept.

use super::uses::{MOST, Use};
use model::events::{ENDED_ALLOC, PastLife};
use model::{ActionName, AllocId, Event, JobId, JobState, NodeId, Slot, Time};
use serde_json::Value;
use std::collections::BTreeMap;

/// How many of the newest events are kept as they are.
const LATEST: usize = 500;

/// One thing that happened to the node of a slot.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum NodeStep {
    /// A life begins, of this size.
    Launch(Option<String>),
    /// The launch came to nothing: there was no instance.
    Abandon,
    /// The node takes work.
    Ready,
    /// A heartbeat that changed the record.
    Heard,
    Silent,
    Going,
    /// The life is over.
    Clean(Option<Box<PastLife>>),
}

#[derive(Clone, Debug, Default)]
pub(super) struct Queue {
    /// By job: whether the job waits from then on.
    changes: BTreeMap<JobId, Vec<(Time, bool)>>,
    count: usize,
}

/// The newest events, by time, id and subject.
#[derive(Debug, Default)]
pub(super) struct Latest(BTreeMap<(Time, String, String), Event>);

/// The short form of all events since a time.
#[derive(Debug, Default)]
pub(super) struct EventDigest {
    pub(super) from: Time,
    pub(super) slots: BTreeMap<Slot, Vec<(Time, NodeStep)>>,
    steps: usize,
    pub(super) uses: Vec<Use>,
    pub(super) names: BTreeMap<JobId, String>,
    pub(super) queue: Queue,
    pub(super) latest: Latest,
    pub(super) left_out: usize,
}

impl EventDigest {
    pub(super) fn since(from: Time) -> Self {
        Self { from, ..Self::default() }
    }

    /// Keeps the needed parts of an event.
    pub(super) fn take(&mut self, event: Event) {
        let at = event.at();
        if let Ok(action) = event.action.parse::<ActionName>() {
            let (kind, name) = event.subject.split_once('#').unwrap_or((&event.subject, ""));
            let fits = match kind {
                "slot" => self.step(name, action, &event, at),
                "alloc" if action == ActionName::EndAlloc => self.used(name, &event, at),
                // If the end of an alloc changed the state of its job, the event of the job tells both.
                "job" => {
                    let alloc = text(&event, ENDED_ALLOC);
                    alloc.is_none_or(|alloc| self.used(alloc, &event, at)) & self.queued(name, action, &event, at)
                }
                _ => true,
            };
            self.left_out += usize::from(!fits);
        }
        self.latest.add(at, event);
    }

    fn step(&mut self, slot: &str, action: ActionName, event: &Event, at: Time) -> bool {
        let Some(slot) = slot.parse().ok().and_then(|number| Slot::new(number).ok()) else { return true };
        let step = match action {
            ActionName::Launch => NodeStep::Launch(text(event, "size").map(str::to_owned)),
            ActionName::Abandon => NodeStep::Abandon,
            ActionName::Ready => NodeStep::Ready,
            ActionName::Heartbeat => NodeStep::Heard,
            ActionName::Disconnect | ActionName::MarkDown => NodeStep::Silent,
            ActionName::ShutDown | ActionName::Terminate => NodeStep::Going,
            ActionName::Clean => NodeStep::Clean(event.life().map(Box::new)),
            _ => return true,
        };
        let steps = self.slots.entry(slot).or_default();
        // A life that was over before `from` is not needed.
        if at <= self.from && matches!(step, NodeStep::Launch(_) | NodeStep::Abandon | NodeStep::Clean(_)) {
            let before = steps.len();
            steps.retain(|(earlier, _)| *earlier > at);
            self.steps = self.steps.saturating_sub(before - steps.len());
        }
        if self.steps >= MOST {
            return false;
        }
        self.steps += 1;
        steps.push((at, step));
        true
    }

    fn used(&mut self, alloc: &str, event: &Event, at: Time) -> bool {
        if at <= self.from {
            return true;
        }
        let (Ok(alloc_id), Some(node_id)) = (alloc.parse::<AllocId>(), id(event, "node_id")) else { return true };
        let (Some(from), Some(vcpus)) = (time(event, "placed_at"), event.detail.get("vcpus").and_then(Value::as_u64))
        else {
            return true;
        };
        if self.uses.len() >= MOST {
            return false;
        }
        if let Some(name) = text(event, "name") {
            self.names.entry(alloc_id.job_id).or_insert_with(|| name.to_owned());
        }
        self.uses.push(Use { alloc_id, node_id, vcpus: u32::try_from(vcpus).unwrap_or(u32::MAX), from, to: at });
        true
    }

    fn queued(&mut self, job: &str, action: ActionName, event: &Event, at: Time) -> bool {
        let Ok(job) = job.parse::<JobId>() else { return true };
        let waits = match action {
            ActionName::Requeue => true,
            ActionName::Place | ActionName::Cancel | ActionName::Reject => false,
            // The reason begins with the new state.
            ActionName::EndJob => event.reason.starts_with(JobState::Queued.as_str()),
            _ => return true,
        };
        self.queue.change(job, at, waits, self.from)
    }

    #[cfg(test)]
    pub(super) fn queue_change_for_tests(&mut self, job: JobId, at: Time) {
        self.left_out += usize::from(!self.queue.change(job, at, true, self.from));
    }
}

impl Queue {
    /// Notes a change. `false` if there is no room for it.
    fn change(&mut self, job: JobId, at: Time, is_waiting: bool, from: Time) -> bool {
        if at <= from && !is_waiting {
            // The job did not wait then, unless something later says so.
            if let Some(changes) = self.changes.get_mut(&job) {
                let before = changes.len();
                changes.retain(|(earlier, _)| *earlier > at);
                self.count = self.count.saturating_sub(before - changes.len());
                if changes.is_empty() {
                    self.changes.remove(&job);
                }
            }
            return true;
        }
        if self.count >= MOST {
            return false;
        }
        self.count += 1;
        self.changes.entry(job).or_default().push((at, is_waiting));
        true
    }

    /// When jobs waited. `waiting` are the jobs that wait now, with the time of their submission.
    pub(super) fn waits(self, waiting: &BTreeMap<JobId, Time>, from: Time, now: Time) -> Vec<(Time, Time)> {
        let mut waits = Vec::new();
        let mut add = |begin: Time, end: Time| {
            if end > from && end > begin {
                waits.push((begin.max(from), end));
            }
        };
        let unknown = waiting.iter().filter(|(job, _)| !self.changes.contains_key(job));
        unknown.for_each(|(_, submitted_at)| add(*submitted_at, now));
        for (job, mut changes) in self.changes {
            changes.sort_by_key(|(at, _)| *at);
            // A submission leaves no event.
            let mut since = changes.first().filter(|(_, waits)| !waits).map(|_| job.made_at());
            for (at, waits) in changes {
                match (since, waits) {
                    (None, true) => since = Some(at),
                    (Some(begin), false) => {
                        add(begin, at);
                        since = None;
                    }
                    _ => {}
                }
            }
            // The record says whether the job still waits.
            if let Some(begin) = since.filter(|_| waiting.contains_key(&job)) {
                add(begin, now);
            }
        }
        waits
    }
}

impl Latest {
    fn add(&mut self, at: Time, event: Event) {
        let oldest = self.0.first_key_value().map(|((at, ..), _)| *at);
        if self.0.len() < LATEST || oldest.is_none_or(|oldest| at > oldest) {
            self.0.insert((at, event.id.clone(), event.subject.clone()), event);
        }
        if self.0.len() > LATEST {
            self.0.pop_first();
        }
    }

    pub(super) fn newest_first(self) -> Vec<Event> {
        self.0.into_values().rev().collect()
    }
}

fn text<'e>(event: &'e Event, name: &str) -> Option<&'e str> {
    event.detail.get(name)?.as_str()
}

fn id(event: &Event, name: &str) -> Option<NodeId> {
    text(event, name)?.parse().ok()
}

fn time(event: &Event, name: &str) -> Option<Time> {
    event.detail.get(name)?.as_i64().map(Time::from_ms)
}
