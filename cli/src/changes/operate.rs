//! The code that all writes of operators share.
//!
//! Guarantees: every write is conditional and leaves an event; it is retried if another writer changed the row first.
//! (A function leaves a lost race to its next run, but a command has no next run.)
//! Does not: decide what is written.

use crate::console::{Cluster, Usage};
use model::events::{Event, Subject};
use model::policy::{Policy, example_json};
use model::rights::{role_arn, role_name};
use model::time::Time;
use model::{ActionName, JobSpec};
use std::collections::BTreeSet;
use store::WriteError;
use store::transactions::Retention;

/// How often a write is retried if another writer changed the row first.
const RETRIES: u32 = 3;

/// The reason in every event of an operator.
pub(crate) const BY_OPERATOR: &str = "by the operator";

/// The retention times of the stored policy. Without a valid policy, the default times, because an operator must be
/// able to cancel a job without a policy.
pub(crate) async fn retention(cluster: &Cluster) -> anyhow::Result<Retention> {
    let control = cluster.store.ingest_control().await?;
    Ok(match control.checked_policy() {
        Ok((policy, _)) => Retention::of(&policy),
        Err(_) => Retention::of(&Policy::from_json(&example_json())?),
    })
}

/// The retention times, if the stored policy accepts these jobs: it must list the role of each.
pub(crate) async fn accepting<'a>(
    cluster: &Cluster,
    jobs: impl IntoIterator<Item = &'a JobSpec>,
) -> anyhow::Result<Retention> {
    let wanted: BTreeSet<&str> = jobs.into_iter().filter_map(|job| job.work.role.as_deref()).collect();
    if !wanted.is_empty() {
        let (policy, _) = cluster.store.ingest_control().await?.checked_policy()?;
        let roles = &policy.jobs.roles;
        if let Some(unlisted) = wanted.into_iter().find(|name| role_arn(roles, name).is_none()) {
            let names: Vec<&str> = roles.iter().filter_map(|arn| role_name(arn)).collect();
            let listed = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            let said = format!(
                "the policy lists no role {unlisted}; jobs.roles has {listed}: an operator adds the ARN there, and the tag \
                 nodekeeper:cluster to the role"
            );
            return Err(Usage(said).into());
        }
    }
    retention(cluster).await
}

/// Runs `attempt`, which reads, changes and writes. Runs it again if another writer changed the row first.
pub(crate) async fn retried<T>(attempt: impl AsyncFn() -> anyhow::Result<T>) -> anyhow::Result<T> {
    let mut tries = 0;
    loop {
        match attempt().await {
            Err(e) if lost_race(&e) && tries < RETRIES => tries += 1,
            Err(e) if lost_race(&e) => {
                anyhow::bail!("nothing was written: someone else changed it {tries} times meanwhile: try again")
            }
            other => return other,
        }
    }
}

fn lost_race(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(WriteError::Conflict(_) | WriteError::Contended))
}

/// Stores an event for an action of an operator.
pub(crate) async fn record_event(
    cluster: &Cluster,
    subject: &Subject,
    action: ActionName,
    reason: &str,
    keep: Retention,
    now: Time,
) -> anyhow::Result<()> {
    let event = Event::new(subject, action, reason, now, keep.events, cluster.store.rng());
    match cluster.store.record(&event).await {
        // The event is stored already: the answer to the first write was lost.
        Ok(()) | Err(WriteError::Conflict(_)) => Ok(()),
        Err(e) => Err(anyhow::Error::new(e).context("the change was made, but its event was not stored")),
    }
}
