//! `jobs`: the jobs of the cluster, the newest first. An array is one line.
//!
//! Flow: the queue, its newest jobs, running jobs and ended jobs in a given state come from the index of the queue; jobs with a
//! name from the index of names. All other lists read the stored jobs from the newest on.
//! Guarantees: a list costs what it shows, and not what is stored, unless `--all` asks for rare jobs. The indexes may be a moment
//! behind. A list that is cut says so.
//! Does not: change anything.

use super::arrivals;
use crate::commands::filter::JobFilter;
use crate::commands::operate::demand;
use crate::console::show::{self, Rows, or_blank, when, when_some};
use crate::console::{Context, Exit};
use crate::view::array::States;
use crate::view::find::short;
use crate::view::next::{self, NextRun};
use crate::view::present::Snapshot;
use crate::view::stored::{self, Among, Bounds, MOST_READ};
use crate::view::usage::{self, Used};
use crate::view::{JobRow, by_array};
use clap::Args;
use model::{Array, JobId, JobSummary, Time};
use runtime::observation::ObserveError;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::num::NonZeroUsize;
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
    /// Show at most this many jobs; in the table, an array counts as one
    #[arg(long, value_name = "N", default_value = "1000")]
    limit: NonZeroUsize,
    /// In the order of the queue, from its head, with running jobs at the end; by default the newest come first
    #[arg(long, conflicts_with = "all")]
    queue: bool,
    /// Show the list again and again, until Ctrl-C
    #[arg(long, conflicts_with = "json")]
    pub(crate) watch: bool,
    /// Print the jobs that ended, by default in the last 30 days, as a file for `simulate`, which compares policies on them
    #[arg(long, conflicts_with_all = ["all", "states", "usage", "queue", "watch", "json"])]
    arrivals: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The jobs of a list, in order.
struct JobList {
    jobs: Vec<JobRow>,
    cut: Cut,
    next: Result<NextRun, ObserveError>,
}

/// Whether a list lacks something.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cut {
    Not,
    /// There are more of these jobs.
    More,
    /// There may be more of these jobs: not all stored jobs were read.
    NotLooked,
}

async fn find(context: &mut Context<'_>, args: &JobsArgs) -> anyhow::Result<JobList> {
    let (cluster, now) = (context.cluster().await?, context.now());
    let args = &JobsArgs { filter: args.filter.of(&cluster).await?, ..args.clone() };
    // How many of these jobs are in as many lines as may be shown.
    let shown = |jobs: &[JobRow]| {
        let mut lines = BTreeSet::new();
        let is_shown = |JobRow { summary: job, .. }: &&JobRow| {
            let array = job.array_count.filter(|_| !args.json && !args.usage);
            lines.insert(array.map_or(job.job_id, |_| Array::of(job.job_id).job(0)));
            lines.len() <= args.limit.get()
        };
        jobs.iter().take_while(is_shown).count()
    };
    // If the queue is not listed, only the plan is needed.
    let most = if args.queue { MOST_READ } else { 1 };
    let mut present = Snapshot::read(&cluster.store, cluster.cloud.as_ref(), most, now).await?;
    let (mut jobs, cut) = if args.queue {
        show::unreadable(context.err, &present.bad_jobs)?;
        let waiting = std::mem::take(&mut present.jobs);
        let cut = if present.more_jobs_wait { Cut::NotLooked } else { Cut::Not };
        (waiting.iter().map(JobRow::of_summary).collect(), cut)
    } else {
        let mut wanted = args.clone();
        loop {
            let mut said = Vec::new();
            let (jobs, cut) = newest(&mut said, &cluster.store, &wanted, now).await?;
            // Many of them may be in one line.
            let is_all = cut == Cut::Not || (wanted.limit.get() >= MOST_READ && !args.all);
            if is_all || shown(&jobs) < jobs.len() {
                context.err.write_all(&said)?;
                break (jobs, cut);
            }
            wanted.limit = wanted.limit.saturating_add(wanted.limit.get().saturating_mul(9).max(MOST_READ));
        }
    };
    jobs.retain(|job| args.filter.takes(&job.summary, now));
    if !args.queue {
        jobs.sort_by_key(|job| Reverse(job.summary.job_id));
        jobs.dedup_by_key(|job| job.summary.job_id);
    }
    let places = present.places();
    for job in jobs.iter_mut().filter(|job| !job.summary.state.is_ended()) {
        job.add_live(present.waits_because(&job.summary), &places);
    }
    let shown = shown(&jobs);
    let cut = if shown < jobs.len() { Cut::More } else { cut };
    jobs.truncate(shown);
    Ok(JobList { jobs, cut, next: present.next })
}

/// The newest jobs, and whether the list lacks some.
async fn newest(err: &mut Vec<u8>, store: &Store, args: &JobsArgs, now: Time) -> anyhow::Result<(Vec<JobRow>, Cut)> {
    let (filter, limit) = (&args.filter, args.limit.get());
    let (among, since, has_ended) = (filter.among(), filter.since(now), args.all || args.usage);
    let (mut jobs, mut cut) = (Vec::new(), Cut::Not);
    if (has_ended && filter.states().is_empty()) || !matches!(among, Among::Stored) {
        let bounds = Bounds { wanted: limit, most: if args.all { usize::MAX } else { MOST_READ } };
        let is_wanted = |job: &JobSummary| has_ended || filter.wants_ended() || !job.state.is_ended();
        let takes = |job: &JobSummary| is_wanted(job) && filter.takes(job, now);
        let read = stored::newest(store, &among, since, bounds, takes).await?;
        show::unreadable(err, &read.unreadable)?;
        if read.looked > MOST_READ {
            writeln!(err, "{} stored jobs were looked at", read.looked)?;
        }
        let cut = if read.more { Cut::NotLooked } else { Cut::Not };
        return Ok((read.jobs.iter().map(JobRow::of).collect(), cut));
    }
    if filter.wants_live() {
        let most = if filter.owner.is_empty() { limit.saturating_add(1) } else { MOST_READ };
        let (waiting, placed) = (store.waiting_newest(most).await?, store.placed().await?);
        show::unreadable(err, &waiting.unreadable)?;
        show::unreadable(err, &placed.unreadable)?;
        if waiting.end.is_some() {
            cut = Cut::NotLooked;
        }
        jobs.extend(placed_last(waiting.jobs, placed.rows).iter().map(JobRow::of_summary));
    }
    if filter.wants_ended() {
        let most = if args.all { usize::MAX } else { MOST_READ };
        let (ended, is_cut) = ended(store, filter, (limit, most), now).await?;
        if is_cut {
            cut = Cut::NotLooked;
        }
        jobs.extend(ended);
    }
    Ok((jobs, cut))
}

/// The `limit` jobs that ended last as the filter says, and whether some were not read, because `most_read` were.
async fn ended(
    store: &Store,
    filter: &JobFilter,
    (limit, most_read): (usize, usize),
    now: Time,
) -> Result<(Vec<JobRow>, bool), DbError> {
    let mut most = limit.saturating_add(1);
    loop {
        let ended = store.ended(&filter.ends(), filter.since(now), most).await?;
        let (looked, all) = (ended.len(), ended.into_iter().filter(|ended| filter.takes(&ended.job, now)));
        let ids: Vec<JobId> = all.map(|ended| ended.job.job_id).take(limit.saturating_add(1)).collect();
        // The order of ends is not that of submissions, and rejected jobs may be rare among those that failed: so look at more.
        if ids.len() <= limit && looked >= most && most < most_read {
            most = most_read;
            continue;
        }
        let read = store.jobs_of(ids).await?;
        return Ok((read.rows.iter().map(JobRow::of).collect(), looked >= most));
    }
}

/// Lists the jobs.
pub(crate) async fn list(context: &mut Context<'_>, args: &JobsArgs) -> anyhow::Result<Exit> {
    if args.arrivals {
        arrivals::print(context, &args.filter).await?;
        return Ok(Exit::Done);
    }
    let JobList { jobs, cut, next } = find(context, args).await?;
    let waits = jobs.iter().any(|job| !job.summary.state.is_ended());
    let next = if waits { next::for_list(next, context.err)? } else { None };
    if args.json {
        show::json(context.out, &jobs)?;
    } else if jobs.is_empty() {
        let none = match (args.filter.is_empty(), args.all || args.usage) {
            (false, true) => "no stored job is like that",
            (false, false) => "no job is like that (--all looks at those that have ended too)",
            (true, true) => "no jobs",
            (true, false) => "no jobs are queued or placed (--all shows those that have ended)",
        };
        writeln!(context.out, "{none}")?;
    } else {
        let rows = if args.usage { usage_table(&jobs) } else { table(jobs, cut, context.now()) };
        rows.colours(context.colours).print(context.out)?;
    }
    for line in demand::lines(next.as_ref().filter(|_| !args.json)) {
        writeln!(context.out, "{line}")?;
    }
    let (limit, first) = (args.limit.get(), if args.queue { "first" } else { "newest" });
    let more = if args.queue { "" } else { "; --all looks at every stored job" };
    match cut {
        Cut::Not => {}
        Cut::More => {
            writeln!(context.err, "the {first} {limit} are shown, and there are more: --limit N shows N of them")?;
        }
        Cut::NotLooked => {
            writeln!(context.err, "there may be more: only the {first} {MOST_READ} were looked at{more}")?;
        }
    }
    Ok(Exit::Done)
}

/// A line is one job, or all that is listed of an array.
fn table(jobs: Vec<JobRow>, cut: Cut, now: Time) -> Rows {
    let has_ended = jobs.iter().any(|job| job.summary.state.is_ended());
    let people: BTreeSet<Option<&str>> = jobs.iter().map(|job| job.summary.by.as_deref()).collect();
    let has_people = people.len() > 1;
    let (by, ended) = (has_people.then_some("BY"), has_ended.then_some("ENDED"));
    let heads = ["JOB", "NAME", "STATE", "PRIORITY", "NEEDS", "ALLOCS", "SUBMITTED"].into_iter();
    let cells = |line: Vec<JobRow>| {
        let by = has_people.then(|| or_blank(line.first().and_then(|job| job.summary.by.as_ref())));
        let ended = has_ended.then(|| when_some(line.iter().filter_map(|job| job.finished_at).max(), now));
        cells(&line, cut, now).into_iter().chain(by).chain(ended).chain([or_blank(commonest(&line))])
    };
    let heads: Vec<_> = heads.chain(by).chain(ended).chain(["REASON"]).collect();
    Rows::of(&heads, by_array(jobs).into_iter().map(cells))
}

/// Why most of these jobs are in their states.
fn commonest(line: &[JobRow]) -> Option<&str> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    line.iter().filter_map(|job| job.why()).for_each(|why| *counts.entry(why).or_default() += 1);
    counts.into_iter().max_by_key(|(_, n)| *n).map(|(why, _)| why)
}

fn usage_table(jobs: &[JobRow]) -> Rows {
    let cells = |JobRow { summary, .. }: &JobRow| {
        let used = summary.tries.usage.map(|usage| Used { usage, needs: summary.needs.capacity() }.cells());
        let used = used.unwrap_or_default();
        let job = [short(summary.job_id), or_blank(summary.name.as_ref()), summary.state.to_string()];
        job.into_iter().chain(used)
    };
    let heads = ["JOB", "NAME", "STATE"].into_iter().chain(usage::HEADS);
    Rows::of(&heads.collect::<Vec<_>>(), jobs.iter().map(cells))
}

fn cells(line: &[JobRow], cut: Cut, now: Time) -> Vec<String> {
    let Some(JobRow { summary: job, .. }) = line.first() else { return Vec::new() };
    let (id, state) = match job.array_count {
        None => (short(job.job_id), job.state.to_string()),
        Some(all) => {
            let states = States::of(line.iter().map(|job| &job.summary)).text(all);
            // More of its elements may be behind the end of the list.
            let at_least = if cut != Cut::Not && states.ends_with(&format!(" of {all}")) { "at least " } else { "" };
            (format!("{}[*]", short(job.job_id)), format!("{at_least}{states}"))
        }
    };
    vec![
        id,
        or_blank(job.name.as_ref()),
        state,
        job.priority.to_string(),
        needs(job),
        line.iter().map(|job| job.summary.allocs.len()).sum::<usize>().to_string(),
        when(job.submitted_at, now),
    ]
}

pub(crate) fn needs(job: &JobSummary) -> String {
    let needs = &job.needs;
    let each = if needs.nodes > 1 { format!(" on each of {} nodes", needs.nodes) } else { String::new() };
    show::narrowed(format!("{}{each}", needs.capacity()), &needs.machine, needs.exclusive)
}
