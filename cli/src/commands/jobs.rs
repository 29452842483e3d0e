//! `jobs`: the jobs of the cluster, the newest first.
//!
//! Guarantees: jobs that have not ended come from the index, which may be a moment behind; with ended jobs, every row is
//! read consistently; a list that is cut says so.
//! Does not: change anything.

use super::demand;
use super::filter::Filter;
use super::watch::{self, Page};
use crate::console::show::{self, Rows, or_blank, when, when_known};
use crate::console::{Cluster, Context, Outcome};
use crate::view::JobRow;
use crate::view::find::short;
use crate::view::next::{self, Next};
use crate::view::present::Present;
use crate::view::usage::{self, Used};
use clap::Args;
use model::JobSummary;
use model::time::Time;
use runtime::observation::ObserveError;
use std::cmp::Reverse;
use std::io::Write;

/// The most waiting jobs that are read for a list of the newest.
const READ: usize = 100_000;

#[derive(Args, Clone, Debug)]
pub struct JobsArgs {
    /// Also show ended jobs that are still stored
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    filter: Filter,
    /// Show what jobs used: CPU time and memory, beside what they asked for. With the jobs that have ended
    #[arg(long, conflicts_with = "queue")]
    usage: bool,
    /// Show at most so many jobs
    #[arg(long, value_name = "N", default_value_t = 1000)]
    limit: usize,
    /// In the order of the queue, from its head, and those that run last; by default the newest come first
    #[arg(long, conflicts_with = "all")]
    queue: bool,
    /// Show the list again and again, until Ctrl-C
    #[arg(long, conflicts_with = "json")]
    watch: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) async fn list(context: &mut Context<'_>, args: &JobsArgs) -> anyhow::Result<Outcome> {
    list_with(context, args, watch::pause).await
}

/// [`list`], with this pause between two looks of `--watch`. The pause says whether another look follows.
pub(super) async fn list_with(
    context: &mut Context<'_>,
    args: &JobsArgs,
    pause: impl AsyncFn() -> bool,
) -> anyhow::Result<Outcome> {
    let cluster = context.cluster().await?;
    let look = async |now: Time, page: &mut Page| look(&cluster, args, now, page).await;
    if args.watch { watch::repeat(context, look, pause).await } else { watch::once(context, look).await }
}

/// A job of the list.
struct Listed {
    summary: JobSummary,
    row: JobRow,
}

/// The jobs that a command is about, in the order of their list.
struct Found {
    jobs: Vec<Listed>,
    /// Whether more jobs wait than were read.
    more: bool,
    next: Result<Next, ObserveError>,
}

async fn find(cluster: &Cluster, args: &JobsArgs, now: Time, page: &mut Page) -> anyhow::Result<Found> {
    let most = if !args.queue || !args.filter.is_empty() { READ } else { args.limit };
    let mut present = Present::read(&cluster.store, cluster.cloud.as_ref(), most, now).await?;
    let (mut jobs, more): (Vec<Listed>, bool) = if args.all || args.usage || args.filter.wants_ended() {
        let stored = cluster.store.jobs_listed().await?;
        show::unreadable(&mut page.err, &stored.unreadable)?;
        (stored.rows.into_iter().map(|job| Listed { row: JobRow::of(&job), summary: job.summary }).collect(), false)
    } else {
        show::unreadable(&mut page.err, &present.bad_jobs)?;
        let jobs = std::mem::take(&mut present.jobs);
        let listed = jobs.into_iter().map(|job| Listed { row: JobRow::of_summary(&job), summary: job });
        (listed.collect(), present.more_jobs_wait)
    };
    jobs.retain(|job| args.filter.takes(&job.summary, now));
    if !args.queue {
        jobs.sort_by_key(|job| Reverse(job.summary.job_id));
    }
    let places = present.places();
    for job in jobs.iter_mut().filter(|job| !job.summary.state.is_ended()) {
        job.row.seen_in(&job.summary, &present, &places);
    }
    Ok(Found { jobs, more, next: present.next })
}

async fn look(cluster: &Cluster, args: &JobsArgs, now: Time, page: &mut Page) -> anyhow::Result<()> {
    let Found { mut jobs, more, next } = find(cluster, args, now, page).await?;
    let all = jobs.len();
    // With `--queue`, the jobs that run are shown behind those that wait.
    if !args.queue || !args.filter.is_empty() {
        jobs.truncate(args.limit);
    }
    let waits = jobs.iter().any(|job| !job.summary.state.is_ended());
    let next = if waits { next::for_list(next, &mut page.err)? } else { None };
    if args.json {
        show::json(&mut page.out, &jobs.iter().map(|job| &job.row).collect::<Vec<_>>())?;
    } else if jobs.is_empty() {
        let none = match (args.filter.is_empty(), args.all || args.usage) {
            (false, true) => "no stored job is like that",
            (false, false) => "no job is like that (--all looks at those that have ended too)",
            (true, true) => "no jobs",
            (true, false) => "no jobs are queued or placed (--all shows those that have ended)",
        };
        writeln!(page.out, "{none}")?;
    } else if args.usage {
        usage_table(&jobs).colours(page.colours).print(&mut page.out)?;
    } else {
        table(&jobs, now).colours(page.colours).print(&mut page.out)?;
    }
    for line in demand::lines(next.as_ref().filter(|_| !args.json)) {
        writeln!(page.out, "{line}")?;
    }
    let limit = args.limit;
    if more && args.queue {
        writeln!(page.err, "more jobs wait behind the first {limit} of the queue: --limit N shows N of them")?;
    } else if more {
        writeln!(page.err, "more than {READ} jobs wait: only the first {READ} of the queue were looked at")?;
    } else if all > limit && !args.queue {
        writeln!(page.err, "{limit} of {all} jobs are shown, the newest: --limit N shows N of them")?;
    }
    Ok(())
}

fn table(jobs: &[Listed], now: Time) -> Rows {
    let has_ended = jobs.iter().any(|job| job.summary.state.is_ended());
    let ended = has_ended.then_some("ENDED");
    let heads = ["JOB", "NAME", "STATE", "PRIORITY", "NEEDS", "ALLOCS", "SUBMITTED"].into_iter();
    let mut rows = Rows::new(&heads.chain(ended).chain(["REASON"]).collect::<Vec<_>>());
    for Listed { summary, row } in jobs {
        let ended = has_ended.then(|| when_known(row.finished_at, now));
        rows.row(cells(summary, now).into_iter().chain(ended).chain([or_blank(row.why())]));
    }
    rows
}

/// What the jobs used.
fn usage_table(jobs: &[Listed]) -> Rows {
    let mut rows = Rows::new(&["JOB", "NAME", "STATE"].into_iter().chain(usage::HEADS).collect::<Vec<_>>());
    for Listed { summary, row } in jobs {
        let used = row.usage.map(|usage| Used { usage, asked: row.capacity }.cells()).unwrap_or_default();
        let job = [short(row.job_id), or_blank(row.name.as_ref()), summary.state.to_string()];
        rows.row(job.into_iter().chain(used));
    }
    rows
}

fn cells(job: &JobSummary, now: Time) -> [String; 7] {
    [
        short(job.job_id),
        or_blank(job.name.as_ref()),
        job.state.to_string(),
        job.priority.to_string(),
        needs(job),
        job.allocs.len().to_string(),
        when(job.submitted_at, now),
    ]
}

/// What a job needs, for people.
pub(super) fn needs(job: &JobSummary) -> String {
    let mut needs = show::capacity(job.needs.capacity());
    if job.needs.nodes > 1 {
        needs.push_str(&format!(" on each of {} nodes", job.needs.nodes));
    }
    for narrowed in job.needs.machine.words() {
        needs.push_str(&format!(", {narrowed}"));
    }
    if job.needs.exclusive {
        needs.push_str(", exclusive");
    }
    needs
}
