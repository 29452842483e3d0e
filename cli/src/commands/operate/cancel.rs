//! `cancel`: ends jobs.
//!
//! Guarantees: jobs that are not named one by one are shown before they are cancelled, and the person is asked, as about jobs of others. Exactly the shown
//! jobs are cancelled, in the order of the queue, so that none of the others is placed meanwhile. An error with one job does not
//! stop the others.
//! Does not: stop allocs. The next run stops the allocs of a cancelled job.

use crate::changes::{JobChange, change_each};
use crate::commands::filter::JobFilter;
use crate::commands::others::Others;
use crate::console::show::{self, Rows, or_blank, several, when};
use crate::console::{Cluster, Context, Exit, UsageError, is_yes};
use crate::view::find::{Finder, short};
use anyhow::{bail, ensure};
use clap::Args;
use futures::StreamExt;
use model::{Job, JobId, JobState, JobSummary};
use std::collections::BTreeSet;
use store::WaitingJobs;

/// How many jobs are listed before the question.
const LISTED: usize = 20;

#[derive(Args, Clone, Debug)]
pub struct CancelArgs {
    /// The jobs' ids, parts of them, or their names. The name of an array stands for all its jobs, and NAME[3] for number 3
    #[arg(value_name = "JOB")]
    jobs: Vec<String>,
    /// Every job that has not ended
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    filter: JobFilter,
    /// Do not ask about jobs that are not named one by one, or of somebody else
    #[arg(long, short = 'y')]
    yes: bool,
}

pub(crate) async fn run(context: &mut Context<'_>, args: &CancelArgs) -> anyhow::Result<Exit> {
    let is_named = !args.jobs.is_empty();
    let by_filter = args.all || !args.filter.is_empty();
    if is_named == by_filter {
        let message = if is_named {
            "name jobs, or describe them (--name, --label, --mine, --state, --since, --all), not both"
        } else {
            "say which jobs: their ids or names, --name, --label, --mine, --state, --since or --all"
        };
        bail!(UsageError(message.to_owned()));
    }
    if !args.filter.wants_live() {
        let message = "jobs that have ended cannot be cancelled: give --state queued, placing, placed or regrouping";
        bail!(UsageError(message.to_owned()));
    }
    let cluster = context.cluster().await?;
    let how = JobChange::cancel(&cluster).await?;
    let (ids, mut exit) = if is_named {
        let (ids, exit) = named(context, &cluster, &args.jobs).await?;
        let jobs = cluster.store.jobs_of(ids.iter().copied()).await?.rows;
        let others = Others::of_jobs(&cluster, &jobs).await?;
        if !others.agree(context, "cancel", args.yes)? {
            return Ok(Exit::Failed);
        }
        (ids, exit)
    } else {
        let Some(ids) = described(context, &cluster, args).await? else { return Ok(Exit::Failed) };
        (ids, Exit::Done)
    };
    let clock = std::sync::Arc::clone(&context.clock);
    // The order is that in which they were given, or that of the queue.
    let mut cancelled = change_each(&cluster, &ids, &how, &clock);
    while let Some((id, result)) = cancelled.next().await {
        match result {
            Ok(Ok(job)) => writeln!(context.out, "{}", cancelled_line(&job))?,
            Ok(Err(job)) if job.summary.state == JobState::Cancelled => {
                writeln!(context.out, "{id} was cancelled already")?;
            }
            Ok(Err(job)) => {
                let state = job.summary.state;
                // A job of a filter may have ended while the person read the list. That is no failure.
                exit = exit.and(Exit::done_if(by_filter));
                writeln!(context.err, "nodekeeper: job {id} cannot be cancelled: it has ended already ({state})")?;
            }
            Err(e) => {
                exit = exit.and(Exit::of(&e));
                writeln!(context.err, "nodekeeper: {}", show::error(&e))?;
            }
        }
    }
    Ok(exit)
}

fn cancelled_line(job: &Job) -> String {
    let stopping = match job.summary.allocs.len() {
        0 => String::new(),
        n => format!(": {} will stop in the next run", several(n, "live alloc")),
    };
    format!("{} cancelled{stopping}", job.summary.job_id)
}

/// The jobs with these ids or names, and the exit code: a name that is not found is a failure.
async fn named(context: &mut Context<'_>, cluster: &Cluster, given: &[String]) -> anyhow::Result<(Vec<JobId>, Exit)> {
    let (mut ids, mut known, mut exit) = (Vec::new(), BTreeSet::new(), Exit::Done);
    let finder = Finder::new(cluster);
    for text in given {
        let found = match finder.whole_jobs(text).await {
            Ok(one) if one.len() == 1 => Ok(one),
            // Elements that have ended are not named, unless all of them have.
            Ok(array) => not_ended(cluster, text, array).await,
            Err(e) => Err(e),
        };
        match found {
            Ok(found) => ids.extend(found.into_iter().filter(|id| known.insert(*id))),
            Err(e) => {
                exit = exit.and(Exit::of(&e));
                writeln!(context.err, "nodekeeper: {}", show::error(&e))?;
            }
        }
    }
    Ok((ids, exit))
}

async fn not_ended(cluster: &Cluster, text: &str, array: Vec<JobId>) -> anyhow::Result<Vec<JobId>> {
    let mut left = cluster.store.jobs_of(array).await?.all()?;
    left.retain(|job| !job.summary.state.is_ended());
    ensure!(!left.is_empty(), "all jobs of the array {} have ended already", show::one_line(text));
    Ok(left.iter().map(|job| job.summary.job_id).collect())
}

/// The jobs that fit the filter, if the person agrees.
async fn described(
    context: &mut Context<'_>,
    cluster: &Cluster,
    args: &CancelArgs,
) -> anyhow::Result<Option<Vec<JobId>>> {
    let now = context.now();
    let WaitingJobs { mut jobs, unreadable, .. } = cluster.store.queue_listed(usize::MAX).await?;
    show::unreadable(context.err, &unreadable)?;
    let filter = args.filter.of(cluster).await?;
    jobs.retain(|job| filter.takes(job, now));
    if jobs.is_empty() {
        writeln!(context.out, "no job that could be cancelled is like that")?;
        return Ok(Some(Vec::new()));
    }
    let row = |job: &JobSummary| {
        let (name, by) = (or_blank(job.name.as_ref()), or_blank(job.by.as_ref()));
        [short(job.job_id), name, by, job.state.to_string(), when(job.submitted_at, now)]
    };
    Rows::of(&["JOB", "NAME", "BY", "STATE", "SUBMITTED"], jobs.iter().take(LISTED).map(row)).print(context.err)?;
    if jobs.len() > LISTED {
        writeln!(context.err, "and {} more", jobs.len() - LISTED)?;
    }
    let others = Others::of(cluster, jobs.iter().map(|job| job.by.as_deref())).await?;
    if !others.is_empty() {
        if !others.agree(context, "cancel", args.yes)? {
            return Ok(None);
        }
    } else if !args.yes {
        let these = if jobs.len() == 1 { "this job".to_owned() } else { format!("these {} jobs", jobs.len()) };
        if !is_yes(&context.ask(&format!("Cancel {these}? [y/N]"))?) {
            writeln!(context.err, "\nnothing was cancelled: answer y, or give --yes")?;
            return Ok(None);
        }
    }
    Ok(Some(jobs.iter().map(|job| job.job_id).collect()))
}
