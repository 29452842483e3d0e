//! `jobs`, `job`, `logs`, `cancel`.
//!
//! Guarantees: one job is read consistently; a list comes from the index and may be a moment old.
//! Does not: stop allocs. The next run stops the allocs of a cancelled job.

use super::next;
use super::operate::{BY_OPERATOR, retention, retried};
use super::show::{self, Rows, moment, or_blank, when, when_known};
use super::{Cluster, Context, Outcome, Usage};
use clap::Args;
use model::events::Subject;
use model::ids::{AllocId, JobId};
use model::time::Time;
use model::{Alloc, Job, JobState, JobSummary};
use serde::Serialize;
use store::placed_last;
use store::steps::cancel_job;

/// `jobs`
#[derive(Args, Clone, Debug)]
pub struct JobsArgs {
    /// Also show ended jobs that are still stored
    #[arg(long)]
    all: bool,
    /// Show at most so many of the waiting jobs, from the head of the queue
    #[arg(long, value_name = "N", default_value_t = 1000, conflicts_with = "all")]
    limit: usize,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// `job`
#[derive(Args, Clone, Debug)]
pub struct JobArgs {
    /// The job's id
    #[arg(value_name = "ID")]
    job: JobId,
    /// Print JSON: the job's row, with the rows of its allocs as `all_allocs`
    #[arg(long)]
    json: bool,
}

/// `logs`
#[derive(Args, Clone, Debug)]
pub struct LogsArgs {
    /// The id of a job or of one alloc
    #[arg(value_name = "ID")]
    id: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// `cancel`
#[derive(Args, Clone, Debug)]
pub struct CancelArgs {
    /// The jobs' ids
    #[arg(value_name = "ID", required = true)]
    jobs: Vec<JobId>,
}

fn no_job(id: JobId) -> anyhow::Error {
    anyhow::anyhow!("there is no job {id}: `nodekeeper jobs --all` lists the jobs that are stored")
}

pub(super) async fn list(context: &mut Context<'_>, args: &JobsArgs) -> anyhow::Result<Outcome> {
    let (cluster, now) = (context.cluster().await?, context.now());
    if !args.all {
        let waiting = cluster.store.waiting(None, args.limit).await?;
        let more = waiting.end.is_some();
        let placed = cluster.store.placed().await?;
        show::unreadable(context.err, waiting.unreadable.iter().chain(&placed.unreadable))?;
        let jobs = placed_last(waiting.jobs, placed.rows);
        let waits = jobs.iter().any(|job| waits(job.state));
        let next = if waits { next::read_for_list(&cluster, now, context.err).await? } else { None };
        let why = |job: &JobSummary| next.as_ref().and_then(|n| n.of_job(job.job_id)).map(str::to_owned);
        if args.json {
            let listed: Vec<Listed<'_>> = jobs.iter().map(|job| Listed { job, waits_because: why(job) }).collect();
            show::json(context.out, &listed)?;
        } else if jobs.is_empty() {
            writeln!(context.out, "no jobs are queued or placed (--all shows those that have ended)")?;
        } else {
            let heads = ["JOB", "NAME", "STATE", "PRIORITY", "NEEDS", "ALLOCS", "SUBMITTED", "WAITS BECAUSE"];
            let mut rows = Rows::new(&heads);
            for job in &jobs {
                rows.row(cells(job, now).into_iter().chain([or_blank(why(job))]));
            }
            rows.print(context.out)?;
        }
        if more {
            let limit = args.limit;
            writeln!(context.err, "more jobs wait behind the first {limit} of the queue: --limit N shows N of them")?;
        }
        return Ok(Outcome::Done);
    }
    let mut jobs = cluster.store.jobs().await?;
    jobs.sort_by_key(|j| j.summary.job_id);
    if args.json {
        show::json(context.out, &jobs)?;
    } else if jobs.is_empty() {
        writeln!(context.out, "no jobs")?;
    } else {
        let heads = ["JOB", "NAME", "STATE", "PRIORITY", "NEEDS", "ALLOCS", "SUBMITTED", "ENDED", "REASON"];
        let mut rows = Rows::new(&heads);
        for job in &jobs {
            let ended = [when_known(job.finished_at, now), job.reason.clone().unwrap_or_default()];
            rows.row(cells(&job.summary, now).into_iter().chain(ended));
        }
        rows.print(context.out)?;
    }
    Ok(Outcome::Done)
}

fn cells(job: &JobSummary, now: Time) -> [String; 7] {
    [
        job.job_id.to_string(),
        or_blank(job.name.as_ref()),
        job.state.to_string(),
        job.priority.to_string(),
        needs(job),
        job.allocs.len().to_string(),
        when(job.submitted_at, now),
    ]
}

fn needs(job: &JobSummary) -> String {
    let mut needs = show::capacity(job.capacity);
    if job.nodes > 1 {
        needs.push_str(&format!(" on each of {} nodes", job.nodes));
    }
    for narrowed in [job.instance_type.clone(), job.market.map(|m| m.to_string())].into_iter().flatten() {
        needs.push_str(&format!(", {narrowed}"));
    }
    if job.exclusive {
        needs.push_str(", exclusive");
    }
    needs
}

/// A job of the queue in JSON: its summary, and why it waits.
#[derive(Serialize)]
struct Listed<'a> {
    #[serde(flatten)]
    job: &'a JobSummary,
    #[serde(skip_serializing_if = "Option::is_none")]
    waits_because: Option<String>,
}

/// A job in JSON: its row, its allocs, and why it waits.
#[derive(Serialize)]
struct Whole<'a> {
    #[serde(flatten)]
    job: &'a Job,
    all_allocs: &'a [Alloc],
    #[serde(skip_serializing_if = "Option::is_none")]
    waits_because: Option<&'a str>,
}

pub(super) async fn show(context: &mut Context<'_>, args: &JobArgs) -> anyhow::Result<Outcome> {
    let (cluster, now) = (context.cluster().await?, context.now());
    let job = cluster.store.job(args.job).await?.ok_or_else(|| no_job(args.job))?;
    let allocs = cluster.store.allocs_of(&job).await?;
    let waits = waits_because(&cluster, &job, now).await;
    if args.json {
        show::json(context.out, &Whole { job: &job, all_allocs: &allocs, waits_because: waits.as_deref() })?;
        return Ok(Outcome::Done);
    }
    let latest = cluster.store.history(&Subject::Job(args.job).to_string(), 1).await?;
    // An event with the same reason as the job itself is not shown.
    let latest = latest.first().filter(|e| Some(&e.reason) != job.reason.as_ref());
    let latest = latest.map(|e| format!("{}: {} ({})", e.action, e.reason, when(e.at(), now)));
    fields(&job, waits, latest, now).print(context.out)?;
    if !allocs.is_empty() {
        writeln!(context.out)?;
        alloc_rows(&allocs, now).print(context.out)?;
        writeln!(context.out)?;
        history_rows(&allocs, now).print(context.out)?;
    }
    Ok(Outcome::Done)
}

/// Whether a job in this state may wait. A placed job may wait for a copy.
const fn waits(state: JobState) -> bool {
    !state.is_ended()
}

/// Why a job waits. The job is shown even if EC2 cannot be reached.
async fn waits_because(cluster: &Cluster, job: &Job, now: Time) -> Option<String> {
    if !waits(job.summary.state) {
        return None;
    }
    match cluster.next(now).await {
        Ok(next) => next.of_job(job.summary.job_id).map(str::to_owned),
        Err(_) if job.summary.state == JobState::Placed => None,
        Err(e) => Some(format!("not known, because the cluster cannot be read: {e}")),
    }
}

fn fields(job: &Job, waits: Option<String>, latest: Option<String>, now: Time) -> Rows {
    let Job { summary, work, failure_policy, .. } = job;
    let mut rows = Rows::new(&[]);
    rows.field("job", Some(summary.job_id));
    rows.field("name", summary.name.as_ref());
    rows.field("state", Some(summary.state));
    rows.field("reason", job.reason.as_ref());
    // A placed job runs. It may wait for a copy, or the next run may do something with it.
    rows.field(if summary.state == JobState::Placed { "next" } else { "waits because" }, waits);
    rows.field("latest event", latest);
    rows.field("command", Some(show::command(&work.command)));
    let env: Vec<String> = work.env.iter().map(|(name, value)| format!("{name}={value}")).collect();
    rows.field("env", (!env.is_empty()).then(|| show::command(&env)));
    rows.field("image", work.image.as_ref());
    rows.field("caches", (!work.caches.is_empty()).then(|| work.caches.join(", ")));
    rows.field("needs", Some(needs(summary)));
    rows.field("priority", Some(summary.priority));
    rows.field("submitted", Some(moment(summary.submitted_at, now)));
    rows.field("ended", job.finished_at.map(|at| moment(at, now)));
    rows.field("failed", Some(retries(job.failed_count, job.retry_failed)));
    rows.field("lost", Some(retries(job.lost_count, job.retry_lost)));
    rows.field("time-out", (work.timeout_s > 0).then(|| format!("{} s", work.timeout_s)));
    let replace = if failure_policy.replace {
        format!(", with a copy meanwhile ({})", failure_policy.reconcile)
    } else {
        String::new()
    };
    rows.field("silent node", Some(format!("waited for {} s{replace}", failure_policy.lost_after_s)));
    rows
}

fn retries(count: u32, allowed: u32) -> String {
    format!("{}, {allowed} allowed before the job fails", show::several(count, "time"))
}

fn alloc_rows(allocs: &[Alloc], now: Time) -> Rows {
    let mut rows = Rows::new(&["ALLOC", "SLOT", "DESIRED", "CLIENT", "PLACED", "ENDED", "EXIT", "MESSAGE"]);
    for alloc in allocs {
        let seen = &alloc.summary;
        rows.row([
            seen.alloc_id.to_string(),
            seen.slot.to_string(),
            seen.desired.to_string(),
            seen.client.to_string(),
            when(seen.placed_at, now),
            when_known(alloc.finished_at, now),
            or_blank(alloc.exit_code),
            or_blank(alloc.message.as_ref()),
        ]);
    }
    rows
}

fn history_rows(allocs: &[Alloc], now: Time) -> Rows {
    let mut rows = Rows::new(&["WHEN", "ALLOC", "BECAME", "REASON"]);
    for alloc in allocs {
        for entry in &alloc.history {
            let became = format!("{} {}", entry.field, entry.value);
            rows.row([when(entry.at, now), alloc.id().to_string(), became, entry.reason.clone()]);
        }
    }
    rows
}

/// The end of an alloc's output, in JSON.
#[derive(Serialize)]
struct Log<'a> {
    alloc_id: AllocId,
    client: model::ClientStatus,
    #[serde(skip_serializing_if = "Option::is_none")]
    exit_code: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    log_tail: Option<&'a str>,
}

pub(super) async fn logs(context: &mut Context<'_>, args: &LogsArgs) -> anyhow::Result<Outcome> {
    let (cluster, now) = (context.cluster().await?, context.now());
    let allocs = if let Ok(id) = args.id.parse::<JobId>() {
        let job = cluster.store.job(id).await?.ok_or_else(|| no_job(id))?;
        cluster.store.allocs_of(&job).await?
    } else if let Ok(id) = args.id.parse::<AllocId>() {
        let alloc = cluster.store.alloc(id).await?;
        vec![
            alloc
                .ok_or_else(|| anyhow::anyhow!("there is no alloc {id}: `nodekeeper job {}` lists them", id.job_id))?,
        ]
    } else {
        let message = format!("{} is neither a job's id nor an alloc's: `nodekeeper jobs --all` lists jobs", args.id);
        return Err(Usage(show::one_line(&message)).into());
    };
    if args.json {
        let logs: Vec<Log<'_>> = allocs.iter().map(log).collect();
        show::json(context.out, &logs)?;
        return Ok(Outcome::Done);
    }
    if allocs.is_empty() {
        writeln!(context.out, "nothing has run yet: `nodekeeper job {}` says why", args.id)?;
    }
    for alloc in &allocs {
        let seen = &alloc.summary;
        let exit = alloc.exit_code.map(|code| format!(", exit code {code}")).unwrap_or_default();
        let ended = alloc.finished_at.map(|at| format!(", {}", when(at, now))).unwrap_or_default();
        writeln!(context.out, "== {} on slot {} ({}{exit}{ended})", seen.alloc_id, seen.slot, seen.client)?;
        if let Some(message) = &alloc.message {
            writeln!(context.out, "== message: {}", show::one_line(message))?;
        }
        let node = seen.node_id;
        match &alloc.log_tail {
            Some(tail) => {
                writeln!(context.out, "== the end of its output (8 KiB at most), as node {node} reported it:")?;
                write!(context.out, "{}", show::output(tail, context.screen))?;
                if !tail.ends_with('\n') {
                    writeln!(context.out)?;
                }
            }
            None if seen.client.is_final() => writeln!(context.out, "== node {node} reported no output")?,
            None => writeln!(context.out, "== its output is on node {node} until it ends")?,
        }
    }
    Ok(Outcome::Done)
}

fn log(alloc: &Alloc) -> Log<'_> {
    Log {
        alloc_id: alloc.id(),
        client: alloc.summary.client,
        exit_code: alloc.exit_code,
        message: alloc.message.as_deref(),
        log_tail: alloc.log_tail.as_deref(),
    }
}

pub(super) async fn cancel(context: &mut Context<'_>, args: &CancelArgs) -> anyhow::Result<Outcome> {
    let cluster = context.cluster().await?;
    let keep = retention(&cluster).await?;
    let mut all = true;
    for id in &args.jobs {
        let now = context.now();
        let cancelled = retried(async || {
            let job = cluster.store.job(*id).await?.ok_or_else(|| no_job(*id))?;
            let cancelled = cancel_job(&cluster.store, &job, BY_OPERATOR, keep, now).await?;
            Ok(cancelled.ok_or(job.summary.state))
        });
        match cancelled.await {
            Ok(Ok(job)) => {
                let stopping = match job.summary.allocs.len() {
                    0 => String::new(),
                    n => format!(": {} will stop in the next run", show::several(n, "live alloc")),
                };
                writeln!(context.out, "{id} cancelled{stopping}")?;
            }
            Ok(Err(JobState::Cancelled)) => writeln!(context.out, "{id} was cancelled already")?,
            Ok(Err(state)) => {
                all = false;
                writeln!(context.err, "nodekeeper: job {id} cannot be cancelled: it has ended already ({state})")?;
            }
            // An error with one job does not stop the others.
            Err(e) => {
                all = false;
                writeln!(context.err, "nodekeeper: {}", show::error(&e))?;
            }
        }
    }
    Ok(Outcome::done_if(all))
}
