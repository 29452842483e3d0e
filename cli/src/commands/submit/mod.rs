//! `submit`: submits one job, or several identical jobs.
//!
//! Guarantees: every printed id is a stored job. With `--wait`, the exit code says whether all jobs completed.
//! Does not: place anything. poll-and-scale does; the new job or the schedule starts its run.

pub(crate) mod array_numbers;
pub(crate) mod bulk;
pub(crate) mod followed;
mod git;
pub(crate) mod input;
pub(crate) mod job_env;
pub(crate) mod job_file;
pub(crate) mod job_files;
pub(crate) mod job_line;
pub(crate) mod machine_options;
pub(crate) mod rerun;
pub(crate) mod run;
pub(crate) mod strict_json;
pub(crate) mod submission;

use crate::changes::operate::accepting;
use crate::commands::output::follow::{Follower, Verbosity, last_allocs};
use crate::commands::output::logs::outputs;
use crate::commands::output::output_printer::Route;
use crate::console::{Cluster, Context, Exit, UsageError, show};
use array_numbers::Numbers;
use bulk::Written;
use clap::{ArgAction, Args};
use followed::{AfterEach, JobNames};
use job_env::{Variable, environment, once, variable};
use job_files::{FileOptions, LocalFiles, warn_of_forgotten};
use machine_options::MachineOptions;
use model::amounts::{Moment, gibibytes, mebibytes, seconds};
use model::array::{COUNT_VARIABLE, INDEX_VARIABLE, MAX_ARRAY};
use model::elements::{MAX_AT_ONCE, MAX_PACK};
use model::ids::Ulid;
use model::{
    AfterEnd, Array, DEFAULT_PRIORITY, FailurePolicy, Job, JobId, JobSpec, JobState, Needs, Pack, Ranges, Reconcile,
    RetryRule, Signal,
};
use serde::{Serialize, Serializer};
use serde_json::json;
use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::path::PathBuf;
use submission::{GivenParts, Keyed, submit_once};

const MOST_JOBS: u64 = 100_000;
/// How many lines at the end of an output `--wait` prints.
const LAST_LINES: usize = 100;

/// A job, as options: what its members need, what they run, and how failures are treated. An option has the name of its field in
/// [`JobSpec`] and, if people call it otherwise, a name for them.
#[derive(Args, Clone, Debug, Serialize)]
pub(crate) struct JobOptions {
    /// A name for people
    #[arg(long)]
    name: Option<String>,
    /// A key of your own, such as nightly-2026-11-29: a job with this key is submitted only once. The same submission again prints the
    /// job that is there, whatever its state. With other content it is an error that says what differs. An array or a file has one key;
    /// in a file each line may have one instead
    #[arg(long)]
    pub(crate) key: Option<String>,
    /// A label to find and to count it by, such as team=vision; at most 8. A label that its node must have is --require
    #[arg(long = "label", short = 'l', value_name = "KEY=VALUE", action = ArgAction::Append, value_parser = named)]
    #[serde(serialize_with = "table")]
    labels: Vec<(String, String)>,
    /// The share of the policy that it counts for, if you are a member of several; by default the first one
    #[arg(long, value_name = "NAME")]
    share: Option<String>,
    /// From 0 to 1000; jobs with a higher priority come first, within their share
    #[arg(long, default_value_t = DEFAULT_PRIORITY)]
    priority: u32,
    /// vCPUs for each member
    #[arg(long, default_value_t = Needs::default().vcpus)]
    vcpus: u32,
    /// Memory for each member: in MiB, or with a unit such as 512M or 1.5G
    #[arg(long = "memory", default_value_t = Needs::default().memory_mib, value_name = "SIZE", value_parser = mebibytes)]
    memory_mib: u64,
    /// Scratch space for each member, in GiB or with a unit such as 100G or 2T; a member that writes more is stopped
    #[arg(long = "scratch", default_value_t = Needs::default().scratch_gib, value_name = "SIZE", value_parser = gibibytes)]
    scratch_gib: u64,
    /// GPUs for each member; no other job uses them meanwhile
    #[arg(long, default_value_t = Needs::default().gpus)]
    gpus: u32,
    #[command(flatten)]
    #[serde(flatten)]
    machine: MachineOptions,
    /// Share nodes with no other job
    #[arg(long)]
    exclusive: bool,
    /// How many licences it uses (limits.licences of the policy), such as matlab=2; may be given several times
    #[arg(long = "needs", value_name = "NAME[=N]", action = ArgAction::Append, value_parser = counted)]
    #[serde(serialize_with = "table")]
    licences: Vec<(String, u32)>,
    /// The number of members, from 1 to 256: they start together, each on its own node
    #[arg(long, default_value_t = Needs::default().nodes)]
    nodes: u32,
    /// Run it in a container of this image; without one, it is a process of the node
    #[arg(long)]
    image: Option<String>,
    /// The program of the container in place of the image's own, which gets COMMAND as its arguments; '' for none, so that COMMAND is run
    /// as it is
    #[arg(long, value_name = "PROGRAM")]
    entrypoint: Option<String>,
    /// The place of a secret (see --secret) that logs in to the registry of the image: USER:PASSWORD, or JSON with username and
    /// password. An image of Amazon ECR needs none: the role of the job logs in
    #[arg(long, value_name = "PLACE")]
    registry_login: Option<String>,
    /// A cache: a named volume that stays on the node after the job ends; may be given several times
    #[arg(long = "cache", value_name = "NAME", action = ArgAction::Append)]
    caches: Vec<String>,
    /// A variable of the environment; NAME alone takes the value that it has here. May be given several times
    #[arg(long, value_name = "NAME[=VALUE]", action = ArgAction::Append, value_parser = variable)]
    #[serde(skip)]
    pub(crate) env: Vec<Variable>,
    /// Variables from a file: NAME=VALUE or NAME in each line; # begins a comment. --env overrides it
    #[arg(long, value_name = "FILE", action = ArgAction::Append)]
    #[serde(skip)]
    pub(crate) env_file: Vec<PathBuf>,
    /// The role of the job in AWS: the name of one that the policy lists in jobs.roles
    #[arg(long, value_name = "NAME")]
    role: Option<String>,
    /// A variable with a secret, which the node reads with the role of the job: the ARN of a secret of Secrets Manager or of a
    /// parameter, or the name of a parameter, such as /db/password. #FIELD at the end takes a field of a secret in JSON
    #[arg(long = "secret", value_name = "NAME=PLACE", action = ArgAction::Append, value_parser = named)]
    #[serde(serialize_with = "table")]
    secrets: Vec<(String, String)>,
    /// The same as a file that only the job can read; the variable holds its path
    #[arg(long = "secret-file", value_name = "NAME=PLACE", action = ArgAction::Append, value_parser = named)]
    #[serde(serialize_with = "table")]
    secret_files: Vec<(String, String)>,
    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) files: FileOptions,
    /// Stop it after this time: in seconds, or with units such as 10m, 1h30m or 1d; 0 for never
    #[arg(long = "timeout", default_value = "0", value_name = "TIME", value_parser = seconds)]
    timeout_s: u64,
    /// The time between TERM and KILL
    #[arg(long = "kill-timeout", default_value_t = FailurePolicy::default().kill_timeout_s, value_name = "TIME", value_parser = seconds)]
    kill_timeout_s: u64,
    /// The signal that says a stop is near, such as USR1; all processes of the job get it. By default TERM, which asks them to stop
    #[arg(long, value_name = "SIGNAL")]
    stop_signal: Option<Signal>,
    /// How long before TERM the job gets the stop signal, also before its time-out
    #[arg(long = "stop-notice", default_value_t = FailurePolicy::default().stop_notice_s, value_name = "TIME", value_parser = seconds)]
    stop_notice_s: u64,
    /// How long to wait for a silent node before its alloc is lost; 0 for no wait
    #[arg(long = "lost-after", default_value_t = FailurePolicy::default().lost_after_s, value_name = "TIME", value_parser = seconds)]
    lost_after_s: u64,
    /// Run a copy on another node while waiting for a silent node
    #[arg(long)]
    replace: bool,
    /// Which copy is kept when the silent node comes back: best, keep_original or keep_replacement
    #[arg(long, default_value_t = FailurePolicy::default().reconcile)]
    reconcile: Reconcile,
    /// When to run it again, and how: CAUSE[,CAUSE…]=DO[,DO…]; may be given several times, and the first rule that names the
    /// cause decides. CAUSE is exit:75, exit:75-78, exit:*, signal:9, signal:*, memory, timeout, failed, lost, spot (its instance
    /// was interrupted) or node (its node could not start it). DO is fail, or again*N (again*any: without a limit) with any of
    /// pause=30s, elsewhere, on-demand, memory*1.5 and max-memory=64G
    #[arg(long = "retry", value_name = "RULE", action = ArgAction::Append)]
    retry: Vec<RetryRule>,
    /// How often to run it again after it failed by itself, if no rule decides: as --retry failed=again*N after the rules
    #[arg(long, default_value_t = FailurePolicy::default().retry_failed, value_name = "N")]
    retry_failed: u32,
    /// How often to run it again after its node was lost, if no rule decides; 0 for never
    #[arg(long, default_value_t = FailurePolicy::default().retry_lost, value_name = "N")]
    retry_lost: u32,
    /// Do not place it before this time: a time such as 2026-11-24T10:00:00Z, a date, or a length of time from now such as 2h
    #[arg(long = "not-before", value_name = "TIME")]
    not_before_at: Option<Moment>,
    /// Reject it if it has not begun this long after its submission, wherever it waits; 0 for never
    #[arg(long = "give-up-after", default_value = "0", value_name = "TIME", value_parser = seconds)]
    give_up_after_s: u64,
    /// Run it only after this job is complete: an id, a part of an id or a name; may be given several times. If that job
    /// ends otherwise, this one is rejected
    #[arg(long, value_name = "JOB")]
    #[serde(skip)]
    after: Vec<String>,
    /// Run it only after this job has ended, in whatever way; may be given several times
    #[arg(long, value_name = "JOB")]
    #[serde(skip)]
    after_any: Vec<String>,
}

#[derive(Args, Clone, Debug)]
#[command(group = clap::ArgGroup::new("elements").args(["count", "array"]))]
pub struct SubmitArgs {
    #[command(flatten)]
    pub(crate) job: JobOptions,
    /// Submit this many jobs; each has NODEKEEPER_ARRAY_INDEX, from 0, and NODEKEEPER_ARRAY_COUNT in its environment
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_ARRAY)))]
    count: Option<u32>,
    /// An array of jobs with these numbers, such as 0-199 or 1,3,10-20: as --count, with these indexes. With %N at the
    /// end, at most N of them are placed at the same time
    #[arg(long, value_name = "NUMBERS[%N]", conflicts_with_all = ["count", "file"])]
    array: Option<Numbers>,
    /// When this many elements of the array have failed for good, those that have not begun are rejected. Packs that run beside each
    /// other each count their own
    #[arg(long, value_name = "N", requires = "elements")]
    max_failures: Option<NonZeroU32>,
    /// Run each element only after the element of this array with the same number is complete: its id with [*], or its name
    #[arg(long, value_name = "ARRAY", requires = "elements")]
    after_each: Option<String>,
    /// Run this many elements of the array in one alloc, one after the other, and not each as a job of its own: for commands that
    /// take seconds or less. Each element has its own output, exit code and retries, and --timeout is that of an element. All of
    /// them have one work directory and its --scratch: what one leaves there, the next finds. A pack keeps no files (--out), and has no image
    #[arg(long, value_name = "N", requires = "elements", conflicts_with = "file", value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_PACK)))]
    pack: Option<u32>,
    /// How many elements of a pack run at the same time: they share what the job needs
    #[arg(long, value_name = "N", requires = "pack", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_AT_ONCE)))]
    at_once: u32,
    /// A job from each line of this file, or of standard input with `-`. A line is a JSON object with the attributes of a
    /// job, as `job --json` shows them (what describes the state of that job is left out); the options give the attributes that
    /// it leaves out. The same file given again writes only what is missing; when all its jobs have ended, it is new
    #[arg(long, value_name = "FILE", conflicts_with = "count")]
    pub(crate) file: Option<PathBuf>,
    /// Read standard input to its end, 11 KiB at most, and give it to the command of each job. Without this it is not read
    #[arg(long, short = 'i', conflicts_with = "file")]
    stdin: bool,
    /// Submit again a file that was submitted before
    #[arg(long, requires = "file", conflicts_with = "key")]
    pub(crate) again: bool,
    /// Wait until every job has ended; the exit code is 1 if a job did not complete
    #[arg(long)]
    wait: bool,
    /// Print the jobs as JSON (with --wait, as they ended)
    #[arg(long)]
    json: bool,
    /// The program and its arguments
    #[arg(last = true, required_unless_present = "file", value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
}

impl SubmitArgs {
    /// The jobs of these options, and their numbers. A pack has the number of its first element. Each job of an array has in its
    /// environment how many elements the array has and, if it is no pack, its own number.
    fn specs(&self, spec: &JobSpec) -> Result<Vec<(u32, JobSpec)>, UsageError> {
        let indexes = match (&self.array, self.count) {
            (Some(array), _) => array.indexes.clone(),
            (None, Some(count)) => Ranges::of(0, count.saturating_sub(1)),
            (None, None) => return Ok(vec![(0, spec.clone())]),
        };
        let (count, at_once) = (indexes.count(), self.at_once);
        if let Some(pack) = self.pack.filter(|pack| at_once > *pack) {
            let more =
                format!("--at-once {at_once} is more than the {pack} elements of --pack {pack}: give at most {pack}");
            return Err(UsageError(more));
        }
        let jobs = count.div_ceil(u64::from(self.pack.unwrap_or(1)));
        if jobs > MOST_JOBS {
            let most = "at most 100,000 are submitted at once: run several elements in one with --pack N, up to 1,000";
            return Err(UsageError(format!("this is {jobs} jobs, and {most}")));
        }
        let mut like = spec.clone();
        like.array_count = u32::try_from(count).ok();
        like.array_limit = self.array.as_ref().and_then(|array| array.limit);
        like.max_failures = self.max_failures;
        like.env.insert(COUNT_VARIABLE.to_owned(), count.to_string());
        let packed = |elements: Ranges| {
            let (first, mut spec) = (elements.iter().next().unwrap_or(0), like.clone());
            spec.work.pack = Some(Pack { at_once, ..Pack::of(elements) });
            (first, spec)
        };
        let alone = |index: u32| {
            let mut spec = like.clone();
            spec.env.insert(INDEX_VARIABLE.to_owned(), index.to_string());
            (index, spec)
        };
        Ok(match self.pack {
            Some(size) => indexes.chunks(size).into_iter().map(packed).collect(),
            None => indexes.iter().map(alone).collect(),
        })
    }
}

impl JobOptions {
    /// The jobs that this job follows, as the options name them, each with how it must end.
    pub(crate) fn after(&self) -> impl Iterator<Item = (&str, AfterEnd)> {
        let success = self.after.iter().map(|job| (job.as_str(), AfterEnd::Success));
        success.chain(self.after_any.iter().map(|job| (job.as_str(), AfterEnd::Any)))
    }

    /// The job with these options and this command, without its local files and without the jobs that it names.
    pub(crate) fn fields(&self, command: &[String]) -> anyhow::Result<JobSpec> {
        let tables = [("--label", &self.labels), ("--secret", &self.secrets), ("--secret-file", &self.secret_files)];
        for (option, given) in tables {
            once(option, given.iter().map(|(name, _)| name))?;
        }
        once("--needs", self.licences.iter().map(|(name, _)| name))?;
        let fields = serde_json::from_value(serde_json::to_value(self)?)?;
        let mut spec = JobSpec { env: environment(&self.env, &self.env_file)?, ..fields };
        spec.work.command = command.to_vec();
        Ok(spec)
    }
}

fn table<S: Serializer, V: Serialize>(given: &[(String, V)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(given.iter().map(|(name, value)| (name, value)))
}

/// Parses `NAME=VALUE`.
pub(crate) fn named(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("it must be NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

fn counted(text: &str) -> Result<(String, u32), String> {
    let (name, count) = text.split_once('=').unwrap_or((text, "1"));
    let count = count.parse::<u32>().ok().filter(|count| *count > 0);
    Ok((name.to_owned(), count.ok_or("it must be NAME or NAME=N, with a number of at least 1")?))
}

pub(crate) async fn run(context: &mut Context<'_>, args: &SubmitArgs) -> anyhow::Result<Exit> {
    let now = context.now();
    // The last bits of the ids of an array are numbers. The id of one job ends with random bits: lists show these, and jobs are
    // spread by them.
    let jobs = |spec: &JobSpec, each: &AfterEach, first: JobId| -> Result<Vec<Job>, UsageError> {
        let job = |(n, mut spec): (u32, JobSpec)| {
            let id = if spec.array_count.is_some() { Array::of(first).job(n) } else { first };
            each.add(n, &mut spec);
            Job::submit(id, spec, now)
        };
        args.specs(spec)?.into_iter().map(job).collect::<Result<_, _>>().map_err(|e| UsageError(e.to_string()))
    };
    let names = (args.after_each.as_deref(), args.stdin);
    let (cluster, written) = write(context, &args.job, &args.command, names, jobs).await?;
    let jobs = all_of(context, args.json, written)?;
    submitted(context, &cluster, (args.wait, args.json), jobs).await
}

/// Stores the files of these options, then writes the jobs that `jobs` makes of them. It gets what each element follows, and the id of
/// the first job. With a key, what was written before is not written again.
pub(crate) async fn write(
    context: &mut Context<'_>,
    options: &JobOptions,
    command: &[String],
    (after_each, has_stdin): (Option<&str>, bool),
    jobs: impl Fn(&JobSpec, &AfterEach, JobId) -> Result<Vec<Job>, UsageError>,
) -> anyhow::Result<(Cluster, Written)> {
    let mut spec = options.fields(command)?;
    let mut files = LocalFiles::default();
    let from_jobs = options.files.read(&mut spec.work, &mut files)?;
    if has_stdin {
        input::pass_on(context, &mut spec)?;
    }
    // A mistake in the options is an error before anything is read.
    let checked = jobs(&spec, &AfterEach::default(), JobId::new(Ulid::nil()))?;
    // A job alone has the same parts as a line.
    let elements = checked.iter().map(|job| (&job.work.pack, job.env.get(INDEX_VARIABLE)));
    let elements: Vec<_> = elements.filter(|(pack, index)| pack.is_some() || index.is_some()).collect();
    let names = json!({
        "after": options.after().collect::<Vec<_>>(), "in": from_jobs, "array": Some(elements).filter(|all| !all.is_empty()),
        "after_each": after_each,
    });
    let cluster = context.cluster().await?;
    let key = Keyed::of_option(options.key.as_deref(), GivenParts::of(&spec, &names)?, &cluster.store).await?;
    let ids = |first| checked.iter().map(|job| id_like(first, job)).collect();
    let prepared = async |context: &mut Context<'_>, first| {
        let (mut spec, mut each, mut names) = (spec.clone(), AfterEach::default(), JobNames::new(&cluster));
        names.add(options.after(), &from_jobs, &BTreeMap::new(), &mut spec).await?;
        if let Some(array) = after_each {
            each = AfterEach::of(&mut names, array, &checked).await?;
        }
        accepting(&cluster, [&spec]).await?;
        warn_of_forgotten(context, &spec)?;
        files.store(context, &cluster).await?;
        Ok(jobs(&spec, &each, first)?)
    };
    let (_, written) = submit_once(context, &cluster, key, ids, prepared).await?;
    Ok((cluster, written))
}

/// The id of a job like this one in a submission that begins with this id. An element of an array keeps its number; a pack has that of
/// its first element.
fn id_like(first: JobId, job: &Job) -> JobId {
    let of_pack = job.work.pack.as_ref().and_then(|pack| pack.elements.iter().next());
    match job.summary.array_count {
        Some(_) => Array::of(first).job(of_pack.unwrap_or_else(|| Array::number(job.summary.job_id))),
        None => first,
    }
}

pub(crate) fn print(context: &mut Context<'_>, is_json: bool, jobs: &[Job]) -> anyhow::Result<()> {
    if is_json {
        return show::json(context.out, &show::flat(json!(jobs)));
    }
    for job in jobs {
        writeln!(context.out, "{}", job.summary.job_id)?;
    }
    Ok(context.out.flush()?)
}

/// The written jobs, if they are all of them. Otherwise this is an error, and those that are stored are printed.
pub(crate) fn all_of(context: &mut Context<'_>, is_json: bool, written: Written) -> anyhow::Result<Vec<Job>> {
    let Written { jobs, missing, unclear, error } = written;
    let Some(error) = error else { return Ok(jobs) };
    print(context, is_json, &jobs)?;
    let all = jobs.len() + missing.len() + unclear.len();
    Err(anyhow::Error::new(error).context(format!("{} of {all} jobs were submitted", jobs.len())))
}

/// Prints the submitted jobs. With `--wait`, waits for their ends, prints their progress and their ends, and then the end of the
/// output: of a single job, and of each job that failed.
pub(crate) async fn submitted(
    context: &mut Context<'_>,
    cluster: &Cluster,
    (does_wait, is_json): (bool, bool),
    jobs: Vec<Job>,
) -> anyhow::Result<Exit> {
    // With --wait, JSON shows the jobs as they ended.
    if !(does_wait && is_json) {
        print(context, is_json, &jobs)?;
    }
    if !does_wait {
        return Ok(Exit::Done);
    }
    let mut followed = Follower::new(cluster, jobs, if is_json { Verbosity::Nothing } else { Verbosity::All });
    followed.wait(context).await?;
    let jobs = &followed.jobs;
    if is_json {
        print(context, is_json, jobs)?;
    } else {
        for job in jobs.iter().filter(|job| jobs.len() == 1 || job.summary.state == JobState::Failed) {
            let allocs = cluster.store.allocs_of([job]).await?.rows;
            outputs(context, cluster, job, &allocs, last_allocs(allocs.clone()), (Route::Together, Some(LAST_LINES)))
                .await?;
        }
    }
    Ok(Exit::done_if(jobs.iter().all(|job| job.summary.state == JobState::Complete)))
}
