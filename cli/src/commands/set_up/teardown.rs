//! `teardown`: ends every instance of the cluster, and proves that none is left.
//!
//! ```text
//!   each round: nodes.max = 0 ──▶ drain every node ──▶ --cancel-jobs ──▶ --terminate ──▶ is anything left?
//! ```
//!
//! Guarantees: exit code 0 means that EC2 listed no instance of the cluster for `--prove-s`, while the policy allowed no
//! node. Each round stores such a policy again if somebody stored another one. What the rounds change is printed. The command can
//! be stopped and run again at any time.
//! Does not: delete the stack, the tables or the policy.

use crate::changes::operate::record_event;
use crate::changes::{JobChange, change_each, change_intent};
use crate::console::show::{self, several};
use crate::console::{Cluster, Context, Exit, UsageError, WallClock};
use crate::view::status::{counts, none_or};
use anyhow::Context as _;
use clap::Args;
use futures::StreamExt;
use model::control::PolicyRow;
use model::{
    ActionName, ClusterName, Instance, InstanceState, Intent, JobId, NodeRecord, NodeState, Span, Subject, Time,
};
use serde_json::{Value, json};
use std::time::Duration;
use store::Listed;

/// The time between two rounds.
const PERIOD: Duration = Duration::from_secs(5);
/// How many rounds in a row may fail.
const FAILED_READS: u32 = 6;

#[derive(Args, Clone, Debug)]
pub struct TeardownArgs {
    /// The name of the cluster once more, because this command ends all its instances
    #[arg(value_name = "CLUSTER")]
    pub(crate) confirm: ClusterName,
    /// Cancel all jobs. Otherwise running jobs end first, and waiting jobs stay in the queue
    #[arg(long)]
    pub(crate) cancel_jobs: bool,
    /// Terminate the instances now. Their jobs are lost. Also works while the functions do not run
    #[arg(long)]
    pub(crate) terminate: bool,
    /// How long EC2 must list no instance, in seconds. A shorter time than a run of a function takes may miss the launch
    /// of a run that read the old policy
    #[arg(long, value_name = "SECONDS", default_value_t = 120)]
    pub(crate) prove_s: u32,
    /// Give up after this time, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 7200)]
    pub(crate) timeout_s: u32,
}

pub(crate) async fn run(context: &mut Context<'_>, args: &TeardownArgs) -> anyhow::Result<Exit> {
    let cluster = context.cluster().await?;
    if args.confirm != cluster.dynamo.cluster {
        let message = format!("the cluster is {}, not {}: nothing was done", cluster.dynamo.cluster, args.confirm);
        return Err(UsageError(message).into());
    }
    wait(context, &cluster, args, async || tokio::time::sleep(PERIOD).await).await
}

/// Stores a policy that allows no node, unless the stored one does so. Returns its new version. Changes only these two knobs,
/// because the policy may have others that this release does not know.
async fn launch_nothing(cluster: &Cluster, now: Time) -> anyhow::Result<Option<u64>> {
    let Some(before) = cluster.store.ingest_control().await?.policy else { return Ok(None) };
    let mut document: Value = serde_json::from_str(&before.document).context("the stored policy is not JSON")?;
    let nodes = document.as_object_mut().map(|policy| policy.entry("nodes").or_insert_with(|| json!({})));
    let nodes = nodes.and_then(Value::as_object_mut).context("the stored policy has no section nodes")?;
    if nodes.get("max").and_then(Value::as_u64) == Some(0) {
        return Ok(None);
    }
    nodes.extend([("min".to_owned(), json!(0)), ("max".to_owned(), json!(0))]);
    let by = cluster.by().await?;
    let after = PolicyRow::of_document(&document, Some(&before), now);
    let version = cluster.store.write(Some(&before), &after, Vec::new()).await?.version.number();
    let reason = format!("{by}: version {version}: the cluster is torn down");
    record_event(cluster, &Subject::Cluster, ActionName::PolicySet, &reason, now).await?;
    Ok(Some(version))
}

/// How many waiting jobs one round cancels: a queue may be larger than the memory of this program.
const CANCELLED_TOGETHER: usize = 10_000;

/// Cancels the jobs that have not ended: of a long queue the first ones, and the next round cancels more.
async fn cancel_all(cluster: &Cluster, clock: &WallClock) -> anyhow::Result<usize> {
    let how = JobChange::cancel(cluster).await?;
    let jobs = cluster.store.queue_listed(CANCELLED_TOGETHER).await?.jobs;
    let ids: Vec<JobId> = jobs.iter().map(|job| job.job_id).collect();
    let (mut changed, mut cancelled) = (change_each(cluster, &ids, &how, clock), 0);
    while let Some((_, job)) = changed.next().await {
        match job {
            Ok(job) => cancelled += usize::from(job.is_ok()),
            // A person must correct this row. The other jobs are cancelled.
            Err(error) => tracing::warn!("{error:#}"),
        }
    }
    Ok(cancelled)
}

/// Waits until nothing is left, and drains or terminates whatever appears meanwhile.
pub(crate) async fn wait(
    context: &mut Context<'_>,
    cluster: &Cluster,
    args: &TeardownArgs,
    pause: impl AsyncFn(),
) -> anyhow::Result<Exit> {
    let until = context.now() + Span::from_s(args.timeout_s.into());
    let (mut said, mut failed, mut empty_since): (String, u32, Option<Time>) = Default::default();
    loop {
        match Left::advance(cluster, args, &context.clock).await {
            Ok(left) => {
                failed = 0;
                for line in &left.did {
                    writeln!(context.out, "{line}")?;
                }
                let now = context.now();
                let since = *empty_since.get_or_insert(now);
                // A policy that somebody stored meanwhile may have started a launch, so the proof begins again after each change.
                if !left.is_nothing || !left.did.is_empty() {
                    empty_since = None;
                } else if now.since(since) >= Span::from_s(args.prove_s.into()) {
                    writeln!(context.out, "no instance is left: EC2 listed none for {} s", args.prove_s)?;
                    return Ok(Exit::Done);
                }
                if left.line != said {
                    writeln!(context.out, "{}", left.line)?;
                    context.out.flush()?;
                    said = left.line;
                }
            }
            // A teardown may last for an hour, so one failed round does not end it.
            Err(e) if failed + 1 < FAILED_READS => {
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
            return Ok(Exit::Failed);
        }
        pause().await;
    }
}

/// What one round of the teardown did, and what is left of the cluster after it.
struct Left {
    /// What the round did, for people.
    did: Vec<String>,
    /// The records and instances, for people.
    line: String,
    is_nothing: bool,
}

impl Left {
    /// Reads the cluster, and drains, cancels or terminates what is left of it.
    async fn advance(cluster: &Cluster, args: &TeardownArgs, clock: &WallClock) -> anyhow::Result<Self> {
        let (mut did, now) = (Vec::new(), clock());
        match launch_nothing(cluster, now).await {
            Ok(version) => did.extend(version.map(|v| format!("the policy allows no node now (version {v})"))),
            // With `--terminate`, the stored policy may be one that nobody can read.
            Err(e) if args.terminate => tracing::warn!("the policy may still allow nodes: {e:#}"),
            Err(e) => return Err(e),
        }
        // A record that cannot be read counts as left, and the others are still drained.
        let Listed { rows: mut records, unreadable } = cluster.store.nodes_listed(1).await?;
        for row in &unreadable {
            tracing::warn!("{row}");
        }
        records.retain(|record| !record.is_cleaned());
        for record in records.iter().filter(|record| takes_drain(record)) {
            change_intent(cluster, record.slot, Intent::Drain, None, now).await?;
        }
        // The nodes are drained first. Otherwise a node could get another job after its job is cancelled.
        let cancelled = if args.cancel_jobs { cancel_all(cluster, clock).await? } else { 0 };
        if cancelled > 0 {
            did.push(format!("{} cancelled", several(cancelled, "job")));
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
        let states = records.iter().map(|record| record.state_name().to_string());
        let records = counts(states.chain(unreadable.iter().map(|_| "unreadable".to_owned())));
        let instances = counts(instances.iter().map(|instance| instance.state.to_string()));
        let line = format!("node records: {}; instances: {}", none_or(&records), none_or(&instances));
        // With `--terminate`, the functions need not run, so records may stay.
        Ok(Self { did, line, is_nothing: instances.is_empty() && (records.is_empty() || args.terminate) })
    }
}

fn takes_drain(record: &NodeRecord) -> bool {
    !matches!(record.state, NodeState::ShuttingDown(_))
        && record.life().is_some_and(|life| life.intent != Intent::Drain)
}
