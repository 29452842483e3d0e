//! What actions of several functions do with instances.
//!
//! Guarantees: the instances of a run are terminated with one call, those that pass their checks.
//! Does not: decide which; the plans do.

use crate::answer::{ActError, ActionResult};
use futures::StreamExt;
use futures::future::BoxFuture;
use model::{Cloud, InstanceState};
use std::collections::BTreeSet;

/// How many instances are checked at the same time.
const AT_ONCE: usize = 8;

/// Asks EC2 by id for an instance that it does not list. A conflict if EC2 knows the instance, except as
/// terminated: EC2 may know a terminated instance for an hour after its tags are gone.
pub async fn is_gone(cloud: &dyn Cloud, instance_id: &str) -> Result<(), ActError> {
    let known = cloud.instance(instance_id).await?;
    if known.is_some_and(|i| i.state != InstanceState::Terminated) { Err(ActError::CONFLICT) } else { Ok(()) }
}

/// Terminates the instances whose checks return their ids. Returns the result of each, in the same order.
pub async fn terminate(
    cloud: &dyn Cloud,
    checks: Vec<BoxFuture<'_, Result<String, ActionResult>>>,
) -> Vec<ActionResult> {
    let checked: Vec<_> = futures::stream::iter(checks).buffered(AT_ONCE).collect().await;
    let ids: BTreeSet<&String> = checked.iter().flatten().collect();
    let ids: Vec<String> = ids.into_iter().cloned().collect();
    let terminated = if ids.is_empty() { Ok(()) } else { cloud.terminate(&ids).await };
    let terminated = terminated.map_or_else(ActionResult::from, |()| ActionResult::DONE);
    checked.into_iter().map(|one| one.map_or_else(|not| not, |_| terminated.clone())).collect()
}
