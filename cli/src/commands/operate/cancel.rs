//! `cancel`: ends jobs.
//!
//! Guarantees: jobs that are not named one by one are shown before they are cancelled, and the person is asked, as about jobs of others. Exactly the shown
//! jobs are cancelled, in the order of the queue, so that none of the others is placed meanwhile. An error with one job does not
//! stop the others.
//! Does not: stop allocs. The next run stops the allocs of a cancelled job.

use super::changing::{ChangeWords, agree, change_jobs, named};
use crate::changes::JobChange;
use crate::commands::filter::JobFilter;
use crate::commands::others::Others;
use crate::console::show::{self, Rows, or_blank, when};
use crate::console::{Cluster, Context, Exit, UsageError, is_yes};
use crate::view::find::short;
use anyhow::bail;
use clap::Args;
use model::{JobId, JobState, JobSummary};
use store::WaitingJobs;

const WORDS: ChangeWords = ChangeWords {
    verb: "cancel",
    participle: "cancelled",
    state: JobState::Cancelled,
    already: "was cancelled already",
};

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
    let (meant, exit) = if is_named {
        let (meant, exit) = named(context, &cluster, &args.jobs).await?;
        if !agree(context, &cluster, &meant, &WORDS, args.yes).await? {
            return Ok(Exit::Failed);
        }
        (meant, exit)
    } else {
        let Some(ids) = described(context, &cluster, args).await? else { return Ok(Exit::Failed) };
        (ids.into_iter().map(|id| (None, vec![id])).collect(), Exit::Done)
    };
    Ok(exit.and(change_jobs(context, &cluster, &meant, &how, &WORDS, false).await?))
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
        if !others.agree(context, WORDS.verb, args.yes)? {
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
