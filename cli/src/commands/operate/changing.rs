//! What `cancel`, `pause`, `continue` and `change` share: they change jobs, and say what was changed, and what was not and why.
//!
//! Guarantees: an error with one job or one text does not stop the others. The jobs are changed in the order in which they are
//! named. A change of which nothing comes is a failure, unless everything is like that already.
//! Does not: know the change ([`JobChange`] does).

use crate::changes::{JobChange, change_each};
use crate::commands::others::Others;
use crate::commands::submit;
use crate::console::show::{self, several};
use crate::console::{Cluster, Context, Exit};
use crate::view::array::States;
use crate::view::find::Finder;
use futures::StreamExt;
use model::{Job, JobId, JobState};
use std::collections::{BTreeMap, BTreeSet};

/// The words of a command that changes jobs.
pub(super) struct ChangeWords {
    /// What the command does to a job.
    pub(super) verb: &'static str,
    pub(super) participle: &'static str,
    /// The state of a job for which nothing has to change.
    pub(super) state: JobState,
    /// The message about such a job.
    pub(super) already: &'static str,
}

/// Jobs that are changed, with the text that names them; `None`: one job that was shown, and may have ended since.
pub(super) type MeantJobs<'a> = (Option<&'a str>, Vec<JobId>);

/// The jobs of each text. A text without a job is a failure.
pub(super) async fn named<'a>(
    context: &mut Context<'_>,
    cluster: &Cluster,
    given: &'a [String],
) -> anyhow::Result<(Vec<MeantJobs<'a>>, Exit)> {
    let (mut meant, mut exit, finder) = (Vec::new(), Exit::Done, Finder::new(cluster));
    for text in given {
        match finder.whole_jobs(text).await {
            Ok(ids) => meant.push((Some(text.as_str()), ids)),
            Err(e) => exit = exit.and(failed(context, &e)?),
        }
    }
    Ok((meant, exit))
}

fn failed(context: &mut Context<'_>, error: &anyhow::Error) -> anyhow::Result<Exit> {
    writeln!(context.err, "nodekeeper: {}", show::error(error))?;
    Ok(Exit::of(error))
}

/// Asks about those of the jobs that somebody else submitted.
pub(super) async fn agree(
    context: &mut Context<'_>,
    cluster: &Cluster,
    meant: &[MeantJobs<'_>],
    words: &ChangeWords,
    has_yes: bool,
) -> anyhow::Result<bool> {
    let ids: BTreeSet<JobId> = meant.iter().flat_map(|(_, ids)| ids.iter().copied()).collect();
    let rows = cluster.store.jobs_of(ids).await?.rows;
    Others::of_jobs(cluster, &rows).await?.agree(context, words.verb, has_yes)
}

/// Changes these jobs. Says of each text what became of its jobs, or prints the changed jobs as JSON.
pub(super) async fn change_jobs(
    context: &mut Context<'_>,
    cluster: &Cluster,
    meant: &[MeantJobs<'_>],
    how: &JobChange<'_>,
    words: &ChangeWords,
    is_json: bool,
) -> anyhow::Result<Exit> {
    let mut ids: Vec<JobId> = meant.iter().flat_map(|(_, ids)| ids.iter().copied()).collect();
    let mut known = BTreeSet::new();
    ids.retain(|id| known.insert(*id));
    let (mut changed, mut others, mut exit) = (BTreeMap::new(), BTreeMap::new(), Exit::Done);
    let clock = context.clock.clone();
    let mut results = change_each(cluster, &ids, how, &clock);
    while let Some((id, result)) = results.next().await {
        match result {
            Ok(Ok(job)) => _ = changed.insert(id, job),
            Ok(Err(job)) => _ = others.insert(id, job),
            Err(e) => exit = exit.and(failed(context, &e)?),
        }
    }
    for (given, ids) in meant {
        let of = |jobs: &BTreeMap<JobId, Job>| ids.iter().filter_map(|id| jobs.get(id).cloned()).collect::<Vec<_>>();
        match outcome(*given, words, &of(&changed), &of(&others)) {
            Ok(line) if is_json || line.is_empty() => {}
            Ok(line) => writeln!(context.out, "{line}")?,
            Err(why) => {
                exit = exit.and(Exit::done_if(given.is_none()));
                writeln!(context.err, "nodekeeper: {why}")?;
            }
        }
    }
    if is_json {
        submit::print(context, true, &changed.into_values().collect::<Vec<_>>())?;
    }
    Ok(exit)
}

/// What was changed of the jobs that one text means, and how the others are. The error: none of them can be changed.
fn outcome(given: Option<&str>, words: &ChangeWords, changed: &[Job], others: &[Job]) -> Result<String, String> {
    let ChangeWords { participle, state, already, .. } = words;
    let is_already = |job: &Job| job.summary.state == *state;
    let stopping = match changed.iter().map(|job| job.summary.allocs.len()).sum::<usize>() {
        n if n > 0 && *state == JobState::Cancelled => {
            format!(": {} will stop in the next run", several(n, "live alloc"))
        }
        _ => String::new(),
    };
    match (changed, others) {
        ([], []) => Ok(String::new()),
        ([job], []) => Ok(format!("{} {participle}{stopping}", job.summary.job_id)),
        ([], [job]) if is_already(job) => Ok(format!("{} {already}", job.summary.job_id)),
        ([], others) if !others.iter().any(is_already) => Err(refused(given, words, others)),
        (changed, others) => {
            let of = given.map(show::one_line).unwrap_or_default();
            let others = States::of(others.iter().map(|job| &job.summary)).text(0);
            let rest = if others.is_empty() { String::new() } else { format!("; as they were: {others}") };
            Ok(format!("{of}: {} {participle}{stopping}{rest}", several(changed.len(), "job")))
        }
    }
}

/// The error if the change is possible for none of these jobs.
fn refused(given: Option<&str>, words: &ChangeWords, jobs: &[Job]) -> String {
    let has_ended = jobs.iter().all(|job| job.summary.state.is_ended());
    let to_do = match has_ended {
        true => "`nodekeeper rerun` runs it once more, as it was or with changes",
        false => "only what waits can be; `nodekeeper cancel` stops it",
    };
    let states = States::of(jobs.iter().map(|job| &job.summary)).text(0);
    let state = match jobs {
        [job] if has_ended => format!("it has ended already ({})", job.summary.state),
        [job] => format!("it is {} already", job.summary.state),
        _ if has_ended => format!("all its elements have ended ({states})"),
        _ => format!("no element of it waits ({states})"),
    };
    let shown = || jobs.iter().map(|job| job.summary.job_id.to_string()).collect();
    let it = given.map_or_else(shown, show::one_line);
    format!("{it} cannot be {}: {state}: {to_do}", words.participle)
}
