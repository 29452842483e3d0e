//! Follows jobs to their end: their progress, and how they ended.
//!
//! Guarantees: what is printed was read. The row of a job is read consistently. A cluster that does not answer does not end the wait, however
//! long that lasts: nobody takes it for the end of a job.
//! Does not: change a job. An interrupted wait leaves its jobs as they are.

use crate::console::{Cluster, Context, ErrorKind, show};
use crate::view::find::short;
use anyhow::bail;
use model::{ActionName, Alloc, ClientStatus, Job, JobId, JobState, Span, Subject, Time};
use std::collections::BTreeMap;
use std::time::Duration;

/// The time between two reads of a job.
const POLL: Duration = Duration::from_millis(500);
/// With many jobs, a read comes later: this much for each.
const POLL_OF_EACH: Duration = Duration::from_millis(2);
/// The wait ends after this many reads in a row that failed for another reason.
const FAILED_READS: u32 = 5;
/// The wait says that the cluster does not answer after this time.
const SILENT_FOR: Span = Span::from_s(20);
/// How often the plan is asked why a job waits: at most once in this time, because a plan reads the whole cluster.
const PLAN_EVERY: Span = Span::from_s(10);

/// What is printed while jobs run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verbosity {
    /// Progress on standard error, and the end of each job on standard output.
    All,
    /// Progress on standard error.
    Progress,
    Nothing,
}

pub(crate) struct Follower<'a> {
    cluster: &'a Cluster,
    /// The jobs as last read.
    pub(crate) jobs: Vec<Job>,
    verbosity: Verbosity,
    /// The progress that was printed last.
    printed: String,
    planned_at: Option<Time>,
    failed_reads: u32,
    /// Since when the cluster does not answer, and whether the person has read that.
    silent: Option<(Time, bool)>,
}

impl<'a> Follower<'a> {
    pub(crate) const fn new(cluster: &'a Cluster, jobs: Vec<Job>, verbosity: Verbosity) -> Self {
        Self { cluster, jobs, verbosity, printed: String::new(), planned_at: None, failed_reads: 0, silent: None }
    }

    /// How long to wait before the next read.
    pub(crate) fn pause(&self) -> Duration {
        let open = self.jobs.iter().filter(|job| !job.summary.state.is_ended()).count();
        POLL.max(POLL_OF_EACH.saturating_mul(u32::try_from(open).unwrap_or(u32::MAX)))
    }

    pub(crate) async fn wait(&mut self, context: &mut Context<'_>) -> anyhow::Result<()> {
        while !self.poll(context).await? {
            tokio::time::sleep(self.pause()).await;
        }
        Ok(())
    }

    /// Reads the jobs that have not ended, and prints what is new. Returns whether every job has ended.
    pub(crate) async fn poll(&mut self, context: &mut Context<'_>) -> anyhow::Result<bool> {
        let open: Vec<JobId> =
            self.jobs.iter().filter(|job| !job.summary.state.is_ended()).map(|job| job.summary.job_id).collect();
        let seen = match self.cluster.store.jobs_of(open.iter().copied()).await.and_then(store::Listed::all) {
            Ok(seen) => seen,
            // A wait may last for hours, so a failed read does not end it.
            Err(e) => {
                let error = anyhow::Error::new(e);
                if ErrorKind::of(&error) == ErrorKind::Again {
                    self.report_silence(context, &error)?;
                    return Ok(false);
                }
                self.failed_reads += 1;
                if self.failed_reads < FAILED_READS {
                    return Ok(false);
                }
                let what = match open.as_slice() {
                    [id] => format!("job {id}, which continues"),
                    _ => format!("{} jobs, which continue", open.len()),
                };
                return Err(error.context(format!("stopped waiting for {what}")));
            }
        };
        self.failed_reads = 0;
        if self.silent.take().is_some_and(|(_, is_told)| is_told) {
            writeln!(context.err, "the cluster answers again")?;
        }
        let mut seen: BTreeMap<JobId, Job> = seen.into_iter().map(|job| (job.summary.job_id, job)).collect();
        for known in self.jobs.iter_mut().filter(|job| !job.summary.state.is_ended()) {
            let id = known.summary.job_id;
            let Some(job) = seen.remove(&id) else {
                bail!("job {id} is not stored any more: how it ended is not known")
            };
            if job.summary.state.is_ended() && self.verbosity == Verbosity::All {
                writeln!(context.out, "{id} {}", end_of(&job))?;
                context.out.flush()?;
            }
            *known = job;
        }
        if self.verbosity != Verbosity::Nothing {
            self.print_progress(context).await?;
        }
        Ok(self.jobs.iter().all(|job| job.summary.state.is_ended()))
    }

    /// Says once that the cluster does not answer.
    fn report_silence(&mut self, context: &mut Context<'_>, error: &anyhow::Error) -> anyhow::Result<()> {
        let now = context.now();
        let (since, is_told) = self.silent.get_or_insert((now, false));
        if !*is_told && now.since(*since) >= SILENT_FOR && self.verbosity != Verbosity::Nothing {
            *is_told = true;
            writeln!(context.err, "the cluster does not answer, and the wait goes on: {}", show::error(error))?;
        }
        Ok(())
    }

    async fn print_progress(&mut self, context: &mut Context<'_>) -> anyhow::Result<()> {
        let line = match self.jobs.as_slice() {
            [job] if job.summary.state.is_ended() => return Ok(()),
            [job] => {
                let job = job.clone();
                let Some(progress) = self.one(&job, context.now()).await else { return Ok(()) };
                format!("job {} {progress}", short(job.summary.job_id))
            }
            jobs => counted(jobs),
        };
        if line != self.printed {
            writeln!(context.err, "{}", show::one_line(&line))?;
            context.err.flush()?;
            self.printed = line;
        }
        Ok(())
    }

    /// The progress of one job. `None` if nothing is known, or if it cannot be read now: the next read tries again.
    async fn one(&mut self, job: &Job, now: Time) -> Option<String> {
        let store = &self.cluster.store;
        match job.summary.state {
            JobState::Regrouping => return Some("starts again when what still runs of it has stopped".to_owned()),
            JobState::Placing => return Some("is placed: its members start together".to_owned()),
            JobState::Placed => return places(&store.allocs(job.summary.allocs.iter().copied()).await.ok()?),
            _ => {}
        }
        // The functions store why a job waits. Before their first run, the plan says what they would do.
        let events = store.history(&Subject::Job(job.summary.job_id).to_string(), 5).await.ok()?;
        let newest = events.first().filter(|event| event.action == ActionName::Wait.as_str());
        if let Some(event) = newest {
            return Some(format!("waits: {}", event.reason));
        }
        if self.planned_at.is_some_and(|at| now.since(at) < PLAN_EVERY) {
            return None;
        }
        self.planned_at = Some(now);
        let next = self.cluster.next(now).await.ok()?;
        next.of_job(job.summary.job_id).map(|why| format!("waits: {why}"))
    }
}

/// The last copy of each member.
pub(crate) fn last_allocs(allocs: Vec<Alloc>) -> impl Iterator<Item = Alloc> {
    of_members(allocs, |alloc| alloc.id().copy)
}

/// For each member, the alloc with the highest rank.
pub(crate) fn of_members<R: Ord>(
    allocs: impl IntoIterator<Item = Alloc>,
    rank: impl Fn(&Alloc) -> R,
) -> impl Iterator<Item = Alloc> {
    let mut allocs: Vec<Alloc> = allocs.into_iter().collect();
    allocs.sort_by_key(rank);
    // A later entry replaces an earlier one, so the highest rank stays.
    allocs.into_iter().map(|alloc| (alloc.id().member, alloc)).collect::<BTreeMap<_, _>>().into_values()
}

/// The state of an ended job, and the reason for it.
pub(crate) fn end_of(job: &Job) -> String {
    let reason = job.reason.as_deref().map(|reason| format!(": {}", show::one_line(reason))).unwrap_or_default();
    format!("{}{reason}", job.summary.state)
}

fn places(allocs: &[Alloc]) -> Option<String> {
    let live = || allocs.iter().filter(|alloc| !alloc.summary.client.is_final());
    let mut slots: Vec<String> = live().map(|alloc| alloc.summary.slot.to_string()).collect();
    slots.dedup();
    let on = match slots.as_slice() {
        [] => return None,
        [slot] => format!("slot {slot}"),
        _ => format!("slots {}", slots.join(", ")),
    };
    let is_any = |client| live().any(|alloc| alloc.summary.client == client);
    Some(if is_any(ClientStatus::Unknown) {
        format!("runs on {on}, and a node is silent: the job waits for it")
    } else if let Some(phase) = live().find_map(|alloc| alloc.summary.phase.as_ref()) {
        format!("is on {on}: {phase}")
    } else if is_any(ClientStatus::Pending) {
        format!("is placed on {on}")
    } else {
        format!("runs on {on}")
    })
}

fn counted(jobs: &[Job]) -> String {
    let count = |is: fn(JobState) -> bool| jobs.iter().filter(|job| is(job.summary.state)).count();
    let parts = [
        (count(|s| s == JobState::Complete), "complete"),
        (count(|s| s.is_ended() && s != JobState::Complete), "ended otherwise"),
        (count(|s| s == JobState::Placed), "placed"),
        (count(|s| matches!(s, JobState::Queued | JobState::Placing | JobState::Regrouping)), "waiting"),
    ];
    let parts = parts.iter().filter(|(n, _)| *n > 0).map(|(n, what)| (*what, *n));
    format!("of {}: {}", show::several(jobs.len(), "job"), show::counted(parts))
}
