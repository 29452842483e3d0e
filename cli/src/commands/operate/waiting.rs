//! `pause`, `continue` and `change`: for jobs that are not placed.
//!
//! Guarantees: a job keeps its place in the queue. What is placed or has ended stays as it is, and the answer says so: of an array, how
//! many. A change that is wrong for one job changes none.
//! Does not: stop what runs. `cancel` does.

use super::changing::{self, ChangeWords, agree, named};
use crate::changes::JobChange;
use crate::changes::operate::{accepting, retention};
use crate::commands::others::Others;
use crate::commands::submit::rerun::OptionChanges;
use crate::console::{Context, Exit, UsageError};
use crate::view::find::Finder;
use clap::Args;
use model::{ActionName, Job, JobState, Pause, Time};
use std::collections::BTreeMap;

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

pub(crate) async fn pause(context: &mut Context<'_>, args: &PauseArgs, pause: Pause) -> anyhow::Result<Exit> {
    let state = JobState::Queued;
    let (action, words) = match pause {
        Pause::Begins => {
            let already = "was paused already";
            (ActionName::Pause, ChangeWords { verb: "pause", participle: "paused", state, already })
        }
        Pause::Ends => {
            let already = "was not paused";
            (ActionName::Continue, ChangeWords { verb: "continue", participle: "continued", state, already })
        }
    };
    let after = |job: &Job, _| job.pause(pause);
    let cluster = context.cluster().await?;
    let keep = retention(&cluster).await?;
    let how = JobChange { action, reason: cluster.by().await?, keep, after: Box::new(after) };
    let (meant, exit) = named(context, &cluster, &args.jobs).await?;
    if !agree(context, &cluster, &meant, &words, args.yes).await? {
        return Ok(Exit::Failed);
    }
    Ok(exit.and(changing::change_jobs(context, &cluster, &meant, &how, &words, args.json).await?))
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
    let (state, already) = (JobState::Queued, "is like that already");
    let words = ChangeWords { verb: "change", participle: "changed", state, already };
    if !Others::of_jobs(&cluster, &waiting).await?.agree(context, words.verb, args.yes)? {
        return Ok(Exit::Failed);
    }
    let details: Vec<String> = changes.fields.iter().map(|(field, value)| format!("{field} = {value}")).collect();
    let after = |job: &Job, now: Time| job.changed(changes.spec(job, &BTreeMap::new()).ok()?, now).ok()?;
    let reason = format!("{}: {}", cluster.by().await?, details.join(", "));
    let keep = retention(&cluster).await?;
    let how = JobChange { action: ActionName::Change, reason, keep, after: Box::new(after) };
    let meant = [(Some(args.job.as_str()), ids)];
    changing::change_jobs(context, &cluster, &meant, &how, &words, args.json).await
}
