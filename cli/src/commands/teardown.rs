//! `teardown`: lets every instance of the cluster go, and proves that none is left.
//!
//! ```text
//!   nodes.min = nodes.max = 0 ──▶ drain every node ──▶ wait until every record is cleaned and EC2 lists no instance
//!                    └─ --cancel-jobs ┘       └─ --terminate: terminate what EC2 lists, without waiting for jobs
//! ```
//!
//! Guarantees: exit code 0 means that EC2 listed no instance of the cluster for `--prove-s`, while nothing could launch
//! one. What happened in between is printed. It can be stopped and run again at any time.
//! Does not: delete the stack, the tables or the policy.

use super::nodes::change_intent;
use super::operate::{BY_OPERATOR, retention, retried, tell};
use super::show::{self, counted, several};
use super::{Cluster, Context, Outcome, Usage};
use clap::Args;
use model::ActionName;
use model::cloud::{Instance, InstanceState};
use model::control::PolicyRow;
use model::events::Subject;
use model::ids::ClusterName;
use model::policy::Policy;
use model::time::{Span, Time};
use model::{Intent, NodeRecord, NodeState};
use std::collections::BTreeMap;
use std::time::Duration;
use store::WriteError;
use store::steps::cancel_job;

/// The time between two looks.
const LOOK: Duration = Duration::from_secs(5);
/// How many looks in a row may fail.
const FAILED_LOOKS: u32 = 6;

/// `teardown`
#[derive(Args, Clone, Debug)]
pub struct TeardownArgs {
    /// The name of the cluster once more, because this ends all its instances
    #[arg(value_name = "CLUSTER")]
    pub(super) confirm: ClusterName,
    /// Cancel all jobs. Otherwise running jobs end first, and waiting jobs stay in the queue
    #[arg(long)]
    pub(super) cancel_jobs: bool,
    /// Terminate the instances now. Their jobs are lost. Also works while the functions do not run
    #[arg(long)]
    pub(super) terminate: bool,
    /// How long EC2 must list no instance, in seconds. A shorter time than a run of a function takes may miss the launch
    /// of a run that read the old policy
    #[arg(long, value_name = "SECONDS", default_value_t = 120)]
    pub(super) prove_s: u32,
    /// Give up after this time, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 7200)]
    pub(super) timeout_s: u32,
}

pub(super) async fn run(context: &mut Context<'_>, args: &TeardownArgs) -> anyhow::Result<Outcome> {
    let cluster = context.cluster().await?;
    if args.confirm != *cluster.dynamo.cluster() {
        let message = format!("the cluster is {}, not {}: nothing was done", cluster.dynamo.cluster(), args.confirm);
        return Err(Usage(message).into());
    }
    launch_nothing(context, &cluster).await?;
    if args.cancel_jobs {
        cancel_all(context, &cluster).await?;
    }
    wait(context, &cluster, args, async || tokio::time::sleep(LOOK).await).await
}

/// Stores a policy that allows no node.
async fn launch_nothing(context: &mut Context<'_>, cluster: &Cluster) -> anyhow::Result<()> {
    let Some(before) = cluster.store.ingest_control().await?.policy else {
        writeln!(context.out, "there is no policy, so nothing is launched")?;
        return Ok(());
    };
    let mut policy: Policy = Policy::from_json(&serde_json::from_str(&before.document)?)?;
    if policy.nodes.max == 0 {
        writeln!(context.out, "the policy allows no node")?;
        return Ok(());
    }
    (policy.nodes.min, policy.nodes.max) = (0, 0);
    let after = PolicyRow::of_document(&policy.to_json());
    let after = match cluster.store.write(Some(&before), &after, Vec::new()).await {
        Err(WriteError::Conflict(_)) => anyhow::bail!("someone else stored a policy meanwhile: try again"),
        other => other?,
    };
    let reason = format!("{BY_OPERATOR}: version {}: the cluster is torn down", after.version.number());
    let (keep, now) = (retention(cluster).await?, context.now());
    tell(cluster, &Subject::Cluster, ActionName::PolicySet, &reason, keep, now).await?;
    writeln!(context.out, "the policy allows no node now (version {})", after.version.number())?;
    Ok(())
}

async fn cancel_all(context: &mut Context<'_>, cluster: &Cluster) -> anyhow::Result<()> {
    let (keep, now) = (retention(cluster).await?, context.now());
    let mut cancelled = 0;
    for summary in cluster.store.queue().await? {
        let change = retried(async || {
            let Some(job) = cluster.store.job(summary.job_id).await? else { return Ok(false) };
            Ok(cancel_job(&cluster.store, &job, BY_OPERATOR, keep, now).await?.is_some())
        });
        cancelled += u32::from(change.await?);
    }
    writeln!(context.out, "{} cancelled", several(cancelled, "job"))?;
    Ok(())
}

/// Waits until nothing is left, and drains or terminates whatever appears meanwhile.
pub(super) async fn wait(
    context: &mut Context<'_>,
    cluster: &Cluster,
    args: &TeardownArgs,
    pause: impl AsyncFn(),
) -> anyhow::Result<Outcome> {
    let until = context.now() + Span::from_s(args.timeout_s.into());
    let (mut said, mut failed, mut empty_since): (String, u32, Option<Time>) = Default::default();
    loop {
        match Left::look(cluster, args, context.now()).await {
            Ok(left) => {
                failed = 0;
                let now = context.now();
                let since = *empty_since.get_or_insert(now);
                if !left.nothing() {
                    empty_since = None;
                } else if now.since(since) >= Span::from_s(args.prove_s.into()) {
                    writeln!(context.out, "no instance is left: EC2 listed none for {} s", args.prove_s)?;
                    return Ok(Outcome::Done);
                }
                let says = left.to_string();
                if says != said {
                    writeln!(context.out, "{says}")?;
                    context.out.flush()?;
                    said = says;
                }
            }
            // A teardown may last for an hour, so one failed look does not end it.
            Err(e) if failed + 1 < FAILED_LOOKS => {
                (failed, empty_since) = (failed + 1, None);
                writeln!(context.err, "nodekeeper: {}: looking again", show::error(&e))?;
            }
            Err(e) => return Err(e.context("stopped waiting; what was drained stays drained: run this again")),
        }
        if context.now() >= until {
            writeln!(
                context.err,
                "nodekeeper: not done after {} s: `nodekeeper nodes` and `nodekeeper status` say what the nodes wait for; \
                 --cancel-jobs ends jobs, --terminate ends instances",
                args.timeout_s
            )?;
            return Ok(Outcome::Failed);
        }
        pause().await;
    }
}

/// What is left of the cluster.
struct Left {
    records: BTreeMap<String, usize>,
    instances: BTreeMap<String, usize>,
    /// Whether records count. They do not if the functions need not run any more.
    records_count: bool,
}

impl Left {
    /// Looks, and drains or terminates what it sees.
    async fn look(cluster: &Cluster, args: &TeardownArgs, now: Time) -> anyhow::Result<Self> {
        let mut records = cluster.store.nodes().await?;
        records.retain(|record| !record.is_cleaned());
        for record in records.iter().filter(|record| takes_drain(record)) {
            change_intent(cluster, record.slot, Intent::Drain, now).await?;
        }
        let mut instances = cluster.cloud.instances().await?;
        instances.retain(|instance| instance.state != InstanceState::Terminated);
        if args.terminate {
            let still_up = |i: &&Instance| i.state != InstanceState::ShuttingDown;
            let ids: Vec<String> = instances.iter().filter(still_up).map(|i| i.instance_id.clone()).collect();
            if !ids.is_empty() {
                cluster.cloud.terminate(&ids).await?;
            }
        }
        let count = |words: Vec<String>| {
            let mut counts = BTreeMap::new();
            words.into_iter().for_each(|word| *counts.entry(word).or_default() += 1);
            counts
        };
        Ok(Self {
            records: count(records.iter().map(|r| r.state_name().to_string()).collect()),
            instances: count(instances.iter().map(|i| i.state.to_string()).collect()),
            records_count: !args.terminate,
        })
    }

    fn nothing(&self) -> bool {
        self.instances.is_empty() && (self.records.is_empty() || !self.records_count)
    }
}

fn takes_drain(record: &NodeRecord) -> bool {
    !matches!(record.state, NodeState::ShuttingDown(_))
        && record.life().is_some_and(|life| life.intent != Intent::Drain)
}

impl std::fmt::Display for Left {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let words = |counts: &BTreeMap<String, usize>| {
            if counts.is_empty() { "none".to_owned() } else { counted(counts) }
        };
        write!(f, "node records: {}; instances: {}", words(&self.records), words(&self.instances))
    }
}
