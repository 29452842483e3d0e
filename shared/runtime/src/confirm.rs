//! Checks a plan that is only shown, by the reads that a run would make.
//!
//! Guarantees: the checked plan has no action that would be a conflict now, or that needs a row that cannot be read.
//! Does not: write anything.

use crate::answer::ActError;
use crate::observation::ObserveError;
use async_trait::async_trait;
use futures::{StreamExt, stream};
use model::action::Plan;
use model::time::Time;
use std::pin::pin;
use store::{DbError, WriteError};

/// The reads of a function's actions.
#[async_trait]
pub trait Confirm<A>: Sync {
    /// Makes the reads of one action at this time, and no write.
    async fn check(&self, action: &A, now: Time) -> Result<(), ActError>;
}

/// How many actions are checked at the same time: a person waits for the answer.
const AT_ONCE: usize = 16;

/// The plan without the actions that would be conflicts now. It fails if a read fails.
pub async fn confirmed<A: Send + Sync>(
    reads: &impl Confirm<A>,
    mut plan: Plan<A>,
    now: Time,
) -> Result<Plan<A>, ObserveError> {
    let planned = std::mem::take(&mut plan.actions).into_iter();
    let read = stream::iter(planned.map(|planned| async move { (reads.check(&planned.action, now).await, planned) }));
    let mut read = pin!(read.buffered(AT_ONCE));
    while let Some((confirmed, planned)) = read.next().await {
        match confirmed {
            Ok(()) => plan.actions.push(planned),
            Err(ActError::Write(WriteError::Db(error @ DbError::Corrupt { .. }))) => {
                tracing::warn!(%error, "an action is left out");
            }
            Err(ActError::Write(WriteError::Db(e))) => return Err(e.into()),
            Err(ActError::Cloud(e)) => return Err(e.into()),
            Err(_) => {}
        }
    }
    Ok(plan)
}
