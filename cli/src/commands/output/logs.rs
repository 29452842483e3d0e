//! `logs`: the output of a job or an alloc, whole or its end, also while it runs.
//!
//! Guarantees: only the output goes to standard output, and all notes about it to standard error. The exit code says whether a part
//! of the output is missing.
//! Does not: keep output. S3 keeps it, and the row of the alloc its last 8 KiB.

use super::follow::{Follower, Verbosity, end_of, last_allocs};
use super::output_printer::Route;
use super::output_stream::{MISSING, OutputStream, POLL, Until};
use crate::console::{Cluster, Context, Exit, show};
use crate::view::find::{Finder, is_array, no_job, short, short_alloc};
use anyhow::{bail, ensure};
use clap::Args;
use model::{Alloc, AllocId, Job, Ranges, Stream};
use std::collections::BTreeSet;
use std::ops::Range;

/// `logs`
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Exit codes: 0 all of the output was printed, 74 a part of it is missing, 1 and 2 as everywhere."
)]
pub struct LogsArgs {
    /// The id of a job or of one alloc, a part of it, or the job's name. Of an array, the output of each job, in the order of their
    /// numbers; NAME[3] is number 3, also of an element of a pack
    #[arg(value_name = "JOB")]
    id: String,
    /// Go on until the job ends
    #[arg(long, short)]
    follow: bool,
    /// Only what the command printed on standard output
    #[arg(long, conflicts_with = "stderr")]
    stdout: bool,
    /// Only what the command printed on standard error
    #[arg(long)]
    stderr: bool,
    /// Only this many lines at the end of what there is now
    #[arg(long, short = 'n', value_name = "LINES")]
    tail: Option<usize>,
    /// The member of a job of several nodes [default: with --follow 0, else all of them]
    #[arg(long, value_name = "N")]
    member: Option<u32>,
}

impl LogsArgs {
    const fn route(&self) -> Route {
        match (self.stdout, self.stderr) {
            (true, _) => Route::Only(Stream::Out),
            (_, true) => Route::Only(Stream::Err),
            _ => Route::Together,
        }
    }
}

pub(crate) async fn logs(context: &mut Context<'_>, args: &LogsArgs) -> anyhow::Result<Exit> {
    let cluster = context.cluster().await?;
    let finder = Finder::new(&cluster);
    let (meant, only) = finder.work(&args.id).await?;
    if args.follow && meant.ids.len() > 1 {
        return Err(is_array(&args.id, &meant.ids).context("--follow follows one job"));
    }
    let mut outcome = Exit::Done;
    for job_id in &meant.ids {
        let job = cluster.store.job(*job_id).await?.ok_or_else(|| no_job(*job_id))?;
        let allocs = show::readable(context.err, cluster.store.allocs_of([&job]).await?)?;
        if args.follow {
            return follow(context, &cluster, job, allocs, args, only).await;
        }
        let printed = match meant.given_part(&job).filter(|_| job.work.pack.is_some()) {
            Some(part) => of_elements(context, &cluster, args, &job, &allocs, &part).await?,
            None => of_job(context, &cluster, &job, allocs, args, only).await?,
        };
        if let missing @ Exit::Code(_) = printed {
            outcome = missing;
        }
    }
    Ok(outcome)
}

/// Prints the output of the newest alloc of each member of a job, or of the alloc that is named.
async fn of_job(
    context: &mut Context<'_>,
    cluster: &Cluster,
    job: &Job,
    stored: Vec<Alloc>,
    args: &LogsArgs,
    only: Option<AllocId>,
) -> anyhow::Result<Exit> {
    let job_id = job.summary.job_id;
    let mut allocs = stored.clone();
    if let Some(id) = only {
        allocs.retain(|alloc| alloc.id() == id);
        ensure!(!allocs.is_empty(), "there is no alloc {id}: `nodekeeper job {job_id}` lists them");
    }
    let all = allocs.len();
    if allocs.is_empty() {
        writeln!(context.err, "nothing has run yet: `nodekeeper job {}` says why", short(job_id))?;
    }
    let shown: Vec<Alloc> =
        last_allocs(allocs).filter(|alloc| args.member.is_none_or(|member| alloc.id().member == member)).collect();
    if let (Some(newest), true) = (shown.first(), only.is_none() && all > shown.len() && args.member.is_none()) {
        let (earlier, id) = (all - shown.len(), short_alloc(AllocId { copy: 0, ..newest.id() }));
        let several = show::several(earlier, "earlier alloc");
        writeln!(context.err, "the job has {several} too: `nodekeeper logs {id}` shows the first")?;
    }
    if let (Some(member), true) = (args.member, shown.is_empty() && all > 0) {
        bail!("no alloc of the job has the member {member}: `nodekeeper job {job_id}` lists them");
    }
    outputs(context, cluster, job, &stored, shown, (args.route(), args.tail)).await
}

/// Prints the output that there is now of some allocs of a job, of which these are stored. `lines` is how many of each at its end.
pub(crate) async fn outputs(
    context: &mut Context<'_>,
    cluster: &Cluster,
    job: &Job,
    stored: &[Alloc],
    shown: impl IntoIterator<Item = Alloc>,
    (route, lines): (Route, Option<usize>),
) -> anyhow::Result<Exit> {
    let mut outcome = Exit::Done;
    for alloc in shown {
        head(context, &alloc)?;
        let mut stream = OutputStream::new(cluster, alloc.id().member, Until::Now, others(stored, alloc.id()), route);
        stream.lines = lines;
        if let missing @ Exit::Code(_) = stream.print(context, job).await? {
            outcome = missing;
        }
    }
    Ok(outcome)
}

/// Prints the output of some elements of a pack, of each from when it last ran. Of several, an error about one hides no other.
async fn of_elements(
    context: &mut Context<'_>,
    cluster: &Cluster,
    args: &LogsArgs,
    job: &Job,
    allocs: &[Alloc],
    elements: &Ranges,
) -> anyhow::Result<Exit> {
    let mut outcome = Exit::Done;
    for element in elements.iter() {
        let (of, bytes) = match last_of(job, allocs, element) {
            Err(error) if elements.count() > 1 => {
                writeln!(context.err, "{error}")?;
                outcome = Exit::Code(MISSING);
                continue;
            }
            last => last?,
        };
        let results = of.run.elements.results.iter();
        for (result, _) in results.filter(|(_, elements)| elements.contains(element)) {
            writeln!(context.err, "== element {element} of {}: {result}", of.id())?;
        }
        let (member, others) = (of.id().member, others(allocs, of.id()));
        let mut stream = OutputStream::new(cluster, member, Until::Now, others, args.route());
        stream.printer.only = Some(bytes);
        if let missing @ Exit::Code(_) = stream.print(context, job).await? {
            outcome = missing;
        }
    }
    Ok(outcome)
}

/// The alloc in which an element last ran, and which bytes of its output are of the element.
fn last_of<'a>(job: &Job, allocs: &'a [Alloc], element: u32) -> anyhow::Result<(&'a Alloc, Range<u64>)> {
    let places = |alloc: &'a Alloc| Some((alloc, alloc.run.elements.places.of(element)?));
    if let Some(last) = allocs.iter().filter_map(places).max_by_key(|(alloc, _)| alloc.id().copy) {
        return Ok(last);
    }
    let mut results = allocs.iter().flat_map(|alloc| alloc.run.elements.results.iter());
    bail!(match results.find(|(_, elements)| elements.contains(element)) {
        Some((outcome, _)) => format!(
            "element {element} ended with {outcome}, and which part of the output is its own is not known: \
             `nodekeeper logs {}` prints all of it",
            job.summary.job_id
        ),
        None if job.summary.state.is_ended() => format!("element {element} did not run to its end"),
        None => format!(
            "nothing is known of element {element} yet: a node tells once in a minute which elements have ended"
        ),
    })
}

/// The other allocs.
fn others(allocs: &[Alloc], than: AllocId) -> BTreeSet<AllocId> {
    allocs.iter().map(Alloc::id).filter(|id| *id != than).collect()
}

/// Prints the output of a member until the job ends: from the alloc that is named on, or else from its newest one.
async fn follow(
    context: &mut Context<'_>,
    cluster: &Cluster,
    job: Job,
    allocs: Vec<Alloc>,
    args: &LogsArgs,
    only: Option<AllocId>,
) -> anyhow::Result<Exit> {
    let member = only.map(|id| id.member).or(args.member).unwrap_or(0);
    let is_meant = |alloc: &Alloc| only.map_or(alloc.id().member == member, |id| alloc.id() == id);
    let first = last_allocs(allocs.iter().filter(|alloc| is_meant(alloc)).cloned().collect()).next();
    if let Some(id) = only {
        ensure!(first.is_some(), "there is no alloc {id}: `nodekeeper job {}` lists them", id.job_id);
    }
    let mut earlier = BTreeSet::new();
    if let Some(first) = &first {
        head(context, first)?;
        earlier = others(&allocs, first.id());
    }
    let mut stream = OutputStream::new(cluster, member, Until::End, earlier, args.route());
    stream.lines = args.tail;
    let mut followed = Follower::new(cluster, vec![job], Verbosity::Progress);
    loop {
        let ended = followed.poll(context).await?;
        let Some(job) = followed.jobs.first().cloned() else { return Ok(Exit::Failed) };
        if stream.poll(context, &job).await? && ended {
            writeln!(context.err, "job {} {}", short(job.summary.job_id), end_of(&job))?;
            return Ok(stream.outcome());
        }
        tokio::time::sleep(POLL).await;
    }
}

/// Says of which alloc the output is that follows.
fn head(context: &mut Context<'_>, alloc: &Alloc) -> anyhow::Result<()> {
    let (seen, now) = (&alloc.summary, context.now());
    let ended = alloc.finished_at.map(|at| format!(", {}", show::when(at, now))).unwrap_or_default();
    writeln!(context.err, "== {} on slot {} ({}{ended})", seen.alloc_id, seen.slot, seen.client)?;
    if let Some(cause) = alloc.cause.as_ref().filter(|cause| cause.exit_code() != Some(0)) {
        writeln!(context.err, "== {}", show::one_line(&cause.to_string()))?;
    }
    Ok(())
}
