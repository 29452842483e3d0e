//! `jobs`: the jobs of the cluster, the newest first.
//!
//! Flow: the queue, its newest jobs, running jobs and ended jobs in a given state come from the index of the queue; jobs with a
//! name from the index of names. For all other lists, the stored jobs are looked at from the newest on.
//! Guarantees: a list costs what it shows, and not what is stored, unless `--all` asks for rare jobs. The indexes may be a moment
//! behind. A list that is cut says so.
//! Does not: change anything.

use crate::commands::amounts;
use crate::commands::filter::JobFilter;
use crate::commands::operate::demand;
use crate::commands::watch::{self, Screenful};
use crate::console::show::{self, Rows, or_blank, when, when_some};
use crate::console::{Cluster, CommandOutcome, Context};
use crate::view::JobRow;
use crate::view::find::short;
use crate::view::next::{self, NextRun};
use crate::view::present::Snapshot;
use crate::view::stored::{self, Among, Bounds, MOST_READ};
use crate::view::usage::{self, Used};
use clap::Args;
use model::ids::JobId;
use model::time::Time;
use model::{Job, JobSummary};
use runtime::observation::ObserveError;
use std::cmp::Reverse;
use std::io::Write;
use store::{DbError, Store, placed_last};

#[derive(Args, Clone, Debug)]
pub struct JobsArgs {
    /// Also show ended jobs that are still stored
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    filter: JobFilter,
    /// Show what jobs used beside what they asked for, such as CPU time and memory. Ended jobs are shown, too
    #[arg(long, conflicts_with = "queue")]
    usage: bool,
    /// Show at most this many jobs
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = amounts::limit)]
    limit: usize,
    /// In the order of the queue, from its head, with running jobs at the end; by default the newest come first
    #[arg(long, conflicts_with = "all")]
    queue: bool,
    /// Show the list again and again, until Ctrl-C
    #[arg(long, conflicts_with = "json")]
    watch: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Lists the jobs. With `--watch`, `pause` waits for the next look, and returns whether there is one.
pub(crate) async fn list(
    context: &mut Context<'_>,
    args: &JobsArgs,
    pause: impl AsyncFn() -> bool,
) -> anyhow::Result<CommandOutcome> {
    let cluster = context.cluster().await?;
    let write = async |now: Time, page: &mut Screenful| write_page(&cluster, args, now, page).await;
    if args.watch { watch::repeat(context, write, pause).await } else { watch::once(context, write).await }
}

struct ListedJob {
    summary: JobSummary,
    row: JobRow,
}

/// The jobs of a list, in order.
struct JobList {
    jobs: Vec<ListedJob>,
    cut: Cut,
    next: Result<NextRun, ObserveError>,
}

/// Whether a list lacks something.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cut {
    Not,
    /// There are more of these jobs.
    More,
    /// There may be more of these jobs: not all stored jobs were looked at.
    NotLooked,
}

async fn find(cluster: &Cluster, args: &JobsArgs, now: Time, page: &mut Screenful) -> anyhow::Result<JobList> {
    let most = match (args.queue, args.filter.is_empty()) {
        (true, true) => args.limit,
        (true, false) => MOST_READ,
        // The queue is not listed. Only the plan is needed.
        (false, _) => 1,
    };
    let mut present = Snapshot::read(&cluster.store, cluster.cloud.as_ref(), most, now).await?;
    let waiting = std::mem::take(&mut present.jobs);
    let (mut jobs, cut) = if args.queue {
        show::unreadable(&mut page.err, &present.bad_jobs)?;
        let cut = match (present.more_jobs_wait, args.filter.is_empty()) {
            (false, _) => Cut::Not,
            (true, true) => Cut::More,
            (true, false) => Cut::NotLooked,
        };
        (waiting.into_iter().map(ListedJob::of_summary).collect(), cut)
    } else {
        newest(cluster, args, now, page).await?
    };
    jobs.retain(|job| args.filter.takes(&job.summary, now));
    if !args.queue {
        jobs.sort_by_key(|job| Reverse(job.summary.job_id));
        jobs.dedup_by_key(|job| job.summary.job_id);
    }
    let places = present.places();
    for job in jobs.iter_mut().filter(|job| !job.summary.state.is_ended()) {
        job.row.add_snapshot(&job.summary, &present, &places);
    }
    Ok(JobList { jobs, cut, next: present.next })
}

/// The newest jobs, and whether the list lacks some.
async fn newest(
    cluster: &Cluster,
    args: &JobsArgs,
    now: Time,
    page: &mut Screenful,
) -> anyhow::Result<(Vec<ListedJob>, Cut)> {
    let (store, filter, limit) = (&cluster.store, &args.filter, args.limit);
    let (among, since, has_ended) = (filter.among(), filter.since(now), args.all || args.usage);
    let (mut jobs, mut cut) = (Vec::new(), Cut::Not);
    if has_ended || !matches!(among, Among::Stored) {
        let bounds = Bounds { wanted: limit, most: if args.all { usize::MAX } else { MOST_READ } };
        let is_wanted = |job: &JobSummary| has_ended || filter.wants_ended() || !job.state.is_ended();
        let takes = |job: &JobSummary| is_wanted(job) && filter.takes(job, now);
        let read = stored::newest(store, &among, since, bounds, takes).await?;
        show::unreadable(&mut page.err, &read.unreadable)?;
        if read.looked > MOST_READ {
            writeln!(page.err, "{} stored jobs were looked at", read.looked)?;
        }
        let cut = match (read.jobs.len() > limit, read.more) {
            (true, _) => Cut::More,
            (false, true) => Cut::NotLooked,
            (false, false) => Cut::Not,
        };
        return Ok((read.jobs.iter().map(ListedJob::of).collect(), cut));
    }
    if filter.wants_live() {
        let (waiting, placed) = (store.waiting_newest(limit.saturating_add(1)).await?, store.placed().await?);
        show::unreadable(&mut page.err, &waiting.unreadable)?;
        show::unreadable(&mut page.err, &placed.unreadable)?;
        if waiting.end.is_some() {
            cut = Cut::More;
        }
        jobs.extend(placed_last(waiting.jobs, placed.rows).into_iter().map(ListedJob::of_summary));
    }
    if filter.wants_ended() {
        let (ended, is_cut) = ended(store, filter, limit, now).await?;
        if is_cut {
            cut = Cut::NotLooked;
        }
        jobs.extend(ended);
    }
    Ok((jobs, cut))
}

/// The jobs that ended last as the filter says, and whether some were not looked at.
async fn ended(store: &Store, filter: &JobFilter, limit: usize, now: Time) -> Result<(Vec<ListedJob>, bool), DbError> {
    let mut most = limit.saturating_add(1);
    loop {
        let ended = store.ended(&filter.ends(), filter.since(now), most).await?;
        let (looked, all) = (ended.len(), ended.into_iter().filter(|ended| filter.takes(&ended.job, now)));
        let ids: Vec<JobId> = all.map(|ended| ended.job.job_id).take(limit.saturating_add(1)).collect();
        // The order of ends is not that of submissions, and rejected jobs may be rare among those that failed: so look at more.
        if ids.len() <= limit && looked >= most && most < MOST_READ {
            most = MOST_READ;
            continue;
        }
        let read = store.jobs_of(ids).await?;
        return Ok((read.rows.iter().map(ListedJob::of).collect(), looked >= most));
    }
}

impl ListedJob {
    fn of(job: &Job) -> Self {
        Self { row: JobRow::of(job), summary: job.summary.clone() }
    }

    fn of_summary(job: JobSummary) -> Self {
        Self { row: JobRow::of_summary(&job), summary: job }
    }
}

async fn write_page(cluster: &Cluster, args: &JobsArgs, now: Time, page: &mut Screenful) -> anyhow::Result<()> {
    let JobList { mut jobs, cut, next } = find(cluster, args, now, page).await?;
    // With `--queue` and no filter, `find` has limited the waiting jobs, and running jobs come after them.
    let is_limited = args.queue && args.filter.is_empty();
    let cut = if jobs.len() > args.limit && !is_limited { Cut::More } else { cut };
    if !is_limited {
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
    let note = match (cut, args.queue) {
        (Cut::Not, _) => return Ok(()),
        (Cut::More, true) => format!("more jobs wait behind the first {limit} of the queue: --limit N shows N of them"),
        (Cut::More, false) => format!("the newest {limit} are shown, and there are more: --limit N shows N of them"),
        (Cut::NotLooked, true) => format!("only the first {MOST_READ} waiting jobs were looked at"),
        (Cut::NotLooked, false) => {
            format!("there may be more: only the newest {MOST_READ} were looked at; --all looks at every stored job")
        }
    };
    Ok(writeln!(page.err, "{note}")?)
}

fn table(jobs: &[ListedJob], now: Time) -> Rows {
    let has_ended = jobs.iter().any(|job| job.summary.state.is_ended());
    let ended = has_ended.then_some("ENDED");
    let heads = ["JOB", "NAME", "STATE", "PRIORITY", "NEEDS", "ALLOCS", "SUBMITTED"].into_iter();
    let cells = |ListedJob { summary, row }: &ListedJob| {
        let ended = has_ended.then(|| when_some(row.finished_at, now));
        cells(summary, now).into_iter().chain(ended).chain([or_blank(row.why())])
    };
    Rows::of(&heads.chain(ended).chain(["REASON"]).collect::<Vec<_>>(), jobs.iter().map(cells))
}

fn usage_table(jobs: &[ListedJob]) -> Rows {
    let cells = |ListedJob { summary, row }: &ListedJob| {
        let used = row.usage.map(|usage| Used { usage, needs: row.capacity }.cells()).unwrap_or_default();
        let job = [short(row.job_id), or_blank(row.name.as_ref()), summary.state.to_string()];
        job.into_iter().chain(used)
    };
    let heads = ["JOB", "NAME", "STATE"].into_iter().chain(usage::HEADS);
    Rows::of(&heads.collect::<Vec<_>>(), jobs.iter().map(cells))
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

pub(in crate::commands) fn needs(job: &JobSummary) -> String {
    let needs = &job.needs;
    let each = if needs.nodes > 1 { format!(" on each of {} nodes", needs.nodes) } else { String::new() };
    show::narrowed(format!("{}{each}", needs.capacity()), &needs.machine, needs.exclusive)
}
