//! `rerun`: jobs once more, as they were, but for what the options change.
//!
//! Guarantees: the new jobs are a submission of their own, which a key makes only once, and so does `--failed`. Elements of an array keep their numbers. The
//! jobs that were rejected because one of these did not complete come along, and follow the new ones. A job that was never started follows
//! what it still followed.
//! Does not: change the jobs that ran before.

use super::followed::{JobNames, may_complete};
use super::job_env::environment;
use super::submission::{Begin, GivenParts, Keyed, digest, submit_once, without_lost_shares};
use super::{JobOptions, all_of, id_like, submitted};
use crate::changes::operate::accepting;
use crate::commands::others::Others;
use crate::console::{Cluster, Context, Exit, UsageError, show};
use crate::view::array::is_bad;
use crate::view::find::{Finder, Meant};
use anyhow::{Context as _, bail};
use clap::parser::ValueSource;
use clap::{ArgMatches, Args, FromArgMatches};
use model::{AfterEnd, Array, Job, JobId, JobSpec, JobState, JobSummary, Ranges, Source, Time, Work};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};
use store::{End, Store};

/// The options of `rerun`.
#[derive(Args, Clone, Debug)]
pub struct RerunArgs {
    /// The job: its id, a part of it, or its name. Of an array all elements that are stored, NAME[3] only number 3
    job: String,
    /// Only those that failed, were rejected or were cancelled. If several people ask for it at the same time, they run again once
    #[arg(long)]
    failed: bool,
    #[command(flatten)]
    changes: OptionChanges,
    /// Do not ask about a job of somebody else: the new one is yours
    #[arg(long, short = 'y')]
    yes: bool,
    /// Wait until every new job has ended; the exit code is 1 if one did not complete
    #[arg(long)]
    wait: bool,
    /// Print the new jobs as JSON (with --wait, as they ended)
    #[arg(long)]
    json: bool,
}

/// The options of a job that are given.
#[derive(Clone, Debug)]
pub(crate) struct OptionChanges {
    options: JobOptions,
    /// The names of all of them.
    pub(crate) given: Vec<String>,
    /// Those that are fields.
    pub(crate) fields: Map<String, Value>,
}

/// Options that name files: a job that runs again has the same.
const KEPT: [&str; 2] = ["inputs", "workdir"];

impl FromArgMatches for OptionChanges {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let options = JobOptions::from_arg_matches(matches)?;
        let refused = |what: String| clap::Error::raw(clap::error::ErrorKind::ArgumentConflict, format!("{what}\n"));
        let is_given = |id: &str| matches.value_source(id) == Some(ValueSource::CommandLine);
        let known = JobOptions::augment_args(clap::Command::new("job"));
        let known = known.get_arguments().map(|arg| arg.get_id().to_string());
        let given: Vec<String> = known.filter(|id| matches.ids().any(|given| given == id) && is_given(id)).collect();
        let has = |id: &str| given.iter().any(|given| given == id);
        if let Some(kept) = KEPT.into_iter().find(|id| has(id)) {
            return Err(refused(format!("a job that runs again has the same {kept}: submit another job to change it")));
        }
        let fields = serde_json::to_value(&options).and_then(serde_json::from_value::<Map<String, Value>>);
        let mut fields = fields.map_err(|e| refused(e.to_string()))?;
        fields.retain(|field, _| has(field) && field != "key");
        Ok(Self { options, given, fields })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for OptionChanges {
    fn augment_args(command: clap::Command) -> clap::Command {
        JobOptions::augment_args(command)
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        JobOptions::augment_args_for_update(command)
    }
}

impl OptionChanges {
    /// The job as it was, with these changes.
    pub(crate) fn spec(&self, job: &Job, env: &BTreeMap<String, String>) -> anyhow::Result<JobSpec> {
        let mut fields: Map<String, Value> = serde_json::from_value(show::flat(json!(job)))?;
        fields.extend(self.fields.clone());
        let mut spec: JobSpec = serde_json::from_value(Value::Object(fields))?;
        spec.env.extend(env.clone());
        let work = Work { image_digest: None, ..spec.work };
        Ok(JobSpec { key: self.options.key.clone(), after: job.summary.after.clone(), work, ..spec })
    }
}

pub(crate) async fn run(context: &mut Context<'_>, args: &RerunArgs) -> anyhow::Result<Exit> {
    let (cluster, now, options) = (context.cluster().await?, context.now(), &args.changes.options);
    let (jobs, parts) = chosen(&cluster, args).await?;
    if jobs.is_empty() {
        bail!(UsageError(format!("no stored job of {} is like that", show::one_line(&args.job))));
    }
    if !Others::of_jobs(&cluster, &jobs).await?.agree(context, "run", args.yes)? {
        return Ok(Exit::Failed);
    }
    let env = environment(&options.env, &options.env_file)?;
    let ids: Vec<JobId> = jobs.iter().map(|job| job.summary.job_id).collect();
    let after: Vec<(&str, AfterEnd)> = options.after().collect();
    let after_given = Some(&after).filter(|after| !after.is_empty());
    let given =
        json!({"rerun": ids, "elements": parts, "changes": args.changes.fields, "env": env, "after": after_given});
    let given = show::without_nulls(given);
    // What failed is run again once, also if several people ask for it at the same moment.
    let own = args.failed.then(|| format!("rerun-{}", digest([given.to_string().as_bytes()])));
    let key = options.key.as_ref().or(own.as_ref()).map(String::as_str);
    let key = Keyed::of_option(key, GivenParts::of(&JobSpec::default(), &given)?, &cluster.store).await?;
    // The same submission has the same followers, also if it is repeated after more of them were rejected.
    let until = match &key {
        Some((_, Begin::GoesOn(earlier))) => earlier.first.made_at(),
        _ => now,
    };
    let followers = followers(&cluster.store, &jobs, until).await?;
    if !followers.is_empty() {
        let count = show::several(followers.len(), "job");
        writeln!(context.err, "{count} that followed and were rejected therefore: submitted too, after the new jobs")?;
    }
    let specs = jobs.iter().map(|job| args.changes.spec(job, &env));
    let mut specs: Vec<JobSpec> = specs.collect::<anyhow::Result<_>>()?;
    for job in &followers {
        let same = OptionChanges { fields: Map::new(), ..args.changes.clone() };
        specs.push(same.spec(job, &BTreeMap::new())?);
    }
    if !args.changes.fields.contains_key("share") {
        without_lost_shares(&cluster, &mut specs).await?;
    }
    let ids = |first| new_ids(first, &jobs, &followers).into_values().collect();
    let new = async |_: &mut Context<'_>, first| {
        accepting(&cluster, &specs).await?;
        let ids = new_ids(first, &jobs, &followers);
        let specs = with_followed(&cluster, &specs, jobs.len(), &after, &ids).await?;
        let jobs = specs.into_iter().zip(jobs.iter().chain(&followers)).map(|(spec, before)| {
            let id = ids.get(&before.summary.job_id).copied().unwrap_or(first);
            Job::submit(id, spec, now)
        });
        Ok(jobs.collect::<Result<Vec<Job>, _>>().map_err(|e| UsageError(e.to_string()))?)
    };
    let (_, written) = submit_once(context, &cluster, key, ids, new).await?;
    let new = all_of(context, args.json, written).context("run it again with a --key")?;
    submitted(context, &cluster, (args.wait, args.json), new).await
}

/// The jobs that run again: of packs, only the elements that do, which come beside them if they are not all.
async fn chosen(cluster: &Cluster, args: &RerunArgs) -> anyhow::Result<(Vec<Job>, Option<BTreeMap<JobId, Ranges>>)> {
    let meant = meant(cluster, args).await?;
    let mut jobs = cluster.store.jobs_of(meant.ids.iter().copied()).await?.all()?;
    jobs.retain(|job| !args.failed || is_bad(job.summary.state));
    let mut parts = BTreeMap::new();
    for job in &mut jobs {
        let (mut again, id) = (meant.elements(job), job.summary.job_id);
        if args.failed {
            again = again.without(&job.elements.results.succeeded());
        }
        if let Some(pack) = job.work.pack.as_mut().filter(|pack| pack.elements != again) {
            pack.elements = again.clone();
            parts.insert(id, again);
        }
    }
    jobs.retain(|job| job.work.pack.as_ref().is_none_or(|pack| !pack.elements.is_empty()));
    jobs.sort_by_key(|job| job.summary.job_id);
    Ok((jobs, (!parts.is_empty()).then_some(parts)))
}

/// The jobs that run again. The new jobs have the names of the old ones: with the key of an earlier rerun, a name means what it meant
/// then.
async fn meant(cluster: &Cluster, args: &RerunArgs) -> anyhow::Result<Meant> {
    if let Some(key) = &args.changes.options.key
        && let Some(first) = Keyed::first(&cluster.store, key).await?
        && let Ok(meant) = Finder::before(cluster, Array::of(first).job(0)).meant(&args.job).await
    {
        return Ok(meant);
    }
    Finder::new(cluster).meant(&args.job).await
}

/// The jobs that were rejected until then because one of these jobs did not complete, and what followed them in turn: each after those
/// that it follows. A job that another one would reject again is not among them.
async fn followers(store: &Store, jobs: &[Job], until: Time) -> anyhow::Result<Vec<Job>> {
    let Some(since) = jobs.iter().filter_map(|job| job.finished_at).min() else { return Ok(Vec::new()) };
    let ended = store.ended(&[End::Failed], since, usize::MAX).await?;
    let rejected = ended.into_iter().filter(|ended| ended.at <= until && ended.job.state == JobState::Rejected);
    let mut left: Vec<JobSummary> =
        rejected.map(|ended| ended.job).filter(JobSummary::was_rejected_as_follower).collect();
    left.sort_by_key(|job| job.job_id);
    let mut known: BTreeSet<JobId> = jobs.iter().map(|job| job.summary.job_id).collect();
    let others = left.iter().flat_map(|job| job.after.keys().copied()).filter(|id| !known.contains(id));
    let others = store.jobs_of(others.collect::<BTreeSet<_>>()).await?.rows;
    let state: BTreeMap<JobId, JobState> = others.iter().map(|job| (job.summary.job_id, job.summary.state)).collect();
    let mut order = Vec::new();
    loop {
        let comes = |job: &JobSummary| {
            let must_complete = || job.after.iter().filter(|(_, end)| **end == AfterEnd::Success).map(|(id, _)| id);
            let may = |id| known.contains(id) || state.get(id).is_some_and(|state| !is_bad(*state));
            must_complete().any(|id| known.contains(id)) && must_complete().all(may)
        };
        let (next, rest): (Vec<JobSummary>, Vec<JobSummary>) = left.into_iter().partition(comes);
        if next.is_empty() {
            break;
        }
        known.extend(next.iter().map(|job| job.job_id));
        order.extend(next.iter().map(|job| job.job_id));
        left = rest;
    }
    let rows = store.jobs_of(order.iter().copied()).await?.all()?;
    let mut rows: BTreeMap<JobId, Job> = rows.into_iter().map(|job| (job.summary.job_id, job)).collect();
    Ok(order.iter().filter_map(|id| rows.remove(id)).collect())
}

/// Adds to the jobs what they follow. The first `own` jobs follow the `given` ones. If none is given, each follows the jobs that it still
/// followed. A new job takes the place of one that runs again.
async fn with_followed(
    cluster: &Cluster,
    specs: &[JobSpec],
    own: usize,
    given: &[(&str, AfterEnd)],
    ids: &BTreeMap<JobId, JobId>,
) -> anyhow::Result<Vec<JobSpec>> {
    let mut specs = specs.to_vec();
    if !given.is_empty() {
        specs.iter_mut().take(own).for_each(|spec| spec.after.clear());
    }
    let others = specs.iter().take(own).flat_map(|spec| &spec.after).filter(|(id, _)| !ids.contains_key(id));
    let others: BTreeSet<(JobId, AfterEnd)> = others.map(|(id, end)| (*id, *end)).collect();
    let stored = cluster.store.jobs_of(others.iter().map(|(id, _)| *id)).await?.all()?;
    let states: BTreeMap<JobId, JobState> = stored.iter().map(|job| (job.summary.job_id, job.summary.state)).collect();
    others.iter().try_for_each(|(id, end)| may_complete(*id, states.get(id).copied(), *end))?;
    let mut specs: Vec<JobSpec> = specs.into_iter().map(|spec| following(spec, ids)).collect();
    let mut names = JobNames::new(cluster);
    for spec in specs.iter_mut().take(own) {
        names.add(given.iter().copied(), &[], &BTreeMap::new(), spec).await?;
    }
    Ok(specs)
}

/// The ids of the new jobs by those of the jobs that they are like. An element of an array keeps its number; each array of followers,
/// and each other follower, has the next ids.
fn new_ids(first: JobId, jobs: &[Job], followers: &[Job]) -> BTreeMap<JobId, JobId> {
    let own = jobs.iter().map(|job| (job.summary.job_id, id_like(first, job)));
    let arrays: BTreeSet<Array> = followers.iter().map(|job| Array::of(job.summary.job_id)).collect();
    let places: BTreeMap<Array, u32> = arrays.into_iter().zip(1..).collect();
    let others = followers.iter().map(|job| job.summary.job_id);
    let others = others.filter_map(|id| {
        let array = Array::of(first).behind(*places.get(&Array::of(id))?);
        Some((id, array.job(Array::number(id))))
    });
    own.chain(others).collect()
}

/// The job with the new jobs in place of those that it followed, and of whose outputs it gets.
fn following(mut spec: JobSpec, ids: &BTreeMap<JobId, JobId>) -> JobSpec {
    let new = |id: JobId| ids.get(&id).copied().unwrap_or(id);
    spec.after = spec.after.into_iter().map(|(id, end)| (new(id), end)).collect();
    for source in spec.work.inputs.values_mut() {
        if let Source::Output { job_id, .. } = source {
            *job_id = new(*job_id);
        }
    }
    spec
}
