//! `submit`: one job or many alike.
//!
//! Guarantees: every id that is printed is a job that is kept; with `--wait` the exit code says
//! whether all of them completed.
//! Does not: place anything: poll-and-scale does, woken by the new job or by its schedule.

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
/// How far apart the looks at a job are that is waited for.
const POLL: Duration = Duration::from_millis(500);
/// How many looks in a row may fail.
const FAILED_LOOKS: u32 = 5;

/// `submit`
#[derive(Args, Clone, Debug)]
pub struct SubmitArgs {
    /// A name for people
    #[arg(long)]
    name: Option<String>,
    /// So many jobs alike
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    count: u32,
    /// 0 to 1000, higher first
    #[arg(long, default_value_t = 500)]
    priority: u32,
    /// vCPUs for each member
    #[arg(long, default_value_t = 1)]
    vcpus: u32,
    /// Memory for each member: MiB, or with a unit like 512M, 4G
    #[arg(long, default_value = "0", value_name = "SIZE", value_parser = mebibytes)]
    memory: u64,
    /// Scratch space for each member: GiB, or with a unit like 100G, 2T
    #[arg(long, default_value = "0", value_name = "SIZE", value_parser = gibibytes)]
    scratch: u64,
    /// GPUs for each member; such jobs have their nodes alone
    #[arg(long, default_value_t = 0)]
    gpus: u32,
    /// Run on this instance type only
    #[arg(long, value_name = "TYPE")]
    instance_type: Option<String>,
    /// Run on this market only: on_demand or spot
    #[arg(long)]
    market: Option<Market>,
    /// Share nodes with no other job
    #[arg(long)]
    exclusive: bool,
    /// Members, started together, each on a node of its own: 1 to 24
    #[arg(long, default_value_t = 1)]
    nodes: u32,
    /// The container image, where nodes run containers
    #[arg(long)]
    image: Option<String>,
    /// A named volume that outlives the job; may be given again
    #[arg(long = "cache", value_name = "NAME", action = ArgAction::Append)]
    caches: Vec<String>,
    /// A variable of the environment; may be given again
    #[arg(long, value_name = "NAME=VALUE", action = ArgAction::Append, value_parser = variable)]
    env: Vec<(String, String)>,
    /// Stop it after so long: seconds, or with a unit like 10m, 2h, 1d; 0 for never
    #[arg(long, default_value = "0", value_name = "TIME", value_parser = seconds)]
    timeout: u64,
    /// From TERM to KILL
    #[arg(long, default_value = "30", value_name = "TIME", value_parser = seconds)]
    kill_timeout: u64,
    /// How long to wait for a silent node before its alloc is lost; 0 for not at all
    #[arg(long, default_value = "600", value_name = "TIME", value_parser = seconds)]
    lost_after: u64,
    /// Run a copy elsewhere while a silent node is waited for
    #[arg(long)]
    replace: bool,
    /// Which copy is kept when the silent node comes back: best, keep_original or keep_replacement
    #[arg(long, default_value = "best")]
    reconcile: Reconcile,
    /// Run it again so often after it failed by itself
    #[arg(long, default_value_t = 0, value_name = "N")]
    retry_failed: u32,
    /// Run it again so often after its node was lost; 0 for never a second time
    #[arg(long, default_value_t = 3, value_name = "N")]
    retry_lost: u32,
    /// Wait until every job has ended; the exit code is 1 if one did not complete
    #[arg(long)]
    wait: bool,
    /// Print the jobs as JSON (with --wait as they ended)
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

/// A number and a unit out of these, each worth so many of the smallest; without a unit, `plain`.
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
    // What is asked for is had: a part of a GiB counts as one.
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
        for job in &mut written {
            all_complete &= wait(context, &cluster, job, !args.json).await?;
        }
    }
    if args.json {
        show::json(context.out, &written)?;
    }
    Ok(Outcome::done_if(all_complete))
}

/// Waits until a job has ended, and says how. Whether it completed.
async fn wait(context: &mut Context<'_>, cluster: &Cluster, job: &mut Job, say: bool) -> anyhow::Result<bool> {
    let id = job.summary.job_id;
    let mut failed_looks = 0;
    loop {
        match cluster.store.job(id).await {
            Ok(Some(seen)) => {
                failed_looks = 0;
                *job = seen;
            }
            Ok(None) => anyhow::bail!("job {id} is no longer kept: how it ended is not known"),
            // A wait may last for hours: one answer that fails does not end it.
            Err(e) => {
                failed_looks += 1;
                if failed_looks == FAILED_LOOKS {
                    return Err(anyhow::Error::new(e).context(format!("stopped waiting for job {id}, which goes on")));
                }
            }
        }
        if job.summary.state.is_ended() {
            let reason = job.reason.as_deref().map(|r| format!(": {}", show::one_line(r))).unwrap_or_default();
            if say {
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
