//! The demonstration: real work on real processes, told as it happens, and checked at the end.
//!
//! Flow: make the work and what must come of it ([`work`]); submit it; tell every event while
//! the fleet grows, works and shrinks; check everything ([`verdict`]).
//! Guarantees: it ends, well or badly, within its time; what must come of the work is computed
//! here, not by what is shown.
//! Does not: use anything but the tables to submit, cancel and look, as any user would.

mod verdict;
mod work;

pub(super) use verdict::Check;

use super::stack::{Stack, fresh_directory};
use super::{LocalError, say};
use shared::chance::Chance;
use shared::events::Event;
use shared::ids::JobId;
use shared::model::{ClientStatus, Job, JobState};
use shared::store::{Store, WriteError};
use shared::time::{Span, Time};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;
use ulid::Ulid;

use super::ec2::State;
use work::{Expect, Task};

/// From one look to the next.
const LOOK: Duration = Duration::from_millis(300);
/// One for each alloc that ends, and of no news here.
const UNTOLD: [&str; 1] = ["mark_destroying"];
/// All of it must be over within this time.
const LONGEST: Span = Span::from_s(300);

/// What was submitted, and when the one that overtakes came.
struct Demo<'a> {
    stack: &'a Stack,
    began: Time,
    jobs: Vec<(JobId, Task)>,
    /// Jobs that still waited when the urgent one was submitted.
    overtaken: BTreeSet<JobId>,
    told: BTreeSet<String>,
    counts: String,
    instances: BTreeSet<String>,
}

/// Runs it; every check is in the answer, good or bad.
pub(super) async fn run(stack: &Stack) -> Result<Vec<Check>, LocalError> {
    let results = stack.places.dir.join("results");
    fresh_directory(&results)?;
    let prepared = results.clone();
    let made = tokio::task::spawn_blocking(move || work::make(&prepared)).await;
    let failed = |source| LocalError::System { what: "prepare the demonstration's work", source };
    let (tasks, urgent) = made.unwrap_or_else(|e| Err(std::io::Error::other(e))).map_err(failed)?;

    let mut demo = Demo {
        stack,
        began: (stack.clock)(),
        jobs: Vec::new(),
        overtaken: BTreeSet::new(),
        told: BTreeSet::new(),
        counts: String::new(),
        instances: BTreeSet::new(),
    };
    say(&format!(
        "\nThe demonstration: {} jobs on files of this machine; results in {}",
        tasks.len() + 1,
        results.display()
    ));
    for task in tasks {
        demo.submit(task).await?;
    }
    let over = demo.follow(urgent).await?;
    verdict::checks(&mut demo, over).await
}

/// Says what came out, and fails if anything is not as it should be.
pub(super) fn judge(checks: &[Check], logs: &Path) -> Result<(), LocalError> {
    say("");
    for check in checks {
        say(&check.to_string());
    }
    let failed = checks.iter().filter(|c| !c.is_ok()).count();
    if failed > 0 {
        return Err(LocalError::Demo { failed, checks: checks.len(), logs: logs.to_owned() });
    }
    say(&format!("\nAll {} checks passed.", checks.len()));
    Ok(())
}

impl Demo<'_> {
    fn store(&self) -> &Store {
        &self.stack.store
    }

    fn now(&self) -> Time {
        (self.stack.clock)()
    }

    fn tell(&self, about: &str, what: &str, why: &str) {
        let s = self.now().since(self.began).as_s();
        say(format!("{s:6.1} s  {about:<22} {what:<16} {why}").trim_end());
    }

    async fn submit(&mut self, task: Task) -> Result<(), LocalError> {
        let now = self.now();
        // In the order of submission, also within one millisecond.
        let ms = u64::try_from(now.as_ms()).unwrap_or(0);
        let id = JobId::new(Ulid::from_parts(ms, ((self.jobs.len() as u128) << 64) | (Chance::real().bits() >> 64)));
        let job = Job::submit(id, task.spec.clone(), now)
            .map_err(|e| LocalError::System { what: "submit a job", source: std::io::Error::other(e) })?;
        self.store().write(None, &job, Vec::new()).await?;
        self.jobs.push((id, task));
        Ok(())
    }

    /// Tells what happens until all is over. False if it took too long.
    async fn follow(&mut self, urgent: Task) -> Result<bool, LocalError> {
        let mut urgent = Some(urgent);
        loop {
            let jobs = self.store().jobs().await?;
            self.tell_events().await?;
            self.tell_counts(&jobs);
            self.cancel_running(&jobs).await?;
            let some_done = jobs.iter().any(|j| j.summary.state == JobState::Complete);
            if let Some(task) = urgent.take_if(|_| some_done) {
                let waiting = jobs.iter().filter(|j| j.summary.state == JobState::Queued).map(|j| j.summary.job_id);
                self.overtaken = waiting.collect();
                self.tell(
                    &task.name,
                    "submitted",
                    &format!("late, with a high priority; {} jobs wait", self.overtaken.len()),
                );
                self.submit(task).await?;
                continue;
            }
            let ended = jobs.iter().all(|j| j.summary.state.is_ended() && j.summary.allocs.is_empty());
            if ended && urgent.is_none() && self.is_quiet().await? {
                return Ok(true);
            }
            if self.now().since(self.began) > LONGEST {
                return Ok(false);
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Whether the fleet is gone.
    async fn is_quiet(&mut self) -> Result<bool, LocalError> {
        let cleaned = self.store().nodes().await?.iter().all(|n| n.is_cleaned());
        Ok(cleaned && self.live_instances().is_empty() && self.handles().await? == 0)
    }

    fn live_instances(&mut self) -> Vec<String> {
        let instances = self.stack.ec2.instances();
        self.instances.extend(instances.iter().map(|i| i.instance_id.clone()));
        instances.into_iter().filter(|i| i.state != State::Terminated).map(|i| i.instance_id).collect()
    }

    async fn handles(&self) -> Result<usize, LocalError> {
        // Every row is due some day.
        Ok(self.store().handles_due(Time::from_ms(i64::MAX)).await?.len())
    }

    async fn tell_events(&mut self) -> Result<(), LocalError> {
        let mut events = self.store().events().await?;
        events.sort_by(|a, b| a.id.cmp(&b.id));
        let names = self.names();
        for event in events {
            let new = self.told.insert(format!("{} {}", event.subject, event.id));
            if new && !UNTOLD.contains(&event.action.as_str()) {
                self.tell(&about(&event, &names), &event.action, &with_names(&event.reason, &names));
            }
        }
        Ok(())
    }

    fn names(&self) -> BTreeMap<String, String> {
        self.jobs.iter().map(|(id, task)| (id.to_string(), task.name.clone())).collect()
    }

    fn tell_counts(&mut self, jobs: &[Job]) {
        let mut counts = BTreeMap::<&str, u32>::new();
        for job in jobs {
            *counts.entry(job.summary.state.as_str()).or_default() += 1;
        }
        let counts = counts.iter().map(|(state, n)| format!("{n} {state}")).collect::<Vec<_>>().join(", ");
        if counts != self.counts {
            self.tell("jobs", "", &counts);
            self.counts = counts;
        }
    }

    /// Cancels what is to be cancelled once it runs.
    async fn cancel_running(&self, jobs: &[Job]) -> Result<(), LocalError> {
        let to_cancel = self.jobs.iter().filter(|(_, task)| matches!(task.expect, Expect::Cancelled));
        for (id, task) in to_cancel {
            let Some(job) = jobs.iter().find(|j| j.summary.job_id == *id) else { continue };
            if job.summary.state.is_ended() {
                continue;
            }
            let allocs = self.store().allocs_of(job).await?;
            if !allocs.iter().any(|a| a.summary.client == ClientStatus::Running) {
                continue;
            }
            let keep = Span::from_s(self.stack.policy.history.finished_days.saturating_mul(86_400));
            let Some(cancelled) = job.cancel(keep, self.now()) else { continue };
            match self.store().write(Some(job), &cancelled, Vec::new()).await {
                Ok(_) => self.tell(&task.name, "cancelled", "by us, while it runs"),
                // It changed just now: the next look sees it.
                Err(WriteError::Conflict(_)) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

fn about(event: &Event, names: &BTreeMap<String, String>) -> String {
    let (kind, id) = event.subject.split_once('#').unwrap_or((&event.subject, ""));
    match (kind, id.split_once('.')) {
        ("slot", _) => format!("slot {id}"),
        ("job", _) => names.get(id).cloned().unwrap_or_else(|| id.to_owned()),
        ("alloc", Some((job, rest))) => format!("{}.{rest}", names.get(job).map_or(job, String::as_str)),
        _ => event.subject.clone(),
    }
}

/// With jobs by their names alone: nobody reads ULIDs.
fn with_names(reason: &str, names: &BTreeMap<String, String>) -> String {
    names.iter().fold(reason.to_owned(), |text, (id, name)| {
        if text.contains(id.as_str()) { text.replace(&format!("{name} ({id})"), name).replace(id, name) } else { text }
    })
}
