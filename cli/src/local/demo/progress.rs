//! Submits the jobs of the demonstration, and reports what happens until the fleet is gone.

use super::super::stack::Stack;
use super::super::terminal::say;
use super::work::Task;
use crate::console::show::counted;
use crate::view::status::counts;
use anyhow::Context as _;
use ec2_stand_in::State;
use model::events::Event;
use model::ids::JobId;
use model::rng::Rng;
use model::time::{Span, Time};
use model::{ClientStatus, Job, JobState};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use store::{Store, WriteError};
use ulid::Ulid;

/// How often the tables are read.
const CHECK: Duration = Duration::from_millis(300);
/// Actions that are not reported, because each ended alloc has one.
const NOT_REPORTED: [&str; 1] = ["mark_destroying"];
/// The time limit of the whole demonstration.
pub(super) const TIME_LIMIT: Span = Span::from_s(300);

pub(super) struct Demo<'a> {
    pub(super) stack: &'a Stack,
    began: Time,
    pub(super) jobs: Vec<(JobId, Task)>,
    /// The jobs that still waited when the urgent one was submitted.
    pub(super) overtaken: BTreeSet<JobId>,
    reported: BTreeSet<String>,
    counts: String,
    pub(super) instances: BTreeSet<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    InTime,
    TimedOut,
}

impl<'a> Demo<'a> {
    pub(super) fn new(stack: &'a Stack) -> Self {
        Self {
            stack,
            began: (stack.clock)(),
            jobs: Vec::new(),
            overtaken: BTreeSet::new(),
            reported: BTreeSet::new(),
            counts: String::new(),
            instances: BTreeSet::new(),
        }
    }

    pub(super) fn store(&self) -> &Store {
        &self.stack.store
    }

    fn now(&self) -> Time {
        (self.stack.clock)()
    }

    fn report(&self, subject: &str, action: &str, reason: &str) {
        let s = self.now().since(self.began).as_s();
        say(format!("{s:6.1} s  {subject:<22} {action:<16} {reason}").trim_end());
    }

    pub(super) async fn submit(&mut self, task: Task) -> anyhow::Result<()> {
        let now = self.now();
        // Ids keep the order of submission, even within one millisecond.
        let ms = u64::try_from(now.as_ms()).unwrap_or(0);
        let id = JobId::new(Ulid::from_parts(ms, ((self.jobs.len() as u128) << 64) | (Rng::real().bits() >> 64)));
        let job = Job::submit(id, task.spec.clone(), now).context("cannot submit a job")?;
        self.store().write(None, &job, Vec::new()).await?;
        self.jobs.push((id, task));
        Ok(())
    }

    /// Reports what happens until all jobs have ended and the fleet is gone.
    pub(super) async fn follow(&mut self, urgent: Task) -> anyhow::Result<End> {
        let mut urgent = Some(urgent);
        loop {
            let jobs = self.store().jobs().await?;
            self.report_events().await?;
            self.report_counts(&jobs);
            self.cancel_running(&jobs).await?;
            let some_done = jobs.iter().any(|j| j.summary.state == JobState::Complete);
            if let Some(task) = urgent.take_if(|_| some_done) {
                let waiting = jobs.iter().filter(|j| j.summary.state == JobState::Queued).map(|j| j.summary.job_id);
                self.overtaken = waiting.collect();
                let how = format!("late, with a high priority; {} jobs wait", self.overtaken.len());
                self.report(&task.name, "submitted", &how);
                self.submit(task).await?;
                continue;
            }
            let ended = jobs.iter().all(|j| j.summary.state.is_ended() && j.summary.allocs.is_empty());
            if ended && urgent.is_none() && self.is_fleet_gone().await? {
                return Ok(End::InTime);
            }
            if self.now().since(self.began) > TIME_LIMIT {
                return Ok(End::TimedOut);
            }
            tokio::time::sleep(CHECK).await;
        }
    }

    async fn is_fleet_gone(&mut self) -> anyhow::Result<bool> {
        let cleaned = self.store().nodes().await?.iter().all(|n| n.is_cleaned());
        Ok(cleaned && self.live_instances().is_empty() && self.handles().await? == 0)
    }

    pub(super) fn live_instances(&mut self) -> Vec<String> {
        let instances = self.stack.ec2.instances();
        self.instances.extend(instances.iter().map(|i| i.instance_id.clone()));
        instances.into_iter().filter(|i| i.state != State::Terminated).map(|i| i.instance_id).collect()
    }

    pub(super) async fn handles(&self) -> anyhow::Result<usize> {
        // Every row is due before this last possible time, so the result has all rows.
        Ok(self.store().handles_due(Time::from_ms(i64::MAX)).await?.rows.len())
    }

    async fn report_events(&mut self) -> anyhow::Result<()> {
        let mut events = self.store().events().await?;
        events.sort_by(|a, b| a.id.cmp(&b.id));
        let names = self.names();
        for event in events {
            let new = self.reported.insert(format!("{} {}", event.subject, event.id));
            if new && !NOT_REPORTED.contains(&event.action.as_str()) {
                self.report(&subject(&event, &names), &event.action, &with_names(&event.reason, &names));
            }
        }
        Ok(())
    }

    fn names(&self) -> BTreeMap<String, String> {
        self.jobs.iter().map(|(id, task)| (id.to_string(), task.name.clone())).collect()
    }

    fn report_counts(&mut self, jobs: &[Job]) {
        let counts = counted(counts(jobs.iter().map(|job| job.summary.state.to_string())));
        if counts != self.counts {
            self.report("jobs", "", &counts);
            self.counts = counts;
        }
    }

    /// Cancels the job that must be cancelled, once it runs.
    async fn cancel_running(&self, jobs: &[Job]) -> anyhow::Result<()> {
        let to_cancel = self.jobs.iter().filter(|(_, task)| task.expect.state == JobState::Cancelled);
        for (id, task) in to_cancel {
            let Some(job) = jobs.iter().find(|j| j.summary.job_id == *id) else { continue };
            let allocs = self.store().allocs_of(job).await?.all()?;
            if !allocs.iter().any(|a| a.summary.client == ClientStatus::Running) {
                continue;
            }
            let keep = Span::from_s(self.stack.policy.history.finished_days.saturating_mul(86_400));
            let Some(cancelled) = job.cancel(keep, self.now()) else { continue };
            match self.store().write(Some(job), &cancelled, Vec::new()).await {
                Ok(_) => self.report(&task.name, "cancelled", "by the demonstration, while it runs"),
                // The job changed in the meantime. The next check tries again.
                Err(WriteError::Conflict(_)) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

fn subject(event: &Event, names: &BTreeMap<String, String>) -> String {
    let (kind, id) = event.subject.split_once('#').unwrap_or((&event.subject, ""));
    match (kind, id.split_once('.')) {
        ("slot", _) => format!("slot {id}"),
        ("job", _) => names.get(id).cloned().unwrap_or_else(|| id.to_owned()),
        ("alloc", Some((job, rest))) => format!("{}.{rest}", names.get(job).map_or(job, String::as_str)),
        _ => event.subject.clone(),
    }
}

/// Replaces job ids by names, which are easier to read.
fn with_names(reason: &str, names: &BTreeMap<String, String>) -> String {
    names.iter().fold(reason.to_owned(), |text, (id, name)| {
        if text.contains(id.as_str()) { text.replace(&format!("{name} ({id})"), name).replace(id, name) } else { text }
    })
}
