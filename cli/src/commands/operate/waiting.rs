//! `pause`, `continue` and `change`: for jobs that are not placed.
//!
//! Guarantees: a job keeps its place in the queue. What is placed or has ended stays as it is, and the answer says so: of an array, how
//! many. A change that is wrong for one job changes none.
//! Does not: stop what runs. `cancel` does.

use crate::changes::operate::{accepting, retention};
use crate::changes::{JobChange, change_each};
use crate::commands::others::Others;
use crate::commands::submit;
use crate::commands::submit::rerun::OptionChanges;
use crate::console::{Cluster, Context, Exit, UsageError, show};
use crate::view::array::States;
use crate::view::find::Finder;
use clap::Args;
use futures::StreamExt;
use model::{ActionName, Job, JobId, JobState, Pause, Time};
use std::collections::{BTreeMap, BTreeSet};

/// The fields that can be changed: none of them changes what the job runs.
const CHANGEABLE: &str = "priority vcpus memory_mib scratch_gib gpus instance_type market arch gpu_type gpu_memory_gib require \
    exclusive nodes timeout_s not_before_at give_up_after_s";

fn is_changeable(field: &str) -> bool {
    CHANGEABLE.split(' ').any(|one| one == field)
}

/// Whether the help of `change` has this option. The others are read, so that the error says what they are.
fn is_shown(id: &str) -> bool {
    is_changeable(id) || ["job", "json", "yes"].contains(&id)
}

/// `pause` and `continue`
#[derive(Args, Clone, Debug)]
pub struct PauseArgs {
    /// The jobs' ids, parts of them, or their names. The name of an array stands for all its jobs, and NAME[3] for number 3
    #[arg(value_name = "JOB", required = true)]
    jobs: Vec<String>,
    /// Do not ask about a job of somebody else
    #[arg(long, short = 'y')]
    yes: bool,
    /// Print the changed jobs as JSON
    #[arg(long)]
    json: bool,
}

/// `change`
#[derive(Args, Clone, Debug)]
#[command(mut_args(|arg| if is_shown(arg.get_id().as_str()) { arg } else { arg.hide(true) }))]
pub struct ChangeArgs {
    /// The job: its id, a part of it, or its name. The name of an array stands for all its jobs, and NAME[3] for number 3
    job: String,
    #[command(flatten)]
    changes: OptionChanges,
    /// Do not ask about a job of somebody else
    #[arg(long, short = 'y')]
    yes: bool,
    /// Print the changed jobs as JSON
    #[arg(long)]
    json: bool,
}

/// The words of a command about jobs that wait.
struct PauseWords {
    /// What the command does to a job, as a participle.
    participle: &'static str,
    /// The message about a job for which nothing changes.
    already: &'static str,
}

pub(crate) async fn pause(context: &mut Context<'_>, args: &PauseArgs, pause: Pause) -> anyhow::Result<Exit> {
    let (action, verb, words) = match pause {
        Pause::Begins => {
            (ActionName::Pause, "pause", PauseWords { participle: "paused", already: "was paused already" })
        }
        Pause::Ends => {
            (ActionName::Continue, "continue", PauseWords { participle: "continued", already: "was not paused" })
        }
    };
    let after = |job: &Job, _| job.pause(pause);
    let cluster = context.cluster().await?;
    let keep = retention(&cluster).await?;
    let how = JobChange { action, reason: cluster.by().await?, keep, after: Box::new(after) };
    let (mut exit, mut jobs, mut meant) = (Exit::Done, Vec::new(), Vec::new());
    for given in &args.jobs {
        match Finder::new(&cluster).whole_jobs(given).await {
            Ok(ids) => meant.push((given, ids)),
            Err(e) => {
                exit = exit.and(Exit::of(&e));
                writeln!(context.err, "nodekeeper: {}", show::error(&e))?;
            }
        }
    }
    let ids: BTreeSet<JobId> = meant.iter().flat_map(|(_, ids)| ids.iter().copied()).collect();
    let rows = cluster.store.jobs_of(ids).await?.rows;
    if !Others::of_jobs(&cluster, &rows).await?.agree(context, verb, args.yes)? {
        return Ok(Exit::Failed);
    }
    for (given, ids) in meant {
        let changed = change_all(context, &cluster, &ids, &how).await;
        exit = exit.and(changed.print(context, given, &words, args.json)?);
        jobs.extend(changed.jobs);
    }
    if args.json {
        submit::print(context, true, &jobs)?;
    }
    Ok(exit)
}

pub(crate) async fn change_jobs(context: &mut Context<'_>, args: &ChangeArgs) -> anyhow::Result<Exit> {
    let (now, changes) = (context.now(), &args.changes);
    if let Some(other) = changes.given.iter().find(|id| !is_changeable(id)) {
        let why = format!("the {other} of a job stays: cancel it, and submit it once more with `nodekeeper rerun`");
        return Err(UsageError(why).into());
    }
    if changes.given.is_empty() {
        return Err(UsageError("say what changes, such as --priority 900 or --memory 8G".to_owned()).into());
    }
    let cluster = context.cluster().await?;
    let ids = Finder::new(&cluster).whole_jobs(&args.job).await?;
    let mut waiting = cluster.store.jobs_of(ids.iter().copied()).await?.all()?;
    waiting.retain(|job| job.summary.state == JobState::Queued);
    let mut specs = Vec::with_capacity(waiting.len());
    for job in &waiting {
        let spec = changes.spec(job, &BTreeMap::new())?;
        job.changed(spec.clone(), now).map_err(|e| UsageError(e.to_string().replacen("submitted", "changed", 1)))?;
        specs.push(spec);
    }
    accepting(&cluster, &specs).await?;
    if !Others::of_jobs(&cluster, &waiting).await?.agree(context, "change", args.yes)? {
        return Ok(Exit::Failed);
    }
    let details: Vec<String> = changes.fields.iter().map(|(field, value)| format!("{field} = {value}")).collect();
    let after = |job: &Job, now: Time| job.changed(changes.spec(job, &BTreeMap::new()).ok()?, now).ok()?;
    let reason = format!("{}: {}", cluster.by().await?, details.join(", "));
    let keep = retention(&cluster).await?;
    let how = JobChange { action: ActionName::Change, reason, keep, after: Box::new(after) };
    let changed = change_all(context, &cluster, &ids, &how).await;
    let words = PauseWords { participle: "changed", already: "is like that already" };
    let exit = changed.print(context, &args.job, &words, args.json)?;
    if args.json {
        submit::print(context, true, &changed.jobs)?;
    }
    Ok(exit)
}

/// What a command changed of the jobs that one text means.
struct ChangeOutcome {
    jobs: Vec<Job>,
    /// The jobs that stay as they are.
    others: Vec<Job>,
    errors: Vec<(JobId, anyhow::Error)>,
}

async fn change_all(context: &Context<'_>, cluster: &Cluster, ids: &[JobId], how: &JobChange<'_>) -> ChangeOutcome {
    let mut changed = change_each(cluster, ids, how, &context.clock);
    let mut outcome = ChangeOutcome { jobs: Vec::new(), others: Vec::new(), errors: Vec::new() };
    while let Some((id, result)) = changed.next().await {
        match result {
            Ok(Ok(job)) => outcome.jobs.push(job),
            Ok(Err(job)) => outcome.others.push(job),
            Err(e) => outcome.errors.push((id, e)),
        }
    }
    outcome
}

impl ChangeOutcome {
    /// Says what was changed, and what was not and why. It is done if all that waits is as it should be, and something waits.
    fn print(&self, context: &mut Context<'_>, given: &str, words: &PauseWords, is_json: bool) -> anyhow::Result<Exit> {
        for (_, e) in &self.errors {
            writeln!(context.err, "nodekeeper: {}", show::error(e))?;
        }
        let PauseWords { participle, already } = words;
        let waits = |job: &&Job| job.summary.state == JobState::Queued;
        let line = match (self.jobs.as_slice(), self.others.as_slice()) {
            ([job], []) => format!("{} {participle}", job.summary.job_id),
            ([], [job]) if waits(&job) => format!("{} {already}", job.summary.job_id),
            ([], others) if !others.is_empty() && !others.iter().any(|job| waits(&job)) => {
                writeln!(context.err, "nodekeeper: {}", refused(others, given, participle))?;
                return Ok(Exit::Failed);
            }
            (jobs, others) => {
                let others = States::of(others.iter().map(|job| &job.summary)).text(0);
                let rest = if others.is_empty() { String::new() } else { format!("; as they were: {others}") };
                format!("{}: {} {participle}{rest}", show::one_line(given), show::several(jobs.len(), "job"))
            }
        };
        if !is_json {
            writeln!(context.out, "{line}")?;
        }
        Ok(self.errors.iter().fold(Exit::Done, |exit, (_, error)| exit.and(Exit::of(error))))
    }
}

/// The error if none of the jobs waits: only jobs that wait can be changed.
fn refused(jobs: &[Job], given: &str, participle: &str) -> String {
    let has_ended = jobs.iter().all(|job| job.summary.state.is_ended());
    let to_do = match has_ended {
        true => "`nodekeeper rerun` runs it once more, as it was or with changes",
        false => "only what waits can be; `nodekeeper cancel` stops it",
    };
    let states = States::of(jobs.iter().map(|job| &job.summary)).text(0);
    let state = match jobs {
        [job] if has_ended => format!("it has ended already ({})", job.summary.state),
        [job] => format!("it is {} already", job.summary.state),
        _ => format!("no element of it waits ({states})"),
    };
    format!("{} cannot be {participle}: {state}: {to_do}", show::one_line(given))
}
