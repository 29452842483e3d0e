//! What every operator's write has in common: it is conditional, tried again when someone else
//! was first, and leaves an event.
//!
//! Does not: decide what is written. A function's run leaves a lost race to the next run; an
//! operator's command has no next run.

use super::Cluster;
use shared::events::{Event, Subject};
use shared::policy::{Policy, example_json};
use shared::store::WriteError;
use shared::time::{Span, Time};

/// How often a write is tried again when someone else was first.
const RETRIES: u32 = 3;

/// What every operator's event says.
pub(super) const BY_OPERATOR: &str = "by the operator";

/// How long things are kept.
#[derive(Clone, Copy, Debug)]
pub(super) struct Keeps {
    /// Ended jobs.
    pub(super) finished: Span,
    /// Events.
    events: Span,
}

impl Keeps {
    /// As the stored policy says, or by default where none is stored: a job must be cancellable
    /// without one.
    pub(super) async fn read(cluster: &Cluster) -> anyhow::Result<Self> {
        let control = cluster.store.ingest_control().await?;
        let policy = match control.checked_policy() {
            Ok((policy, _)) => policy,
            Err(_) => Policy::from_json(&example_json())?,
        };
        Ok(Self { finished: policy.history.keep_finished(), events: policy.history.keep_events() })
    }
}

/// Reads, changes and writes, again from the beginning when someone else was first.
pub(super) async fn retried<T>(attempt: impl AsyncFn() -> anyhow::Result<T>) -> anyhow::Result<T> {
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

/// Keeps an event of what an operator did.
pub(super) async fn tell(
    cluster: &Cluster,
    subject: &Subject,
    action: &str,
    reason: &str,
    keeps: Keeps,
    now: Time,
) -> anyhow::Result<()> {
    let event = Event::new(subject, action, reason, now, keeps.events, cluster.store.chance());
    match cluster.store.record(&event).await {
        // The event is there already: the answer to its first try was lost.
        Ok(()) | Err(WriteError::Conflict(_)) => Ok(()),
        Err(e) => Err(anyhow::Error::new(e).context("it is done, but no event of it was kept")),
    }
}
