//! `submit`: submits one job, or several identical jobs.
//!
//! Guarantees: every printed id is a stored job; with `--wait`, the exit code says whether all of them completed.
//! Does not: place anything. poll-and-scale does; the new job or the schedule starts it.

use super::operate::retention;
use super::{Cluster, Context, Outcome, Usage, show};
use clap::{ArgAction, Args};
use futures::future::join_all;
use model::chance::Chance;
use model::ids::JobId;
use model::{FailurePolicy, Job, JobSpec, JobState, Market, Reconcile};
use std::time::Duration;
use store::steps::submit_job;

/// How many jobs are written at once.
const AT_ONCE: usize = 16;
/// The time between two reads of a job with `--wait`.
const POLL: Duration = Duration::from_millis(500);
/// `--wait` gives up after this many failed reads in a row.
const FAILED_LOOKS: u32 = 5;

/// `submit`
#[derive(Args, Clone, Debug)]
pub struct SubmitArgs {
    /// A name for people
    #[arg(long)]
    name: Option<String>,
    /// How many identical jobs
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    count: u32,
    /// From 0 to 1000; jobs with a higher priority come first
    #[arg(long, default_value_t = 500)]
    priority: u32,
    /// vCPUs for each member
    #[arg(long, default_value_t = 1)]
    vcpus: u32,
    /// Memory for each member: in MiB, or with a unit such as 512M or 4G
    #[arg(long, default_value = "0", value_name = "SIZE", value_parser = mebibytes)]
    memory: u64,
    /// Scratch space for each member: in GiB, or with a unit such as 100G or 2T
    #[arg(long, default_value = "0", value_name = "SIZE", value_parser = gibibytes)]
    scratch: u64,
    /// GPUs for each member; such a job shares its nodes with no other job
    #[arg(long, default_value_t = 0)]
    gpus: u32,
    /// Run only on this instance type
    #[arg(long, value_name = "TYPE")]
    instance_type: Option<String>,
    /// Run only on this market: on_demand or spot
    #[arg(long)]
    market: Option<Market>,
    /// Share nodes with no other job
    #[arg(long)]
    exclusive: bool,
    /// The number of members, from 1 to 24: they start together, each on its own node
    #[arg(long, default_value_t = 1)]
    nodes: u32,
    /// The container image, if nodes run containers
    #[arg(long)]
    image: Option<String>,
    /// A cache: a named volume that stays on the node after the job ends; may be given several times
    #[arg(long = "cache", value_name = "NAME", action = ArgAction::Append)]
    caches: Vec<String>,
    /// A variable of the environment; may be given several times
    #[arg(long, value_name = "NAME=VALUE", action = ArgAction::Append, value_parser = variable)]
    env: Vec<(String, String)>,
    /// Stop it after this time: in seconds, or with a unit such as 10m, 2h or 1d; 0 for never
    #[arg(long, default_value = "0", value_name = "TIME", value_parser = seconds)]
    timeout: u64,
    /// The time between TERM and KILL
    #[arg(long, default_value = "30", value_name = "TIME", value_parser = seconds)]
    kill_timeout: u64,
    /// How long to wait for a silent node before its alloc is lost; 0 for no wait
    #[arg(long, default_value = "600", value_name = "TIME", value_parser = seconds)]
    lost_after: u64,
    /// Run a copy on another node while waiting for a silent node
    #[arg(long)]
    replace: bool,
    /// Which copy is kept when the silent node comes back: best, keep_original or keep_replacement
    #[arg(long, default_value = "best")]
    reconcile: Reconcile,
    /// How often to run it again after it failed by itself
    #[arg(long, default_value_t = 0, value_name = "N")]
    retry_failed: u32,
    /// How often to run it again after its node was lost; 0 for never
    #[arg(long, default_value_t = 3, value_name = "N")]
    retry_lost: u32,
    /// Wait until every job has ended; the exit code is 1 if a job did not complete
    #[arg(long)]
    wait: bool,
    /// Print the jobs as JSON (with --wait, as they ended)
    #[arg(long)]
    json: bool,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

impl SubmitArgs {
    pub(super) fn spec(&self) -> JobSpec {
        JobSpec {
            command: self.command.clone(),
            env: self.env.iter().cloned().collect(),
            name: self.name.clone(),
            priority: self.priority,
            vcpus: self.vcpus,
            memory_mib: self.memory,
            scratch_gib: self.scratch,
            gpus: self.gpus,
            instance_type: self.instance_type.clone(),
            market: self.market,
            exclusive: self.exclusive,
            nodes: self.nodes,
            image: self.image.clone(),
            caches: self.caches.clone(),
            timeout_s: self.timeout,
            failure_policy: FailurePolicy {
                kill_timeout_s: self.kill_timeout,
                lost_after_s: self.lost_after,
                replace: self.replace,
                reconcile: self.reconcile,
            },
            retry_failed: self.retry_failed,
            retry_lost: self.retry_lost,
        }
    }
}

/// A number with one of these units, in the smallest unit. A number without a unit is multiplied by `plain`.
fn measured(text: &str, units: &[(&str, u64)], plain: u64) -> Result<u64, String> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let worth = if unit.is_empty() { Some(plain) } else { units.iter().find(|(u, _)| *u == unit).map(|(_, w)| *w) };
    let value = number.parse::<u64>().ok().zip(worth).and_then(|(n, w)| n.checked_mul(w));
    value.ok_or_else(|| {
        let units: Vec<&str> = units.iter().map(|(u, _)| *u).collect();
        format!("it must be a whole number, alone or followed by one of {}", units.join(", "))
    })
}

const SIZES: &[(&str, u64)] =
    &[("M", 1), ("MiB", 1), ("G", 1 << 10), ("GiB", 1 << 10), ("T", 1 << 20), ("TiB", 1 << 20)];

fn mebibytes(text: &str) -> Result<u64, String> {
    measured(text, SIZES, 1)
}

fn gibibytes(text: &str) -> Result<u64, String> {
    // Rounded up: a job never gets less than it asked for.
    measured(text, SIZES, 1 << 10).map(|mib| mib.div_ceil(1 << 10))
}

fn seconds(text: &str) -> Result<u64, String> {
    measured(text, &[("s", 1), ("m", 60), ("h", 3600), ("d", 86_400)], 1)
}

fn variable(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("it must be NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

pub(super) async fn run(context: &mut Context<'_>, args: &SubmitArgs) -> anyhow::Result<Outcome> {
    let jobs: Vec<Job> = (0..args.count)
        .map(|_| {
            let now = context.now();
            Job::submit(JobId::new(Chance::real().ulid(now)), args.spec(), now)
        })
        .collect::<Result<_, _>>()
        .map_err(|e| Usage(e.to_string()))?;
    let cluster = context.cluster().await?;
    let keep = retention(&cluster).await?;
    let mut written = Vec::with_capacity(jobs.len());
    for some in jobs.chunks(AT_ONCE) {
        let mut failure = None;
        for result in join_all(some.iter().map(|job| submit_job(&cluster.store, job, keep, context.now()))).await {
            match result {
                Ok(job) => {
                    if !args.json {
                        writeln!(context.out, "{}", job.summary.job_id)?;
                    }
                    written.push(job);
                }
                Err(e) => failure = Some(e),
            }
        }
        context.out.flush()?;
        if let Some(error) = failure {
            if args.json {
                show::json(context.out, &written)?;
            }
            let said = format!("{} of {} jobs were submitted", written.len(), args.count);
            return Err(anyhow::Error::new(error).context(said));
        }
    }
    let mut all_complete = true;
    if args.wait {
        let announce = if args.json { Announce::Nothing } else { Announce::End };
        for job in &mut written {
            all_complete &= wait(context, &cluster, job, announce).await?;
        }
    }
    if args.json {
        show::json(context.out, &written)?;
    }
    Ok(Outcome::done_if(all_complete))
}

/// What `--wait` prints when a job has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Announce {
    /// The id, the state and the reason.
    End,
    /// Nothing: the jobs are printed as JSON later.
    Nothing,
}

/// Waits until a job has ended. Returns whether it completed.
async fn wait(context: &mut Context<'_>, cluster: &Cluster, job: &mut Job, announce: Announce) -> anyhow::Result<bool> {
    let id = job.summary.job_id;
    let mut failed_looks = 0;
    loop {
        match cluster.store.job(id).await {
            Ok(Some(seen)) => {
                failed_looks = 0;
                *job = seen;
            }
            Ok(None) => anyhow::bail!("job {id} is not stored any more: how it ended is not known"),
            // A wait may last for hours, so one failed read does not end it.
            Err(e) => {
                failed_looks += 1;
                if failed_looks == FAILED_LOOKS {
                    return Err(anyhow::Error::new(e).context(format!("stopped waiting for job {id}, which continues")));
                }
            }
        }
        if job.summary.state.is_ended() {
            let reason = job.reason.as_deref().map(|r| format!(": {}", show::one_line(r))).unwrap_or_default();
            if announce == Announce::End {
                writeln!(context.out, "{id} {}{reason}", job.summary.state)?;
                context.out.flush()?;
            }
            return Ok(job.summary.state == JobState::Complete);
        }
        tokio::time::sleep(POLL).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_have_units() {
        assert_eq!((mebibytes("512"), mebibytes("4G"), mebibytes("1TiB")), (Ok(512), Ok(4096), Ok(1 << 20)));
        assert_eq!((gibibytes("20"), gibibytes("2T"), gibibytes("100M")), (Ok(20), Ok(2048), Ok(1)));
        assert_eq!(
            (seconds("90"), seconds("10m"), seconds("2h"), seconds("1d")),
            (Ok(90), Ok(600), Ok(7200), Ok(86_400))
        );
        for bad in ["", "G", "-1", "1.5G", "4g", "4 G", "99999999999999999999", "18446744073709551615T"] {
            assert!(mebibytes(bad).is_err(), "{bad}");
        }
        assert_eq!(variable("A=b=c"), Ok(("A".into(), "b=c".into())));
        assert!(variable("A").is_err());
    }
}
