//! `rerun`: jobs once more, as they were, but for what the options change.
//!
//! Guarantees: the new jobs are a submission of their own, which a key makes only once. Elements of an array keep their numbers.
//! Does not: change the jobs that ran before, or run again what followed them.

use super::submission::{GivenParts, Keyed, submit_once};
use super::{JobOptions, job_env::environment};
use crate::changes::operate::accepting;
use crate::console::{Context, Exit, UsageError, show};
use crate::view::find::Finder;
use clap::parser::ValueSource;
use clap::{ArgMatches, Args, FromArgMatches};
use model::array::Array;
use model::ids::JobId;
use model::rng::Rng;
use model::{Job, JobSpec, JobState, Work};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// `rerun`
#[derive(Args, Clone, Debug)]
pub struct RerunArgs {
    /// The job: its id, a part of it, or its name. Of an array all elements that are stored, NAME[3] only number 3
    job: String,
    /// Only those that failed, were rejected or were cancelled
    #[arg(long)]
    failed: bool,
    #[command(flatten)]
    changes: OptionChanges,
    /// Wait until every new job has ended; the exit code is 1 if one did not complete
    #[arg(long)]
    wait: bool,
    /// Print the new jobs as JSON (with --wait, as they ended)
    #[arg(long)]
    json: bool,
}

/// The options of a job that are given.
#[derive(Clone, Debug)]
struct OptionChanges {
    options: JobOptions,
    /// Those that are fields.
    fields: Map<String, Value>,
}

/// Options that name files or jobs: a job that runs again has the same.
const KEPT: [&str; 4] = ["inputs", "workdir", "after", "after_any"];

impl FromArgMatches for OptionChanges {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let options = JobOptions::from_arg_matches(matches)?;
        let refused = |what: String| clap::Error::raw(clap::error::ErrorKind::ArgumentConflict, format!("{what}\n"));
        let is_given = |id: &str| matches.value_source(id) == Some(ValueSource::CommandLine);
        let given: Vec<&str> = matches.ids().map(clap::Id::as_str).filter(|id| is_given(id)).collect();
        if let Some(kept) = KEPT.iter().find(|id| given.contains(id)) {
            return Err(refused(format!("a job that runs again has the same {kept}: submit another job to change it")));
        }
        let fields = serde_json::to_value(&options).and_then(serde_json::from_value::<Map<String, Value>>);
        let mut fields = fields.map_err(|e| refused(e.to_string()))?;
        fields.retain(|field, _| given.contains(&field.as_str()) && field != "key");
        Ok(Self { options, fields })
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
    fn spec(&self, job: &Job, env: &BTreeMap<String, String>) -> anyhow::Result<JobSpec> {
        let mut fields: Map<String, Value> = serde_json::from_value(show::flat(json!(job)))?;
        fields.extend(self.fields.clone());
        let mut spec: JobSpec = serde_json::from_value(Value::Object(fields))?;
        spec.env.extend(env.clone());
        let work = Work { image_digest: None, ..spec.work };
        Ok(JobSpec { key: self.options.key.clone(), after: BTreeMap::new(), work, ..spec })
    }
}

pub(crate) async fn run(context: &mut Context<'_>, args: &RerunArgs) -> anyhow::Result<Exit> {
    let (cluster, now, options) = (context.cluster().await?, context.now(), &args.changes.options);
    let meant = Finder::new(&cluster).meant(&args.job).await?;
    let mut jobs = cluster.store.jobs_of(meant.ids).await?.all()?;
    let is_bad = |state| matches!(state, JobState::Failed | JobState::Rejected | JobState::Cancelled);
    jobs.retain(|job| !args.failed || is_bad(job.summary.state));
    jobs.sort_by_key(|job| job.summary.job_id);
    if jobs.is_empty() {
        return Err(UsageError(format!("no stored job of {} is like that", show::one_line(&args.job))).into());
    }
    let env = environment(&options.env, &options.env_file)?;
    let specs = jobs.iter().map(|job| Ok((Array::number(job.summary.job_id), args.changes.spec(job, &env)?)));
    let specs: Vec<(u32, JobSpec)> = specs.collect::<anyhow::Result<_>>()?;
    let id = |first: JobId, n: u32, spec: &JobSpec| match spec.array_count {
        Some(_) => Array::of(first).job(n),
        None => first,
    };
    let new = |first: JobId| {
        let jobs = specs.iter().map(|(n, spec)| Job::submit(id(first, *n, spec), spec.clone(), now));
        jobs.collect::<Result<Vec<Job>, _>>().map_err(|e| UsageError(e.to_string()))
    };
    let ids: Vec<JobId> = jobs.iter().map(|job| job.summary.job_id).collect();
    let given =
        GivenParts::of(&JobSpec::default(), &json!({"rerun": ids, "changes": args.changes.fields, "env": env}))?;
    let key = options.key.as_deref().map(|key| Keyed::new(key, given));
    let earlier = match &key {
        Some(key) => key.earlier(&cluster.store).await?,
        None => None,
    };
    if !earlier.as_ref().is_some_and(|earlier| earlier.is_complete) {
        accepting(&cluster, specs.iter().map(|(_, spec)| spec)).await?;
    }
    let fresh = JobId::new(Rng::real().ulid(now));
    let written = submit_once(&cluster, key.as_ref(), earlier, fresh, now, new).await?;
    match written.error {
        None => super::submitted(context, &cluster, (args.wait, args.json), written.jobs).await,
        Some(error) => {
            super::print(context, args.json, &written.jobs)?;
            Err(anyhow::Error::new(error).context("not all jobs were submitted: run it again with a --key"))
        }
    }
}
