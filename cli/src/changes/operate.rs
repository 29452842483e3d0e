//! The code that all writes of operators share.
//!
//! Guarantees: every write is conditional and leaves an event. A write is retried if another writer changed the row first:
//! a function leaves a lost race to its next run, but a command has no next run.
//! Does not: decide what is written.

use crate::console::{Cluster, UsageError};
use anyhow::bail;
use model::files::bytes_on_disk;
use model::output::FOLLOW_LASTS;
use model::policy::example_json;
use model::rights::{role_arn, role_name};
use model::{ActionName, Alloc, Event, JobSpec, Policy, Reason, Subject, Time};
use std::collections::BTreeSet;
use store::{Retention, Store, WriteError};

/// How often a write is retried if another writer changed the row first.
const RETRIES: u32 = 3;

/// The retention times of the stored policy. Without a valid policy, the default times, because an operator must be
/// able to cancel a job without a policy.
pub(crate) async fn retention(cluster: &Cluster) -> anyhow::Result<Retention> {
    let control = cluster.store.ingest_control().await?;
    Ok(match control.checked_policy() {
        Ok((policy, _)) => Retention::of(&policy),
        Err(_) => Retention::of(&Policy::from_json(&example_json())?),
    })
}

/// The jobs that no size of the stored policy can ever run, that a limit never lets start, or for which a retry rule asks for such a machine: the place of each, and
/// why. None without a policy that can be read: then nothing is known of its sizes, and a run rejects such a job later.
pub(crate) async fn lacking<'a>(
    cluster: &Cluster,
    jobs: impl IntoIterator<Item = &'a JobSpec>,
) -> Vec<(usize, String)> {
    let policy = cluster.store.control().await.ok().and_then(|control| control.checked_policy().ok());
    let Some((policy, _)) = policy else { return Vec::new() };
    let by = cluster.reach.who.name().await.ok();
    let why = |job: &JobSpec| {
        let never = || policy.never_follows(&job.needs, &job.failure_policy);
        let rule = || never().map(|(rule, why)| format!("the retry rule {rule} can never be followed: {why}"));
        let of_sizes = policy.lack(&job.needs).or_else(rule);
        let of_sizes = of_sizes.map(|why| format!("{why}: `nodekeeper sizes` shows what the sizes have"));
        let (nodes, max) = (job.needs.nodes, policy.nodes.max);
        let of_nodes = || (nodes > max && max > 0).then(|| Reason::MoreThanMaximum { nodes, max }.to_string());
        let of_sizes = of_sizes.or_else(of_nodes);
        let share = policy.share_for(by, job.share.as_deref()).ok().flatten();
        of_sizes.or_else(|| policy.never_allows((share.as_deref(), by), &job.needs))
    };
    jobs.into_iter().enumerate().filter_map(|(n, job)| Some((n, why(job)?))).collect()
}

/// Checks that the stored policy accepts these jobs: it must have a size for each, list the role of each, name a bucket if one has files,
/// and have a size whose scratch space takes their inputs.
pub(crate) async fn accepting<'a>(
    cluster: &Cluster,
    jobs: impl IntoIterator<Item = &'a JobSpec> + Clone,
) -> anyhow::Result<()> {
    if let Some((_, why)) = lacking(cluster, jobs.clone()).await.pop() {
        bail!(UsageError(why));
    }
    let (mut roles, mut needs_bucket, mut inputs) = (BTreeSet::new(), false, 0);
    for job in jobs {
        roles.extend(job.work.role.as_deref());
        needs_bucket |= job.work.needs_bucket();
        inputs = inputs.max(bytes_on_disk(&job.work.inputs));
    }
    if !roles.is_empty() || needs_bucket {
        let (policy, _) = cluster.store.ingest_control().await?.checked_policy()?;
        if let Some(unlisted) = roles.into_iter().find(|name| role_arn(&policy.jobs.roles, name).is_none()) {
            bail!(UsageError(unlisted_role(&policy, unlisted)));
        }
        if needs_bucket && policy.output.s3.is_none() {
            bail!(UsageError(NO_BUCKET.to_owned()));
        }
        if let Some(most) = policy.most_scratch_gib().filter(|most| inputs > most << 30) {
            let needed = inputs.div_ceil(1 << 30);
            bail!(UsageError(format!(
                "the inputs of a job take up {needed} GiB on its node, and no size of the policy has more than {most} GiB of scratch space"
            )));
        }
    }
    Ok(())
}

pub(crate) const NO_BUCKET: &str = "the policy names no bucket for the files of jobs: an operator sets output.s3 to what \
    the output OutputS3 of the stack says";

fn unlisted_role(policy: &Policy, unlisted: &str) -> String {
    let names: Vec<&str> = policy.jobs.roles.iter().filter_map(|arn| role_name(arn)).collect();
    let listed = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
    format!(
        "the policy lists no role {unlisted}; jobs.roles has {listed}: an operator adds the ARN there, and the tag \
         nodekeeper:cluster to the role"
    )
}

/// Runs `attempt`, which reads, changes and writes. Runs it again if another writer changed the row first.
pub(crate) async fn retried<T>(attempt: impl AsyncFn() -> anyhow::Result<T>) -> anyhow::Result<T> {
    let mut tries = 0;
    loop {
        match attempt().await {
            Err(e) if lost_race(&e) && tries < RETRIES => tries += 1,
            Err(e) if lost_race(&e) => {
                bail!("nothing was written: someone else changed it {tries} times meanwhile: try again")
            }
            other => return other,
        }
    }
}

/// Notes on the record of the alloc's node that somebody follows its output: the node then stores what is new each second. Returns the
/// last heartbeat of the node before that. Another writer may come first.
pub(crate) async fn follow(store: &Store, alloc: &Alloc, now: Time) -> Result<Option<Time>, WriteError> {
    let node_id = alloc.summary.node_id;
    let record = store.node(node_id.slot()).await?.filter(|record| record.node_id() == Some(node_id));
    let Some(record) = record else { return Ok(None) };
    let pinged_at = record.contact().map(|contact| contact.last_ping_at);
    // The clock of this machine may be slow. The functions' clock has at least reached the node's last heartbeat.
    let now = pinged_at.map_or(now, |at| at.max(now));
    // If the alloc has just ended, its node stores the rest without a follow.
    let Ok(after) = record.with_follow(alloc.id(), now + FOLLOW_LASTS, now) else { return Ok(None) };
    store.write(Some(&record), &after, Vec::new()).await?;
    Ok(pinged_at)
}

fn lost_race(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(WriteError::Conflict(_) | WriteError::Contended))
}

pub(crate) async fn record_event(
    cluster: &Cluster,
    subject: &Subject,
    action: ActionName,
    reason: &str,
    now: Time,
) -> anyhow::Result<()> {
    let keep = retention(cluster).await?;
    let event = Event::new(subject, action, reason, now, keep.events, cluster.store.rng());
    match cluster.store.record(&event).await {
        // The event is stored already: the answer to the first write was lost.
        Ok(()) | Err(WriteError::Conflict(_)) => Ok(()),
        Err(e) => Err(anyhow::Error::new(e).context("the change was made, but its event was not stored")),
    }
}
